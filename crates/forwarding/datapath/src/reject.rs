//! What happens to packets that a rule rejects: the sender is told, by the data plane itself, so that it
//! takes no control process.
//!
//! | the packet | counts as | its sender |
//! |---|---|---|
//! | was for one receiver, and may be answered (`wire::rejection`) | `rejected` | gets a TCP reset or an ICMP error |
//! | has further receivers | `policy` | is told nothing, as one of them may answer |
//! | is one of too many lately, of a port | `policy` | is told nothing |
//!
//! The answer goes straight to the port that the packet came from, past its filters and mirrors, so nobody
//! can have it sent to somebody else. It counts as `injected`, and as delivered or dropped.

use crate::actions::Sink as _;
use crate::mirror::Reach;
use crate::sinks::{Forward, enqueue};
use flow::{DropReason, ExactKey};
use lock_free::Unique;
use std::sync::atomic::Ordering::Relaxed;
use vnic::Packet;
use wire::rejection;

impl<S: FnMut() -> Option<Unique<Packet>>> Forward<'_, S> {
    /// Tells the sender of a packet that a rule rejects, if that may be. Returns what the packet counts as.
    #[cold]
    pub(crate) fn reject(&mut self, packet: &Packet, is_alone: bool) -> DropReason {
        let told = is_alone && self.tell_sender(packet).is_some();
        if told {
            DropReason::Rejected
        } else {
            DropReason::Policy
        }
    }

    fn tell_sender(&mut self, packet: &Packet) -> Option<()> {
        let came = self.came.and_then(ExactKey::flow_key)?;
        let answer = rejection(packet.head.bytes(), packet.frame_len(), &came)?;
        if !self.port.vnic.is_open() || !self.port.admit_answer(self.now_ms) {
            return None;
        }
        let mut slot = self.spare()?;
        let account = &self.port.vnic.account;
        slot.fill(self.port.id(), account.clone(), answer);
        slot.header = [0; wire::VnetHeader::LEN];
        account.injected.fetch_add(1, Relaxed);
        if let Err(reason) = slot.parse_flow_key() {
            account.dropped(reason, 1);
            return None;
        }
        let mut reach = Reach {
            ports: self.ports,
            receivers: &mut *self.receivers,
            now_ms: self.now_ms,
        };
        enqueue(slot.share(), self.port, self.port.id(), &mut reach);
        Some(())
    }
}
