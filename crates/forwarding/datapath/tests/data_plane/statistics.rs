//! What flows have counted, whatever becomes of them.

use crate::support::control::SWITCH;
use crate::support::frames::plain;
use crate::support::{Guest, Setup, Switch, eventually};
use control_protocol::data_plane::{Answer, Detail, Request};
use flow::{Action, DropReason, Flow, FlowId, FlowKey, FlowMask, FlowStats, PortId, PutMode, Statistics};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// For all packets of all ports.
fn flow(id: u128) -> Flow {
    let actions = vec![Action::Output(PortId(3))];
    Flow::new(FlowId(id), SWITCH, FlowKey::default(), FlowMask::ANY, actions)
}

fn put(id: u128, mode: PutMode) -> Request {
    Request::FlowPut { flow: flow(id), mode }
}

fn del(id: u128) -> Request {
    Request::FlowDel {
        switch: SWITCH,
        id: FlowId(id),
    }
}

/// Sends until told to end; what comes is received meanwhile by the guest of port 3.
fn traffic(
    mut guests: Vec<Guest>,
    mut receiver: Guest,
    (ending, sent): &(AtomicBool, AtomicU64),
) -> (Vec<Guest>, Guest) {
    let mut number = 0u8;
    while !ending.load(Ordering::Relaxed) {
        number = number.wrapping_add(1);
        for guest in &mut guests {
            for _ in 0..8 {
                guest.send(&plain(1, 2, 60 + usize::from(number), number));
                while receiver.try_receive().is_some() {}
            }
            sent.fetch_add(8, Ordering::Relaxed);
        }
    }
    (guests, receiver)
}

#[test]
fn flows_that_end_under_traffic_have_counted_all_that_was_delivered() {
    let mut switch = Switch::with_ports(3);
    let senders: Vec<_> = (1..=2).map(|port| Guest::usual(&mut switch, port)).collect();
    let receiver = Guest::start(&mut switch, 3, Setup::default());
    switch.done(put(1, PutMode::Create));
    let shared = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
    let thread = {
        let shared = shared.clone();
        std::thread::spawn(move || traffic(senders, receiver, &shared))
    };
    let (ending, sent) = &*shared;
    let clearing = PutMode::CreateOrModify(Statistics::New);
    let keeping = PutMode::Modify(Statistics::Kept);
    let mut ended = Vec::new();
    let mut id = 1;
    for round in 0..120u32 {
        let before = sent.load(Ordering::Relaxed);
        eventually("traffic", || sent.load(Ordering::Relaxed) >= before + 32);
        match round % 6 {
            // In place.
            0 | 1 => ended.extend(switch.ended(put(id, clearing))),
            2 => assert_eq!(switch.ended(put(id, keeping)), []),
            // Another for the same packets.
            3 => {
                id += 1;
                ended.extend(switch.ended(put(id, clearing)));
            }
            4 => {
                id += 1;
                assert_eq!(switch.ended(put(id, PutMode::Modify(Statistics::Kept))), []);
            }
            _ => {
                ended.extend(switch.ended(del(id)));
                switch.done(put(id, PutMode::Create));
            }
        }
        while let Some(upcall) = switch.upcalls.pop_front() {
            switch.discard(upcall.id, DropReason::Policy);
        }
    }
    ending.store(true, Ordering::Relaxed);
    let (mut senders, mut receiver) = thread.join().unwrap();
    for sender in &mut senders {
        while sender.outstanding() > 0 {
            while receiver.try_receive().is_some() {}
        }
    }
    ended.extend(switch.ended(del(id)));
    assert_eq!(switch.ended(del(id)), []);
    assert!(ended.len() > 80, "{}", ended.len());
    let told = |get: fn(&FlowStats) -> u64| ended.iter().map(|flow| get(&flow.stats)).sum::<u64>();
    let counters = [switch.counters(1), switch.counters(2)];
    let lost = |reason| counters.iter().map(|c| c.dropped.get(reason)).sum::<u64>();
    let missed = lost(DropReason::MissQueueFull) + lost(DropReason::MissRate);
    let dropped: u64 = counters.iter().map(|c| c.dropped.total()).sum();
    let delivered: u64 = counters.iter().map(|c| c.delivered).sum();
    assert!(delivered > 1000, "{delivered} were delivered");
    // A receiver that this test serves too late may have lost some, after the flow had counted them.
    assert_eq!(told(|stats| stats.packets), delivered + dropped - missed);
    if dropped == missed {
        assert_eq!(told(|stats| stats.bytes), switch.counters(3).transmitted_bytes);
    }
    switch.finish();
}

/// Requests after one that waits for forwarding threads are served, and in order.
#[test]
fn other_requests_do_not_wait_for_statistics() {
    let mut switch = Switch::with_ports(3);
    let mut a = Guest::usual(&mut switch, 1);
    let mut c = Guest::usual(&mut switch, 3);
    for round in 0..50 {
        switch.done(put(1, PutMode::Create));
        let frame = plain(1, 2, 100, round);
        a.send(&frame);
        c.expect_plain(&frame);
        let deleted = switch.tell(del(1), &[]);
        let listed = switch.tell(Request::FlowFlush { switch: SWITCH }, &[]);
        let mut answers = std::collections::HashMap::from([switch.any_answer(), switch.any_answer()]);
        assert_eq!(answers.remove(&listed), Some(Ok(Answer::Done)));
        let Some(Ok(Answer::Ended {
            flows,
            complete: true,
        })) = answers.remove(&deleted)
        else {
            panic!("{answers:?}")
        };
        assert_eq!(
            (flows.len(), flows[0].stats.packets, flows[0].stats.bytes),
            (1, 1, 100)
        );
    }
    switch.finish();
}

/// The switch's flows by pages; after each of them a flow is put and one deleted.
fn dump(switch: &mut Switch, detail: Detail) -> Vec<u128> {
    let (mut all, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let request = Request::FlowList {
            switch: SWITCH,
            after,
            detail,
        };
        let (page, more): (Vec<_>, bool) = match switch.ask(request) {
            Ok(Answer::FlowStats { flows, more }) if detail == Detail::Terse => {
                (flows.iter().map(|(id, _)| *id).collect(), more)
            }
            Ok(Answer::Flows { flows, more, .. }) if detail == Detail::Full => {
                (flows.iter().map(|(flow, _)| flow.id).collect(), more)
            }
            other => panic!("{other:?}"),
        };
        pages += 1;
        after = page.last().copied();
        all.extend(page.iter().map(|id| id.0));
        if !more {
            assert!(pages > 1);
            return all;
        }
        switch.put(many(pages * 2 + 1, 1));
        switch.done(del(pages * 2 - 1));
    }
}

/// For packets to one of many addresses.
fn many(id: u128, actions: usize) -> Flow {
    let mut key = FlowKey::default();
    key.set_in_port(1);
    key.set_eth_dst(id as u64);
    let mut mask = FlowMask::ANY;
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_dst(0xffff_ffff_ffff);
    let actions = vec![Action::Output(PortId(2)); actions];
    Flow::new(FlowId(id), SWITCH, key, mask, actions)
}

#[test]
fn dumps_show_each_flow_that_stays_once_whatever_changes_meanwhile() {
    let mut switch = Switch::with_ports(2);
    // Those with odd numbers come and go.
    for id in 1..=700u128 {
        switch.put(many(id * 2, 1 + id as usize % 5));
    }
    for detail in [Detail::Terse, Detail::Full] {
        let ids = dump(&mut switch, detail);
        let staying: Vec<_> = ids.iter().copied().filter(|id| id % 2 == 0).collect();
        assert_eq!(staying, (1..=700).map(|id| id * 2).collect::<Vec<_>>());
        assert!(ids.is_sorted());
    }
    switch.finish();
}

#[test]
fn one_flow_and_one_port_are_told_by_themselves() {
    let mut switch = Switch::with_ports(3);
    let mut guest = Guest::usual(&mut switch, 1);
    switch.put(flow(5));
    guest.send(&plain(1, 2, 100, 1));
    let mut get = |id: u128| match switch.ask(Request::FlowGet {
        switch: SWITCH,
        id: FlowId(id),
    }) {
        Ok(Answer::FlowStats { flows, more: false }) => flows,
        other => panic!("{other:?}"),
    };
    eventually("it has counted", || {
        let found = get(5);
        assert_eq!((found.len(), found[0].0), (1, FlowId(5)));
        found[0].1.packets == 1
    });
    assert_eq!(get(6), []);
    let mut get = |port: u32| switch.ask(Request::PortGet { port: PortId(port) });
    match get(1) {
        Ok(Answer::Ports { ports, more: false }) => {
            assert_eq!((ports.len(), ports[0].spec.port), (1, PortId(1)));
            assert_eq!(ports[0].counters.received, 1);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(get(4).unwrap_err().errno, rustix::io::Errno::NODEV.raw_os_error());
    switch.finish();
}
