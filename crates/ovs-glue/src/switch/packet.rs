//! The family `ovs_packet` (`net/openvswitch/datapath.c`): packets to and from ovs-vswitchd.

use super::{Outcome, Request, Result, Switch, refused, write_message};
use crate::datapath::{Datapath, Execute, Upcall, UpcallKind};
use crate::placeholder::Placeholders;
use crate::uapi::PACKET as FAMILY;
use crate::uapi::dp::F_DISPATCH_UPCALL_PER_CPU;
use crate::uapi::packet::{
    ACTION, ACTIONS, ATTRIBUTES, EGRESS_TUN_KEY, EXECUTE, HASH, KEY, LEN, MISS, MRU, PACKET, PROBE, USERDATA,
};
use ovs_netlink::Errno;
use ovs_netlink::attribute::{Table, Writer};
use ovs_netlink::message::Header;

/// In an action: any socket.
const ANY: u32 = u32::MAX;

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn packet(&mut self, request: &Request<'_>) -> Result<Outcome> {
        if request.command != EXECUTE {
            return refused(Errno::EOPNOTSUPP);
        }
        let table = Table::read(&ATTRIBUTES, request.attributes)?;
        let packet = table.required(PACKET, table.bytes(PACKET))?;
        let key = table.required(KEY, table.bytes(KEY))?;
        let actions = table.required(ACTIONS, table.bytes(ACTIONS))?;
        self.capabilities.check_key(key)?;
        self.check_actions(actions)?;
        let (datapath, _) = self.bridge(request.datapath)?;
        let execute = Execute {
            packet: packet.to_owned(),
            key: key.to_owned(),
            actions: actions.to_owned(),
            probe: table.has(PROBE),
            mru: table.u16(MRU),
            serial: table.u64(HASH).filter(|serial| *serial != 0),
        };
        self.datapath.execute(datapath, execute)?;
        Ok(Outcome::default())
    }

    /// Makes an upcall's message and says for which socket it is. `None`: nobody wants it; it is counted as lost.
    pub fn upcall(&mut self, upcall: &Upcall) -> Option<(u32, Vec<u8>)> {
        let socket = self.upcall_socket(upcall);
        let message = socket.and_then(|socket| Some((socket, write_upcall(upcall)?)));
        if message.is_none() {
            self.upcall_lost(upcall);
        }
        message
    }

    /// Counts an upcall that did not reach its socket.
    pub fn upcall_lost(&mut self, upcall: &Upcall) {
        if let Some(bridge) = self.bridges.get_mut(&upcall.datapath) {
            bridge.lost += 1;
        }
    }

    /// Sockets that upcalls go to.
    pub fn upcall_sockets(&self) -> impl Iterator<Item = u32> {
        let of_ports = |bridge: &'_ super::Bridge| {
            bridge
                .ports
                .values()
                .flat_map(|port| &port.sockets)
                .copied()
                .collect()
        };
        let of_bridge = move |bridge: &super::Bridge| -> Vec<u32> {
            if bridge.features & F_DISPATCH_UPCALL_PER_CPU == 0 {
                of_ports(bridge)
            } else {
                bridge.cpu_sockets.clone()
            }
        };
        self.bridges
            .values()
            .flat_map(of_bridge)
            .filter(|socket| *socket != 0)
    }

    fn upcall_socket(&self, upcall: &Upcall) -> Option<u32> {
        let bridge = self.bridges.get(&upcall.datapath)?;
        let sockets = if bridge.features & F_DISPATCH_UPCALL_PER_CPU == 0 {
            match upcall.kind {
                UpcallKind::Action { socket, .. } if socket != ANY => {
                    return Some(socket).filter(|socket| *socket != 0);
                }
                _ => &bridge.ports.get(&upcall.port)?.sockets,
            }
        } else {
            &bridge.cpu_sockets
        };
        let count = u32::try_from(sockets.len()).ok()?;
        let index = usize::try_from(upcall.hash.checked_rem(count)?).ok()?;
        sockets.get(index).copied().filter(|socket| *socket != 0)
    }
}

/// `queue_userspace_packet`. `None`: something is longer than an attribute can be.
fn write_upcall(upcall: &Upcall) -> Option<Vec<u8>> {
    let mut writer = Writer::new();
    let header = Header {
        kind: FAMILY.number,
        ..Header::default()
    };
    let command = if upcall.kind == UpcallKind::Miss {
        MISS
    } else {
        ACTION
    };
    write_message(&mut writer, header, &FAMILY, command, upcall.datapath, |writer| {
        writer.attribute(KEY, &upcall.key);
        if let UpcallKind::Action {
            userdata,
            egress_tunnel,
            actions,
            ..
        } = &upcall.kind
        {
            for (kind, value) in [
                (USERDATA, userdata),
                (EGRESS_TUN_KEY, egress_tunnel),
                (ACTIONS, actions),
            ] {
                if let Some(value) = value {
                    writer.attribute(kind, value);
                }
            }
        }
        if let Some(mru) = upcall.mru {
            writer.u16(MRU, mru);
        }
        if let Some(length) = upcall.length {
            writer.u32(LEN, length);
        }
        writer.u64(HASH, upcall.serial);
        writer.attribute(PACKET, &upcall.packet);
    });
    writer.finish().ok()
}
