//! What a run leaves behind: counters and registers that are not zero, and the digests that were sent.

use super::trace;
use crate::output::Table;
use p4_ir::{Bits, CounterId, DigestId, Program, RegisterId, Type};
use p4_stf::Session;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Most cells of counters, cells of registers, and digests that are shown.
pub const MOST: usize = 1000;

/// Counters, registers and digests at the end of a run.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "P4FinalState")]
pub struct FinalState {
    counters: Vec<Count>,
    registers: Vec<Cell>,
    digests: Vec<Sent>,
    /// Cells and digests beyond [`MOST`].
    left_out: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "P4Count")]
struct Count {
    name: String,
    /// Of an array: the cell. Of a direct counter: the entry, counted from 0 in the order in which entries
    /// were added.
    index: u64,
    /// The table of a direct counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<String>,
    packets: u64,
    bytes: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "P4Cell")]
struct Cell {
    name: String,
    index: u64,
    value: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "P4Sent")]
struct Sent {
    name: String,
    values: BTreeMap<String, String>,
}

impl FinalState {
    /// Reads the state of a session. `digests` are those that were sent, as the engine gave them; `unseen`
    /// is the number of further ones.
    pub fn of(session: &Session, digests: &[(DigestId, Vec<u8>)], unseen: u64) -> Self {
        let mut state = Self {
            left_out: unseen,
            ..Self::default()
        };
        state.counters(session);
        state.registers(session);
        let program = session.engine().program();
        state.digests = digests
            .iter()
            .map(|(id, values)| digest(program, *id, values))
            .collect();
        state
    }

    fn counters(&mut self, session: &Session) {
        let program = session.engine().program();
        let tables = session.state().tables().look();
        for (number, counter) in program.counters.iter().enumerate() {
            let name = &counter.identity.name;
            let Some(table) = counter.table else {
                let id = CounterId(number as u16);
                for index in 0..u64::from(counter.size) {
                    if let Ok(count) = session.state().counter(id, index) {
                        self.count(name, index, None, (count.packets, count.bytes));
                    }
                }
                continue;
            };
            let Ok(rows) = tables.table(u32::from(table.0)) else {
                continue;
            };
            let of = &program.tables[table.index()].identity.name;
            for handle in rows.handles() {
                let count = rows.counted(handle).unwrap_or_default();
                let index = u64::from(handle).saturating_sub(1);
                self.count(name, index, Some(of), (count.packets, count.bytes));
            }
        }
    }

    fn count(&mut self, name: &str, index: u64, table: Option<&String>, (packets, bytes): (u64, u64)) {
        if (packets, bytes) == (0, 0) {
            return;
        }
        if self.counters.len() == MOST {
            self.left_out += 1;
            return;
        }
        self.counters.push(Count {
            name: name.to_owned(),
            index,
            table: table.cloned(),
            packets,
            bytes,
        });
    }

    fn registers(&mut self, session: &Session) {
        for (number, register) in session.engine().program().registers.iter().enumerate() {
            let id = RegisterId(number as u16);
            for index in 0..u64::from(register.size) {
                let words = session.state().register(id, index).unwrap_or_default();
                if words.iter().all(|word| *word == 0) {
                    continue;
                }
                if self.registers.len() == MOST {
                    self.left_out += 1;
                    continue;
                }
                let name = register.identity.name.clone();
                let value = trace::number(&name, register.width, &words);
                self.registers.push(Cell { name, index, value });
            }
        }
    }

    /// As tables, for users. Empty if there is nothing to show.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.counters.is_empty() {
            let mut table = Table::new(&["COUNTER", "CELL OR ENTRY", ">PACKETS", ">BYTES"]);
            for count in &self.counters {
                let at = match &count.table {
                    Some(of) => format!("{of} entry {}", count.index),
                    None => count.index.to_string(),
                };
                table.row([
                    count.name.clone(),
                    at,
                    count.packets.to_string(),
                    count.bytes.to_string(),
                ]);
            }
            text.push_str(&format!("\n{table}"));
        }
        if !self.registers.is_empty() {
            let mut table = Table::new(&["REGISTER", ">CELL", "VALUE"]);
            for cell in &self.registers {
                table.row([cell.name.clone(), cell.index.to_string(), cell.value.clone()]);
            }
            text.push_str(&format!("\n{table}"));
        }
        if !self.digests.is_empty() {
            let mut table = Table::new(&["DIGEST", "VALUES"]);
            for digest in &self.digests {
                let values = digest
                    .values
                    .iter()
                    .map(|(name, value)| format!("{name} = {value}"));
                table.row([digest.name.clone(), values.collect::<Vec<_>>().join(", ")]);
            }
            text.push_str(&format!("\n{table}"));
        }
        if self.left_out > 0 {
            text.push_str(&format!("... and {} more\n", self.left_out));
        }
        text
    }
}

/// A digest's values, which lie one behind the other without padding.
fn digest(program: &Program, id: DigestId, bytes: &[u8]) -> Sent {
    let of = &program.digests[id.index()];
    let mut values = BTreeMap::new();
    let mut at = 0;
    for (number, item) in of.items.iter().enumerate() {
        let Type::Bits(width) = program.exprs[item.value.index()].ty else {
            continue;
        };
        let bit = |at: usize| {
            bytes
                .get(at / 8)
                .is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1)
        };
        let mut value = vec![0u8; usize::from(width).div_ceil(8)];
        let spare = value.len() * 8 - usize::from(width);
        for number in 0..usize::from(width) {
            let to = spare + number;
            value[to / 8] |= u8::from(bit(at + number)) << (7 - to % 8);
        }
        at += usize::from(width);
        let name = if item.name.is_empty() {
            format!("value {number}")
        } else {
            item.name.clone()
        };
        let shown = trace::value(&name, &Bits::from_bytes(width, &value));
        values.insert(name, shown);
    }
    Sent {
        name: of.identity.name.clone(),
        values,
    }
}
