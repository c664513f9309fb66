//! Packets that wait for a receiver's buffers, and a bound on what of their senders they hold meanwhile.
//!
//! A packet that waits holds a slot of its sender, and its chain, and with that all later chains of the
//! sender's ring, which come back in order (`virtqueue`). A receiver should hold up a sender that has no
//! other receiver: that is back-pressure, and nothing is lost. But a sender that serves several receivers, as
//! a gateway or an uplink does, would serve all of them at the pace of the slowest. So packets of such a
//! sender are *copied out* when they have waited for a moment: the receiver keeps copies of its own, and the
//! sender gets slots and chains back. Copies have a bound in bytes per receiver.
//!
//! Beyond that bound, a receiver that is slow gets no more packets of such senders. A slow receiver might
//! post a buffer now and then on purpose, so that it never stalls. So time is counted from when a packet
//! began to wait, whatever was delivered since:
//!
//! | receiver | enters when | senders that serve several lend it | other senders lend it |
//! |---|---|---|---|
//! | in time | at first; or nothing has waited long for [`FORGOTTEN_US`] | everything, for [`LENT_US`] if there is room for copies | everything |
//! | slow | a packet has waited for buffers longer than it may, or the receiver has held up others for longer than it may | nothing; copies wait for [`COPY_AGE_US`] | everything, for [`MAX_AGE_US`] |
//!
//! The receiver earns the time that a packet may wait: [`CREDIT_US`] for each packet that it took since it
//! last let one wait, within the bounds of [`WAIT_US`]. So a guest that takes a ring full at once and
//! then has to wait for its core is in time, and a guest that posts a buffer now and then is not.
//!
//! A guest that takes a ring full and then nothing for a while, again and again, is in time as well. Where
//! copies have no room, it may hold up senders that serve several for one [`HELD_ONE_IN`]th of the time, and
//! is slow if it does so for longer.
//!
//! Packets beyond that are dropped as `receiver-slow`, newest first. A receiver that has taken
//! nothing at all since a packet came is handled by [`Wait`](crate::Wait).
//!
//! Senders are served in turn, and each has a share of the places and of the room for copies, see
//! [`fair_queue`].
//!
//! A packet for several receivers is copied by each of them that lets it wait. Waiting for a core is not
//! waiting for buffers: the clock starts when a packet was found to lack them.
//!
//! Used by the holder of the receive side. The safe direction is to lend less.

mod fair_queue;

use crate::Packet;
use crate::turn::MAX_SLOTS;
pub(crate) use fair_queue::{FairQueue, MOST_LENT, Portion, Waiting};
use flow::DropReason;
use lock_free::Shared;

/// How long packets may wait for a receiver that is not slow, at least and at most, in microseconds: longer
/// than it takes to wake a guest on a free core, and than a guest usually waits for a contended core.
const WAIT_US: (u64, u64) = (1000, 20_000);

/// Part of that which a receiver earns with each packet, in microseconds.
const CREDIT_US: u64 = 100;

/// Part of the time in which a receiver may take nothing while it holds packets of senders that serve
/// several, after it first waited for the longest time. Time up to the shortest is not counted.
const HELD_ONE_IN: u64 = 16;

/// How long a packet of a sender that serves several waits in the sender's memory, in microseconds. A sender
/// of a million packets per second fills a ring of 256 entries meanwhile; a receiver that is awake posts
/// buffers within less.
const LENT_US: u64 = 200;

/// Most bytes that copied packets of a receiver take.
const COPIED_MOST: usize = 1 << 20;

/// How long such a copy waits for a slow receiver, in microseconds.
const COPY_AGE_US: u64 = 100_000;

/// How long it holds any packet, in microseconds. The next receiver of a sender is not known while all the
/// sender's slots are held.
const MAX_AGE_US: u64 = 1_000_000;

/// After how long without packets that waited so long a receiver is no longer slow, in microseconds.
const FORGOTTEN_US: u64 = 10_000_000;

/// Most packets that wait for one receiver: all slots of eight senders.
const CAPACITY: usize = 8 * MAX_SLOTS as usize;

/// Time between two reviews of the age of all packets that wait, in microseconds.
const REVIEW_US: u64 = 10_000;

/// The time by the clocks that are in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Of the data plane.
    pub ms: u64,
    /// [`cpu::now_us`].
    pub us: u64,
}

impl Now {
    fn since(self, us: u64) -> u64 {
        // Cores may disagree a little.
        self.us.saturating_sub(us)
    }
}

/// See the module's description. The packet whose turn it is is kept by the receive side, and not counted
/// here.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queue: FairQueue,
    /// The packets here wait for buffers.
    waits: bool,
    /// Tails' bytes that were copied and are not in a counter yet.
    moved: u64,
    /// A packet came, or was there at the last review, whose sender serves several; and one that such a
    /// sender lends.
    has_shared: bool,
    has_lent: bool,
    /// There was no room for a copy of what such a sender has lent for long enough.
    is_short: bool,
    /// For how long that held up such senders, less what is forgotten, and when it was added up last.
    held_us: u64,
    charged_us: u64,
    /// At most the longest of [`WAIT_US`].
    patience_us: u32,
    slow_until_us: u64,
    reviewed_us: u64,
}

impl Backlog {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Packets that wait.
    pub fn waiting(&self) -> u32 {
        self.queue.waiting()
    }

    /// Whether packets are here that wait for buffers, and not just for a core.
    pub fn waits(&self) -> bool {
        self.waits && !self.is_empty()
    }

    pub fn is_slow(&self, now: Now) -> bool {
        now.us < self.slow_until_us
    }

    /// Packets begin to wait, after the receiver took so many since they did so last.
    pub fn begins(&mut self, taken: u64) {
        let (least, most) = WAIT_US;
        self.patience_us = taken.saturating_mul(CREDIT_US).clamp(least, most) as u32;
    }

    /// A packet is waiting, or was delivered after it waited.
    pub fn record_wait(&mut self, since_us: u64, now: Now) {
        if now.since(since_us) <= self.patience_us.into() {
            return;
        }
        if !self.is_slow(now) {
            self.reviewed_us = 0;
        }
        self.slow_until_us = now.us + FORGOTTEN_US;
    }

    /// Whether a packet waits no longer. It has waited since `since_us`; the receiver has taken others after
    /// that, the last one before `last_us`.
    pub fn is_overdue(&self, packet: &Packet, since_us: u64, last_us: u64, now: Now) -> bool {
        let age_us = now.since(since_us);
        self.is_slow(now)
            && since_us < last_us
            && age_us > COPY_AGE_US
            && (age_us > MAX_AGE_US || is_shared(packet, now))
    }

    /// In how many microseconds the receiver should be checked, as it may hold up a sender that serves others
    /// as well. `is_copy`: the oldest packet was copied.
    pub fn watch_us(&self, oldest: &Packet, is_copy: bool, now: Now) -> Option<u64> {
        let is_oldest_shared = is_shared(oldest, now);
        let lends = is_oldest_shared && !is_copy || self.has_lent && self.queue.bytes() < COPIED_MOST;
        let wait_us = if lends { LENT_US } else { self.patience_us.into() };
        (lends || (is_oldest_shared || self.has_shared) && !self.is_slow(now))
            .then_some(wait_us + wait_us / 8)
    }

    /// Appends a packet. If there is no room, gives it, or others of senders that have more, to `refuse`.
    /// `now` if the packet waits for buffers, and not just for its turn.
    pub fn push(
        &mut self,
        packet: Shared<Packet>,
        now: Option<Now>,
        mut refuse: impl FnMut(Shared<Packet>, DropReason),
    ) {
        if self.is_empty() {
            self.waits = now.is_some();
        }
        let refuse_full = |packet| refuse(packet, DropReason::QueueFull);
        if !self.queue.make_room(packet.origin, CAPACITY, refuse_full) {
            return refuse(packet, DropReason::QueueFull);
        }
        let mut waiting = Waiting {
            packet,
            since_us: now.map(|now| now.us),
            bytes: 0,
        };
        match now {
            Some(now) if !self.keep_or_refuse(&mut waiting, now, 0, &mut refuse) => {
                refuse(waiting.packet, DropReason::ReceiverSlow);
            }
            _ => self.queue.push(waiting),
        }
    }

    /// Copies a packet that waits for buffers if its sender lends it no longer. False if there is no room for
    /// the copy of a packet for a slow receiver. `reserved`: bytes of copies that are not in the queue at
    /// present.
    fn keep_or_refuse(
        &mut self,
        waiting: &mut Waiting,
        now: Now,
        reserved: usize,
        refuse: &mut impl FnMut(Shared<Packet>, DropReason),
    ) -> bool {
        let (is_shared, is_slow) = (is_shared(&waiting.packet, now), self.is_slow(now));
        let is_copy = waiting.bytes > 0;
        let is_due = is_slow
            || waiting
                .since_us
                .is_some_and(|since_us| now.since(since_us) >= LENT_US);
        if is_copy || is_shared && is_due {
            let size = if is_copy {
                waiting.bytes
            } else {
                size_of::<Packet>() + waiting.packet.frame_len()
            };
            let has_room = if is_slow {
                let refuse = |packet| refuse(packet, DropReason::ReceiverSlow);
                self.queue
                    .make_room_for_bytes(waiting.packet.origin, size, COPIED_MOST, refuse)
            } else {
                is_copy || self.queue.bytes() + reserved + size <= COPIED_MOST
            };
            if has_room && !is_copy {
                self.copy_out(&mut waiting.packet);
                waiting.bytes = size;
            } else if !has_room && is_slow {
                return false;
            }
            self.is_short |= !has_room;
        }
        self.has_shared |= is_shared;
        self.has_lent |= is_shared && waiting.bytes == 0;
        true
    }

    /// Adds up for how long the receiver, which has taken nothing since `last_us`, holds up senders that
    /// serve several.
    fn charge(&mut self, last_us: u64, now: Now) {
        let (least, most) = WAIT_US;
        let held_us = now.since(self.charged_us.max(last_us + least));
        if held_us == 0 {
            return;
        }
        let forgotten_us = now.since(self.charged_us) / HELD_ONE_IN;
        self.held_us = self.held_us.saturating_sub(forgotten_us) + held_us;
        self.charged_us = now.us;
        if self.held_us > most {
            self.slow_until_us = now.us + FORGOTTEN_US;
        }
    }

    /// Puts a copy in the place of a packet.
    fn copy_out(&mut self, packet: &mut Shared<Packet>) {
        let (copy, moved) = Packet::copy_out(packet);
        *packet = copy;
        self.moved += moved as u64;
    }

    /// Copies the oldest packet, which has waited since `since_us`, if its sender lends it no longer. Returns
    /// whether it did.
    pub fn copy_oldest(&mut self, oldest: &mut Shared<Packet>, since_us: u64, now: Now) -> bool {
        let is_due = self.is_slow(now) || now.since(since_us) >= LENT_US;
        let copies = is_due && is_shared(oldest, now);
        if copies {
            self.copy_out(oldest);
        }
        copies
    }

    /// Takes the one whose turn it is: since when it has waited for buffers, and whether it is a copy.
    pub fn pop(&mut self) -> Option<(Shared<Packet>, Option<u64>, bool)> {
        let waiting = self.queue.pop()?;
        if self.queue.is_empty() {
            (self.has_shared, self.has_lent) = (false, false);
        }
        Some((waiting.packet, waiting.since_us, waiting.bytes > 0))
    }

    /// Counts tails' bytes that were copied elsewhere.
    pub fn add_moved(&mut self, bytes: usize) {
        self.moved += bytes as u64;
    }

    /// Takes the number of tails' bytes that were copied.
    pub fn take_moved(&mut self) -> u64 {
        std::mem::take(&mut self.moved)
    }

    /// Copies the packets that senders lend no longer, and takes out those that wait no longer, which it
    /// gives to `refuse`. Does so when packets begin to wait for buffers, when the receiver has just become
    /// slow, and now and then. `last_us` as in [`is_overdue`](Self::is_overdue).
    pub fn review(&mut self, last_us: u64, now: Now, mut refuse: impl FnMut(Shared<Packet>, DropReason)) {
        let period_us = if self.has_lent { LENT_US } else { REVIEW_US };
        if std::mem::replace(&mut self.waits, true) && now.since(self.reviewed_us) < period_us {
            return;
        }
        self.reviewed_us = now.us;
        if std::mem::take(&mut self.is_short) {
            self.charge(last_us, now);
        }
        (self.has_shared, self.has_lent) = (false, false);
        // In turn, so that room for copies is shared as well.
        let mut packets = self.queue.take_packets();
        while let Some(mut waiting) = packets.pop() {
            let since_us = *waiting.since_us.get_or_insert(now.us);
            let is_overdue = self.is_overdue(&waiting.packet, since_us, last_us, now);
            if !is_overdue && self.keep_or_refuse(&mut waiting, now, packets.bytes(), &mut refuse) {
                self.queue.push(waiting);
            } else {
                refuse(waiting.packet, DropReason::ReceiverSlow);
            }
        }
    }
}

/// Whether the packet's sender serves several receivers.
fn is_shared(packet: &Packet, now: Now) -> bool {
    packet.account.lender.serves_several(now.ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Source;
    use flow::PortId;

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

    /// How many of these packets find room.
    fn push(backlog: &mut Backlog, source: &mut Source, count: usize, now: Now) -> usize {
        let mut refused = Vec::new();
        for _ in 0..count {
            backlog.push(packet(source), Some(now), |packet, _| refused.push(packet.origin));
        }
        let own = packet(source).origin;
        assert!(refused.iter().all(|origin| *origin == own));
        count - refused.len()
    }

    fn review(backlog: &mut Backlog, now: Now) -> Vec<PortId> {
        let mut refused = Vec::new();
        backlog.review(now.us, now, |packet, _| refused.push(packet.origin));
        refused
    }

    /// Most packets of 60 bytes that are copied.
    const MOST_SMALL: usize = COPIED_MOST / (size_of::<Packet>() + 60);

    #[test]
    fn a_receiver_in_time_is_lent_everything_for_a_moment() {
        let mut backlog = new_backlog();
        let (mut source, mut alone) = (gateway(1), Source::new(3));
        assert_eq!(push(&mut backlog, &mut source, 256, START), 256);
        assert_eq!(push(&mut backlog, &mut alone, 100, START), 100);
        let oldest = packet(&mut source);
        assert_eq!(
            backlog.watch_us(&oldest, false, START),
            Some(LENT_US + LENT_US / 8)
        );
        assert!(review(&mut backlog, later(LENT_US - 1)).is_empty());
        assert_eq!(
            (source.free(), alone.free()),
            (Source::SLOTS - 257, Source::SLOTS - 100)
        );
        assert!(review(&mut backlog, later(2 * LENT_US)).is_empty());
        assert_eq!(
            (source.free(), alone.free()),
            (Source::SLOTS - 1, Source::SLOTS - 100)
        );
        let watch_us = backlog.watch_us(&oldest, true, later(2 * LENT_US));
        assert!(watch_us.is_some_and(|us| us > WAIT_US.0 && us < 2 * WAIT_US.0));
        // Nor is it lent more than there is room for, and in time it loses nothing.
        assert_eq!(push(&mut backlog, &mut source, 1000, later(2 * LENT_US)), 1000);
        assert!(review(&mut backlog, later(3 * LENT_US)).is_empty());
        assert_eq!(source.free(), Source::SLOTS - 1 - (1256 - MOST_SMALL));
        while backlog.pop().is_some() {}
        assert_eq!((backlog.queue.bytes(), source.free()), (0, Source::SLOTS - 1));
    }

    #[test]
    fn patience_is_earned() {
        let (least, most) = WAIT_US;
        for (taken, patience_us) in [(0, least), (1, least), (50, 5000), (256, most), (u64::MAX, most)] {
            let mut backlog = Backlog::default();
            backlog.begins(taken);
            backlog.record_wait(START.us, later(patience_us));
            assert!(!backlog.is_slow(later(patience_us)), "{taken}");
            backlog.record_wait(START.us, later(patience_us + 1));
            assert!(backlog.is_slow(later(patience_us + 1)), "{taken}");
        }
    }

    #[test]
    fn a_slow_receiver_is_lent_nothing() {
        let mut backlog = new_backlog();
        let (mut one, mut alone) = (gateway(1), Source::new(3));
        alone.account.lender.sends_to(PortId(9), START.ms);
        assert_eq!(push(&mut backlog, &mut one, 1000, START), 1000);
        assert_eq!(push(&mut backlog, &mut alone, 20, START), 20);
        let now = later(WAIT_US.0 + 1);
        backlog.record_wait(START.us, now);
        assert_eq!(review(&mut backlog, now), vec![PortId(1); 1000 - MOST_SMALL]);
        assert_eq!(one.free(), Source::SLOTS);
        assert_eq!(push(&mut backlog, &mut one, 10, now), 0);
        assert_eq!(push(&mut backlog, &mut alone, 4, now), 4);
        assert_eq!(alone.free(), Source::SLOTS - 24, "it has this receiver only");
        let (oldest, since_us, is_copy) = backlog.pop().unwrap();
        assert_eq!(
            (oldest.origin, since_us, is_copy),
            (PortId(1), Some(START.us), true)
        );
        assert_eq!(push(&mut backlog, &mut one, 10, now), 1, "there is room again");
        let mut oldest = packet(&mut one);
        assert!(backlog.copy_oldest(&mut oldest, now.us, now));
        assert!(!backlog.copy_oldest(&mut packet(&mut alone), START.us, now));
        assert_eq!(one.free(), Source::SLOTS);
        assert_eq!(backlog.watch_us(&oldest, true, now), None);
    }

    #[test]
    fn nothing_waits_for_long() {
        let mut backlog = new_backlog();
        let (mut one, mut alone) = (gateway(1), Source::new(3));
        for _ in 0..10 {
            assert_eq!(push(&mut backlog, &mut one, 1, START), 1);
            assert_eq!(push(&mut backlog, &mut alone, 1, START), 1);
        }
        let middle = later(COPY_AGE_US / 2);
        backlog.record_wait(START.us, middle);
        assert_eq!(push(&mut backlog, &mut one, 5, middle), 5);
        let now = later(COPY_AGE_US + 1);
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
        let mut left: Vec<_> = std::iter::from_fn(|| backlog.pop())
            .map(|(packet, ..)| packet.origin.0)
            .collect();
        left.sort();
        assert_eq!(left, [[1; 5].as_slice(), &[3; 10]].concat());
        assert_eq!(backlog.queue.bytes(), 0);
    }

    /// A sender that begins to serve others while its packets wait.
    #[test]
    fn a_sender_that_has_others_from_now_on_gets_its_slots_back() {
        let mut backlog = new_backlog();
        let mut source = Source::new(1);
        source.account.lender.sends_to(PortId(8), START.ms);
        assert_eq!(push(&mut backlog, &mut source, 20, START), 20);
        assert!(review(&mut backlog, later(LENT_US)).is_empty());
        assert_eq!(source.free(), Source::SLOTS - 20);
        source.account.lender.sends_to(PortId(9), START.ms);
        assert!(review(&mut backlog, later(LENT_US + REVIEW_US)).is_empty());
        assert_eq!(source.free(), Source::SLOTS);
    }

    /// A receiver that takes all that there is, and then nothing for `nap_us` while so many packets come,
    /// again and again: when it is found to be slow.
    fn nap(nap_us: u64, every_us: u64, times: u64, packets: usize) -> Option<u64> {
        let (mut backlog, mut source) = (Backlog::default(), gateway(1));
        (0..times).find(|time| {
            let start = later(time * every_us);
            backlog.begins(256);
            push(&mut backlog, &mut source, packets, start);
            for us in (0..nap_us).step_by(LENT_US as usize) {
                let now = later(time * every_us + us);
                backlog.record_wait(start.us, now);
                backlog.review(start.us, now, |packet, _| drop(packet));
            }
            while backlog.pop().is_some() {}
            backlog.is_slow(later(time * every_us + nap_us))
        })
    }

    #[test]
    fn naps_that_hold_up_others_have_a_rate() {
        for nap_us in [4000, 8000, 15_000] {
            let found = nap(nap_us, nap_us + 2000, 100, 1000);
            assert!(found.is_some_and(|time| time < 10), "{found:?} of {nap_us}");
        }
        assert_eq!(nap(15_000, 400_000, 100, 1000), None, "now and then");
        assert_eq!(nap(900, 2000, 1000, 1000), None, "short ones");
        assert_eq!(nap(15_000, 17_000, 100, MOST_SMALL), None, "nobody is held up");
    }

    #[test]
    fn being_slow_is_forgotten() {
        let mut backlog = new_backlog();
        let now = later(2 * WAIT_US.0);
        backlog.record_wait(START.us, now);
        assert!(backlog.is_slow(now));
        let then = later(2 * WAIT_US.0 + FORGOTTEN_US);
        assert!(!backlog.is_slow(then));
        backlog.record_wait(then.us, then);
        assert!(!backlog.is_slow(then), "this one did not wait");
    }
}
