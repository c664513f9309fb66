//! An installed flow and what it has seen.
//!
//! Shared by the table and the caches of all workers. The counters are independent statistics, so they
//! are updated without ordering between them: a reader may see a packet before its bytes, never a count that
//! goes back. `live` goes from true to false once and never back.

use flow::{Action, Flow, FlowStats, PortId};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// A flow in a table, or on its way out of one.
#[derive(Debug)]
pub struct FlowEntry {
    /// What was installed, with all bits of the key outside the mask cleared.
    pub flow: Flow,
    /// The port that all packets go to unchanged, if that is all that happens to them.
    pub output: Option<PortId>,
    live: AtomicBool,
    seen: Seen,
}

/// What is written for every batch, apart from what is read for every packet.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Seen {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Time of the last match in milliseconds of the caller's clock, plus one; 0 for never.
    last_used: AtomicU64,
    tcp_flags: AtomicU16,
}

impl FlowEntry {
    /// A live entry that has seen nothing.
    pub fn new(mut flow: Flow) -> FlowEntry {
        flow.key = flow.key.masked(&flow.mask);
        let output = match flow.actions[..] {
            [Action::Output(port)] => Some(port),
            _ => None,
        };
        FlowEntry {
            flow,
            output,
            live: AtomicBool::new(true),
            seen: Seen::default(),
        }
    }

    /// Counts packets that matched, at `now_ms` of a clock that the caller also uses for [`stats`](Self::stats).
    #[inline]
    pub fn record(&self, packets: u64, bytes: u64, tcp_flags: u16, now_ms: u64) {
        self.seen.packets.fetch_add(packets, Ordering::Relaxed);
        self.seen.bytes.fetch_add(bytes, Ordering::Relaxed);
        let stamp = now_ms.saturating_add(1);
        // A plain store could undo that of a worker whose clock reading is newer. Mostly nothing changes,
        // and then the cache line's other users are not disturbed.
        if self.seen.last_used.load(Ordering::Relaxed) < stamp {
            self.seen.last_used.fetch_max(stamp, Ordering::Relaxed);
        }
        if self.seen.tcp_flags.load(Ordering::Relaxed) & tcp_flags != tcp_flags {
            self.seen.tcp_flags.fetch_or(tcp_flags, Ordering::Relaxed);
        }
    }

    /// What was counted so far; `now_ms` is the time to compute idleness for.
    pub fn stats(&self, now_ms: u64) -> FlowStats {
        let last_used = self.seen.last_used.load(Ordering::Relaxed).checked_sub(1);
        FlowStats {
            packets: self.seen.packets.load(Ordering::Relaxed),
            bytes: self.seen.bytes.load(Ordering::Relaxed),
            idle_ms: last_used.map(|then| now_ms.saturating_sub(then)),
            tcp_flags: self.seen.tcp_flags.load(Ordering::Relaxed),
        }
    }

    /// Whether the entry is still in its table. A dead one must not decide about packets any more.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// Ends the entry: from now on caches treat it as a miss.
    pub(crate) fn kill(&self) {
        self.live.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{FlowId, FlowKey, FlowMask, SwitchId};

    fn entry() -> FlowEntry {
        let key = FlowKey {
            words: [u64::MAX; flow::KEY_WORDS],
        };
        let mut mask = FlowMask::ANY;
        mask.0.set_eth_type(0xffff);
        FlowEntry::new(Flow {
            id: FlowId(1),
            switch: SwitchId(1),
            key,
            mask,
            actions: Vec::new(),
        })
    }

    #[test]
    fn the_key_is_reduced_to_the_mask() {
        let entry = entry();
        assert_eq!(entry.flow.key, entry.flow.mask.0);
    }

    #[test]
    fn statistics_add_up_and_time_does_not_go_back() {
        let entry = entry();
        assert_eq!(entry.stats(50).idle_ms, None);
        entry.record(2, 120, 0x02, 0);
        assert_eq!(entry.stats(50).idle_ms, Some(50));
        entry.record(1, 1500, 0x10, 40);
        entry.record(0, 0, 0, 30);
        let expected = FlowStats {
            packets: 3,
            bytes: 1620,
            idle_ms: Some(10),
            tcp_flags: 0x12,
        };
        assert_eq!(entry.stats(50), expected);
        assert_eq!(entry.stats(20).idle_ms, Some(0));
    }
}
