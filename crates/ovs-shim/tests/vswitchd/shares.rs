//! What a guest that gives ovs-vswitchd work leaves of it to others.
//!
//! A bystander's packets come from ever new stations, so that ovs-vswitchd decides about each one. Meanwhile another guest sends as
//! much as it can of what costs most. By default everything must get through; with `HYPERSWITCH_ATTACK=1` for longer, and soon.

use crate::forwarding::PATIENCE;
use crate::world::World;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testbed::polling::{Frame, PollingGuest};

/// Longest time until a packet of a new station gets through beside an attack, in a long run.
const LATEST: Duration = Duration::from_millis(10);
/// Stations of the guests; the attacker makes its own up.
const BYSTANDER: u32 = 2;
const RECEIVER: u32 = 3;
const SINK: u32 = 4;
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
        let connect = |name: &str| {
            world.vsctl(&format!(
                "add-port br0 {name} -- set Interface {name} type=internal external_ids:vhost-user=server"
            ));
            connect(world, name)
        };
        let [attacker, mut bystander, mut receiver, mut sink] = ["vm1", "vm2", "vm3", "vm4"].map(connect);
        for (guest, station) in [(&mut receiver, RECEIVER), (&mut sink, SINK)] {
            let hello = Frame::udp(200, station, BYSTANDER);
            let end = Instant::now() + PATIENCE;
            while arrives(&mut bystander, &hello, Duration::from_millis(100)).is_none() {
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

    /// Measures how long packets of new stations take beside full rings of frames made from ever new numbers.
    fn measure(&mut self, name: &str, frame: impl Fn(u64) -> Frame + Sync) {
        let time = Duration::from_millis(if is_long() { 3000 } else { 500 });
        let Guests {
            attacker,
            bystander,
            receiver,
            stations,
            ..
        } = self;
        let goes_on = AtomicBool::new(true);
        let mut times = std::thread::scope(|scope| {
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
            new_stations(bystander, receiver, stations, time)
        });
        times.sort();
        let part = |hundredths: usize| times[(times.len() - 1) * hundredths / 100].as_secs_f64() * 1e3;
        println!(
            "attack {name:<44} | new stations: all of {} | ms p50, p99, worst: {:7.3} {:7.3} {:7.3}",
            times.len(),
            part(50),
            part(99),
            part(100)
        );
        if is_long() {
            assert!(
                times[times.len() - 1] < LATEST,
                "{name}: {:?}",
                times[times.len() - 1]
            );
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

/// How long the packets of stations that nobody knows take, one after the other.
fn new_stations(
    from: &mut PollingGuest,
    to: &mut PollingGuest,
    station: &mut u64,
    time: Duration,
) -> Vec<Duration> {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        let mut frame = Frame::udp(200, BYSTANDER, RECEIVER);
        frame.scramble(*station);
        *station += 1;
        let sent = Instant::now();
        send(from, &frame);
        assert!(arrives(to, &frame, PATIENCE).is_some(), "a new station is lost");
        times.push(sent.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    times
}

fn connect(world: &World, name: &str) -> PollingGuest {
    let socket = world.guest_socket(name);
    world.until("the socket is there", |_| socket.exists());
    let end = Instant::now() + PATIENCE;
    loop {
        match PollingGuest::connect(std::slice::from_ref(&socket), LARGE) {
            Ok(guest) => return guest,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

fn send(guest: &mut PollingGuest, frame: &Frame) {
    let end = Instant::now() + PATIENCE;
    while !guest.send(0, frame).unwrap() {
        assert!(Instant::now() < end, "nobody takes what is sent");
    }
    guest.flush(0);
}

/// Waits for a frame of the same source, and returns it.
fn arrives(guest: &mut PollingGuest, wanted: &Frame, patience: Duration) -> Option<Vec<u8>> {
    let (end, source) = (Instant::now() + patience, &wanted.bytes()[SOURCE_BEHIND_HEADER]);
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
        let arrived = arrives(&mut guests.receiver, &frame, PATIENCE);
        assert_eq!(arrived.map(|frame| frame.len()), Some(LARGE), "it is cut");
    }
    guests.measure("under Open vSwitch: 60 KB in segments of 8 bytes", |number| {
        large(1000 + number, 8, SINK)
    });
}
