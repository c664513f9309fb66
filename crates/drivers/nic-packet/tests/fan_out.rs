//! Frames of a device divided between its uplink's socket and a queue, in a network namespace of the test's
//! own. Needs root; says so and passes without.

#![allow(clippy::unwrap_used, reason = "tests")]

use nic_packet::{FanOut, Front, PacketSocket, Uplink, index_and_mtu};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;
use std::process::Command;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 7];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 8];
const ALL: [u8; 6] = [0xff; 6];

/// A device whose other end is the test's.
struct Site {
    fan_out: FanOut,
    uplink: Uplink,
    /// The uplink's frames, as a forwarder has them.
    slow: PacketSocket,
    far: OwnedFd,
    device: u32,
}

fn run(command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    assert!(
        Command::new(words[0])
            .args(&words[1..])
            .status()
            .unwrap()
            .success(),
        "{command}"
    );
}

/// Runs a test in a network namespace of its own.
fn alone(test: impl FnOnce(Site) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return println!("left out: takes root");
    }
    let thread = std::thread::spawn(|| {
        // SAFETY: the thread's descriptors are not concerned, and nothing else depends on its namespace.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
        run("ip link add up0 type veth peer name far0");
        for end in ["up0", "far0"] {
            std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
            run(&format!("ip link set {end} up"));
        }
        let uplink = Uplink::open("up0", None).unwrap();
        let slow = PacketSocket::new(uplink.descriptor().unwrap(), uplink.header_len(), true).unwrap();
        test(Site {
            fan_out: FanOut::load().unwrap(),
            slow,
            uplink,
            far: Uplink::open_sender("far0").unwrap().0,
            device: index_and_mtu("up0").unwrap().0,
        });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

impl Site {
    fn open_queue(&self) -> PacketSocket {
        let (queue, header_len) = self.fan_out.open_queue("up0", self.uplink.as_fd()).unwrap();
        PacketSocket::new(queue, header_len.into(), true).unwrap()
    }

    /// Sends a frame with this number from the other end.
    fn send(&self, to: [u8; 6], tag: Option<u16>, number: u8) {
        send(&self.far, to, tag, number);
    }
}

fn send(far: &OwnedFd, to: [u8; 6], tag: Option<u16>, number: u8) {
    let mut frame = vec![0; 12];
    frame.extend(to);
    frame.extend([2, 0, 0, 0, 0, 9]);
    if let Some(tag) = tag {
        frame.extend([0x81, 0]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([0x88, 0xb5, number]);
    frame.resize(12 + 60, 0);
    rustix::net::send(far, &frame, SendFlags::empty()).unwrap();
}

/// Numbers of the frames that a socket has got, VLAN tags aside.
fn numbers(socket: &mut PacketSocket) -> Vec<u8> {
    let ring = socket.ring().unwrap();
    let mut numbers = Vec::new();
    while let Some(Front::Frame(_, frame, _)) = ring.front() {
        if frame[12..14] == [0x88, 0xb5] {
            numbers.push(frame[14]);
        }
        ring.release();
    }
    numbers
}

#[test]
fn untagged_frames_for_an_address_in_the_table_go_to_the_queue_alone() {
    alone(|mut site| {
        let mut queue = site.open_queue();
        site.send(OWN, None, 1);
        site.fan_out.add(site.device, OWN).unwrap();
        site.fan_out.add(site.device, OWN).unwrap();
        site.send(OWN, None, 2);
        site.send(OTHER, None, 3);
        site.send(ALL, None, 4);
        site.send(OWN, Some(5), 5);
        site.fan_out.remove(site.device, OWN);
        site.send(OWN, None, 6);
        assert_eq!(numbers(&mut queue), [2]);
        assert_eq!(numbers(&mut site.slow), [1, 3, 4, 5, 6]);
        site.fan_out.add(site.device + 1, OWN).unwrap();
        site.send(OWN, None, 7);
        assert_eq!(numbers(&mut site.slow), [7], "a filter of another device");
        assert!(site.fan_out.add(site.device, ALL).is_err());
    });
}

#[test]
fn a_queue_that_goes_leaves_all_frames_to_the_uplink() {
    alone(|mut site| {
        for round in 0..3 {
            let mut queue = site.open_queue();
            site.send(OWN, None, 10 * round);
            assert_eq!(numbers(&mut site.slow), [10 * round], "its filters were removed");
            site.fan_out.add(site.device, OWN).unwrap();
            site.send(OWN, None, 10 * round + 1);
            assert_eq!(numbers(&mut queue), [10 * round + 1]);
            drop(queue);
            site.send(OWN, None, 10 * round + 2);
            assert_eq!(numbers(&mut site.slow), [10 * round + 2]);
        }
    });
}

#[test]
fn a_closed_uplink_gets_nothing_and_its_queue_what_is_its_own() {
    alone(|site| {
        let mut queue = site.open_queue();
        site.fan_out.add(site.device, OWN).unwrap();
        let Site {
            uplink,
            mut slow,
            far,
            ..
        } = site;
        uplink.close();
        let send = |to| send(&far, to, None, 1);
        send(OTHER);
        assert!(
            numbers(&mut slow).is_empty(),
            "another process has its socket still"
        );
        send(OWN);
        assert_eq!(numbers(&mut queue), [1]);
        drop(slow);
        send(OTHER);
        assert!(numbers(&mut queue).is_empty(), "the only member of its group");
        send(OWN);
        assert_eq!(numbers(&mut queue), [1]);
    });
}

#[test]
fn the_table_takes_some_thousand_addresses_and_says_when_it_is_full() {
    if !rustix::process::geteuid().is_root() {
        return println!("left out: takes root");
    }
    let fan_out = FanOut::load().unwrap();
    let mac = |number: u32| {
        let [_, b, c, d] = number.to_be_bytes();
        [2, 0, 0, b, c, d]
    };
    let add = |number: &u32| fan_out.add(1, mac(*number)).is_ok();
    let taken = (0..4096).filter(add).count();
    assert!(taken > 3700, "{taken} of 4,096");
    let more = (4096..40_000).filter(add).count();
    assert!(taken + more <= 8192, "bounded");
    fan_out.clear(1);
    assert_eq!((0..64).filter(add).count(), 64);
}
