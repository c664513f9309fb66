//! The trace of a packet through a program, for users.
//!
//! One paragraph per packet, one indented block per phase. The changes of an action are found by comparing
//! all fields before and after it, so the trace shows what happened rather than what the code says, and only
//! fields that changed.
//!
//! ```text
//! packet 1 by port 1, 64 bytes
//!   parser
//!     start
//!       ethernet  bytes 0-13
//!     accept
//!   ingress
//!     table MyIngress.routes
//!       hdr.ipv4.dst (lpm) = 10.0.1.1
//!       hit: MyIngress.via(next_hop = 3)
//!         meta.next_hop  0 -> 3
//!   to port 2
//! ```

use p4_interpreter::observe::{Lookup, Mark, Observer, Outcome, Phase, View};
use p4_interpreter::{Engine, wide};
use p4_ir::{ActionId, Bits, Block, FieldId, HeaderId, MatchKind, Program, StateId};
use std::fmt::Write;

/// Most bytes of a packet's trace. A longer trace is cut, with a note.
const MAX_TEXT: usize = 4 << 20;

/// An observer of the engine that writes each event as text.
pub struct Tracer<'a> {
    engine: &'a Engine,
    program: &'a Program,
    text: &'a mut String,
    /// Fields and validity as they were last looked at.
    fields: Vec<Bits>,
    valid: Vec<bool>,
    cut: bool,
}

impl<'a> Tracer<'a> {
    /// A trace that is added to a text.
    pub fn new(engine: &'a Engine, text: &'a mut String) -> Self {
        Tracer {
            engine,
            program: engine.program(),
            text,
            fields: Vec::new(),
            valid: Vec::new(),
            cut: false,
        }
    }

    /// A packet comes.
    pub fn begin(&mut self, number: u64, port: u32, length: usize) {
        self.line(0, &format!("packet {number} by port {port}, {length} bytes"));
    }

    fn line(&mut self, depth: usize, line: &str) {
        if self.text.len() > MAX_TEXT {
            if !self.cut {
                self.text.push_str("  ... cut: the trace is too long\n");
            }
            self.cut = true;
            return;
        }
        // A `String` takes all that is written.
        let _ = writeln!(self.text, "{:indent$}{line}", "", indent = depth * 2);
    }

    fn all_fields(&self) -> impl Iterator<Item = FieldId> + use<> {
        (0..self.program.fields.len() as u32).map(FieldId)
    }

    fn look(&mut self, view: &View<'_>) {
        self.fields = self.all_fields().map(|field| view.field(field)).collect();
        self.valid = (0..self.program.headers.len() as u16)
            .map(|header| view.is_valid(HeaderId(header)))
            .collect();
    }

    /// Writes the fields that changed since they were last compared.
    fn changes(&mut self, view: &View<'_>, depth: usize) {
        let (fields, valid) = (std::mem::take(&mut self.fields), std::mem::take(&mut self.valid));
        self.look(view);
        if fields.is_empty() {
            return;
        }
        for (number, header) in self.program.headers.iter().enumerate() {
            match (valid[number], self.valid[number]) {
                (false, true) => self.line(depth, &format!("{} becomes valid", header.name)),
                (true, false) => self.line(depth, &format!("{} becomes invalid", header.name)),
                _ => {}
            }
        }
        for (number, field) in self.program.fields.iter().enumerate() {
            let header = field.header.index();
            if fields[number] != self.fields[number] && self.valid[header] {
                let name = self.program.field_name(FieldId(number as u32));
                let (before, after) = (value(&name, &fields[number]), value(&name, &self.fields[number]));
                let before = if valid[header] { before } else { "-".to_owned() };
                self.line(depth, &format!("{name}  {before} -> {after}"));
            }
        }
    }

    fn action(&self, action: ActionId, arguments: &[u64]) -> String {
        let action = &self.program.actions[action.index()];
        let mut words = arguments;
        let mut texts = Vec::new();
        for parameter in &action.parameters {
            let (mine, rest) = words.split_at(wide::words(u32::from(parameter.width)).min(words.len()));
            words = rest;
            texts.push(format!(
                "{} = {}",
                parameter.name,
                number(&parameter.name, parameter.width, mine)
            ));
        }
        format!("{}({})", action.identity.name, texts.join(", "))
    }
}

impl Observer for Tracer<'_> {
    fn phase(&mut self, view: &View<'_>, phase: Phase) {
        let name = match phase {
            Phase::Parser => "parser".to_owned(),
            Phase::Verify => return,
            Phase::Ingress => {
                // Parser error and checksum error.
                self.changes(view, 3);
                "ingress".to_owned()
            }
            Phase::Egress(port) => format!("egress, port {port}"),
            Phase::Deparser => return self.look(view),
        };
        self.line(1, &name);
        self.look(view);
    }

    fn state(&mut self, view: &View<'_>, state: StateId) {
        self.changes(view, 3);
        let name = &self.program.parser.states[state.index()].name;
        self.line(2, name);
    }

    fn extracted(&mut self, view: &View<'_>, header: HeaderId, from: usize) {
        let instance = &self.program.headers[header.index()];
        let last = view.at.saturating_sub(1);
        self.line(3, &format!("{}  bytes {from}-{last}", instance.name));
        let first = instance.first_field.0;
        let members = self.program.header_types[instance.ty.index()].fields.len() as u32;
        for field in (first..first + members).map(FieldId) {
            let name = self.program.field_name(field);
            self.line(4, &format!("{name} = {}", value(&name, &view.field(field))));
        }
        self.look(view);
    }

    fn parsed(&mut self, view: &View<'_>, error: Option<u32>) {
        self.changes(view, 3);
        let Some(error) = error else {
            return self.line(2, "accept");
        };
        let name = self.program.errors.iter().find(|(_, number)| *number == error);
        let name = name.map_or_else(|| format!("number {error}"), |(name, _)| name.clone());
        self.line(2, &format!("ends with error {name} at byte {}", view.at));
    }

    fn mark(&mut self, view: &View<'_>, mark: Mark) {
        match mark {
            Mark::Branch { egress, block, taken } => {
                let control = if egress {
                    &self.program.egress
                } else {
                    &self.program.ingress
                };
                if let Some(Block::If { name, .. }) = control.blocks.get(usize::from(block)) {
                    self.line(2, &format!("if {name}: {}", if taken { "yes" } else { "no" }));
                }
            }
            Mark::Run(action) => {
                let name = self.action(action, &[]);
                self.line(2, &format!("do {name}"));
                self.look(view);
            }
        }
    }

    fn looked_up(&mut self, view: &View<'_>, lookup: &Lookup<'_>) {
        let table = &self.program.tables[lookup.table.index()];
        self.line(2, &format!("table {}", table.identity.name));
        let places = self.engine.layout(lookup.table).places();
        for (key, place) in table.keys.iter().zip(places) {
            let words: Vec<u64> = (0..place.words())
                .map(|word| place.get(lookup.key, word))
                .collect();
            let text = number(&key.name, key.width, &words);
            self.line(3, &format!("{} ({}) = {text}", key.name, kind(key.kind)));
        }
        let found = if lookup.hit { "hit" } else { "miss" };
        match lookup.action {
            Some(action) => {
                let action = self.action(action, lookup.arguments);
                self.line(3, &format!("{found}: {action}"));
            }
            None => self.line(3, &format!("{found}: nothing to do")),
        }
        self.look(view);
    }

    fn action_done(&mut self, view: &View<'_>) {
        self.changes(view, 4);
    }

    fn exit(&mut self, view: &View<'_>) {
        self.changes(view, 4);
        self.line(3, "exit");
    }

    fn extern_called(&mut self, _: &View<'_>, what: &str) {
        self.line(4, what);
    }

    fn log(&mut self, text: &str, arguments: &[u64]) {
        let mut parts = text.split("{}");
        let mut line = parts.next().unwrap_or_default().to_owned();
        for (number, part) in parts.enumerate() {
            match arguments.get(number) {
                Some(argument) => line.push_str(&argument.to_string()),
                None => line.push_str("{}"),
            }
            line.push_str(part);
        }
        self.line(4, &format!("log: {line}"));
    }

    fn outcome(&mut self, outcome: Outcome) {
        let line = match outcome {
            Outcome::Port {
                port,
                rid: 0,
                instance: 0,
            } => format!("to port {port}"),
            Outcome::Port { port, rid, instance } => {
                let what = match instance {
                    1 | 2 => "clone",
                    5 => "replica",
                    _ => "copy",
                };
                format!("{what} to port {port}, number {rid}")
            }
            Outcome::Resubmitted => "resubmitted".to_owned(),
            Outcome::Recirculated => "recirculated".to_owned(),
            Outcome::Dropped(reason) => format!("dropped: {}", reason.name()),
        };
        self.line(1, &line);
    }

    fn emitted(&mut self, view: &View<'_>) {
        self.changes(view, 2);
    }

    fn output(&mut self, port: u32, head: &[u8], length: usize) {
        let bytes: String = head.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
        let more = if length > 64 { "..." } else { "" };
        self.line(
            1,
            &format!("leaves by port {port}, {length} bytes: {bytes}{more}"),
        );
    }
}

fn kind(kind: MatchKind) -> &'static str {
    match kind {
        MatchKind::Exact => "exact",
        MatchKind::Lpm => "lpm",
        MatchKind::Ternary => "ternary",
        MatchKind::Range => "range",
        MatchKind::Optional => "optional",
    }
}

/// A number of words, least significant first.
pub(super) fn number(name: &str, width: u16, words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().rev().flat_map(|word| word.to_be_bytes()).collect();
    value(name, &Bits::from_bytes(width, &bytes))
}

/// A value in its usual notation: 48 bits as MAC addresses, 32 bits as IPv4 addresses where the name
/// suggests an address, short numbers in decimal, others in hexadecimal.
pub(super) fn value(name: &str, value: &Bits) -> String {
    let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    let address = ["addr", "ip", "src", "dst"]
        .iter()
        .any(|part| last.contains(part));
    match (value.width(), value.bytes()) {
        (0, _) => "empty".to_owned(),
        (48, bytes) => bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(":"),
        (32, &[a, b, c, d]) if address => format!("{a}.{b}.{c}.{d}"),
        (1..=9, _) => value.to_u64().unwrap_or(0).to_string(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_people_do() {
        assert_eq!(
            value("hdr.ethernet.dst", &Bits::from_u128(48, 0x0102_0304_0506)),
            "01:02:03:04:05:06"
        );
        assert_eq!(
            value("hdr.ipv4.srcAddr", &Bits::from_u128(32, 0x0A00_0001)),
            "10.0.0.1"
        );
        assert_eq!(
            value("meta.hash", &Bits::from_u128(32, 0x0A00_0001)),
            "0x0a000001"
        );
        assert_eq!(value("std.port", &Bits::from_u128(9, 511)), "511");
        assert_eq!(value("kind", &Bits::from_u128(16, 0x800)), "0x0800");
        assert_eq!(value("options", &Bits::zero(0)), "empty");
    }
}
