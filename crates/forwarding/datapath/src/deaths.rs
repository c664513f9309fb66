//! A data plane that ends at any of its stores leaves rings behind with which the next one goes on.
//!
//! Another process of this test forwards bursts between guests: small frames and large ones, to receivers
//! with and without buffers, to several at once, and some that are no frames. Its forwarding thread is
//! stepped instruction by instruction. Whenever a used ring or an available index has changed, a data plane
//! goes on with copies of the guests' memory, as if the other one had been killed there, at a base that some
//! front end asks for. Each chain that was sent must come back exactly once and in order, and each receive
//! buffer must be filled exactly once, with a frame that was sent.

use crate::cycles::support::guest::{ALL, Guest, Layout, RECEIVE, Setup, TRANSMIT};
use crate::cycles::support::memory::Memory;
use crate::cycles::support::ring::Ring;
use crate::cycles::support::{TIMEOUT, frames, session::Said};
use crate::cycles::{insert_with, port_with};
use crate::pipeline::Pipeline;
use crate::port::Port;
use crate::state::{Datapath, transmit_ring};
use crate::switches::Switches;
use ::placement::{Config, Costs, Policy, Topology};
use flow::{Action, FlowKey, FlowMask, PortId, SwitchId};
use process::Stepped;
use scheduler::{Placement, Scheduler};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use wire::VnetHeader;

const ENTRIES: u16 = 32;
const SENDER: usize = 0;
const FAST: usize = 1;
const SLOW: usize = 2;
/// Sends after the death, to fill the buffers that are left.
const LATER: usize = 3;
const GUESTS: usize = 4;
/// What the process writes to the memory of `LATER`, which sends nothing there, when it has forwarded
/// everything.
const OVER: u16 = 0xabcd;
/// Station whose frames go to both receivers.
const BOTH: u32 = 9;

/// A data plane whose forwarding thread is the caller's.
struct Plane {
    scheduler: Scheduler<Pipeline>,
    ports: Vec<Arc<Port>>,
    guests: Vec<Guest>,
}

impl Plane {
    /// The guests have said nothing yet.
    fn new() -> Plane {
        let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
        let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
        let switch = Switches::default().get_or_new(SwitchId(1)).unwrap().clone();
        let setup = Setup {
            features: ALL,
            receive_size: ENTRIES,
            transmit_size: ENTRIES,
            buffers: vec![1600],
            posted: 0,
        };
        let (ports, guests) = (1..=GUESTS as u32)
            .map(|number| port_with(&datapath, &switch, number, setup.clone()))
            .unzip();
        for from in [SENDER, LATER] {
            for (to, receivers) in [(2, vec![2]), (3, vec![3]), (BOTH, vec![2, 3])] {
                let (mut key, mut mask) = (FlowKey::default(), FlowMask::ANY);
                key.set_in_port(from as u32 + 1);
                mask.0.set_in_port(u32::MAX);
                key.set_eth_dst(0x0200_0000_0000 + u64::from(to));
                mask.0.set_eth_dst(u64::MAX);
                let id = 10 * from as u128 + u128::from(to);
                let actions = receivers.into_iter().map(|port| Action::Output(PortId(port)));
                insert_with(&switch, id, key, mask, actions.collect());
            }
        }
        let scheduler = Scheduler::new(datapath.shared.clone(), None, Pipeline::new(datapath));
        Plane {
            scheduler,
            ports,
            guests,
        }
    }

    /// Serves all rings.
    fn forward(&mut self) {
        for port in &self.ports {
            self.scheduler.schedule.later(port.receive_ring());
            self.scheduler.schedule.later(transmit_ring(port.id()));
        }
        while self.scheduler.step() {}
    }
}

/// Frames that are sent before the death, by round. The first one makes caches warm, and is over when the
/// stepping begins.
fn sent(round: u8) -> Vec<Vec<u8>> {
    let first = [(3, 1000), (2, 60), (2, 1000), (BOTH, 60), (BOTH, 700)];
    let second = [
        (3, 300),
        (2, 5),
        (2, 128),
        (2, 1400),
        (3, 60),
        (BOTH, 500),
        (2, 60),
    ];
    let kinds = if round == 2 { &second[..] } else { &first[..] };
    let frame = |&(to, len): &(u32, usize)| frames::plain(1, to, 14.max(len), round)[..len].to_vec();
    kinds.iter().map(frame).collect()
}

const ROUNDS: u8 = 3;

/// The process that is stepped. Says what its thread and its guests' memory files are, waits for a byte, and
/// forwards.
#[test]
#[ignore = "played for the test below"]
fn forward_until_killed() {
    let mut plane = Plane::new();
    plane.guests.iter_mut().for_each(Guest::bring_up);
    plane.guests[FAST].post(0..usize::from(ENTRIES));
    plane.guests[SLOW].post(0..4);
    let mut ends = Vec::new();
    for round in 0..ROUNDS {
        for frame in sent(round) {
            plane.guests[SENDER].offer_packet(&VnetHeader::default(), &frame, &Layout::One);
        }
        ends.push(plane.guests[SENDER].transmit.next);
    }
    let send = |plane: &mut Plane, round: usize| {
        let ring = &plane.guests[SENDER].transmit;
        plane.guests[SENDER]
            .memory
            .store16(ring.available + 2, ends[round]);
        plane.forward();
    };
    send(&mut plane, 0);
    let files = plane.guests.iter().map(|guest| guest.memory.number().to_string());
    let files: Vec<_> = files.collect();
    println!(
        "\nthread {} {}",
        rustix::thread::gettid().as_raw_nonzero(),
        files.join(" ")
    );
    std::io::stdin().read_exact(&mut [0]).unwrap();
    send(&mut plane, 1);
    plane.guests[SLOW].post(4..6);
    send(&mut plane, 2);
    plane.guests[SLOW].post(6..8);
    plane.forward();
    let later = &plane.guests[LATER];
    later.memory.store16(later.data, OVER);
    // Killed here at the latest.
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

/// What a guest's driver and its device tell each other: available indices, and used rings as a whole.
fn told(memory: &Memory, guest: &Guest) -> Vec<u8> {
    let ring = |ring: &Ring| {
        let index = memory.read(ring.available + 2, 2);
        [index, memory.read(ring.used, 6 + 8 * usize::from(ENTRIES))].concat()
    };
    [ring(&guest.receive), ring(&guest.transmit)].concat()
}

fn heads(ring: &Ring, read: impl Fn(&Ring, u16) -> u16, count: u16) -> Vec<u16> {
    (0..count).map(|at| read(ring, at)).collect()
}

/// Goes on where another data plane was stopped, and checks that nothing is lost and nothing comes twice.
/// Returns how many frames came twice.
fn go_on(memories: &[Vec<u8>], state: usize) -> usize {
    let mut plane = Plane::new();
    for (guest, bytes) in plane.guests.iter_mut().zip(memories) {
        guest.memory.write(0, bytes);
        for ring in [&mut guest.receive, &mut guest.transmit] {
            ring.next = ring.available_index();
        }
        guest.negotiate();
        assert_eq!(guest.set_memory(), Said::Yes);
        for index in [RECEIVE, TRANSMIT] {
            let ring = guest.ring(index);
            let bases = [ring.used_index(), ring.next, 0];
            guest.start_ring_at(index, bases[state % 3]);
        }
    }
    let expected = plane.guests[SENDER].transmit.next;
    let posted = usize::from(plane.guests[SLOW].receive.next);
    plane.guests[SLOW].post(posted..usize::from(ENTRIES));
    let end = Instant::now() + TIMEOUT;
    while plane.guests[SENDER].transmit.used_index() != expected {
        assert!(Instant::now() < end, "state {state}: chains do not come back");
        plane.forward();
    }
    // The buffers that are left are filled by frames of another guest.
    for receiver in [FAST, SLOW] {
        while plane.guests[receiver].receive.used_index() != plane.guests[receiver].receive.next {
            assert!(Instant::now() < end, "state {state}: buffers are not filled");
            plane.guests[LATER].offer_packet(
                &VnetHeader::default(),
                &frames::plain(4, receiver as u32 + 1, 60, 0),
                &Layout::One,
            );
            plane.guests[LATER].transmit.publish();
            plane.forward();
            plane.guests[LATER].reap();
        }
    }
    for (ring, what) in [
        (&plane.guests[SENDER].transmit, "sent"),
        (&plane.guests[FAST].receive, "received"),
        (&plane.guests[SLOW].receive, "received"),
    ] {
        let back = heads(ring, Ring::used_head, ring.next);
        assert_eq!(
            back,
            heads(ring, Ring::available_head, ring.next),
            "state {state}, {what}"
        );
    }
    let known: Vec<_> = (0..ROUNDS).flat_map(sent).collect();
    let mut twice = 0;
    for receiver in [FAST, SLOW] {
        plane.guests[receiver].repost = false;
        let mut got: HashMap<Vec<u8>, usize> = HashMap::new();
        while let Some((_, frame)) = plane.guests[receiver].try_receive() {
            if frame[11] == 1 {
                assert!(
                    known.contains(&frame),
                    "state {state}: a frame that was never sent: {frame:02x?}"
                );
                *got.entry(frame).or_default() += 1;
            }
        }
        assert!(got.values().all(|&count| count <= 2), "state {state}: {got:?}");
        twice += got.values().filter(|&&count| count == 2).count();
    }
    twice
}

#[test]
fn a_data_plane_that_ends_at_any_store_leaves_rings_that_go_on() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "deaths::forward_until_killed",
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.starts_with("thread "))
        .unwrap();
    let numbers: Vec<i32> = line
        .split(' ')
        .skip(1)
        .map(|number| number.parse().unwrap())
        .collect();
    let memories: Vec<_> = numbers[1..]
        .iter()
        .map(|file| {
            let path = format!("/proc/{}/fd/{file}", child.id());
            Memory::of(File::options().read(true).write(true).open(path).unwrap())
        })
        .collect();
    let thread = Stepped::seize(numbers[0]).unwrap();
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    // For the layout, which is the same in all.
    let layout = Plane::new();
    let all = |memories: &[Memory]| -> Vec<Vec<u8>> {
        memories
            .iter()
            .zip(&layout.guests)
            .map(|(memory, guest)| told(memory, guest))
            .collect()
    };
    let (mut last, mut steps, mut states, mut twice) = (Vec::new(), 0, 0, 0);
    while memories[LATER].load16(layout.guests[LATER].data) != OVER {
        assert!(thread.step().unwrap(), "the process has ended");
        steps += 1;
        let now = all(&memories);
        if now != last {
            last = now;
            let whole: Vec<_> = memories.iter().map(|memory| memory.read(0, memory.len)).collect();
            twice += go_on(&whole, states);
            states += 1;
        }
    }
    child.kill().unwrap();
    thread.wait_for_end().unwrap();
    child.wait().unwrap();
    println!("{steps} instructions, {states} states, {twice} frames came twice");
    assert!(states > 40, "{states} states");
}
