//! The stage that finds what is to be done with each packet of a burst.
//!
//! 1. Packets in sequence whose keys are equal in all bits that any flow of the port looks at are a train, and have one
//!    look at the microflow cache. All trains are found before the first look, so that their slots come from memory at one time.
//! 2. Packets that the cache does not know walk through the port's megaflows. The decision that is composed there goes
//!    into the cache.
//! 3. Decisions that begin with a meter hold if the meter lets the packets pass: it is asked here, about the packets of the
//!    cache first.
//!
//! A packet that no flow matches keeps the verdict [`Verdict::Miss`]; one whose look-ups depend on more than its key is to be
//! walked by itself ([`Verdict::Walk`]).

use crate::burst::{Burst, Verdict};
use crate::meter::{KnownMeters, Meters};
use crate::police::{AtMeter, police};
use crate::port::Port;
use crate::sinks::FlowRun;
use classifier::{Hint, MicroflowCache, Shape, Train, Walked, Walker};
use flow::Context;
use std::sync::Arc;
use vnic::BURST;

/// Decisions of a cache with more entries are mostly not in a processor's own cache.
const FAR_ENTRIES: usize = 32_768;

/// Packets in sequence that have one look at the cache.
#[derive(Clone, Copy, Default)]
struct Run {
    /// Of their key.
    hash: u64,
    /// Behind the last one's place in the burst.
    end: usize,
    train: Train,
}

/// One thread's means of looking packets up, kept from burst to burst.
pub(crate) struct LookUp {
    microflows: MicroflowCache,
    /// Those of the present burst.
    trains: Box<[Run; BURST]>,
    walker: Walker,
    /// Actions behind the look-up ask them as well.
    pub meters: KnownMeters,
}

impl LookUp {
    pub fn new(meters: Arc<Meters>) -> LookUp {
        LookUp {
            microflows: MicroflowCache::default(),
            trains: Box::default(),
            walker: Walker::default(),
            meters: KnownMeters::new(meters),
        }
    }

    /// Adds what the cache counted to the statistics of flows.
    pub fn flush_stats(&mut self, now_ms: u64) {
        self.microflows.flush_stats(now_ms);
    }

    /// Finds the verdict about each packet of a burst that came from the port.
    #[inline(never)]
    pub fn find_verdicts(&mut self, burst: &mut Burst, port: &Port, now_ms: u64) {
        let count = self.find_trains(burst, port);
        if count > 1 && self.microflows.capacity() > FAR_ENTRIES {
            for run in &self.trains[..count] {
                self.microflows.prefetch_decision(run.hash);
            }
        }
        let (mut begin, mut further) = (0, false);
        for at in 0..count {
            let Run { hash, end, train } = self.trains[at];
            let (first, verdicts) = (&burst.keys[begin], &mut burst.verdicts[begin..end]);
            let mask = port.flows.mask_union(first);
            let cached = self.microflows.hit(hash, first, mask, &train);
            further |= cached.is_none();
            let verdict = match cached {
                None => Verdict::Miss,
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
            verdicts.fill(verdict);
            begin = end;
        }
        if further {
            self.look_further(burst, port, now_ms);
        }
    }

    /// Finds the trains of a burst, and prefetches what the cache has about them, so that all of it comes at one time. Returns
    /// their number.
    #[inline(never)]
    fn find_trains(&mut self, burst: &Burst, port: &Port) -> usize {
        let count = burst.packets.len();
        let (packets, keys) = (&burst.packets[..count], &burst.keys[..count]);
        let (mut at, mut trains) = (0, 0);
        while at < count {
            let (first, mut train) = (&keys[at], Train::default());
            let mask = port.flows.mask_union(first);
            loop {
                train.add(packets[at].frame_len(), keys[at].tcp_flags());
                at += 1;
                // Most packets of a train have one key, which needs no mask to be seen.
                if at == count || first != &keys[at] && !first.is_equal_in(&keys[at], mask) {
                    break;
                }
            }
            let hash = self.microflows.hash(first, mask);
            self.microflows.prefetch(hash);
            self.trains[trains] = Run { hash, end: at, train };
            trains += 1;
        }
        trains
    }

    /// Deals with packets that the cache has no verdict about, or that a meter has to let pass.
    #[inline(never)]
    fn look_further(&mut self, burst: &mut Burst, port: &Port, now_ms: u64) {
        self.ask_meters(burst, port, now_ms);
        let count = burst.packets.len();
        if burst.verdicts[..count].contains(&Verdict::Miss) {
            self.look_up_missing(burst, port, now_ms);
        }
    }

    /// Walks through the megaflow table for packets without a cache entry, and stores the decisions in the cache.
    #[inline(never)]
    fn look_up_missing(&mut self, burst: &mut Burst, port: &Port, now_ms: u64) {
        let flows = port.flows.read();
        let mut run = FlowRun::default();
        // All flows come from memory at one time.
        let mut hints = [Hint::default(); BURST];
        for (at, packet) in burst.packets.iter().enumerate() {
            if burst.verdicts[at] == Verdict::Miss {
                let flow_key = &mut burst.flow_keys[at];
                *flow_key = burst.keys[at].flow_key().unwrap_or_else(|| packet.key());
                hints[at] = flows.hint(flow_key, &Context::NONE);
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
                let hash = self.microflows.hash(key, mask);
                self.microflows.insert(hash, key, mask, decision, now_ms);
            }
            if !decision.counts_apart() {
                run.count(walked, packet.frame_len(), key.tcp_flags(), now_ms);
            }
        }
        run.flush(now_ms);
        drop(flows);
        self.ask_meters(burst, port, now_ms);
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
