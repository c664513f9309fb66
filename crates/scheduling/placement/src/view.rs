//! The state of the machine, as a caller shows it to the policy. The policy asks while packets are forwarded,
//! so an answer must not wait: it may take a few loads, a lock that is held no longer than these take, and
//! the clock. For cores and vCPUs whose state is unknown there is a value that says so, with which the policy
//! stays on the safe side.

use crate::topology::Cpu;

/// Number of a guest interface, from the caller's own numbering. Numbers given out in sequence spread best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VnicId(pub u32);

/// The state of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoreState {
    /// The core runs nothing; its worker sleeps and has to be woken.
    Idle,
    /// The core runs the data plane's worker of this core.
    Worker {
        /// Number of messages in the worker's buffer that it has not taken yet.
        depth: u16,
        /// The worker has nothing to do and looks for work (hysteresis).
        polling: bool,
    },
    /// The core runs a vCPU of a guest that is attached to us.
    Guest,
    /// The core runs another task, or its state is unknown: it is never chosen as a helper.
    Other,
}

/// The state of the vCPU that serves a vNIC, of a guest with several the most active one. Each state names
/// the CPU on which it ran last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VcpuState {
    /// The vCPU runs on this CPU.
    Running(Cpu),
    /// The vCPU waits for this CPU.
    Runnable(Cpu),
    /// The vCPU waits for an event, for example for packets.
    Blocked(Cpu),
    /// The vCPU's state is unknown: a polling driver, or a process without the privilege to read states.
    Unknown,
}

/// The state of the machine as its caller knows it. All answers may be out of date.
pub trait View {
    /// Monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;

    /// The core's state; [`CoreState::Other`] for unknown CPUs.
    fn core(&self, cpu: Cpu) -> CoreState;

    /// Of the CPUs from `64 * word` on, a bit for each of `among` that is [`CoreState::Idle`]: the same state
    /// as that of [`core`](Self::core), a moment earlier or later.
    fn idle(&self, word: usize, among: u64) -> u64 {
        bits(word, among, |cpu| self.core(cpu) == CoreState::Idle)
    }

    /// Of the CPUs from `64 * word` on, a bit for each of `among` whose worker looks for work, as with
    /// [`idle`](Self::idle).
    fn polling(&self, word: usize, among: u64) -> u64 {
        bits(word, among, |cpu| {
            matches!(self.core(cpu), CoreState::Worker { polling: true, .. })
        })
    }

    /// Whether a task that is not ours waits for this core.
    fn wanted(&self, cpu: Cpu) -> bool;

    /// Whether another task than our worker runs on this core and keeps it, instead of blocking now and then.
    fn is_contended(&self, cpu: Cpu) -> bool;

    /// Whether a vCPU that waits for something ran on this core last and is expected back.
    fn expects_vcpu(&self, cpu: Cpu) -> bool;

    /// The state of the vNIC's vCPU.
    fn vcpu(&self, vnic: VnicId) -> VcpuState;

    /// The state of the vCPU that sends for the vNIC, if it is known which one of a guest's does; else as
    /// [`vcpu`](Self::vcpu).
    fn sender(&self, vnic: VnicId) -> VcpuState {
        self.vcpu(vnic)
    }

    /// The state of the vCPU that takes the vNIC's interrupts, if it is known which one of a guest's does;
    /// else as [`vcpu`](Self::vcpu).
    fn receiver(&self, vnic: VnicId) -> VcpuState {
        self.vcpu(vnic)
    }

    /// The core whose worker copies to the vNIC now, or was asked to copy and has not begun.
    fn copying(&self, vnic: VnicId) -> Option<Cpu>;
}

/// Bits of those of 64 CPUs that are in `among` and for which `is_set` holds.
fn bits(word: usize, among: u64, is_set: impl Fn(Cpu) -> bool) -> u64 {
    let first = word * 64;
    let cpu = |bit: usize| u16::try_from(first + bit).map(Cpu);
    let asked = (0..64).filter(|bit| among >> bit & 1 == 1);
    asked.fold(0, |bits, bit| {
        bits | u64::from(cpu(bit).is_ok_and(&is_set)) << bit
    })
}
