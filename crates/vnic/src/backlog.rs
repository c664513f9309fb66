//! Packets that wait for a receiver's buffers, and a bound on the slots of their senders that they hold meanwhile.
//!
//! A packet that waits holds a slot of its sender, and a chain of the sender's ring. A receiver should hold up a sender that
//! has no other receiver: that is back-pressure, and nothing is lost. But a sender that serves several receivers, as a gateway
//! or an uplink does, would serve all of them at the pace of the slowest. A slow receiver might post a buffer now and then on
//! purpose, so that it never stalls. So time is counted from when a packet began to wait, whatever was delivered since:
//!
//! | receiver | enters when | senders that serve several lend it | other senders lend it |
//! |---|---|---|---|
//! | in time | at first; or nothing has waited long for [`FORGOTTEN_US`] | everything | everything |
//! | slow | a packet has waited for buffers longer than it may | a quarter of their free slots, for [`SHARED_AGE_US`] | everything, for [`MAX_AGE_US`] |
//!
//! The receiver earns the time that a packet may wait: [`CREDIT_US`] for each packet that it took since it last let one wait,
//! within the bounds of [`PATIENCE_US`]. So a guest that takes a ring full at once and then has to wait for its core is in
//! time, and a guest that posts a buffer now and then is not.
//!
//! Packets beyond that are dropped as `receiver-slow`, newest first. A quarter of the free slots bounds all slow receivers of
//! a sender together: the more they hold, the less each one gets (as in Choudhury and Hahn, "Dynamic queue length
//! thresholds for shared-memory packet switches", 1998), so that others always find slots. A receiver that has taken
//! nothing at all since a packet came is handled by [`Wait`](crate::Wait).
//!
//! A packet for several receivers counts at each of them. Waiting for a core is not waiting for buffers: the clock
//! starts when a packet was found to lack them.
//!
//! Used by the holder of the receive side. The safe direction is to lend less.

use crate::{Counters, Packet};
use flow::PortId;
use ring::Shared;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How long packets may wait for a receiver that is not slow, at least and at most, in microseconds: longer than it takes to
/// wake a guest on a free core, and than a guest usually waits for a contended core.
const PATIENCE_US: (u64, u64) = (1000, 20_000);

/// Part of that which a receiver earns with each packet, in microseconds.
const CREDIT_US: u64 = 100;

/// How long a slow receiver holds a packet of a sender that serves several, in microseconds.
const SHARED_AGE_US: u64 = 100_000;

/// How long it holds any packet, in microseconds. The next receiver of a sender is not known while all the sender's slots are
/// held.
const MAX_AGE_US: u64 = 1_000_000;

/// After how long without packets that waited so long a receiver is no longer slow, in microseconds.
const FORGOTTEN_US: u64 = 10_000_000;

/// For how long a sender counts as one that serves several, after it sent to others in turn, in milliseconds.
const SEVERAL_MS: u64 = 10_000;

/// Part of a sender's free slots that a slow receiver may hold.
const SHARE: u32 = 4;

/// Most packets that wait here; others stay in the internal receive queue.
const CAPACITY: usize = 1024;

/// Time between two reviews of the age of all packets that wait, in microseconds.
const REVIEW_US: u64 = 10_000;

/// A sender's state for other threads, as its transmit side published it last.
#[derive(Debug)]
pub struct Lender {
    /// Slots that were free.
    free: AtomicU32,
    /// The port it last sent to.
    last: AtomicU32,
    /// When that was another one than before; 0 for never (the data plane's clock, milliseconds).
    changed_ms: AtomicU64,
}

impl Default for Lender {
    fn default() -> Self {
        Lender {
            free: AtomicU32::new(crate::transmit::MAX_SLOTS),
            last: AtomicU32::new(u32::MAX),
            changed_ms: AtomicU64::new(0),
        }
    }
}

impl Lender {
    /// The sender sends to that port. Called once per burst.
    #[inline]
    pub fn sends_to(&self, port: PortId, now_ms: u64) {
        let last = self.last.load(Relaxed);
        if last != port.0 {
            self.last.store(port.0, Relaxed);
            if last != u32::MAX {
                self.changed_ms.store(now_ms.max(1), Relaxed);
            }
        }
    }

    #[inline]
    pub(crate) fn set_free(&self, slots: usize) {
        self.free.store(slots as u32, Relaxed);
    }

    fn serves_several(&self, now_ms: u64) -> bool {
        let changed_ms = self.changed_ms.load(Relaxed);
        changed_ms != 0 && now_ms.saturating_sub(changed_ms) < SEVERAL_MS
    }
}

/// The time by the clocks that are in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Of the data plane.
    pub ms: u64,
    /// [`clock::now_us`].
    pub us: u64,
}

impl Now {
    fn since(self, us: u64) -> u64 {
        // Cores may disagree a little.
        self.us.saturating_sub(us)
    }
}

/// A packet that was found to lack buffers, or that came behind one.
#[derive(Debug)]
struct Waiting {
    packet: Shared<Packet>,
    since_us: u64,
}

/// One sender's packets that wait.
#[derive(Debug)]
struct Held {
    origin: PortId,
    account: Arc<Counters>,
    count: u32,
    /// During a review: how many it may be.
    allowed: u32,
}

/// See the module's description. The oldest packet is kept by the receive side, and not counted here.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queue: VecDeque<Waiting>,
    /// Senders of the packets in `queue`.
    held: Vec<Held>,
    patience_us: u64,
    slow_until_us: u64,
    reviewed_us: u64,
}

impl Backlog {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.queue.len() >= CAPACITY
    }

    pub fn is_slow(&self, now: Now) -> bool {
        now.us < self.slow_until_us
    }

    /// Packets begin to wait, after the receiver took so many since they did so last.
    pub fn begins(&mut self, taken: u64) {
        let (least, most) = PATIENCE_US;
        self.patience_us = taken.saturating_mul(CREDIT_US).clamp(least, most);
    }

    /// A packet is waiting, or was delivered after it waited.
    pub fn has_waited(&mut self, since_us: u64, now: Now) {
        if now.since(since_us) <= self.patience_us {
            return;
        }
        if !self.is_slow(now) {
            self.reviewed_us = 0;
        }
        self.slow_until_us = now.us + FORGOTTEN_US;
    }

    /// Whether the sender does not lend this packet any longer. It has waited since `since_us`; the receiver has taken others
    /// after that, the last one before `last_us`.
    pub fn is_overdue(&self, packet: &Packet, since_us: u64, last_us: u64, now: Now) -> bool {
        let age_us = now.since(since_us);
        self.is_slow(now)
            && since_us < last_us
            && age_us > SHARED_AGE_US
            && (age_us > MAX_AGE_US || packet.account.lender.serves_several(now.ms))
    }

    /// In how many microseconds the receiver should be checked, as it may be slow then and hold up a sender that serves others as
    /// well.
    pub fn watch_us(&self, oldest: &Packet, now: Now) -> Option<u64> {
        let several = |account: &Counters| account.lender.serves_several(now.ms);
        let matters = several(&oldest.account) || self.held.iter().any(|held| several(&held.account));
        (matters && !self.is_slow(now)).then_some(self.patience_us + self.patience_us / 8)
    }

    /// Appends a packet, which comes back if its sender lends no more.
    pub fn push(&mut self, packet: Shared<Packet>, now: Now) -> Result<(), Shared<Packet>> {
        let slow = self.is_slow(now);
        let held = self.held_of(&packet);
        let lender = &held.account.lender;
        if slow && lender.serves_several(now.ms) && held.count >= lender.free.load(Relaxed) / SHARE {
            return Err(packet);
        }
        held.count += 1;
        self.queue.push_back(Waiting {
            packet,
            since_us: now.us,
        });
        Ok(())
    }

    /// Takes the oldest one, and since when it has waited.
    pub fn pop(&mut self) -> Option<(Shared<Packet>, u64)> {
        let Waiting { packet, since_us } = self.queue.pop_front()?;
        self.held_of(&packet).count -= 1;
        if self.queue.is_empty() {
            self.held.clear();
        }
        Some((packet, since_us))
    }

    fn held_of(&mut self, packet: &Packet) -> &mut Held {
        let known = self.held.iter().position(|held| held.origin == packet.origin);
        let at = known.unwrap_or_else(|| {
            self.held.push(Held {
                origin: packet.origin,
                account: packet.account.clone(),
                count: 0,
                allowed: u32::MAX,
            });
            self.held.len() - 1
        });
        &mut self.held[at]
    }

    /// Takes out the packets that senders do not lend to a slow receiver any longer, and gives them to `refuse`. Does so when the
    /// receiver has just become slow, and now and then. `last_us` as in [`is_overdue`](Self::is_overdue).
    pub fn review(&mut self, last_us: u64, now: Now, mut refuse: impl FnMut(Shared<Packet>)) {
        if !self.is_slow(now) || now.since(self.reviewed_us) < REVIEW_US {
            return;
        }
        self.reviewed_us = now.us;
        for held in &mut self.held {
            let lender = &held.account.lender;
            // A share of the slots free afterwards, which include those that it gives back.
            let free = lender.free.load(Relaxed).saturating_add(held.count);
            let several = lender.serves_several(now.ms);
            held.allowed = if several { free / (SHARE + 1) } else { u32::MAX };
            held.count = 0;
        }
        for waiting in std::mem::take(&mut self.queue) {
            let overdue = self.is_overdue(&waiting.packet, waiting.since_us, last_us, now);
            let held = self.held_of(&waiting.packet);
            if overdue || held.count >= held.allowed {
                refuse(waiting.packet);
            } else {
                held.count += 1;
                self.queue.push_back(waiting);
            }
        }
        self.held.retain(|held| held.count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Source;

    const START: Now = Now {
        ms: 5000,
        us: 7_000_000,
    };

    fn later(us: u64) -> Now {
        Now {
            ms: START.ms + us / 1000,
            us: START.us + us,
        }
    }

    /// A source whose sender serves several.
    fn gateway(port: u32) -> Source {
        let source = Source::new(port);
        source.account.lender.sends_to(PortId(8), START.ms);
        source.account.lender.sends_to(PortId(9), START.ms);
        source
    }

    /// Of a receiver that has taken nothing so far.
    fn new_backlog() -> Backlog {
        let mut backlog = Backlog::default();
        backlog.begins(0);
        backlog
    }

    fn packet(source: &mut Source) -> Shared<Packet> {
        source.packet(&[2; 60]).share()
    }

    fn push(backlog: &mut Backlog, source: &mut Source, count: usize, now: Now) -> usize {
        (0..count)
            .filter(|_| backlog.push(packet(source), now).is_ok())
            .count()
    }

    fn review(backlog: &mut Backlog, now: Now) -> Vec<PortId> {
        let mut refused = Vec::new();
        backlog.review(now.us, now, |packet| refused.push(packet.origin));
        refused
    }

    #[test]
    fn a_receiver_in_time_is_lent_everything() {
        let mut backlog = new_backlog();
        let mut source = gateway(1);
        source.account.lender.set_free(0);
        assert_eq!(push(&mut backlog, &mut source, 256, START), 256);
        backlog.has_waited(START.us, later(PATIENCE_US.0));
        assert!(review(&mut backlog, later(PATIENCE_US.0)).is_empty());
        let watch_us = backlog.watch_us(&packet(&mut source), START);
        assert!(watch_us.is_some_and(|us| us > PATIENCE_US.0 && us < 2 * PATIENCE_US.0));
    }

    #[test]
    fn patience_is_earned() {
        let (least, most) = PATIENCE_US;
        for (taken, patience_us) in [(0, least), (1, least), (50, 5000), (256, most), (u64::MAX, most)] {
            let mut backlog = Backlog::default();
            backlog.begins(taken);
            backlog.has_waited(START.us, later(patience_us));
            assert!(!backlog.is_slow(later(patience_us)), "{taken}");
            backlog.has_waited(START.us, later(patience_us + 1));
            assert!(backlog.is_slow(later(patience_us + 1)), "{taken}");
        }
    }

    #[test]
    fn a_slow_receiver_is_lent_a_part_of_what_is_free() {
        let mut backlog = new_backlog();
        let (mut one, mut other, mut alone) = (gateway(1), gateway(2), Source::new(3));
        alone.account.lender.sends_to(PortId(9), START.ms);
        one.account.lender.set_free(0);
        other.account.lender.set_free(236);
        assert_eq!(push(&mut backlog, &mut one, 256, START), 256);
        assert_eq!(push(&mut backlog, &mut other, 20, START), 20);
        assert_eq!(push(&mut backlog, &mut alone, 200, START), 200);
        let now = later(PATIENCE_US.0 + 1);
        backlog.has_waited(START.us, now);
        let refused = review(&mut backlog, now);
        assert_eq!(
            refused,
            [PortId(1); 256 - 51],
            "a fifth of all is a quarter of the rest"
        );
        // From now on it is a quarter of the free slots.
        one.account.lender.set_free(205);
        assert_eq!(push(&mut backlog, &mut one, 10, now), 0);
        assert_eq!(push(&mut backlog, &mut other, 256, now), 236 / 4 - 20);
        assert_eq!(push(&mut backlog, &mut alone, 56, now), 56);
        // Packets that leave make room.
        for _ in 0..11 {
            assert_eq!(backlog.pop().unwrap().0.origin, PortId(1));
        }
        assert_eq!(push(&mut backlog, &mut one, 256, now), 205 / 4 - 40);
    }

    #[test]
    fn nothing_is_lent_for_long() {
        let mut backlog = new_backlog();
        let (mut one, mut alone) = (gateway(1), Source::new(3));
        for _ in 0..10 {
            assert_eq!(push(&mut backlog, &mut one, 1, START), 1);
            assert_eq!(push(&mut backlog, &mut alone, 1, START), 1);
        }
        let middle = later(SHARED_AGE_US / 2);
        backlog.has_waited(START.us, middle);
        assert_eq!(push(&mut backlog, &mut one, 5, middle), 5);
        let now = later(SHARED_AGE_US + 1);
        assert_eq!(review(&mut backlog, now), [PortId(1); 10]);
        assert!(backlog.is_overdue(&packet(&mut one), START.us, now.us, now));
        assert!(!backlog.is_overdue(&packet(&mut one), middle.us, now.us, now));
        assert!(
            !backlog.is_overdue(&packet(&mut one), START.us, START.us, now),
            "it has taken nothing"
        );
        assert!(!backlog.is_overdue(&packet(&mut alone), START.us, now.us, now));
        let end = later(MAX_AGE_US + 1);
        assert!(backlog.is_overdue(&packet(&mut alone), START.us, now.us, end));
        assert!(!backlog.is_overdue(&packet(&mut alone), START.us, START.us, end));
        let left: Vec<_> = std::iter::from_fn(|| backlog.pop())
            .map(|(packet, _)| packet.origin.0)
            .collect();
        assert_eq!(left, [[3; 10].as_slice(), &[1; 5]].concat());
        assert!(backlog.held.is_empty());
    }

    #[test]
    fn being_slow_is_forgotten() {
        let mut backlog = new_backlog();
        let now = later(2 * PATIENCE_US.0);
        backlog.has_waited(START.us, now);
        assert!(backlog.is_slow(now));
        let then = later(2 * PATIENCE_US.0 + FORGOTTEN_US);
        assert!(!backlog.is_slow(then));
        backlog.has_waited(then.us, then);
        assert!(!backlog.is_slow(then), "this one did not wait");
    }

    #[test]
    fn who_sends_to_one_port_serves_one() {
        let lender = Lender::default();
        for _ in 0..3 {
            lender.sends_to(PortId(5), 100);
            assert!(!lender.serves_several(100));
        }
        lender.sends_to(PortId(6), 100);
        assert!(lender.serves_several(100));
        lender.sends_to(PortId(6), 100 + SEVERAL_MS);
        assert!(!lender.serves_several(100 + SEVERAL_MS));
    }
}
