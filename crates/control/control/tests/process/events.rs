//! Events that users are told of.

use crate::rig::{Rig, wait};
use crate::two_ports;
use control_protocol::supervisor::{ProcessStatus, Role, ToChild};
use management::{EventMark, Events, Happening, Reply, Request as Verb};

fn events(rig: &Rig, after: Option<EventMark>) -> Events {
    match rig.call(Verb::Events { after }) {
        Reply::Events(events) => events,
        other => panic!("{other:?}"),
    }
}

/// Waits for an event.
fn told(rig: &Rig, what: &str, is_meant: impl Fn(&Happening) -> bool) -> Happening {
    wait(what, || {
        let found = events(rig, None).events;
        found
            .into_iter()
            .map(|event| event.what)
            .find(|what| is_meant(what))
    })
}

#[test]
fn what_happens_to_ports_and_stations_is_told_in_order() {
    let (mut rig, a, _) = two_ports();
    told(
        &rig,
        "a state",
        |what| matches!(what, Happening::PortState { port, state, .. } if port == "b" && state == "running"),
    );
    rig.upcall(a, 1, 2);
    let learned = told(&rig, "a station", |what| {
        matches!(what, Happening::MacLearned { .. })
    });
    assert_eq!(learned.port(), Some("a"));
    assert!(learned.to_string().ends_with(" is on port a"), "{learned}");
    let all = events(&rig, None);
    let added = |name: &str| {
        all.events
            .iter()
            .position(|event| matches!(&event.what, Happening::PortAdded { port, .. } if port == name))
    };
    let place = all.events.iter().position(|event| event.what == learned);
    assert!(added("a").is_some() && added("a") < place);
    assert!(all.events.windows(2).all(|pair| pair[0].number < pair[1].number));
    // From a mark on, only later ones.
    let mark = EventMark {
        log: all.log,
        number: all.events.last().unwrap().number,
    };
    rig.call(Verb::MacFlush {
        switch: None,
        port: None,
    });
    wait("what is new", || {
        let new = events(&rig, Some(mark)).events;
        let is_meant = |what: &Happening| matches!(what, Happening::MacForgotten { .. });
        new.iter().any(|event| is_meant(&event.what)).then(|| {
            assert!(new.iter().all(|event| event.number > mark.number));
        })
    });
}

#[test]
fn processes_that_end_and_start_are_told() {
    let (rig, ..) = two_ports();
    let status = |pid, restarts, last_exit: Option<&str>| ProcessStatus {
        role: Role::Driver,
        pid,
        restarts,
        last_exit: last_exit.map(str::to_owned),
        missing: None,
        trouble: None,
        serves: None,
        started_ms: None,
    };
    for now in [
        status(Some(7), 0, None),
        status(None, 0, Some("was killed by signal 9")),
        status(Some(8), 1, Some("was killed by signal 9")),
    ] {
        rig.supervisor.send(&ToChild::Processes(vec![now]), &[]).unwrap();
    }
    told(&rig, "the second start", |what| {
        matches!(
            what,
            Happening::ProcessStarted {
                pid: 8,
                restarts: 1,
                ..
            }
        )
    });
    let of_driver: Vec<String> = events(&rig, None)
        .events
        .into_iter()
        .map(|event| event.what.to_string())
        .filter(|text| text.starts_with("driver"))
        .collect();
    assert_eq!(
        of_driver,
        [
            "driver started as process 7",
            "driver was killed by signal 9",
            "driver started again as process 8 (1 restarts)"
        ]
    );
}

#[test]
fn a_reload_is_told_whether_it_succeeds_or_not() {
    let (rig, ..) = two_ports();
    let file = rig.config.clone().unwrap();
    std::fs::write(&file, "[[switch]]\nname = \"s\"\n").unwrap();
    rig.call(Verb::Reload);
    told(
        &rig,
        "removal",
        |what| matches!(what, Happening::PortRemoved { port } if port == "a"),
    );
    told(&rig, "the reload", |what| {
        *what == Happening::Configured { changes: 2 }
    });
    std::fs::write(&file, "nonsense").unwrap();
    rig.supervisor.send(&ToChild::Reload, &[]).unwrap();
    told(&rig, "the refusal", |what| {
        matches!(what, Happening::ConfigurationRefused { .. })
    });
}
