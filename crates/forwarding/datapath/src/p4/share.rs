//! What P4 switches may take of a forwarding thread's time while others wait for it.
//!
//! A tenant decides what its program costs, and how many ports are bound to it. Turns that are equal per ring
//! would give it as many turns as it has ports. So a thread charges all time for packets of bound ports, the
//! program's and that of delivery, to their P4 switch. While that has had more than its share, a ring of it
//! that is given a turn passes it on: packets stay in their ring, none is lost, and the guest waits.
//!
//! The thread's time is that in which it works: a thread that loses its core for some milliseconds has not
//! had them, and gives nobody a part of them.
//!
//! A program that is allowed more than the usual operations may take longer than others can wait in one turn.
//! Packets of others that come during such a turn wait for its end. So the longer its turns may be, the
//! smaller is its share, which holds while nobody else has packets as well: few packets of others meet such a
//! turn.
//!
//! Programs that packets reach over links are charged for their own runs. Packets that would make one of them
//! go beyond its share wait in the ring that they come from, as long as the ring's last packets met it: those
//! of other rings, which do not, go on.
//!
//! What stages take is charged to the port whose packets pass them, also if all ports of a switch have the
//! same stage: so a port is as slow as its own packets are costly.
//!
//! Guests that share the thread's core wait for it as well, and have no packets in their rings while they do.
//! So while a task that is not ours wants the core, a P4 switch has its share also if no ring waits, but only
//! what its packets take beyond usual ones counts then. What is usual follows from what packets without a
//! program cost on this thread ([`Usual`]), so nobody gains by programs that stay below a fixed figure, and
//! programs that are sound have what they need. All P4 switches together have one share for what is not.
//!
//! Others that have had packets a moment ago count like such a task: a guest that sends when its last packets
//! have arrived has none in its ring whenever a turn is to be given, and would wait for each of its own.
//!
//! A thread that shares its core loses it in the middle of turns. What others do with the core meanwhile is
//! not the program's: nothing beyond usual is charged for a turn that lost its core ([`LostTime`]).
//!
//! Nobody waits for nothing: a turn is passed on only while rings of others are served. If as many turns in
//! sequence were passed on as rings wait, nobody else has packets.

use super::P4Key;
use super::lost_time::LostTime;
use super::usual::{Had, Usual};
use flow::PortId;
use std::collections::BTreeMap;
use vnic::Fetched;

/// A P4 switch may take a part of a thread's time that is one divided by this.
const PART: u64 = 16;

/// By how much smaller the share of a P4 switch is whose turns are longer than usual, for each usual length.
const LONG: u64 = 4;

/// How much of the thread's time passes until a P4 switch may take again what it may have at once, in
/// nanoseconds.
const CREDIT_NS: u64 = 1_000_000;

/// What a packet of a usual program takes at most, delivery and copying included, times one without a
/// program; and how many bytes of it are copied in a nanosecond while nobody else uses caches and memory.
const USUAL_TIMES: u64 = 3;
const USUAL_BYTES_PER_NS: u64 = 4;

/// What a turn of the usual length is taken for at most, in nanoseconds: a turn that took longer has lost its
/// core meanwhile.
const LONGEST_NS: u64 = 500_000;

/// Longest time that a P4 switch whose turns have the usual length waits, in nanoseconds, whatever it took.
const MOST_NS: u64 = 20_000_000;

/// Most time between two turns of P4 switches that the thread has had, in nanoseconds.
const GAP_NS: u64 = 1_000_000;

/// Others whose last packets came no longer ago than that have packets again soon, in nanoseconds.
const RECENT_NS: u64 = 200_000;

/// P4 switches that a thread remembers. Beyond that it forgets all.
const MOST_SWITCHES: usize = 1024;

/// Ports of which a thread remembers what their packets met. Beyond that it forgets all.
const MOST_PORTS: usize = 1024;

/// Whose share of a thread's time packets take: that of a P4 switch, or that of the port whose packets pass
/// stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Payer {
    Switch(P4Key),
    Port(PortId),
}

impl From<P4Key> for Payer {
    fn from(key: P4Key) -> Payer {
        Payer::Switch(key)
    }
}

/// What becomes of a turn at a ring whose packets are not looked up.
pub(crate) enum Diverted {
    Fetched(Fetched),
    /// There is no free lane, or the P4 switch has had more than its share of time: the ring is served later.
    PassedOn,
    /// Turns of the P4 switch are long and rare, and a timer is set for the next one.
    Waits,
}

/// When packets have a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    /// When others have had theirs.
    Later,
    /// After so many nanoseconds.
    After(u64),
}

/// What a thread does besides, when packets of a P4 switch might have a turn.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Rings that wait for a turn.
    pub waiting: usize,
    /// Packets that the thread has forwarded.
    pub packets: u64,
    /// Whether a task that is not ours waits for the thread's core, or others have had packets of late.
    pub is_wanted: bool,
}

/// Whose packets a thread had last: of a P4 switch, or of ports without one.
type Latest = (Option<P4Key>, u64);

/// Packets of a turn.
#[derive(Clone, Copy, Default)]
pub(crate) struct Turn {
    pub packets: u64,
    /// Of all of them together.
    pub bytes: u64,
}

impl Turn {
    /// What a turn of so many packets may take without being held against a P4 switch, in nanoseconds, if
    /// packets without a program cost so much each.
    fn usual_ns(self, each_ns: u64) -> u64 {
        let copying_ns = self.bytes / USUAL_BYTES_PER_NS;
        USUAL_TIMES.saturating_mul(self.packets.saturating_mul(each_ns).saturating_add(copying_ns))
    }
}

/// Up to which time of a thread the share of a P4 switch is used up, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct UsedUp {
    /// By all that it took.
    all: u64,
    /// By what it took beyond usual programs.
    beyond: u64,
}

/// A thread's accounts of P4 switches.
#[derive(Default)]
pub(crate) struct Shares {
    used_up_ns: BTreeMap<Payer, UsedUp>,
    usual: Usual,
    lost: LostTime,
    /// Time that the thread has had.
    had_ns: u64,
    /// When `had_ns` was brought up to date.
    at_ns: u64,
    /// Whose packets the thread had last, and whose others before, with the times.
    latest: [Option<Latest>; 2],
    /// Packets that the thread had forwarded when a turn of a P4 switch ended last.
    packets_then: u64,
    passed_on: usize,
    /// Packets that the thread had forwarded when a turn was passed on last.
    packets: u64,
    /// P4 switches that the last packets of ports met over links.
    met: BTreeMap<PortId, Vec<P4Key>>,
}

impl Shares {
    /// Charges the time of a turn, which may take `length` times as long as usual.
    pub fn charge(
        &mut self,
        (payer, length): (impl Into<Payer>, u64),
        turn: Turn,
        took_ns: u64,
        now_ns: u64,
    ) {
        let rarity = if length > 1 { LONG * length } else { 1 };
        self.pass_time(now_ns);
        if self.used_up_ns.len() >= MOST_SWITCHES {
            self.used_up_ns.clear();
        }
        let payer = payer.into();
        let usual_ns = turn.usual_ns(self.usual.each_ns());
        let took_ns = if took_ns > usual_ns {
            let most_ns = if length > 1 { took_ns } else { usual_ns };
            self.lost.charged(took_ns, most_ns)
        } else {
            took_ns
        };
        let took_ns = took_ns.min(LONGEST_NS.saturating_mul(length));
        let beyond_ns = took_ns.saturating_sub(usual_ns);
        let crowd = if beyond_ns > 0 { self.crowd(payer) } else { 1 };
        let used_up = self.used_up_ns.entry(payer).or_default();
        let (earliest, latest) = (
            self.had_ns.saturating_sub(CREDIT_NS),
            self.had_ns + MOST_NS * rarity,
        );
        let later = |at: u64, took_ns: u64| {
            let took_ns = took_ns.saturating_mul(PART * rarity);
            at.max(earliest).saturating_add(took_ns).min(latest)
        };
        used_up.all = later(used_up.all, took_ns);
        used_up.beyond = later(used_up.beyond, beyond_ns.saturating_mul(crowd));
    }

    /// Payers that have used up what they may take beyond usual packets, and one more.
    fn crowd(&self, payer: Payer) -> u64 {
        let is_another = |(other, at): &(&Payer, &UsedUp)| **other != payer && at.beyond > self.had_ns;
        1 + self.used_up_ns.iter().filter(is_another).count() as u64
    }

    /// A turn begins whose time will be charged, or might have.
    pub fn begin_charge(&mut self) {
        self.lost.begin();
    }

    /// A turn of a P4 switch begins, or might have. `packets` are those that the thread has forwarded.
    pub fn begin_turn(&mut self, now_ns: u64, packets: u64) {
        if packets != self.packets_then {
            self.packets_then = packets;
            self.record_latest(None, now_ns);
        }
        let processor_ns = cpu::processor_ns;
        self.usual.begin_turn(Had {
            packets,
            processor_ns,
        });
    }

    /// A turn of a P4 switch ends.
    pub fn end_turn(&mut self, switch: P4Key, now_ns: u64, packets: u64) {
        self.packets_then = packets;
        self.record_latest(Some(switch), now_ns);
        let processor_ns = cpu::processor_ns;
        self.usual.end_turn(
            now_ns,
            Had {
                packets,
                processor_ns,
            },
        );
    }

    fn record_latest(&mut self, of: Option<P4Key>, now_ns: u64) {
        if self.latest[0].is_some_and(|(before, _)| before != of) {
            self.latest[1] = self.latest[0];
        }
        self.latest[0] = Some((of, now_ns));
    }

    /// Whether others than a P4 switch have had packets of late.
    fn has_recent_others(&self, switch: P4Key, now_ns: u64) -> bool {
        let mut latest = self.latest.iter().flatten();
        let other = latest.find(|(of, _)| *of != Some(switch));
        other.is_some_and(|(_, at_ns)| now_ns.saturating_sub(*at_ns) < RECENT_NS)
    }

    /// When packets of a port that is bound to a P4 switch have a turn, which may take `length` times as long
    /// as usual.
    pub fn due(&mut self, port: PortId, (switch, length): (P4Key, u64), now_ns: u64, load: Load) -> Due {
        let load = Load {
            is_wanted: load.is_wanted || self.has_recent_others(switch, now_ns),
            ..load
        };
        let met = self.met.remove(&port);
        let others = met.iter().flatten().copied();
        let mut all = std::iter::once(switch).chain(others);
        let due = all.find_map(|key| match self.due_of((key, length), now_ns, load) {
            Due::Now => None,
            due => Some(due),
        });
        met.and_then(|met| self.met.insert(port, met));
        due.unwrap_or(Due::Now)
    }

    /// As [`due`](Self::due), of one payer alone.
    pub fn due_of(&mut self, (payer, length): (impl Into<Payer>, u64), now_ns: u64, load: Load) -> Due {
        let payer = payer.into();
        if let Some(wait_ns) = self.wait_ns((payer, length), now_ns, load.is_wanted) {
            return Due::After(wait_ns);
        }
        if self.pass_on(payer, now_ns, load) {
            Due::Later
        } else {
            Due::Now
        }
    }

    /// Forgets what packets of a port met.
    pub fn forget_met(&mut self, port: PortId) {
        if let Some(met) = self.met.get_mut(&port) {
            met.clear();
        }
    }

    /// Records that packets of a port met a P4 switch over a link.
    pub fn record_met(&mut self, port: PortId, switch: P4Key) {
        if self.met.len() >= MOST_PORTS && !self.met.contains_key(&port) {
            self.met.clear();
        }
        let met = self.met.entry(port).or_default();
        if !met.contains(&switch) {
            met.push(switch);
        }
    }

    /// How long packets wait whose turns may take `length` times as long as usual: if that is more than
    /// once, since others may have packets during its turn that they do not have yet; if the core is wanted,
    /// for what its packets took beyond usual ones. `None`: it need not wait for that.
    fn wait_ns(
        &mut self,
        (payer, length): (impl Into<Payer>, u64),
        now_ns: u64,
        is_wanted: bool,
    ) -> Option<u64> {
        if length == 1 && !is_wanted {
            return None;
        }
        self.pass_time(now_ns);
        let used_up_ns = self.used_up_ns.get(&payer.into())?;
        let used_up_ns = if length > 1 {
            used_up_ns.all
        } else {
            used_up_ns.beyond
        };
        let left_ns = used_up_ns.saturating_sub(self.had_ns);
        // The thread has no more time than that while it sleeps.
        (left_ns > 0).then_some(left_ns.min(GAP_NS))
    }

    fn pass_time(&mut self, now_ns: u64) {
        self.had_ns += now_ns.saturating_sub(self.at_ns).min(GAP_NS);
        self.at_ns = now_ns;
    }

    /// Passes a turn on if the share is used up and others have packets.
    fn pass_on(&mut self, payer: impl Into<Payer>, now_ns: u64, load: Load) -> bool {
        let Load { waiting, packets, .. } = load;
        self.pass_time(now_ns);
        let used_up_ns = self.used_up_ns.get(&payer.into());
        let is_used_up = used_up_ns.is_some_and(|at| at.all > self.had_ns);
        if !is_used_up || waiting == 0 {
            return false;
        }
        if self.packets != packets {
            (self.passed_on, self.packets) = (0, packets);
        }
        if self.passed_on > waiting {
            self.passed_on = 0;
            return false;
        }
        self.passed_on += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{ControllerId, P4Id};

    const OWN: P4Key = (ControllerId::BUILT_IN, P4Id(1));
    const TURN: Turn = Turn { packets: 0, bytes: 0 };

    /// Nobody wants the core.
    fn load(waiting: usize, packets: u64) -> Load {
        Load {
            waiting,
            packets,
            is_wanted: false,
        }
    }

    /// Charges turns until a P4 switch waits as long as one may.
    fn charge_most(shares: &mut Shares, switch: P4Key, now_ns: u64) {
        for _ in 0..=MOST_NS / LONGEST_NS / PART {
            shares.charge((switch, 1), TURN, u64::MAX, now_ns);
        }
    }

    #[test]
    fn a_switch_has_its_part_of_the_time_while_others_forward() {
        let mut shares = Shares::default();
        let (mut now_ns, mut busy_ns) = (1_000_000_000, 0);
        for packets in 0..10_000 {
            now_ns += 80_000;
            if !shares.pass_on(OWN, now_ns, load(1, packets)) {
                shares.charge((OWN, 1), TURN, 80_000, now_ns);
                busy_ns += 80_000;
            }
        }
        let part = f64::from(busy_ns) / 800_000_000.0 * PART as f64;
        assert!((0.9..1.1).contains(&part), "{part}");
    }

    /// Turns of 800 us, ten times the usual length, have a 640th of the time, though nobody waits.
    #[test]
    fn long_turns_are_rare() {
        let mut shares = Shares::default();
        let (begin_ns, end_ns) = (1_000_000_000, 11_000_000_000);
        let (mut now_ns, mut turns) = (begin_ns, 0);
        while now_ns < end_ns {
            now_ns += match shares.wait_ns((OWN, 10), now_ns, false) {
                Some(wait_ns) => wait_ns,
                None => {
                    shares.charge((OWN, 10), TURN, 800_000, now_ns + 800_000);
                    turns += 1;
                    800_000
                }
            };
        }
        assert!((19..=21).contains(&turns), "{turns} of 20");
        assert_eq!(shares.wait_ns((OWN, 1), now_ns, false), None, "usual turns");
    }

    /// Beside a task on its core a P4 switch has a sixteenth of the time for what is not usual.
    #[test]
    fn tasks_on_the_core_have_their_time() {
        let usual = Turn {
            packets: 32,
            bytes: 32 * 4_096,
        };
        let wanted = Load {
            is_wanted: true,
            ..load(0, 0)
        };
        let usual_ns = usual.usual_ns(Usual::default().each_ns());
        let cases = [(usual_ns + 30_000, 1.0 / PART as f64), (usual_ns, 1.0)];
        for (took_ns, part) in cases {
            let mut shares = Shares::default();
            let (begin_ns, end_ns) = (1_000_000_000, 11_000_000_000);
            let (mut now_ns, mut beyond_ns, mut waited_ns) = (begin_ns, 0, 0);
            while now_ns < end_ns {
                now_ns += match shares.due_of((OWN, 1), now_ns, wanted) {
                    Due::After(wait_ns) => {
                        waited_ns += wait_ns;
                        wait_ns
                    }
                    Due::Now | Due::Later => {
                        shares.charge((OWN, 1), usual, took_ns, now_ns + took_ns);
                        beyond_ns += took_ns - usual_ns;
                        took_ns
                    }
                };
            }
            if part < 1.0 {
                let found = beyond_ns as f64 / (end_ns - begin_ns) as f64 / part;
                assert!((0.9..1.1).contains(&found), "{found}");
            } else {
                assert_eq!(waited_ns, 0, "a usual program does not wait");
            }
            let due = shares.due_of((OWN, 1), now_ns, load(0, 0));
            assert_eq!(due, Due::Now, "nobody wants the core any more");
        }
    }

    /// However many programs a tenant has, what is not usual of all of them has one share.
    #[test]
    fn programs_share_the_time_for_what_is_not_usual() {
        let mut shares = Shares::default();
        let wanted = Load {
            is_wanted: true,
            ..load(0, 0)
        };
        let (begin_ns, end_ns) = (1_000_000_000, 6_000_000_000);
        let (mut now_ns, mut beyond_ns) = (begin_ns, 0);
        while now_ns < end_ns {
            for number in 0..8 {
                let switch = (ControllerId::BUILT_IN, P4Id(number));
                if shares.due_of((switch, 1), now_ns, wanted) == Due::Now {
                    now_ns += 50_000;
                    beyond_ns += 50_000;
                    shares.charge((switch, 1), TURN, 50_000, now_ns);
                }
            }
            now_ns += 50_000;
        }
        let part = beyond_ns as f64 / (now_ns - begin_ns) as f64 * PART as f64;
        assert!((0.5..1.5).contains(&part), "{part} of a share");
    }

    /// Others whose rings are empty whenever a turn is to be given.
    #[test]
    fn what_is_not_usual_waits_while_others_have_packets_now_and_then() {
        let mut shares = Shares::default();
        let (port, other) = (PortId(1), (ControllerId::BUILT_IN, P4Id(2)));
        let (mut now_ns, mut packets) = (1_000_000_000, 0);
        let mut due = |shares: &mut Shares, others, now_ns: u64| {
            packets += others;
            shares.begin_turn(now_ns, packets);
            let due = shares.due(port, (OWN, 1), now_ns, load(0, packets));
            if due == Due::Now {
                packets += 32;
                shares.charge((OWN, 1), TURN, 100_000, now_ns + 100_000);
                shares.end_turn(OWN, now_ns + 100_000, packets);
            }
            due
        };
        for _ in 0..5 {
            assert_eq!(due(&mut shares, 0, now_ns), Due::Now, "nobody else has packets");
            now_ns += 100_000;
        }
        assert!(
            matches!(due(&mut shares, 7, now_ns), Due::After(_)),
            "others have"
        );
        assert!(matches!(
            due(&mut shares, 0, now_ns + RECENT_NS - 1),
            Due::After(_)
        ));
        assert_eq!(due(&mut shares, 0, now_ns + RECENT_NS), Due::Now);
        shares.end_turn(other, now_ns + RECENT_NS + 100_000, 7 + 6 * 32);
        let then_ns = now_ns + RECENT_NS + 100_001;
        assert!(
            matches!(due(&mut shares, 0, then_ns), Due::After(_)),
            "other programs are others"
        );
    }

    #[test]
    fn nobody_waits_for_nothing() {
        let mut shares = Shares::default();
        let other = (ControllerId::BUILT_IN, P4Id(2));
        let now_ns = 1_000_000_000;
        charge_most(&mut shares, OWN, now_ns);
        charge_most(&mut shares, other, now_ns);
        assert!(!shares.pass_on(OWN, now_ns, load(0, 5)), "no ring waits");
        // Both wait, and nothing is forwarded meanwhile.
        let served = (0..40).filter(|turn| {
            let switch = if turn % 2 == 0 { OWN } else { other };
            !shares.pass_on(switch, now_ns, load(1, 5))
        });
        assert!(served.count() >= 10);
    }

    #[test]
    fn packets_wait_for_what_the_last_of_their_ring_met() {
        let mut shares = Shares::default();
        let other = (ControllerId::BUILT_IN, P4Id(2));
        let [one, two] = [1, 2].map(PortId);
        shares.record_met(one, other);
        shares.charge((other, 1), TURN, MOST_NS, 0);
        let due = |shares: &mut Shares, port| shares.due(port, (OWN, 1), 1_000, load(1, 5));
        assert_eq!(due(&mut shares, one), Due::Later);
        assert_eq!(due(&mut shares, two), Due::Now, "its packets do not meet it");
        shares.forget_met(one);
        assert_eq!(due(&mut shares, one), Due::Now);
        shares.record_met(one, other);
        shares.charge((other, 2), TURN, MOST_NS, 0);
        let due = shares.due(one, (OWN, 2), 1_000, load(0, 5));
        assert!(matches!(due, Due::After(1..=GAP_NS)), "long turns are rare");
        for port in 0..3 * MOST_PORTS as u32 {
            shares.record_met(PortId(port), other);
        }
        assert!(shares.met.len() <= MOST_PORTS);
    }

    #[test]
    fn whatever_it_took_the_wait_is_bounded() {
        let mut shares = Shares::default();
        charge_most(&mut shares, OWN, 0);
        let turns = MOST_NS / 100_000;
        for turn in 1..turns {
            assert!(shares.pass_on(OWN, turn * 100_000, load(1, turn)), "{turn}");
        }
        assert!(!shares.pass_on(OWN, turns * 100_000, load(1, turns)));
    }

    #[test]
    fn time_that_a_thread_has_not_had_is_no_part_of_a_share() {
        let mut shares = Shares::default();
        charge_most(&mut shares, OWN, 0);
        for slice in 1..10 {
            assert!(
                shares.pass_on(OWN, slice * 20 * MOST_NS, load(1, slice)),
                "{slice}"
            );
        }
    }
}
