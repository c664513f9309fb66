//! What is measured. A case is data and one function; the function starts the contenders it is given,
//! measures each of them once per round, in turn, and notes every value in the record.

mod ablation;
mod attack;
mod beside;
mod copies;
mod deaths;
mod delay;
mod dump;
mod flood;
mod frames;
mod full;
mod guests;
mod hackbench;
mod icmp;
mod idle;
mod load;
mod many;
mod misses;
pub mod p4;
mod packet_loop;
pub mod policies;
mod ports;
mod rate;
mod rr;
mod stream;
mod tables;
mod uplink;
mod vcpus;
mod watched;

use crate::Effort;
use crate::contender::Contender;
use crate::machine::{Neighbours, cache_line_round_trip};
use crate::network::Network;
use crate::record::{Better, Record};
use anyhow::Result;
use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

/// Something to measure.
pub struct Case {
    /// How it is asked for.
    pub name: &'static str,
    /// What it measures.
    pub about: &'static str,
    /// What the points differ in.
    pub axis: &'static str,
    /// What is measured at each point: name, unit, and which direction is good.
    pub measures: &'static [(&'static str, &'static str, Better)],
    /// Who competes.
    pub contenders: &'static [Contender],
    /// Measures all points in all rounds.
    pub run: fn(&Effort, &[Contender], &mut Record) -> Result<()>,
}

/// All cases, in the order in which they run.
pub const ALL: &[Case] = &[
    packet_loop::CASE,
    packet_loop::TESTPMD,
    packet_loop::APART,
    packet_loop::TAG,
    watched::CASE,
    tables::CASE,
    tables::NORMAL,
    ports::CASE,
    stream::CASE,
    frames::CASE,
    uplink::CASE,
    uplink::frames::CASE,
    uplink::deaths::KILLS,
    uplink::deaths::STOPS,
    uplink::beside::CASE,
    rr::CASE,
    rr::AWAKE,
    rr::IDLE_POLL,
    beside::CASE,
    many::PAIRS,
    many::MESH,
    many::CROWD,
    ablation::CASE,
    copies::CASE,
    idle::CASE,
    idle::DRIVEN,
    load::CASE,
    misses::CASE,
    misses::DRIVEN_CASE,
    attack::CASE,
    attack::VICTIM,
    attack::DRIVEN,
    dump::CASE,
    deaths::CASE,
    p4::packets::CASE,
    p4::stream::CASE,
    p4::CASE,
    policies::packets::CASE,
    policies::CASE,
    full::GUESTS,
    full::CLASSES,
    full::CONTAINERS,
    full::QEMU,
    rate::CASE,
    rate::CONTAINERS,
    rate::QEMU,
    flood::CASE,
    icmp::CASE,
    hackbench::CASE,
    vcpus::CASE,
];

/// A contender that runs, and what a case connects to it.
struct Rig<G> {
    contender: Contender,
    network: Network,
    guests: G,
}

impl<G> Rig<G> {
    /// Starts all contenders, with what `connect` connects to the ports of each. Peers that cannot start are
    /// left out, and the record says so; ours must.
    fn start_all(
        contenders: &[Contender],
        record: &mut Record,
        ports: &[&str],
        connect: impl Fn(&mut Network, &[&str]) -> Result<G>,
    ) -> Result<Vec<Rig<G>>> {
        let mut rigs = Vec::new();
        for contender in contenders {
            match Rig::start(contender, ports, &connect) {
                Ok(rig) => rigs.push(rig),
                Err(error) if contender.is_ours() => return Err(error),
                Err(error) => record.give_up("the start", contender.name, &error),
            }
        }
        Ok(rigs)
    }

    /// Starts a contender, with what `connect` connects to its ports, and puts it aside.
    fn start(
        contender: &Contender,
        ports: &[&str],
        connect: impl FnOnce(&mut Network, &[&str]) -> Result<G>,
    ) -> Result<Rig<G>> {
        let mut network = Network::start(contender, ports)?;
        let guests = connect(&mut network, ports)?;
        // Switches take note of new guests when they find the time.
        thread::sleep(Duration::from_millis(500));
        network.pause();
        Ok(Rig {
            contender: *contender,
            network,
            guests,
        })
    }

    /// Lets it run for as long as `measure` takes.
    fn turn<T>(&mut self, measure: impl FnOnce(&Network, &mut G) -> Result<T>) -> Result<T> {
        self.network.resume();
        let result = measure(&self.network, &mut self.guests);
        self.network.pause();
        result
    }

    /// Measures each rig at each point, in turn, round after round, and ends them. `measure` returns values
    /// in the order in which the case announces them. A peer that fails at a point is ended there, as it may
    /// still be at work, and the record says so; ours must not.
    fn sweep<P, const N: usize>(
        rigs: Vec<Rig<G>>,
        record: &mut Record,
        points: &[(String, P)],
        measure: impl Fn(&Network, &mut G, &P) -> Result<[f64; N]>,
    ) -> Result<()> {
        let mut rigs: Vec<Option<Rig<G>>> = rigs.into_iter().map(Some).collect();
        let wanted = |point: &&(String, P)| point.0.contains(&record.part);
        let points: Vec<_> = points.iter().filter(wanted).collect();
        let progress = Progress::of(record.rounds, points.len());
        for round in 0..record.rounds {
            for (index, (label, point)) in points.iter().copied().enumerate() {
                println!("  {}", progress.at(round, index));
                record.cache_line(label, cache_line_round_trip());
                for at in order(round + index, rigs.len()) {
                    let Some(rig) = &mut rigs[at] else {
                        continue;
                    };
                    let name = rig.contender.name;
                    let neighbours = Neighbours::watch();
                    let mut attempts = 0;
                    let measured = loop {
                        attempts += 1;
                        let measured = rig.turn(|network, guests| measure(network, guests, point));
                        if measured.is_ok() || rig.contender.is_ours() || attempts == PEERS_ATTEMPTS {
                            break measured;
                        }
                    };
                    record.beside(neighbours.seen());
                    match measured {
                        Ok(values) => record.add_all(label, name, &values)?,
                        Err(error) if rig.contender.is_ours() => {
                            return Err(error.context(format!("{label} on {name}")));
                        }
                        Err(error) => {
                            record.give_up(label, name, &error);
                            rigs[at].take().map_or(Ok(()), Rig::stop)?;
                        }
                    }
                }
            }
        }
        rigs.into_iter().flatten().try_for_each(Rig::stop)
    }

    /// Ends it, guests first.
    fn stop(mut self) -> Result<()> {
        self.network.resume();
        drop(self.guests);
        self.network.stop()
    }
}

/// Attempts that a peer has at a value: Open vSwitch's counter of cycles passes zero at times, when a
/// difference is none.
const PEERS_ATTEMPTS: usize = 3;

/// The order of so many contenders in one turn of a point. Over the turns nobody is always the first, or
/// always after the same one.
fn order(turn: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if count > 0 {
        order.rotate_left(turn % count);
        if turn / count % 2 == 1 {
            order.reverse();
        }
    }
    order
}

/// How far a sweep is.
struct Progress {
    begin: Instant,
    rounds: usize,
    points: usize,
}

impl Progress {
    fn of(rounds: usize, points: usize) -> Progress {
        Progress {
            begin: Instant::now(),
            rounds,
            points,
        }
    }

    fn at(&self, round: usize, point: usize) -> String {
        let (done, all) = (round * self.points + point, self.rounds * self.points);
        let left = remaining(self.begin.elapsed(), done, all).map_or(String::new(), |left| {
            format!(", {} left", crate::report::duration(left))
        });
        format!(
            "round {} of {}, point {} of {}{left}",
            round + 1,
            self.rounds,
            point + 1,
            self.points
        )
    }
}

/// How long the rest takes if it goes on as it went.
fn remaining(elapsed: Duration, done: usize, all: usize) -> Option<Duration> {
    let [done, left] = [done, all.checked_sub(done)?].map(|count| u32::try_from(count).ok());
    Some(elapsed.checked_div(done?)? * left?)
}

/// Points that are their own labels.
fn labelled<P: Display + Copy>(points: &[P]) -> Vec<(String, P)> {
    points.iter().map(|point| (point.to_string(), *point)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn everybody_comes_first_as_often_and_after_everybody() {
        assert_eq!(order(3, 0), [0; 0]);
        for count in 1..5 {
            let turns: Vec<_> = (0..2 * count).map(|turn| order(turn, count)).collect();
            for contender in 0..count {
                let first = turns.iter().filter(|order| order[0] == contender).count();
                assert_eq!(first, 2, "{turns:?}");
            }
            for order in &turns {
                assert_eq!(
                    order.iter().collect::<BTreeSet<_>>().len(),
                    count,
                    "all take part"
                );
            }
        }
        let pairs: BTreeSet<_> = (0..6)
            .flat_map(|turn| {
                order(turn, 3)
                    .windows(2)
                    .map(<[usize]>::to_vec)
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(pairs.len(), 6, "each after each other");
    }

    #[test]
    fn the_rest_takes_as_long_as_what_is_done() {
        let seconds = Duration::from_secs;
        assert_eq!(remaining(seconds(10), 0, 20), None);
        assert_eq!(remaining(seconds(10), 5, 20), Some(seconds(30)));
        assert_eq!(remaining(seconds(10), 20, 20), Some(seconds(0)));
    }
}
