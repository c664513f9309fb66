//! Netlink attributes: which ones a place may hold, the table of those that were read, and the writer.
//!
//! An attribute is a length, a kind and a value (`struct nlattr`), padded to 4 bytes; a value may be
//! attributes again. Each place that holds attributes has an [`AttributeSet`], which gives for each kind the
//! size of its value. [`Table::read`] refuses kinds that the set lacks, wrong sizes, and kinds that appear
//! twice. So code that takes a value from a table need not check its length again.

use crate::error::Error;
use crate::layout::Layout;
use crate::message::{self, Generic, Header};

/// Bytes of `struct nlattr`.
pub const HEADER: usize = 4;
/// Most bytes of a value: the length field has 16 bits.
pub const MAX_VALUE: usize = u16::MAX as usize - HEADER;
/// Flag in the kind: the value consists of attributes. Senders may set it or not.
const NESTED: u16 = 0x8000;

/// The sizes that an attribute's value may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// There is no such attribute.
    Unknown,
    /// One length in bytes.
    Exactly(usize),
    /// At least the first number of bytes, at most the second.
    Between(usize, usize),
    /// Nested attributes, or any number of bytes.
    Any,
    /// An attribute that only aligns the next one.
    Padding,
}

impl Rule {
    fn allows(self, length: usize) -> bool {
        match self {
            Self::Unknown => false,
            Self::Exactly(size) => length == size,
            Self::Between(least, most) => (least..=most).contains(&length),
            Self::Any | Self::Padding => true,
        }
    }
}

/// The attributes that a place may hold.
#[derive(Debug)]
pub struct AttributeSet<const N: usize> {
    /// Name, for example `OVS_KEY_ATTR`.
    pub name: &'static str,
    /// The rule for each kind's value; the index is the kind.
    pub rules: [Rule; N],
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Kind of the attribute, without the flag that says that it is nested.
    pub kind: u16,
    /// Value of the attribute, without padding.
    pub value: &'a [u8],
}

/// Iterator over attributes. It ends after an error.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

/// The attributes in `bytes`.
#[must_use]
pub fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

impl<'a> Attributes<'a> {
    fn read(&mut self) -> Result<Attribute<'a>, Error> {
        let (header, _) = message::fixed::<HEADER>(self.rest, "attribute header")?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        if length < HEADER || length > self.rest.len() {
            return Err(Error::Length {
                what: "attribute",
                claimed: length,
                room: self.rest.len(),
            });
        }
        let attribute = Attribute {
            kind: u16::from_ne_bytes([header[2], header[3]]) & !NESTED,
            value: &self.rest[HEADER..length],
        };
        let next = length.next_multiple_of(4).min(self.rest.len());
        self.rest = &self.rest[next..];
        Ok(attribute)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let attribute = self.read();
        if attribute.is_err() {
            self.rest = &[];
        }
        Some(attribute)
    }
}

/// The attributes of one place, by kind.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a, const N: usize> {
    set: &'static AttributeSet<N>,
    values: [Option<&'a [u8]>; N],
}

impl<'a, const N: usize> Table<'a, N> {
    /// A table without attributes.
    #[must_use]
    pub fn empty(set: &'static AttributeSet<N>) -> Self {
        Self {
            set,
            values: [None; N],
        }
    }

    /// Reads `bytes` by `set`.
    ///
    /// # Errors
    ///
    /// An attribute is cut, unknown, repeated or of the wrong size.
    pub fn read(set: &'static AttributeSet<N>, bytes: &'a [u8]) -> Result<Self, Error> {
        let mut table = Self::empty(set);
        table.extend(bytes, |_| true)?;
        Ok(table)
    }

    /// Adds the attributes in `bytes` for whose values `keep` returns true.
    ///
    /// # Errors
    ///
    /// As [`Self::read`]; also if an attribute is there already.
    pub fn extend(&mut self, bytes: &'a [u8], keep: impl Fn(&[u8]) -> bool) -> Result<(), Error> {
        for attribute in attributes(bytes) {
            let Attribute { kind, value } = attribute?;
            self.check(kind, value)?;
            if keep(value) {
                self.add(kind, value)?;
            }
        }
        Ok(())
    }

    /// Adds an attribute.
    ///
    /// # Errors
    ///
    /// As [`Self::extend`].
    pub(crate) fn add(&mut self, kind: u16, value: &'a [u8]) -> Result<(), Error> {
        let set = self.set.name;
        if self.check(kind, value)? == Rule::Padding {
            return Ok(());
        }
        match self.values[usize::from(kind)].replace(value) {
            None => Ok(()),
            Some(_) => Err(Error::Repeated { set, kind }),
        }
    }

    fn check(&self, kind: u16, value: &[u8]) -> Result<Rule, Error> {
        let set = self.set.name;
        let rule = self
            .set
            .rules
            .get(usize::from(kind))
            .copied()
            .unwrap_or(Rule::Unknown);
        if rule == Rule::Unknown {
            return Err(Error::Unknown { set, kind });
        }
        if !rule.allows(value.len()) {
            return Err(Error::Size {
                set,
                kind,
                found: value.len(),
            });
        }
        Ok(rule)
    }

    /// Takes the value of `kind` out.
    pub fn remove(&mut self, kind: u16) -> Option<&'a [u8]> {
        self.values.get_mut(usize::from(kind)).and_then(Option::take)
    }

    /// The value of `kind`, if it is there.
    #[must_use]
    pub fn bytes(&self, kind: u16) -> Option<&'a [u8]> {
        self.values.get(usize::from(kind)).copied().flatten()
    }

    /// Whether `kind` is there.
    #[must_use]
    pub fn has(&self, kind: u16) -> bool {
        self.bytes(kind).is_some()
    }

    /// The kinds that are present, ascending.
    pub fn kinds(&self) -> impl Iterator<Item = u16> + '_ {
        (0u16..)
            .zip(&self.values)
            .filter_map(|(kind, value)| value.map(|_| kind))
    }

    /// Checks that no other kinds than `allowed` are present.
    ///
    /// # Errors
    ///
    /// [`Error::Misplaced`] names the first other one.
    pub fn only(&self, allowed: &[u16]) -> Result<(), Error> {
        match self.kinds().find(|kind| !allowed.contains(kind)) {
            Some(other) => Err(self.misplaced(other)),
            None => Ok(()),
        }
    }

    /// The value of `kind` as an array; `None` if it is absent or has another size. With the rule
    /// [`Rule::Exactly`] it can only be absent.
    #[must_use]
    pub fn array<const M: usize>(&self, kind: u16) -> Option<[u8; M]> {
        self.bytes(kind).and_then(|value| value.try_into().ok())
    }

    /// As [`Self::array`], a byte.
    #[must_use]
    pub fn u8(&self, kind: u16) -> Option<u8> {
        self.array(kind).map(u8::from_ne_bytes)
    }

    /// As [`Self::array`], 16 bits in the machine's order.
    #[must_use]
    pub fn u16(&self, kind: u16) -> Option<u16> {
        self.array(kind).map(u16::from_ne_bytes)
    }

    /// As [`Self::array`], 32 bits in the machine's order.
    #[must_use]
    pub fn u32(&self, kind: u16) -> Option<u32> {
        self.array(kind).map(u32::from_ne_bytes)
    }

    /// As [`Self::array`], 64 bits in the machine's order.
    #[must_use]
    pub fn u64(&self, kind: u16) -> Option<u64> {
        self.array(kind).map(u64::from_ne_bytes)
    }

    /// As [`Self::array`], 16 bits in network order.
    #[must_use]
    pub fn be16(&self, kind: u16) -> Option<u16> {
        self.array(kind).map(u16::from_be_bytes)
    }

    /// As [`Self::array`], 64 bits in network order.
    #[must_use]
    pub fn be64(&self, kind: u16) -> Option<u64> {
        self.array(kind).map(u64::from_be_bytes)
    }

    /// The content of `value`, which is the value of `kind`.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] names `kind` if `value` is `None`.
    pub fn required<T>(&self, kind: u16, value: Option<T>) -> Result<T, Error> {
        value.ok_or(self.missing(kind))
    }

    /// The error that `kind` is absent.
    #[must_use]
    pub fn missing(&self, kind: u16) -> Error {
        Error::Missing {
            set: self.set.name,
            kind,
        }
    }

    /// The error that `kind` must not be present beside the others.
    #[must_use]
    pub fn misplaced(&self, kind: u16) -> Error {
        Error::Misplaced {
            set: self.set.name,
            kind,
        }
    }
}

/// Writes messages one after the other into a buffer.
///
/// A length that does not fit its field makes [`Writer::finish`] fail, so that callers need not check each
/// step.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    fault: Option<Error>,
}

impl Writer {
    /// A writer without messages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty list with room for this number of bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            fault: None,
        }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing is written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The messages.
    ///
    /// # Errors
    ///
    /// The first message or attribute that was too long.
    pub fn finish(self) -> Result<Vec<u8>, Error> {
        match self.fault {
            Some(fault) => Err(fault),
            None => Ok(self.bytes),
        }
    }

    /// Appends a message: the header, and the contents that `body` writes.
    pub fn message(&mut self, header: Header, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.header(header, 0);
        body(self);
        let length = self.bytes.len() - start;
        match u32::try_from(length) {
            Ok(claimed) if length <= message::MAX_MESSAGE => {
                self.bytes[start..start + 4].copy_from_slice(&claimed.to_ne_bytes());
            }
            _ => self.too_long("netlink message", length, message::MAX_MESSAGE),
        }
        self.align();
    }

    /// Appends the header of a message that claims to have `length` bytes.
    pub(crate) fn header(&mut self, header: Header, length: usize) {
        let Ok(length) = u32::try_from(length) else {
            return self.too_long("netlink message", length, message::MAX_MESSAGE);
        };
        self.raw(&length.to_ne_bytes());
        self.raw(&header.kind.to_ne_bytes());
        self.raw(&header.flags.0.to_ne_bytes());
        self.raw(&header.sequence.to_ne_bytes());
        self.raw(&header.port.to_ne_bytes());
    }

    /// Appends the generic netlink header.
    pub fn generic(&mut self, header: Generic) {
        self.raw(&[header.command, header.version, 0, 0]);
    }

    /// Appends bytes without a header.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an attribute whose value `body` writes.
    pub fn nested(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.raw(&[0, 0]);
        self.raw(&kind.to_ne_bytes());
        body(self);
        let length = self.bytes.len() - start;
        match u16::try_from(length) {
            Ok(length) => self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.too_long("attribute", length - HEADER, MAX_VALUE),
        }
        self.align();
    }

    /// Appends an attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |writer| writer.raw(value));
    }

    /// Appends an attribute whose value is a struct.
    pub fn layout(&mut self, kind: u16, value: &impl Layout) {
        self.nested(kind, |writer| value.put_bytes(&mut writer.bytes));
    }

    /// Appends an attribute without a value, if `is_set`.
    pub fn flag(&mut self, kind: u16, is_set: bool) {
        if is_set {
            self.attribute(kind, &[]);
        }
    }

    /// Appends a byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.attribute(kind, &[value]);
    }

    /// Appends 16 bits in the machine's order.
    pub fn u16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends 32 bits in the machine's order.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends 32 bits in the machine's order, unless `value` is `None`.
    pub fn optional_u32(&mut self, kind: u16, value: Option<u32>) {
        if let Some(value) = value {
            self.u32(kind, value);
        }
    }

    /// Appends 64 bits in the machine's order.
    pub fn u64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends 16 bits in network order.
    pub fn be16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends 64 bits in network order.
    pub fn be64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_be_bytes());
    }

    fn align(&mut self) {
        let length = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(length, 0);
    }

    fn too_long(&mut self, what: &'static str, found: usize, limit: usize) {
        self.fault.get_or_insert(Error::TooLong { what, found, limit });
    }
}
