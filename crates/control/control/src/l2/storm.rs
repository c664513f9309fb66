//! Storm control: how many frames of a port per second go to all other ports, and how many bits of them.
//!
//! A frame that goes to all ports costs work for each of them. So each class of such frames has a rate in
//! packets per port, and one in bits if that is configured. Flows of these frames ask a meter for each before
//! anything else, if there are two receivers or more. Other flows ask none: frames to known stations cost
//! nothing more. Numbers of the meters follow from the port's, so a control process that starts again finds
//! flows as it would make them.

use super::decide::Destination;
use flow::{DropReason, MeterBand, MeterSpec, MeterUnit, PortId};

/// All bits of an Ethernet address: everybody.
const EVERYBODY: u64 = 0xffff_ffff_ffff;

/// Bits of a meter's number that say of which class and unit it is.
const KIND_BITS: u32 = 3;

/// Kilobits of the longest frame, 65,553 bytes. A bucket that holds fewer would never let it pass.
const LONGEST_FRAME: u32 = 525;

/// Classes of frames that go to all ports, each with rates of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Broadcast,
    Multicast,
    Unknown,
}

/// In the order of their numbers, and of [`StormLimits`].
const CLASSES: [(Class, &str, DropReason); 3] = [
    (Class::Broadcast, "broadcast", DropReason::StormBroadcast),
    (Class::Multicast, "multicast", DropReason::StormMulticast),
    (Class::Unknown, "unknown", DropReason::StormUnknown),
];

/// Units in which a class is limited, in the order of their numbers.
const UNITS: [MeterUnit; 2] = [MeterUnit::Packets, MeterUnit::Kilobits];

/// Rates of a port's broadcasts, multicasts and frames to unknown addresses, per second; 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormLimits {
    /// Packets.
    pub packets: [u32; 3],
    /// Thousands of bits.
    pub kilobits: [u32; 3],
}

impl StormLimits {
    fn rate(&self, class: Class, unit: MeterUnit) -> u32 {
        match unit {
            MeterUnit::Packets => self.packets[class as usize],
            MeterUnit::Kilobits => self.kilobits[class as usize],
        }
    }
}

fn meter(port: PortId, class: Class, unit: MeterUnit) -> u32 {
    let kind = unit as u32 * CLASSES.len() as u32 + class as u32;
    port.0 << KIND_BITS | kind
}

/// The class and unit of a meter, for users.
pub fn meter_text(meter: u32) -> String {
    let kind = meter as usize % (1 << KIND_BITS);
    let name = CLASSES[kind % CLASSES.len()].1;
    match UNITS.get(kind / CLASSES.len()) {
        Some(MeterUnit::Kilobits) => format!("storm-control-bits({name})"),
        _ => format!("storm-control({name})"),
    }
}

/// The meters that are asked about a port's frames to this address, if they go to all ports.
pub fn meters_of(port: PortId, to: u64, destination: &Destination, limits: &StormLimits) -> Vec<u32> {
    let class = match destination {
        Destination::Group if to == EVERYBODY => Class::Broadcast,
        Destination::Group => Class::Multicast,
        Destination::Unknown => Class::Unknown,
        Destination::None | Destination::Reserved | Destination::Known(_) | Destination::Contested(_) => {
            return Vec::new();
        }
    };
    let limited = UNITS.into_iter().filter(|unit| limits.rate(class, *unit) > 0);
    limited.map(|unit| meter(port, class, unit)).collect()
}

/// The meters of a port that are different with other limits, by number; `None` if there is no limit. After
/// a pause, a second's worth passes at once, and the longest frame in any case.
pub fn changed_meters(
    port: PortId,
    before: &StormLimits,
    after: &StormLimits,
) -> Vec<(u32, Option<MeterSpec>)> {
    let all = CLASSES.iter().flat_map(|class| UNITS.map(|unit| (class, unit)));
    let changed = all.filter(|((class, ..), unit)| before.rate(*class, *unit) != after.rate(*class, *unit));
    let spec = |((class, _, reason), unit): (&(Class, &str, DropReason), MeterUnit)| {
        let rate = after.rate(*class, unit);
        let burst = match unit {
            MeterUnit::Packets => rate,
            MeterUnit::Kilobits => rate.max(LONGEST_FRAME),
        };
        let spec = MeterSpec {
            unit,
            band: Some(MeterBand { rate, burst }),
            reason: *reason,
        };
        (meter(port, *class, unit), (rate > 0).then_some(spec))
    };
    changed.map(spec).collect()
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
    fn asked(limits: StormLimits, to: u64) -> Vec<Action> {
        let mut switch = LearningSwitch::new(roomy());
        for id in 1..=3 {
            let mut rules = plain(10);
            rules.storm = limits;
            if id == 3 {
                rules.static_macs = vec![0x0200_0000_0003];
            }
            switch.set_port(PortId(id), rules);
        }
        let mut actions = switch.decide(&key(to)).actions();
        actions.retain(|action| !matches!(action, Action::Output(_)));
        actions
    }

    fn limits(packets: u32, kilobits: u32) -> StormLimits {
        StormLimits {
            packets: [packets; 3],
            kilobits: [kilobits; 3],
        }
    }

    #[test]
    fn each_class_has_a_meter_and_known_stations_have_none() {
        let classes = [EVERYBODY, 0x0100_5e00_0001, 0x3333_0000_0001, 0x0200_0000_0009];
        for rates in [limits(1000, 0), limits(0, 1000)] {
            let meters = classes.map(|to| asked(rates, to));
            let [broadcast, multicast, of_ipv6, unknown] = &meters;
            let is_one = |asked: &Vec<Action>| matches!(asked[..], [Action::Meter(_)]);
            assert!(meters.iter().all(is_one), "{meters:?}");
            assert_eq!(multicast, of_ipv6);
            assert!(broadcast != multicast && multicast != unknown && broadcast != unknown);
            assert!(asked(rates, 0x0200_0000_0003).is_empty());
        }
        for to in classes {
            assert!(asked(limits(0, 0), to).is_empty(), "no limit");
            let [Action::Meter(first), Action::Meter(second)] = asked(limits(1, 1), to)[..] else {
                panic!("not one meter for each unit")
            };
            assert_ne!(first, second);
        }
        let one_class = StormLimits {
            packets: [0, 7, 0],
            ..StormLimits::default()
        };
        let counts = classes.map(|to| asked(one_class, to).len());
        assert_eq!(counts, [0, 1, 1, 0]);
    }

    #[test]
    fn meters_of_all_ports_differ() {
        let ports = (1..ControllerId::PORTS).map(PortId);
        let none = StormLimits::default();
        let meters = ports
            .clone()
            .flat_map(|port| changed_meters(port, &none, &limits(1, 1)));
        let numbers: BTreeSet<u32> = meters.map(|(meter, _)| meter).collect();
        assert_eq!(numbers.len(), 6 * ports.count());
        assert!(
            numbers.len() <= flow::MAX_METERS as usize,
            "the data plane has room for them"
        );
    }

    /// Whatever is configured, the meter has a rate that the data plane takes, and each frame passes after a
    /// pause.
    #[test]
    fn each_frame_passes_after_a_pause() {
        let longest = 65_553 * 8;
        for rate in [1, 100, 100_000_000] {
            let meters = changed_meters(PortId(1), &StormLimits::default(), &limits(rate, rate));
            assert_eq!(meters.len(), 6);
            for (meter, spec) in meters {
                let spec = spec.expect("a limit");
                let band = spec.band.expect("a band");
                let text = meter_text(meter);
                assert_eq!(band.rate, rate, "{text}");
                match spec.unit {
                    MeterUnit::Packets => assert_eq!(band.burst, rate, "{text}"),
                    MeterUnit::Kilobits => assert!(u64::from(band.burst) * 1000 >= longest, "{text}"),
                }
                let class = text.split(['(', ')']).nth(1).expect("a class");
                assert_eq!(spec.reason.name(), format!("storm-{class}"));
                assert_eq!(text.contains("bits"), spec.unit == MeterUnit::Kilobits, "{text}");
            }
        }
        let off = changed_meters(PortId(1), &limits(5, 0), &limits(0, 0));
        assert!(
            off.len() == 3 && off.iter().all(|(_, spec)| spec.is_none()),
            "{off:?}"
        );
    }
}
