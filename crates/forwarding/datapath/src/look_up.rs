//! Finds what is to be done with each packet of a burst.
//!
//! 1. Packets in sequence whose keys are equal in all bits that any flow of the port looks at are a train,
//!    and have one look at the microflow cache. All trains are found before the first look, so that their
//!    slots come from memory at one time.
//! 2. Packets that the cache does not know walk through the port's megaflows. The decision that is composed
//!    there goes into the cache. Where later look-ups compared more bits than the first ones, the cache says
//!    so, and these packets have a further look under all of these bits before they walk.
//! 3. Decisions that begin with a meter hold if the meter lets the packets pass: it is asked here, about the
//!    packets of the cache first.
//!
//! A packet that no flow matches keeps the verdict [`Verdict::Miss`]; one whose look-ups depend on more than
//! its key is to be walked by itself ([`Verdict::Walk`]).

use crate::burst::{Burst, Verdict};
use crate::kernel_path::{KernelPath, Offer, key_of};
use crate::meter::{KnownMeters, Meters};
use crate::police::{AtMeter, police};
use crate::port::Port;
use crate::sinks::FlowRun;
use classifier::{Hint, MicroflowCache, Shape, Train, Walked, Walker, Words, second};
use flow::{Context, ExactKey, FlowKey, FlowMask};
use kernel_path::Key;
use std::ops::Range;
use std::sync::Arc;
use vnic::BURST;

/// Decisions of a cache with more entries are mostly not in a processor's own cache.
const FAR_ENTRIES: usize = 32_768;

/// Packets in sequence that have one look at the cache.
#[derive(Clone, Copy, Default)]
struct Look {
    /// Of their key.
    hash: u64,
    /// Behind the last one's place in the burst.
    end: usize,
    train: Train,
}

/// A train that has a further look at the cache: its first packet, and the mask of the look.
type Again = (usize, Words, Train);

/// One thread's means of looking packets up, kept from burst to burst.
pub(crate) struct LookUp {
    microflows: MicroflowCache,
    /// Look-ups of the present burst.
    looks: Box<[Look; BURST]>,
    again: Vec<Again>,
    walker: Walker,
    /// Actions behind the look-up ask them as well.
    pub meters: KnownMeters,
    /// Takes offers of decisions.
    kernel_path: Option<Arc<KernelPath>>,
}

impl LookUp {
    pub fn new(meters: Arc<Meters>, kernel_path: Option<Arc<KernelPath>>) -> LookUp {
        LookUp {
            microflows: MicroflowCache::default(),
            looks: Box::default(),
            again: Vec::with_capacity(BURST),
            walker: Walker::default(),
            meters: KnownMeters::new(meters),
            kernel_path,
        }
    }

    /// Adds what the cache counted to the statistics of flows.
    pub fn flush_stats(&mut self, now_ms: u64) {
        self.microflows.flush_stats(now_ms);
    }

    /// Finds the verdict about each packet of a burst that came from the port.
    #[inline(never)]
    pub fn find_verdicts(&mut self, burst: &mut Burst, port: &Port, now_ms: u64) {
        // All may have been malformed.
        if burst.packets.is_empty() {
            return;
        }
        let look = self.find_train(0, 0, burst, port);
        let further = if look.end == burst.packets.len() {
            self.decide(look, 0, burst, port)
        } else {
            self.decide_all(look.end, burst, port)
        };
        if further {
            self.look_further(burst, port, now_ms);
        }
    }

    /// Finds the packets from `begin` on, one at least, that have one look: look number `number`, which is
    /// returned as well, since it takes long to load what was stored a moment ago.
    #[inline(always)]
    fn find_train(&mut self, number: usize, begin: usize, burst: &Burst, port: &Port) -> Look {
        let packets = &burst.packets[..];
        let keys = &burst.keys[..packets.len()];
        let (first, mut train, mut end) = (&keys[begin], Train::default(), begin);
        let mask = port.flows.mask_union(first);
        loop {
            train.add(packets[end].frame_len(), keys[end].tcp_flags());
            end += 1;
            // Most packets of a train have one key, which needs no mask to be seen.
            if end == packets.len() || first != &keys[end] && !first.is_equal_in(&keys[end], mask) {
                break;
            }
        }
        let hash = self.microflows.hash(first, mask);
        let look = Look { hash, end, train };
        self.looks[number] = look;
        look
    }

    /// Looks at the cache for a train, which begins at `begin`; whether its packets have to be dealt with
    /// further.
    #[inline(always)]
    fn decide(&mut self, look: Look, begin: usize, burst: &mut Burst, port: &Port) -> bool {
        let Look { hash, end, train } = look;
        let first = &burst.keys[begin];
        let mask = port.flows.mask_union(first);
        let mut further = false;
        let verdict = match self.microflows.hit(hash, first, mask, &train) {
            None => {
                further = true;
                Verdict::Miss
            }
            Some(decision) => match &decision.shape {
                Shape::Plain(port) => Verdict::Output(*port),
                shape => {
                    let verdict = Verdict::of(decision, &mut burst.decisions);
                    if let Shape::Metered(metered) = shape {
                        let (meter, apart) = (metered.meter, decision.counts_apart());
                        let place = apart.then(|| self.microflows.place(hash, first, mask));
                        let at_meter = AtMeter::cached(meter, begin, train, place.flatten());
                        burst.at_meter.push(at_meter);
                        further = true;
                    }
                    verdict
                }
            },
        };
        burst.verdicts[begin..end].fill(verdict);
        further
    }

    /// Does that for all trains. The first one, which has been found, ends at `end`.
    #[inline(never)]
    fn decide_all(&mut self, end: usize, burst: &mut Burst, port: &Port) -> bool {
        let count = self.find_trains(end, burst, port);
        if self.microflows.capacity() > FAR_ENTRIES {
            for look in &self.looks[..count] {
                self.microflows.prefetch_decision(look.hash);
            }
        }
        let (mut begin, mut further) = (0, false);
        for number in 0..count {
            let look = self.looks[number];
            further |= self.decide(look, begin, burst, port);
            begin = look.end;
        }
        further
    }

    /// Finds the other trains, and prefetches what the cache has about all, so that it comes from memory at
    /// one time. Returns their number.
    #[inline(never)]
    fn find_trains(&mut self, mut end: usize, burst: &Burst, port: &Port) -> usize {
        let mut count = 1;
        self.microflows.prefetch(self.looks[0].hash);
        while end < burst.packets.len() {
            end = self.find_train(count, end, burst, port).end;
            self.microflows.prefetch(self.looks[count].hash);
            count += 1;
        }
        count
    }

    /// Deals with packets that the cache has no verdict about, or that a meter has to let pass.
    #[inline(never)]
    fn look_further(&mut self, burst: &mut Burst, port: &Port, now_ms: u64) {
        if self.look_at_second_sets(burst, port) {
            self.look_again(burst, port);
        }
        self.ask_meters(burst, port, now_ms);
        let count = burst.packets.len();
        if burst.verdicts[..count].contains(&Verdict::Miss) {
            self.look_up_missing(burst, port, now_ms);
        }
    }

    /// Looks at the other places where the cache may have what it did not find. False if nothing is missing.
    #[inline(never)]
    fn look_at_second_sets(&mut self, burst: &mut Burst, port: &Port) -> bool {
        let mut missing = [(0, 0); BURST];
        let (mut begin, mut number, mut count) = (0, 0, 0);
        while begin < burst.packets.len() {
            let look = &mut self.looks[number];
            if burst.verdicts[begin] == Verdict::Miss {
                look.hash = second(look.hash);
                self.microflows.prefetch(look.hash);
                missing[count] = (number, begin);
                count += 1;
            }
            (begin, number) = (look.end, number + 1);
        }
        let mut is_missing = false;
        for &(number, begin) in &missing[..count] {
            self.decide(self.looks[number], begin, burst, port);
            is_missing |= burst.verdicts[begin] == Verdict::Miss;
        }
        is_missing
    }

    /// Looks at the cache again for packets of which it said that more bits are to be compared: their trains
    /// are shorter.
    #[inline(never)]
    fn look_again(&mut self, burst: &mut Burst, port: &Port) {
        let mut again = std::mem::take(&mut self.again);
        let promoted = port.flows.is_promoted();
        let (mut begin, mut number) = (0, 0);
        while begin < burst.packets.len() {
            let Look { hash, end, .. } = self.looks[number];
            let key = &burst.keys[begin];
            if burst.verdicts[begin] == Verdict::Miss
                && let Some(mask) = self
                    .microflows
                    .further(hash, key, port.flows.mask_union(key), promoted)
            {
                self.split(begin..end, &mask, burst, &mut again);
            }
            (begin, number) = (end, number + 1);
        }
        let further = again.iter().map(|(_, _, train)| train.packets).sum();
        let promotes = port
            .flows
            .count_further(further, || port.vnic.counters().received);
        if promotes {
            port.flows.promote();
        }
        for &(first, mask, train) in &again {
            let Some((place, decision)) = self.microflows.hit_behind(&burst.keys[first], mask, &train) else {
                continue;
            };
            if promotes {
                port.flows.promote_of(decision);
            }
            if let Shape::Metered(metered) = &decision.shape {
                let place = decision.counts_apart().then_some(place);
                let at_meter = AtMeter::cached(metered.meter, first, train, place);
                burst.at_meter.push(at_meter);
            }
            let verdict = Verdict::of(decision, &mut burst.decisions);
            burst.verdicts[first..first + train.packets as usize].fill(verdict);
        }
        again.clear();
        self.again = again;
    }

    /// Divides packets into trains of equal keys under a mask, and prefetches what the cache has about them.
    fn split(&self, packets: Range<usize>, mask: &Words, burst: &Burst, trains: &mut Vec<Again>) {
        let under = |word: usize| mask[word];
        let mut last = packets.start;
        for at in packets {
            let key = &burst.keys[at];
            if at == last || !burst.keys[last].is_equal_in(key, under) {
                self.microflows.prefetch(self.microflows.hash(key, under));
                trains.push((at, *mask, Train::default()));
                last = at;
            }
            if let Some((_, _, train)) = trains.last_mut() {
                train.add(burst.packets[at].frame_len(), key.tcp_flags());
            }
        }
    }

    /// Walks through the megaflow table for packets without a cache entry, and stores the decisions in the
    /// cache.
    #[inline(never)]
    fn look_up_missing(&mut self, burst: &mut Burst, port: &Port, now_ms: u64) {
        let flows = port.flows.read();
        let mut run = FlowRun::default();
        // All flows come from memory at one time.
        let mut hints = [Hint::default(); BURST];
        for (at, packet) in burst.packets.iter().enumerate() {
            if burst.verdicts[at] == Verdict::Miss {
                let Some(flow_key) = burst.keys[at].flow_key().or_else(|| packet.key()) else {
                    burst.verdicts[at] = Verdict::Walk;
                    continue;
                };
                burst.flow_keys[at] = flow_key;
                hints[at] = flows.hint(&burst.flow_keys[at], &Context::NONE);
            }
        }
        hints[..burst.packets.len()]
            .iter()
            .for_each(|hint| hint.prefetch());
        if flows.has_walks() {
            hints[..burst.packets.len()]
                .iter()
                .for_each(|hint| hint.prefetch_for_walk());
        }
        for (at, packet) in burst.packets.iter().enumerate() {
            let (key, flow_key) = (&burst.keys[at], &burst.flow_keys[at]);
            if burst.verdicts[at] != Verdict::Miss {
                continue;
            }
            // A flow that looks at such a field came since the packet was parsed. The controller decides by
            // the whole frame.
            if !key.unseen().is_nothing() && port.flows.may_look_at(key.unseen()) {
                if flows.has_rules() {
                    // Rule lists decide by the whole frame, and no controller for them.
                    burst.verdicts[at] = Verdict::Walk;
                }
                continue;
            }
            let walked = flows.walk(hints[at], flow_key, &Context::NONE, &mut self.walker);
            let Some(decision) = walked.decision() else {
                if let Walked::Each(_) = walked {
                    burst.verdicts[at] = Verdict::Walk;
                }
                continue;
            };
            burst.verdicts[at] = Verdict::of(decision, &mut burst.decisions);
            if let Shape::Metered(metered) = &decision.shape {
                let mut train = Train::default();
                train.add(packet.frame_len(), key.tcp_flags());
                burst
                    .at_meter
                    .push(AtMeter::walked(metered.meter, at, train, decision));
            }
            if !key.is_none() {
                let mask = port.flows.mask_union(key);
                self.microflows.remember(key, mask, decision, now_ms);
            }
            if port.is_veth() {
                self.offer(&walked, key, flow_key, port);
            }
            if !decision.counts_apart() {
                run.count(walked, packet.frame_len(), key.tcp_flags(), now_ms);
            }
        }
        run.flush(now_ms);
        drop(flows);
        self.ask_meters(burst, port, now_ms);
    }

    /// Offers a decision to the kernel, if that could carry it out.
    #[cold]
    fn offer(&self, walked: &Walked<'_>, key: &ExactKey, flow_key: &FlowKey, port: &Port) {
        let (Some(path), Walked::Own(decision)) = (&self.kernel_path, walked) else {
            return;
        };
        let Shape::Plain(to) = decision.shape else { return };
        if key.is_none() || flow_key.vlan_tci() != 0 || !compares_addresses_alone(key, port) {
            return;
        }
        let key = Key {
            from: port.id().0,
            ..key_of(flow_key)
        };
        let decision = Arc::clone(decision);
        if path.offer(Offer { key, to, decision }) {
            port.notices.again();
        }
    }

    /// Asks the meters with which decisions begin.
    #[inline]
    fn ask_meters(&mut self, burst: &mut Burst, port: &Port, now_ms: u64) {
        if !burst.at_meter.is_empty() {
            let controller = port.id().controller();
            police(burst, controller, &mut self.meters, &mut self.microflows, now_ms);
        }
    }
}

/// Whether look-ups of the port compare nothing of such keys but Ethernet addresses and tags.
fn compares_addresses_alone(key: &ExactKey, port: &Port) -> bool {
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_src(u64::MAX);
    mask.0.set_eth_dst(u64::MAX);
    mask.0.set_vlan_tci(u16::MAX);
    mask.0.set_vlan_tpid(u16::MAX);
    mask.0.set_inner_tci(u16::MAX);
    mask.0.set_inner_tpid(u16::MAX);
    let compared = port.flows.mask_union(key);
    let allowed = if key.is_short() {
        ExactKey::short_mask(&mask)
    } else {
        ExactKey::long_mask(&mask)
    };
    let words = if key.is_short() {
        ExactKey::SHORT_WORDS
    } else {
        ExactKey::WORDS
    };
    (0..words).all(|word| compared(word) & !allowed[word] == 0)
}
