//! What is measured. A case is data and one function; the function starts the contenders it is given, measures each of
//! them once per round, in turn, and notes every value in the record.

mod ablation;
mod attack;
mod copies;
mod flood;
mod full;
mod guests;
mod idle;
mod load;
mod many;
mod misses;
mod packet_loop;
mod rate;
mod rr;
mod stream;

use crate::Effort;
use crate::contender::Contender;
use crate::network::Network;
use crate::record::{Better, Record};
use anyhow::Result;
use std::fmt::Display;
use std::thread;
use std::time::Duration;

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
    stream::CASE,
    rr::CASE,
    rr::AWAKE,
    many::PAIRS,
    many::MESH,
    many::CROWD,
    ablation::CASE,
    copies::CASE,
    idle::CASE,
    load::CASE,
    misses::CASE,
    attack::CASE,
    attack::VICTIM,
    full::GUESTS,
    full::CONTAINERS,
    rate::CASE,
    flood::CASE,
];

/// A contender that runs, and what a case connects to it.
struct Rig<G> {
    contender: Contender,
    network: Network,
    guests: G,
}

impl<G> Rig<G> {
    /// Starts all contenders, with what `connect` connects to the ports of each. Peers that cannot start are left out, and the
    /// record says so; ours must.
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

    /// Measures each rig at each point, in turn, round after round, and ends them. `measure` returns values in the order in
    /// which the case announces them. A peer that fails at a point is ended there, as it may still be at work, and the
    /// record says so; ours must not.
    fn sweep<P, const N: usize>(
        mut rigs: Vec<Rig<G>>,
        record: &mut Record,
        points: &[(String, P)],
        measure: impl Fn(&Network, &mut G, &P) -> Result<[f64; N]>,
    ) -> Result<()> {
        for _ in 0..record.rounds {
            for (label, point) in points {
                let mut able = Vec::new();
                for mut rig in rigs {
                    let name = rig.contender.name;
                    match rig.turn(|network, guests| measure(network, guests, point)) {
                        Ok(values) => {
                            record.add_all(label, name, &values)?;
                            able.push(rig);
                        }
                        Err(error) if rig.contender.is_ours() => {
                            return Err(error.context(format!("{label} on {name}")));
                        }
                        Err(error) => {
                            record.give_up(label, name, &error);
                            rig.stop()?;
                        }
                    }
                }
                // Nobody is always the first, or always after the same one.
                let next = able.len().min(1);
                able.rotate_left(next);
                rigs = able;
            }
        }
        rigs.into_iter().try_for_each(Rig::stop)
    }

    /// Ends it, guests first.
    fn stop(mut self) -> Result<()> {
        self.network.resume();
        drop(self.guests);
        self.network.stop()
    }
}

/// Points that are their own labels.
fn labelled<P: Display + Copy>(points: &[P]) -> Vec<(String, P)> {
    points.iter().map(|point| (point.to_string(), *point)).collect()
}
