//! What connections leave behind: nothing. Alone in its process, whose descriptors, mappings and threads it
//! counts.

#![allow(clippy::unwrap_used, reason = "tests")]
#![forbid(unsafe_code)]

mod support;

use control_protocol::data_plane::{PortState, Request};
use flow::PortId;
use support::frames::plain;
use support::session::{SET_FEATURES, Session, words};
use support::{Bystanders, Guest, Setup, Switch};

/// What a process can leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resources {
    descriptors: usize,
    guest_mappings: usize,
    threads: usize,
}

impl Resources {
    fn least(self, other: Resources) -> Resources {
        Resources {
            descriptors: self.descriptors.min(other.descriptors),
            guest_mappings: self.guest_mappings.min(other.guest_mappings),
            threads: self.threads.min(other.threads),
        }
    }
}

fn resources() -> Resources {
    let count = |path: &str| std::fs::read_dir(path).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    Resources {
        descriptors: count("/proc/self/fd"),
        guest_mappings: maps.lines().filter(|line| line.contains("memfd:guest")).count(),
        threads: count("/proc/self/task"),
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

fn setup() -> Setup {
    Setup {
        receive_size: 16,
        transmit_size: 16,
        ..Setup::default()
    }
}

/// One connection, ended at some point of its life.
fn cycle(switch: &mut Switch, round: usize) {
    match round % 5 {
        0 => drop(switch.attach(1)),
        1 => {
            let session = Session::new(switch.attach(1));
            session.tell(SET_FEATURES, &words(&[0]), &[]);
            session.raw(&[1, 2, 3], &[]);
        }
        2 => {
            let stream = switch.attach(1);
            let guest = Guest::new(1, stream, setup());
            guest.negotiate();
            guest.set_memory();
        }
        3 => {
            let mut guest = Guest::start(switch, 1, setup());
            guest.send(&plain(1, 2, 1000, 0));
            guest.restart(switch);
        }
        _ => {
            let mut guest = Guest::start(switch, 1, setup());
            for seed in 0..3 {
                guest.send(&plain(1, 2, 600, seed));
            }
            if round % 20 == 4 {
                switch.done(Request::PortDel { port: PortId(1) });
                switch.add(1);
            }
        }
    }
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let mut switch = Switch::with_ports(2);
    let bystanders = Bystanders::start(&mut switch);
    let mut peer = Guest::usual(&mut switch, 2);
    switch.join(1, 2);
    (0..50).for_each(|round| cycle(&mut switch, round));
    let settle = |switch: &mut Switch, peer: &mut Guest| {
        switch.until_state(1, |state| *state == PortState::Disconnected);
        while peer
            .receive_within(std::time::Duration::from_millis(20))
            .is_some()
        {}
        // A packet slot at rest keeps no memory; the session's thread has ended when the port is attached
        // anew.
        drop(switch.attach(1));
        switch.until_state(1, |state| *state == PortState::Disconnected);
        resources()
    };
    // The first connections' threads may take a while to end: what is least counts, once it has not become
    // less for a while.
    let (mut before, mut unchanged) = (settle(&mut switch, &mut peer), 0);
    support::eventually("the first connections leave nothing", || {
        let now = settle(&mut switch, &mut peer).least(before);
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
        unchanged == 10
    });
    let mapped = mappings();
    for round in 0..1000 {
        cycle(&mut switch, round);
        while peer.try_receive().is_some() {}
    }
    support::eventually("everything is back", || settle(&mut switch, &mut peer) == before);
    let now = mappings();
    assert!(now <= mapped + 20, "{mapped} mappings became {now}");
    bystanders.finish(&mut switch);
    drop(peer);
    switch.finish();
}
