//! The costs that the policy weighs: the times that waking and copying take.

/// The costs of moving work on this machine. The time for waking differs by an order of magnitude between
/// bare metal and nested virtualisation, so it is measured when the data plane starts; the rates of copying
/// matter less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Time that waking an idle core takes from the core that wakes it, in nanoseconds.
    pub wake_waker_ns: u64,
    /// Time that a task loses when a worker takes its core from it for a moment, in nanoseconds.
    pub take_core_ns: u64,
    /// Time to copy a packet, besides its bytes, in nanoseconds.
    pub copy_packet_ns: u64,
    /// Time to copy 1024 bytes, in nanoseconds.
    pub copy_kib_ns: u64,
}

impl Default for Costs {
    /// A recent machine without a hypervisor under it.
    fn default() -> Self {
        Costs {
            wake_waker_ns: 2_000,
            take_core_ns: 1_500,
            copy_packet_ns: 50,
            copy_kib_ns: 80,
        }
    }
}
