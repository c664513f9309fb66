//! Running programs, and walking from flow to flow.
//!
//! One loop serves packets, the composer of decisions, and traces. The [`Subject`] applies operations to the
//! packet; the [`Tables`] find flows. Copies that are set aside are on a stack of bounded height apart from
//! the thread's stack. The number of operations and look-ups per packet is bounded, as flows may send packets
//! in circles.

use crate::entry::{FlowEntry, Found};
use flow::{Context, DropReason, Edit, Filters, FlowKey, Op, PortId, Program, Stage, Userspace};
use std::sync::Arc;

/// Most look-ups on the way of one copy of a packet.
pub const MAX_LOOKS: u32 = 16;

/// Most operations for one packet with all its copies: twice as many as the longest program has.
pub const MAX_STEPS: u32 = 2 * flow::MAX_OPS as u32;

/// Most copies that are set aside at a time, apart from the second ways of branches, of which a program nests
/// few.
const MAX_SAVED: usize = 64;

/// Finds flows and rules.
pub trait Tables {
    /// What there is for a packet that comes to a stage.
    fn look_up(&self, stage: Stage, key: &FlowKey, context: &Context) -> Option<Found>;
    /// The filters of a port.
    fn filters(&self, port: PortId) -> Filters;
}

/// Finds nothing: for programs whose look-ups are done.
#[derive(Clone, Copy, Debug)]
pub struct NoTables;

impl Tables for NoTables {
    fn look_up(&self, _: Stage, _: &FlowKey, _: &Context) -> Option<Found> {
        None
    }

    fn filters(&self, _: PortId) -> Filters {
        Filters::default()
    }
}

/// The subject of a program: a packet, or its stand-in in traces and composition. After the last output it
/// holds no packet, until one that was saved is restored.
pub trait Subject {
    /// A packet that was set aside.
    type Saved;

    /// The packet's key and context, as it is now.
    ///
    /// # Errors
    ///
    /// Fields of the key are unknown and stay so; the packet is dropped.
    fn key(&mut self) -> Result<(&FlowKey, &Context), DropReason>;
    /// The port that the packet came from.
    fn in_port(&self) -> PortId;
    /// Notes that a flow, or a rule, was found in a stage.
    fn found(&mut self, _stage: Stage, _entry: &Arc<FlowEntry>) {}
    /// A rule that was found in a stage, and has this log, notes the packet.
    fn log(&mut self, _log: u32, _stage: Stage) {}
    /// No flow of the stage matches the packet: it goes to the control process and ends here.
    fn missed(&mut self, stage: Stage);
    /// Sends the packet to a port, or a copy of it unless this is the last output.
    fn output(&mut self, port: PortId, last: bool);
    /// Sends a copy to the controller.
    fn userspace(&mut self, to: &Userspace);
    /// Drops the packet.
    fn dropped(&mut self, reason: DropReason);
    /// Changes the packet.
    ///
    /// # Errors
    ///
    /// The packet cannot be changed so, and is dropped.
    fn edit(&mut self, edit: &Edit) -> Result<(), DropReason>;
    /// Puts a recirculation id into the packet's key.
    fn recirculate(&mut self, id: u32);
    /// Puts a hash, which [`dp_hash`](crate::dp_hash) computes, into the packet's key.
    ///
    /// # Errors
    ///
    /// As for [`key`](Self::key).
    fn hash(&mut self, basis: u32) -> Result<(), DropReason>;
    /// Cuts the next output to at most this many bytes.
    fn truncate(&mut self, len: u32);
    /// Says whether the packet, or its longest segment, has more than this many bytes.
    fn branch(&mut self, len: u16) -> Branch<Self::Saved>;
    /// Asks a meter about the packet.
    ///
    /// # Errors
    ///
    /// The meter drops it, for this reason.
    fn pass_meter(&mut self, meter: u32) -> Result<(), DropReason>;
    /// Told where in its program the meter is that did not let the packet pass.
    fn stopped(&mut self, _at: usize) {}
    /// Whether the packet is one of the sample: `probability` in 2^32.
    fn draw_sample(&mut self, probability: u32) -> bool;
    /// Sets the packet aside; a copy of it stays.
    fn save(&mut self) -> Self::Saved;
    /// Takes a packet up again that was set aside.
    fn restore(&mut self, saved: Self::Saved);
    /// Whether the run should go on.
    fn goes_on(&self) -> bool {
        true
    }
}

/// Which way packets go at a branch by length.
#[derive(Debug)]
pub enum Branch<S> {
    /// The branch of longer packets.
    Longer,
    /// The branch of all others.
    Otherwise,
    /// The two branches, since the subject stands for packets of any length: the first one, and the second
    /// one when the subject that was set aside is taken up.
    Both(S),
}

/// Where a walk begins.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// With a program that stands in the forward stage, or that is complete.
    Program(&'a Program),
    /// With a program that stands in that stage.
    InStage(&'a Program, Stage),
    /// With a look-up.
    LookUp(Stage),
}

/// A packet that was set aside, and the place where it goes on.
#[derive(Debug)]
struct Frame<S> {
    saved: S,
    place: Position,
    entry: Option<Arc<FlowEntry>>,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    at: usize,
    stage: Stage,
    looks: u32,
}

/// The stack of an executing thread, which is kept so that running allocates nothing.
#[derive(Debug)]
pub struct Stack<S>(Vec<Frame<S>>);

impl<S> Default for Stack<S> {
    fn default() -> Self {
        Stack(Vec::new())
    }
}

/// Runs a packet from there to all its ends. Returns how many there were: each output, copy to the
/// controller, drop and miss.
pub fn run<S: Subject, T: Tables>(
    stack: &mut Stack<S::Saved>,
    start: Start<'_>,
    tables: &T,
    subject: &mut S,
) -> u64 {
    stack.0.clear();
    let (program, stage) = match start {
        Start::Program(program) => (Some(program), Stage::Forward),
        Start::InStage(program, stage) => (Some(program), stage),
        Start::LookUp(stage) => (None, stage),
    };
    let mut run = Run {
        stack: &mut stack.0,
        tables,
        subject,
        program,
        entry: None,
        place: Position {
            at: 0,
            stage,
            looks: 0,
        },
        ends: 0,
    };
    let mut going = program.is_some() || run.look_up(stage) || run.resume();
    let mut steps = 0;
    while going && run.subject.goes_on() {
        steps += 1;
        if steps > MAX_STEPS {
            run.dropped(DropReason::TooDeep);
            break;
        }
        going = run.step() || run.resume();
    }
    let ends = run.ends;
    stack.0.clear();
    ends
}

struct Run<'a, S: Subject, T> {
    stack: &'a mut Vec<Frame<S::Saved>>,
    tables: &'a T,
    subject: &'a mut S,
    /// The program that the walk began with, unless it began with a look-up.
    program: Option<&'a Program>,
    /// The flow whose program runs instead.
    entry: Option<Arc<FlowEntry>>,
    place: Position,
    ends: u64,
}

impl<S: Subject, T: Tables> Run<'_, S, T> {
    /// Executes one operation. False when the packet, or copy, has ended.
    fn step(&mut self) -> bool {
        let entry = self.entry.as_ref().map(|entry| entry.program());
        let Some(op) = entry
            .or(self.program)
            .and_then(|program| program.ops().get(self.place.at))
        else {
            return false;
        };
        let op = *op;
        let next = self.place.at + 1;
        self.place.at = next;
        match op {
            Op::Output { port, last } => return self.output(port, last, next),
            Op::Userspace(place) => {
                let entry = self.entry.as_ref().map(|entry| entry.program());
                if let Some(to) = entry
                    .or(self.program)
                    .and_then(|program| program.userspace(place))
                {
                    self.ends += 1;
                    self.subject.userspace(to);
                }
            }
            Op::Edit(edit) => {
                if let Err(reason) = self.subject.edit(&edit) {
                    return self.dropped(reason);
                }
            }
            Op::Save { resume } => return self.save(resume as usize),
            Op::Sample {
                probability,
                otherwise,
            } => {
                if !self.subject.draw_sample(probability) {
                    self.place.at = otherwise as usize;
                }
            }
            Op::CheckPktLen { len, otherwise } => match self.subject.branch(len) {
                Branch::Longer => {}
                Branch::Otherwise => self.place.at = otherwise as usize,
                Branch::Both(saved) => return self.set_aside(saved, otherwise as usize),
            },
            Op::Truncate(len) => self.subject.truncate(len),
            Op::Hash { basis } => {
                if let Err(reason) = self.subject.hash(basis) {
                    return self.dropped(reason);
                }
            }
            Op::Meter(meter) => {
                if let Err(reason) = self.subject.pass_meter(meter) {
                    self.subject.stopped(next - 1);
                    return self.dropped(reason);
                }
            }
            Op::Log { log, stage } => self.subject.log(log, stage),
            Op::Recirc(id) => {
                self.subject.recirculate(id);
                return self.look_up(Stage::Forward);
            }
            Op::Continue => return self.go_on(),
            Op::Drop(reason) => return self.dropped(reason),
            Op::End => return false,
        }
        true
    }

    fn output(&mut self, port: PortId, last: bool, next: usize) -> bool {
        let Some(stage) = self.tables.filters(port).first_egress(port) else {
            self.ends += 1;
            self.subject.output(port, last);
            return !last;
        };
        (last || self.save(next)) && self.look_up(stage)
    }

    /// Goes to the next stage.
    fn go_on(&mut self) -> bool {
        let port = match self.place.stage {
            Stage::Egress(port, _) => port,
            Stage::Ingress(_) | Stage::Forward => self.subject.in_port(),
        };
        match (
            self.place.stage.next(&self.tables.filters(port)),
            self.place.stage,
        ) {
            (Some(next), _) => self.look_up(next),
            (None, Stage::Egress(port, _)) => {
                self.ends += 1;
                self.subject.output(port, true);
                false
            }
            (None, _) => self.dropped(DropReason::NoAction),
        }
    }

    /// Looks up; the flow that is found takes over. False when there is none.
    fn look_up(&mut self, stage: Stage) -> bool {
        if self.place.looks == MAX_LOOKS {
            return self.dropped(DropReason::TooDeep);
        }
        let found = match self.subject.key() {
            Ok((key, context)) => self.tables.look_up(stage, key, context),
            Err(reason) => return self.dropped(reason),
        };
        let Some(Found { entry, trials }) = found else {
            self.ends += 1;
            self.subject.missed(stage);
            return false;
        };
        trials.iter().for_each(|trial| self.subject.found(stage, trial));
        self.subject.found(stage, &entry);
        self.entry = Some(entry);
        self.place = Position {
            at: 0,
            stage,
            looks: self.place.looks + 1,
        };
        true
    }

    fn save(&mut self, resume: usize) -> bool {
        if self.stack.len() == MAX_SAVED {
            return self.dropped(DropReason::TooDeep);
        }
        let saved = self.subject.save();
        self.set_aside(saved, resume)
    }

    fn set_aside(&mut self, saved: S::Saved, resume: usize) -> bool {
        self.stack.push(Frame {
            saved,
            place: Position {
                at: resume,
                ..self.place
            },
            entry: self.entry.clone(),
        });
        true
    }

    /// Takes up the packet that was set aside last. False when there is none.
    fn resume(&mut self) -> bool {
        let Some(Frame { saved, place, entry }) = self.stack.pop() else {
            return false;
        };
        self.subject.restore(saved);
        (self.place, self.entry) = (place, entry);
        true
    }

    fn dropped(&mut self, reason: DropReason) -> bool {
        self.ends += 1;
        self.subject.dropped(reason);
        false
    }
}
