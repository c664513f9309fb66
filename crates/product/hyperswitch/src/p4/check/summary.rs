//! What `hyperswitch p4 check --json` prints.

use super::{Facts, all_externs, kind};
use p4_ir::{Checked, HeaderId, Role};
use schemars::JsonSchema;
use serde::Serialize;

/// A P4 program.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Program")]
pub struct Summary {
    name: String,
    architecture: &'static str,
    bounds: Bounds,
    headers: Vec<Header>,
    tables: Vec<Table>,
    externs: Vec<Extern>,
    looks_at: LooksAt,
    changes: Changes,
    /// Whether verdicts may be kept.
    cacheable: bool,
    /// Fields whose checksums are verified.
    checked_per_packet: Vec<String>,
    /// How often a kept verdict would be found; none if none may be kept.
    found_again: Option<FoundAgain>,
    warnings: Vec<String>,
    /// Why verdicts may not be kept.
    obstacles: Vec<Obstacle>,
}

/// Bounds of one pass.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Bounds")]
struct Bounds {
    header_bytes_read: u32,
    header_bytes_grown: u32,
    parser_steps: u32,
    loop_turns: u32,
    operations: u32,
    passes: u8,
    metadata_bits: u32,
    vector_bytes: u32,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Header")]
struct Header {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    bits: u32,
    /// Whether its length varies.
    variable: bool,
    /// Whether it is metadata, and never in a packet.
    metadata: bool,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Table")]
struct Table {
    name: String,
    id: Option<u32>,
    size: u32,
    keys: Vec<Key>,
    actions: Vec<String>,
    /// Entries of the program itself.
    own_entries: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Key")]
struct Key {
    name: String,
    bits: u16,
    /// `exact`, `lpm`, `ternary`, `range` or `optional`.
    kind: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Extern")]
struct Extern {
    kind: &'static str,
    name: String,
    size: String,
}

/// What decides about packets.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4LooksAt")]
struct LooksAt {
    fields: Vec<Field>,
    /// Headers whose presence decides.
    validity: Vec<String>,
    /// Metadata of the architecture.
    given: Vec<&'static str>,
    bits_ahead: u32,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Field")]
struct Field {
    field: String,
    /// Bits that decide.
    mask: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Changes")]
struct Changes {
    fields: Vec<String>,
    adds: Vec<String>,
    removes: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4FoundAgain")]
struct FoundAgain {
    /// The traffic that was looked at.
    traffic: String,
    packets: usize,
    found: usize,
    percent: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Obstacle")]
struct Obstacle {
    reason: String,
    place: String,
}

impl Summary {
    /// The summary of a program.
    pub fn of(program: &Checked, facts: &Facts) -> Summary {
        let tables = program.tables.iter().filter(|table| !table.hidden);
        let reuse = facts.reuse.as_ref();
        Summary {
            name: program.name.clone(),
            architecture: "v1model",
            bounds: bounds(program),
            headers: headers(program),
            tables: tables.map(|it| table(program, it)).collect(),
            externs: all_externs(program)
                .into_iter()
                .map(|(kind, name, size)| Extern { kind, name, size })
                .collect(),
            looks_at: looks_at(program, facts),
            changes: changes(program, facts),
            cacheable: facts.analysis.is_cacheable(),
            checked_per_packet: facts
                .verified()
                .map(|field| program.field_name(field).to_string())
                .collect(),
            found_again: reuse.map(|(traffic, reuse)| FoundAgain {
                traffic: traffic.clone(),
                packets: reuse.packets,
                found: reuse.found,
                percent: reuse.percent(),
            }),
            warnings: facts.warnings.clone(),
            obstacles: obstacles(facts),
        }
    }
}

fn bounds(program: &Checked) -> Bounds {
    let bounds = program.bounds();
    Bounds {
        header_bytes_read: bounds.header_bytes_read,
        header_bytes_grown: bounds.header_bytes_grown,
        parser_steps: bounds.parser_steps,
        loop_turns: bounds.loop_turns,
        operations: bounds.operations,
        passes: bounds.passes,
        metadata_bits: bounds.metadata_bits,
        vector_bytes: program.phv.bytes,
    }
}

fn headers(program: &Checked) -> Vec<Header> {
    let headers = program.headers.iter().map(|header| {
        let ty = &program.header_types[header.ty.index()];
        Header {
            name: header.name.clone(),
            ty: ty.name.clone(),
            bits: ty.max_bits(),
            variable: ty.variable().is_some(),
            metadata: header.metadata,
        }
    });
    headers.collect()
}

fn table(program: &Checked, table: &p4_ir::Table) -> Table {
    let keys = table.keys.iter().map(|key| Key {
        name: key.name.clone(),
        bits: key.width,
        kind: kind(key.kind),
    });
    let actions = table.actions.iter();
    Table {
        name: table.identity.name.clone(),
        id: table.identity.id,
        size: table.size,
        keys: keys.collect(),
        actions: actions
            .map(|action| program.actions[action.action.index()].identity.name.clone())
            .collect(),
        own_entries: table.entries.len(),
    }
}

fn looks_at(program: &Checked, facts: &Facts) -> LooksAt {
    let analysis = &facts.analysis;
    let fields = analysis.looked_at.iter().map(|(field, mask)| Field {
        field: program.field_name(*field).to_string(),
        mask: mask.to_string(),
    });
    LooksAt {
        fields: fields.collect(),
        validity: names(program, &analysis.validity),
        given: analysis.given.iter().map(|role: &Role| role.name()).collect(),
        bits_ahead: analysis.ahead,
    }
}

fn changes(program: &Checked, facts: &Facts) -> Changes {
    let changed = facts.analysis.changed.iter();
    Changes {
        fields: changed
            .map(|field| program.field_name(*field).to_string())
            .collect(),
        adds: names(program, &facts.analysis.added),
        removes: names(program, &facts.analysis.removed),
    }
}

fn names<'a>(program: &Checked, headers: impl IntoIterator<Item = &'a HeaderId>) -> Vec<String> {
    let name = |id: &HeaderId| program.headers[id.index()].name.clone();
    headers.into_iter().map(name).collect()
}

fn obstacles(facts: &Facts) -> Vec<Obstacle> {
    let obstacles = facts.analysis.obstacles.iter();
    obstacles
        .map(|(obstacle, place)| Obstacle {
            reason: obstacle.text().to_string(),
            place: place.to_string(),
        })
        .collect()
}
