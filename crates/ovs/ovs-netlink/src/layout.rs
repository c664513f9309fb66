//! Values of fixed layout: the structs of `linux/openvswitch.h` whose numbers are in network order.

use crate::error::Error;

/// One field of a struct.
pub trait LayoutField: Sized {
    /// Takes the field from the front of `bytes`; `None` if they are too few.
    fn take(bytes: &mut &[u8]) -> Option<Self>;
    /// Appends the field.
    fn put(&self, bytes: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl LayoutField for $number {
            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (head, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_be_bytes(*head))
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_be_bytes());
            }
        })*
    };
}

numbers!(u8 u16 u32 u64 u128);

/// Ethernet address.
pub type Mac = [u8; 6];

impl LayoutField for Mac {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(*head)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }
}

/// A struct as it is in an attribute. Padding at its end is ignored when read, and written as zeros.
pub trait Layout: Copy + Sized {
    /// Bytes, with padding.
    const SIZE: usize;

    /// The struct at the front of `bytes`; `None` if they are too few.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
    /// Appends the struct.
    fn put_bytes(&self, bytes: &mut Vec<u8>);

    /// The struct's bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::SIZE);
        self.put_bytes(&mut bytes);
        bytes
    }

    /// The struct all of whose bits are set: as a mask, it matches exactly.
    fn ones() -> Self {
        Self::from_bytes(&vec![0xff; Self::SIZE]).expect("as many bytes as the struct has")
    }
}

macro_rules! plain {
    ($($kind:ty)*) => {
        $(impl Layout for $kind {
            const SIZE: usize = size_of::<Self>();

            fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
                Self::take(&mut bytes)
            }

            fn put_bytes(&self, bytes: &mut Vec<u8>) {
                self.put(bytes);
            }
        })*
    };
}

plain!(u16 u32 u128);

/// Splits the value of an attribute into value and mask. It has `size` bytes, or if `masked`, twice as many.
pub(crate) fn halves(
    kind: u16,
    bytes: &[u8],
    masked: bool,
    size: usize,
) -> Result<(&[u8], Option<&[u8]>), Error> {
    if !masked {
        return if bytes.len() == size {
            Ok((bytes, None))
        } else {
            Err(wrong_size(kind, bytes))
        };
    }
    if bytes.len() != 2 * size {
        return Err(wrong_size(kind, bytes));
    }
    let (value, mask) = bytes.split_at(size);
    match value
        .iter()
        .zip(mask)
        .find(|(value, mask)| **value & !**mask != 0)
    {
        Some((value, _)) => Err(Error::Value {
            what: "value of set_masked beyond its mask",
            value: u64::from(*value),
        }),
        None => Ok((value, Some(mask))),
    }
}

/// The error that a value to set has another size than its kind requires.
pub(crate) fn wrong_size(kind: u16, bytes: &[u8]) -> Error {
    Error::Size {
        set: "OVS_KEY_ATTR in a set action",
        kind,
        found: bytes.len(),
    }
}

/// Defines structs with their layout: documentation, name, bytes with padding, fields.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident ($size:literal) { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $kind,)*
            }

            impl $crate::layout::Layout for $name {
                const SIZE: usize = $size;

                fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
                    if bytes.len() < Self::SIZE {
                        return None;
                    }
                    Some(Self { $($field: $crate::layout::LayoutField::take(&mut bytes)?,)* })
                }

                fn put_bytes(&self, bytes: &mut Vec<u8>) {
                    let end = bytes.len() + Self::SIZE;
                    $($crate::layout::LayoutField::put(&self.$field, bytes);)*
                    bytes.resize(end, 0);
                }
            }
        )*
    };
}

pub(crate) use layouts;
