//! What the supervisor is told about a peer that does not do what it owes.
//!
//! Data plane and driver domain handle guests' data, so a guest may have taken over either. It may then lie
//! about its ports; it must not make a controller grow, loop, block or write to a user's terminal:
//!
//! | behaviour | bound |
//! |---|---|
//! | sends messages that are malformed, of the wrong kind or not asked for | a few, then it is replaced ([`Link`](crate::Link)) |
//! | does not read, or does not answer | messages, bytes and requests that wait, then it is replaced |
//! | owes an answer | the supervisor looks at it ([`Debt`]) |
//! | never lists its ports and flows, or never ends a list | [`SYNC_MS`], then it is replaced |
//! | lists more entries than can exist, or none and "more" | it is replaced (`asked`) |
//! | sends packets and does not read our answers | answers are made without the packet, which is lost (`upcalls`) |
//! | closes the channel and lives on | it is replaced [`ABSENCE_MS`] later |
//! | sends text that would control a terminal | the text is cleaned (`clean`) |
//!
//! *Replacing* is the supervisor's task: the controller asks it to end the process and start another.

use crate::Lost;
use control_protocol::Debt;
use control_protocol::supervisor::{FromChild, Role};
use std::collections::VecDeque;

/// Time until a data plane must have listed its ports and flows, in milliseconds. A loaded machine takes a
/// second.
pub const SYNC_MS: u64 = 30_000;

/// Time without a peer after which the supervisor is asked for another, in milliseconds. The supervisor knows
/// earlier if the old one has ended.
pub const ABSENCE_MS: u64 = 10_000;

/// What is known about one peer.
#[derive(Debug)]
pub(crate) struct Distrust {
    role: Role,
    debt: Debt,
    /// Since when there has been none after there was one, or when we last asked for another.
    absent_since_ms: Option<u64>,
    complaints: VecDeque<FromChild>,
}

impl Distrust {
    pub fn new(role: Role) -> Distrust {
        Distrust {
            role,
            debt: Debt::default(),
            absent_since_ms: None,
            complaints: VecDeque::new(),
        }
    }

    /// A new one is there.
    pub fn on_attach(&mut self) {
        self.absent_since_ms = None;
    }

    /// The peer has said something: it works.
    pub fn on_message(&mut self) {
        self.debt.heard();
    }

    /// The channel to the peer was given up.
    pub fn on_loss(&mut self, lost: Lost, now_ms: u64) {
        self.absent_since_ms = Some(now_ms);
        let role = self.role;
        match lost {
            Lost::Gone => log::warn!("the channel to {role} is closed"),
            Lost::Malformed => self.replace("does not keep to the protocol"),
            Lost::Unresponsive => self.replace("does not read or answer what it is told"),
        }
    }

    fn replace(&mut self, why: &str) {
        let role = self.role;
        telemetry::limited!(log::Level::Error, "{role} {why}; asking for another");
        self.complaints.push_back(FromChild::Replace(role));
    }

    /// When there will be something to tell, if nothing happens before.
    pub fn due_ms(&self) -> Option<u64> {
        let absence = self.absent_since_ms.map(|since| since + ABSENCE_MS);
        [self.debt.due_ms(), absence].into_iter().flatten().min()
    }

    /// The next message for the supervisor. `owes`: whether the peer owes an answer.
    pub fn complaint(&mut self, owes: bool, now_ms: u64) -> Option<FromChild> {
        if let Some(complaint) = self.complaints.pop_front() {
            return Some(complaint);
        }
        if self
            .absent_since_ms
            .is_some_and(|since| since + ABSENCE_MS <= now_ms)
        {
            self.absent_since_ms = Some(now_ms);
            self.replace("does not come back");
            return self.complaints.pop_front();
        }
        self.debt.set(owes, now_ms);
        self.debt
            .take_overdue(now_ms)
            .then_some(FromChild::Owes(self.role))
    }
}
