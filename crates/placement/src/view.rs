//! What a caller shows of the machine's state. The policy asks on the way of packets, so an answer must not wait: a few
//! loads, a lock that is held for as long as that takes at most, the clock. Cores and vCPUs whose state is not known have a
//! value that says so, with which the policy stays on the safe side.

use crate::topology::Cpu;

/// Number of a guest interface, from the caller's own numbering. Numbers given out in sequence spread best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vnic(pub u32);

/// What a core is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoreState {
    /// Nothing; its worker sleeps and has to be woken.
    Idle,
    /// It runs its worker of ours.
    Worker {
        /// Messages in the worker's buffer that it has not taken yet.
        depth: u16,
        /// It has nothing to do and looks for work (hysteresis).
        polling: bool,
    },
    /// It runs a vCPU of a guest that is attached to us.
    Guest,
    /// It runs something else, or nobody knows: work is never sent there unasked.
    Other,
}

/// Where the vCPU is that serves a vNIC, the liveliest one of a guest with several; in each case the CPU is the one on which it ran last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VcpuState {
    /// It is running there.
    Running(Cpu),
    /// It wants to run there.
    Runnable(Cpu),
    /// It waits for something, for example for packets.
    Blocked(Cpu),
    /// Nobody knows: a polling driver, a guest with several vCPUs, or a host without the privilege to look.
    Unknown,
}

/// The state of the machine as its caller knows it. All answers may be out of date.
pub trait View {
    /// Monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;

    /// What the core is doing. For CPUs that it does not know, [`CoreState::Other`].
    fn core(&self, cpu: Cpu) -> CoreState;

    /// Of the CPUs from `64 * word` on, a bit for each of `among` that is [`CoreState::Idle`]: the same as
    /// [`core`](Self::core) says, a moment earlier or later.
    fn idle(&self, word: usize, among: u64) -> u64 {
        bits(word, among, |cpu| self.core(cpu) == CoreState::Idle)
    }

    /// Of the CPUs from `64 * word` on, a bit for each of `among` whose worker looks for work, as with [`idle`](Self::idle).
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

    /// Where the vNIC's vCPU is.
    fn vcpu(&self, vnic: Vnic) -> VcpuState;

    /// Where the vCPU is that sends for the vNIC, if that is known of a guest with several; else as [`vcpu`](Self::vcpu).
    fn sender(&self, vnic: Vnic) -> VcpuState {
        self.vcpu(vnic)
    }

    /// The core whose worker copies to the vNIC now, or was asked to and has not begun.
    fn copying(&self, vnic: Vnic) -> Option<Cpu>;
}

/// Answers about those of 64 CPUs that are among the ones in question.
fn bits(word: usize, among: u64, is_set: impl Fn(Cpu) -> bool) -> u64 {
    let first = word * 64;
    let cpu = |bit: usize| u16::try_from(first + bit).map(Cpu);
    let asked = (0..64).filter(|bit| among >> bit & 1 == 1);
    asked.fold(0, |bits, bit| {
        bits | u64::from(cpu(bit).is_ok_and(&is_set)) << bit
    })
}
