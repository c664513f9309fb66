//! Indices: one type per kind of thing, so that the index of a header is never taken for that of a table.
//!
//! An index is the position in the vector of [`crate::Program`] (or of its part) that its comment names. The
//! checker proves that each index in a program is in range; engines may rely on that.

use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($of:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $of);

        impl $name {
            /// The position in the vector.
            #[inline(always)]
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The index of a position, if it has one: positions beyond the type's range have none.
            #[must_use]
            pub fn at(position: usize) -> Option<Self> {
                <$of>::try_from(position).ok().map(Self)
            }
        }
    )*};
}

ids! {
    /// In [`crate::Program::header_types`].
    HeaderTypeId(u16);
    /// In [`crate::Program::headers`].
    HeaderId(u16);
    /// In [`crate::Program::fields`]: the fields of all header instances, those of one instance side by side.
    FieldId(u32);
    /// In [`crate::Program::stacks`].
    StackId(u16);
    /// In [`crate::Program::union_types`].
    UnionTypeId(u16);
    /// In [`crate::Program::unions`].
    UnionId(u16);
    /// In [`crate::Program::union_stacks`].
    UnionStackId(u16);
    /// In [`crate::Program::exprs`].
    ExprId(u32);
    /// In [`crate::Program::constants`]: constants of more than 64 bits.
    ConstantId(u32);
    /// In [`crate::Parser::states`].
    StateId(u16);
    /// In [`crate::Program::value_sets`].
    ValueSetId(u16);
    /// In [`crate::Control::blocks`] of the control in which it stands.
    BlockId(u16);
    /// In [`crate::Program::tables`].
    TableId(u16);
    /// In [`crate::Program::actions`].
    ActionId(u16);
    /// In [`crate::Program::profiles`].
    ProfileId(u16);
    /// In [`crate::Program::counters`].
    CounterId(u16);
    /// In [`crate::Program::meters`].
    MeterId(u16);
    /// In [`crate::Program::registers`].
    RegisterId(u16);
    /// In [`crate::Program::calculations`].
    CalculationId(u16);
    /// In [`crate::Program::digests`].
    DigestId(u16);
    /// In [`crate::Program::field_lists`].
    FieldListId(u16);
    /// In [`crate::Program::extern_functions`].
    ExternFunctionId(u16);
}
