//! What other switches with shared-memory guests got wrong, each by its CVE: DPDK's vhost library, and
//! whatever uses it.
//!
//! Not here, since there is nothing that could fail: CVE-2020-10724 and CVE-2020-14374 to -14378
//! (vhost-crypto: there is no crypto device), and the part of CVE-2020-10725 that concerns packed rings,
//! which are not offered.

use crate::support::frames::{Tcp, plain};
use crate::support::guest::{LEAST, NEXT, WRITE};
use crate::support::memory::{FILE_OFFSET, GUEST_BASE, Memory, USER_BASE};
use crate::support::session::{
    RegionSpec, SET_MEM_TABLE, SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_KICK,
    SET_VRING_NUM, Said, Session, state, words,
};
use crate::support::{Bystanders, Guest, Layout, Setup, Switch, TIMEOUT};
use control_protocol::data_plane::PortState;
use flow::DropReason;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use wire::{NEEDS_CSUM, VnetHeader};

const SET_LOG_BASE: u32 = 6;
const SET_LOG_FD: u32 = 7;
const GET_INFLIGHT_FD: u32 = 31;
const SET_INFLIGHT_FD: u32 = 32;

/// A switch whose port 1 misbehaves, with two who want to lose nothing, and one that 1 exchanges packets
/// with.
struct Scene {
    switch: Switch,
    peer: Guest,
    bystanders: Bystanders,
}

impl Scene {
    fn new() -> Scene {
        let mut switch = Switch::with_ports(2);
        let bystanders = Bystanders::start(&mut switch);
        let peer = Guest::usual(&mut switch, 2);
        switch.join(1, 2);
        Scene {
            switch,
            peer,
            bystanders,
        }
    }

    /// A front end that has negotiated, and set up no ring.
    fn fresh(&mut self) -> Guest {
        let guest = Guest::new(1, self.switch.attach(1), Setup::default());
        guest.negotiate();
        assert_eq!(guest.set_memory(), Said::Yes);
        guest
    }

    /// The next guest at the port finds everything in order.
    #[track_caller]
    fn finish(mut self) {
        let mut guest = Guest::usual(&mut self.switch, 1);
        let frame = plain(1, 2, 300, 9);
        guest.send(&frame);
        self.peer.expect_plain(&frame);
        self.peer.send(&frame);
        guest.expect_plain(&frame);
        self.bystanders.finish(&mut self.switch);
        self.switch.finish();
    }
}

/// A descriptor to be sent, and what tells when the last copy of it was closed.
fn traced() -> (OwnedFd, OwnedFd) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    (write, read)
}

#[track_caller]
fn is_closed(trace: &OwnedFd) {
    let timeout = Timespec {
        tv_sec: TIMEOUT.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(trace, PollFlags::IN)];
    let count = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).unwrap();
    assert_eq!(count, 1, "a descriptor was kept");
    assert!(fds[0].revents().contains(PollFlags::HUP));
}

/// CVE-2018-1059: only the beginning of a descriptor's range was looked up, and the rest taken to lie behind
/// it, though the next region is mapped elsewhere: guests read and wrote the switch's memory.
#[test]
fn cve_2018_1059_a_range_across_regions() {
    let mut scene = Scene::new();
    let mut guest = Guest::new(1, scene.switch.attach(1), Setup::default());
    guest.negotiate();
    // Two halves that are neighbours for the guest, and are mapped in reverse.
    let len = guest.memory.len as u64;
    let cut = (guest.data as u64 - 80 * 1024) / 4096 * 4096;
    let halves = [
        RegionSpec(GUEST_BASE + cut, len - cut, USER_BASE + cut, FILE_OFFSET + cut),
        RegionSpec(GUEST_BASE, cut, USER_BASE, FILE_OFFSET),
    ];
    let file = &guest.memory.file;
    assert_eq!(guest.session.set_memory(&halves, &[file, file]), Said::Yes);
    guest.post_all();
    guest.start_rings();
    scene.switch.until_state(1, |state| *state == PortState::Running);
    let frame = plain(1, 2, 1500, 4);
    let bytes = [vec![0; 12], frame.clone()].concat();
    for before in [1, 11, 12, 100, 140, 1000, 1511] {
        let at = cut as usize - before;
        guest.memory.write(at, &bytes);
        guest.transmit.descriptor(0, Memory::guest(at), 1512, 0, 0);
        guest.send_raw(0);
        scene.peer.expect_plain(&frame);
        guest.expect_back(0);
        // And a buffer there.
        scene.peer.send(&frame);
        guest.expect_plain(&frame);
    }
    // Behind the last region, and across a hole, there is nothing.
    let end = GUEST_BASE + len;
    for (number, address) in [end - 100, end, u64::MAX - 100].into_iter().enumerate() {
        guest.transmit.descriptor(0, address, 1512, 0, 0);
        guest.send_raw(0);
        guest.expect_back(0);
        scene
            .switch
            .until_dropped(1, DropReason::MalformedChain, number as u64 + 1);
    }
    drop(guest);
    scene.finish();
}

/// CVE-2019-14818: tables of memory that were refused, or came again and again, left descriptors and mappings
/// behind.
#[test]
fn cve_2019_14818_tables_of_memory_leave_nothing_behind() {
    let mut scene = Scene::new();
    let guest = scene.fresh();
    let mut traces = Vec::new();
    for _ in 0..50 {
        assert_eq!(guest.set_memory(), Said::Yes);
    }
    // The memory's descriptors are of a kind that cannot be mapped; and there are more than regions, or
    // fewer.
    for count in [1usize, 2, 8] {
        let guest = scene.fresh();
        let (fd, trace) = traced();
        let fds = vec![fd.as_fd(); count];
        let table = Session::memory_table(&[guest.region()]);
        assert_ne!(guest.session.say(SET_MEM_TABLE, &table, &fds), Said::Yes);
        traces.push(trace);
    }
    drop(guest);
    traces.iter().for_each(is_closed);
    scene.finish();
}

/// CVE-2020-10722: offset and size of the log of dirty memory were added without regard to overflow. There is
/// no log.
#[test]
fn cve_2020_10722_a_log_out_of_all_bounds() {
    let mut scene = Scene::new();
    for (size, offset) in [(u64::MAX, u64::MAX), (4096, u64::MAX - 100), (0, 0)] {
        let guest = scene.fresh();
        let (fd, trace) = traced();
        let said = guest
            .session
            .say(SET_LOG_BASE, &words(&[size, offset]), &[fd.as_fd()]);
        assert_ne!(said, Said::Yes);
        let other = scene.fresh();
        assert_ne!(other.session.say(SET_LOG_FD, &[], &[fd.as_fd()]), Said::Yes);
        drop((guest, other, fd));
        is_closed(&trace);
    }
    scene.finish();
}

/// CVE-2020-10723: the number of a ring was cut to fewer bits after it was checked.
#[test]
fn cve_2020_10723_numbers_of_rings_that_do_not_exist() {
    let mut scene = Scene::new();
    for index in [2, 0x80, 0xff, 0x100, 0x101, 0x1_0000, 0x8000_0001, u32::MAX] {
        for (request, number) in [(SET_VRING_NUM, 256), (SET_VRING_BASE, 0), (SET_VRING_ENABLE, 1)] {
            let guest = scene.fresh();
            assert_ne!(
                guest.session.say(request, &state(index, number), &[]),
                Said::Yes,
                "request {request} for ring {index}"
            );
        }
    }
    // In these only eight bits are the number, and of the rest one says that there is no descriptor.
    for index in [2u64, 0x80, 0xff] {
        for request in [SET_VRING_KICK, SET_VRING_CALL] {
            let guest = scene.fresh();
            let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
            let said = guest.session.say(request, &words(&[index]), &[bell.as_fd()]);
            assert_ne!(said, Said::Yes, "request {request} for ring {index}");
        }
    }
    scene.finish();
}

/// CVE-2020-10725: a buffer to receive at an address that is none was used as if it were one.
#[test]
fn cve_2020_10725_buffers_that_lie_nowhere() {
    for (address, len) in [
        (0, 2048),
        (GUEST_BASE - 1, 2048),
        (u64::MAX - 100, 2048),
        (GUEST_BASE, u32::MAX),
        (GUEST_BASE, 0),
    ] {
        let mut scene = Scene::new();
        let setup = Setup {
            posted: 0,
            ..Setup::default()
        };
        let mut guest = Guest::start(&mut scene.switch, 1, setup);
        guest.receive.descriptor(0, address, len, WRITE, 0);
        guest.receive.offer(0);
        guest.receive.publish_and_kick();
        scene.peer.send(&plain(2, 1, 300, 1));
        scene
            .switch
            .until_state(1, |state| matches!(state, PortState::Broken(_)));
        drop(guest);
        scene.finish();
    }
}

/// The payload of a message about the memory for requests in flight: size and offset in the file, rings, ring
/// size.
fn inflight(size: u64, offset: u64, rings: u16, ring_size: u16) -> Vec<u8> {
    let mut payload = words(&[size, offset]);
    payload.extend([rings.to_le_bytes(), ring_size.to_le_bytes()].concat());
    payload.resize(24, 0);
    payload
}

/// CVE-2020-10726: asking for memory for requests in flight allocated it each time. CVE-2021-3839: memory for
/// requests in flight of more rings than exist was written behind its end. CVE-2022-0669: descriptors that
/// came along were kept. There are no requests in flight here.
#[test]
fn cve_2020_10726_2021_3839_2022_0669_requests_in_flight() {
    let mut scene = Scene::new();
    let mut traces = Vec::new();
    for rings in [0, 1, 2, 3, 0x100, u16::MAX] {
        for (size, offset) in [(0, 0), (4096, 0), (u64::MAX, u64::MAX - 1)] {
            let payload = inflight(size, offset, rings, 1024);
            let guest = scene.fresh();
            assert_ne!(guest.session.say(GET_INFLIGHT_FD, &payload, &[]), Said::Yes);
            for count in [1usize, 2, 8] {
                let guest = scene.fresh();
                let (fd, trace) = traced();
                let fds = vec![fd.as_fd(); count];
                assert_ne!(guest.session.say(SET_INFLIGHT_FD, &payload, &fds), Said::Yes);
                traces.push((trace, guest));
                if traces.len() > 8 {
                    traces.clear();
                }
            }
        }
        scene.bystanders.alive();
    }
    // Also while the connections that they came through are open.
    scene.fresh();
    for (trace, guest) in traces {
        drop(guest);
        is_closed(&trace);
    }
    scene.finish();
}

/// CVE-2022-2132: a header in more descriptors than two made the switch take a buffer for each, until it had
/// none left.
#[test]
fn cve_2022_2132_a_header_in_many_descriptors() {
    let mut scene = Scene::new();
    let mut guest = Guest::usual(&mut scene.switch, 1);
    let frame = plain(1, 2, 900, 3);
    for round in 0..100usize {
        let pieces = vec![1; 1 + round % 30];
        let layout = if round % 2 == 0 {
            Layout::Pieces(pieces)
        } else {
            Layout::Indirect(pieces)
        };
        guest.send_as(&VnetHeader::default(), &frame, &layout);
        scene.peer.expect_plain(&frame);
    }
    // A chain of as many pieces as there can be, none of which is a frame.
    for index in 0..255 {
        let more = if index < 254 { NEXT } else { 0 };
        let at = guest.data - 80 * 1024 + 8 * usize::from(index);
        guest
            .transmit
            .descriptor(index, Memory::guest(at), 1, more, index + 1);
    }
    guest.all_sent();
    for round in 1..=20 {
        guest.send_raw(0);
        guest.expect_back(0);
        scene.switch.until_dropped(1, DropReason::ChainTooLong, round);
    }
    drop(guest);
    scene.finish();
}

/// CVE-2024-11614: a checksum to be completed was looked for where the sender's header said, behind the
/// packet.
#[test]
fn cve_2024_11614_checksums_behind_the_packet() {
    let mut scene = Scene::new();
    let mut guest = Guest::usual(&mut scene.switch, 1);
    drop(std::mem::replace(
        &mut scene.peer,
        Guest::start(&mut scene.switch, 2, Setup::features(LEAST)),
    ));
    let mut udp = Tcp::new(false, 600).frame(1, 2, false);
    udp[23] = 17;
    let tcp = Tcp::new(false, 600).frame(1, 2, false);
    let other = plain(1, 2, 60, 1);
    let mut refused = 0;
    for frame in [&udp, &tcp, &other] {
        let len = frame.len() as u16;
        for (csum_start, csum_offset) in [
            (len, 0),
            (len - 1, 0),
            (len - 2, 1),
            (34, len - 34),
            (34, len - 35),
            (0xffff, 0xffff),
            (0, 0xffff),
            (0xffff, 0),
            (0, 0),
            (13, 0),
        ] {
            let header = VnetHeader {
                flags: NEEDS_CSUM,
                csum_start,
                csum_offset,
                ..VnetHeader::default()
            };
            guest.send_as(&header, frame, &Layout::Apart);
            refused += 1;
            scene.switch.until_dropped(1, DropReason::BadOffload, refused);
        }
    }
    // The last place where there is one.
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        csum_start: udp.len() as u16 - 2,
        csum_offset: 0,
        ..VnetHeader::default()
    };
    guest.send_as(&header, &udp, &Layout::Apart);
    crate::support::frames::complete_checksum(&mut udp, header.csum_start.into(), 0);
    scene.peer.expect_plain(&udp);
    drop(guest);
    scene.finish();
}
