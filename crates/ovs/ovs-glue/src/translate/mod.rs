//! Translation between ovs-vswitchd's messages and our data plane's terms: keys, masks and actions.
//!
//! A translation is exact or refused with `EINVAL`: a flow that matched more or less than was asked for would
//! forward wrongly and in silence.
//!
//! Ports have numbers of their own in each datapath; in the data plane, each controller has a range of
//! numbers ([`port_id`]).

mod actions;
mod key;

pub use actions::actions;
pub use key::{flow_match, key_of};

use crate::datapath::PortNo;
use flow::{ControllerId, PortId};
use ovs_netlink::key::Match;
use ovs_netlink::layout::Mac;
use std::borrow::Cow;

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

/// The data plane's number of a port; `None` if there can be none.
pub fn port_id(port: PortNo) -> Option<PortId> {
    ControllerId::OVS.port(port.0)
}

/// The number of a port of the data plane; `None` for those of other controllers.
pub fn port_number(port: PortId) -> Option<PortNo> {
    let is_own = ControllerId::OVS.owns(port);
    is_own.then_some(PortNo(port.0 % ControllerId::PORTS))
}

fn mac(number: u64) -> Mac {
    let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
    [a, b, c, d, e, f]
}

fn number([a, b, c, d, e, f]: Mac) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
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
            flow_match(&without_labels(&matches)).unwrap()
        };
        let (packet, mask, _) = compared(0);
        assert_eq!(packet.masked(&mask), packet);
        let (wanted, mask, _) = compared(1);
        assert_ne!(packet.masked(&mask), wanted);
    }
}
