//! Numbers in the machine's order: arrays, and structs of counters.

use crate::attribute::Writer;

/// Most sockets that one attribute may name.
pub const MAX_SOCKETS: usize = 4096;

/// 32-bit numbers one after the other.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<u32> {
    let numbers = bytes.chunks_exact(4).map(|number| number.try_into());
    numbers.filter_map(Result::ok).map(u32::from_ne_bytes).collect()
}

pub(crate) fn write_numbers(kind: u16, numbers: &[u32], writer: &mut Writer) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    writer.attribute(kind, &bytes);
}

/// Defines structs of 64-bit counters.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: u64,)*
            }

            impl $name {
                pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
                    $(
                        let (counter, rest) = bytes.split_first_chunk()?;
                        let $field = u64::from_ne_bytes(*counter);
                        bytes = rest;
                    )*
                    bytes.is_empty().then_some(Self { $($field,)* })
                }

                pub(crate) fn to_bytes(self) -> Vec<u8> {
                    [$(self.$field.to_ne_bytes(),)*].concat()
                }
            }
        )*
    };
}

pub(crate) use counters;
