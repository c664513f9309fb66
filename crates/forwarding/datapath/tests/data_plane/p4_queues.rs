//! What programs are told of the queues of their ports.

use crate::p4::{bound, commands, version};
use crate::support::Switch;
use crate::support::frames::plain;
use control_protocol::data_plane::Request;
use flow::{PortId, PortRates, RateLimit};

/// Frames of port 3 leave with a record of the project's telemetry in front of their payload.
const ENTRIES: &str = "
add l2_forward hdr.ethernet.dst:0x020000000002 forward(port:2)
add observe 10 port:0b000000011 dst:0x020000000002 begin()
setdefault identity record(switch_id:7)
";

/// Bytes of Ethernet, of the telemetry's header and of a record.
const FRONT: usize = 14 + 4 + 26;

/// As many as a guest of these tests can have under way.
const FRAMES: u8 = 32;

/// A frame of 1,000 bytes in 80 ms, after the first two.
const SLOW: RateLimit = RateLimit {
    bits_per_second: 100_000,
    burst: RateLimit::LEAST_BURST,
};

fn limit(switch: &mut Switch, port: u32, to: Option<RateLimit>) {
    let rates = PortRates {
        to,
        ..PortRates::default()
    };
    let port = PortId(port);
    switch.done(Request::PortRates { port, rates });
}

/// A frame for port 2 that is no telemetry yet.
fn frame(from: u32, length: usize, number: u8) -> Vec<u8> {
    let mut frame = plain(from, 2, length, number);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame
}

/// The length of the queue, from a frame with a record.
fn depth(frame: &[u8]) -> u32 {
    let depth: [u8; 4] = frame[FRONT - 8..FRONT - 4].try_into().unwrap();
    u32::from_be_bytes(depth)
}

#[test]
fn a_program_reads_how_many_packets_wait_where_it_sends_one() {
    let (mut switch, mut guests) = bound(3, &version("telemetry", &commands(ENTRIES)));
    let [mut flood, mut to, mut observed] = [1, 2, 3].map(|port| guests.remove(&port).unwrap());
    observed.send(&frame(3, 100, 1));
    let (_, received) = to.receive();
    assert_eq!(
        (received.len(), depth(&received)),
        (100 + FRONT - 14, 0),
        "nothing waits"
    );
    limit(&mut switch, 2, Some(SLOW));
    (0..FRAMES).for_each(|number| flood.send(&frame(1, 1000, number)));
    switch.until(2, "packets wait", |counters| counters.bandwidth_waits > 0);
    // The first may come while the turn still lasts in which packets began to wait.
    let waits = (2..8).any(|number| {
        observed.send(&frame(3, 100, number));
        let mut frames = std::iter::repeat_with(|| to.receive().1);
        let depth = frames
            .find(|frame| frame.len() != 1000)
            .map(|frame| depth(&frame));
        depth.is_some_and(|depth| (1..=u32::from(FRAMES)).contains(&depth))
    });
    assert!(waits, "the queue is empty for the program");
    limit(&mut switch, 2, None);
    flood.all_sent();
    switch.finish();
}
