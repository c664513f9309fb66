//! Random values that messages can carry, in the form in which they are read.

#![allow(dead_code)]

pub mod actions;
pub mod keys;
pub mod messages;

use ovs_netlink::layout::Layout;
use ovs_netlink::name::Name;
use proptest::collection::vec;
use proptest::prelude::*;

/// A struct of random bytes.
pub fn layout<T: Layout + std::fmt::Debug>() -> impl Strategy<Value = T> {
    vec(any::<u8>(), T::SIZE).prop_map(|bytes| T::from_bytes(&bytes).unwrap())
}

/// A number of few bits, or of any.
pub fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..4, any::<u32>(), Just(u32::MAX)]
}

pub fn name() -> impl Strategy<Value = Name> {
    vec(1u8.., 1..=15).prop_map(|bytes| Name::new(bytes).unwrap())
}

/// The bits of `value` that `mask` has.
pub fn both<T: Layout>(value: &T, mask: &T) -> T {
    let bytes = value.to_bytes().into_iter().zip(mask.to_bytes());
    let bytes: Vec<u8> = bytes.map(|(value, mask)| value & mask).collect();
    T::from_bytes(&bytes).unwrap()
}
