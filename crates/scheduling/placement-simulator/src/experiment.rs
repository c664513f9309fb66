//! The experiments: workloads, contenders, and the sweep over numbers of pairs.

use crate::machine::Machine;
use crate::world::{Counters, Traffic, World};
use placement::{Config, Mode, Policy};
use serde::Serialize;

/// Numbers of pairs: all of them up to 8, where the paper's regions are, then fewer.
pub const PAIRS: [usize; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64];

/// The traffic between guests, and how it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// For JSON.
    pub name: &'static str,
    /// For readers.
    pub title: &'static str,
    /// Bytes per packet.
    pub bytes: u64,
    /// Packets under way per pair.
    pub window: u32,
    /// Numbers of pairs to measure.
    pub pairs: &'static [usize],
    /// Modelled time of the measurement, in nanoseconds. Half as much time passes before it, for windows to
    /// open and schedulers to settle.
    pub counted_ns: u64,
    /// Unit of the results.
    pub unit: Unit,
}

/// The unit of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Gb/s of payload.
    Gigabits,
    /// Thousands of packets per second that were answered.
    KiloTransactions,
}

/// Streams of 64 KiB packets, as in the paper's Figure 7.
pub const LARGE: Workload = Workload {
    name: "stream-64k",
    title: "streams, 64 KiB packets",
    bytes: 65_536,
    window: 16,
    pairs: &PAIRS,
    counted_ns: 40_000_000,
    unit: Unit::Gigabits,
};

/// The paper's Figure 7 as the text gives it (section 5.2.1): pairs of guests, and Gb/s. The text has figures
/// for 1, 4 and 7 pairs, says that the curve is almost straight between 1 and 4 and straight between 4 and 7,
/// and flat from 8 to 16.
pub const FIGURE_7: [(usize, f64); 11] = [
    (1, 16.2),
    (2, 31.7),
    (3, 47.2),
    (4, 62.7),
    (5, 68.8),
    (6, 74.9),
    (7, 81.0),
    (8, 81.0),
    (10, 81.0),
    (12, 81.0),
    (16, 81.0),
];

/// Numbers of pairs for which [`FIGURE_7`] has what the text says of the curve's shape, and no figure of the
/// text.
pub const ON_A_LINE: [usize; 4] = [2, 3, 5, 6];

/// The peaks of Figure 7 that the text gives for the others: the paper's name, the contender that comes
/// nearest, Gb/s.
pub const OTHER_PEAKS: [(&str, &str, f64); 2] = [
    ("KVM", "thread-per-vnic", 47.0),
    ("Xen", "driver-domain, 8 cores", 31.0),
];

/// The points of [`FIGURE_7`] that are put in: the costs of the paper's machine are such that the policy with
/// the paper's criteria ([`Contender::papers_criteria`]) gets these results. All other points are
/// predictions.
pub const PUT_IN: [usize; 2] = [1, 16];

/// Streams of small packets. There are so many packets that the measured time is shorter.
pub const SMALL: Workload = Workload {
    name: "stream-1500",
    title: "streams, 1500-byte packets",
    bytes: 1_500,
    window: 16,
    pairs: &[1, 2, 4, 8, 16, 32, 64],
    counted_ns: 10_000_000,
    unit: Unit::Gigabits,
};

/// One small packet at a time, as in the paper's Figure 6.
pub const REQUESTS: Workload = Workload {
    name: "request-response",
    title: "requests and responses, 64 bytes",
    bytes: 64,
    window: 1,
    pairs: SMALL.pairs,
    counted_ns: 20_000_000,
    unit: Unit::KiloTransactions,
};

/// A configuration to compare.
#[derive(Clone, Debug)]
pub struct Contender {
    /// For readers.
    pub name: String,
    /// The configuration.
    pub config: Config,
}

/// The change of the configuration that an ablation makes.
type Change = fn(&mut Config);

/// One result.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Point {
    /// Pairs of guests.
    pub pairs: usize,
    /// Gb/s, or thousands of transactions per second.
    pub value: f64,
    /// Average number of cores at work, without those that only poll.
    pub busy_cores: f64,
    /// Average number of cores that polled without finding work.
    pub polling_cores: f64,
    /// Events in the measured time.
    pub counters: Counters,
}

impl Contender {
    fn new(name: impl Into<String>, config: Config) -> Self {
        Contender {
            name: name.into(),
            config,
        }
    }

    /// The product's defaults.
    pub fn default_policy() -> Self {
        Contender::new("hyperswitch", Config::default())
    }

    /// The paper's criteria for offloading (section 5.2.3) instead of ours: idle modules of the receiver's
    /// node, then of other nodes, and no core beside a busy one. Everything else is as in
    /// [`Contender::default_policy`].
    pub fn papers_criteria() -> Self {
        let config = Config {
            busy_modules: false,
            other_nodes: true,
            ..Config::default()
        };
        Contender::new("hyperswitch, paper's criteria", config)
    }

    /// The modes for comparison, with each number of dedicated cores that the machine suggests.
    pub fn comparison(machine: &Machine) -> Vec<Self> {
        let in_mode = |mode| Config {
            mode,
            ..Config::default()
        };
        let dedicating = |mode, name: &str, cores: u16| {
            let every = machine.cpus() / cores;
            let dedicated_cores = (1..=cores).map(|number| number * every - 1).collect();
            let plural = if cores == 1 { "" } else { "s" };
            Contender::new(
                format!("{name}, {cores} core{plural}"),
                Config {
                    dedicated_cores,
                    ..in_mode(mode)
                },
            )
        };
        let counts = || machine.dedicated.iter().copied();
        let polling = counts().map(|cores| dedicating(Mode::Poll, "poll", cores));
        let driver_domains = counts().map(|cores| dedicating(Mode::DriverDomain, "driver-domain", cores));
        let threads = Contender::new("thread-per-vnic", in_mode(Mode::ThreadPerVnic));
        polling.chain([threads]).chain(driver_domains).collect()
    }

    /// The default with one mechanism off at a time.
    pub fn ablations() -> Vec<Self> {
        let off: [(&str, Change); 10] = [
            ("vm-state", |config| config.vm_state = false),
            ("state-aware-batching", |config| {
                config.state_aware_batching = false
            }),
            ("kick-interval-us", |config| config.kick_interval_us = 0),
            ("preemptive-copy", |config| config.preemptive_copy = false),
            ("offload", |config| config.offload = false),
            ("busy-modules", |config| config.busy_modules = false),
            ("poll-transmit", |config| config.poll_transmit = false),
            ("hysteresis-us", |config| config.hysteresis_us = 0),
            ("give-way", |config| config.give_way = false),
            ("serve-on-block", |config| config.serve_on_block = false),
        ];
        let without = |(name, change): (&str, Change)| {
            let mut config = Config::default();
            change(&mut config);
            Contender::new(name, config)
        };
        off.map(without).into()
    }
}

/// Seed of the jitter in the times of guests and switch. It is fixed, so that every run gives the same
/// results.
const SEED: u64 = 1;

/// Measures one contender with one number of pairs.
pub fn measure(machine: &Machine, contender: &Contender, workload: &Workload, pairs: usize) -> Point {
    let policy = Policy::new(
        contender.config.clone(),
        machine.topology(),
        machine.policy_costs(),
    );
    let traffic = Traffic {
        pairs,
        bytes: workload.bytes,
        window: workload.window,
    };
    let mut world = World::new(machine, &policy, traffic, SEED);
    world.run(workload.counted_ns / 2);
    let counters = world.run(workload.counted_ns);
    let time = workload.counted_ns as f64;
    let value = match workload.unit {
        Unit::Gigabits => counters.bytes as f64 * 8.0 / time,
        Unit::KiloTransactions => counters.packets as f64 * 1e6 / time,
    };
    Point {
        pairs,
        value,
        busy_cores: counters.busy_ns as f64 / time,
        polling_cores: counters.polling_ns as f64 / time,
        counters,
    }
}

/// Measures one contender with all numbers of pairs.
pub fn sweep(machine: &Machine, contender: &Contender, workload: &Workload) -> Vec<Point> {
    workload
        .pairs
        .iter()
        .map(|pairs| measure(machine, contender, workload, *pairs))
        .collect()
}
