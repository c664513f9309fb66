//! The schema of mirrors: copies of ports' packets for another port.

use crate::value::{CopyLength, Name, PortName, VlanId, kebab_text};
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Copies of the packets of some ports for another port of their switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MirrorConfig {
    /// Unique among mirrors.
    pub name: Name,
    /// Ports whose packets are copied; they need not exist yet.
    pub sources: Vec<PortName>,
    /// The port that gets the copies; it need not exist yet.
    pub destination: PortName,
    /// The packets that are copied.
    #[serde(default = "both")]
    pub packets: BTreeSet<MirroredPackets>,
    /// Access control list that allows the packets that are copied; default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Name>,
    /// Bytes of each frame that are copied; default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<CopyLength>,
    /// VLAN of a tag that each copy gets; default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// Address of another host; refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub erspan: Option<Erspan>,
}

/// A destination at another host, which no mirror can have: users of other switches look for it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Erspan {}

impl<'de> Deserialize<'de> for Erspan {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Erspan, D::Error> {
        Err(D::Error::custom(
            "ERSPAN is not supported: copies go to `destination`, a port of the switch, with `vlan` for RSPAN",
        ))
    }
}

/// Packets of a port, as seen from its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MirroredPackets {
    /// What the guest sends.
    From,
    /// What the guest gets.
    To,
    /// What is dropped on the way from the guest, or at its side on the way to it.
    Dropped,
}

fn both() -> BTreeSet<MirroredPackets> {
    BTreeSet::from([MirroredPackets::From, MirroredPackets::To])
}

kebab_text!(MirroredPackets: From "from", To "to", Dropped "dropped");
