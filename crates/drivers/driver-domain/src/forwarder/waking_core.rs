//! The core from which an interface's thread is woken.
//!
//! To wake a thread of another core takes an interrupt from core to core, and that core has to stop halting:
//! on a virtual machine longer than forwarding a frame takes. The kernel wakes a real-time thread on the core
//! where it ran last, wherever the waker is. So the thread moves to the core from which it is woken: that of
//! the task which sends through the interface, as the kernel's bridge forwards there, and if nobody sends,
//! that of the worker which delivers to the interface. (Workers go where the interface's thread is.) Then a
//! frame passes from thread to thread within one core.
//!
//! The eBPF programs publish whom each core has woken last (`vm-state`). A look reads a line of each core, so
//! only some wake-ups in sequence are looked at, once in a while. Without published states nothing is known,
//! and the kernel chooses the core.

use rustix::thread::{CpuSet, gettid, sched_getaffinity};
use std::sync::Arc;
use vm_state::{VmState, Woken};

/// Wake-ups from one round of looks to the next.
const PERIOD: u32 = 256;
/// Wake-ups that are looked at in a round.
const LOOKS: u32 = 16;

/// Why the thread was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The data plane delivered frames, or anything else.
    Delivered,
    /// A task sends frames through the interface.
    Sent,
}

/// See the module's description. Belongs to the thread that it is about.
pub struct WakingCore {
    states: Arc<VmState>,
    thread: u32,
    cores: Box<[Core]>,
    /// Wake-ups of this round so far.
    wakeups: u32,
    /// Wake-ups that were looked at in this round, by [`Reason`].
    looked: [u32; 2],
}

/// A core on which the thread may run.
#[derive(Clone, Copy)]
struct Core {
    number: u32,
    /// Whom it had woken at the last look.
    woken: Woken,
    /// How often it had woken the thread, of the wake-ups that were looked at in this round, by [`Reason`].
    times: [u32; 2],
}

impl WakingCore {
    /// For the calling thread; `None` if it may run on one core only.
    pub fn new(states: Arc<VmState>) -> Option<WakingCore> {
        let allowed = sched_getaffinity(None).ok()?;
        let numbers = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let thread = gettid().as_raw_nonzero().get().unsigned_abs();
        let cores: Vec<u32> = numbers.filter_map(|cpu| u32::try_from(cpu).ok()).collect();
        (cores.len() > 1).then(|| WakingCore::of(states, thread, &cores))
    }

    fn of(states: Arc<VmState>, thread: u32, cores: &[u32]) -> WakingCore {
        let core = |&number: &u32| Core {
            number,
            woken: Woken::default(),
            times: [0; 2],
        };
        WakingCore {
            states,
            thread,
            cores: cores.iter().map(core).collect(),
            wakeups: 0,
            looked: [0; 2],
        }
    }

    /// To be called when the thread has woken. Returns the core from which most of its wake-ups come, if
    /// there is one, at the end of a round of looks.
    #[inline]
    pub fn note(&mut self, reason: Reason) -> Option<usize> {
        let number = self.wakeups;
        self.wakeups = (number + 1) % PERIOD;
        if number > LOOKS {
            return None;
        }
        self.look(reason, number > 0);
        if number < LOOKS {
            return None;
        }
        let most = self.most();
        self.looked = [0; 2];
        self.cores.iter_mut().for_each(|core| core.times = [0; 2]);
        most
    }

    /// Looks at whom each core has woken last. What is `fresh` is the thread's last wake-up; otherwise it may
    /// have been an older one.
    #[cold]
    fn look(&mut self, reason: Reason, fresh: bool) {
        let at = reason as usize;
        self.looked[at] += u32::from(fresh);
        for core in &mut self.cores {
            let woken = self.states.woken(core.number);
            if fresh && woken != core.woken && woken.thread() == self.thread {
                core.times[at] += 1;
            }
            core.woken = woken;
        }
    }

    /// The core with more than half of the wake-ups by those who send, or of all others if there are no such
    /// wake-ups.
    fn most(&self) -> Option<usize> {
        let at = usize::from(self.looked[Reason::Sent as usize] > 0);
        let core = self
            .cores
            .iter()
            .find(|core| 2 * core.times[at] > self.looked[at])?;
        usize::try_from(core.number).ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use vm_state::TestArea;

    const THREAD: u32 = 77;

    /// The advice after a round in which each of these cores in turn woke the thread, for that reason.
    fn advice(wakeups: &[(Reason, u32)]) -> Option<usize> {
        let area = TestArea::new().unwrap();
        let states = Arc::new(VmState::map(area.descriptor()).unwrap());
        // Long ago this core woke it, and has woken nobody since.
        area.wakes_from(3, THREAD);
        let mut core = WakingCore::of(states, THREAD, &[0, 1, 2, 3]);
        let mut advice = None;
        for (reason, cpu) in wakeups.iter().cycle().take(PERIOD as usize) {
            area.wakes_from(*cpu, THREAD);
            let new = core.note(*reason);
            assert!(advice.is_none() || new.is_none(), "once in a round");
            advice = advice.or(new);
        }
        advice
    }

    #[test]
    fn it_is_the_core_of_those_who_send() {
        use Reason::{Delivered, Sent};
        assert_eq!(advice(&[(Sent, 2)]), Some(2));
        assert_eq!(advice(&[(Sent, 2), (Delivered, 1)]), Some(2));
        assert_eq!(advice(&[(Sent, 2), (Delivered, 1), (Delivered, 1)]), Some(2));
        assert_eq!(advice(&[(Delivered, 1)]), Some(1), "nobody sends");
    }

    #[test]
    fn without_a_majority_there_is_no_advice() {
        use Reason::{Delivered, Sent};
        assert_eq!(advice(&[(Sent, 0), (Sent, 1)]), None);
        assert_eq!(advice(&[(Delivered, 0), (Delivered, 1)]), None);
        assert_eq!(advice(&[(Sent, 9)]), None, "a core on which it may not run");
        assert_eq!(advice(&[(Sent, 2), (Sent, 2), (Sent, 1)]), Some(2));
    }

    #[test]
    fn a_core_that_has_woken_another_one_since_does_not_count() {
        let area = TestArea::new().unwrap();
        let states = Arc::new(VmState::map(area.descriptor()).unwrap());
        let mut core = WakingCore::of(states, THREAD, &[0, 1]);
        for _ in 0..=LOOKS {
            area.wakes_from(1, THREAD);
            area.wakes_from(1, THREAD + 1);
            assert_eq!(core.note(Reason::Sent), None);
        }
    }
}
