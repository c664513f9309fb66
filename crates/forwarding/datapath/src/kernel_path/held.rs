//! One copy of a decision: its ports, its flow's counters, and when it may come in force.

use classifier::Decision;
use flow::PortId;
use kernel_path::Key;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vnic::Counters;

/// A gap between packets in which a copy comes in force: what came before has left the data plane.
const GAP_MS: u64 = 5;

/// A copy is armed for this long at most. Packets on the way may be overtaken once then.
const LONGEST_MS: u64 = 20;

/// Whether an armed copy comes in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    NotYet,
    InGap,
    /// There was none for too long.
    WithoutGap,
}

/// A copy.
pub(super) struct Held {
    pub key: Key,
    pub to: PortId,
    pub decision: Arc<Decision>,
    /// Counters of the ports from and to which packets go.
    accounts: [Arc<Counters>; 2],
    /// Packets and bytes that flow and ports have been told of.
    told: [u64; 2],
    /// When it was armed.
    armed_ms: u64,
    /// Packets since, at the last look that saw another number, and its time.
    seen: (u64, u64),
}

impl Held {
    pub fn new(key: Key, to: PortId, decision: Arc<Decision>, accounts: [Arc<Counters>; 2]) -> Held {
        Held {
            key,
            to,
            decision,
            accounts,
            told: [0; 2],
            armed_ms: 0,
            seen: (0, 0),
        }
    }

    pub fn on_armed(&mut self, now_ms: u64) {
        (self.armed_ms, self.seen) = (now_ms, (0, now_ms));
    }

    /// Notes how many packets went through the data plane since it is armed, and says whether it may come in
    /// force.
    pub fn begin(&mut self, frames: u64, now_ms: u64) -> Beginning {
        let (seen, at_ms) = self.seen;
        if frames != seen {
            self.seen = (frames, now_ms);
        } else if now_ms - at_ms >= GAP_MS {
            return Beginning::InGap;
        }
        match now_ms - self.armed_ms >= LONGEST_MS {
            true => Beginning::WithoutGap,
            false => Beginning::NotYet,
        }
    }

    /// Tells flow and ports of what the kernel has counted. Returns packets and bytes that are new.
    pub fn tell(&mut self, counts: [u64; 2], now_ms: u64) -> [u64; 2] {
        let [packets, bytes] = [0, 1].map(|at| counts[at].saturating_sub(self.told[at]));
        self.told = counts;
        if packets == 0 {
            return [0; 2];
        }
        self.decision.record(packets, bytes, 0, now_ms);
        let [from, to] = &self.accounts;
        from.received.fetch_add(packets, Relaxed);
        from.received_bytes.fetch_add(bytes, Relaxed);
        from.delivered.fetch_add(packets, Relaxed);
        to.transmitted.fetch_add(packets, Relaxed);
        to.transmitted_bytes.fetch_add(bytes, Relaxed);
        [packets, bytes]
    }
}
