//! What packets cost a thread that no program forwards: the measure for what is usual of a program.
//!
//! From the end of a P4 switch's turn until the next one begins, a thread serves other rings. The processor
//! time of that, divided by the packets, is what each costs here: on this core, with these receivers,
//! wake-ups and all. Time without the core is not in it. Few packets at a time make each dear, so the least
//! is kept, and forgotten slowly.

/// What a packet costs that no program forwards: before it was measured, and least and most, in nanoseconds.
const FIRST_NS: u64 = 100;
const LEAST_NS: u64 = 25;
const MOST_NS: u64 = 300;

/// Time between measurements, of which each takes two system calls, in nanoseconds.
const PAUSE_NS: u64 = 500_000;

/// Packets of a measurement at least.
const FEW: u64 = 16;

/// The least is forgotten by a part in each measurement that is one divided by this.
const FORGOTTEN: u64 = 64;

/// See the module's description.
pub(super) struct Usual {
    /// In 1/64 of a nanosecond.
    each: u64,
    /// The thread's processor time and packets at the end of a P4 switch's turn.
    since: Option<(u64, u64)>,
    /// When the next measurement may begin.
    next_ns: u64,
}

/// What a thread has had so far.
pub(super) struct Had<P> {
    /// Packets that it has forwarded.
    pub packets: u64,
    /// Returns its processor time in nanoseconds.
    pub processor_ns: P,
}

impl Default for Usual {
    fn default() -> Usual {
        Usual {
            each: FIRST_NS * FORGOTTEN,
            since: None,
            next_ns: 0,
        }
    }
}

impl Usual {
    /// What each packet costs, in nanoseconds.
    pub fn each_ns(&self) -> u64 {
        self.each / FORGOTTEN
    }

    /// A turn of a P4 switch begins, or might have.
    pub fn begin_turn(&mut self, had: Had<impl FnOnce() -> u64>) {
        let Some((processor_ns, packets)) = self.since.take() else {
            return;
        };
        let packets = had.packets.wrapping_sub(packets);
        if packets < FEW {
            return;
        }
        let took_ns = (had.processor_ns)().saturating_sub(processor_ns);
        let found = took_ns.saturating_mul(FORGOTTEN) / packets;
        let most = self.each + (self.each / FORGOTTEN).max(1);
        self.each = found.min(most).clamp(LEAST_NS * FORGOTTEN, MOST_NS * FORGOTTEN);
    }

    /// A turn of a P4 switch ends.
    pub fn end_turn(&mut self, now_ns: u64, had: Had<impl FnOnce() -> u64>) {
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + PAUSE_NS;
            self.since = Some(((had.processor_ns)(), had.packets));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures so many packets of others, each of which takes so long.
    fn measure(usual: &mut Usual, now_ns: &mut u64, (packets, each_ns): (u64, u64)) {
        *now_ns += PAUSE_NS;
        let had = |packets, processor_ns| Had {
            packets,
            processor_ns: move || processor_ns,
        };
        usual.end_turn(*now_ns, had(7, 1_000));
        usual.begin_turn(had(7 + packets, 1_000 + packets * each_ns));
    }

    #[test]
    fn the_least_is_kept_and_forgotten_slowly() {
        let (mut usual, mut now_ns) = (Usual::default(), 0);
        measure(&mut usual, &mut now_ns, (32, 50));
        assert_eq!(usual.each_ns(), 50, "at once");
        measure(&mut usual, &mut now_ns, (15, 30));
        assert_eq!(usual.each_ns(), 50, "of few packets");
        let rounds = (0..1000).take_while(|_| {
            measure(&mut usual, &mut now_ns, (32, 200));
            usual.each_ns() < 100
        });
        assert!((40..50).contains(&rounds.count()), "doubles in 45 measurements");
        for (each_ns, bound_ns) in [(0, LEAST_NS), (1_000_000, MOST_NS)] {
            for _ in 0..1000 {
                measure(&mut usual, &mut now_ns, (1 << 40, each_ns));
            }
            assert_eq!(usual.each_ns(), bound_ns);
        }
    }

    #[test]
    fn system_calls_are_rare() {
        let (mut usual, mut calls) = (Usual::default(), 0);
        for turn in 0..1000 {
            let had = |calls: &mut u32, packets| {
                *calls += 1;
                packets
            };
            usual.begin_turn(Had {
                packets: 100 * turn,
                processor_ns: || had(&mut calls, 50_000),
            });
            usual.end_turn(
                turn * 5_000,
                Had {
                    packets: 100 * turn + 32,
                    processor_ns: || had(&mut calls, 0),
                },
            );
        }
        assert!((18..=20).contains(&calls), "{calls}");
    }
}
