//! The family `ovs_packet` (`net/openvswitch/datapath.c`): packets to and from ovs-vswitchd.

use super::{Bridge, Outcome, Result, Switch};
use crate::datapath::{Datapath, DatapathId, Upcall, UpcallKind};
use crate::placeholder::Placeholders;
use ovs_netlink::attribute::Writer;
use ovs_netlink::message::Header;
use ovs_netlink::packet::{Execute, Reason, Upcall as Description};
use ovs_netlink::{Errno, Reply};
use std::collections::BTreeMap;

/// Bytes that usual messages have besides the packet.
const USUAL: usize = 512;
/// In an action: any socket.
const ANY: u32 = u32::MAX;

/// The next upcall for ovs-vswitchd.
pub enum Next {
    /// There is none whose socket has room.
    Nothing,
    /// The packet was counted as lost: there is no socket for it, or its message would be too long.
    Lost,
    /// Datapath, socket, and message of the packet.
    Message(DatapathId, u32, Vec<u8>),
}

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn execute(&mut self, execute: &Execute<'_>) -> Result<Outcome> {
        self.capabilities.check_actions(&execute.actions)?;
        if execute.eth_type.is_some() && !self.capabilities.layer_3 {
            return super::refused(Errno::EINVAL);
        }
        self.bridge(execute.datapath)?;
        self.datapath.execute(execute)?;
        Ok(Outcome::default())
    }

    /// Takes the data plane's next upcall whose socket, if there is one for it, has room.
    pub fn next_upcall(&mut self, has_room: impl Fn(u32) -> bool) -> Next {
        let bridges = &self.bridges;
        let may_go = |upcall: &Upcall| socket_of(bridges, upcall).is_none_or(&has_room);
        let Some(upcall) = self.datapath.next_upcall(&may_go) else {
            return Next::Nothing;
        };
        let message = socket_of(bridges, &upcall).zip(write_upcall(&upcall));
        let Some((socket, message)) = message else {
            self.upcall_lost(upcall.datapath);
            return Next::Lost;
        };
        Next::Message(upcall.datapath, socket, message)
    }

    /// Counts an upcall that did not reach its socket.
    pub fn upcall_lost(&mut self, datapath: DatapathId) {
        if let Some(bridge) = self.bridges.get_mut(&datapath) {
            bridge.lost += 1;
        }
    }

    /// Sockets that upcalls go to.
    pub fn upcall_sockets(&self) -> impl Iterator<Item = u32> {
        let of_cpus = self.bridges.values().filter(|bridge| bridge.is_per_cpu());
        let of_cpus = of_cpus.flat_map(|bridge| &bridge.cpu_sockets);
        let of_ports = self.bridges.values().filter(|bridge| !bridge.is_per_cpu());
        let of_ports = of_ports
            .flat_map(|bridge| bridge.ports.values())
            .flat_map(|port| &port.sockets);
        of_cpus.chain(of_ports).copied().filter(|socket| *socket != 0)
    }
}

/// The socket that an upcall goes to.
fn socket_of(bridges: &BTreeMap<DatapathId, Bridge>, upcall: &Upcall) -> Option<u32> {
    let bridge = bridges.get(&upcall.datapath)?;
    let sockets = match &upcall.kind {
        _ if bridge.is_per_cpu() => &bridge.cpu_sockets,
        UpcallKind::Action { socket, .. } if *socket != ANY => {
            return Some(*socket).filter(|socket| *socket != 0);
        }
        _ => &bridge.ports.get(&upcall.port)?.sockets,
    };
    let count = u32::try_from(sockets.len()).ok()?;
    let index = usize::try_from(upcall.hash.checked_rem(count)?).ok()?;
    sockets.get(index).copied().filter(|socket| *socket != 0)
}

/// `queue_userspace_packet`. `None`: something is longer than an attribute can be.
fn write_upcall(upcall: &Upcall) -> Option<Vec<u8>> {
    let mut description = Description {
        reason: Reason::Miss,
        packet: &upcall.packet,
        key: upcall.key.clone(),
        userdata: None,
        egress_tunnel: None,
        actions: None,
        mru: upcall.mru,
        length: upcall.length,
        hash: Some(upcall.serial).filter(|serial| *serial != 0),
    };
    if let UpcallKind::Action {
        userdata,
        egress_tunnel,
        actions,
        ..
    } = &upcall.kind
    {
        description.reason = Reason::Action;
        description.userdata = userdata.as_deref();
        description.egress_tunnel.clone_from(egress_tunnel);
        description.actions.clone_from(actions);
    }
    let mut writer = Writer::with_capacity(upcall.packet.len() + USUAL);
    Reply::Upcall(upcall.datapath.0, description).write(Header::default(), &mut writer);
    writer.finish().ok()
}
