//! The shared memory without a kernel that writes to it, for tests and measurements of readers: calls publish
//! what the programs would.

use crate::area::{Area, BUCKETS, KNOWN, Kind, WAYS};
use crate::kernel::Mapping;
use crate::state::{Slot, ThreadState};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// See the module's description. Begins with nothing known.
pub struct TestArea {
    memory: OwnedFd,
    area: Mapping,
}

impl TestArea {
    /// # Errors
    /// As memfd_create(2) and mmap(2).
    pub fn new() -> io::Result<TestArea> {
        let memory = memfd_create("vm-state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, size_of::<Area>() as u64)?;
        // As the memory of a map, it cannot shrink.
        fcntl_add_seals(&memory, SealFlags::SHRINK)?;
        let area = Mapping::new(memory.as_fd(), true)?;
        Ok(TestArea { memory, area })
    }

    /// The memory that readers map.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Publishes that the core runs this task, and no other is runnable there; 0 for none. Cores from 1024 on
    /// are ignored.
    pub fn runs(&self, cpu: u32, tid: u32) {
        let Some(core) = self.area.cores.get(cpu as usize) else {
            return;
        };
        core.task.store(KNOWN | u64::from(tid), Relaxed);
        core.runnable.store(u32::from(tid != 0), Relaxed);
        let cores = &self.area.idle[cpu as usize / 64].0[cpu as usize / 8 % 8];
        let bit = 1u64 << (cpu % 8 * 8);
        let idle = if tid == 0 { bit } else { 0 };
        cores.store((cores.load(Relaxed).to_le() & !bit | idle).to_le(), Relaxed);
    }

    /// Publishes that the task with this number woke one on the core. Cores from 1024 on are ignored.
    pub fn wakes(&self, cpu: u32, waker: u32) {
        if let Some(core) = self.area.cores.get(cpu as usize) {
            core.waker.store(waker, Relaxed);
        }
    }

    /// Publishes that the task which has the core wakes the one with this number. Cores from 1024 on are
    /// ignored.
    pub fn wakes_from(&self, cpu: u32, woken: u32) {
        if let Some(core) = self.area.cores.get(cpu as usize) {
            let count = (core.woken.load(Relaxed) >> 32).wrapping_add(1);
            core.woken.store(count << 32 | u64::from(woken), Relaxed);
        }
    }

    /// Publishes that so many tasks are runnable on the core besides the one that has it, until
    /// [`runs`](Self::runs) is called. Cores from 1024 on are ignored.
    pub fn wanted(&self, cpu: u32, others: u32) {
        if let Some(core) = self.area.cores.get(cpu as usize) {
            let running = u32::from(core.task.load(Relaxed) as u32 != 0);
            core.runnable.store(running + others, Relaxed);
        }
    }

    /// Registers a thread in this state; `None` when there is no place for it.
    pub fn thread(&self, tid: u32, state: ThreadState) -> Option<Slot> {
        let bucket = tid as usize % BUCKETS;
        let free = |way: &usize| {
            let known = self.area.buckets[bucket].0[*way].tid.load(Relaxed);
            known == 0 || known == tid
        };
        let way = (0..WAYS).find(free)?;
        let thread = &self.area.buckets[bucket].0[way];
        thread.tid.store(tid, Relaxed);
        let word = match state {
            ThreadState::Running(cpu) => Kind::Running.word() | cpu,
            ThreadState::Runnable(cpu) => Kind::Runnable.word() | cpu,
            ThreadState::Blocked(cpu) => Kind::Blocked.word() | cpu,
            ThreadState::Dead => Kind::Dead.word(),
            ThreadState::Unknown => 0,
        };
        thread.state.store(word, Relaxed);
        if let ThreadState::Blocked(cpu) = state
            && let Some(core) = self.area.cores.get(cpu as usize)
        {
            core.blocked.store(tid, Relaxed);
        }
        Some(Slot((bucket * WAYS + way) as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VmState;

    #[test]
    fn idle_cores_and_expected_threads_are_seen() {
        let area = TestArea::new().unwrap();
        let state = VmState::map(area.descriptor()).unwrap();
        assert_eq!(
            (
                state.idle(0, u64::MAX),
                state.idle(15, u64::MAX),
                state.idle(16, u64::MAX)
            ),
            (0, 0, 0)
        );
        for cpu in [0, 7, 8, 63, 64, 1023] {
            area.runs(cpu, 0);
        }
        assert_eq!(state.idle(0, u64::MAX), 1 | 1 << 7 | 1 << 8 | 1 << 63);
        assert_eq!((state.idle(1, u64::MAX), state.idle(15, u64::MAX)), (1, 1 << 63));
        assert_eq!(state.idle(0, 1 << 7 | 1 << 9), 1 << 7);
        assert_eq!(state.idle(0, 0), 0);
        area.runs(7, 4711);
        assert_eq!(state.idle(0, u64::MAX), 1 | 1 << 8 | 1 << 63);

        let slot = area.thread(100, ThreadState::Blocked(8)).unwrap();
        assert_eq!(state.thread(slot), ThreadState::Blocked(8));
        assert!(state.expects(8) && !state.expects(0) && !state.expects(5000));
        area.thread(100, ThreadState::Runnable(8));
        assert!(!state.expects(8), "it is back");
        area.thread(100, ThreadState::Blocked(9));
        assert!(!state.expects(8) && state.expects(9));
    }
}
