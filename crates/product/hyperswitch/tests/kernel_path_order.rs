//! Numbered datagrams of a container, while they are taken off the kernel path and come back again and again:
//! whether each arrives, and how many arrive behind later ones.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::pairs::Site;
use containers::{Namespace, eventually};
use rustix::thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity};
use std::fs::File;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Datagrams per second, and times that they are taken off the kernel path; `HYPERSWITCH_WAYS=100000,500`
/// asks for others, where the release build's way through the data plane bears them.
const USUAL: (u32, u64) = (5_000, 20);

/// A datagram that is on its way through the data plane when later ones come on the kernel path is there
/// within this time, in seconds, also on a busy machine.
const UNDER_WAY: f64 = 0.1;

/// How long nothing arrives when all has arrived.
const SILENCE: Duration = Duration::from_secs(1);

/// What a receiver has seen.
#[derive(Debug, Default)]
struct Seen {
    datagrams: u64,
    /// Datagrams behind later ones.
    late: u64,
    next: u64,
}

fn wanted() -> (u32, u64) {
    let Ok(text) = std::env::var("HYPERSWITCH_WAYS") else {
        return USUAL;
    };
    let (rate, times) = text.split_once(',').unwrap();
    (rate.parse().unwrap(), times.parse().unwrap())
}

/// A thread in a container, with a socket of an address there.
fn within<T: Send + 'static>(
    space: &Namespace,
    address: &'static str,
    work: impl FnOnce(UdpSocket) -> T + Send + 'static,
) -> JoinHandle<T> {
    let namespace = File::open(format!("/run/netns/{}", space.0)).unwrap();
    thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        work(UdpSocket::bind(address).unwrap())
    })
}

/// Sends datagrams until `stopped` is set, from one core: one that moves may overtake itself. Returns how
/// many.
fn send(socket: &UdpSocket, rate: u32, stopped: &AtomicBool) -> u64 {
    let mut core = CpuSet::new();
    core.set(0);
    sched_setaffinity(None, &core).unwrap();
    socket.connect("10.66.0.2:7").unwrap();
    let (begin, mut sent) = (Instant::now(), 0);
    while !stopped.load(Ordering::Relaxed) {
        let due = (begin.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        while sent < due {
            socket.send(&sent.to_be_bytes()).unwrap();
            sent += 1;
        }
        thread::sleep(Duration::from_micros(50));
    }
    sent
}

/// Receives until nothing has come for a while after `stopped` is set.
fn receive(socket: &UdpSocket, stopped: &AtomicBool) -> Seen {
    rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, 64 << 20).unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    let (mut seen, mut bytes) = (Seen::default(), [0; 8]);
    loop {
        match socket.recv(&mut bytes) {
            Ok(_) => {
                let number = u64::from_be_bytes(bytes);
                seen.datagrams += 1;
                seen.late += u64::from(number < seen.next);
                seen.next = seen.next.max(number + 1);
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
            Err(_) if stopped.load(Ordering::Relaxed) => return seen,
            Err(_) => {}
        }
    }
}

#[test]
fn a_stream_whose_way_changes_is_whole_and_soon_in_order() {
    static STOPPED: AtomicBool = AtomicBool::new(false);
    let (rate, times) = wanted();
    let site = Site::start(2);
    site.on_kernel_path();
    let receiver = within(&site.spaces[1], "10.66.0.2:7", |socket| {
        receive(&socket, &STOPPED)
    });
    let sender = within(&site.spaces[0], "10.66.0.1:7", move |socket| {
        send(&socket, rate, &STOPPED)
    });
    let withdrawn = |site: &Site| site.instance.counter("c0", "kernel-path-withdrawn");
    let before = withdrawn(&site);
    for _ in 0..times {
        let by_kernel = site.by_kernel("c0");
        eventually("the kernel forwards", || site.by_kernel("c0") > by_kernel);
        site.say("flow flush");
    }
    let changes = 2 * (withdrawn(&site) - before);
    STOPPED.store(true, Ordering::Relaxed);
    let (sent, seen) = (sender.join().unwrap(), receiver.join().unwrap());
    let without_gap = site.instance.counter("c0", "kernel-path-without-gap");
    println!("{sent} sent at {rate}/s, {changes} changes of way, {without_gap} without a gap: {seen:?}");
    assert!(changes >= 2 * times, "{changes} changes");
    assert_eq!(seen.datagrams, sent, "{seen:?}");
    // Only a stream without gaps is overtaken, when it comes on the kernel path.
    let most = without_gap as f64 * f64::from(rate) * UNDER_WAY;
    assert!(
        (seen.late as f64) <= most,
        "{seen:?}, {without_gap} times without a gap"
    );
}
