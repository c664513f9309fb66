//! Receivers that take packets slowly, behind a sender that others need.

use crate::measure::{FIRST, hold};
use crate::support::frames::plain;
use crate::support::memory::Memory;
use crate::support::{Guest, Setup, Switch, is_long};
use flow::{Action, PortId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Posts one buffer each 80 ms.
fn trickle(slow: &mut Guest, chain: &mut usize) {
    slow.post(*chain % 256..*chain % 256 + 1);
    *chain += 1;
    while slow.try_receive().is_some() {}
}

fn slow_guest(switch: &mut Switch, port: u32) -> Guest {
    let setup = Setup {
        posted: 0,
        ..Setup::default()
    };
    let mut slow = Guest::start(switch, port, setup);
    slow.repost = false;
    slow
}

/// A receiver that is slow on purpose.
#[derive(Clone, Copy, Debug)]
enum Slow {
    /// Posts one buffer each 80 ms.
    Trickles,
    /// Takes all that there is for 2 ms, so that it counts as one in time, and then nothing for 6 ms.
    Naps,
}

impl Slow {
    fn turn(self, guest: &mut Guest, chain: &mut usize) {
        match self {
            Slow::Trickles => {
                trickle(guest, chain);
                std::thread::sleep(Duration::from_millis(80));
            }
            Slow::Naps => {
                let end = Instant::now() + Duration::from_millis(2);
                while Instant::now() < end {
                    while guest.try_receive().is_some() {}
                }
                std::thread::sleep(Duration::from_millis(6));
            }
        }
    }
}

/// What a well-behaved receiver gets from a gateway, packets in `time`, while every third packet of the
/// gateway is for one that is slow, or for nobody.
fn through_a_gateway(attack: Option<Slow>, time: Duration) -> u64 {
    let mut switch = Switch::with_ports(3);
    let setup = Setup {
        transmit_size: 1024,
        ..Setup::default()
    };
    let mut gateway = Guest::start(&mut switch, 1, setup);
    let mut slow = slow_guest(&mut switch, 2);
    if let Some(Slow::Naps) = attack {
        slow.repost = true;
        slow.post(0..256);
    }
    let mut victim = Guest::usual(&mut switch, 3);
    switch.flow_by_address(1, 2);
    switch.flow_by_address(1, 3);
    let end = Arc::new(AtomicBool::new(false));
    let ending = end.clone();
    let slow_thread = std::thread::spawn(move || {
        let (mut slow, mut chain) = (slow, 0);
        while !ending.load(Ordering::Relaxed) {
            attack.unwrap_or(Slow::Trickles).turn(&mut slow, &mut chain);
        }
    });
    let places = [gateway.data, gateway.data + 1024];
    for (at, to) in places.into_iter().zip([2, 3]) {
        let bytes = [vec![0; 12], plain(1, to, 200, 1)].concat();
        gateway.memory.write(at, &bytes);
    }
    for head in 0..1024u16 {
        let at = places[usize::from(!(attack.is_some() && head % 3 == 0))];
        gateway.transmit.descriptor(head, Memory::guest(at), 212, 0, 0);
        gateway.transmit.offer(head);
    }
    gateway.transmit.publish_and_kick();
    let ending = end.clone();
    let sender = std::thread::spawn(move || {
        let (ring, mut free) = (&mut gateway.transmit, VecDeque::new());
        while !ending.load(Ordering::Relaxed) {
            while let Some((head, _)) = ring.take_used() {
                free.push_back(head);
            }
            if free.is_empty() {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            }
            free.drain(..).for_each(|head| ring.offer(head));
            ring.publish_and_kick();
        }
    });
    let start = Instant::now();
    let mut got = 0;
    while start.elapsed() < time {
        got += u64::from(victim.receive_within(Duration::from_millis(1)).is_some());
    }
    end.store(true, Ordering::Relaxed);
    slow_thread.join().unwrap();
    sender.join().unwrap();
    switch.stop();
    got
}

/// What the gateway's other receiver keeps of its rate. It shares the gateway, so it cannot keep all; but it
/// must not be brought down to the pace of the attacker.
fn keeps_its_rate(name: &str, slow: Slow) {
    let time = Duration::from_millis(if is_long() { 4000 } else { 1500 });
    let without = through_a_gateway(None, time);
    let under = through_a_gateway(Some(slow), time);
    let rate = |got: u64| got as f64 / time.as_secs_f64() / 1e6;
    println!(
        "attack {name:<50} | victim {:.3} million packets/s | without: {:.3}",
        rate(under),
        rate(without)
    );
    // A debug build on a busy machine moves tens of thousands.
    assert!(under > without / 20, "{under} of {without}");
}

#[test]
fn a_receiver_that_trickles_holds_nobody_up() {
    keeps_its_rate("a receiver that trickles behind a gateway", Slow::Trickles);
}

#[test]
fn a_receiver_that_naps_holds_nobody_up() {
    keeps_its_rate("a receiver that naps behind a gateway", Slow::Naps);
}

/// Many that trickle, each behind a sender of its own, beside bystanders who share neither.
#[test]
fn many_that_trickle() {
    hold(
        "receivers that trickle",
        |switch, attackers| {
            let mut threads = Vec::new();
            for pair in 0..4 {
                let (from, to) = (FIRST + 2 * pair, FIRST + 2 * pair + 1);
                switch.add(from);
                switch.add(to);
                let sender = Guest::usual(switch, from);
                let slow = slow_guest(switch, to);
                switch.flow(from, &[Action::Output(PortId(to))]);
                threads.push(
                    attackers.repeat((slow, 0), Duration::from_millis(80), |(slow, chain)| {
                        trickle(slow, chain);
                    }),
                );
                threads.push(attackers.repeat(sender, Duration::from_millis(1), move |sender| {
                    if sender.outstanding() < 16 {
                        sender.send(&plain(from, to, 300, 0));
                    }
                }));
            }
            threads
        },
        |_| (),
    );
}
