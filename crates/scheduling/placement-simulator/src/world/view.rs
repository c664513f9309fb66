//! The model's state as the policy sees it: the same that the data plane shows it of a real machine.

use super::cores::State;
use super::{Index, Task, World};
use placement::{CoreState, Cpu, VcpuState, View, VnicId, WorkerId};

impl View for World<'_> {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn core(&self, cpu: Cpu) -> CoreState {
        let core = &self.cores[cpu.index()];
        // A task that was woken counts as if it had arrived, as for a scheduler.
        let task = core
            .current
            .or_else(|| core.ready.first().copied())
            .or_else(|| core.coming.first().copied());
        match task {
            None => CoreState::Idle,
            Some(Task::Guest(_)) => CoreState::Guest,
            Some(Task::Worker(worker)) => CoreState::Worker {
                depth: self.workers[worker].inbox.len().try_into().unwrap_or(u16::MAX),
                polling: self.workers[worker].is_polling(),
            },
        }
    }

    fn idle(&self, word: usize, among: u64) -> u64 {
        self.bits(word, CoreState::Idle) & among
    }

    fn polling(&self, word: usize, among: u64) -> u64 {
        let polls = |depth| CoreState::Worker { depth, polling: true };
        // The other workers that poll have found work already.
        self.bits(word, polls(0)) & among
    }

    fn wanted(&self, cpu: Cpu) -> bool {
        let core = &self.cores[cpu.index()];
        core.ready
            .iter()
            .chain(&core.coming)
            .any(|task| matches!(task, Task::Guest(_)))
    }

    fn is_contended(&self, cpu: Cpu) -> bool {
        let worker = self.by_id.get(&WorkerId::Core(cpu));
        worker.is_some_and(|worker| self.is_contended_for(*worker))
    }

    fn expects_vcpu(&self, cpu: Cpu) -> bool {
        let mut guests = self.pinned[cpu.index()].iter();
        guests.any(|guest| self.guests[*guest].scheduled.state == State::Asleep)
    }

    fn vcpu(&self, vnic: VnicId) -> VcpuState {
        let scheduled = &self.guests[vnic.0 as usize].scheduled;
        match scheduled.state {
            State::Running => VcpuState::Running(scheduled.cpu),
            State::Ready | State::Coming => VcpuState::Runnable(scheduled.cpu),
            State::Asleep => VcpuState::Blocked(scheduled.cpu),
        }
    }

    fn copying(&self, vnic: VnicId) -> Option<Cpu> {
        self.ports[vnic.0 as usize]
            .copying
            .map(|worker| self.workers[worker].cpu)
    }
}

impl World<'_> {
    /// Of 64 cores, a bit for each in that state.
    fn bits(&self, word: usize, state: CoreState) -> u64 {
        let end = self.cores.len().min(word * 64 + 64);
        let cores = (word * 64..end).filter(|cpu| self.core(Cpu(*cpu as u16)) == state);
        cores.fold(0, |bits, cpu| bits | 1 << (cpu % 64))
    }
}
