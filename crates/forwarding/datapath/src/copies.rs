//! Who gets copies of a port's packets: users who capture at the port, and its mirrors. Neither holds the
//! port up by more than the copy. Captures' sockets are written without waiting, and packets that do not fit
//! are counted as lost. Copies for mirrors are made in `mirror`.
//!
//! A port without captures and mirrors tests one flag per burst.

use crate::refusal::Refusal;
use classifier::Rules;
use control_protocol::data_plane::{CaptureDirection, CapturedPacket};
use control_protocol::{Channel, ChannelError};
use flow::{DropReason, Mirror};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use vnic::{MAX_FRAME, Packet};

/// Most captures at a port at a time.
const MAX_CAPTURES: usize = 8;

/// The captures and mirrors of one port.
#[derive(Default)]
pub(crate) struct Copies {
    captures: Mutex<Vec<Capture>>,
    /// Changed while `captures` is locked.
    pub mirrors: RwLock<Mirrors>,
}

/// The mirrors of one port.
#[derive(Default)]
pub(crate) struct Mirrors {
    pub all: Box<[Mirror]>,
    /// The lists of all controllers; `None` without mirrors.
    pub rules: Option<Arc<Rules>>,
}

/// Nanoseconds since 1970.
pub(crate) fn time_ns() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A socket that gets copies.
struct Capture {
    channel: Channel,
    snap_length: usize,
    lost: u64,
}

impl Copies {
    /// Adds a capture; errors when there are too many.
    pub fn capture(&self, channel: Channel, snap_length: u32) -> Result<(), Refusal> {
        let mut captures = self.captures.lock();
        if captures.len() >= MAX_CAPTURES {
            return Err(Refusal::Captures(MAX_CAPTURES));
        }
        captures.push(Capture {
            channel,
            snap_length: snap_length.min(MAX_FRAME) as usize,
            lost: 0,
        });
        Ok(())
    }

    /// Puts mirrors in the place of those that there are. `publish` is told whether copies are made from now
    /// on.
    pub fn set_mirrors(&self, mirrors: Vec<Mirror>, rules: &Arc<Rules>, publish: impl FnOnce(bool)) {
        let captures = self.captures.lock();
        let are_made = !captures.is_empty() || !mirrors.is_empty();
        *self.mirrors.write() = Mirrors {
            all: mirrors.into(),
            rules: Some(rules.clone()),
        };
        publish(are_made);
    }

    /// Sends a copy to all captures; those whose reader has gone end. `publish` is told when no copies are
    /// made any more.
    pub fn record(
        &self,
        packet: &Packet,
        direction: CaptureDirection,
        dropped: Option<DropReason>,
        publish: impl FnOnce(bool),
    ) {
        let mut captures = self.captures.lock();
        if captures.is_empty() {
            return;
        }
        let time_ns = time_ns();
        captures.retain_mut(|capture| {
            let captured = CapturedPacket {
                time_ns,
                direction,
                dropped,
                length: u32::try_from(packet.frame_len()).unwrap_or(u32::MAX),
                lost: capture.lost,
                vnet_header: packet.offload.header().to_bytes(),
                frame: packet.to_bytes(capture.snap_length),
            };
            match capture.channel.try_send(&captured, &[]) {
                Ok(()) => capture.lost = 0,
                Err(ChannelError::Closed) => return false,
                Err(_) => capture.lost += 1,
            }
            true
        });
        if captures.is_empty() && self.mirrors.read().all.is_empty() {
            publish(false);
        }
    }
}
