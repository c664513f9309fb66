//! Which ports a controller's flow may name: its own. Those of another one would be found in no table of its
//! own, so that a flow with them is a mistake, or a try.
//!
//! Packets stay between ports of one switch, and so of one owner, without this check as well: another one is
//! made where they are queued (`sinks`).

use flow::{Action, ControllerId, Flow, PortId, Stage};

/// The port of another controller that a flow names: as input port, as filtered port or as output. Numbers
/// that no port can have are nobody's.
pub(crate) fn foreign_port(controller: ControllerId, flow: &Flow) -> Option<PortId> {
    let is_foreign = |port: &PortId| port.0 < PortId::LIMIT && !controller.owns(*port);
    let compared = flow.mask.0.in_port() == u32::MAX;
    let from = compared.then(|| PortId(flow.key.in_port()));
    let filtered = match flow.stage {
        Stage::Egress(port, _) => Some(port),
        Stage::Ingress(_) | Stage::Forward => None,
    };
    let named = from.into_iter().chain(filtered).find(is_foreign);
    named.or_else(|| output(&flow.actions, &is_foreign))
}

/// The first such port that actions send to. They are nested as deep as a message may be.
fn output(actions: &[Action], is_foreign: &dyn Fn(&PortId) -> bool) -> Option<PortId> {
    actions.iter().find_map(|action| match action {
        Action::Output(port) => Some(*port).filter(is_foreign),
        Action::Sample { actions, .. } | Action::Clone(actions) => output(&actions.0, is_foreign),
        Action::CheckPktLen {
            greater, otherwise, ..
        } => output(&greater.0, is_foreign).or_else(|| output(&otherwise.0, is_foreign)),
        Action::Edit(_)
        | Action::Userspace(_)
        | Action::Drop(_)
        | Action::Truncate(_)
        | Action::Recirc(_)
        | Action::Hash { .. }
        | Action::Meter(_)
        | Action::Continue => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{Edit, FlowId, FlowKey, FlowMask, Nested, SwitchId};

    const OTHER: ControllerId = ControllerId(2);

    fn flow(actions: Vec<Action>) -> Flow {
        let (key, mask) = (FlowKey::default(), FlowMask::ANY);
        Flow::new(FlowId(1), SwitchId(1), key, mask, actions)
    }

    #[test]
    fn foreign_ports_are_found_wherever_they_stand() {
        let mine = OTHER.port(7).unwrap();
        let foreign = ControllerId(1).port(7).unwrap();
        let nobodys = PortId(PortId::LIMIT);
        let nested = |port| Nested(vec![Action::Edit(Edit::PopVlan), Action::Output(port)]);
        let wrapped = |port| {
            [
                vec![Action::Edit(Edit::PopVlan), Action::Output(port)],
                vec![Action::Clone(nested(port))],
                vec![Action::Sample {
                    probability: 1,
                    actions: Nested(vec![Action::Clone(nested(port))]),
                }],
                vec![Action::CheckPktLen {
                    len: 100,
                    greater: nested(mine),
                    otherwise: nested(port),
                }],
                vec![Action::CheckPktLen {
                    len: 100,
                    greater: nested(port),
                    otherwise: nested(mine),
                }],
            ]
        };
        for (port, found) in [(mine, None), (foreign, Some(foreign)), (nobodys, None)] {
            for actions in wrapped(port) {
                assert_eq!(foreign_port(OTHER, &flow(actions)), found);
            }
            let mut from = flow(Vec::new());
            from.key.set_in_port(port.0);
            assert_eq!(foreign_port(OTHER, &from), None, "not compared");
            from.mask.0.set_in_port(u32::MAX);
            assert_eq!(foreign_port(OTHER, &from), found);
            let mut filter = flow(Vec::new());
            filter.stage = Stage::Egress(port, 0);
            assert_eq!(foreign_port(OTHER, &filter), found);
        }
    }
}
