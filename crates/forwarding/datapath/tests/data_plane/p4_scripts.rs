//! Packet tests of P4 programs, sent from rings to rings.
//!
//! What a script gives offline is held by `p4-stf`; here each of its packets goes from one guest to others
//! through the data plane, and what arrives is compared with what leaves offline, byte by byte. Where a
//! script changes entries between packets, a new version replaces the one before.
//!
//! `STF="DIR ..."` names further folders of tests; `make test-p4` passes it on. Left out, and told, are what
//! rings cannot do (frames without an Ethernet header, more ports than here are guests), what cannot be
//! given before the first packet, and programs that read the clock.

use super::p4::P4;
use crate::support::{Guest, Switch};
use control_protocol::p4::P4Request;
use p4_ir::Checked;
use p4_stf::folder::{self, Test};
use p4_stf::script::{self, Command};
use p4_stf::{Session, bake};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Guests of a test.
const MAX_PORTS: usize = 12;

/// Shortest frame of a guest.
const MIN_FRAME: usize = 14;

/// A packet of a script, what leaves for it, and the version that it meets.
struct Sent {
    from: u32,
    frame: Vec<u8>,
    leaves: Vec<(u32, Vec<u8>)>,
    /// A new version, before it.
    version: Option<Vec<u8>>,
}

/// What a script comes to, or why it is left out.
fn prepare(test: &Test) -> Result<Vec<Sent>, String> {
    let json = std::fs::read(&test.program).map_err(|error| error.to_string())?;
    let program = p4_bmv2::load(&json, None).map_err(|error| error.to_string())?;
    if reads_the_clock(&program) {
        return Err("it reads the clock".into());
    }
    let text = std::fs::read_to_string(&test.script).map_err(|error| error.to_string())?;
    let lines = script::parse(&text).map_err(|error| error.to_string())?;
    let session = || Session::new(program.clone()).map_err(|error| error.to_string());
    let (mut given, mut sent) = (Vec::new(), Vec::new());
    let (mut offline, mut is_new) = (session()?, true);
    for command in lines.into_iter().map(|line| line.command) {
        match command {
            Command::Expect(..) | Command::CheckCounter(..) | Command::Wait => {}
            Command::Packet(from, frame) => {
                if frame.len() < MIN_FRAME {
                    return Err("its packets have no Ethernet header".into());
                }
                let mut version = None;
                if std::mem::take(&mut is_new) {
                    offline = session()?;
                    for command in &given {
                        offline.run(command).map_err(|error| error.to_string())?;
                    }
                    let baked = bake(program.clone(), &given, &[]);
                    let (baked, setup) = baked.map_err(|(_, error)| error.to_string())?;
                    version = Some(p4_ir::setup::encode(&baked, &setup));
                }
                let leaves = offline.send(from, &frame);
                sent.push(Sent {
                    from,
                    frame,
                    leaves,
                    version,
                });
            }
            command => {
                given.push(command);
                is_new = true;
            }
        }
    }
    Ok(sent)
}

/// Whether a program has fields of time in its packets' way.
fn reads_the_clock(program: &Checked) -> bool {
    use p4_ir::Role;
    let roles = [
        Role::IngressGlobalTimestamp,
        Role::EgressGlobalTimestamp,
        Role::EnqTimestamp,
    ];
    let clocks: Vec<_> = roles
        .into_iter()
        .filter_map(|role| program.standard.get(role))
        .collect();
    let text = format!("{:?}", program.exprs);
    clocks
        .iter()
        .any(|field| text.contains(&format!("Field({field:?})")))
}

/// Sends a script's packets. Returns how many, or why it is left out.
fn carry(test: &Test) -> Result<usize, String> {
    let sent = prepare(test)?;
    let from = sent.iter().map(|sent| sent.from);
    let to = sent
        .iter()
        .flat_map(|sent| sent.leaves.iter().map(|(port, _)| *port));
    let places: BTreeSet<u32> = from.chain(to).filter(|port| *port < 511).collect();
    if places.len() > MAX_PORTS || sent.is_empty() {
        return Err(format!(
            "it has {} packets and {} ports",
            sent.len(),
            places.len()
        ));
    }
    let mut switch = Switch::with_ports(places.len() as u32);
    let ports: BTreeMap<u32, u32> = places.into_iter().zip(1..).collect();
    let mut guests = BTreeMap::new();
    for (place, port) in &ports {
        switch.bind(*port, *place as u16);
        guests.insert(*place, Guest::usual(&mut switch, *port));
    }
    let mut of_port = BTreeMap::new();
    for (number, sent) in sent.iter().enumerate() {
        if let Some(version) = &sent.version {
            switch.draft(P4, version);
            let commit = P4Request::Commit { switch: P4, tag: 1 };
            let refused = switch
                .ask(control_protocol::data_plane::Request::P4(commit))
                .err();
            if let Some(error) = refused {
                switch.finish();
                return Err(error.text);
            }
        }
        guests.get_mut(&sent.from).unwrap().send(&sent.frame);
        for (to, frame) in sent.leaves.iter().filter(|(_, frame)| frame.len() >= MIN_FRAME) {
            if let Some(guest) = guests.get_mut(to) {
                let received = guest.receive().1;
                assert_eq!(received, *frame, "{}, packet {number}, port {to}", test.name);
            }
        }
        let own = of_port.entry(sent.from).or_insert(0);
        *own += 1;
        switch.until_ended(ports[&sent.from], *own);
    }
    for guest in guests.values_mut() {
        assert!(guest.try_receive().is_none(), "{}: one too many", test.name);
    }
    switch.finish();
    Ok(sent.len())
}

#[test]
fn packet_tests_pass_from_rings_to_rings() {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs");
    let further = std::env::var("STF").unwrap_or_default();
    let further = further.split_whitespace().map(Path::new).map(Path::to_owned);
    for folder in std::iter::once(own.clone()).chain(further) {
        let (mut tests, mut packets, mut left_out) = (0, 0, Vec::new());
        for test in folder::find(&folder).unwrap() {
            match carry(&test) {
                Ok(sent) => (tests, packets) = (tests + 1, packets + sent),
                Err(reason) => left_out.push(format!("{}: {reason}", test.name)),
            }
        }
        println!(
            "{}: {tests} tests with {packets} packets pass from rings to rings",
            folder.display()
        );
        println!("left out, {}: {}", left_out.len(), left_out.join("; "));
        assert!(
            folder != own || tests >= 9 && packets > 50,
            "{tests} tests, {packets} packets"
        );
    }
}
