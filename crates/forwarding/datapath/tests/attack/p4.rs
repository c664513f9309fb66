//! Tenants whose P4 programs cost as much as they may, with two ports whose rings are never empty.

use crate::floods::flood;
use crate::measure::{Attackers, Bound, FIRST, hold, hold_to};
use crate::support::p4::{P4, folder, program};
use crate::support::{Switch, heavy_program};
use control_protocol::data_plane::Request;
use control_protocol::p4::{MAX_OPERATIONS, P4Request};
use p4_ir::setup::{Setup, encode};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a program whose turns are long may add to the usual round trip, which meets none of them.
const USUAL: Bound = Bound {
    part: 500,
    added: Duration::from_micros(300),
};

/// Ports whose rings are full of frames, in which every byte but the header's is the same, bound to a
/// program.
fn tenants(switch: &mut Switch, attackers: &Attackers) -> Vec<JoinHandle<()>> {
    let frame = [&[0; 12][..], &[0x45; 300]].concat();
    let rest = Duration::from_micros(100);
    let flooding = |port| flood(switch, attackers, port, &[], (&frame, rest));
    let threads: Vec<_> = (FIRST..FIRST + 2).map(flooding).collect();
    (FIRST..FIRST + 2)
        .zip(1..)
        .for_each(|(port, place)| switch.bind(port, place));
    threads
}

/// Holds the bystanders beside a program of the project, if it is not refused.
fn beside(name: &str) {
    let json = std::fs::read(folder().join(format!("malicious/{name}/{name}.json"))).unwrap();
    let Ok(checked) = p4_bmv2::load(&json, None) else {
        return;
    };
    let bytes = encode(&checked, &Setup::default());
    let mut is_refused = false;
    let named = format!("a tenant with {name}");
    hold(
        &named,
        |switch, attackers| {
            switch.draft(P4, &bytes);
            let commit = P4Request::Commit { switch: P4, tag: 1 };
            is_refused = switch.ask(Request::P4(commit)).is_err();
            if is_refused {
                Vec::new()
            } else {
                tenants(switch, attackers)
            }
        },
        |_| (),
    );
}

#[test]
fn programs_that_mean_harm() {
    for entry in std::fs::read_dir(folder().join("malicious")).unwrap() {
        beside(&entry.unwrap().file_name().into_string().unwrap());
    }
}

/// A sound program of 640,000 operations a pass, which somebody has allowed.
#[test]
fn a_program_that_is_allowed_what_it_takes() {
    let heavy = heavy_program::of_chain(program("malicious/table_chain"));
    let bytes = encode(&heavy, &Setup::default());
    hold_to(
        "a tenant with 640,000 operations a packet",
        USUAL,
        |switch, attackers| {
            switch.draft(P4, &bytes);
            let commit = P4Request::Commit { switch: P4, tag: 1 };
            let refused = switch.ask(Request::P4(commit.clone())).unwrap_err();
            assert!(
                refused.text.contains("operations of one pass: 6"),
                "{}",
                refused.text
            );
            switch.draft(P4, &bytes);
            let (switch_id, operations) = (P4, MAX_OPERATIONS);
            switch.p4(P4Request::Allow {
                switch: switch_id,
                operations,
            });
            switch.p4(commit);
            tenants(switch, attackers)
        },
        |_| (),
    );
}
