//! Decisions that the kernel carries out: copies of them in the table of crate `kernel-path`.
//!
//! | module | contents |
//! |---|---|
//! | `copies` | the copies, and which are in force |
//! | `held` | one copy, with its counts |
//! | `way` | what keeps packets from the kernel path, for users |
//!
//! A worker offers a decision when it walks for a packet: one output without changes, made by one flow, at a
//! port whose look-ups compare nothing but Ethernet addresses. The channel thread takes the offer: both ports
//! are veth pairs of one switch. As long as nothing has to see the packets of either port (a capture, a
//! mirror, a bandwidth, a P4 program), the copy is in force; otherwise it *pauses*.
//!
//! A copy has the life of its decision: whoever ends the decision withdraws the copy, and goes on when no
//! program in the kernel uses it any more ([`classifier::Copied`]). What pauses a copy is looked at before
//! the request that causes it is answered. So a change that has been answered is obeyed by every packet.
//!
//! | copy | packets go | next |
//! |---|---|---|
//! | pauses | through the data plane | armed, when nothing has to see the packets any more |
//! | armed | through the data plane, and are counted | in force, in a gap between packets or after a while |
//! | in force | from container to container | pauses, or ends |
//!
//! Packets and bytes of a copy are added to its flow and its ports before they are told to a controller, and
//! when the copy pauses or ends. Nothing runs while packets only pass. A request costs as much as there are
//! copies of the port or flow that it is about.
//!
//! Containers choose addresses, and so how many decisions there are about their packets. What they get by
//! that is bounded: offers of a port that wait, copies of a port, and turns of the channel thread, which
//! takes offers once in 2 ms. If a bucket of the table is full, the port with the most copies gives one up.
//!
//! Safe direction of error: a decision without a copy costs time only.

mod copies;
mod held;
mod way;

use crate::port::Port;
use crate::state::Ports;
use classifier::{Copied, Decision};
use copies::{Copies, Find};
use flow::{FlowKey, PortId};
use kernel_path::{Key, Table};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use copies::{Number, Offer, PathCounts};
pub(crate) use way::{obstacle, of_shape};

/// The key of copies for packets with this one.
pub(crate) fn key_of(key: &FlowKey) -> Key {
    let mac = |number: u64| {
        let [_, _, mac @ ..] = number.to_be_bytes();
        mac
    };
    Key {
        from: key.in_port(),
        source: mac(key.eth_src()),
        destination: mac(key.eth_dst()),
    }
}

/// Time between looks at copies that are armed, and between looks at offers.
const LOOK: Duration = Duration::from_millis(2);

/// Offers of a port that wait for the channel thread.
const MOST_OFFERS: usize = 16;

/// What other threads have for the channel thread.
#[derive(Default)]
struct Waiting {
    /// By the port from which packets come.
    offers: HashMap<u32, Vec<Offer>>,
    /// The channel thread takes a turn soon.
    is_due: bool,
}

/// The copies of decisions, and the table that has them.
pub(crate) struct KernelPath {
    waiting: Mutex<Waiting>,
    copies: Mutex<Copies>,
    start_ms: u64,
}

impl std::fmt::Debug for KernelPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelPath").finish_non_exhaustive()
    }
}

impl KernelPath {
    /// Copies in this table, which has none. `start_ms` is when the clock of flows began.
    pub fn new(table: Table, start_ms: u64) -> KernelPath {
        KernelPath {
            waiting: Mutex::default(),
            copies: Mutex::new(Copies::new(table)),
            start_ms,
        }
    }

    fn now_ms(&self) -> u64 {
        cpu::tick_ms().saturating_sub(self.start_ms)
    }

    /// Offers a decision. Whether the channel thread has to be woken for it.
    pub fn offer(&self, offer: Offer) -> bool {
        let mut waiting = self.waiting.lock();
        let own = waiting.offers.entry(offer.key.from).or_default();
        if own.len() >= MOST_OFFERS {
            return false;
        }
        own.push(offer);
        !std::mem::replace(&mut waiting.is_due, true)
    }

    /// Takes offers, and goes on with copies that are armed. Returns when to do so again at the latest.
    pub fn step(self: &Arc<Self>, ports: &Ports) -> Option<Duration> {
        let (now_ms, taken) = (self.now_ms(), std::mem::take(&mut *self.waiting.lock()));
        let owner: Arc<dyn Copied> = self.clone();
        let find: Find<'_> = &|port| ports.get(port);
        let mut copies = self.copies.lock();
        let has_taken = !taken.offers.is_empty();
        for offer in taken.offers.into_values().flatten() {
            copies.take(&offer, find, &owner, now_ms);
        }
        copies.go_on(find, now_ms);
        // Offers that come at once wait for the next look.
        let is_due = has_taken || copies.are_armed();
        drop(copies);
        let mut waiting = self.waiting.lock();
        waiting.is_due |= is_due;
        waiting.is_due.then_some(LOOK)
    }

    /// Has copies of decisions about packets from or to a port be as the port is now.
    pub fn look_at(&self, port: PortId, ports: &Ports) {
        let find: Find<'_> = &|port| ports.get(port);
        self.copies.lock().look_at(port, find, self.now_ms());
    }

    /// Adds what the kernel has counted to all flows and ports.
    pub fn flush(&self) {
        self.copies.lock().flush_all(self.now_ms());
    }

    /// Adds it to a port, and its flows.
    pub fn flush_port(&self, port: PortId) {
        self.copies.lock().flush_port(port, self.now_ms());
    }

    /// Adds it to the flow with this decision.
    pub fn flush_decision(&self, decision: &Decision) {
        self.copies.lock().flush_decision(decision, self.now_ms());
    }

    /// The copies of decisions about packets from a port.
    pub fn copies_from(&self, port: PortId) -> Number {
        self.copies.lock().number_from(port)
    }

    /// The copies of a decision.
    pub fn copies_of(&self, decision: &Decision) -> Number {
        self.copies.lock().number_of(decision)
    }

    /// Whether the copy for such packets is in force, and the length of the longest ones; `None` without a
    /// copy.
    pub fn copy_for(&self, key: &Key) -> Option<(bool, u32)> {
        self.copies.lock().of_key(key)
    }

    /// What ports have counted, by number, of those that ever had copies.
    pub fn all_counts(&self) -> HashMap<u32, PathCounts> {
        self.copies.lock().all_counts()
    }

    /// What a port has counted.
    pub fn counts_of(&self, port: PortId) -> PathCounts {
        self.copies.lock().counts_of(port)
    }
}

impl Copied for KernelPath {
    fn withdraw(&self, decision: &Decision) {
        self.copies.lock().withdraw(decision, self.now_ms());
    }
}

impl Port {
    /// Why packets of the port have to go through the data plane, if they have.
    pub fn obstacle(&self) -> Option<&'static str> {
        if self.is_copied() {
            Some("a capture or mirror copies its packets")
        } else if self.vnic.is_diverted() {
            Some("it was taken down, or a P4 program has it")
        } else if self.is_held_back() {
            Some("its bandwidth is limited")
        } else {
            None
        }
    }
}
