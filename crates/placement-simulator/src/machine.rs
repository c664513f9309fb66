//! The machines and what things cost on them.

use placement::{Cpu, Shape, Topology};

/// How far a core is from another one, or from data that another one used last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// The same core.
    Core,
    /// A core of the same module: a shared second-level cache.
    Module,
    /// A shared last-level cache.
    Llc,
    /// The same NUMA node.
    Node,
    /// Another node.
    Remote,
}

/// Times in nanoseconds, unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// For a guest to build a packet and put it in its transmit ring.
    pub guest_transmit: u64,
    /// For a guest to take a packet from its receive ring through its network stack, besides the bytes.
    pub guest_receive: u64,
    /// For a guest to receive or send an acknowledgement.
    pub guest_acknowledge: u64,
    /// Factor by which a guest handles bytes of a received packet slower than the switch copies them.
    pub guest_byte_factor: f64,
    /// To look at a transmit ring, take a batch and publish what was used.
    pub switch_batch: u64,
    /// To switch a packet: snapshot, key, look-up, actions.
    pub switch_packet: u64,
    /// To ask the placement policy, once per burst (`datapath::decision_cost` measures it).
    pub decide: u64,
    /// To copy a packet, besides its bytes.
    pub copy_packet: u64,
    /// To copy 1024 bytes that were used at a distance, by [`Distance`].
    pub copy_kib: [u64; 5],
    /// For a guest to leave itself for a kick.
    pub kick: u64,
    /// For the switch to call a guest.
    pub call: u64,
    /// For a running guest to be interrupted.
    pub interrupt: u64,
    /// For a guest to halt, and to come back.
    pub halt: u64,
    /// For the waker to wake an idle core.
    pub wake: u64,
    /// Until the idle core works.
    pub wake_latency: u64,
    /// For the waker to make a task runnable on a core that is not idle.
    pub wake_busy: u64,
    /// To change from one task to another.
    pub context_switch: u64,
    /// To put a message in a core's buffer, and to take it out.
    pub message: u64,
    /// Until a polling worker sees what was put in a ring or in its buffer.
    pub poll: u64,
    /// Factor by which a core works slower while another one of its module works.
    pub interference: f64,
    /// Bytes per nanosecond (GB/s) that a node's memory moves.
    pub memory: f64,
    /// Bytes moved to and from memory per byte that is copied or read by a guest.
    pub memory_per_byte: f64,
}

/// A machine of the experiments.
#[derive(Clone, Debug)]
pub struct Machine {
    /// For file names.
    pub name: &'static str,
    /// For readers.
    pub title: &'static str,
    /// Its processors.
    pub shape: Shape,
    /// Times.
    pub costs: Costs,
    /// How many cores the modes with dedicated cores are given, each of which is tried.
    pub dedicated: &'static [u16],
    /// The largest number of guest pairs that is tried.
    pub most_pairs: usize,
}

/// The machine of the paper (section 5.1): two Opteron 6274 of 2.2 GHz, 32 cores, Xen.
///
/// Used as input: that one pair reaches 16.2 Gb/s, from which a guest's time per packet follows once the times per byte are
/// given. `interference` is what AMD said about the two cores of a module (80 % of two separate ones each: Butler
/// et al., IEEE Micro 31(2), 2011). `memory` is the 12.8 GB/s of a channel of DDR3-1600, two per node, of which
/// three fifths are taken to be attainable; a byte that is copied is read, fetched for writing, and written. All else is
/// an estimate for a processor of its time. What Figure 7 says beyond one pair is not used.
const OPTERON: Costs = Costs {
    guest_transmit: 11_000,
    guest_receive: 7_300,
    guest_acknowledge: 1_000,
    guest_byte_factor: 1.25,
    switch_batch: 500,
    switch_packet: 2_000,
    decide: 60,
    copy_packet: 1_000,
    copy_kib: [200, 250, 300, 450, 450],
    kick: 2_000,
    call: 1_000,
    interrupt: 3_000,
    halt: 2_000,
    wake: 2_000,
    wake_latency: 8_000,
    wake_busy: 1_000,
    context_switch: 1_500,
    message: 200,
    poll: 200,
    interference: 1.25,
    memory: 15.4,
    memory_per_byte: 3.0,
};

/// A server of today without a hypervisor under it. Copies out of second- and third-level cache are those measured on
/// a Zen 3 core (175 and 80 Gb/s); from other complexes and nodes they are estimates, as are the guest's times.
const MODERN: Costs = Costs {
    guest_transmit: 4_000,
    guest_receive: 2_000,
    guest_acknowledge: 400,
    guest_byte_factor: 1.25,
    switch_batch: 100,
    switch_packet: 100,
    decide: 60,
    copy_packet: 60,
    copy_kib: [47, 60, 102, 150, 230],
    kick: 1_500,
    call: 600,
    interrupt: 1_500,
    halt: 1_000,
    wake: 2_000,
    wake_latency: 5_000,
    wake_busy: 800,
    context_switch: 1_000,
    message: 100,
    poll: 100,
    interference: 1.5,
    memory: 150.0,
    memory_per_byte: 2.0,
};

/// The machines: the paper's, two larger ones, and a small virtual one on which waking takes long.
pub fn machines() -> Vec<Machine> {
    vec![
        Machine {
            name: "opteron-6274",
            title: "2 x Opteron 6274 (32 cores, 4 nodes)",
            shape: Shape {
                nodes: 4,
                llcs: 1,
                modules: 4,
                cpus: 2,
            },
            costs: OPTERON,
            dedicated: &[4, 8],
            most_pairs: 64,
        },
        Machine {
            name: "single-64",
            title: "64 cores, one socket, complexes of 8",
            shape: Shape {
                nodes: 1,
                llcs: 8,
                modules: 8,
                cpus: 1,
            },
            costs: MODERN,
            dedicated: &[8, 16],
            most_pairs: 64,
        },
        Machine {
            name: "dual-32",
            title: "2 x 32 cores, two sockets, with SMT",
            shape: Shape {
                nodes: 2,
                llcs: 1,
                modules: 32,
                cpus: 2,
            },
            costs: Costs {
                memory: 120.0,
                ..MODERN
            },
            dedicated: &[8, 16],
            most_pairs: 64,
        },
        Machine {
            name: "virtual-2",
            title: "2 cores of a virtual machine",
            shape: Shape {
                nodes: 1,
                llcs: 1,
                modules: 2,
                cpus: 1,
            },
            // Waking was measured: 11 to 12 us of the waker's time, 20 to 24 us until the other thread runs.
            costs: Costs {
                wake: 11_500,
                wake_latency: 22_000,
                kick: 3_000,
                interrupt: 3_000,
                wake_busy: 3_000,
                memory: 40.0,
                ..MODERN
            },
            dedicated: &[1],
            most_pairs: 64,
        },
    ]
}

impl Machine {
    /// Its topology, as the policy sees it.
    pub fn topology(&self) -> Topology {
        Topology::regular(self.shape)
    }

    /// How many CPUs it has.
    pub fn cpus(&self) -> u16 {
        self.shape.nodes * self.shape.llcs * self.shape.modules * self.shape.cpus
    }

    /// What the policy is told about costs; the data plane measures the first two at start.
    pub fn policy_costs(&self) -> placement::Costs {
        placement::Costs {
            wake_waker_ns: self.costs.wake,
            take_core_ns: 2 * self.costs.context_switch,
            copy_packet_ns: self.costs.copy_packet,
            copy_kib_ns: self.costs.copy_kib[Distance::Llc as usize],
        }
    }

    /// How far two cores are from each other.
    pub fn distance(&self, one: Cpu, other: Cpu) -> Distance {
        let Shape {
            llcs, modules, cpus, ..
        } = self.shape;
        let module = |cpu: Cpu| cpu.0 / cpus;
        let llc = |cpu: Cpu| module(cpu) / modules;
        match () {
            () if one == other => Distance::Core,
            () if module(one) == module(other) => Distance::Module,
            () if llc(one) == llc(other) => Distance::Llc,
            () if llc(one) / llcs == llc(other) / llcs => Distance::Node,
            () => Distance::Remote,
        }
    }

    /// Node of the CPU.
    pub fn node(&self, cpu: Cpu) -> usize {
        usize::from(cpu.0 / self.shape.cpus / self.shape.modules / self.shape.llcs)
    }
}
