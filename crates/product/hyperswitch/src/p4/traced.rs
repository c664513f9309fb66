//! `hyperswitch trace` of a port whose packets meet P4 programs: stages, or the port's forwarder.
//!
//! The program in force is fetched with its entries and registers, and the packet runs here, in the same
//! interpreter as in the data plane, with an observer: nothing of the instance changes. Meters are full at
//! first, and counters begin at 0. Packets that cross links run at the next program. What has passed stages
//! and meets flows then goes on in the data plane, where the trace of flows is made.

use super::running::Running;
use super::trace::Tracer;
use crate::verbs::Session;
use anyhow::{Context as _, Result, bail};
use management::{Hex, P4Array, P4End, P4Switch, PortInfo, Reply, Request, TraceReport, TraceStep};
use p4_interpreter::{Context, Drop, Engine, Output, Packet, Sink, State, StateLimits};
use p4_ir::{DigestId, RegisterId};
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

/// A packet that a program sends.
struct Sent {
    /// The program's number of the port.
    number: u32,
    frame: Vec<u8>,
    /// Whether it is a clone or a replica.
    is_copy: bool,
}

/// Packets that a program sends, in order.
#[derive(Default)]
struct Left(Vec<Sent>);

impl Sink for Left {
    fn output(&mut self, output: &Output<'_>) {
        self.0.push(Sent {
            number: output.port,
            frame: output.to_vec(),
            is_copy: output.is_copy,
        });
    }

    fn digest(&mut self, _: DigestId, _: &[u8]) {}

    fn dropped(&mut self, _: Drop) {}
}

/// A packet on its way.
struct Coming {
    program: String,
    port: u16,
    frame: Vec<u8>,
    crossed: u8,
}

/// The trace of a frame from a port; `None` if its packets meet no program.
///
/// # Errors
/// The instance refuses, or goes away, or another program is in force meanwhile.
pub fn report(session: &mut Session<'_>, port: &str, frame: &[u8]) -> Result<Option<TraceReport>> {
    let switches = super::switches(session)?;
    let has_stages = switches.iter().any(|switch| switch.stage.is_some());
    let forwarder = place_of(&switches, port);
    if forwarder.is_none() && !has_stages {
        return Ok(None);
    }
    let switch = switch_of(session, port)?;
    let stages = stages_of(&switches, port, &switch);
    if forwarder.is_none() && stages.is_empty() {
        return Ok(None);
    }
    let mut trace = Trace {
        switches,
        programs: BTreeMap::new(),
        waiting: VecDeque::new(),
        steps: Vec::new(),
    };
    let passed = trace.pass_stages(session, stages, frame)?;
    match (passed, forwarder) {
        (None, _) => {}
        (Some(frame), None) => trace.look_up(session, port, frame)?,
        (Some(frame), Some((program, port))) => trace.waiting.push_back(Coming {
            program,
            port,
            frame,
            crossed: 0,
        }),
    }
    for _ in 0..MAX_RUNS {
        let Some(coming) = trace.waiting.pop_front() else {
            break;
        };
        trace.run(session, &coming)?;
    }
    let left = std::mem::take(&mut trace.waiting);
    left.iter().for_each(|_| trace.drop("too-deep"));
    Ok(Some(TraceReport {
        switch,
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

/// Stages of a port of a switch, in order, with its numbers there.
fn stages_of(switches: &[P4Switch], port: &str, switch: &str) -> Vec<(String, u16)> {
    let stages = switches.iter().filter_map(|own| {
        let stage = own.stage.as_ref()?;
        Some((stage.at, own.name.clone(), stage.number_of(port, switch)?))
    });
    let mut stages: Vec<_> = stages.collect();
    stages.sort();
    stages
        .into_iter()
        .map(|(_, name, number)| (name, number))
        .collect()
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
        for Sent { number, frame, .. } in self.run_program(session, coming)?.unwrap_or_default() {
            self.leave(coming, number, frame);
        }
        Ok(())
    }

    /// Has a frame pass stages. `None` if one of them drops it.
    fn pass_stages(
        &mut self,
        session: &mut Session<'_>,
        stages: Vec<(String, u16)>,
        frame: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let mut frame = frame.to_vec();
        for (program, port) in stages {
            let coming = Coming {
                program,
                port,
                frame,
                crossed: 0,
            };
            let Some(sent) = self.run_program(session, &coming)? else {
                return Ok(None);
            };
            let Some(passed) = sent.into_iter().find(|sent| !sent.is_copy) else {
                self.drop("policy");
                return Ok(None);
            };
            frame = passed.frame;
        }
        Ok(Some(frame))
    }

    /// Has the data plane trace a frame that meets flows.
    fn look_up(&mut self, session: &mut Session<'_>, port: &str, frame: Vec<u8>) -> Result<()> {
        let request = Request::Trace {
            port: port.into(),
            frame: Hex(frame),
        };
        let Reply::Trace(report) = session.call(&request)? else {
            bail!("another answer than asked for")
        };
        self.steps.extend(report.steps);
        Ok(())
    }

    /// Runs a frame through a program, and says what it sends; `None` if the program is missing.
    fn run_program(&mut self, session: &mut Session<'_>, coming: &Coming) -> Result<Option<Vec<Sent>>> {
        let is_there = |switch: &P4Switch| switch.name == coming.program && switch.state == "in force";
        if !self.switches.iter().any(is_there) {
            self.drop("no-rules");
            return Ok(None);
        }
        if !self.programs.contains_key(&coming.program) {
            let traced = Traced::fetch(session, &coming.program)?;
            self.programs.insert(coming.program.clone(), traced);
        }
        let Some(traced) = self.programs.get_mut(&coming.program) else {
            return Ok(None);
        };
        let (text, sent) = traced.run(coming);
        self.steps.push(TraceStep::Program {
            program: coming.program.clone(),
            number: coming.port,
            lines: text.lines().skip(1).map(str::to_owned).collect(),
        });
        Ok(Some(sent))
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
    fn run(&mut self, coming: &Coming) -> (String, Vec<Sent>) {
        let (mut text, mut sink) = (String::new(), Left::default());
        let packet = Packet::whole(coming.port.into(), &coming.frame);
        let mut tracer = Tracer::new(&self.engine, &mut text);
        tracer.begin(1, coming.port.into(), coming.frame.len());
        let guard = self.state.read();
        let engine = &self.engine;
        engine.run(&guard, &mut self.context, &packet, 0, &mut sink, &mut tracer);
        (text, sink.0)
    }
}
