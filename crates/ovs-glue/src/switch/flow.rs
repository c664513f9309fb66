//! The family `ovs_flow` (`net/openvswitch/datapath.c`).

use super::{Outcome, Request, Result, Switch, refused, words};
use crate::datapath::{Datapath, DatapathId, Flow, FlowId, FlowSpec, PutMode};
use crate::placeholder::Placeholders;
use crate::uapi::flow::{
    ACTIONS, ATTRIBUTES, CLEAR, DEL, GET, KEY, MASK, NEW, OMIT_ACTIONS, OMIT_KEY, OMIT_MASK, SET, STATS,
    TCP_FLAGS, UFID, UFID_FLAGS, USED,
};
use ovs_netlink::Errno;
use ovs_netlink::attribute::{Table, Writer};
use ovs_netlink::message::Flags;

/// Longest actions of a flow (`MAX_ACTIONS_BUFSIZE`).
const MAX_ACTIONS: usize = 32 * 1024;
/// Longest key or mask: all fields, with a tunnel's options of 252 bytes, and two VLAN tags.
const MAX_KEY: usize = 2048;

type Attributes<'a> = Table<'a, 12>;

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn flow(&mut self, request: &Request<'_>) -> Result<Outcome> {
        let table = Table::read(&ATTRIBUTES, request.attributes)?;
        match request.command {
            NEW => self.new_flow(request, &table),
            SET => self.set_flow(request, &table),
            GET => {
                let id = flow_id(&table)?;
                let (datapath, _) = self.bridge(request.datapath)?;
                let flow = self.datapath.flow(datapath, &id)?;
                let reply = Some(tell(request, datapath, &flow, NEW, &table)?);
                Ok(Outcome {
                    reply,
                    ..Outcome::default()
                })
            }
            DEL => self.remove_flow(request, &table),
            _ => refused(Errno::EOPNOTSUPP),
        }
    }

    fn new_flow(&mut self, request: &Request<'_>, table: &Attributes<'_>) -> Result<Outcome> {
        let key = table.required(KEY, table.bytes(KEY))?;
        let actions = table.required(ACTIONS, table.bytes(ACTIONS))?;
        let mask = table.bytes(MASK);
        self.check_match(key, mask)?;
        self.check_actions(actions)?;
        let (datapath, _) = self.bridge(request.datapath)?;
        let spec = FlowSpec {
            id: flow_id(table)?,
            key: key.to_owned(),
            mask: mask.map(<[u8]>::to_owned),
            actions: actions.to_owned(),
        };
        // Not the other way round: without either flag an existing flow's actions are replaced.
        let create = request.has(Flags::CREATE) || request.has(Flags::EXCLUSIVE);
        let mode = if create {
            PutMode::Create
        } else {
            PutMode::CreateOrModify
        };
        let id = spec.id.clone();
        self.datapath.put_flow(datapath, spec, mode)?;
        self.told(request, datapath, &id, table)
    }

    fn set_flow(&mut self, request: &Request<'_>, table: &Attributes<'_>) -> Result<Outcome> {
        if let Some(key) = table.bytes(KEY) {
            self.check_match(key, table.bytes(MASK))?;
        }
        let actions = table.bytes(ACTIONS);
        if let Some(actions) = actions {
            self.check_actions(actions)?;
        }
        let id = flow_id(table)?;
        let (datapath, _) = self.bridge(request.datapath)?;
        let actions = actions.map(<[u8]>::to_owned);
        self.datapath.set_flow(datapath, &id, actions, table.has(CLEAR))?;
        self.told(request, datapath, &id, table)
    }

    fn remove_flow(&mut self, request: &Request<'_>, table: &Attributes<'_>) -> Result<Outcome> {
        let (datapath, _) = self.bridge(request.datapath)?;
        if !table.has(KEY) && !table.has(UFID) {
            self.datapath.flush_flows(datapath);
            return Ok(Outcome::default());
        }
        // With its last statistics, on which ovs-vswitchd counts.
        let flow = self.datapath.remove_flow(datapath, &flow_id(table)?)?;
        Ok(request.notify(tell(request, datapath, &flow, DEL, table)?))
    }

    /// Tells of a flow that was changed. Nobody listens to most changes, so that they are not even written down.
    fn told(
        &self,
        request: &Request<'_>,
        datapath: DatapathId,
        id: &FlowId,
        table: &Attributes<'_>,
    ) -> Result<Outcome> {
        if !request.has(Flags::ECHO) {
            return Ok(Outcome::default());
        }
        let flow = self.datapath.flow(datapath, id)?;
        Ok(request.notify(tell(request, datapath, &flow, NEW, table)?))
    }

    fn check_match(&self, key: &[u8], mask: Option<&[u8]>) -> Result<()> {
        for bytes in [Some(key), mask].into_iter().flatten() {
            if bytes.len() > MAX_KEY {
                return refused(Errno::EINVAL);
            }
            self.capabilities.check_key(bytes)?;
        }
        Ok(())
    }

    pub(super) fn check_actions(&self, actions: &[u8]) -> Result<()> {
        if actions.len() > MAX_ACTIONS {
            return refused(Errno::EINVAL);
        }
        Ok(self.capabilities.check_actions(actions)?)
    }
}

/// How a request names its flow (`ovs_nla_get_identifier`).
fn flow_id(table: &Attributes<'_>) -> Result<FlowId> {
    match (table.bytes(UFID), table.bytes(KEY)) {
        (Some(id), _) => Ok(FlowId::Unique(id.to_owned())),
        (None, Some(key)) if key.len() <= MAX_KEY => Ok(FlowId::Key(key.to_owned())),
        _ => refused(Errno::EINVAL),
    }
}

fn tell(
    request: &Request<'_>,
    datapath: DatapathId,
    flow: &Flow,
    command: u8,
    table: &Attributes<'_>,
) -> Result<Vec<u8>> {
    let omit = table.u32(UFID_FLAGS).unwrap_or(0);
    request.message(command, datapath, |writer| write_flow(writer, flow, omit))
}

/// `ovs_flow_cmd_fill_info`. Only what has a number can be told without its key.
pub(super) fn write_flow(writer: &mut Writer, flow: &Flow, omit: u32) {
    let omits = |what| omit & what != 0;
    let numbered = matches!(flow.spec.id, FlowId::Unique(_));
    if let FlowId::Unique(id) = &flow.spec.id {
        writer.attribute(UFID, id);
    }
    if !numbered || !omits(OMIT_KEY) {
        writer.attribute(KEY, &flow.spec.key);
    }
    if let Some(mask) = flow.spec.mask.as_ref().filter(|_| !omits(OMIT_MASK)) {
        writer.attribute(MASK, mask);
    }
    let stats = flow.stats;
    if stats.packets != 0 {
        writer.attribute(STATS, &words(&[stats.packets, stats.bytes]));
    }
    if stats.used != 0 {
        writer.u64(USED, stats.used);
    }
    if stats.tcp_flags != 0 {
        writer.u8(TCP_FLAGS, stats.tcp_flags);
    }
    if !omits(OMIT_ACTIONS) {
        writer.attribute(ACTIONS, &flow.spec.actions);
    }
}
