//! What notes on one packet say about all packets of its kind.

use super::sums::{Sum, Update, words};
use super::{METADATA, Notes, Origin, WORK, add_all, sizes};
use crate::observe::{Lookup, Outcome, View};
use crate::packet::Drop;
use crate::verdict::{Edit, End, KEY, Part, Sum as Kept, Use, Verdict};
use p4_ir::Role;

/// Most bytes of headers that a verdict looks at or changes: those that a packet's private head surely has.
const MAX_FRONT: usize = 128;

/// Most entries and cells that count a packet.
const MAX_USES: usize = 32;

/// How a packet ended, and what it was counted by.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Something was done that only a run can do.
    is_refused: bool,
    outcomes: usize,
    end: Option<End>,
    uses: Vec<Use>,
    /// The headers that leave, by bits of the packet header vector.
    layout: Vec<std::ops::Range<usize>>,
    /// Where the parser ended, in bytes.
    parsed: usize,
    /// The bytes that the packet left with.
    head: Vec<u8>,
    outputs: usize,
}

impl Ends {
    pub fn refuse(&mut self) {
        self.is_refused = true;
    }

    pub fn count_cell(&mut self, counter: u16, index: u64) {
        self.count(Use::Cell(counter, index));
    }

    fn count(&mut self, by: Use) {
        if self.uses.len() == MAX_USES {
            self.refuse();
        } else {
            self.uses.push(by);
        }
    }

    pub fn outcome(&mut self, outcome: Outcome) {
        self.outcomes += 1;
        match outcome {
            Outcome::Port {
                port,
                rid: 0,
                instance: 0,
            } if self.outcomes == 1 => self.end = Some(End::Leaves(port)),
            Outcome::Dropped(Drop::Ingress) if self.outcomes == 1 => {
                self.end = Some(End::Dropped(Drop::Ingress));
            }
            Outcome::Dropped(Drop::Egress) if self.outcomes == 2 && self.outputs == 0 => {
                self.end = Some(End::Dropped(Drop::Egress));
            }
            _ => self.refuse(),
        }
    }

    pub fn left_as(&mut self, head: &[u8]) {
        self.outputs += 1;
        self.head = head.to_vec();
    }
}

impl Notes<'_> {
    /// Notes the entry that a look-up found, and what it asked besides the key.
    pub(super) fn entry_used(&mut self, lookup: &Lookup<'_>) {
        let program = self.engine.program();
        let table = &program.tables[lookup.table.index()];
        self.state |= table.meter.is_some();
        if let p4_ir::Implementation::Profile(profile) = table.implementation
            && program.profiles[profile.index()].selector.is_some()
        {
            // The hash that chooses a member, and ports that members watch.
            self.decide_register(0);
            self.state |= self.engine.watches_ports;
        }
        if table.counter.is_some() || self.engine.idle[lookup.table.index()] {
            self.ends.count(Use::Entry(lookup.table, lookup.entry));
        }
    }

    /// Notes which headers leave.
    pub(super) fn lay_out(&mut self, view: &View<'_>) {
        self.ends.parsed = view.at;
        let leaves = |header: &&usize| view.is_valid(p4_ir::HeaderId(**header as u16));
        for &header in self.engine.emits.iter().filter(leaves) {
            let info = &self.engine.headers[header];
            if info.variable.is_some() {
                self.ends.refuse();
            }
            let range = info.range();
            self.ends.layout.push(range.start * 8..range.end * 8);
        }
    }

    /// What happens to every packet that came by this port and agrees with this one in the bits of the
    /// verdict's mask. `None` if that is not known, or more than a cache may do.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let ends = &self.ends;
        let is_known = self.exact && !self.state && !self.payload && self.passes == 1 && !ends.is_refused;
        let end = ends.end.filter(|_| is_known && self.engine.may_have_verdicts())?;
        let leaves = matches!(end, End::Leaves(_));
        if ends.outputs != usize::from(leaves) {
            return None;
        }
        let mut verdict = Verdict {
            end,
            at_least: self.parsed.div_ceil(8),
            mask: [0; KEY],
            edits: Vec::new(),
            guards: Vec::new(),
            updates: Vec::new(),
            uses: ends.uses.clone().into(),
            keeps_ether_type: false,
        };
        let mut decided = self.decided.clone();
        if leaves {
            self.front(&mut verdict, &mut decided)?;
        }
        for guard in &self.sums.guards {
            verdict.guards.push(kept(guard)?);
        }
        let port = self.port_bits();
        for bit in decided.into_iter().filter(|bit| !port.contains(bit)) {
            *verdict.mask.get_mut(bit as usize / 8)? |= 0x80 >> (bit % 8);
        }
        verdict.note_ether_type();
        (verdict.at_least <= MAX_FRONT).then_some(verdict)
    }

    /// The bits of the port by which the packet came.
    fn port_bits(&self) -> std::ops::Range<u32> {
        let program = self.engine.program();
        let field = program.standard.get(Role::IngressPort);
        field.map_or(0..0, |field| {
            let field = program.fields[field.index()];
            METADATA + field.offset..METADATA + field.offset + u32::from(field.width)
        })
    }

    /// The headers with which the packet left, as changes of those with which it came. Bits that are neither
    /// as they came nor the same for all packets of the kind decide.
    fn front(&self, verdict: &mut Verdict, decided: &mut std::collections::BTreeSet<u32>) -> Option<()> {
        let ends = &self.ends;
        let origins: Vec<&Origin> = ends
            .layout
            .iter()
            .flat_map(|bits| &self.phv[bits.clone()])
            .collect();
        let length = origins.len() / 8;
        // Headers that grow or shrink are for a run.
        if length != ends.parsed || ends.head.len() < length || !(8..=MAX_FRONT).contains(&length) {
            return None;
        }
        let (mut keep, mut value) = (vec![0_u8; length], ends.head[..length].to_vec());
        let mut deciding = Vec::new();
        for (at, origin) in origins.iter().enumerate() {
            let bit = 0x80_u8 >> (at % 8);
            match origin {
                Origin::Bit(from) if *from as usize == at => keep[at / 8] |= bit,
                Origin::None => {}
                Origin::Bit(_) | Origin::Set(_) => deciding.push((*origin).clone()),
            }
        }
        if sizes(&deciding) > WORK {
            return None;
        }
        add_all(decided, &deciding);
        for (value, keep) in value.iter_mut().zip(&keep) {
            *value &= !keep;
        }
        for update in &self.sums.updates {
            let sum = self.placed(update)?;
            // The sum is written behind the edits.
            keep[usize::from(sum.at)..usize::from(sum.at) + 2].fill(0xFF);
            value[usize::from(sum.at)..usize::from(sum.at) + 2].fill(0);
            verdict.updates.push(kept(&sum)?);
        }
        verdict.edits = edits(&keep, &value);
        Some(())
    }

    /// A sum by places in the packet that leaves. `None` if it is over what another one changes.
    fn placed(&self, update: &Update) -> Option<Sum> {
        let place = |bit: usize| {
            let mut before = 0;
            for range in &self.ends.layout {
                if range.contains(&bit) {
                    return u32::try_from(before + bit - range.start).ok();
                }
                before += range.len();
            }
            None
        };
        let inputs = update.inputs.iter();
        let inputs = inputs.flat_map(|&(bit, width)| bit as usize..bit as usize + usize::from(width));
        let inputs: Vec<usize> = inputs.collect();
        let targets = self.sums.updates.iter().map(|update| update.target as usize);
        let mut changed = targets.map(|target| target..target + 16);
        if changed.any(|target| inputs.iter().any(|bit| target.contains(bit))) {
            return None;
        }
        let inputs: Vec<_> = inputs.into_iter().map(place).collect();
        Some(Sum {
            words: words(&inputs)?,
            at: u16::try_from(place(update.target as usize)? / 8).ok()?,
        })
    }
}

/// Changes of bytes, eight at a time; neighbours may overlap.
fn edits(keep: &[u8], value: &[u8]) -> Vec<Edit> {
    let starts = (0..keep.len()).step_by(8).map(|at| at.min(keep.len() - 8));
    let edit = |at: usize| {
        let part = |bytes: &[u8]| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Edit {
            at: at as u8,
            keep: part(keep),
            value: part(value),
        }
    };
    starts.map(edit).filter(|edit| edit.keep != u64::MAX).collect()
}

/// A sum by parts of eight bytes.
fn kept(sum: &Sum) -> Option<Kept> {
    let place = |word: usize| Some(word).filter(|at| at + 2 <= MAX_FRONT);
    let mut parts: Vec<Words> = Vec::new();
    for &word in &sum.words {
        let at = place(usize::from(word))?;
        if !parts.last_mut().is_some_and(|part| part.add(at)) {
            let mut part = Words::new(at);
            part.add(at);
            parts.push(part);
        }
    }
    Some(Kept {
        parts: parts.iter().map(Words::part).collect::<Option<_>>()?,
        at: u8::try_from(place(sum.at.into())?).ok()?,
    })
}

/// Words among eight bytes that begin with one.
struct Words {
    from: usize,
    end: usize,
    mask: [u8; 8],
}

impl Words {
    fn new(from: usize) -> Words {
        Words {
            from,
            end: from,
            mask: [0; 8],
        }
    }

    /// Adds a word; false if it lies elsewhere, across others, or is there already.
    fn add(&mut self, at: usize) -> bool {
        let place = at.checked_sub(self.from).filter(|place| place % 2 == 0);
        let bytes = place.and_then(|place| self.mask.get_mut(place..place + 2));
        let Some(bytes) = bytes.filter(|bytes| **bytes == [0, 0]) else {
            return false;
        };
        bytes.fill(0xFF);
        self.end = self.end.max(at + 2);
        true
    }

    /// The eight bytes that end with the last word, so that all of them are in the packet. `None` if the
    /// packet need not have as many.
    fn part(&self) -> Option<Part> {
        let at = self.end.checked_sub(8)?;
        let shift = self.from - at;
        let mut mask = [0; 8];
        mask[shift..].copy_from_slice(&self.mask[..8 - shift]);
        Some(Part {
            at: u8::try_from(at).ok()?,
            mask: u64::from_ne_bytes(mask),
        })
    }
}
