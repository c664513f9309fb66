//! Programs whose verdicts are kept, beside the same programs that run each packet, and the evaluator.
//!
//! Packets are variants of a few, so that verdicts are found; entries go meanwhile, as they do with a new
//! version of a program, and versions share a table of verdicts as programs of a worker do.

use crate::compare::Difference;
use crate::evaluate::{Evaluator, Sent};
use crate::generate;
use fastrand::Rng;
use p4_interpreter::{
    Collected, Context, CounterValue, End, Engine, KeyMasks, Mask, NoObserver, Notes, Packet, State,
    StateLimits, Verdicts,
};
use p4_ir::{Checked, CounterId, Program};

/// Packets of which the others are variants.
const KINDS: usize = 4;

/// How many packets there were of each sort.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// Packets whose verdicts were found.
    pub found: usize,
    /// Packets of these that left changed.
    pub changed: usize,
    /// Verdicts that were made.
    pub made: usize,
}

/// A version of a program in use.
struct Version {
    checked: Checked,
    engine: Engine,
    kept: State,
    plain: State,
    masks: KeyMasks,
    mask: Mask,
}

impl Version {
    fn new(program: Program, seed: u64) -> Result<Version, Difference> {
        let checked = Checked::new(program).map_err(|error| Difference::Refused { seed, error })?;
        let not_loaded = |error| Difference::NotLoaded { seed, error };
        let engine = Engine::new(checked.clone()).map_err(not_loaded)?;
        let state = || State::new(&engine, StateLimits::default()).map_err(not_loaded);
        let (kept, plain) = (state()?, state()?);
        Ok(Version {
            masks: KeyMasks::new(&engine, &kept),
            mask: Mask::default(),
            kept,
            plain,
            engine,
            checked,
        })
    }

    /// What the tables and counters of both states have counted.
    fn counted(&self) -> [Vec<(u64, u64)>; 2] {
        [&self.kept, &self.plain].map(|state| {
            let mut all = Vec::new();
            for counter in 0..self.checked.counters.len() as u16 {
                let cells = (0..).map_while(|cell| state.counter(CounterId(counter), cell).ok());
                all.extend(cells.map(|cell| (cell.packets, cell.bytes)));
            }
            let tables = state.tables().look();
            let own = (0..).map_while(|number| tables.table(number).ok());
            for table in own {
                let entries = table.handles().chain([p4_tables::DEFAULT]);
                let counts = entries.filter_map(|entry| table.counted(entry));
                all.extend(counts.map(|count| (count.packets, count.bytes)));
            }
            all
        })
    }
}

/// Runs variants of a few packets through a random program and, behind half of them, through it with fewer
/// entries.
///
/// # Errors
/// The first difference, or why the program is not taken.
pub fn compare_verdicts(
    verdicts: &mut Verdicts,
    (program, seed): (Program, u64),
    packets: u32,
) -> Result<Found, Difference> {
    let mut found = Found::default();
    let mut random = Rng::with_seed(seed ^ 0x6361_6368);
    let kinds: Vec<Vec<u8>> = (0..KINDS).map(|_| generate::packet(&mut random)).collect();
    let mut fewer = program.clone();
    for table in &mut fewer.tables {
        table.entries.retain(|_| random.bool());
    }
    for program in [program, fewer] {
        let mut version = Version::new(program, seed)?;
        let mut run = Run {
            contexts: [1, 1].map(|_| Context::new(&version.engine, seed)),
            verdicts,
            found: &mut found,
            last: 0,
        };
        let checked = version.checked.clone();
        let mut evaluator = Evaluator::new(&checked);
        for number in 0..packets / 2 {
            let bytes = variant(&kinds, &mut random);
            let port = random.u32(..2);
            let expected = evaluator.run(port, &bytes);
            let [kept, plain] = run.both(&mut version, port, &bytes, u64::from(number));
            if kept != plain || plain != expected {
                return Err(Difference::Packet {
                    seed,
                    number,
                    port,
                    bytes,
                    found: kept,
                    drops: format!("plain: {plain:02x?}"),
                    expected,
                });
            }
        }
        same_counts(&version, &run.contexts, seed)?;
    }
    Ok(found)
}

fn same_counts(version: &Version, contexts: &[Context; 2], seed: u64) -> Result<(), Difference> {
    let counts = contexts.each_ref().map(|context| *context.counts());
    let [kept, plain] = version.counted();
    if kept == plain && counts[0] == counts[1] {
        return Ok(());
    }
    Err(Difference::Counts {
        seed,
        kept: format!("{kept:?} {:?}", counts[0]),
        plain: format!("{plain:?} {:?}", counts[1]),
    })
}

/// One of a few packets, some bits or the length of it changed; most with a right checksum of the first
/// header, where [plain programs](generate::plain_program) have it.
fn variant(kinds: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut bytes = kinds[random.usize(..kinds.len())].clone();
    for _ in 0..random.usize(..3) {
        if !bytes.is_empty() {
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u32(..8);
        }
    }
    if random.u32(..8) > 0 && bytes.len() >= 10 {
        let sum = p4_interpreter::hash::Algorithm::Csum16.hash(&[&bytes[..4], &bytes[6..10]].concat());
        bytes[4..6].copy_from_slice(&(sum as u16).to_be_bytes());
    }
    match random.u32(..8) {
        0 => bytes.truncate(random.usize(..=bytes.len())),
        1 => bytes.extend_from_slice(&[random.u8(..); 9]),
        _ => {}
    }
    bytes
}

struct Run<'a> {
    contexts: [Context; 2],
    verdicts: &'a mut Verdicts,
    found: &'a mut Found,
    /// The place of the last verdict that was found.
    last: u32,
}

impl Run<'_> {
    /// The packets that leave with verdicts kept, and without.
    fn both(&mut self, version: &mut Version, port: u32, bytes: &[u8], now: u64) -> [Vec<Sent>; 2] {
        let kept = self.kept(version, port, bytes, now);
        let mut collected = Collected::default();
        version.engine.run(
            &version.plain.read(),
            &mut self.contexts[1],
            &Packet::whole(port, bytes),
            now,
            &mut collected,
            &mut NoObserver,
        );
        [kept, sent(collected)]
    }

    fn kept(&mut self, version: &mut Version, port: u32, bytes: &[u8], now: u64) -> Vec<Sent> {
        let (engine, guard) = (&version.engine, version.kept.read());
        let place = self.verdicts.find(&version.mask, port, bytes, self.last);
        self.last = place.unwrap_or(self.last);
        if let Some(verdict) = place.and_then(|place| self.verdicts.get(place)) {
            self.found.found += 1;
            let one = CounterValue::one(bytes.len());
            engine.repeat(&guard, &mut self.contexts[0], verdict, one, now);
            let End::Leaves(port) = verdict.end() else {
                return Vec::new();
            };
            let mut bytes = bytes.to_vec();
            if !verdict.is_plain() {
                self.found.changed += 1;
                verdict.edit(&mut bytes);
            }
            return vec![Sent { port, bytes }];
        }
        let mut collected = Collected::default();
        let mut notes = Notes::new(engine, &version.masks);
        let packet = Packet::whole(port, bytes);
        engine.run(
            &guard,
            &mut self.contexts[0],
            &packet,
            now,
            &mut collected,
            &mut notes,
        );
        if let Some(verdict) = notes.verdict() {
            self.found.made += 1;
            self.verdicts.keep(&mut version.mask, port, bytes, verdict);
        }
        sent(collected)
    }
}

fn sent(collected: Collected) -> Vec<Sent> {
    let outputs = collected.outputs.into_iter();
    outputs.map(|(port, bytes)| Sent { port, bytes }).collect()
}
