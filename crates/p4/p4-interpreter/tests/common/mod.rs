//! Shared by the tests and examples of this crate: programs of the project, entries by name, packets.

#![allow(dead_code, reason = "each user takes a part")]
#![allow(clippy::unwrap_used, reason = "also part of an example")]

use p4_interpreter::{Collected, Context, Engine, NoObserver, Packet, State, StateLimits};
use p4_tables::{Change, Entry, Match, MatchKind, ProfileChange, Target};
use std::path::PathBuf;

/// The directory of the project's programs.
pub fn programs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../p4-bmv2/programs")
}

/// An engine for one of the project's programs, with a fresh state and a context.
pub struct Bench {
    pub engine: Engine,
    pub state: State,
    pub context: Context,
    now: u64,
}

/// An entry's match of a key.
#[derive(Clone, Copy)]
pub enum Key {
    /// A value: exact, or under a full mask.
    Is(u64),
    /// A value and the length of the prefix.
    Prefix(u64, u32),
    /// A value and a mask.
    Masked(u64, u64),
    /// Anything.
    Any,
}

impl Bench {
    pub fn new(name: &str) -> Self {
        let path = programs().join(name).join(format!("{name}.json"));
        let json = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::of(&json)
    }

    pub fn of(json: &[u8]) -> Self {
        let engine = Engine::new(p4_bmv2::load(json, None).unwrap()).unwrap();
        let state = State::new(&engine, StateLimits::default()).unwrap();
        let context = Context::new(&engine, 1);
        Bench {
            engine,
            state,
            context,
            now: 0,
        }
    }

    /// Adds an entry. Names are the last parts of the full ones.
    pub fn add(&self, table: &str, keys: &[Key], action: &str, arguments: &[u64]) {
        self.add_with_priority(table, 1, keys, action, arguments);
    }

    pub fn add_with_priority(
        &self,
        table: &str,
        priority: u32,
        keys: &[Key],
        action: &str,
        arguments: &[u64],
    ) {
        let program = self.engine.program();
        let last = |name: &str, wanted: &str| name.rsplit('.').next() == Some(wanted);
        let number = program
            .tables
            .iter()
            .position(|one| last(&one.identity.name, table))
            .unwrap();
        let layout = self.engine.layout(p4_ir::TableId(number as u16));
        let action_of =
            |one: &&p4_ir::TableAction| last(&program.actions[one.action.index()].identity.name, action);
        let action = program.tables[number]
            .actions
            .iter()
            .find(action_of)
            .unwrap()
            .action;
        let full = |width: u32| p4_interpreter::bits::mask(width);
        let words: Vec<([u64; 1], [u64; 1], u32)> = keys
            .iter()
            .zip(layout.places())
            .map(|(key, place)| match *key {
                Key::Is(value) => ([value], [full(place.width)], place.width),
                Key::Prefix(value, length) => ([value], [0], length),
                Key::Masked(value, mask) => ([value & mask], [mask], 0),
                Key::Any => ([0], [0], 0),
            })
            .collect();
        let matches: Vec<Match<'_>> = words
            .iter()
            .zip(layout.places())
            .map(|((value, mask, length), place)| match place.kind {
                MatchKind::Exact => Match::Exact(value),
                MatchKind::Lpm => Match::Lpm {
                    value,
                    length: *length,
                },
                MatchKind::Ternary => Match::Ternary { value, mask },
                MatchKind::Optional if mask[0] == 0 => Match::Optional(None),
                MatchKind::Optional => Match::Optional(Some(value)),
                MatchKind::Range => Match::Range {
                    low: value,
                    high: value,
                },
            })
            .collect();
        let pattern = layout.pattern(&matches).unwrap();
        let priority = if layout.has_priorities() { priority } else { 0 };
        let mut changes = Vec::new();
        let target = Target::Action {
            action: u32::from(action.0),
            arguments: arguments.into(),
        };
        let target = match (program.tables[number].implementation, target) {
            (p4_ir::Implementation::Direct, target) => target,
            (p4_ir::Implementation::Profile(profile), Target::Action { action, arguments }) => {
                let member = self
                    .state
                    .tables()
                    .look()
                    .profile(u32::from(profile.0))
                    .unwrap()
                    .members() as u32
                    + 1;
                changes.push(Change::Profile {
                    profile: u32::from(profile.0),
                    change: ProfileChange::AddMember {
                        member,
                        action,
                        arguments,
                    },
                });
                Target::Member(member)
            }
            (_, target) => target,
        };
        let entry = Entry {
            pattern,
            priority,
            target,
            idle_timeout_ns: 0,
        };
        changes.push(Change::Insert {
            table: number as u32,
            entry,
        });
        self.state.tables().apply(&changes, 0).unwrap();
    }

    /// Runs a packet. Returns the packets that leave, and why copies were dropped.
    pub fn send(&mut self, port: u32, packet: &[u8]) -> Collected {
        let mut sink = Collected::default();
        self.now += 1_000_000;
        let packet = Packet::whole(port, packet);
        let reading = self.state.read();
        self.engine.run(
            &reading,
            &mut self.context,
            &packet,
            self.now,
            &mut sink,
            &mut NoObserver,
        );
        sink
    }
}

/// A UDP packet over IPv4 and Ethernet, with the right header checksum and no UDP checksum, of that length.
pub fn udp(to: u64, from: u64, source: u32, destination: u32, ports: (u16, u16), length: usize) -> Vec<u8> {
    let mut packet = vec![0; length];
    packet[..6].copy_from_slice(&to.to_be_bytes()[2..]);
    packet[6..12].copy_from_slice(&from.to_be_bytes()[2..]);
    packet[12..14].copy_from_slice(&[8, 0]);
    let ip = &mut packet[14..34];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((length - 14) as u16).to_be_bytes());
    ip[8] = 64;
    ip[9] = 17;
    ip[12..16].copy_from_slice(&source.to_be_bytes());
    ip[16..20].copy_from_slice(&destination.to_be_bytes());
    let sum = p4_interpreter::hash::Algorithm::Csum16.hash(ip) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[34..36].copy_from_slice(&ports.0.to_be_bytes());
    packet[36..38].copy_from_slice(&ports.1.to_be_bytes());
    packet[38..40].copy_from_slice(&((length - 34) as u16).to_be_bytes());
    packet
}
