//! Guards against frames made by hand, and against a judge that reads frames in its own way.

#![allow(clippy::unwrap_used)]

mod frames;
mod judge;
mod odd_frames;

use configuration::{Guard, PortConfig, PortKind};
use flow::PortId;
use frames::{Frame, frame};
use policy::{Policies, SetMembers, compile};
use proptest::prelude::*;
use rule_list::{Builder, Member, RuleLists, SetKind, Verdict};
use std::collections::BTreeSet;

const ALL: [Guard; 4] = [Guard::Spoof, Guard::Dhcp, Guard::Router, Guard::Bpdu];

/// A port with guards and the addresses that `judge` knows.
fn port(guards: &[Guard]) -> PortConfig {
    let mut port = PortConfig::new("vm1".parse().unwrap(), PortKind::VhostUser);
    port.guards = guards.iter().copied().collect();
    if guards.contains(&Guard::Spoof) {
        port.mac = "52:54:00:00:00:01".parse().ok();
        port.addresses = ["10.0.0.1/24", "fd00::1/64"].map(|it| it.parse().unwrap()).into();
        port.allowed_pairs = vec![configuration::AllowedPair {
            mac: "00:00:5e:00:01:07".parse().unwrap(),
            address: "10.0.0.7".parse().unwrap(),
        }];
    }
    port
}

fn policies(port: PortConfig) -> Policies {
    let mut switch =
        configuration::SwitchConfig::new("sw0".parse().unwrap(), configuration::SwitchKind::Private);
    switch.ports.push(port);
    compile(&configuration::Config {
        switches: vec![switch],
        ..Default::default()
    })
    .unwrap()
}

/// The port's list in a data plane's tables.
struct Guarded {
    lists: RuleLists,
    policies: Policies,
}

impl Guarded {
    fn new(guards: &[Guard]) -> Guarded {
        Guarded::of(port(guards))
    }

    fn of(port: PortConfig) -> Guarded {
        Guarded::by(policies(port))
    }

    fn by(policies: Policies) -> Guarded {
        let mut lists = RuleLists::default();
        for (number, set) in &policies.sets {
            let SetMembers::Addresses(members) = &set.members else {
                panic!("{set:?}")
            };
            lists.sets_mut().create(*number, SetKind::Addresses).unwrap();
            for member in members {
                lists
                    .sets_mut()
                    .insert(*number, Member::Address(*member))
                    .unwrap();
            }
        }
        for (number, list) in &policies.lists {
            let mut builder = Builder::new(list.default);
            list.rules
                .iter()
                .for_each(|rule| builder.add(rule.rule.clone()).unwrap());
            lists.put(*number, builder.compile().finish().unwrap().0).unwrap();
        }
        Guarded { lists, policies }
    }

    /// Whether a frame passes; or the origin of the rule that drops it.
    fn judge(&self, frame: &[u8]) -> Result<(), String> {
        let parsed = wire::parse(frame, frame.len(), PortId(1));
        let number = self.policies.ports["vm1"].all().next().unwrap();
        let answer = self.lists.look_up(number, &parsed.key, parsed.unseen).unwrap();
        let list = self.lists.get(number).unwrap();
        if list.verdict(answer.outcome) == Some(Verdict::Allow) {
            return Ok(());
        }
        let rule_list::Outcome::Rule(place) = answer.outcome else {
            return Err("default".into());
        };
        Err(self.policies.lists[&number].rules[usize::from(place)]
            .origin
            .to_string())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn lists_of_guards_judge_as_their_descriptions(frame in frame(), chosen in prop::sample::subsequence(&ALL[..], 1..=4)) {
        let guards: BTreeSet<Guard> = chosen.iter().copied().collect();
        let bytes = frame.bytes();
        let expected = judge::passes(&bytes, &guards);
        let found = Guarded::new(&chosen).judge(&bytes);
        prop_assert_eq!(found.is_ok(), expected, "{:?} {:?}", found, guards);
    }
}

#[test]
fn what_a_guest_has_to_send_passes_all_guards() {
    let guarded = Guarded::new(&ALL);
    for (what, frame) in Frame::usual() {
        assert_eq!(guarded.judge(&frame.bytes()), Ok(()), "{what}");
    }
}

#[test]
fn attacks_are_dropped_and_named() {
    let guarded = Guarded::new(&ALL);
    for (what, frame, guard) in Frame::attacks() {
        assert_eq!(
            guarded.judge(&frame.bytes()),
            Err(format!("guard {guard}")),
            "{what}"
        );
    }
}
