//! Memory that does not map, is not enough, changes, or vanishes.

use crate::support::control::mode;
use crate::support::frames::plain;
use crate::support::guest::{RECEIVE, TRANSMIT, WRITE};
use crate::support::memory::{FILE_OFFSET, GUEST_BASE, Memory, USER_BASE, memfd};
use crate::support::session::{
    ADD_MEM_REG, GET_MAX_MEM_SLOTS, REM_MEM_REG, RegionSpec, SET_MEM_TABLE, SET_VRING_ADDR, SET_VRING_KICK,
    SET_VRING_NUM, Said, Session, state, words,
};
use crate::support::{Bystanders, Guest, Layout, Setup, Switch};
use control_protocol::data_plane::PortState;
use flow::{Action, DropReason, PortId};
use placement::Mode;
use rustix::fd::AsFd;
use std::fs::File;
use wire::VnetHeader;

/// A second region, far away from the first.
const SECOND: RegionSpec = RegionSpec(GUEST_BASE + (1 << 40), 0x20_0000, USER_BASE + (1 << 40), 0);

fn fresh(switch: &mut Switch, port: u32) -> Guest {
    let stream = switch.attach(port);
    let guest = Guest::new(port, stream, Setup::default());
    guest.negotiate();
    guest
}

#[test]
fn tables_that_cannot_be_mapped() {
    let mut switch = Switch::with_ports(1);
    let bystanders = Bystanders::start(&mut switch);
    let size = 0x10_0000;
    let file = memfd(size);
    let readable = File::open("/proc/self/exe").unwrap();
    let directory = File::open("/").unwrap();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let sealed = memfd_sealed(size);
    let wrong = [
        // Empty, wrapping around, longer than the file, beyond it.
        (RegionSpec(GUEST_BASE, 0, USER_BASE, 0), file.as_fd()),
        (RegionSpec(u64::MAX - 100, size, USER_BASE, 0), file.as_fd()),
        (RegionSpec(GUEST_BASE, size, u64::MAX - 100, 0), file.as_fd()),
        (RegionSpec(GUEST_BASE, u64::MAX, 0, 0), file.as_fd()),
        (RegionSpec(GUEST_BASE, size + 1, USER_BASE, 0), file.as_fd()),
        (RegionSpec(GUEST_BASE, size, USER_BASE, 1), file.as_fd()),
        (RegionSpec(GUEST_BASE, 4096, USER_BASE, size), file.as_fd()),
        (
            RegionSpec(GUEST_BASE, 4096, USER_BASE, u64::MAX - 4096),
            file.as_fd(),
        ),
        (RegionSpec(GUEST_BASE, 1 << 46, USER_BASE, 0), file.as_fd()),
        // No memory at all.
        (RegionSpec(GUEST_BASE, 4096, USER_BASE, 0), directory.as_fd()),
        (RegionSpec(GUEST_BASE, 4096, USER_BASE, 0), pipe.as_fd()),
        (RegionSpec(GUEST_BASE, 4096, USER_BASE, 0), readable.as_fd()),
        (RegionSpec(GUEST_BASE, 4096, USER_BASE, 0), sealed.as_fd()),
    ];
    for (region, file) in wrong {
        let guest = fresh(&mut switch, 1);
        let said = guest.session.set_memory(&[region], &[file]);
        assert_ne!(said, Said::Yes, "{region:?}");
        let guest = fresh(&mut switch, 1);
        assert_ne!(guest.session.add_region(region, file), Said::Yes, "{region:?}");
        bystanders.alive();
    }
    // Overlapping, in one address space or the other.
    let first = RegionSpec(GUEST_BASE, 8192, USER_BASE, 0);
    for second in [
        RegionSpec(GUEST_BASE + 4096, 8192, USER_BASE + 65_536, 0),
        RegionSpec(GUEST_BASE + 65_536, 8192, USER_BASE + 4096, 0),
        first,
    ] {
        let guest = fresh(&mut switch, 1);
        assert_eq!(
            guest.session.set_memory(&[first, second], &[&file, &file]),
            Said::No
        );
        assert_eq!(guest.session.set_memory(&[first], &[&file]), Said::Yes);
        assert_eq!(guest.session.add_region(second, &file), Said::No);
        assert_eq!(
            guest.session.remove_region(second),
            if second.0 == first.0 { Said::Yes } else { Said::No }
        );
    }
    // As many as there are slots, and one more.
    let guest = fresh(&mut switch, 1);
    let slots = guest.session.get(GET_MAX_MEM_SLOTS).unwrap();
    let place = |number: u64| RegionSpec(number << 32, 4096, USER_BASE + (number << 32), 0);
    for number in 0..slots {
        assert_eq!(guest.session.add_region(place(number), &file), Said::Yes);
    }
    assert_eq!(guest.session.add_region(place(slots), &file), Said::No);
    assert_eq!(guest.session.remove_region(place(3)), Said::Yes);
    assert_eq!(guest.session.remove_region(place(3)), Said::No);
    assert_eq!(guest.session.add_region(place(slots), &file), Said::Yes);
    // Regions without descriptors, descriptors without regions, none of either.
    for (regions, files) in [
        (vec![first], 0),
        (vec![], 1),
        (vec![first], 2),
        (vec![], 0),
        (vec![first; 9], 9),
    ] {
        let guest = fresh(&mut switch, 1);
        let fds = vec![file.as_fd(); files];
        let said = guest
            .session
            .say(SET_MEM_TABLE, &Session::memory_table(&regions), &fds);
        assert_ne!(said, Said::Yes);
    }
    // And after all that it can still be used.
    let mut guest = Guest::usual(&mut switch, 1);
    switch.flow(1, &[Action::Output(PortId(1))]);
    guest.send(&plain(1, 1, 300, 0));
    guest.expect_plain(&plain(1, 1, 300, 0));
    bystanders.finish(&mut switch);
    switch.finish();
}

fn memfd_sealed(len: u64) -> File {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
    fd.into()
}

#[test]
fn rings_outside_memory() {
    let mut switch = Switch::with_ports(1);
    let bystanders = Bystanders::start(&mut switch);
    let payload = |index, descriptors: u64, used: u64, available: u64| {
        [state(index, 0), words(&[descriptors, used, available, 0])].concat()
    };
    let end = |guest: &Guest| USER_BASE + guest.memory.len as u64;
    for index in [RECEIVE, TRANSMIT] {
        for case in 0..9 {
            let guest = fresh(&mut switch, 1);
            assert_eq!(guest.set_memory(), Said::Yes);
            let (session, ring) = (&guest.session, guest.ring(index));
            let user = Memory::user;
            let (d, u, a) = (user(ring.descriptors), user(ring.used), user(ring.available));
            let wrong = match case {
                0 => payload(index, 0, u, a),
                1 => payload(index, d, USER_BASE - 4, a),
                2 => payload(index, d, u, end(&guest)),
                3 => payload(index, end(&guest) - 16, u, a),
                4 => payload(index, d, end(&guest) - 8, a),
                5 => payload(index, d + 8, u, a),
                6 => payload(index, d, u + 2, a),
                7 => payload(index, d, u, a + 1),
                _ => payload(index, u64::MAX - 15, u64::MAX - 3, u64::MAX - 1),
            };
            session.must(SET_VRING_NUM, &state(index, 256), &[]);
            session.must(SET_VRING_KICK, &words(&[index.into()]), &[ring.kick.as_fd()]);
            session.say(SET_VRING_ADDR, &wrong, &[]);
            let enable = session.say(crate::support::session::SET_VRING_ENABLE, &state(index, 1), &[]);
            assert_ne!(enable, Said::Yes, "case {case}");
            bystanders.alive();
            assert_ne!(switch.port(1).state, PortState::Running);
        }
    }
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn regions_come_and_go_under_traffic() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let file = memfd(SECOND.1);
    for round in 0..20u8 {
        for guest in [&mut a, &mut b] {
            assert_eq!(guest.session.add_region(SECOND, &file), Said::Yes);
        }
        for seed in 0..5 {
            a.send(&plain(1, 2, 900, seed));
            b.send(&plain(2, 1, 900, seed));
        }
        // A chain of which a part lies in the new region, and one that runs over its end.
        let bytes = [VnetHeader::default().to_bytes().to_vec(), plain(1, 2, 700, round)].concat();
        let mut first = Vec::new();
        first.extend(&bytes[..100]);
        a.memory.write(a.data, &first);
        rustix::io::pwrite(&file, &bytes[100..], 0x1000).unwrap();
        a.all_sent();
        a.transmit.descriptor(0, Memory::guest(a.data), 100, 1, 1);
        a.transmit
            .descriptor(1, SECOND.0 + 0x1000, (bytes.len() - 100) as u32, 0, 0);
        a.send_raw(0);
        a.expect_back(0);
        for seed in 0..5 {
            b.expect_plain(&plain(1, 2, 900, seed));
            a.expect_plain(&plain(2, 1, 900, seed));
        }
        b.expect_plain(&plain(1, 2, 700, round));
        for guest in [&mut a, &mut b] {
            assert_eq!(guest.session.remove_region(SECOND), Said::Yes);
        }
        let before = switch.counters(1).dropped.get(DropReason::MalformedChain);
        a.send_raw(0);
        a.expect_back(0);
        switch.until_dropped(1, DropReason::MalformedChain, before + 1);
        // The whole table anew.
        assert_eq!(a.set_memory(), Said::Yes);
        assert_eq!(switch.port(1).state, PortState::Running);
    }
    a.all_sent();
    b.all_sent();
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn chains_come_back_when_memory_changes_under_way() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let deaf = Setup {
        posted: 0,
        ..Setup::default()
    };
    let mut slow = Guest::start(&mut switch, 2, deaf);
    switch.join(1, 2);
    let file = memfd(SECOND.1);
    for round in 0..3 {
        for seed in 0..20 {
            a.send(&plain(1, 2, 1000, seed));
        }
        if round == 0 {
            assert!(a.outstanding() > 0, "they wait for buffers");
        }
        if round % 2 == 0 {
            assert_eq!(a.session.add_region(SECOND, &file), Said::Yes);
        } else {
            assert_eq!(a.session.remove_region(SECOND), Said::Yes);
        }
        a.all_sent();
        // And the ring goes on.
        a.send(&plain(1, 2, 100, 0));
        a.all_sent();
    }
    slow.post(0..100);
    switch.finish();
}

#[test]
fn a_ring_s_own_region_is_removed_and_comes_back() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let file = memfd(SECOND.1);
    for round in 0..5 {
        a.send(&plain(1, 2, 500, round));
        b.expect_plain(&plain(1, 2, 500, round));
        // Not all memory, so that there is some; and all of it.
        if round % 2 == 0 {
            assert_eq!(a.session.add_region(SECOND, &file), Said::Yes);
        }
        a.session.remove_region(a.region());
        switch.until_state(1, |state| *state == PortState::Connected);
        b.send(&plain(2, 1, 500, round));
        switch.until_dropped(2, DropReason::PortDown, u64::from(round) + 1);
        // What it sends now waits.
        a.send(&plain(1, 2, 600, round));
        b.expect_nothing();
        assert_eq!(a.session.add_region(a.region(), &a.memory.file), Said::Yes);
        b.expect_plain(&plain(1, 2, 600, round));
        switch.until_state(1, |state| *state == PortState::Running);
        b.send(&plain(2, 1, 500, round));
        a.expect_plain(&plain(2, 1, 500, round));
        a.session.remove_region(SECOND);
    }
    bystanders.finish(&mut switch);
    switch.finish();
}

/// A VMM maps one memory at two addresses, and its driver mixes them: that works. Then frames are received
/// over the rings by the other address.
#[test]
fn memory_that_is_mapped_twice() {
    const ALIAS: u64 = 1 << 36;
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let mut peer = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    for over in 0..4usize {
        let mut guest = fresh(&mut switch, 1);
        let RegionSpec(base, len, user, offset) = guest.region();
        let twice = [
            guest.region(),
            RegionSpec(base + ALIAS, len, user + ALIAS, offset),
        ];
        let file = &guest.memory.file;
        assert_eq!(guest.session.set_memory(&twice, &[file, file]), Said::Yes);
        // Every other buffer by the second address.
        guest.post_all();
        for chain in (0..256).step_by(2) {
            let at = guest.chain_address(chain) + ALIAS;
            guest.receive.descriptor(chain as u16, at, 2048, WRITE, 0);
        }
        guest.start_rings();
        guest.repost = false;
        switch.until_state(1, |state| *state == PortState::Running);
        for seed in 0..20u8 {
            let frame = plain(1, 2, 600, seed);
            let alias = if seed % 2 == 0 { ALIAS } else { 0 };
            let bytes = [&[0; 12][..], &frame].concat();
            guest.memory.write(guest.data, &bytes);
            let at = Memory::guest(guest.data) + alias;
            guest.transmit.descriptor(0, at, bytes.len() as u32, 0, 0);
            guest.send_raw(0);
            guest.expect_back(0);
            peer.expect_plain(&frame);
            peer.send(&plain(2, 1, 600, seed));
            guest.expect_plain(&plain(2, 1, 600, seed));
        }
        let (receive, transmit) = (&guest.receive, &guest.transmit);
        let target = [
            receive.used,
            receive.available,
            receive.descriptors,
            transmit.used,
        ][over];
        for chain in 20..256 {
            let at = Memory::guest(target) + ALIAS;
            guest.receive.descriptor(chain, at, 2048, WRITE, 0);
        }
        for seed in 0..100 {
            peer.send(&plain(2, 1, 1000, seed));
            guest.transmit.kick();
        }
        peer.all_sent();
        bystanders.alive();
        drop(guest);
        switch.until_state(1, |state| *state == PortState::Disconnected);
        // Frames that the rings, as they were then, happened to name.
        while peer
            .receive_within(std::time::Duration::from_millis(10))
            .is_some()
        {}
    }
    let mut again = Guest::usual(&mut switch, 1);
    again.send(&plain(1, 2, 400, 0));
    peer.expect_plain(&plain(1, 2, 400, 0));
    bystanders.finish(&mut switch);
    switch.finish();
}

/// The file behind a running guest's memory is cut, so that the next access to it raises SIGBUS.
fn truncate(guest: &Guest, len: u64) {
    rustix::fs::ftruncate(&guest.memory.file, len).unwrap();
}

#[test]
fn memory_vanishes_under_a_running_guest() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let mut peer = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    for len in [0, 0x1000, FILE_OFFSET, FILE_OFFSET + 0x1000, FILE_OFFSET + 0x2000] {
        let mut victim = Guest::usual(&mut switch, 1);
        victim.send(&plain(1, 2, 400, 0));
        peer.expect_plain(&plain(1, 2, 400, 0));
        victim.all_sent();
        truncate(&victim, len);
        // Either side may be the first to notice.
        rustix::io::write(&victim.transmit.kick, &1u64.to_ne_bytes()).unwrap();
        peer.send(&plain(2, 1, 1000, 0));
        switch.until_state(1, |state| matches!(state, PortState::Broken(_)));
        bystanders.alive();
        peer.all_sent();
        drop(victim);
    }
    let mut again = Guest::usual(&mut switch, 1);
    again.send(&plain(1, 2, 400, 0));
    peer.expect_plain(&plain(1, 2, 400, 0));
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn a_sender_s_memory_vanishes_with_packets_queued() {
    // Packets do not lie in their senders' memory.
    if matches!(mode(), Mode::DriverDomain) {
        return;
    }
    let mut switch = Switch::with_ports(3);
    let bystanders = Bystanders::start(&mut switch);
    let mut victim = Guest::usual(&mut switch, 1);
    let mut other = Guest::usual(&mut switch, 3);
    let deaf = Setup {
        posted: 0,
        ..Setup::default()
    };
    let mut slow = Guest::start(&mut switch, 2, deaf);
    switch.flow(1, &[Action::Output(PortId(2))]);
    switch.flow(3, &[Action::Output(PortId(2))]);
    for seed in 0..4 {
        victim.send_as(&VnetHeader::default(), &plain(1, 2, 1500, seed), &Layout::Apart);
    }
    other.send(&plain(3, 2, 1500, 9));
    switch.until(1, "fetched", |c| c.received == 4);
    switch.until(3, "fetched", |c| c.received == 1);
    truncate(&victim, 0);
    slow.post(0..16);
    // The first may be seen to be gone only while it is copied; what the others have is not sent at all.
    let mut from_other = 0;
    while let Some((_, frame)) = slow.receive_within(std::time::Duration::from_millis(300)) {
        if frame == plain(3, 2, 1500, 9) {
            from_other += 1;
        }
    }
    assert_eq!(from_other, 1, "the receiver got what the other one sent");
    switch.until(1, "accounted for", |c| c.in_flight() == 0);
    let counters = switch.counters(1);
    assert!(counters.dropped.get(DropReason::SenderGone) >= 3, "{counters:?}");
    assert_eq!(switch.port(2).state, PortState::Running);
    bystanders.finish(&mut switch);
    switch.finish();
}

#[test]
fn unknown_requests_for_regions() {
    let mut switch = Switch::with_ports(1);
    // Without memory, and with payloads of the wrong length.
    for request in [SET_MEM_TABLE, ADD_MEM_REG, REM_MEM_REG] {
        for len in [0, 1, 7, 8, 31, 39, 41, 264, 300] {
            let guest = fresh(&mut switch, 1);
            let file = memfd(4096);
            let fds: &[_] = if request == REM_MEM_REG {
                &[]
            } else {
                &[file.as_fd()]
            };
            assert_ne!(guest.session.say(request, &vec![0xff; len], fds), Said::Yes);
        }
    }
    switch.finish();
}
