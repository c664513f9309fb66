//! Packets of the data plane: each is ended once.
//!
//! Packets that come before the controller has agreed with the data plane about ports and flows wait here
//! (the data plane bounds them), so that none is decided about without knowing these. Those that a data plane
//! sends beyond the bounds are ended at once.

use control_protocol::data_plane::{Execute, Request, Upcall};
use flow::DropReason;
use std::collections::VecDeque;

/// Packets that wait for being decided about, and their bytes.
const MAX_HELD: usize = 4096;
const MAX_HELD_BYTES: usize = 32 << 20;

/// Bytes of packets that wait to be sent back, beyond which packets are left out. Half of what the outbox
/// holds; so small packets are left out, too, before their number is what the outbox does not hold.
const MAX_RETURNING: usize = crate::outbox::MAX_BYTES / 2;

/// Packets that wait.
#[derive(Debug, Default)]
pub(crate) struct Upcalls {
    held: VecDeque<Upcall>,
    bytes: usize,
}

impl Upcalls {
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Keeps a packet. If too many wait, returns what ends it.
    pub fn hold(&mut self, upcall: Upcall) -> Option<Request> {
        let bytes = self.bytes + upcall.packet.frame.len();
        if self.held.len() >= MAX_HELD || bytes > MAX_HELD_BYTES {
            let (upcall, reason) = (upcall.id, DropReason::MissQueueFull);
            return Some(Request::Discard { upcall, reason });
        }
        self.bytes = bytes;
        self.held.push_back(upcall);
        None
    }

    pub fn next(&mut self) -> Option<Upcall> {
        let upcall = self.held.pop_front()?;
        self.bytes -= upcall.packet.frame.len();
        Some(upcall)
    }
}

/// What is sent in the place of a packet, and the bytes of its frame, if so many bytes wait to be sent
/// already. `None`: it ends no upcall, and is dropped.
pub(crate) fn bounded(request: Request, waiting: usize) -> Option<(Request, usize)> {
    match request {
        Request::Execute(Execute { upcall, packet, .. }) if waiting + packet.frame.len() > MAX_RETURNING => {
            let reason = DropReason::ControlLost;
            upcall.map(|upcall| (Request::Discard { upcall, reason }, 0))
        }
        Request::Execute(execute) => {
            let bytes = size_of::<Execute>() + execute.packet.frame.len();
            Some((Request::Execute(execute), bytes))
        }
        request => Some((request, 0)),
    }
}
