//! Network service header (RFC 8300): nested `OVS_NSH_KEY_ATTR_*`, in keys, masks and actions.

use crate::attribute::{Attribute, AttributeSet, Rule, Table, Writer, attributes};
use crate::error::Error;
use crate::layout::{Layout, halves, layouts};

/// Most bytes of context behind the 8 fixed ones (`NSH_CTX_HDRS_MAX_LEN`).
pub const MAX_NSH_CONTEXT: usize = 248;

const BASE: u16 = 1;
const MD1: u16 = 2;
const MD2: u16 = 3;
/// `NSH_M_TYPE1`, `NSH_M_TYPE2`.
const FIXED: u8 = 1;
const VARIABLE: u8 = 2;

static SET: AttributeSet<4> = AttributeSet {
    name: "OVS_NSH_KEY_ATTR",
    rules: [
        Rule::Unknown,
        Rule::Exactly(NshBase::SIZE),
        Rule::Exactly(16),
        Rule::Between(1, MAX_NSH_CONTEXT),
    ],
};

layouts! {
    /// `struct ovs_nsh_key_base`.
    NshBase (8) {
        /// Flags.
        flags: u8,
        /// Time to live.
        ttl: u8,
        /// Kind of context: 1 fixed, 2 variable.
        md_type: u8,
        /// Protocol inside.
        next_protocol: u8,
        /// Service path and index.
        path: u32,
    }
}

/// The header in keys and masks. Context of variable length is not matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nsh {
    /// Fixed part.
    pub base: NshBase,
    /// Context headers: in a key those of kind 1, else zeros; in a mask always.
    pub context: u128,
}

/// The header that `push_nsh` puts in front.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NshHeader {
    /// Flags.
    pub flags: u8,
    /// Time to live.
    pub ttl: u8,
    /// Protocol inside.
    pub next_protocol: u8,
    /// Service path and index.
    pub path: u32,
    /// Context headers, which follow the fixed part.
    pub context: NshContext,
}

/// Context headers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NshContext {
    /// Kind 1: 16 bytes.
    Fixed(u128),
    /// Kind 2: 1 to [`MAX_NSH_CONTEXT`] bytes.
    Variable(Vec<u8>),
}

impl Nsh {
    /// Reads the header of a key.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let table = Table::read(&SET, bytes)?;
        let nsh = Self::read_common(&table)?;
        table.required(BASE, table.bytes(BASE))?;
        if table.has(MD1) && nsh.base.md_type != FIXED {
            return Err(table.misplaced(MD1));
        }
        Ok(nsh)
    }

    /// Reads the header of a mask; absent attributes are wildcards.
    pub(super) fn read_mask(bytes: &[u8]) -> Result<Self, Error> {
        Self::read_common(&Table::read(&SET, bytes)?)
    }

    fn read_common(table: &Table<'_, 4>) -> Result<Self, Error> {
        if table.has(MD2) {
            return Err(table.misplaced(MD2));
        }
        Ok(Self {
            base: table
                .bytes(BASE)
                .and_then(NshBase::from_bytes)
                .unwrap_or_default(),
            context: table.bytes(MD1).and_then(u128::from_bytes).unwrap_or(0),
        })
    }

    /// Reads the value of a `set` action, or, if `masked`, value and mask.
    pub(crate) fn read_change(bytes: &[u8], masked: bool) -> Result<(Self, Option<Self>), Error> {
        let (mut values, mut masks) = (Vec::new(), Vec::new());
        if !masked {
            return Ok((Self::read(bytes)?, None));
        }
        for attribute in attributes(bytes) {
            let Attribute { kind, value } = attribute?;
            let (value, mask) = halves(kind, value, true, value.len() / 2)?;
            values.push((kind, value));
            masks.extend(mask.map(|mask| (kind, mask)));
        }
        let [value, mask] = [values, masks].map(|attributes| {
            let mut table = Table::empty(&SET);
            attributes
                .into_iter()
                .try_for_each(|(kind, value)| table.add(kind, value))?;
            Self::read_common(&table)
        });
        Ok((value?, Some(mask?)))
    }

    /// Writes the value of a `set` action, for [`Self::read_change`].
    pub(crate) fn write_change(&self, writer: &mut Writer, mask: Option<&Self>) {
        let Some(mask) = mask else {
            return self.write(writer, false);
        };
        writer.attribute(BASE, &[self.base.to_bytes(), mask.base.to_bytes()].concat());
        if mask.context != 0 {
            writer.attribute(MD1, &[self.context.to_bytes(), mask.context.to_bytes()].concat());
        }
    }

    pub(super) fn exact() -> Self {
        Self {
            base: NshBase::ones(),
            context: u128::MAX,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer, mask: bool) {
        writer.layout(BASE, &self.base);
        if mask || self.base.md_type == FIXED {
            writer.layout(MD1, &self.context);
        }
    }
}

impl NshHeader {
    /// Reads the header of an action.
    ///
    /// # Errors
    ///
    /// An attribute is wrong or missing, or the context is not of the kind that the fixed part names.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let table = Table::read(&SET, bytes)?;
        let base = table.required(BASE, table.bytes(BASE).and_then(NshBase::from_bytes))?;
        let fixed = table.bytes(MD1).and_then(u128::from_bytes);
        let context = match (fixed, table.bytes(MD2)) {
            (Some(_), Some(_)) => return Err(table.misplaced(MD2)),
            (Some(context), None) if base.md_type == FIXED => NshContext::Fixed(context),
            (Some(_), None) => return Err(table.misplaced(MD1)),
            (None, Some(context)) if base.md_type == VARIABLE => NshContext::Variable(context.to_vec()),
            (None, Some(_)) => return Err(table.misplaced(MD2)),
            (None, None) => return Err(table.missing(MD1)),
        };
        Ok(Self {
            flags: base.flags,
            ttl: base.ttl,
            next_protocol: base.next_protocol,
            path: base.path,
            context,
        })
    }

    /// Writes the attributes, without the one that holds them.
    pub fn write(&self, writer: &mut Writer) {
        let md_type = match self.context {
            NshContext::Fixed(_) => FIXED,
            NshContext::Variable(_) => VARIABLE,
        };
        let base = NshBase {
            flags: self.flags,
            ttl: self.ttl,
            md_type,
            next_protocol: self.next_protocol,
            path: self.path,
        };
        writer.layout(BASE, &base);
        match &self.context {
            NshContext::Fixed(context) => writer.layout(MD1, context),
            NshContext::Variable(context) => writer.attribute(MD2, context),
        }
    }
}
