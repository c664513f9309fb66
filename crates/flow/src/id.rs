//! Names of things that cross process boundaries.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A port of the data plane, unique in the process whatever its switch. Chosen by the control process,
    /// below [`PortId::LIMIT`], so that the data plane can index a table with it.
    PortId(u32)
}

impl PortId {
    /// Port numbers are below this.
    pub const LIMIT: u32 = 4096;
}

id! {
    /// A switch: a set of ports and one flow table. Packets never cross from one to another.
    SwitchId(u32)
}

id! {
    /// Unique flow identifier (OVS: UFID), 128 bits.
    FlowId(u128)
}
