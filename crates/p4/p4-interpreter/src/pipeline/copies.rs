//! Copies and further passes: replicas, clones, resubmitted and recirculated packets.

use super::{After, Run, instance};
use crate::bits;
use crate::context::{CopyKind, Deferred, MAX_COPIES, WaitingCopy};
use crate::engine::MAX_PASSES;
use crate::observe::{Observer, Outcome};
use crate::packet::Drop;
use crate::state::Replica;
use p4_ir::FieldListId;

impl<O: Observer> Run<'_, '_, O> {
    /// Puts a copy with the present state behind the waiting ones.
    pub(super) fn wait(&mut self, kind: CopyKind) -> After {
        let passes = self.passes;
        self.queue(&[kind], passes)
    }

    /// Adds copies of the present state to the waiting ones.
    pub(super) fn queue(&mut self, kinds: &[CopyKind], passes: u8) -> After {
        let ctx = &mut *self.machine.ctx;
        let Some(snapshot) = ctx.save() else {
            return self.drop(Drop::Copies);
        };
        for &kind in kinds {
            let ctx = &mut *self.machine.ctx;
            if ctx.copies == MAX_COPIES {
                return self.drop(Drop::Copies);
            }
            ctx.copies += 1;
            ctx.snapshots[usize::from(snapshot)].users += 1;
            ctx.waiting.push_back(WaitingCopy {
                snapshot,
                kind,
                passes,
            });
        }
        After::Done
    }

    /// Adds a copy for each replica to the waiting ones.
    pub(super) fn replicate(&mut self, replicas: &[Replica], instance: u8, passes: u8) {
        if replicas.is_empty() {
            self.drop(Drop::NoReplica);
            return;
        }
        let Some(snapshot) = self.machine.ctx.save() else {
            self.drop(Drop::Copies);
            return;
        };
        for &Replica { port, rid } in replicas {
            let ctx = &mut *self.machine.ctx;
            if ctx.copies == MAX_COPIES {
                self.drop(Drop::Copies);
                return;
            }
            ctx.copies += 1;
            ctx.snapshots[usize::from(snapshot)].users += 1;
            ctx.waiting.push_back(WaitingCopy {
                snapshot,
                kind: CopyKind::Egress { port, rid, instance },
                passes,
            });
            self.outcome(Outcome::Port { port, rid, instance });
        }
    }

    pub(super) fn multicast(&mut self, group: u64) -> After {
        self.machine.ctx.deferred.recirculate = None;
        let replicas = self.machine.state.group(group);
        let passes = self.passes;
        match replicas {
            Some(replicas) => self.replicate(&replicas, instance::REPLICATION, passes),
            None => {
                self.drop(Drop::NoReplica);
            }
        }
        After::Done
    }

    /// Sets metadata to zero but for the fields that are kept, whose values are in a snapshot.
    pub(super) fn keep(&mut self, snapshot: u16, list: Option<FieldListId>) {
        self.reset_metadata();
        let program = self.machine.engine.program();
        let Some(list) = list else { return };
        let ctx = &mut *self.machine.ctx;
        for &field in &program.field_lists[list.index()].fields {
            let field = &program.fields[field.index()];
            let (bit, width) = (field.offset as usize, usize::from(field.width));
            if ctx.is_valid(field.header) {
                bits::copy(
                    &ctx.snapshots[usize::from(snapshot)].packet.phv,
                    bit,
                    &mut ctx.packet.phv,
                    bit,
                    width,
                );
                if field.variable {
                    let filled = ctx.snapshots[usize::from(snapshot)].packet.filled[field.header.index()];
                    ctx.packet.filled[field.header.index()] = filled;
                }
            }
        }
    }

    /// Clones the packet as it was received, for a clone session.
    pub(super) fn clone_as_it_came(&mut self, session: u64, list: Option<FieldListId>) {
        let Some(session) = self.machine.state.session(session) else {
            self.drop(Drop::NoReplica);
            return;
        };
        let Some(saved) = self.machine.ctx.save() else {
            self.drop(Drop::Copies);
            return;
        };
        self.machine.ctx.snapshots[usize::from(saved)].users = 1;
        let engine = self.machine.engine;
        let port = self.machine.get(engine.standard.ingress_port);
        self.reset_headers();
        self.reset_metadata();
        self.machine.set(engine.standard.ingress_port, port);
        self.parse();
        self.machine.ctx.deferred = Deferred::default();
        self.keep(saved, list);
        self.machine.ctx.packet.truncate = session.max_length.unwrap_or(usize::MAX);
        let passes = self.passes;
        self.replicate(
            &session.replicas(self.machine.state),
            instance::INGRESS_CLONE,
            passes,
        );
        self.machine.ctx.restore(saved);
        self.machine.ctx.snapshots[usize::from(saved)].users = 0;
    }

    /// Clones the packet as it is at the end of egress, for a clone session.
    pub(super) fn clone_as_it_is(&mut self, session: u64, list: Option<FieldListId>) {
        if self.passes >= MAX_PASSES {
            self.drop(Drop::Passes);
            return;
        }
        let Some(session) = self.machine.state.session(session) else {
            self.drop(Drop::NoReplica);
            return;
        };
        let Some(saved) = self.machine.ctx.save() else {
            self.drop(Drop::Copies);
            return;
        };
        self.machine.ctx.snapshots[usize::from(saved)].users = 1;
        self.keep(saved, list);
        self.machine.ctx.deferred = Deferred::default();
        self.machine.ctx.packet.truncate = session.max_length.unwrap_or(usize::MAX);
        let passes = self.passes + 1;
        self.replicate(
            &session.replicas(self.machine.state),
            instance::EGRESS_CLONE,
            passes,
        );
        self.machine.ctx.restore(saved);
        self.machine.ctx.snapshots[usize::from(saved)].users = 0;
    }

    /// Begins another pass, at once if no copy waits, else behind the waiting copies.
    pub(super) fn again(&mut self, instance: u8) -> After {
        self.passes += 1;
        if self.machine.ctx.waiting.is_empty() {
            if !self.machine.ctx.take_spare_pass() {
                return self.drop(Drop::Passes);
            }
            return After::Again(instance);
        }
        self.wait(CopyKind::Ingress { instance })
    }

    /// Keeps fields over a pass and makes all headers invalid.
    pub(super) fn keep_over(&mut self, list: Option<FieldListId>) -> bool {
        if list.is_none() {
            self.reset_headers();
            self.reset_metadata();
            return true;
        }
        let Some(saved) = self.machine.ctx.save() else {
            return false;
        };
        self.reset_headers();
        self.keep(saved, list);
        true
    }

    pub(super) fn resubmit(&mut self, list: Option<FieldListId>) -> After {
        if self.passes >= MAX_PASSES {
            return self.drop(Drop::Passes);
        }
        self.outcome(Outcome::Resubmitted);
        if !self.keep_over(list) {
            return self.drop(Drop::Copies);
        }
        self.machine.ctx.packet.truncate = usize::MAX;
        self.again(instance::RESUBMITTED)
    }
}
