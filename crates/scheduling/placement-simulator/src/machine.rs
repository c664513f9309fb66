//! The modelled machines, and the costs of operations on them.

use placement::{Cpu, Shape, Topology};

/// The distance of a core from another one, or from data that another one used last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// Distance of a core from itself.
    Core,
    /// A core of the same module: a shared second-level cache.
    Module,
    /// A shared last-level cache.
    Llc,
    /// Another core of the NUMA node.
    Node,
    /// Another node.
    Remote,
}

/// The costs of operations on a modelled machine: times in nanoseconds, unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub struct ModelCosts {
    /// A guest builds a packet and puts it in its transmit ring.
    pub guest_transmit: u64,
    /// A guest takes a packet from its receive ring through its network stack, besides the bytes.
    pub guest_receive: u64,
    /// A guest receives or sends an acknowledgement.
    pub guest_acknowledge: u64,
    /// Factor by which a guest handles the bytes of a received packet more slowly than the switch copies
    /// them.
    pub guest_byte_factor: f64,
    /// A worker looks at a transmit ring, takes a batch and publishes the used descriptors.
    pub switch_batch: u64,
    /// A worker switches a packet: snapshot, key, look-up, actions.
    pub switch_packet: u64,
    /// A worker asks the placement policy which core is to do a piece of work: once per burst, per kick, and
    /// whenever work is handed over.
    pub decide: u64,
    /// A worker copies a packet, besides its bytes.
    pub copy_packet: u64,
    /// A worker copies 1024 bytes that were used at a distance, by [`Distance`].
    pub copy_kib: [u64; 5],
    /// A guest exits to the hypervisor for a kick.
    pub kick: u64,
    /// A worker calls a guest.
    pub call: u64,
    /// A running guest is interrupted.
    pub interrupt: u64,
    /// A guest halts, and comes back.
    pub halt: u64,
    /// The waker wakes an idle core.
    pub wake: u64,
    /// Time until the idle core works.
    pub wake_latency: u64,
    /// The waker makes a task runnable on a core that is not idle.
    pub wake_busy: u64,
    /// A core changes from one task to another.
    pub context_switch: u64,
    /// A worker puts a message in another's buffer, or takes it out.
    pub message: u64,
    /// Time until a polling worker sees a new entry in a ring or in its buffer.
    pub poll: u64,
    /// Factor by which a core works more slowly while another one of its module works.
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
    /// Processors of the machine.
    pub shape: Shape,
    /// Times.
    pub costs: ModelCosts,
    /// Numbers of cores that the modes with dedicated cores are tried with.
    pub dedicated: &'static [u16],
    /// The largest number of guest pairs that is tried.
    pub most_pairs: usize,
}

/// The machine of the paper (section 5.1): two Opteron 6274 of 2.2 GHz, 32 cores, Xen.
///
/// Two results of the paper are inputs, each put in by one figure here
/// ([`PUT_IN`](crate::experiment::PUT_IN)), with the paper's criteria for offloading:
///
/// * One pair reaches 16.2 Gb/s: `guest_receive`, once the times per byte are given, as the receiver is the
///   slowest stage.
/// * 16 pairs reach 81 Gb/s, and no number of pairs more: `memory`. That it is less than the 25.6 GB/s of two
///   channels of DDR3-1600 is plausible, and no more: it is not measured. A byte that is copied is taken to
///   be read, fetched for writing, and written.
///
/// `interference` is AMD's figure for the two cores of a module (each has 80 % of a separate one: Butler et
/// al., IEEE Micro 31(2), 2011). All other times are estimates for a processor of that age. The other results
/// of Figure 7, of the other policies and of all other workloads are predictions.
const OPTERON: ModelCosts = ModelCosts {
    guest_transmit: 11_000,
    guest_receive: 7_300,
    guest_acknowledge: 1_000,
    guest_byte_factor: 1.25,
    switch_batch: 500,
    switch_packet: 2_000,
    decide: 200,
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
    memory: 15.2,
    memory_per_byte: 3.0,
};

/// A server of today without a hypervisor under it. Copies out of second- and third-level cache are those
/// measured on a Zen 3 core (175 and 80 Gb/s), and `decide` is what a decision took on an AMD EPYC (the
/// command is in `crates/scheduling/scheduler/src/decision_cost.rs`). All other figures are estimates.
const MODERN: ModelCosts = ModelCosts {
    guest_transmit: 4_000,
    guest_receive: 2_000,
    guest_acknowledge: 400,
    guest_byte_factor: 1.25,
    switch_batch: 100,
    switch_packet: 100,
    decide: 64,
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

/// Name of the paper's machine.
pub const PAPERS: &str = "opteron-6274";

/// The machines: the paper's, two larger ones, and a small virtual one on which waking takes long.
pub fn machines() -> Vec<Machine> {
    vec![
        Machine {
            name: PAPERS,
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
            costs: ModelCosts {
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
            // The first two were measured on two virtual cores of an AMD EPYC (`tests/wake_up.rs`, medians of
            // six runs: 4.6 to 9.7 us and 20 to 27 us); the others are estimates.
            costs: ModelCosts {
                wake: 8_600,
                wake_latency: 24_000,
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
    /// Topology of the machine, as the policy sees it.
    pub fn topology(&self) -> Topology {
        Topology::regular(self.shape)
    }

    /// How many CPUs it has.
    pub fn cpus(&self) -> u16 {
        self.shape.nodes * self.shape.llcs * self.shape.modules * self.shape.cpus
    }

    /// The costs that the policy is given; the data plane measures the first two at start.
    pub fn policy_costs(&self) -> placement::Costs {
        placement::Costs {
            wake_waker_ns: self.costs.wake,
            take_core_ns: 2 * self.costs.context_switch,
            copy_packet_ns: self.costs.copy_packet,
            copy_kib_ns: self.costs.copy_kib[Distance::Llc as usize],
        }
    }

    /// The distance between two cores.
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
