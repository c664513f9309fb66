//! Random changes of recorded messages, and random attributes. `OVS_NETLINK_FUZZ_MINUTES=60` runs that long,
//! with other seeds each time; without it, a fixed number of rounds.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use ovs_netlink::attribute::Writer;
use ovs_netlink::message::{Flags, Header, messages};
use ovs_netlink::{Reply, Request, action};

const ROUNDS: usize = 200_000;

/// The bytes of all recorded messages.
fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut messages = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "hex") {
            continue;
        }
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("> ").or(line.strip_prefix("< ")));
        messages.extend(lines.map(|hex| {
            let pairs = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16));
            pairs.map(Result::unwrap).collect::<Vec<u8>>()
        }));
    }
    messages.sort();
    messages
}

/// Writes each value that was read, and checks that it is read again as the same.
fn feed(bytes: &[u8]) {
    for message in messages(bytes).flatten() {
        let written = |write: &dyn Fn(&mut Writer)| {
            let mut writer = Writer::new();
            write(&mut writer);
            writer.finish().unwrap()
        };
        match Request::read(&message) {
            Ok(request) => {
                let again = written(&|writer| request.write(message.header, writer));
                let again = messages(&again).next().unwrap().unwrap();
                assert_eq!(Request::read(&again).as_ref(), Ok(&request), "{bytes:02x?}");
            }
            Err(error) => assert!(error.errno().0 > 0),
        }
        if let Ok(reply) = Reply::read(&message) {
            let again = written(&|writer| reply.write(message.header, writer));
            let again = messages(&again).next().unwrap().unwrap();
            assert_eq!(Reply::read(&again).as_ref(), Ok(&reply), "{bytes:02x?}");
        }
    }
    if let Ok(actions) = action::read(bytes) {
        let mut writer = Writer::new();
        action::write(&actions, &mut writer);
        assert_eq!(action::read(&writer.finish().unwrap()), Ok(actions));
    }
}

/// Changes bytes, lengths and kinds; moves, repeats and removes aligned parts.
fn change(bytes: &mut Vec<u8>, random: &mut Rng) {
    for _ in 0..random.usize(1..5) {
        let words = bytes.len() / 4;
        if words < 2 {
            return;
        }
        let at = 4 * random.usize(..words);
        match random.u8(..6) {
            0 => bytes[at + random.usize(..4)] = random.u8(..),
            1 => bytes[at + random.usize(..4)] ^= 1 << random.u8(..8),
            2 => bytes[at..at + 2].copy_from_slice(&random.u16(..64).to_ne_bytes()),
            3 => bytes[at + 2..at + 4].copy_from_slice(&random.u16(..34).to_ne_bytes()),
            4 => {
                let end = at + 4 * random.usize(..=(words - at / 4).min(8));
                let part = bytes[at..end].to_vec();
                let to = 4 * random.usize(..words);
                bytes.splice(to..to, part);
            }
            _ => {
                let end = at + 4 * random.usize(..=(words - at / 4).min(8));
                bytes.drain(at..end);
            }
        }
    }
    // Else most changes end at the first length field.
    if random.u8(..8) > 0
        && let Ok(length) = u32::try_from(bytes.len())
        && let Some(field) = bytes.get_mut(..4)
    {
        field.copy_from_slice(&length.to_ne_bytes());
    }
}

/// Attributes of any kinds, nested.
fn attributes(writer: &mut Writer, random: &mut Rng, depth: usize) {
    for _ in 0..random.usize(..6) {
        let kind = random.u16(..32);
        if depth > 0 && random.bool() {
            writer.nested(kind, |writer| attributes(writer, random, depth - 1));
        } else {
            let size = *random.choice(&[0, 1, 2, 4, 8, 12, 16, 24, 28, 32, 40]).unwrap();
            let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(size).collect();
            writer.attribute(kind, &value);
        }
    }
}

fn made_up(random: &mut Rng) -> Vec<u8> {
    let mut writer = Writer::new();
    let header = Header {
        kind: *random
            .choice(&[0x10, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25])
            .unwrap(),
        flags: Flags::REQUEST,
        sequence: 1,
        port: 1,
    };
    writer.message(header, |writer| {
        writer.raw(&[random.u8(..6), 1, 0, 0, 2, 0, 0, 0]);
        attributes(writer, random, 4);
    });
    writer.finish().unwrap()
}

#[test]
fn nothing_panics_and_what_is_understood_is_written_again() {
    let corpus = corpus();
    assert!(corpus.len() > 200);
    let minutes = std::env::var("OVS_NETLINK_FUZZ_MINUTES").ok();
    let long = minutes.map(|minutes| Duration::from_secs(60 * minutes.parse::<u64>().unwrap()));
    let seed = if long.is_some() { fastrand::u64(..) } else { 1 };
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let start = Instant::now();
    let mut rounds = 0;
    while long.map_or(rounds < ROUNDS, |long| start.elapsed() < long) {
        let mut bytes = random.choice(&corpus).unwrap().clone();
        change(&mut bytes, &mut random);
        feed(&bytes);
        feed(&made_up(&mut random));
        rounds += 1;
    }
    println!("{rounds} rounds");
}
