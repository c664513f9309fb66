//! The program in the kernel, beside a model of it: frames are run through it (`BPF_PROG_TEST_RUN`), and
//! entries say which it has found. Needs root; says so and passes without.

#![allow(clippy::unwrap_used, reason = "tests")]

use kernel_path::{Key, PORTS, Place, State, Table, create, end_index, program, tap_index};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// `BPF_PROG_TEST_RUN` (`linux/bpf.h`).
const TEST_RUN: libc::c_int = 10;
/// `TC_ACT_REDIRECT` (`linux/pkt_cls.h`): all that the program may say.
const REDIRECTED: u32 = 7;
/// Bytes of `struct __sk_buff`, and where fields are in it.
const CONTEXT: usize = 192;
const IFINDEX: usize = 40;
const GSO_SIZE: usize = 176;

/// First fields of `union bpf_attr` for `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
}

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Map, program, and ports 0 and 1 in a namespace of the calling thread's.
struct Kernel {
    map: OwnedFd,
    program: OwnedFd,
}

impl Kernel {
    /// `None` where the process may not.
    fn start() -> Option<Kernel> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("left out: needs root");
            return None;
        }
        // SAFETY: a namespace of this thread's own; no memory is touched.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        for port in [0, 1] {
            let (end, tap) = (end_index(port), tap_index(port));
            let line = format!("link add v{port} index {end} type veth peer name t{port} index {tap}");
            let done = Command::new("ip").args(line.split(' ')).status().unwrap();
            assert!(done.success(), "ip {line}");
        }
        let map = create().unwrap();
        let code = program(map.as_raw_fd());
        let program = ebpf::load(&code, c"Apache-2.0", "hs_veth", ebpf::Purpose::Ingress).unwrap();
        Some(Kernel { map, program })
    }

    /// Runs a frame through the program so many times. What it says, and the time that a run takes.
    fn run(&self, device: u32, frame: &[u8], gso_size: u32, times: u32) -> (u32, Duration) {
        let mut context = [0u8; CONTEXT];
        context[IFINDEX..][..4].copy_from_slice(&device.to_ne_bytes());
        context[GSO_SIZE..][..4].copy_from_slice(&gso_size.to_ne_bytes());
        let mut attributes = TestRun {
            prog_fd: self.program.as_raw_fd().cast_unsigned(),
            data_size_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            repeat: times,
            ctx_size_in: CONTEXT as u32,
            ctx_in: context.as_ptr() as u64,
            ..TestRun::default()
        };
        let (attributes, len) = (&raw mut attributes, size_of::<TestRun>());
        // SAFETY: laid out for the command; the addresses are those of slices that outlive the call.
        let result = unsafe { libc::syscall(libc::SYS_bpf, TEST_RUN, attributes, len) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the kernel has written there, and nobody else refers to it.
        let attributes = unsafe { attributes.read() };
        (
            attributes.retval,
            Duration::from_nanos(attributes.duration.into()),
        )
    }

    /// The words of the table.
    fn words(&self) -> &'static [AtomicU64] {
        let len = table_len(&self.map);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, which is never unmapped, of a map that cannot shrink; any bytes are
        // integers.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                flags,
                self.map.as_raw_fd(),
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            std::slice::from_raw_parts(at.cast(), len / 8)
        }
    }
}

/// Bytes of a map's value, as the kernel says.
fn table_len(map: &OwnedFd) -> usize {
    let said = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd())).unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix("value_size:"));
    line.unwrap().trim().parse().unwrap()
}

fn frame(key: &Key, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let [destination, source] = [key.destination, key.source];
    [&destination[..], &source, &ether_type.to_be_bytes(), payload].concat()
}

/// TCP behind IP of a version, with so many words of options.
fn tcp(version: u8, options: u8) -> (u16, Vec<u8>) {
    let (ether_type, mut packet, of_protocol) = match version {
        4 => (0x0800, vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64], 6),
        _ => (0x86dd, vec![0x60, 0, 0, 0, 0, 40], 6),
    };
    packet.push(of_protocol);
    packet.resize(if version == 4 { 20 } else { 40 }, 0);
    if version == 6 {
        packet[6] = of_protocol;
        packet[9] = 0;
    }
    let mut header = vec![0; 20 + 4 * usize::from(options)];
    header[12] = (5 + options) << 4;
    (ether_type, [packet, header].concat())
}

fn live(table: &Table, key: &Key, longest: u32) -> Place {
    let place = table.places(key)[0];
    table.fill(place, key, 1, longest);
    table.arm(place);
    // Frames may come meanwhile.
    while table.state(place) != State::Live {
        if let State::Armed(frames) = table.state(place) {
            table.make_live(place, frames);
        }
    }
    place
}

const KEY: Key = Key {
    from: 0,
    source: [2, 0, 0, 0, 0, 1],
    destination: [2, 0, 0, 0, 0, 2],
};

/// Sends a frame, and compares the entry with what is expected of it. Whether the frame took it.
fn sees(kernel: &Kernel, table: &Table, (key, held): (&Key, Option<Place>), len: usize) -> bool {
    let frame = frame(key, 0x88b5, &vec![0; len - 14]);
    let look = |place: Place| (table.state(place), table.counts(place));
    let before = held.map(look);
    assert_eq!(kernel.run(end_index(key.from), &frame, 0, 1).0, REDIRECTED);
    let expected = before.map(|(state, [packets, bytes])| match state {
        State::Armed(frames) => (State::Armed(frames + 1), [packets, bytes]),
        State::Live if len <= 60 => (state, [packets + 1, bytes + len as u64]),
        other => (other, [packets, bytes]),
    });
    assert_eq!(held.map(look), expected, "{key:?}");
    before.is_some_and(|(state, _)| state == State::Live && len <= 60)
}

/// Entries are published, armed and withdrawn at random among few addresses, so that buckets are full and
/// keys are alike.
#[test]
fn frames_take_the_entries_that_a_model_says() {
    let Some(kernel) = Kernel::start() else { return };
    let table = Table::map(kernel.map.as_fd()).unwrap();
    let (mut random, mut hits) = (Random(1), 0);
    let address = |random: &mut Random| {
        let last = random.below(6) as u8;
        if random.below(2) == 0 {
            [2, 0, 0, 0, 0, last]
        } else {
            [last, 0, 0, 0, 0, 2]
        }
    };
    let mut entries: HashMap<Key, Place> = HashMap::new();
    for _ in 0..20_000 {
        let (source, destination) = (address(&mut random), address(&mut random));
        let from = random.below(2) as u32;
        let key = Key {
            from,
            source,
            destination,
        };
        let held = entries.get(&key).copied();
        match (random.below(4), held) {
            (0, None) => {
                let mut free = table.places(&key).into_iter();
                let Some(place) = free.find(|place| !entries.values().any(|other| other == place)) else {
                    continue;
                };
                table.fill(place, &key, 1, 60);
                entries.insert(key, place);
            }
            (0, Some(place)) => match table.state(place) {
                State::Withdrawn => table.arm(place),
                State::Armed(frames) => assert!(table.make_live(place, frames)),
                State::Live => drop(table.withdraw(&[place])),
            },
            (1, Some(place)) if random.below(4) == 0 => {
                table.withdraw(&[place]);
                entries.remove(&key);
            }
            _ => hits += u32::from(sees(&kernel, &table, (&key, held), 46 + random.below(16))),
        }
    }
    assert!(hits > 500, "{hits}");
}

#[test]
fn tags_and_segments_are_seen() {
    let Some(kernel) = Kernel::start() else { return };
    let table = Table::map(kernel.map.as_fd()).unwrap();
    let place = live(&table, &KEY, 1514);
    let is_hit = |frame: &[u8], gso_size: u32| {
        let [before, _] = table.counts(place);
        assert_eq!(kernel.run(end_index(0), frame, gso_size, 1).0, REDIRECTED);
        table.counts(place)[0] > before
    };
    for tag in [0x8100, 0x88a8] {
        assert!(!is_hit(&frame(&KEY, tag, &[0; 50]), 0));
    }
    assert!(is_hit(&frame(&KEY, 0x0806, &[0; 50]), 0));
    for version in [4, 6] {
        for options in [0, 3, 10] {
            let (ether_type, headers) = tcp(version, options);
            let long = frame(&KEY, ether_type, &[&headers[..], &[0; 2000]].concat());
            let of_headers = 14 + headers.len() as u32;
            assert!(!is_hit(&long, 0), "too long as one");
            assert!(is_hit(&long, 1514 - of_headers), "{version} {options}");
            assert!(!is_hit(&long, 1515 - of_headers), "{version} {options}");
        }
    }
    // What is not TCP behind a plain header is not measured.
    let (ether_type, mut headers) = tcp(4, 0);
    for (at, value) in [(9, 17), (0, 0x46)] {
        let was = std::mem::replace(&mut headers[at], value);
        let long = frame(&KEY, ether_type, &[&headers[..], &[0; 2000]].concat());
        assert!(!is_hit(&long, 1000));
        headers[at] = was;
    }
    // From a TAP everything goes into its container.
    let [before, _] = table.counts(place);
    assert_eq!(
        kernel.run(tap_index(0), &frame(&KEY, 0x0806, &[0; 50]), 0, 1).0,
        REDIRECTED
    );
    assert_eq!(table.counts(place)[0], before);
}

/// Ends a thread when it is dropped.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A data plane that was taken over writes whatever it wants, while programs read.
#[test]
fn no_table_makes_the_program_do_anything_but_redirect() {
    let Some(kernel) = Kernel::start() else { return };
    let words = kernel.words();
    let ends = Arc::new(AtomicBool::new(false));
    let mut random = Random(2);
    std::thread::scope(|scope| {
        // Also when an assertion fails.
        let _ends = Ends(ends.clone());
        scope.spawn(|| {
            let mut random = Random(3);
            while !ends.load(Relaxed) {
                // Values that mean something, and others.
                let value = match random.below(5) {
                    0 => random.next(),
                    1 => random.below(4) as u64,
                    2 => u64::from_le_bytes([2, 0, 0, 0, 0, 2, 2, 0]),
                    3 => 0x0100_0000 | u64::from(end_index(0)) << 32,
                    _ => u64::MAX,
                };
                words[random.below(words.len())].store(value, Relaxed);
            }
        });
        for round in 0..50_000 {
            let mut bytes: Vec<u8> = (0..60 + random.below(40)).map(|_| random.next() as u8).collect();
            if round % 2 == 0 {
                bytes[..14].copy_from_slice(&frame(&KEY, 0x0800, &[]));
            }
            let device = [end_index(0), end_index(1), tap_index(0)][random.below(3)];
            let gso_size = [0, 1400][random.below(2)];
            assert_eq!(kernel.run(device, &bytes, gso_size, 1).0, REDIRECTED);
        }
    });
    // The next data plane finds nothing of that.
    let table = Table::map(kernel.map.as_fd()).unwrap();
    let place = live(&table, &KEY, 1514);
    assert_eq!(
        kernel.run(end_index(0), &frame(&KEY, 0x0806, &[0; 50]), 0, 1).0,
        REDIRECTED
    );
    assert_eq!(table.counts(place), [1, 64]);
    table.withdraw(&[place]);
    // The shortest of some: this thread may lose its core.
    let waits = (0..10).map(|_| table.withdraw(&[live(&table, &KEY, 1514)]));
    assert!(waits.min() < Some(Duration::from_millis(5)));
}

/// Programs run without end. With `HYPERSWITCH_WITHDRAWALS=100000` there are as many.
#[test]
fn counts_are_final_after_a_withdrawal_under_a_flood() {
    let Some(kernel) = Kernel::start() else { return };
    let table = Table::map(kernel.map.as_fd()).unwrap();
    let wanted = std::env::var("HYPERSWITCH_WITHDRAWALS").ok();
    let rounds: usize = wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(1_000);
    let ends = Arc::new(AtomicBool::new(false));
    let mut waits: Vec<Duration> = std::thread::scope(|scope| {
        let _ends = Ends(ends.clone());
        scope.spawn(|| {
            let frame = frame(&KEY, 0x0806, &[0; 50]);
            while !ends.load(Relaxed) {
                kernel.run(end_index(0), &frame, 0, 10_000);
            }
        });
        let withdraw = |_| {
            let place = live(&table, &KEY, 1514);
            while table.counts(place)[0] == 0 {
                std::thread::yield_now();
            }
            let wait = table.withdraw(&[place]);
            let last = table.counts(place);
            std::thread::sleep(Duration::from_micros(50));
            assert_eq!(table.counts(place), last);
            wait
        };
        (0..rounds).map(withdraw).collect()
    });
    waits.sort();
    let (median, longest) = (waits[rounds / 2], waits[rounds - 1]);
    println!("{rounds} withdrawals: median {median:?}, longest {longest:?}");
    assert!(median < Duration::from_millis(1), "{median:?}");
}

/// Not a test: what a look-up costs, by `cargo test --release -p kernel-path -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn look_up_times() {
    let Some(kernel) = Kernel::start() else { return };
    let table = Table::map(kernel.map.as_fd()).unwrap();
    let key = |number: u32| Key {
        from: number % PORTS % 2,
        source: [2, 1, 0, 0, (number >> 8) as u8, number as u8],
        destination: [2, 2, 0, 0, 0, 1],
    };
    let plain = |key: &Key| frame(key, 0x0800, &[0; 50]);
    let time = |device: u32| {
        let runs = (0..9).map(|_| kernel.run(device, &plain(&KEY), 0, 1_000_000).1);
        let mut all: Vec<_> = runs.collect();
        all.sort();
        all[4].as_nanos()
    };
    let tap = time(tap_index(0));
    println!("from a TAP, without a look-up: {tap} ns");
    println!("no entry: {} ns", time(end_index(0)));
    live(&table, &KEY, 1514);
    println!("hit, 1 entry: {} ns", time(end_index(0)));
    let mut taken = HashMap::new();
    for number in 0..4_000 {
        let key = key(number);
        let place = table
            .places(&key)
            .into_iter()
            .find(|place| !taken.contains_key(place));
        if let Some(place) = place {
            taken.insert(place, key);
            table.fill(place, &key, 1, 1514);
            table.arm(place);
            table.make_live(place, 0);
        }
    }
    println!("hit, {} entries: {} ns", taken.len(), time(end_index(0)));
    // One run for each key in turn: entries come from farther away; the call's own time is subtracted.
    let mut sum = 0;
    for key in taken.values() {
        sum += kernel.run(end_index(key.from), &plain(key), 0, 1).1.as_nanos();
    }
    let mut one = 0;
    for key in taken.values() {
        one += kernel.run(tap_index(key.from), &plain(key), 0, 1).1.as_nanos();
    }
    let count = taken.len() as u128;
    println!("all in turn: {} ns, from a TAP {} ns", sum / count, one / count);
}
