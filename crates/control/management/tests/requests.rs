//! Requests and answers as they travel.

#![allow(clippy::unwrap_used)]

use management::*;

#[test]
fn requests_are_lines_that_people_can_write() {
    let request: Request =
        serde_json::from_str(r#"{"verb":"port-add","switch":"sw0","config":{"name":"vm1"}}"#).unwrap();
    let config = Box::new(PortConfig::new("vm1".parse().unwrap(), PortKind::VhostUser));
    assert_eq!(
        request,
        Request::PortAdd {
            switch: "sw0".into(),
            config,
            exists_ok: false,
        }
    );
    let line = serde_json::to_string(&Request::Trace {
        port: "vm1".into(),
        frame: Hex(vec![1, 0xab]),
    })
    .unwrap();
    assert_eq!(line, r#"{"verb":"trace","port":"vm1","frame":"01ab"}"#);
    assert_eq!(
        serde_json::to_string(&Response::Ok(Reply::Done)).unwrap(),
        r#"{"ok":"done"}"#
    );
    for bad in [
        r#"{"verb":"port-sett","port":"a"}"#,
        r#"{"verb":"port-add","switch":"sw0","config":{"name":"../x"}}"#,
        r#"{"verb":"trace","port":"a","frame":"abc"}"#,
        r#"{"verb":"trace","port":"a","frame":"éé"}"#,
        r#"{"verb":"port-show","port":"a","extra":1}"#,
        "[]",
    ] {
        assert!(serde_json::from_str::<Request>(bad).is_err(), "{bad}");
    }
}

#[test]
fn later_changes_win() {
    let mut port = PortConfig::new("p".parse().unwrap(), PortKind::Tap);
    let first = PortChanges {
        mtu: Mtu::new(9000),
        isolated: Some(true),
        ..PortChanges::default()
    };
    let second = PortChanges {
        mtu: Mtu::new(1400),
        flood: Some(false),
        ..PortChanges::default()
    };
    first.then(second).apply(&mut port);
    assert_eq!(
        (port.mtu, port.isolated, port.flood),
        (Mtu::new(1400), true, false)
    );
    assert_eq!(port.mac_limit.get(), 1024);
}

#[test]
fn counters_add_up() {
    let mut of_port = flow::PortCounters {
        received: 5,
        delivered: 3,
        ..Default::default()
    };
    of_port.dropped.add(flow::DropReason::PortDown, 2);
    let mut total = Counters::from(&of_port);
    total.add(&Counters::from(&of_port));
    assert_eq!(
        (
            total.received,
            total.delivered,
            total.dropped["port-down"],
            total.in_flight
        ),
        (10, 6, 4, 0)
    );
}

#[test]
fn counters_of_an_older_version_are_read() {
    let older: Counters = serde_json::from_str(r#"{"received":7,"dropped":{"port-down":2}}"#).unwrap();
    assert_eq!(
        (older.received, older.dropped["port-down"], older.bandwidth_waits),
        (7, 2, 0)
    );
}
