//! Tables: a walk over all entries of the program.

use super::{Evaluator, Packet, Stop, Value};
use num_bigint::BigUint;
use p4_ir::{Entry, EntryAction, EntryTarget, KeyMatch, TableId};

impl<'p> Evaluator<'p> {
    /// Whether an entry was found, and the position of the action that ran.
    pub(super) fn apply(
        &mut self,
        packet: &mut Packet,
        table: TableId,
    ) -> Result<(bool, Option<usize>), Stop> {
        let table = &self.program.tables[table.index()];
        let mut keys = Vec::new();
        for key in &table.keys {
            keys.push(self.evaluate(packet, key.value)?.number);
        }
        let matching = table.entries.iter().filter(|entry| matches(entry, &keys));
        // Of several, the longest prefix, then the greatest priority.
        let found = matching
            .max_by_key(|entry| (prefix(entry), entry.priority))
            .filter(|_| !keys.is_empty());
        let action: Option<&EntryAction> = found
            .and_then(|entry| match &entry.target {
                EntryTarget::Action(action) => Some(action),
                // Random programs have no action profiles.
                _ => None,
            })
            .or(table.default.as_ref().map(|default| &default.entry));
        let Some(action) = action else {
            return Ok((false, None));
        };
        let ran = table
            .actions
            .iter()
            .position(|possible| possible.action == action.action);
        let arguments = action.arguments.iter().map(Value::of).collect();
        self.act(packet, action.action, arguments)?;
        Ok((found.is_some(), ran))
    }
}

/// The length of the prefix, in a table that goes by it: one without priorities.
fn prefix(entry: &Entry) -> u16 {
    let length = |key: &KeyMatch| match key {
        KeyMatch::Lpm(_, length) => *length,
        _ => 0,
    };
    if entry.priority == 0 {
        entry.keys.iter().map(length).max().unwrap_or(0)
    } else {
        0
    }
}

fn matches(entry: &Entry, keys: &[BigUint]) -> bool {
    entry.keys.iter().zip(keys).all(|(wanted, key)| {
        let number = |bits: &p4_ir::Bits| Value::of(bits).number;
        match wanted {
            KeyMatch::Exact(value) | KeyMatch::Optional(Some(value)) => number(value) == *key,
            KeyMatch::Optional(None) => true,
            KeyMatch::Lpm(value, length) => {
                let rest = value.width() - length;
                number(value) >> rest == key >> rest
            }
            KeyMatch::Ternary(value, mask) => number(value) == key & number(mask),
            KeyMatch::Range(from, to) => number(from) <= *key && *key <= number(to),
        }
    })
}
