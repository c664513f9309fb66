//! Data planes that a guest has taken over, played to each client of the contract: the bare
//! [`controller::Client`], the control process and `ovs`. What one of them withstands, all do.

use control_protocol::Channel;
use control_protocol::data_plane::*;
use control_protocol::port_counts::PortCounts;
use flow::{ControllerId, Filters, FlowKey, PortCounters, PortId, Stage, SwitchId};
use rustix::net::{SendFlags, send};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A controller that meets such a data plane.
pub trait Victim {
    /// Gives it a new channel. The test plays the data plane at the other end.
    fn meet(&mut self) -> Channel;
    /// Lets it do what it has to do at present. It decides about packets.
    fn go_on(&mut self);
    /// Lets so much time pass, and what is due meanwhile happen.
    fn pass(&mut self, time: Duration);
    /// Takes what it has said to the supervisor; true if it has asked for another data plane.
    fn take_replace_request(&mut self) -> bool;
    /// Resident memory of the client's process in megabytes.
    fn memory(&self) -> u64;
    /// The number of the controller.
    fn controller(&self) -> ControllerId;
    /// A port of it and its switch, if it is to be there already.
    fn port(&self) -> Option<(PortId, SwitchId)>;
}

/// What goes wrong with the test itself.
const TIMEOUT: Duration = Duration::from_secs(60);

fn until<T>(what: &str, victim: &mut impl Victim, mut check: impl FnMut(&mut dyn Victim) -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        victim.go_on();
        if let Some(found) = check(victim) {
            return found;
        }
        assert!(Instant::now() < end, "not in time: {what}");
    }
}

fn expect_replaced(victim: &mut impl Victim) {
    until("another data plane", victim, |victim| {
        victim.take_replace_request().then_some(())
    });
}

/// The next request; `None` if the channel was given up.
fn hear(victim: &mut impl Victim, channel: &Channel) -> Option<ToDataPlane> {
    until("a request", victim, |_| match channel.try_recv() {
        Ok((message, _)) => Some(Some(message)),
        Err(control_protocol::ChannelError::WouldBlock) => None,
        Err(_) => Some(None),
    })
}

/// False if the channel was given up. What has no room is left out.
fn say(channel: &Channel, message: &FromDataPlane) -> bool {
    !matches!(
        channel.try_send(message, &[]),
        Err(control_protocol::ChannelError::Closed | control_protocol::ChannelError::Io(_))
    )
}

fn answer(channel: &Channel, serial: u32, answer: Answer) -> bool {
    let result = Ok(answer);
    say(channel, &FromDataPlane::Answer { serial, result })
}

fn welcome(victim: &impl Victim) -> Answer {
    Answer::Welcome {
        controller: victim.controller(),
        workers: 1,
        pid: 42,
    }
}

/// What a data plane that has nothing answers; `None`: nothing.
fn honest(victim: &impl Victim, request: &Request) -> Option<Answer> {
    let more = false;
    Some(match request {
        Request::Execute(_) | Request::Discard { .. } | Request::Taken { .. } => return None,
        Request::Hello { .. } => welcome(victim),
        Request::PortList | Request::PortGet { .. } => Answer::Ports {
            ports: victim.port().map(info).into_iter().collect(),
            more,
        },
        Request::Counters => Answer::Counters {
            ports: PortCounts::default(),
            more,
        },
        Request::FlowPut { .. } | Request::FlowDel { .. } => Answer::Ended {
            flows: Vec::new(),
            complete: true,
        },
        Request::FlowList {
            detail: Detail::Full, ..
        } => Answer::Flows {
            flows: Vec::new(),
            ways: Vec::new(),
            more,
        },
        Request::FlowList { .. } | Request::FlowGet { .. } => Answer::FlowStats {
            flows: Vec::new(),
            more,
        },
        Request::MeterSet { .. } | Request::MeterGet { .. } | Request::MeterDel { .. } => Answer::Meter(None),
        _ => Answer::Done,
    })
}

fn info((port, switch): (PortId, SwitchId)) -> PortInfo {
    PortInfo {
        spec: PortSpec {
            port,
            switch,
            name: "a".into(),
            connection: Connection::Listener,
            mtu: 1500,
            miss_rate: 1000,
            mac: None,
            masked_features: 0,
            filters: Filters::default(),
            mirrors: Vec::new(),
            p4: control_protocol::p4::P4Attachment::default(),
        },
        state: PortState::Disconnected,
        peer: None,
        shortfall: None,
        guest: GuestState::Unknown,
        features: 0,
        counters: PortCounters::default(),
        costly: Costly::default(),
        kernel_path: None,
        device_queue: None,
    }
}

/// Answers requests honestly until none has come for a while. Returns those that end packets.
fn serve(victim: &mut impl Victim, channel: &Channel) -> Vec<Request> {
    let mut ends = Vec::new();
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < Duration::from_millis(300) {
        victim.go_on();
        while let Ok((ToDataPlane { serial, request }, _)) = channel.try_recv::<ToDataPlane>() {
            quiet_since = Instant::now();
            match honest(victim, &request) {
                Some(said) => assert!(answer(channel, serial, said)),
                None => ends.push(request),
            }
        }
    }
    ends
}

/// The next data plane finds a controller that works.
pub fn recovers(victim: &mut impl Victim) {
    let channel = victim.meet();
    let hello = hear(victim, &channel).unwrap();
    assert!(matches!(hello.request, Request::Hello { version: VERSION }));
    assert!(answer(&channel, hello.serial, welcome(victim)));
    let asked = hear(victim, &channel).unwrap();
    assert_eq!(asked.request, Request::PortList);
    let none = honest(victim, &asked.request).unwrap();
    assert!(answer(&channel, asked.serial, none));
    serve(victim, &channel);
    assert!(!victim.take_replace_request(), "the next one is replaced as well");
}

pub fn nonsense(victim: &mut impl Victim) {
    let channel = victim.meet();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    for _ in 0..10_000 {
        match send(&channel, &[0xff; 100], flags) {
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => victim.go_on(),
            // In the end the channel is closed.
            Err(_) => break,
        }
    }
    expect_replaced(victim);
    recovers(victim);
}

pub fn answers_that_nobody_asked_for(victim: &mut impl Victim) {
    let channel = victim.meet();
    for serial in 1_000_000..1_000_100 {
        if !answer(&channel, serial, Answer::Done) {
            break;
        }
        victim.go_on();
    }
    expect_replaced(victim);
    recovers(victim);
}

/// A few answers of another kind are errors; many are the end.
pub fn answers_to_other_questions(victim: &mut impl Victim) {
    let channel = victim.meet();
    serve(victim, &channel);
    assert!(!victim.take_replace_request());
    drop(channel);
    let channel = victim.meet();
    let asked = hear(victim, &channel).unwrap();
    for _ in 0..2 {
        // The second time, nobody waits for it.
        answer(&channel, asked.serial, Answer::Trace(Vec::new()));
    }
    for serial in 0..20 {
        let serial = 2_000_000 + serial;
        answer(&channel, serial, Answer::Trace(Vec::new()));
    }
    expect_replaced(victim);
    recovers(victim);
}

/// Ports without end, or nothing and "more".
pub fn lists_without_end(victim: &mut impl Victim) {
    let port = info((
        victim.controller().port(1).expect("each has a port 1"),
        SwitchId(1),
    ));
    for ports in [Vec::new(), vec![port; 32]] {
        let before = victim.memory();
        let channel = victim.meet();
        let mut asked = hear(victim, &channel).unwrap();
        while asked.request != Request::PortList {
            asked = hear(victim, &channel).unwrap();
        }
        let part = Answer::Ports { ports, more: true };
        let end = Instant::now() + TIMEOUT;
        while !victim.take_replace_request() {
            for _ in 0..16 {
                answer(&channel, asked.serial, part.clone());
            }
            victim.go_on();
            assert!(Instant::now() < end, "it is still waiting for the end");
        }
        let after = victim.memory();
        assert!(after < before + 400, "from {before} to {after} MB");
    }
    recovers(victim);
}

/// Closes its channel and lives on.
pub fn absence(victim: &mut impl Victim) {
    let channel = victim.meet();
    drop(channel);
    victim.go_on();
    victim.pass(Duration::from_millis(controller::ABSENCE_MS + 100));
    expect_replaced(victim);
    recovers(victim);
}

/// Keeps its channel and says nothing.
#[allow(dead_code, reason = "it takes half a minute where the clock is the machine's")]
pub fn silence(victim: &mut impl Victim) {
    let _channel = victim.meet();
    victim.go_on();
    victim.pass(Duration::from_millis(controller::SYNC_MS + 100));
    expect_replaced(victim);
    recovers(victim);
}

/// Resident memory of a process in megabytes.
pub fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes
        .and_then(|text| text.parse::<u64>().ok())
        .expect("a number")
        / 1024
}

fn upcall((port, switch): (PortId, SwitchId), serial: u64, bytes: usize) -> FromDataPlane {
    let mut key = FlowKey::default();
    key.set_in_port(port.0);
    key.set_eth_src(0x0200_0000_0000 | (serial % 50));
    key.set_eth_dst(0x0200_0000_00ff);
    FromDataPlane::Upcall(Upcall {
        id: UpcallId { port, serial },
        switch,
        cause: UpcallCause::Miss {
            stage: Stage::Forward,
        },
        key,
        context: None,
        packet: Packet {
            vnet_header: [0; 12],
            frame: vec![7; bytes],
        },
    })
}

/// Packets before and after the lists, of known and unknown ports: one end for each.
pub fn each_packet_ends_once(victim: &mut impl Victim) {
    let channel = victim.meet();
    let known = victim.port();
    let unknown = (
        victim.controller().port(99).expect("each has a port 99"),
        SwitchId(77),
    );
    let mut sent = BTreeMap::new();
    let mut ends = Vec::new();
    for round in 0..2 {
        for serial in 1..=40 {
            for from in known.into_iter().chain([unknown]) {
                let FromDataPlane::Upcall(upcall) = upcall(from, 100 * round + serial, 60) else {
                    continue;
                };
                sent.insert((upcall.id.port, upcall.id.serial), 0);
                assert!(say(&channel, &FromDataPlane::Upcall(upcall)));
            }
        }
        let late = Instant::now() + TIMEOUT;
        while ends.len() < sent.len() && Instant::now() < late {
            ends.extend(serve(victim, &channel));
        }
    }
    for request in ends {
        let upcall = match request {
            Request::Execute(execute) => execute.upcall,
            Request::Discard { upcall, .. } | Request::Taken { upcall } => Some(upcall),
            _ => None,
        };
        let Some(upcall) = upcall else { continue };
        *sent
            .get_mut(&(upcall.port, upcall.serial))
            .expect("one that was sent") += 1;
    }
    assert!(sent.values().all(|count| *count == 1), "{sent:?}");
    assert!(!victim.take_replace_request(), "there may be such packets");
}

/// Large packets without end, whose answers are not read, before and after the lists.
pub fn packets_without_end(victim: &mut impl Victim) {
    for has_listed in [false, true] {
        let channel = victim.meet();
        if has_listed {
            serve(victim, &channel);
        }
        let from = victim.port().unwrap_or((
            victim.controller().port(1).expect("each has a port 1"),
            SwitchId(1),
        ));
        let before = victim.memory();
        let mut left = 3000;
        let end = Instant::now() + TIMEOUT;
        while left > 0 && Instant::now() < end {
            match channel.try_send(&upcall(from, left, 60_000), &[]) {
                Err(control_protocol::ChannelError::WouldBlock) => victim.go_on(),
                Ok(()) => left -= 1,
                Err(_) => left = 0,
            }
        }
        assert_eq!(left, 0, "it does not read");
        victim.go_on();
        let after = victim.memory();
        assert!(after < before + 150, "from {before} to {after} MB, {has_listed}");
        recovers(victim);
    }
}
