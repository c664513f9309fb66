//! What the supervisor does for the broker of the driver domain: it keeps open interfaces for the broker's
//! successor, and starts and ends forwarders as the broker wishes.
//!
//! Nothing is done with what is kept, and the bounds hold whatever a broker asks for.

use super::Supervisor;
use super::child::Supervised;
use control_protocol::forwarder::OpenInterface;
use control_protocol::supervisor::{ForwarderId, FromChild, MAX_KEPT, Role, ToChild};
use control_protocol::{Channel, encoded_len};
use flow::PortId;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Instant;

/// Interfaces that are kept at most.
const MOST: usize = 4096;

/// Interfaces that are handed out at a time: with the largest ones there is room for the messages.
const BATCH: usize = 16;

/// Descriptors of all interfaces at most.
const DESCRIPTORS: usize = 5 * MOST;

/// Interfaces that are open, or hidden, each with its descriptors.
#[derive(Debug, Default)]
pub struct Kept(BTreeMap<PortId, (OpenInterface, Vec<OwnedFd>)>);

impl Kept {
    /// Keeps an interface in the place of what was kept for its port. False if there is no room.
    fn keep(&mut self, interface: OpenInterface, descriptors: Vec<OwnedFd>) -> bool {
        let port = interface.port;
        self.0.remove(&port);
        let has_room = self.0.len() < MOST && encoded_len(&interface) <= MAX_KEPT;
        let all: usize = self.0.values().map(|(_, descriptors)| descriptors.len()).sum();
        let has_room = has_room && !descriptors.is_empty() && all + descriptors.len() <= DESCRIPTORS;
        if has_room {
            self.0.insert(port, (interface, descriptors));
        }
        has_room
    }

    /// The messages that hand out some of the interfaces behind this port.
    fn hand_out(&self, after: Option<PortId>) -> Vec<(ToChild, &[OwnedFd])> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = || self.0.range((from, Bound::Unbounded));
        let messages = behind()
            .take(BATCH)
            .map(|(_, (interface, descriptors))| (ToChild::Kept(interface.clone()), &descriptors[..]));
        let mut messages: Vec<_> = messages.collect();
        let last = behind().nth(BATCH - 1).map(|(port, _)| *port);
        messages.push((ToChild::Recalled(last), &[]));
        messages
    }
}

impl Supervisor {
    /// The broker has said something. True if the status for users has changed.
    pub(super) fn on_broker(&mut self, message: FromChild, fds: Vec<OwnedFd>, now: Instant) -> bool {
        match message {
            FromChild::Keep(interface) => {
                let port = interface.port;
                if !self.kept.keep(interface, fds) {
                    log::warn!("the interface of port {port} is not kept for the next driver process");
                }
            }
            FromChild::Forget(port) => drop(self.kept.0.remove(&port)),
            FromChild::Recall(after) => {
                let kept = std::mem::take(&mut self.kept);
                for (message, descriptors) in kept.hand_out(after) {
                    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                    self.child(Role::Driver).send(&message, &descriptors);
                }
                self.kept = kept;
            }
            FromChild::Forwarders(wanted) => return self.want_forwarders(wanted, now),
            _ => {}
        }
        false
    }

    /// Starts forwarders that are wanted, and ends others.
    fn want_forwarders(&mut self, wanted: Vec<(ForwarderId, String)>, now: Instant) -> bool {
        let is_possible = |id: &ForwarderId| id.0 < ForwarderId::LIMIT;
        let mut known = BTreeSet::new();
        let mut changed = false;
        for (id, serves) in wanted.into_iter().filter(|(id, _)| is_possible(id)) {
            let role = Role::Forwarder(id);
            known.insert(role);
            if let Some(child) = self.find_child(role) {
                changed |= child.serve(serves);
                continue;
            }
            let mut child = Supervised::new(role);
            child.serve(serves);
            if self.tolerates_hangs {
                child.tolerate_hangs();
            }
            self.children.push(child);
            self.start_or_wait(role, now);
            changed = true;
        }
        let is_forwarder = |child: &&mut Supervised| matches!(child.role(), Role::Forwarder(_));
        for child in self.children.iter_mut().filter(is_forwarder) {
            if !known.contains(&child.role()) {
                child.retire();
                changed = true;
            }
        }
        self.children.retain(|child| !child.is_done());
        changed
    }

    /// Gives the broker and a forwarder a fresh channel to each other, if both run.
    pub(super) fn join_forwarder(&mut self, id: ForwarderId) -> anyhow::Result<()> {
        let role = Role::Forwarder(id);
        if self.is_running(Role::Driver) && self.is_running(role) {
            let (to_broker, to_forwarder) = Channel::pair()?;
            self.child(Role::Driver)
                .send(&ToChild::Peer(role), &[to_forwarder.as_fd()]);
            self.child(role)
                .send(&ToChild::Peer(Role::Driver), &[to_broker.as_fd()]);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use control_protocol::driver::{BackEnd, InterfaceKind, InterfaceSpec};
    use control_protocol::forwarder::{Hiding, Opened};

    pub fn interface(port: u32, name: &str) -> OpenInterface {
        OpenInterface {
            port: PortId(port),
            spec: InterfaceSpec {
                kind: InterfaceKind::Uplink {
                    back_end: BackEnd::Packet,
                },
                name: name.into(),
                mtu: None,
            },
            forwarder: ForwarderId(1),
            opened: Some(Opened::Packet {
                header_len: 12,
                ring_refused: None,
                hiding: Hiding::Program,
                no_xdp: None,
            }),
        }
    }

    pub fn device() -> Vec<OwnedFd> {
        vec![std::fs::File::open("/dev/null").unwrap().into()]
    }

    #[test]
    fn what_is_kept_is_handed_out_in_parts_and_once_each() {
        let mut kept = Kept::default();
        let count = 3 * BATCH as u32 + 1;
        for port in (0..count).rev() {
            assert!(kept.keep(interface(port, "old"), device()));
            assert!(kept.keep(interface(port, "eth0"), device()));
        }
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let messages = kept.hand_out(after);
            assert!(messages.len() <= BATCH + 1);
            for (message, device) in &messages[..messages.len() - 1] {
                let ToChild::Kept(interface) = message else {
                    panic!("{message:?}")
                };
                assert!(device.len() == 1 && interface.spec.name == "eth0");
                seen.push(interface.port.0);
            }
            match &messages.last().unwrap().0 {
                ToChild::Recalled(None) => break,
                ToChild::Recalled(next) => after = *next,
                message => panic!("{message:?}"),
            }
        }
        assert_eq!(seen, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn neither_many_nor_large_interfaces_are_kept() {
        let mut kept = Kept::default();
        assert!(!kept.keep(interface(0, &"x".repeat(MAX_KEPT)), device()));
        let file = device().remove(0);
        let copies = |count: usize| {
            (0..count)
                .map(|_| file.try_clone())
                .collect::<Result<Vec<_>, _>>()
        };
        assert!(!kept.keep(interface(0, "eth0"), Vec::new()), "without its device");
        let Ok(many) = copies(DESCRIPTORS + 1) else { return };
        assert!(!kept.keep(interface(0, "eth0"), many));
        for port in 0..MOST as u32 {
            let Ok(device) = copies(1) else { return };
            assert!(kept.keep(interface(port, "eth0"), device));
        }
        assert!(!kept.keep(interface(MOST as u32, "eth0"), vec![file]));
    }
}
