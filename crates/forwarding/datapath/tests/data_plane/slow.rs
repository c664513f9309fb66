//! Receivers that post a buffer now and then hold a bounded part of their senders, for a bounded time.

use crate::support::frames::plain;
use crate::support::guest::{ALL, INDIRECT, NEXT, TRANSMIT, WRITE};
use crate::support::memory::Memory;
use crate::support::ring::Ring;
use crate::support::session::{GET_VRING_BASE, state};
use crate::support::{Guest, Setup, Switch, TIMEOUT, in_time};
use control_protocol::data_plane::Request;
use flow::{Action, DropReason, PortId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vnic::features as f;
use wire::{GSO_TCPV4, NEEDS_CSUM, VnetHeader};

const GATEWAY: u32 = 1;
const SLOW: u32 = 2;
const VICTIM: u32 = 3;

/// What of a frame of 200 bytes is sent: with its header.
const SENT: u32 = 212;

/// A guest that posts a buffer every 40 ms: never soon, and never late enough to be taken for dead.
struct Trickler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Guest, u32)>,
}

impl Trickler {
    fn start(switch: &mut Switch) -> Trickler {
        let setup = Setup {
            posted: 0,
            ..Setup::default()
        };
        let mut guest = Guest::start(switch, SLOW, setup);
        guest.repost = false;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut chain, mut got) = (0, 0);
            while !stopping.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(40));
                guest.post(chain % 256..chain % 256 + 1);
                chain += 1;
                while guest.try_receive().is_some() {
                    got += 1;
                }
            }
            (guest, got)
        });
        Trickler { stop, thread }
    }

    /// The guest, which takes no more, and how many packets it took.
    fn end(self) -> (Guest, u32) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A gateway whose chains are, by turns or one after the other, for a receiver that trickles and for one that
/// does not: the second one gets all of its own, though the first one never stalls.
fn trickling(for_slow: impl Fn(u16) -> bool) {
    let mut switch = Switch::with_ports(3);
    let setup = Setup {
        transmit_size: 1024,
        ..Setup::default()
    };
    let mut gateway = Guest::start(&mut switch, GATEWAY, setup);
    let trickler = Trickler::start(&mut switch);
    // It has buffers for all, lest it be slow itself on a busy machine.
    let setup = Setup {
        receive_size: 1024,
        posted: 1024,
        ..Setup::default()
    };
    let mut victim = Guest::start(&mut switch, VICTIM, setup);
    switch.flow_by_address(GATEWAY, SLOW);
    switch.flow_by_address(GATEWAY, VICTIM);
    // All in two places, since nobody reads them again.
    let place = |to: u32| gateway.data - 4096 * to as usize;
    for to in [SLOW, VICTIM] {
        let bytes = [vec![0; 12], plain(GATEWAY, to, 200, 1)].concat();
        gateway.memory.write(place(to), &bytes);
    }
    let mut expected = 0;
    for head in 0..1024 {
        let to = if for_slow(head) { SLOW } else { VICTIM };
        expected += u32::from(to == VICTIM);
        let address = Memory::guest(place(to));
        gateway.transmit.descriptor(head, address, SENT, 0, 0);
        gateway.transmit.offer(head);
    }
    gateway.transmit.publish_and_kick();
    let end = Instant::now() + TIMEOUT;
    let mut got = 0;
    while got < expected {
        got += u32::from(victim.receive_within(Duration::from_millis(5)).is_some());
        let counters = switch.counters(GATEWAY);
        assert!(Instant::now() < end, "{got} of {expected}, {counters:?}");
    }
    let (slow_guest, taken) = trickler.end();
    switch.until(GATEWAY, "all are accounted for", |c| c.in_flight() == 0);
    let dropped = switch.counters(GATEWAY).dropped;
    let slow = dropped.get(DropReason::ReceiverSlow) + dropped.get(DropReason::ReceiverStalled);
    assert_eq!(dropped.total(), slow, "{dropped:?}");
    assert!(slow <= u64::from(1024 - expected), "{dropped:?}");
    assert!(switch.counters(SLOW).transmitted >= u64::from(taken));
    assert_eq!(switch.counters(VICTIM).egress_dropped.total(), 0);
    drop(slow_guest);
    switch.finish();
}

#[test]
fn a_receiver_that_trickles_holds_its_sender_for_a_moment() {
    trickling(|head| head < 256);
}

#[test]
fn a_receiver_that_trickles_holds_a_part_of_its_sender() {
    trickling(|head| head % 2 == 0);
}

/// A sender with one receiver is held up by it, and loses nothing.
#[test]
fn a_pair_loses_nothing_though_its_receiver_is_slow() {
    in_time(loses_nothing_to_a_slow_receiver);
}

/// False if the receiver's buffers came so late that packets may be lost.
fn loses_nothing_to_a_slow_receiver() -> bool {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let setup = Setup {
        posted: 0,
        ..Setup::default()
    };
    let mut slow = Guest::start(&mut switch, 2, setup);
    slow.repost = false;
    switch.join(1, 2);
    let in_time = (0..10usize).all(|round| {
        let sent = Instant::now();
        for seed in 0..20 {
            a.send(&plain(1, 2, 1000, seed));
        }
        for half in 0..2 {
            std::thread::sleep(Duration::from_millis(3));
            let first = (round * 20 + half * 10) % 240;
            slow.post(first..first + 10);
        }
        let in_time = sent.elapsed() < Duration::from_millis(vnic::STALL_TIMEOUT_MS / 2);
        if in_time {
            for seed in 0..20 {
                slow.expect_plain(&plain(1, 2, 1000, seed));
            }
        }
        in_time
    });
    if in_time {
        assert_eq!(switch.counters(1).dropped.total(), 0);
    }
    switch.finish();
    in_time
}

/// A ring that stops waits for its packets, and the thread that deletes the port does not.
#[test]
fn a_port_is_deleted_at_once_while_its_packets_wait_for_a_receiver() {
    let mut switch = Switch::with_ports(2);
    let delete = |_| {
        let setup = Setup {
            posted: 0,
            ..Setup::default()
        };
        let _slow = Guest::start(&mut switch, 2, setup);
        let mut guest = Guest::usual(&mut switch, 1);
        switch.flow(1, &[Action::Output(PortId(2))]);
        guest.send(&plain(1, 2, 1000, 1));
        switch.until(1, "the packet waits", |counters| counters.received == 1);
        guest.session.tell(GET_VRING_BASE, &state(TRANSMIT, 0), &[]);
        std::thread::sleep(Duration::from_millis(3));
        let start = Instant::now();
        switch.done(Request::PortDel { port: PortId(1) });
        let took = start.elapsed();
        switch.add(1);
        took
    };
    let shortest = (0..5).map(delete).min().unwrap();
    // Half of the time for which a packet waits for a receiver without buffers.
    assert!(shortest < Duration::from_millis(50), "{shortest:?}");
    switch.stop();
}

/// Tables of any size, of which all entries lie one behind the other, to send and to receive.
#[test]
fn indirect_tables_of_all_sizes() {
    let mut switch = Switch::with_ports(2);
    let bystanders = crate::support::Bystanders::start(&mut switch);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    let table = a.data - 32 * 80 * 1024;
    let data = a.data - 80 * 1024;
    let put_table = |guest: &Guest, entries: usize, flags: u16| {
        let bytes: Vec<u8> = (0..entries)
            .flat_map(|number| {
                let more = if number + 1 < entries { NEXT } else { 0 };
                Ring::descriptor_bytes(Memory::guest(data + number), 1, flags | more, number as u16 + 1)
            })
            .collect();
        guest.memory.write(table, &bytes);
    };
    let mut too_long = 0;
    for entries in [26usize, 64, 65, 128, 255, 256, 257, 1000, 4096, 32_768] {
        let frame = plain(1, 2, entries.saturating_sub(12).min(2000), 3);
        a.memory.write(data, &[vec![0; 12], frame.clone()].concat());
        put_table(&a, entries, 0);
        let len = 16 * entries as u32;
        a.transmit.descriptor(0, Memory::guest(table), len, INDIRECT, 0);
        a.send_raw(0);
        a.expect_back(0);
        if entries <= 256 {
            b.expect_plain(&frame);
        } else {
            too_long += 1;
            switch.until_dropped(1, DropReason::ChainTooLong, too_long);
        }
        bystanders.alive();
    }
    // The other way round: a frame of 72 bytes with its header.
    for entries in [1, 36, 64, 65, 72, 128, 256] {
        let setup = Setup {
            posted: 0,
            ..Setup::default()
        };
        drop(a);
        a = Guest::start(&mut switch, 1, setup);
        put_table(&a, entries, WRITE);
        let len = 16 * entries as u32;
        let count = 72usize.div_ceil(entries);
        for head in 0..count as u16 {
            a.receive.descriptor(head, Memory::guest(table), len, INDIRECT, 0);
            a.receive.offer(head);
        }
        a.receive.publish_and_kick();
        b.send(&plain(2, 1, 60, 7));
        let mut got = 0;
        let end = Instant::now() + TIMEOUT;
        while got < 72 {
            assert!(Instant::now() < end, "{got} bytes in tables of {entries}");
            got += a.receive.take_used().map_or(0, |(_, len)| len);
        }
        assert_eq!(got, 72);
        bystanders.alive();
    }
    bystanders.finish(&mut switch);
    switch.finish();
}

/// A kick without anything new costs no look at what was found before, and a buffer that suffices ends the
/// wait.
#[test]
fn bare_kicks_do_not_matter() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let setup = Setup {
        receive_size: 1024,
        buffers: vec![16],
        posted: 60,
        ..Setup::default()
    };
    let mut b = Guest::start(&mut switch, 2, setup);
    b.repost = false;
    switch.join(1, 2);
    let frame = plain(1, 2, 1500, 1);
    a.send(&frame);
    for _ in 0..200 {
        b.receive.kick();
    }
    b.post(60..160);
    let end = Instant::now() + TIMEOUT;
    // On a busy machine its time may have been up before.
    while b.receive_within(Duration::from_millis(100)).is_none() {
        assert!(Instant::now() < end, "nothing arrives");
        a.send(&frame);
    }
    switch.finish();
}

/// Eight bytes at a time, for a receiver that leaves segmentation to the switch and posts few buffers.
#[test]
fn the_smallest_segments_arrive_in_order() {
    let mut switch = Switch::with_ports(2);
    let bystanders = crate::support::Bystanders::start(&mut switch);
    let mut a = Guest::usual(&mut switch, 1);
    let features = ALL & !(f::NET_GUEST_TSO4 | f::NET_GUEST_TSO6 | f::NET_GUEST_ECN);
    let mut b = Guest::start(&mut switch, 2, Setup::features(features));
    switch.join(1, 2);
    let tcp = crate::support::frames::Tcp::new(false, 8 * 2000);
    let header = tcp.header(8);
    assert_eq!((header.flags, header.gso_type), (NEEDS_CSUM, GSO_TCPV4));
    let frame = tcp.frame(1, 2, false);
    a.send_as(&header, &frame, &crate::support::Layout::One);
    for number in 0..2000 {
        let (header, segment) = b.receive();
        assert_eq!(header.flags, NEEDS_CSUM);
        let start = tcp.headers() + 8 * number;
        assert_eq!(
            segment[tcp.headers()..],
            frame[start..start + 8],
            "segment {number}"
        );
    }
    assert_eq!(switch.counters(2).segments, 2000);
    assert_ne!(header, VnetHeader::default());
    bystanders.finish(&mut switch);
    switch.finish();
}
