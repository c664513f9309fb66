//! Storm control: how many frames of a port per second go to all other ports.
//!
//! A frame that goes to all ports costs work for each of them. So each class of such frames has a rate per
//! port. Flows of these frames ask a meter before anything else, if there are two receivers or more. Other
//! flows ask none: frames to known stations cost nothing more. Numbers of the meters follow from the port's,
//! so a control process that starts again finds flows as it would make them.

use super::decide::Destination;
use flow::{DropReason, MeterBand, MeterSpec, MeterUnit, PortId};

/// All bits of an Ethernet address: everybody.
const EVERYBODY: u64 = 0xffff_ffff_ffff;

/// Bits of a meter's number that say for which class it is.
const CLASS_BITS: u32 = 2;

/// Classes of frames that go to all ports, each with a rate of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Broadcast,
    Multicast,
    Unknown,
}

fn meter(port: PortId, class: Class) -> u32 {
    port.0 << CLASS_BITS | class as u32
}

/// The meter that is asked about a port's frames to this address, if they go to all ports.
pub fn meter_of(port: PortId, to: u64, destination: &Destination) -> Option<u32> {
    let class = match destination {
        Destination::Group if to == EVERYBODY => Class::Broadcast,
        Destination::Group => Class::Multicast,
        Destination::Unknown => Class::Unknown,
        Destination::None | Destination::Reserved | Destination::Known(_) | Destination::Contested(_) => {
            return None;
        }
    };
    Some(meter(port, class))
}

/// The meters of a port, by number, for a rate in packets per second; `None` if there is no limit. After a
/// pause, a second's worth passes at once.
pub fn meters(port: PortId, rate: u32) -> [(u32, Option<MeterSpec>); 3] {
    let spec = (rate > 0).then_some(MeterSpec {
        unit: MeterUnit::Packets,
        band: Some(MeterBand { rate, burst: rate }),
        reason: DropReason::StormControl,
    });
    [Class::Broadcast, Class::Multicast, Class::Unknown].map(|class| (meter(port, class), spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::l2::switch::LearningSwitch;
    use crate::l2::twin::{plain, roomy};
    use flow::{Action, ControllerId, FlowKey};
    use std::collections::BTreeSet;

    fn key(to: u64) -> FlowKey {
        let mut key = FlowKey::default();
        key.set_in_port(1);
        key.set_eth_src(0x0200_0000_0001);
        key.set_eth_dst(to);
        key
    }

    /// What the frames to this address ask, of three ports, the third of which has a station.
    fn asked(rate: u32, to: u64) -> Vec<Action> {
        let mut switch = LearningSwitch::new(roomy());
        for id in 1..=3 {
            let mut rules = plain(10);
            rules.storm_rate = rate;
            if id == 3 {
                rules.static_macs = vec![0x0200_0000_0003];
            }
            switch.set_port(PortId(id), rules);
        }
        let mut actions = switch.decide(&key(to)).actions();
        actions.retain(|action| !matches!(action, Action::Output(_)));
        actions
    }

    #[test]
    fn each_class_has_a_meter_and_known_stations_have_none() {
        let classes = [EVERYBODY, 0x0100_5e00_0001, 0x3333_0000_0001, 0x0200_0000_0009];
        let meters = classes.map(|to| asked(1000, to));
        let [broadcast, multicast, of_ipv6, unknown] = &meters;
        assert!(
            meters.iter().all(|asked| matches!(asked[..], [Action::Meter(_)])),
            "{meters:?}"
        );
        assert_eq!(multicast, of_ipv6);
        assert!(broadcast != multicast && multicast != unknown && broadcast != unknown);
        assert!(asked(1000, 0x0200_0000_0003).is_empty());
        for to in classes {
            assert!(asked(0, to).is_empty(), "no limit");
        }
    }

    #[test]
    fn meters_of_all_ports_differ() {
        let ports = (1..ControllerId::PORTS).map(PortId);
        let numbers: BTreeSet<u32> = ports
            .clone()
            .flat_map(|port| meters(port, 1).map(|(meter, _)| meter))
            .collect();
        assert_eq!(numbers.len(), 3 * ports.count());
        assert!(
            numbers.len() <= flow::MAX_METERS as usize,
            "the data plane has room for them"
        );
    }
}
