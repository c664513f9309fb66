//! The family `ovs_flow` (`net/openvswitch/datapath.c`).

use super::{Outcome, Result, Step, Switch, Then, To};
use crate::datapath::{Datapath, DatapathId, Detail, Flow, FlowId, FlowSpec, PutMode, Question, Rule};
use crate::placeholder::Placeholders;
use ovs_netlink::action::Action;
use ovs_netlink::flow::{Command, Flow as Description, Omit, Request, Ufid, Which};
use ovs_netlink::key::Match;
use ovs_netlink::message::{Flags, Header};
use ovs_netlink::{Errno, Reply};

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn flow(&mut self, header: Header, number: u32, request: Request) -> Result<Step> {
        match request {
            Request::New {
                flow,
                actions,
                ufid,
                omit,
                probe,
            } => {
                self.check(Some(&flow), Some(&actions), probe)?;
                self.new_flow(header, number, (flow, actions, ufid), omit)
            }
            Request::Set {
                flow,
                actions,
                ufid,
                clear,
                omit,
                probe,
            } => {
                self.check(flow.as_deref(), actions.as_deref(), probe)?;
                let (datapath, _) = self.bridge(number)?;
                let id = flow_id(ufid, flow.as_deref()).ok_or(Errno::EINVAL)?;
                let then = Then::FlowChanged(datapath, id.clone(), omit);
                let question = Question::SetFlow { id, actions, clear };
                Ok(Step::Ask(datapath, question, then))
            }
            Request::Get { which, omit, .. } => {
                let (datapath, _) = self.bridge(number)?;
                Ok(ask_of(datapath, named(which), omit, To::Asker))
            }
            Request::Delete { which, omit, .. } => {
                let (datapath, _) = self.bridge(number)?;
                // With its last statistics, on which ovs-vswitchd counts.
                let id = named(which);
                let question = Question::RemoveFlow(id, detail(omit));
                let then = Then::TellFlow(datapath, Command::Delete, omit, To::All);
                Ok(Step::Ask(datapath, question, then))
            }
            Request::Flush => {
                let (datapath, _) = self.bridge(number)?;
                Ok(Step::Ask(datapath, Question::FlushFlows, Then::Nothing))
            }
            Request::Dump { omit } => Ok(super::Dump::flows(header, self.bridge(number)?.0, omit).into()),
        }
    }

    fn new_flow(
        &mut self,
        header: Header,
        number: u32,
        (matches, actions, ufid): (Box<Match>, Vec<Action>, Option<Ufid>),
        omit: Omit,
    ) -> Result<Step> {
        let (datapath, _) = self.bridge(number)?;
        let id = flow_id(ufid, Some(&matches)).ok_or(Errno::EINVAL)?;
        // Not the other way round: without either flag an existing flow's actions are replaced.
        let create = header.flags.contains(Flags::CREATE) || header.flags.contains(Flags::EXCLUSIVE);
        let mode = if create {
            PutMode::Create
        } else {
            PutMode::CreateOrModify
        };
        let spec = FlowSpec {
            id: id.clone(),
            matches,
            actions,
        };
        let then = Then::FlowChanged(datapath, id, omit);
        Ok(Step::Ask(datapath, Question::PutFlow(spec, mode), then))
    }

    fn check(&self, matches: Option<&Match>, actions: Option<&[Action]>, probe: bool) -> Result<()> {
        if let Some(matches) = matches {
            self.capabilities.check_match(matches, probe)?;
        }
        match actions {
            Some(actions) => Ok(self.capabilities.check_actions(actions)?),
            None => Ok(()),
        }
    }
}

/// Tells of a flow that was changed. Nobody listens to most changes, so that they are not even written down.
pub(super) fn changed(header: Header, datapath: DatapathId, id: FlowId, omit: Omit) -> Step {
    if header.flags.contains(Flags::ECHO) {
        ask_of(datapath, id, omit, To::All)
    } else {
        Outcome::default().into()
    }
}

fn ask_of(datapath: DatapathId, id: FlowId, omit: Omit, to: To) -> Step {
    let question = Question::Flow(id, detail(omit));
    Step::Ask(
        datapath,
        question,
        Then::TellFlow(datapath, Command::New, omit, to),
    )
}

/// The parts of flows that an answer needs. A flow that is named by its key is shown with that at least.
pub(super) fn detail(omit: Omit) -> Detail {
    if omit.key && omit.mask && omit.actions {
        Detail::Seen
    } else {
        Detail::Whole
    }
}

fn flow_id(ufid: Option<Ufid>, matches: Option<&Match>) -> Option<FlowId> {
    let by_key = || Some(FlowId::Key(Box::new(matches?.key.clone())));
    ufid.map(FlowId::Ufid).or_else(by_key)
}

fn named(which: Which) -> FlowId {
    match which {
        Which::Ufid(ufid, _) => FlowId::Ufid(ufid),
        Which::Key(key) => FlowId::Key(key),
    }
}

/// `ovs_flow_cmd_fill_info`. Only a flow with a number can be shown without its key.
pub(super) fn tell(datapath: DatapathId, flow: Flow, command: Command, omit: Omit) -> Reply<'static> {
    let (ufid, named_by_key) = match flow.id {
        FlowId::Ufid(ufid) => (Some(ufid), None),
        FlowId::Key(key) => (None, Some(key)),
    };
    let (key, mask, actions) = match flow.rule {
        Some(Rule { matches, actions }) => {
            let Match { key, mask } = *matches;
            let with_key = ufid.is_none() || !omit.key;
            let key = with_key.then(|| Box::new(key));
            let mask = (with_key && !omit.mask).then(|| Box::new(mask));
            (key, mask, (!omit.actions).then_some(actions))
        }
        None => (named_by_key, None, None),
    };
    let seen = flow.seen;
    let description = Description {
        command,
        ufid,
        key,
        mask,
        actions,
        stats: Some(seen.stats).filter(|stats| stats.packets != 0),
        tcp_flags: Some(seen.tcp_flags).filter(|flags| *flags != 0),
        used: seen.used,
    };
    Reply::Flow(datapath.0, description)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::Seen;
    use ovs_netlink::key::Key;

    #[test]
    fn only_a_flow_with_a_number_is_told_without_its_key() {
        let omit = Omit {
            key: true,
            mask: true,
            actions: true,
        };
        let told = |id: FlowId| {
            let rule = Rule {
                matches: Box::default(),
                actions: Vec::new(),
            };
            let flow = Flow {
                id,
                rule: Some(rule),
                seen: Seen::default(),
            };
            match tell(DatapathId(1), flow, Command::New, omit) {
                Reply::Flow(1, flow) => flow,
                other => panic!("{other:?}"),
            }
        };
        let numbered = told(FlowId::Ufid(Ufid::new(b"1").unwrap()));
        assert!(numbered.key.is_none() && numbered.ufid.is_some());
        assert!(told(FlowId::Key(Box::<Key>::default())).key.is_some());
    }
}
