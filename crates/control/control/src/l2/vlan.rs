//! The VLAN of a frame that enters, and the tag with which a frame leaves (IEEE 802.1Q-2018, 6.9 and 8.6).
//!
//! VLAN 0 stands for untagged frames of ports without a VLAN; it is never on the wire. A priority tag (VLAN
//! identifier 0) makes a frame no member of anything: it counts as untagged.
//!
//! # Nested tags
//!
//! Only the outer tag determines the VLAN of a frame; the inner one is payload, and trunks carry it as such.
//! It must never take the outer one's place: where the outer tag is removed, the next switch would read the
//! inner one, and a guest that chose it would be in a VLAN of its choice ("VLAN hopping by double tagging").
//! So a priority tag with another one behind it is refused where it enters ([`may_enter`]), and a frame with
//! two tags leaves only where the outer one stays ([`may_leave`]).

use flow::{Action, Edit, FlowKey, PortId, VLAN_PRESENT};
use management::{PrivateRole, Trunk, VlanConfig, VlanId};

/// Tag protocol identifier of the tags we add.
const TPID: u16 = 0x8100;

/// How frames of a VLAN leave a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// Without tag.
    Untagged,
    /// With one.
    Tagged,
}

/// VLAN identifier of a tag; `None` for an untagged or priority-tagged frame.
fn tag(tci: u16) -> Option<u16> {
    let vid = tci & 0xfff;
    (tci & VLAN_PRESENT != 0 && vid != 0).then_some(vid)
}

fn lists(vlans: &Trunk, vid: u16) -> bool {
    match vlans {
        Trunk::All => vid <= VlanId::MAX,
        Trunk::Listed(vlans) => VlanId::new(vid).is_some_and(|vid| vlans.contains(&vid)),
    }
}

/// The VLAN of a frame that enters a port with this tag; `None` if it may not.
pub fn ingress(port: &VlanConfig, tci: u16) -> Option<u16> {
    match (port, tag(tci)) {
        (VlanConfig::Untagged, None) => Some(0),
        (VlanConfig::Access(vlan), None) => Some(vlan.get()),
        (VlanConfig::Private { primary, role }, None) => Some(match role {
            PrivateRole::Isolated(own) | PrivateRole::Community(own) => own.get(),
            PrivateRole::Promiscuous(_) => primary.get(),
        }),
        (VlanConfig::Untagged | VlanConfig::Access(_) | VlanConfig::Private { .. }, Some(_)) => None,
        (
            VlanConfig::Trunk {
                native: Some(native), ..
            },
            None,
        ) => Some(native.get()),
        (
            VlanConfig::Trunk {
                vlans: Trunk::All,
                native: None,
            },
            None,
        ) => Some(0),
        (
            VlanConfig::Trunk {
                vlans: Trunk::Listed(_),
                native: None,
            },
            None,
        ) => None,
        (VlanConfig::Trunk { vlans, native }, Some(vid)) => {
            (lists(vlans, vid) || native.is_some_and(|native| native.get() == vid)).then_some(vid)
        }
    }
}

/// How a frame of `vlan` leaves a port; `None` if it may not.
pub fn egress(port: &VlanConfig, vlan: u16) -> Option<Egress> {
    match port {
        VlanConfig::Untagged => (vlan == 0).then_some(Egress::Untagged),
        VlanConfig::Access(own) => (vlan == own.get()).then_some(Egress::Untagged),
        VlanConfig::Trunk {
            native: Some(native), ..
        } if native.get() == vlan => Some(Egress::Untagged),
        VlanConfig::Trunk {
            vlans: Trunk::All,
            native: None,
        } if vlan == 0 => Some(Egress::Untagged),
        VlanConfig::Trunk { vlans, .. } => (vlan != 0 && lists(vlans, vlan)).then_some(Egress::Tagged),
        VlanConfig::Private { primary, role } => {
            let hears = match role {
                PrivateRole::Isolated(_) => false,
                PrivateRole::Community(own) => vlan == own.get(),
                PrivateRole::Promiscuous(others) => others.iter().any(|other| vlan == other.get()),
            };
            (hears || vlan == primary.get()).then_some(Egress::Untagged)
        }
    }
}

/// Whether there is a tag behind the outer one.
pub fn is_nested(key: &FlowKey) -> bool {
    key.inner_tci() & VLAN_PRESENT != 0
}

/// Whether a frame may enter as far as its inner tag is concerned: a priority tag is removed, so nothing may
/// be behind it.
pub fn may_enter(key: &FlowKey) -> bool {
    !is_nested(key) || tag(key.vlan_tci()).is_some()
}

/// Whether a frame may leave that way as far as its inner tag is concerned: not without the outer one.
pub fn may_leave(key: &FlowKey, egress: Egress) -> bool {
    !is_nested(key) || egress == Egress::Tagged
}

/// Actions that send a frame, which came in with tag `tci` and belongs to `vlan`, to `outputs`: those that
/// take it as it is come first, so that at most one tag is changed.
pub fn actions(tci: u16, vlan: u16, outputs: &[(PortId, Egress)]) -> Vec<Action> {
    let to = |wanted: Egress| {
        let ports = outputs.iter().filter(move |(_, egress)| *egress == wanted);
        ports.map(|(port, _)| Action::Output(*port))
    };
    let mut actions = Vec::with_capacity(outputs.len() + 2);
    if tag(tci).is_some() {
        actions.extend(to(Egress::Tagged));
        if to(Egress::Untagged).next().is_some() {
            actions.push(Action::Edit(Edit::PopVlan));
            actions.extend(to(Egress::Untagged));
        }
        return actions;
    }
    if tci & VLAN_PRESENT != 0 && !outputs.is_empty() {
        actions.push(Action::Edit(Edit::PopVlan));
    }
    actions.extend(to(Egress::Untagged));
    if to(Egress::Tagged).next().is_some() {
        actions.push(Action::Edit(Edit::PushVlan {
            tpid: TPID,
            tci: (tci & 0xe000) | vlan,
        }));
        actions.extend(to(Egress::Tagged));
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vid(number: u16) -> VlanId {
        VlanId::new(number).unwrap()
    }

    fn trunk(vlans: &[u16], native: Option<u16>) -> VlanConfig {
        let vlans = Trunk::Listed(vlans.iter().map(|&number| vid(number)).collect());
        VlanConfig::Trunk {
            vlans,
            native: native.map(vid),
        }
    }

    #[test]
    fn entering_and_leaving() {
        let all = VlanConfig::Trunk {
            vlans: Trunk::All,
            native: None,
        };
        let all_native = VlanConfig::Trunk {
            vlans: Trunk::All,
            native: Some(vid(5)),
        };
        let tagged = |number: u16| VLAN_PRESENT | number;
        use Egress::{Tagged, Untagged};
        // Port, then for untagged, priority-tagged, tag 10, 20, 4095: the VLAN entered;
        // then for VLAN 0, 10, 20: how it leaves.
        for (port, enters, leaves) in [
            (
                VlanConfig::Untagged,
                [Some(0), Some(0), None, None, None],
                [Some(Untagged), None, None],
            ),
            (
                VlanConfig::Access(vid(10)),
                [Some(10), Some(10), None, None, None],
                [None, Some(Untagged), None],
            ),
            (
                trunk(&[10], None),
                [None, None, Some(10), None, None],
                [None, Some(Tagged), None],
            ),
            (
                trunk(&[10], Some(20)),
                [Some(20), Some(20), Some(10), Some(20), None],
                [None, Some(Tagged), Some(Untagged)],
            ),
            (
                all,
                [Some(0), Some(0), Some(10), Some(20), None],
                [Some(Untagged), Some(Tagged), Some(Tagged)],
            ),
            (
                all_native,
                [Some(5), Some(5), Some(10), Some(20), None],
                [None, Some(Tagged), Some(Tagged)],
            ),
        ] {
            let tags = [0, 0x6000 | VLAN_PRESENT, tagged(10), tagged(20), tagged(4095)];
            assert_eq!(tags.map(|tci| ingress(&port, tci)), enters, "{port}");
            assert_eq!([0, 10, 20].map(|vlan| egress(&port, vlan)), leaves, "{port}");
        }
    }

    #[test]
    fn an_inner_tag_never_becomes_the_outer_one() {
        let key = |outer: u16, inner: u16| {
            let mut key = FlowKey::default();
            key.set_vlan_tci(outer);
            key.set_inner_tci(inner);
            key
        };
        let (tag, priority) = (VLAN_PRESENT | 10, VLAN_PRESENT | 0x6000);
        for (outer, inner, enters, leaves) in [
            (0, 0, true, [true, true]),
            (priority, 0, true, [true, true]),
            (tag, 0, true, [true, true]),
            (priority, tag, false, [false, true]),
            (priority, priority, false, [false, true]),
            (tag, tag, true, [false, true]),
            (tag, priority, true, [false, true]),
        ] {
            let key = key(outer, inner);
            assert_eq!(may_enter(&key), enters, "{outer:x} {inner:x}");
            let ways = [Egress::Untagged, Egress::Tagged].map(|egress| may_leave(&key, egress));
            assert_eq!(ways, leaves, "{outer:x} {inner:x}");
        }
    }

    #[test]
    fn one_tag_change_at_most_and_only_for_those_who_need_it() {
        let (a, b) = (PortId(1), PortId(2));
        let both = [(a, Egress::Untagged), (b, Egress::Tagged)];
        let push = |tci| Action::Edit(Edit::PushVlan { tpid: 0x8100, tci });
        let (out_a, out_b) = (|| Action::Output(a), || Action::Output(b));
        assert_eq!(actions(0, 10, &both), [out_a(), push(10), out_b()]);
        assert_eq!(
            actions(VLAN_PRESENT | 10, 10, &both),
            [out_b(), Action::Edit(Edit::PopVlan), out_a()]
        );
        assert_eq!(
            actions(0x6000 | VLAN_PRESENT, 10, &both),
            [Action::Edit(Edit::PopVlan), out_a(), push(0x600a), out_b()]
        );
        assert_eq!(actions(0, 0, &both[..1]), [out_a()]);
        assert_eq!(actions(VLAN_PRESENT | 10, 10, &both[1..]), [out_b()]);
        assert_eq!(actions(VLAN_PRESENT, 10, &[]), []);
    }
}
