//! The targets of what goes through an uplink.

use super::Target;
use super::list::{alone, beside};

const VETH: &[&str] = &["veth"];

pub(super) const TARGETS: &[Target] = &[
    beside(
        "uplink, TCP to the outside: ours / bridge and TAP",
        ["uplink", "TCP to the outside", "bridge"],
        VETH,
        1.3,
        1.6,
    ),
    beside(
        "same, from the outside",
        ["uplink", "TCP from the outside", "bridge"],
        VETH,
        1.2,
        1.4,
    ),
    beside(
        "same, processor time per GB to the outside: bridge and TAP / ours",
        ["uplink", "processor time to the outside", "bridge"],
        VETH,
        1.0,
        1.0 / 0.75,
    ),
    beside(
        "same, from the outside",
        ["uplink", "processor time from the outside", "bridge"],
        VETH,
        1.0,
        1.0 / 0.75,
    ),
    beside(
        "uplink, round trips: ours / bridge and TAP",
        ["uplink", "UDP request and response, 64 bytes", "bridge"],
        VETH,
        0.9,
        1.0,
    ),
    beside(
        "same, processor time: bridge and TAP / ours",
        ["uplink", "processor time", "bridge"],
        VETH,
        1.0 / 1.25,
        1.0,
    ),
    beside("same, p99", ["uplink", "p99", "bridge"], VETH, 1.0 / 1.2, 1.0),
    beside(
        "uplink, frames to a container at 100,000/s, processor time: bridge and veth / ours",
        ["uplink-frames", "processor time", "bridge"],
        &["60 B, 100000/s", "1500 B, 100000/s"],
        1.0 / 1.5,
        1.0 / 1.1,
    ),
    beside(
        "same, as fast as they come",
        ["uplink-frames", "processor time", "bridge"],
        &["60 B, flood", "1500 B, flood"],
        1.0 / 1.4,
        1.0,
    ),
    alone(
        "uplink, wake-ups of its forwarder per frame, trains of 64 at 100,000/s",
        ["uplink-frames", "the forwarder's wake-ups"],
        &["60 B, trains of 64, 100000/s", "1500 B, trains of 64, 100000/s"],
        0.05,
        0.016,
    ),
    alone(
        "same, as fast as they come",
        ["uplink-frames", "the forwarder's wake-ups"],
        &["60 B, flood", "1500 B, flood"],
        0.05,
        0.01,
    ),
    alone(
        "uplink's forwarder killed every 6 s: until the outside is reached again, ms",
        ["uplink-kills", "until the outside is reached again"],
        VETH,
        150.0,
        40.0,
    ),
    alone(
        "same, datagrams lost between containers",
        ["uplink-kills", "lost between containers"],
        VETH,
        0.0,
        0.0,
    ),
    alone(
        "uplink's forwarder stopped: until the outside is reached again, ms",
        ["uplink-stops", "until the outside is reached again"],
        VETH,
        250.0,
        120.0,
    ),
    beside(
        "guests' TCP beside a flood from the outside to a container: ours / bridge and TAP",
        ["uplink-beside", "TCP beside the flood", "bridge"],
        &["flood"],
        0.95,
        1.0,
    ),
];
