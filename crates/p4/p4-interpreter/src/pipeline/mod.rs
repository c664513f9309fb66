//! The path of a packet through the program: v1model as BMv2's `simple_switch` runs it.
//!
//! ```text
//!  packet -> parser -> verify -> ingress -+-> unicast --------> egress -> update, deparse -+-> output
//!               ^                         +-> replicas ---------> "                        |
//!               |                         +-> clone, as it came -> "   +-> clone -> egress |
//!               +------- resubmitted -----+                           recirculated --------+
//! ```
//!
//! At the end of ingress: a clone of the packet as it came, a digest, then one of resubmit, multicast, drop,
//! unicast. At the end of egress: a clone of the packet as it is, then drop, recirculate or output.
//!
//! A packet that goes to only one port runs without a copy. Copies wait in a queue, each with a snapshot of
//! the state that it begins with. The queue, the snapshots and the number of passes are bounded; copies and
//! passes beyond a bound are dropped and counted.

use crate::bits;
mod copies;

use crate::code::Pc;
use crate::context::{Context, CopyKind, Deferred, WaitingCopy};
use crate::engine::{DROP_PORT, Engine, INITIAL_HEAD, MAX_PASSES};
use crate::machine::{Ended, Machine};
use crate::observe::{Observer, Outcome, Phase, View};
use crate::packet::{Drop, Output, Packet, Sink};
use crate::state::ReadGuard;
use p4_ir::FieldListId;

/// Values of `instance_type`, as BMv2 has them.
mod instance {
    pub const NORMAL: u8 = 0;
    pub const INGRESS_CLONE: u8 = 1;
    pub const EGRESS_CLONE: u8 = 2;
    pub const RECIRCULATED: u8 = 4;
    pub const REPLICATION: u8 = 5;
    pub const RESUBMITTED: u8 = 6;
}

/// The next step after a pass.
enum After {
    /// Another pass through ingress, with this `instance_type`.
    Again(u8),
    /// Egress for this port.
    Egress { port: u32, rid: u16, instance: u8 },
    /// None: the packet left, was dropped, or waits.
    Done,
}

impl Engine {
    /// Runs a packet and all its copies to their ends. `now` is the time in nanoseconds since the program's
    /// start; it must not go back.
    pub fn run<O: Observer>(
        &self,
        guard: &ReadGuard<'_>,
        ctx: &mut Context,
        packet: &Packet<'_>,
        now: u64,
        sink: &mut dyn Sink,
        observer: &mut O,
    ) {
        ctx.counts.packets += 1;
        ctx.copies = 0;
        let machine = Machine {
            engine: self,
            state: guard.state(),
            tables: guard.tables(),
            ctx,
            packet,
            observer,
            now,
        };
        let mut run = Run {
            machine,
            sink,
            passes: 1,
        };
        run.begin();
        run.run_passes(After::Again(instance::NORMAL));
        while let Some(copy) = run.machine.ctx.waiting.pop_front() {
            run.run_copy(copy);
        }
    }
}

struct Run<'a, 'm, O> {
    machine: Machine<'m, O>,
    sink: &'a mut dyn Sink,
    /// Passes of this packet (or copy), including the present one.
    passes: u8,
}

impl<O: Observer> Run<'_, '_, O> {
    /// Loads the received packet.
    fn begin(&mut self) {
        let packet = self.machine.packet;
        let ctx = &mut *self.machine.ctx;
        let room = ctx.packet.head.len().saturating_sub(bits::SLACK);
        let length = packet.len().min(INITIAL_HEAD).min(room);
        match packet.head.get(..length) {
            Some(head) => bits::copy_short(head, &mut ctx.packet.head[..length]),
            None => packet.read(0, &mut ctx.packet.head[..length]),
        }
        ctx.packet.head_len = length;
        ctx.packet.pulled = length;
        ctx.packet.length = packet.len();
        ctx.packet.truncate = usize::MAX;
        self.reset_headers();
        self.reset_metadata();
        let port = u64::from(packet.port);
        self.machine.set(self.machine.engine.standard.ingress_port, port);
    }

    /// Makes all headers invalid, and puts the parser at the packet's beginning.
    fn reset_headers(&mut self) {
        let engine = self.machine.engine;
        let ctx = &mut *self.machine.ctx;
        for (at, (word, &always)) in ctx.packet.valid.iter_mut().zip(&engine.always_valid).enumerate() {
            let mut left = *word & !always;
            while left != 0 {
                let header = at * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if let Some(bytes) = ctx.packet.phv.get_mut(engine.headers[header].range()) {
                    bits::clear(bytes);
                }
                ctx.packet.filled[header] = 0;
            }
            *word = always;
        }
        if !ctx.packet.next.is_empty() {
            ctx.packet.next.fill(0);
        }
        ctx.packet.at = 0;
    }

    fn reset_metadata(&mut self) {
        let metadata = self.machine.engine.program().phv.metadata_bytes as usize;
        if let Some(bytes) = self.machine.ctx.packet.phv.get_mut(..metadata) {
            bits::clear(bytes);
        }
        for &header in &self.machine.engine.variable_metadata {
            self.machine.ctx.packet.filled[header] = 0;
        }
    }

    fn run_passes(&mut self, mut after: After) {
        loop {
            after = match after {
                After::Again(instance) => self.ingress(instance),
                After::Egress { port, rid, instance } => self.egress(port, rid, instance),
                After::Done => return,
            };
        }
    }

    fn run_copy(&mut self, copy: WaitingCopy) {
        let ctx = &mut *self.machine.ctx;
        ctx.restore(copy.snapshot);
        ctx.snapshots[usize::from(copy.snapshot)].users -= 1;
        if !ctx.take_spare_pass() {
            self.drop(Drop::Passes);
            return;
        }
        self.passes = copy.passes;
        self.run_passes(match copy.kind {
            CopyKind::Ingress { instance } => After::Again(instance),
            CopyKind::Egress { port, rid, instance } => After::Egress { port, rid, instance },
        });
    }

    fn phase(&mut self, phase: Phase) {
        if O::ACTIVE {
            let view = View::new(self.machine.engine.program(), self.machine.ctx);
            self.machine.observer.phase(&view, phase);
        }
    }

    fn outcome(&mut self, outcome: Outcome) {
        if O::ACTIVE {
            self.machine.observer.outcome(outcome);
        }
    }

    fn drop(&mut self, reason: Drop) -> After {
        self.machine.ctx.counts.drops[reason as usize] += 1;
        self.outcome(Outcome::Dropped(reason));
        self.sink.dropped(reason);
        After::Done
    }

    fn exec(&mut self, code: Pc) -> Ended {
        self.machine.exec(code)
    }

    /// Runs ingress or egress. False: a loop would have taken too many turns.
    fn control(&mut self, code: Pc) -> bool {
        self.machine.ctx.loop_turns = self.machine.engine.loop_turns;
        self.exec(code) != Ended::Exhausted
    }

    fn ingress(&mut self, instance: u8) -> After {
        let engine = self.machine.engine;
        let standard = &engine.standard;
        let (now, length) = (self.machine.now / 1000, self.machine.ctx.packet.length as u64);
        self.machine.set(standard.instance_type, u64::from(instance));
        self.machine.set(standard.packet_length, length);
        self.machine.set(standard.ingress_timestamp, now);
        self.machine.ctx.deferred = Deferred::default();
        self.parse();
        if !engine.program().checksums.is_empty() {
            self.phase(Phase::Verify);
            self.machine.ctx.checksum_error = false;
            self.exec(engine.code.verify);
            let wrong = u64::from(self.machine.ctx.checksum_error);
            self.machine.set(standard.checksum_error, wrong);
        }
        self.phase(Phase::Ingress);
        if !self.control(engine.code.ingress) {
            return self.drop(Drop::LoopTurns);
        }
        self.end_of_ingress()
    }

    fn parse(&mut self) {
        self.phase(Phase::Parser);
        let engine = self.machine.engine;
        self.machine.ctx.steps = 0;
        let error = match self.exec(engine.code.parser) {
            Ended::Normally => None,
            // Parsers have no loops of this kind.
            Ended::Failed | Ended::Exhausted => Some(self.machine.ctx.parser_error),
        };
        if let Some(error) = error {
            self.machine.ctx.counts.parser_errors += 1;
            self.machine.set(engine.standard.parser_error, u64::from(error));
        }
        if O::ACTIVE {
            let view = View::new(engine.program(), self.machine.ctx);
            self.machine.observer.parsed(&view, error);
        }
    }

    fn end_of_ingress(&mut self) -> After {
        let engine = self.machine.engine;
        let deferred = self.machine.ctx.deferred;
        if let Some((session, list)) = deferred.clone {
            self.clone_as_it_came(session, list);
        }
        if let Some(digest) = deferred.digest {
            self.exec(engine.code.digests[digest.index()]);
            self.machine.ctx.counts.digests += 1;
            let values = self.machine.gathered();
            self.sink.digest(digest, values);
        }
        if let Some(list) = deferred.resubmit {
            return self.resubmit(list);
        }
        let group = self.machine.get(engine.standard.mcast_grp);
        if group != 0 {
            return self.multicast(group);
        }
        let port = self.machine.get(engine.standard.egress_spec);
        if port == DROP_PORT {
            return self.drop(Drop::Ingress);
        }
        let port = port as u32;
        let (rid, instance) = (0, instance::NORMAL);
        self.outcome(Outcome::Port { port, rid, instance });
        if self.machine.ctx.waiting.is_empty() {
            return After::Egress { port, rid, instance };
        }
        self.wait(CopyKind::Egress { port, rid, instance })
    }

    fn egress(&mut self, port: u32, rid: u16, instance: u8) -> After {
        let engine = self.machine.engine;
        let standard = &engine.standard;
        let (now, length) = (self.machine.now / 1000, self.machine.ctx.packet.length as u64);
        let machine = &mut self.machine;
        // Ingress may have asked for recirculation, which happens at the end of egress.
        machine.ctx.deferred = Deferred {
            recirculate: machine.ctx.deferred.recirculate,
            ..Deferred::default()
        };
        machine.set(standard.instance_type, u64::from(instance));
        machine.set(standard.egress_port, u64::from(port));
        machine.set(standard.egress_rid, u64::from(rid));
        machine.set(standard.egress_spec, 0);
        machine.set(standard.packet_length, length);
        machine.set(standard.enq_timestamp, now);
        machine.set(standard.egress_timestamp, now);
        for depth in standard.queue_depths.iter().flatten() {
            let packets = u64::from(self.sink.queue_depth(port));
            self.machine.set(Some(*depth), packets.min(depth.mask));
        }
        self.phase(Phase::Egress(port));
        if !self.control(engine.code.egress) {
            return self.drop(Drop::LoopTurns);
        }
        let deferred = self.machine.ctx.deferred;
        if let Some((session, list)) = deferred.clone {
            self.clone_as_it_is(session, list);
        }
        if self.machine.get(standard.egress_spec) == DROP_PORT {
            return self.drop(Drop::Egress);
        }
        self.phase(Phase::Deparser);
        if !engine.program().checksums.is_empty() {
            self.exec(engine.code.update);
        }
        if O::ACTIVE {
            let view = View::new(engine.program(), self.machine.ctx);
            self.machine.observer.emitted(&view);
        }
        let head = self.deparse();
        match deferred.recirculate {
            Some(list) => self.recirculate(list, head),
            None => self.output(port, head, instance != instance::NORMAL),
        }
    }

    /// Writes the valid headers, then the part of the head behind the parsed headers. Returns the length of
    /// both.
    fn deparse(&mut self) -> usize {
        let engine = self.machine.engine;
        let ctx = &mut *self.machine.ctx;
        let mut length = 0;
        for &header in &engine.emits {
            if ctx.packet.valid[header / 64] >> (header % 64) & 1 == 0 {
                continue;
            }
            let info = &engine.headers[header];
            let begin = info.offset;
            match info.variable {
                None => {
                    if let (Some(from), Some(to)) = (
                        ctx.packet.phv.get(info.range()),
                        ctx.out.get_mut(length..length + info.bytes),
                    ) {
                        bits::copy_short(from, to);
                    }
                    length += info.bytes;
                }
                Some(field) => {
                    let before = field.offset - begin * 8 + usize::from(ctx.packet.filled[header]);
                    bits::copy(&ctx.packet.phv, begin * 8, &mut ctx.out, length * 8, before);
                    let after = info.fixed_bits - (field.offset - begin * 8);
                    let rest = field.offset + field.width;
                    bits::copy(&ctx.packet.phv, rest, &mut ctx.out, length * 8 + before, after);
                    length += (before + after) / 8;
                }
            }
        }
        let rest = ctx
            .packet
            .head
            .get(ctx.packet.at..ctx.packet.head_len)
            .unwrap_or(&[]);
        if let Some(to) = ctx.out.get_mut(length..length + rest.len()) {
            bits::copy_short(rest, to);
            length += rest.len();
        }
        length
    }

    fn output(&mut self, port: u32, head: usize, is_copy: bool) -> After {
        let packet = self.machine.packet;
        let ctx = &mut *self.machine.ctx;
        let rest = packet.len().saturating_sub(ctx.packet.pulled);
        let head = head.min(ctx.packet.truncate);
        let length = rest.min(ctx.packet.truncate - head);
        ctx.counts.outputs += 1;
        let output = Output {
            port,
            head: &ctx.out[..head],
            packet,
            offset: ctx.packet.pulled,
            length,
            is_copy,
        };
        self.sink.output(&output);
        if O::ACTIVE {
            self.machine
                .observer
                .output(port, &self.machine.ctx.out[..head], head + length);
        }
        After::Done
    }

    fn recirculate(&mut self, list: Option<FieldListId>, head: usize) -> After {
        if self.passes >= MAX_PASSES {
            return self.drop(Drop::Passes);
        }
        let packet = self.machine.packet;
        let ctx = &mut *self.machine.ctx;
        // Truncated bytes are not part of the next pass.
        if ctx.packet.truncate != usize::MAX && head >= ctx.packet.truncate {
            ctx.packet.pulled = packet.len();
        }
        let head = head.min(ctx.packet.truncate);
        if head + bits::SLACK > ctx.packet.head.len() {
            return self.drop(Drop::Grown);
        }
        self.outcome(Outcome::Recirculated);
        if !self.keep_over(list) {
            return self.drop(Drop::Copies);
        }
        let ctx = &mut *self.machine.ctx;
        ctx.packet.truncate = usize::MAX;
        ctx.packet.head[..head].copy_from_slice(&ctx.out[..head]);
        ctx.packet.head_len = head;
        ctx.packet.length = head + packet.len().saturating_sub(ctx.packet.pulled);
        self.again(instance::RECIRCULATED)
    }
}
