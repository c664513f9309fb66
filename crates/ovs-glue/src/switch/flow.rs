//! The family `ovs_flow` (`net/openvswitch/datapath.c`).

use super::{Outcome, Result, Switch, notify, reply};
use crate::datapath::{Datapath, DatapathId, Flow, FlowId, FlowSpec, PutMode};
use crate::placeholder::Placeholders;
use ovs_netlink::action::Action;
use ovs_netlink::family::Family;
use ovs_netlink::flow::{Command, Flow as Description, Omit, Request, Ufid, Which};
use ovs_netlink::key::Match;
use ovs_netlink::message::{Flags, Header};
use ovs_netlink::{Errno, Reply};

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn flow(&mut self, header: Header, number: u32, request: Request) -> Result<Outcome> {
        match request {
            Request::New {
                flow,
                actions,
                ufid,
                omit,
                ..
            } => self.new_flow(header, number, (flow, actions, ufid), omit),
            Request::Set {
                flow,
                actions,
                ufid,
                clear,
                omit,
                ..
            } => {
                self.check(flow.as_deref(), actions.as_deref())?;
                let (datapath, _) = self.bridge(number)?;
                let id = flow_id(ufid, flow.as_deref()).ok_or(Errno::EINVAL)?;
                self.datapath.set_flow(datapath, &id, actions, clear)?;
                self.changed(header, datapath, &id, omit)
            }
            Request::Get { which, omit, .. } => {
                let (datapath, _) = self.bridge(number)?;
                let flow = self.datapath.flow(datapath, &named(which))?;
                reply(header, &tell(datapath, flow, Command::New, omit))
            }
            Request::Delete { which, omit, .. } => {
                let (datapath, _) = self.bridge(number)?;
                // With its last statistics, on which ovs-vswitchd counts.
                let flow = self.datapath.remove_flow(datapath, &named(which))?;
                notify(header, Family::Flow, &tell(datapath, flow, Command::Delete, omit))
            }
            Request::Flush => {
                let (datapath, _) = self.bridge(number)?;
                self.datapath.flush_flows(datapath);
                Ok(Outcome::default())
            }
            Request::Dump { omit } => Ok(super::Dump::flows(header, self.bridge(number)?.0, omit)),
        }
    }

    fn new_flow(
        &mut self,
        header: Header,
        number: u32,
        (matches, actions, ufid): (Box<Match>, Vec<Action>, Option<Ufid>),
        omit: Omit,
    ) -> Result<Outcome> {
        self.check(Some(&matches), Some(&actions))?;
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
        self.datapath.put_flow(datapath, spec, mode)?;
        self.changed(header, datapath, &id, omit)
    }

    /// Tells of a flow that was changed. Nobody listens to most changes, so that they are not even written down.
    fn changed(&self, header: Header, datapath: DatapathId, id: &FlowId, omit: Omit) -> Result<Outcome> {
        if !header.flags.contains(Flags::ECHO) {
            return Ok(Outcome::default());
        }
        let flow = self.datapath.flow(datapath, id)?;
        notify(header, Family::Flow, &tell(datapath, flow, Command::New, omit))
    }

    fn check(&self, matches: Option<&Match>, actions: Option<&[Action]>) -> Result<()> {
        if let Some(matches) = matches {
            self.capabilities.check_match(matches)?;
        }
        match actions {
            Some(actions) => Ok(self.capabilities.check_actions(actions)?),
            None => Ok(()),
        }
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

/// `ovs_flow_cmd_fill_info`. Only what has a number can be told without its key.
pub(super) fn tell(datapath: DatapathId, flow: Flow, command: Command, omit: Omit) -> Reply<'static> {
    let Match { key, mask } = *flow.spec.matches;
    let ufid = match flow.spec.id {
        FlowId::Ufid(ufid) => Some(ufid),
        FlowId::Key(_) => None,
    };
    let with_key = ufid.is_none() || !omit.key;
    let seen = flow.seen;
    let description = Description {
        command,
        ufid,
        key: with_key.then(|| Box::new(key)),
        mask: (with_key && !omit.mask).then(|| Box::new(mask)),
        actions: (!omit.actions).then_some(flow.spec.actions),
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
            let spec = FlowSpec {
                id,
                matches: Box::default(),
                actions: Vec::new(),
            };
            let seen = Seen::default();
            match tell(DatapathId(1), Flow { spec, seen }, Command::New, omit) {
                Reply::Flow(1, flow) => flow,
                other => panic!("{other:?}"),
            }
        };
        let numbered = told(FlowId::Ufid(Ufid::new(b"1").unwrap()));
        assert!(numbered.key.is_none() && numbered.ufid.is_some());
        assert!(told(FlowId::Key(Box::<Key>::default())).key.is_some());
    }
}
