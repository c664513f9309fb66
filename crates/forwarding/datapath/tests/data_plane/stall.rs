//! Receivers that post no buffers cost their senders a bounded time, once, and nobody else anything.

use crate::support::control::mode;
use crate::support::frames::plain;
use crate::support::guest::LEAST;
use crate::support::{Guest, Setup, Switch, eventually, in_time};
use control_protocol::data_plane::Packet;
use flow::{Action, DropReason, PortId};
use placement::Mode;
use std::time::{Duration, Instant};

/// Twice the time a receiver is given, and what a loaded machine adds.
const BOUND: Duration = Duration::from_millis(2 * vnic::STALL_TIMEOUT_MS + 1000);

fn output(port: u32) -> Action {
    Action::Output(PortId(port))
}

fn deaf(features: u64) -> Setup {
    posting(0, features)
}

fn posting(posted: usize, features: u64) -> Setup {
    Setup {
        posted,
        ..Setup::features(features)
    }
}

/// A switch with two guests, joined. The second one has two receive buffers and posts no further ones by
/// itself.
fn two_buffers(features: u64) -> (Switch, Guest, Guest) {
    let mut switch = Switch::with_ports(2);
    let a = Guest::usual(&mut switch, 1);
    let mut b = Guest::start(&mut switch, 2, posting(2, features));
    switch.join(1, 2);
    b.repost = false;
    (switch, a, b)
}

/// Whether buffers that are posted now come in time for a packet that was sent then.
fn is_soon_after(sent: Instant) -> bool {
    sent.elapsed() < Duration::from_millis(vnic::STALL_TIMEOUT_MS / 2)
}

/// Waits for all chains to come back; how long it took.
fn back(guest: &mut Guest) -> Duration {
    let start = Instant::now();
    guest.all_sent();
    start.elapsed()
}

fn stalls_and_recovers(features: u64) {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    let mut stalled = Guest::start(&mut switch, 2, deaf(features));
    let mut c = Guest::usual(&mut switch, 3);
    switch.flow(1, &[output(2), output(3)]);
    let sent = Instant::now();
    for seed in 0..20 {
        a.send(&plain(1, 2, 1000, seed));
        c.expect_plain(&plain(1, 2, 1000, seed));
    }
    let waiting = switch.counters(1).in_flight();
    assert!(waiting > 0 || !is_soon_after(sent), "the packets wait");
    let time = back(&mut a);
    assert!(time < BOUND, "{time:?}");
    switch.until_dropped(1, DropReason::ReceiverStalled, 20);
    assert_eq!(
        switch.counters(2).egress_dropped.get(DropReason::ReceiverStalled),
        20
    );
    // From now on they are dropped at once.
    let start = Instant::now();
    for seed in 0..200 {
        a.send(&plain(1, 2, 1000, seed));
        c.expect_plain(&plain(1, 2, 1000, seed));
    }
    a.all_sent();
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    switch.until_dropped(1, DropReason::ReceiverStalled, 220);
    assert!(stalled.try_receive().is_none());
    // It posts buffers and kicks.
    stalled.post(0..64);
    assert!(stalled.receive.kicks > 0, "a stalled ring asks for a kick");
    let end = Instant::now() + BOUND;
    loop {
        a.send(&plain(1, 2, 900, 77));
        c.expect_plain(&plain(1, 2, 900, 77));
        if stalled.receive_within(Duration::from_millis(10)).is_some() {
            break;
        }
        assert!(Instant::now() < end, "it does not get packets again");
    }
    for seed in 0..100 {
        a.send(&plain(1, 2, 900, seed));
        stalled.expect_plain(&plain(1, 2, 900, seed));
        c.expect_plain(&plain(1, 2, 900, seed));
    }
    // And it can stall again.
    stalled.repost = false;
    for seed in 0..70 {
        a.send(&plain(1, 2, 900, seed));
        c.expect_plain(&plain(1, 2, 900, seed));
    }
    let time = back(&mut a);
    assert!(time < BOUND, "{time:?}");
    while stalled.try_receive().is_some() {}
    switch.finish();
}

#[test]
fn a_stalled_receiver_recovers() {
    // Senders get their chains back before anybody receives.
    if matches!(mode(), Mode::DriverDomain) {
        return;
    }
    stalls_and_recovers(crate::support::guest::ALL);
}

#[test]
fn a_stalled_receiver_recovers_without_event_index() {
    // Senders get their chains back before anybody receives.
    if matches!(mode(), Mode::DriverDomain) {
        return;
    }
    stalls_and_recovers(LEAST);
}

/// The control process' packets have no ring, and nobody else may come along to see that their time is up.
#[test]
fn what_control_sends_waits_no_longer() {
    let mut switch = Switch::with_ports(2);
    let _stalled = Guest::start(&mut switch, 2, deaf(LEAST));
    let packet = Packet {
        vnet_header: [0; 12],
        frame: plain(1, 2, 100, 5),
    };
    switch.inject(1, packet, &[output(2)]);
    switch.until_dropped(1, DropReason::ReceiverStalled, 1);
    switch.finish();
}

#[test]
fn buffers_in_time_lose_nothing() {
    in_time(lose_nothing_if_in_time);
}

fn lose_nothing_if_in_time() -> bool {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut slow = Guest::start(&mut switch, 2, deaf(crate::support::guest::ALL));
    slow.repost = false;
    switch.join(1, 2);
    for round in 0..10 {
        let sent = Instant::now();
        for seed in 0..8 {
            a.send(&plain(1, 2, 1200, seed));
        }
        std::thread::sleep(Duration::from_millis(5));
        slow.post(round * 8..round * 8 + 8);
        if !is_soon_after(sent) {
            return false;
        }
        for seed in 0..8 {
            slow.expect_plain(&plain(1, 2, 1200, seed));
        }
    }
    assert_eq!(switch.counters(1).dropped.total(), 0);
    switch.finish();
    true
}

#[test]
fn too_few_buffers_for_a_merged_frame_stall_too() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let setup = Setup {
        buffers: vec![256],
        posted: 3,
        ..Setup::default()
    };
    let mut few = Guest::start(&mut switch, 2, setup);
    switch.join(1, 2);
    a.send(&plain(1, 2, 1400, 1));
    assert!(back(&mut a) < BOUND);
    switch.until_dropped(1, DropReason::ReceiverStalled, 1);
    // The three are still there, and what they hold fits.
    few.post(3..4);
    let end = Instant::now() + BOUND;
    loop {
        a.send(&plain(1, 2, 600, 2));
        if few.receive_within(Duration::from_millis(10)).is_some() {
            break;
        }
        assert!(Instant::now() < end, "it does not get packets again");
    }
    switch.finish();
}

#[test]
fn two_stalled_receivers_and_a_removal() {
    let mut switch = Switch::with_ports(4);
    let mut a = Guest::usual(&mut switch, 1);
    let b = Guest::start(&mut switch, 2, deaf(LEAST));
    let _c = Guest::start(&mut switch, 3, deaf(crate::support::guest::ALL));
    let mut d = Guest::usual(&mut switch, 4);
    switch.flow(1, &[output(2), output(3), output(4)]);
    for seed in 0..50 {
        a.send(&plain(1, 2, 500, seed));
        d.expect_plain(&plain(1, 2, 500, seed));
    }
    drop(b);
    assert!(back(&mut a) < BOUND);
    switch.until(1, "two of three dropped", |c| {
        c.dropped.total() == 100 && c.delivered == 50
    });
    switch.finish();
}

#[test]
fn a_sender_larger_than_its_slots_is_served_on() {
    let mut switch = Switch::with_ports(3);
    let setup = Setup {
        transmit_size: 1024,
        ..Setup::default()
    };
    let mut a = Guest::start(&mut switch, 1, setup);
    let _b = Guest::start(&mut switch, 2, deaf(LEAST));
    // With buffers for all: one that is slow itself, as may be on a busy machine, is no longer waited for.
    let all = Setup {
        receive_size: 1024,
        posted: 1024,
        ..Setup::default()
    };
    let mut c = Guest::start(&mut switch, 3, all);
    switch.flow(1, &[output(2), output(3)]);
    // More chains at once than the port has slots; all in one place, since the test does not read them again.
    let frame = plain(1, 2, 800, 1);
    a.send_as(&wire::VnetHeader::default(), &frame, &crate::support::Layout::One);
    c.expect_plain(&frame);
    let head = a.transmit.descriptors;
    let first = a.memory.read(head, 16);
    let address = u64::from_le_bytes(first[..8].try_into().unwrap());
    for index in 1..1000 {
        a.transmit.descriptor(index, address, 812, 0, 0);
        a.transmit.offer(index);
    }
    a.transmit.publish_and_kick();
    let start = Instant::now();
    for _ in 0..999 {
        c.expect_plain(&frame);
    }
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    switch.until(1, "all came in", |c| c.received == 1000 && c.in_flight() == 0);
    assert_eq!(switch.counters(3).transmitted, 1000);
    switch.finish();
}

#[test]
fn who_waits_next_is_given_the_whole_time() {
    // Senders get their chains back before anybody receives.
    if !matches!(mode(), Mode::DriverDomain) {
        in_time(the_next_one_is_given_the_whole_time);
    }
}

fn the_next_one_is_given_the_whole_time() -> bool {
    let mut switch = Switch::with_ports(3);
    let mut gone = Guest::usual(&mut switch, 1);
    let mut slow = Guest::start(&mut switch, 2, deaf(crate::support::guest::ALL));
    let mut c = Guest::usual(&mut switch, 3);
    switch.flow(1, &[output(2)]);
    switch.flow(3, &[output(2)]);
    // The packet that waits is dropped because its sender goes, not because its time is up.
    gone.send(&plain(1, 2, 1000, 0));
    switch.until(1, "fetched", |c| c.received == 1);
    rustix::fs::ftruncate(&gone.memory.file, 0).unwrap();
    rustix::io::write(&gone.transmit.kick, &1u64.to_ne_bytes()).unwrap();
    switch.until_dropped(1, DropReason::SenderGone, 1);
    std::thread::sleep(Duration::from_millis(2 * vnic::STALL_TIMEOUT_MS));
    let sent = Instant::now();
    c.send(&plain(3, 2, 1000, 5));
    switch.until(3, "fetched", |c| c.received == 1);
    std::thread::sleep(Duration::from_millis(vnic::STALL_TIMEOUT_MS / 10));
    slow.post(0..8);
    let in_time = is_soon_after(sent);
    if in_time {
        slow.expect_plain(&plain(3, 2, 1000, 5));
    }
    switch.finish();
    in_time
}

/// A driver without event index is told by a flag, which stays as it is until it is changed.
#[test]
fn a_receiver_need_not_kick_once_it_has_buffers_again() {
    in_time(need_not_kick_with_buffers);
}

fn need_not_kick_with_buffers() -> bool {
    let (switch, mut a, mut b) = two_buffers(LEAST);
    let frames: Vec<_> = (0..6).map(|seed| plain(1, 2, 500, seed)).collect();
    let sent = Instant::now();
    frames.iter().for_each(|frame| a.send(frame));
    frames[..2].iter().for_each(|frame| b.expect_plain(frame));
    eventually("it is to kick when it posts buffers", || b.receive.publish());
    b.post(2..64);
    let in_time = is_soon_after(sent);
    if in_time {
        assert_eq!(b.receive.kicks, 1);
        frames[2..].iter().for_each(|frame| b.expect_plain(frame));
        eventually("it need not kick", || !b.receive.publish());
        b.post(0..2);
        assert_eq!(b.receive.kicks, 1);
    }
    switch.finish();
    in_time
}

/// A driver that has missed its call sleeps on a full ring.
#[test]
fn a_receiver_without_buffers_is_called_before_packets_are_lost() {
    for features in [LEAST, crate::support::guest::ALL] {
        in_time(|| is_called_before_packets_are_lost(features));
    }
}

#[test]
fn packets_of_the_controller_that_wait_leave_slots_to_other_ports() {
    let mut switch = Switch::with_ports(3);
    let _a = Guest::usual(&mut switch, 1);
    let _stalled = Guest::start(&mut switch, 2, deaf(LEAST));
    let mut c = Guest::usual(&mut switch, 3);
    let packet = |frame: &[u8]| Packet {
        vnet_header: [0; 12],
        frame: frame.to_vec(),
    };
    // More than there are slots.
    for _ in 0..600 {
        switch.inject(1, packet(&plain(1, 2, 60, 1)), &[output(2)]);
    }
    let frame = plain(2, 3, 60, 2);
    switch.inject(2, packet(&frame), &[output(3)]);
    c.expect_plain(&frame);
    assert_eq!(switch.counters(2).dropped.total(), 0);
    switch.finish();
}

/// False if its driver answered the call too late, so that packets may be lost.
fn is_called_before_packets_are_lost(features: u64) -> bool {
    let (mut switch, mut a, mut b) = two_buffers(features);
    b.receive.refuse_calls();
    let frames: Vec<_> = (0..4).map(|seed| plain(1, 2, 500, seed)).collect();
    let sent = Instant::now();
    frames.iter().for_each(|frame| a.send(frame));
    eventually("it is called", || {
        rustix::io::read(&b.receive.call, &mut [0; 8]).is_ok()
    });
    assert_eq!(switch.counters(2).calls, 1);
    frames[..2].iter().for_each(|frame| b.expect_plain(frame));
    b.post(2..8);
    let in_time = is_soon_after(sent);
    if in_time {
        frames[2..].iter().for_each(|frame| b.expect_plain(frame));
        assert_eq!(switch.counters(1).dropped.total(), 0);
    }
    switch.finish();
    in_time
}
