//! Guests that put nonsense into their rings: a bad chain costs that packet, a bad ring that port, and nobody
//! else notices.

use crate::support::control::mode;
use crate::support::frames::{Tcp, plain};
use crate::support::guest::{ALL, INDIRECT, NEXT, WRITE};
use crate::support::memory::{GUEST_BASE, Memory};
use crate::support::session::{SET_VRING_CALL, Said, words};
use crate::support::{Bystanders, Guest, Layout, Setup, Switch, eventually};
use control_protocol::data_plane::PortState;
use flow::{DropReason, PortCounters};
use placement::Mode;
use rustix::fd::AsFd;
use vnic::features as f;
use wire::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM, VnetHeader};

/// A guest to misbehave, one to receive from it, and two that have nothing to do with it.
struct Scene {
    switch: Switch,
    bad: Guest,
    peer: Guest,
    bystanders: Bystanders,
}

impl Scene {
    fn new(setup: Setup) -> Scene {
        let mut switch = Switch::with_ports(2);
        let bystanders = Bystanders::start(&mut switch);
        let bad = Guest::start(&mut switch, 1, setup);
        let peer = Guest::usual(&mut switch, 2);
        switch.join(1, 2);
        Scene {
            switch,
            bad,
            peer,
            bystanders,
        }
    }

    /// The guest still works, in both directions.
    #[track_caller]
    fn works(&mut self) {
        let frame = plain(1, 2, 300, 9);
        self.bad.all_sent();
        self.bad.send(&frame);
        self.peer.expect_plain(&frame);
        self.peer.send(&frame);
        self.bad.expect_plain(&frame);
        self.bad.all_sent();
    }

    /// A chain of the test's making is dropped for `reason`, and comes back.
    #[track_caller]
    fn refused(&mut self, head: u16, reason: DropReason) {
        let before = self.switch.counters(1);
        self.bad.send_raw(head);
        self.bad.expect_back(head);
        self.switch
            .until_dropped(1, reason, before.dropped.get(reason) + 1);
        let after = self.switch.counters(1);
        assert_eq!(after.dropped.total(), before.dropped.total() + 1);
        assert_eq!(after.delivered, before.delivered);
        assert_eq!(self.switch.port(1).state, PortState::Running);
    }

    #[track_caller]
    fn broken(&mut self, text: &str) {
        self.switch.until_state(
            1,
            |state| matches!(state, PortState::Broken(found) if found.contains(text)),
        );
    }

    #[track_caller]
    fn finish(mut self) {
        self.bystanders.finish(&mut self.switch);
        self.switch.finish();
    }
}

#[test]
fn malformed_transmit_chains() {
    let mut scene = Scene::new(Setup::default());
    let malformed = DropReason::MalformedChain;
    let data = Memory::guest(scene.bad.data);
    let end = GUEST_BASE + scene.bad.memory.len as u64;
    let table = |scene: &Scene, index: u16, chain: &[(u64, u32, u16, u16)]| {
        for (number, &(address, len, flags, next)) in chain.iter().enumerate() {
            scene
                .bad
                .transmit
                .descriptor(index + number as u16, address, len, flags, next);
        }
    };
    let chains: [&[(u64, u32, u16, u16)]; 17] = [
        // Outside memory: below, above, over the end, wrapping around.
        &[(0, 100, 0, 0)],
        &[(GUEST_BASE - 1, 100, 0, 0)],
        &[(end, 100, 0, 0)],
        &[(end - 99, 100, 0, 0)],
        &[(u64::MAX - 50, 100, 0, 0)],
        &[(u64::MAX, u32::MAX, 0, 0)],
        &[(data, u32::MAX, 0, 0)],
        // Empty descriptors.
        &[(data, 0, 0, 0)],
        &[(data, 12, NEXT, 1), (data, 0, NEXT, 2), (data, 100, 0, 0)],
        // For the device to write.
        &[(data, 100, WRITE, 0)],
        &[(data, 12, NEXT, 1), (data, 100, WRITE, 0)],
        // To itself, in a circle, out of the table.
        &[(data, 20, NEXT, 0)],
        &[(data, 20, NEXT, 1), (data, 20, NEXT, 0)],
        &[(data, 20, NEXT, 256)],
        &[(data, 20, NEXT, 0xffff)],
        // Good at first.
        &[(data, 12, NEXT, 1), (data, 60, NEXT, 2), (7, 10, 0, 0)],
        // A table that goes on.
        &[(data, 16, INDIRECT | NEXT, 1), (data, 100, 0, 0)],
    ];
    for chain in chains {
        table(&scene, 0, chain);
        let long = chain == [(data, 20, NEXT, 0)] || chain.len() == 2 && chain[1] == (data, 20, NEXT, 0);
        // A circle of pieces is found when it is too long, or when it cannot be right any more.
        if long {
            let before = scene.switch.counters(1).dropped.total();
            scene.bad.send_raw(0);
            scene.bad.expect_back(0);
            scene.switch.until(1, "dropped", |c: &PortCounters| {
                let both = c.dropped.get(malformed) + c.dropped.get(DropReason::ChainTooLong);
                c.dropped.total() == before + 1 && both == c.dropped.total()
            });
        } else {
            scene.refused(0, malformed);
        }
        scene.works();
    }
    scene.finish();
}

#[test]
fn malformed_indirect_tables() {
    let mut scene = Scene::new(Setup::default());
    let malformed = DropReason::MalformedChain;
    let at = scene.bad.data;
    let data = Memory::guest(at + 2048);
    let bytes = crate::support::ring::Ring::descriptor_bytes;
    let put = |scene: &Scene, entries: &[[u8; 16]]| scene.bad.memory.write(at, &entries.concat());
    let whole = bytes(data, 100, 0, 0);
    // The table itself.
    put(&scene, &[whole]);
    let end = GUEST_BASE + scene.bad.memory.len as u64;
    for (address, len) in [
        (Memory::guest(at), 0),
        (Memory::guest(at), 15),
        (Memory::guest(at), 17),
        (Memory::guest(at), 16 * 40_000),
        (Memory::guest(at), 0xffff_fff0),
        (end - 16, 32),
        (0, 16),
        (u64::MAX - 15, 16),
    ] {
        scene.bad.transmit.descriptor(0, address, len, INDIRECT, 0);
        scene.refused(0, malformed);
    }
    // What is in it.
    let tables: [&[[u8; 16]]; 7] = [
        &[bytes(data, 100, INDIRECT, 0)],
        &[bytes(data, 100, WRITE, 0)],
        &[bytes(data, 0, 0, 0)],
        &[bytes(3, 100, 0, 0)],
        &[bytes(data, 100, NEXT, 1)],
        &[bytes(data, 100, NEXT, 0xffff)],
        &[bytes(data, 12, NEXT, 1), bytes(data, 12, NEXT, 0)],
    ];
    for entries in tables {
        put(&scene, entries);
        let len = 16 * entries.len() as u32;
        scene
            .bad
            .transmit
            .descriptor(0, Memory::guest(at), len, INDIRECT, 0);
        scene.refused(0, malformed);
        scene.works();
    }
    scene.finish();
    // Not negotiated at all.
    let mut scene = Scene::new(Setup::features(ALL & !f::RING_INDIRECT_DESC));
    scene.bad.memory.write(at, &whole);
    scene
        .bad
        .transmit
        .descriptor(0, Memory::guest(at), 16, INDIRECT, 0);
    scene.refused(0, malformed);
    scene.works();
    scene.finish();
}

#[test]
fn chains_that_are_no_frames() {
    let mut scene = Scene::new(Setup::default());
    let data = Memory::guest(scene.bad.data - 80 * 1024);
    for len in [1, 11, 12, 13, 25] {
        scene.bad.transmit.descriptor(0, data, len, 0, 0);
        scene.refused(0, DropReason::ShortFrame);
    }
    for len in [12 + 65_553 + 1, 70_000] {
        scene.bad.transmit.descriptor(0, data, len, 0, 0);
        scene.refused(0, DropReason::OversizedFrame);
    }
    // The same bytes again and again: pieces that cannot be joined. Of a chain that is longer than the
    // largest frame the rest is not looked at.
    for (len, reason) in [
        (80_000, DropReason::OversizedFrame),
        (100, DropReason::ChainTooLong),
    ] {
        for index in 0..200 {
            scene.bad.transmit.descriptor(index, data, len, NEXT, index + 1);
        }
        scene.refused(0, reason);
    }
    scene.works();
    scene.finish();
}

#[test]
fn lying_offload_headers() {
    let mut scene = Scene::new(Setup::default());
    let tcp = Tcp::new(false, 3000);
    let frame = tcp.frame(1, 2, false);
    let good = tcp.header(1000);
    let lies = [
        VnetHeader { flags: 0, ..good },
        VnetHeader { gso_size: 0, ..good },
        VnetHeader { gso_size: 1, ..good },
        VnetHeader {
            gso_type: GSO_TCPV6,
            ..good
        },
        VnetHeader {
            gso_type: GSO_UDP,
            ..good
        },
        VnetHeader {
            gso_type: GSO_UDP_L4,
            ..good
        },
        VnetHeader { gso_type: 77, ..good },
        VnetHeader {
            gso_type: GSO_TCPV4 | 0x40,
            ..good
        },
        VnetHeader {
            csum_start: 0,
            ..good
        },
        VnetHeader {
            csum_start: 0xffff,
            ..good
        },
        VnetHeader {
            csum_start: good.csum_start + 1,
            ..good
        },
        VnetHeader {
            csum_offset: 0xffff,
            ..good
        },
        VnetHeader {
            csum_offset: 6,
            ..good
        },
        VnetHeader {
            gso_type: 0,
            csum_start: 3065,
            ..good
        },
    ];
    for (number, lie) in lies.iter().enumerate() {
        scene.bad.send_as(lie, &frame, &Layout::Apart);
        scene
            .switch
            .until_dropped(1, DropReason::BadOffload, number as u64 + 1);
    }
    // Segmentation of what cannot be segmented.
    let mut udp = frame.clone();
    udp[23] = 17;
    let mut fragment = frame.clone();
    fragment[20] = 0x20;
    let header_only = tcp.frame(1, 2, false)[..tcp.headers()].to_vec();
    let arp = plain(1, 2, 3000, 0);
    for (number, frame) in [udp, fragment, header_only, arp].iter().enumerate() {
        scene.bad.send_as(&good, frame, &Layout::One);
        let count = (lies.len() + number + 1) as u64;
        scene.switch.until_dropped(1, DropReason::BadOffload, count);
    }
    // What is merely wrong is corrected: the receiver's driver must not be told.
    let odd = VnetHeader {
        hdr_len: 0xffff,
        num_buffers: 99,
        flags: NEEDS_CSUM | 2 | 0x80,
        ..good
    };
    scene.bad.send_as(&odd, &frame, &Layout::One);
    let header = scene.peer.expect(&frame);
    assert_eq!(
        header,
        VnetHeader {
            num_buffers: 2,
            ..good
        }
    );
    let verified = VnetHeader {
        flags: 2,
        csum_start: 55,
        csum_offset: 3,
        ..VnetHeader::default()
    };
    scene.bad.send_as(&verified, &plain(1, 2, 99, 0), &Layout::One);
    scene.peer.expect_plain(&plain(1, 2, 99, 0));
    let ecn = VnetHeader {
        gso_type: GSO_ECN,
        ..VnetHeader::default()
    };
    scene.bad.send_as(&ecn, &plain(1, 2, 99, 0), &Layout::One);
    scene.peer.expect_plain(&plain(1, 2, 99, 0));
    scene.works();
    scene.finish();
}

#[test]
fn headers_that_change_while_they_are_read() {
    // The guest rewrites the frame's head all the time; every packet is decided about once, one way or the
    // other.
    let mut scene = Scene::new(Setup {
        features: ALL,
        ..Setup::default()
    });
    let tcp = Tcp::new(false, 2000);
    let (frame, header) = (tcp.frame(1, 2, false), tcp.header(500));
    let at = scene.bad.data - 80 * 1024;
    let memory = scene.bad.memory.clone();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 1u32;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let place = (state >> 8) as usize % 90;
                memory.write(at + place, &[(state >> 24) as u8]);
                if state.is_multiple_of(16) {
                    memory.write(at, &header.to_bytes());
                    memory.write(at + 12, &frame[..100]);
                }
            }
        });
        for _ in 0..3000 {
            scene
                .bad
                .transmit
                .descriptor(0, Memory::guest(at), 12 + frame.len() as u32, 0, 0);
            scene.bad.send_raw(0);
            scene.bad.expect_back(0);
            while scene.peer.try_receive().is_some() {}
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let counters = scene.switch.counters(1);
    assert_eq!(counters.received, 3000);
    while scene
        .peer
        .receive_within(std::time::Duration::from_millis(20))
        .is_some()
    {}
    scene.works();
    scene.finish();
}

#[test]
fn a_broken_transmit_ring_stops_the_port_until_it_is_set_up_again() {
    let mut scene = Scene::new(Setup::default());
    for round in 0..8u16 {
        scene.works();
        if round % 4 < 2 {
            // The index moves by more than the ring holds.
            let next = scene.bad.transmit.next.wrapping_add(257 + 1000 * round);
            scene.bad.memory.store16(scene.bad.transmit.available + 2, next);
        } else {
            scene
                .bad
                .transmit
                .offer(if round % 2 == 0 { 256 } else { 0xffff });
            scene.bad.transmit.publish();
        }
        scene.bad.transmit.kick();
        scene.broken(if round % 4 < 2 { "index" } else { "does not exist" });
        // Nobody reaches it.
        let before = scene.switch.counters(2).dropped.get(DropReason::PortDown);
        scene.peer.send(&plain(2, 1, 500, 1));
        scene.switch.until_dropped(2, DropReason::PortDown, before + 1);
        scene.bystanders.alive();
        if round % 2 == 0 {
            scene.bad.restart(&mut scene.switch);
        } else {
            scene.bad.reconnect(&mut scene.switch);
        }
    }
    scene.works();
    scene.finish();
}

#[test]
fn a_broken_receive_ring_stops_the_port_until_it_is_set_up_again() {
    let setup = Setup {
        posted: 1,
        ..Setup::default()
    };
    let mut scene = Scene::new(setup);
    let data = Memory::guest(scene.bad.data);
    let receiver_broken = DropReason::ReceiverBroken;
    let chains: [&[(u64, u32, u16, u16)]; 8] = [
        &[(data, 2000, 0, 0)],
        &[(data, 0, WRITE, 0)],
        &[(5, 2000, WRITE, 0)],
        &[(data, 2000, WRITE | NEXT, 0xff00)],
        &[(data, 10, WRITE | NEXT, 11), (data, 2000, 0, 0)],
        &[(data, 10, WRITE | NEXT, 10)],
        &[(data, 2000, WRITE | INDIRECT, 0)],
        &[(data, u32::MAX, WRITE, 0)],
    ];
    for (round, chain) in chains.iter().enumerate() {
        scene.bad.repost = false;
        // The one good buffer is used up first.
        scene.peer.send(&plain(2, 1, 200, 0));
        scene.bad.expect_plain(&plain(2, 1, 200, 0));
        for (number, &(address, len, flags, next)) in chain.iter().enumerate() {
            scene
                .bad
                .receive
                .descriptor(10 + number as u16, address, len, flags, next);
        }
        scene.bad.receive.offer(10);
        scene.bad.receive.publish_and_kick();
        scene.peer.send(&plain(2, 1, 200, 0));
        scene.broken("receive queue");
        scene.switch.until_dropped(2, receiver_broken, round as u64 + 1);
        scene.bystanders.alive();
        scene.bad.repost = true;
        scene.bad.restart(&mut scene.switch);
        scene.works();
    }
    // Index and head, as in the other ring.
    let next = scene.bad.receive.next.wrapping_add(300);
    scene.bad.memory.store16(scene.bad.receive.available + 2, next);
    scene.peer.send(&plain(2, 1, 200, 0));
    scene.peer.send(&plain(2, 1, 200, 0));
    scene.broken("index");
    scene.bad.reconnect(&mut scene.switch);
    scene.works();
    scene.bad.repost = false;
    scene.peer.send(&plain(2, 1, 200, 0));
    scene.bad.expect_plain(&plain(2, 1, 200, 0));
    scene.bad.receive.offer(999);
    scene.bad.receive.publish_and_kick();
    scene.peer.send(&plain(2, 1, 200, 0));
    scene.broken("does not exist");
    scene.bad.repost = true;
    scene.bad.reconnect(&mut scene.switch);
    scene.works();
    scene.finish();
}

#[test]
fn endless_kicks_and_full_call_counters_are_harmless() {
    let mut scene = Scene::new(Setup::default());
    // Nothing is there, and it kicks and kicks. A worker that polls looks for kicks now and then only, and
    // need not see so many that it pauses.
    let mut kicks = || {
        for _ in 0..20_000 {
            scene.bad.transmit.kick();
            scene.bad.receive.kick();
        }
    };
    kicks();
    eventually("kicks are paused", || {
        kicks();
        mode() == Mode::Poll || scene.switch.counters(1).kick_pauses > 0
    });
    // Its call counter is full.
    let full = (u64::MAX - 1).to_ne_bytes();
    rustix::io::write(&scene.bad.receive.call, &full).unwrap();
    for seed in 0..20 {
        scene.peer.send(&plain(2, 1, 400, seed));
    }
    scene.bystanders.alive();
    scene
        .switch
        .until(1, "delivered all the same", |c| c.transmitted == 20);
    for seed in 0..20 {
        scene.bad.expect_plain(&plain(2, 1, 400, seed));
    }
    scene.works();
    scene.finish();
}

#[test]
fn a_socket_to_call_through_is_not_waited_for() {
    let mut scene = Scene::new(Setup::default());
    let (call, _unread) = std::os::unix::net::UnixStream::pair().unwrap();
    for index in [0, 1] {
        let said = scene
            .bad
            .session
            .say(SET_VRING_CALL, &words(&[index]), &[call.as_fd()]);
        assert_eq!(said, Said::Yes);
    }
    // Full, and blocking.
    call.set_nonblocking(true).unwrap();
    while rustix::io::write(&call, &[0; 4096]).is_ok() {}
    call.set_nonblocking(false).unwrap();
    for seed in 0..20 {
        scene.peer.send(&plain(2, 1, 400, seed));
    }
    scene
        .switch
        .until(1, "delivered all the same", |c| c.transmitted == 20);
    for seed in 0..20 {
        let (_, frame) = scene.bad.try_receive().unwrap();
        assert_eq!(frame, plain(2, 1, 400, seed));
    }
    scene.finish();
}

#[test]
fn used_ring_and_event_index_belong_to_the_guest_s_memory() {
    // A guest that scribbles over what the device writes harms itself only.
    let mut scene = Scene::new(Setup::default());
    scene.works();
    let transmit = scene.bad.transmit.used;
    for round in 0..200u16 {
        scene.bad.memory.store16(transmit + 2, round.wrapping_mul(777));
        scene
            .bad
            .memory
            .store16(transmit + 4 + 8 * 256, round.wrapping_mul(333));
        scene
            .bad
            .transmit
            .descriptor(0, Memory::guest(scene.bad.data), 200, 0, 0);
        scene.bad.transmit.offer(0);
        scene.bad.transmit.publish();
        scene.bad.transmit.kick();
    }
    scene.switch.until(1, "all were read", |c| c.received >= 201);
    scene.bystanders.alive();
    while scene
        .peer
        .receive_within(std::time::Duration::from_millis(10))
        .is_some()
    {}
    scene.bad.reconnect(&mut scene.switch);
    scene.works();
    scene.finish();
}
