//! `hyperswitch trace` of a port whose packets a P4 program forwards.
//!
//! The program in force is fetched with its entries and registers, and the packet runs here, in the same
//! interpreter as in the data plane, with an observer: nothing of the instance changes. Meters are full at
//! first, and counters begin at 0. Packets that cross links run at the next program.

use super::running::Running;
use super::trace::Tracer;
use crate::verbs::Session;
use anyhow::{Context as _, Result, bail};
use management::{P4Array, P4End, P4Switch, PortInfo, Reply, Request, TraceReport, TraceStep};
use p4_interpreter::{Collected, Context, Engine, Packet, State, StateLimits};
use p4_ir::RegisterId;
use std::collections::{BTreeMap, VecDeque};

/// Links that a packet crosses at most, as in the data plane.
const MAX_CROSSINGS: u8 = 8;

/// Runs of a trace at most: a program may copy to links.
const MAX_RUNS: usize = 64;

/// A program that was fetched.
struct Traced {
    engine: Engine,
    state: State,
    context: Context,
}

/// A packet on its way.
struct Coming {
    program: String,
    port: u16,
    frame: Vec<u8>,
    crossed: u8,
}

/// The trace of a frame from a port; `None` if no program forwards the port's packets.
///
/// # Errors
/// The instance refuses, or goes away, or another program is in force meanwhile.
pub fn report(session: &mut Session<'_>, port: &str, frame: &[u8]) -> Result<Option<TraceReport>> {
    let Reply::P4(switches) = session.call(&Request::P4List)? else {
        bail!("another answer than asked for")
    };
    let Some((program, number)) = place_of(&switches, port) else {
        return Ok(None);
    };
    let mut trace = Trace {
        switches,
        programs: BTreeMap::new(),
        waiting: VecDeque::from([Coming {
            program,
            port: number,
            frame: frame.to_vec(),
            crossed: 0,
        }]),
        steps: Vec::new(),
    };
    for _ in 0..MAX_RUNS {
        let Some(coming) = trace.waiting.pop_front() else {
            break;
        };
        trace.run(session, &coming)?;
    }
    let left = std::mem::take(&mut trace.waiting);
    left.iter().for_each(|_| trace.drop("too-deep"));
    Ok(Some(TraceReport {
        switch: switch_of(session, port)?,
        port: port.into(),
        steps: trace.steps,
    }))
}

/// The program to which a port is bound, and its number there.
fn place_of(switches: &[P4Switch], port: &str) -> Option<(String, u16)> {
    switches.iter().find_map(|switch| {
        let place = switch.ports.iter().find(|place| place.port == port)?;
        Some((switch.name.clone(), place.number))
    })
}

fn switch_of(session: &mut Session<'_>, port: &str) -> Result<String> {
    let port = port.to_owned();
    match session.call(&Request::PortShow { port })? {
        Reply::Ports(ports) => {
            let port: PortInfo = ports.into_iter().next().context("no such port")?;
            Ok(port.switch)
        }
        _ => bail!("another answer than asked for"),
    }
}

struct Trace {
    switches: Vec<P4Switch>,
    programs: BTreeMap<String, Traced>,
    waiting: VecDeque<Coming>,
    steps: Vec<TraceStep>,
}

impl Trace {
    fn drop(&mut self, reason: &str) {
        let found = flow::DropReason::ALL.iter().find(|one| one.name() == reason);
        self.steps.push(TraceStep::Dropped {
            port: None,
            reason: reason.into(),
            description: found.map_or_else(String::new, |found| found.description().into()),
        });
    }

    fn run(&mut self, session: &mut Session<'_>, coming: &Coming) -> Result<()> {
        let is_there = |switch: &P4Switch| switch.name == coming.program && switch.state == "in force";
        if !self.switches.iter().any(is_there) {
            self.drop("no-rules");
            return Ok(());
        }
        if !self.programs.contains_key(&coming.program) {
            let traced = Traced::fetch(session, &coming.program)?;
            self.programs.insert(coming.program.clone(), traced);
        }
        let Some(traced) = self.programs.get_mut(&coming.program) else {
            return Ok(());
        };
        let (text, outputs) = traced.run(coming);
        self.steps.push(TraceStep::Program {
            program: coming.program.clone(),
            number: coming.port,
            lines: text.lines().skip(1).map(str::to_owned).collect(),
        });
        for (number, frame) in outputs {
            self.leave(coming, number, frame);
        }
        Ok(())
    }

    /// A packet leaves a program.
    fn leave(&mut self, from: &Coming, number: u32, frame: Vec<u8>) {
        let mut switches = self.switches.iter();
        let own = switches.find(|switch| switch.name == from.program);
        let mut places = own.into_iter().flat_map(|own| &own.ports);
        let Some(place) = places.find(|place| u32::from(place.number) == number) else {
            return self.drop("no-such-port");
        };
        match P4End::of(&place.port) {
            None => self.steps.push(TraceStep::Delivered {
                port: place.port.clone(),
            }),
            Some(_) if from.crossed == MAX_CROSSINGS => self.drop("too-deep"),
            Some(end) => self.waiting.push_back(Coming {
                program: end.program.to_string(),
                port: end.number,
                frame,
                crossed: from.crossed + 1,
            }),
        }
    }
}

impl Traced {
    fn fetch(session: &mut Session<'_>, name: &str) -> Result<Traced> {
        let running = Running::fetch(session, name)?;
        let registers = u16::try_from(running.program().registers.len())?;
        let cells = (0..registers).map(|number| running.cells(session, P4Array::Register(number)));
        let cells = cells.collect::<Result<Vec<_>>>()?;
        let (program, setup) = running.into_parts();
        let engine = Engine::new(program)?;
        let state = State::new(&engine, StateLimits::default())?;
        state.give(&setup)?;
        for (number, cells) in (0..registers).zip(&cells) {
            for (cell, words) in cells.iter().enumerate() {
                state.set_register(RegisterId(number), cell as u64, words)?;
            }
        }
        Ok(Traced {
            context: Context::new(&engine, 1),
            engine,
            state,
        })
    }

    /// Runs a packet. Returns what happened as text, and what left.
    fn run(&mut self, coming: &Coming) -> (String, Vec<(u32, Vec<u8>)>) {
        let (mut text, mut sink) = (String::new(), Collected::default());
        let packet = Packet::whole(coming.port.into(), &coming.frame);
        let mut tracer = Tracer::new(&self.engine, &mut text);
        tracer.begin(1, coming.port.into(), coming.frame.len());
        let guard = self.state.read();
        let engine = &self.engine;
        engine.run(&guard, &mut self.context, &packet, 0, &mut sink, &mut tracer);
        (text, sink.outputs)
    }
}
