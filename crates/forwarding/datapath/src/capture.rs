//! Copies of packets for users who capture at a port. Capturing must not slow the port down by more than
//! the copy: sockets are written without waiting, and packets that do not fit are counted as lost.

use crate::refusal::Refusal;
use control_protocol::data_plane::{CaptureDirection, CapturedPacket};
use control_protocol::{Channel, ChannelError};
use flow::DropReason;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use vnic::{MAX_FRAME, Packet};

/// Most captures at a port at a time.
const MAX_CAPTURES: usize = 8;

/// The captures at one port.
#[derive(Default)]
pub(crate) struct Captures {
    active: AtomicBool,
    sinks: Mutex<Vec<Sink>>,
}

struct Sink {
    channel: Channel,
    snap_length: usize,
    lost: u64,
}

impl Captures {
    /// Adds one; errors when there are too many.
    pub fn add(&self, channel: Channel, snap_length: u32) -> Result<(), Refusal> {
        let mut sinks = self.sinks.lock();
        if sinks.len() >= MAX_CAPTURES {
            return Err(Refusal::Captures(MAX_CAPTURES));
        }
        sinks.push(Sink {
            channel,
            snap_length: snap_length.min(MAX_FRAME) as usize,
            lost: 0,
        });
        self.active.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether there is a capture.
    #[inline]
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Sends a copy to all captures; those whose reader has gone end.
    #[cold]
    pub fn record(&self, packet: &Packet, direction: CaptureDirection, dropped: Option<DropReason>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut sinks = self.sinks.lock();
        sinks.retain_mut(|sink| {
            let captured = CapturedPacket {
                time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
                direction,
                dropped,
                length: u32::try_from(packet.frame_len()).unwrap_or(u32::MAX),
                lost: sink.lost,
                vnet_header: packet.offload.header().to_bytes(),
                frame: packet.to_bytes(sink.snap_length),
            };
            match sink.channel.try_send(&captured, &[]) {
                Ok(()) => sink.lost = 0,
                Err(ChannelError::Closed) => return false,
                Err(_) => sink.lost += 1,
            }
            true
        });
        if sinks.is_empty() {
            self.active.store(false, Ordering::Release);
        }
    }
}
