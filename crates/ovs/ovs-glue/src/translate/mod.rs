//! Translation between ovs-vswitchd's messages and our data plane's terms: keys, masks and actions.
//!
//! A translation is exact or refused with `EINVAL`: a flow that matched more or less than was asked for would
//! forward wrongly and in silence.
//!
//! Ports have numbers of their own in each datapath; the data plane has one range of numbers for all.
//! [`Ports`] says which part of it is ours.

mod actions;
mod key;

pub use actions::actions;
pub use key::{flow_match, key_of};

use crate::datapath::{Errno, PortNo};
use flow::PortId;
use ovs_netlink::key::{Match, NO_PORT};
use std::borrow::Cow;

/// The data plane's numbers for the ports of the datapath: `first` for port 0, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Number of the local port.
    pub first: u32,
    /// How many numbers there are.
    pub count: u32,
}

/// Meters from this number on are not ovs-vswitchd's.
pub const OWN_METERS: u32 = 1 << 31;

/// A port that no packet comes from.
const NOBODY: u32 = u32::MAX;

/// All of a connection's states at once, which no packet has.
const NO_STATE: u32 = 0xff;

/// A match that needs no labels of connections, which our keys lack: no packet has any, so that what asks for
/// some matches nothing (a probe does).
pub fn without_labels(matches: &Match) -> Cow<'_, Match> {
    let mut matches = Cow::Borrowed(matches);
    if matches.key.metadata.connection.labels != 0 {
        let Match { key, mask } = matches.to_mut();
        key.metadata.connection.labels = 0;
        key.metadata.connection.state = NO_STATE;
        mask.0.metadata.connection.state = NO_STATE;
    }
    matches
}

impl Ports {
    /// The data plane's number of a port; `None` if there can be none.
    pub fn id(self, port: PortNo) -> Option<PortId> {
        (port.0 < self.count).then(|| PortId(self.first + port.0))
    }

    /// The number of a port of the data plane; `None` for those that are not ours.
    pub fn number(self, port: PortId) -> Option<PortNo> {
        let number = port.0.checked_sub(self.first)?;
        (number < self.count).then_some(PortNo(number))
    }

    /// What a key says of a port that packets are said to come from.
    fn in_key(self, port: Option<u32>) -> Result<u32, Errno> {
        match port {
            None => Ok(NOBODY),
            Some(number) => Ok(self.id(PortNo(number)).ok_or(Errno::EINVAL)?.0),
        }
    }

    fn told(self, port: u32) -> Option<u32> {
        let number = self.number(PortId(port))?.0;
        (number < NO_PORT).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovs_netlink::key::{Ethernet, Key, ether};

    #[test]
    fn what_asks_for_labels_matches_no_packet() {
        let compared = |labels| {
            let mut key = Key {
                ethernet: Some(Ethernet::default()),
                eth_type: ether::LENGTH,
                ..Key::default()
            };
            key.metadata.connection.labels = labels;
            let mask = key.exact_mask();
            let matches = Match { key, mask };
            flow_match(&without_labels(&matches), Ports { first: 0, count: 8 }).unwrap()
        };
        let (packet, mask, _) = compared(0);
        assert_eq!(packet.masked(&mask), packet);
        let (wanted, mask, _) = compared(1);
        assert_ne!(packet.masked(&mask), wanted);
    }
}
