//! The metrics: which there are, and the figures of the switch as samples of them.
//!
//! Counters of ports come from the list that `docs/counters.md` and `hyperswitch stats` are made of, so a
//! counter that is added there has a metric. A reason without a packet has no sample: a thousand ports would
//! have a hundred thousand of them.

use crate::exposition::{Exposition, Kind};
use crate::http::Format;
use control_protocol::work::{MISS_BOUNDS_US, WorkReport, WorkerReport};
use management::{Counters, DeviceCounters, PortFigures, Process, Snapshot, SwitchInfo};

/// States of a port.
const STATES: [&str; 5] = ["disconnected", "connected", "running", "broken", "unknown"];

/// All metrics of a switch.
pub fn text(snapshot: &Snapshot, format: Format) -> String {
    let mut to = Exposition::new(format);
    to.family(
        "hyperswitch_build_info",
        Kind::Gauge,
        "Version of the running control process.",
    );
    to.sample(&[("version", &snapshot.version)], 1);
    to.family(
        "hyperswitch_warnings",
        Kind::Gauge,
        "Conditions that need attention, as `hyperswitch status` shows them.",
    );
    to.sample(&[], snapshot.warnings);
    processes(&mut to, &snapshot.processes);
    switches(&mut to, &snapshot.switches);
    ports(&mut to, &snapshot.ports);
    if let Some(work) = &snapshot.work {
        threads(&mut to, work);
        misses(&mut to, work);
    }
    to.finish()
}

fn processes(to: &mut Exposition, processes: &[Process]) {
    to.family(
        "hyperswitch_process_up",
        Kind::Gauge,
        "Whether the process runs and works.",
    );
    for process in processes {
        to.sample(
            &[("role", &process.role)],
            u8::from(process.complaint().is_none()),
        );
    }
    to.family(
        "hyperswitch_process_restarts",
        Kind::Counter,
        "Times that the process was started again after ending unasked.",
    );
    for process in processes {
        to.sample(&[("role", &process.role)], process.restarts);
    }
    to.family(
        "hyperswitch_process_start_time_seconds",
        Kind::Gauge,
        "When the process was started, in seconds since 1970-01-01 UTC.",
    );
    for process in processes {
        if let Some(started_ms) = process.started_ms {
            to.sample(&[("role", &process.role)], seconds(started_ms, 1_000));
        }
    }
}

fn switches(to: &mut Exposition, switches: &[SwitchInfo]) {
    type Figure = fn(&SwitchInfo) -> u64;
    let families: [(&str, Kind, &str, Figure); 6] = [
        (
            "ports",
            Kind::Gauge,
            "Ports, those of host and uplink included.",
            |info| info.ports as u64,
        ),
        ("macs", Kind::Gauge, "MAC addresses known.", |info| {
            info.macs as u64
        }),
        ("flows", Kind::Gauge, "Flows installed.", |info| info.flows as u64),
        (
            "contested_macs",
            Kind::Gauge,
            "MAC addresses that several ports use, where the configuration does not say whose they are.",
            |info| info.contested_macs as u64,
        ),
        (
            "mac_moves",
            Kind::Counter,
            "Times that a MAC address was seen on one port more than it was known to be on.",
            |info| info.mac_moves,
        ),
        (
            "deferred_flows",
            Kind::Counter,
            "Flows that were adapted later, because a port had caused many such changes already.",
            |info| info.deferred_flows,
        ),
    ];
    for (name, kind, help, figure) in families {
        to.family(&format!("hyperswitch_switch_{name}"), kind, help);
        for switch in switches {
            to.sample(&[("switch", switch.config.name.as_str())], figure(switch));
        }
    }
}

fn ports(to: &mut Exposition, ports: &[PortFigures]) {
    to.family(
        "hyperswitch_port_state",
        Kind::Gauge,
        "1 for the state that the port has.",
    );
    for port in ports {
        for state in STATES {
            let labels = [
                ("port", port.name.as_str()),
                ("switch", &port.switch),
                ("state", state),
            ];
            to.sample(&labels, u8::from(port.state == state));
        }
    }
    to.family(
        "hyperswitch_port_problem",
        Kind::Gauge,
        "Whether the port has a problem, which `hyperswitch port show` names.",
    );
    for port in ports {
        to.sample(
            &[("port", &port.name), ("switch", &port.switch)],
            u8::from(port.has_problem),
        );
    }
    counters(to, ports);
    devices(to, ports);
}

/// Devices of uplinks, as the kernel has them.
fn devices(to: &mut Exposition, ports: &[PortFigures]) {
    let all = || {
        ports
            .iter()
            .filter_map(|port| Some((port, port.device.as_ref()?)))
    };
    to.family(
        "hyperswitch_device_carrier",
        Kind::Gauge,
        "1 if the other end of the cable of the uplink's device is there.",
    );
    for (port, device) in all() {
        to.sample(
            &[("port", &port.name), ("switch", &port.switch)],
            u8::from(device.carrier),
        );
    }
    for (name, _) in DeviceCounters::default().numbers() {
        to.family(
            &format!("hyperswitch_device_{name}"),
            Kind::Counter,
            "Counter of an uplink's device; see docs/counters.md.",
        );
        for (port, device) in all() {
            let count = device.counters.numbers().find(|(other, _)| *other == name);
            let count = count.map_or(0, |(_, count)| count);
            to.sample(&[("port", &port.name), ("switch", &port.switch)], count);
        }
    }
}

fn counters(to: &mut Exposition, ports: &[PortFigures]) {
    let counted = || {
        ports
            .iter()
            .filter_map(|port| Some((port, port.counters.as_ref()?)))
    };
    for (name, help, get) in Counters::NUMBERS {
        to.family(&format!("hyperswitch_port_{name}"), Kind::Counter, help);
        for (port, counters) in counted() {
            to.sample(&[("port", &port.name), ("switch", &port.switch)], get(counters));
        }
    }
    for (name, help, get) in Counters::BY_REASON {
        to.family(&format!("hyperswitch_port_{name}"), Kind::Counter, help);
        for (port, counters) in counted() {
            for (reason, count) in get(counters) {
                let labels = [
                    ("port", port.name.as_str()),
                    ("switch", &port.switch),
                    ("reason", reason),
                ];
                to.sample(&labels, count);
            }
        }
    }
    to.family(
        "hyperswitch_port_in_flight",
        Kind::Gauge,
        "Packets that came in and are not accounted for yet.",
    );
    for (port, counters) in counted() {
        to.sample(
            &[("port", &port.name), ("switch", &port.switch)],
            counters.in_flight,
        );
    }
}

fn threads(to: &mut Exposition, work: &WorkReport) {
    let per_second = work.cycles_per_second.max(1);
    type Cycles = fn(&WorkerReport) -> u64;
    let times: [(&str, &str, Cycles); 3] = [
        (
            "busy",
            "Time in steps that moved at least one packet.",
            |worker| worker.busy_cycles,
        ),
        ("awake", "Time not asleep.", |worker| worker.awake_cycles),
        (
            "idle_poll",
            "Time for which the thread kept its core from halting.",
            |worker| worker.idle_poll_cycles,
        ),
    ];
    for (name, help, get) in times {
        to.family(&format!("hyperswitch_thread_{name}_seconds"), Kind::Counter, help);
        for worker in &work.workers {
            to.sample(&[("thread", &worker.name)], seconds(get(worker), per_second));
        }
    }
    for (index, (name, help)) in THREAD_COUNTS.iter().enumerate() {
        to.family(&format!("hyperswitch_thread_{name}"), Kind::Counter, help);
        for worker in &work.workers {
            to.sample(&[("thread", &worker.name)], counts(worker)[index]);
        }
    }
}

/// What threads count, in the order of [`counts`].
const THREAD_COUNTS: [(&str, &str); 9] = [
    ("bursts", "Bursts taken from transmit rings."),
    ("packets", "Packets in these bursts."),
    ("delivered", "Packets (and copies) written into receive rings."),
    ("offloads", "Times the thread handed copies over to another one."),
    (
        "aborts",
        "Times the thread left work to another one, because a task that is not ours was ready to run on its core.",
    ),
    (
        "polls",
        "Rounds of polling transmit rings whose guests need not kick.",
    ),
    ("sleeps", "Times the thread went to sleep."),
    ("wakeups", "Times the thread was woken because there was work."),
    ("kicks", "Kicks of guests that the thread took."),
];

/// A field that is added has to be told of here.
fn counts(worker: &WorkerReport) -> [u64; THREAD_COUNTS.len()] {
    let WorkerReport {
        name: _,
        tid: _,
        busy_cycles: _,
        awake_cycles: _,
        idle_poll_cycles: _,
        bursts,
        packets,
        delivered,
        offloads,
        aborts,
        polls,
        sleeps,
        wakeups,
        kicks,
    } = worker;
    [
        *bursts, *packets, *delivered, *offloads, *aborts, *polls, *sleeps, *wakeups, *kicks,
    ]
}

fn misses(to: &mut Exposition, work: &WorkReport) {
    to.family(
        "hyperswitch_miss_latency_seconds",
        Kind::Histogram,
        "Time from a packet without a flow to the controller's answer about it.",
    );
    let mut sum = 0;
    let counts = work.misses.counts.iter().copied().chain(std::iter::repeat(0));
    for (bound_us, count) in MISS_BOUNDS_US.into_iter().zip(counts) {
        sum += count;
        let bound = seconds(bound_us, 1_000_000).to_string();
        to.named_sample("_bucket", &[("le", &bound)], sum);
    }
    let total: u64 = work.misses.counts.iter().sum();
    to.named_sample("_bucket", &[("le", "+Inf")], total);
    to.named_sample("_sum", &[], seconds(work.misses.total_us, 1_000_000));
    to.named_sample("_count", &[], total);
}

/// A number of parts as seconds.
#[allow(clippy::cast_precision_loss, reason = "a sample has this precision")]
fn seconds(parts: u64, per_second: u64) -> f64 {
    parts as f64 / per_second as f64
}
