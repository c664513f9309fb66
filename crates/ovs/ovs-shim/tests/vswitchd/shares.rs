//! What a guest that gives ovs-vswitchd work leaves of it to others.
//!
//! A bystander sends packets of ever new stations, so that ovs-vswitchd decides about each one, and packets
//! of a flow that is there. Meanwhile another guest sends as much as it can of what costs most. By default
//! everything must get through; with `HYPERSWITCH_ATTACK=1` for longer, and soon.

use crate::forwarding::TIMEOUT;
use crate::world::World;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testbed::polling::{Frame, PollingGuest};

/// Longest time until a packet gets through beside an attack, in a long run: beside frames of many segments,
/// and beside new flows, of which ovs-vswitchd's revalidators have much to do.
const LATEST: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(50)];
/// Packets of a known flow after each one of a new station, and the time between them.
const KNOWN: (usize, Duration) = (10, Duration::from_micros(500));
/// Stations of the guests; the attacker makes its own up.
const BYSTANDER: u32 = 2;
const RECEIVER: u32 = 3;
const SINK: u32 = 4;
/// A station that is not there.
const NOBODY: u32 = 99;
/// Flows that a port may have (`crates/ovs/ovs-glue/src/plane/flow_shares.rs`), and more than the bystander
/// has.
const MOST_FLOWS: usize = 7_710 + 2000;
/// Where a source address is in a frame, and behind a virtio-net header of 12 bytes.
const SOURCE: std::ops::Range<usize> = 6..12;
const SOURCE_BEHIND_HEADER: std::ops::Range<usize> = 18..24;
/// Length of a frame that stands for many segments.
const LARGE: usize = 60_000;

fn is_long() -> bool {
    std::env::var_os("HYPERSWITCH_ATTACK").is_some_and(|value| value == "1")
}

struct Guests {
    attacker: PollingGuest,
    bystander: PollingGuest,
    receiver: PollingGuest,
    _sink: PollingGuest,
    stations: u64,
}

impl Guests {
    /// Four guests of the product, of which the last two are known stations.
    fn connect(world: &mut World, program: PathBuf) -> Guests {
        world.start_product(program);
        world.start_vswitchd();
        world.vsctl("add-br br0");
        // Frames for everybody fill the rings of the attacker's VLAN only.
        let connect = |(name, vlan): (&str, u16)| {
            world.vsctl(&format!(
                "add-port br0 {name} tag={vlan} -- set Interface {name} type=internal external_ids:vhost-user=server"
            ));
            connect(world, name)
        };
        let ports = [("vm1", 1), ("vm2", 2), ("vm3", 2), ("vm4", 1)];
        let [mut attacker, mut bystander, mut receiver, mut sink] = ports.map(connect);
        let pairs = [
            (&mut receiver, RECEIVER, &mut bystander),
            (&mut sink, SINK, &mut attacker),
        ];
        for (guest, station, listener) in pairs {
            let hello = Frame::udp(200, station, BYSTANDER);
            let end = Instant::now() + TIMEOUT;
            while arrives(listener, &hello, Duration::from_millis(100)).is_none() {
                assert!(Instant::now() < end, "station {station} says nothing");
                send(guest, &hello);
            }
        }
        Guests {
            attacker,
            bystander,
            receiver,
            _sink: sink,
            stations: 1 << 40,
        }
    }

    /// Measures how long the bystander's packets take beside full rings of frames made from ever new numbers.
    fn measure(&mut self, name: &str, latest: Duration, frame: impl Fn(u64) -> Frame + Sync) {
        let time = Duration::from_millis(if is_long() { 10_000 } else { 500 });
        let Guests {
            attacker,
            bystander,
            receiver,
            stations,
            ..
        } = self;
        let goes_on = AtomicBool::new(true);
        let delays = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (0..).take_while(|_| goes_on.load(Ordering::Relaxed)) {
                    while !attacker.send(0, &frame(number)).unwrap() && goes_on.load(Ordering::Relaxed) {
                        attacker.flush(0);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            // The attack ends with it, also if it fails.
            let _end = Ends(&goes_on);
            delays(bystander, receiver, stations, time)
        });
        for (packets, mut delays) in ["new stations", "a known flow"].into_iter().zip(delays) {
            delays.sort();
            let part = |hundredths: usize| delays[(delays.len() - 1) * hundredths / 100].as_secs_f64() * 1e3;
            println!(
                "attack {name:<44} | {packets}: all of {} | ms p50, p99, worst: {:7.3} {:7.3} {:7.3}",
                delays.len(),
                part(50),
                part(99),
                part(100)
            );
            let worst = delays[delays.len() - 1];
            assert!(!is_long() || worst < latest, "{name}: {packets}: {worst:?}");
        }
    }
}

/// Clears a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// How long packets take, one after the other: of stations that nobody knows, and of a flow that is there.
fn delays(
    from: &mut PollingGuest,
    to: &mut PollingGuest,
    station: &mut u64,
    time: Duration,
) -> [Vec<Duration>; 2] {
    let (begin, mut new, mut known) = (Instant::now(), Vec::new(), Vec::new());
    while begin.elapsed() < time {
        let mut frame = Frame::udp(200, BYSTANDER, RECEIVER);
        frame.scramble(*station);
        *station += 1;
        new.push(delay(from, to, &frame));
        for _ in 0..KNOWN.0 {
            known.push(delay(from, to, &Frame::udp(200, BYSTANDER, RECEIVER)));
            std::thread::sleep(KNOWN.1);
        }
    }
    [new, known]
}

fn delay(from: &mut PollingGuest, to: &mut PollingGuest, frame: &Frame) -> Duration {
    let sent = Instant::now();
    send(from, frame);
    assert!(arrives(to, frame, TIMEOUT).is_some(), "a packet is lost");
    sent.elapsed()
}

fn connect(world: &World, name: &str) -> PollingGuest {
    let socket = world.guest_socket(name);
    world.until("the socket is there", |_| socket.exists());
    let end = Instant::now() + TIMEOUT;
    loop {
        match PollingGuest::connect(std::slice::from_ref(&socket), LARGE) {
            Ok(guest) => return guest,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

fn send(guest: &mut PollingGuest, frame: &Frame) {
    let end = Instant::now() + TIMEOUT;
    while !guest.send(0, frame).unwrap() {
        assert!(Instant::now() < end, "nobody takes what is sent");
    }
    guest.flush(0);
}

/// Waits for a frame of the same source, and returns it.
fn arrives(guest: &mut PollingGuest, wanted: &Frame, timeout: Duration) -> Option<Vec<u8>> {
    let (end, source) = (Instant::now() + timeout, &wanted.bytes()[SOURCE_BEHIND_HEADER]);
    let mut found = None;
    loop {
        let look = |frame: &[u8]| {
            if &frame[SOURCE] == source {
                found = Some(frame.to_vec());
            }
        };
        guest.receive(0, 64, look).unwrap();
        if found.is_some() || Instant::now() > end {
            return found;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A frame of a new station that stands for segments of so many bytes.
fn large(number: u64, segment: u16, to: u32) -> Frame {
    let mut frame = Frame::large_tcp(LARGE, segment, 1, to);
    frame.scramble(number);
    frame
}

/// Frames that stand for thousands of segments cost what others cost, and arrive as they were sent.
pub fn large_frames(world: &mut World, program: PathBuf) {
    let mut guests = Guests::connect(world, program);
    for number in 1..10 {
        let frame = large(number, 1448, RECEIVER);
        send(&mut guests.bystander, &frame);
        let arrived = arrives(&mut guests.receiver, &frame, TIMEOUT);
        assert_eq!(arrived.map(|frame| frame.len()), Some(LARGE), "it is cut");
    }
    guests.measure(
        "under Open vSwitch: 60 KB in segments of 8 bytes",
        LATEST[0],
        |number| large(1000 + number, 8, SINK),
    );
}

/// Small frames of ever new flows leave others ovs-vswitchd's time, its flows, and the ways of its packets.
pub fn small_frames(world: &mut World, program: PathBuf) {
    let mut guests = Guests::connect(world, program);
    let kinds = [
        ("small frames to a station", SINK),
        ("small frames to nobody", NOBODY),
    ];
    for (name, to) in kinds {
        guests.measure(&format!("under Open vSwitch: {name}"), LATEST[1], |number| {
            let mut frame = Frame::udp(60, 1, to);
            frame.scramble(1000 + number);
            frame
        });
        let flows = world.flows();
        assert!(flows <= MOST_FLOWS, "{flows} flows");
    }
    // What a port may not have is no warning for each packet.
    let log = std::fs::read_to_string(world.path("vswitchd.log")).unwrap();
    assert!(!log.contains("failed to put"), "{log}");
}
