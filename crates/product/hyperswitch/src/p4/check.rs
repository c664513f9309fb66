//! `hyperswitch p4 check`: the parts of a program, its cost, and the fields that it reads.

mod summary;

pub use summary::Summary;

use super::reuse::{self, Reuse};
use super::run::{MAX_CAPTURE, limited};
use crate::capture_file::packets;
use crate::cli::PortFile;
use crate::output::Table;
use anyhow::{Context, Result};
use p4_ir::externs::Algorithm;
use p4_ir::{Analysis, Checked, FieldId, HeaderId, Implementation, MatchKind, limits};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Findings that take more than a look at the program.
pub struct Facts {
    /// The bits that decide, those of verified checksums too.
    analysis: Analysis,
    /// Bits that a cache would need in its keys.
    keys: Analysis,
    /// How often a verdict would be found again, and the traffic for which this holds. `None` if none may
    /// be kept.
    reuse: Option<(String, Reuse)>,
    warnings: Vec<String>,
}

impl Facts {
    /// Analyses a program; with packets of capture files, or with a model's if there are none.
    ///
    /// # Errors
    /// When a capture cannot be read.
    pub fn of(program: &Checked, pcaps: &[PortFile]) -> Result<Self> {
        let keys = Analysis::of_keys(program);
        let mut warnings = Vec::new();
        if let Some(path) = p4_ir::undirected_path(program) {
            let mut text =
                "a packet can pass ingress without an action that says where it goes: it leaves by port 0"
                    .to_owned();
            for choice in path {
                let _ = write!(text, "\n  {choice}");
            }
            warnings.push(text);
        }
        let reuse = if keys.is_cacheable() {
            reuse(program, &keys, pcaps)?
        } else {
            None
        };
        Ok(Self {
            analysis: Analysis::of(program),
            keys,
            reuse,
            warnings,
        })
    }

    /// Fields that only a verified checksum looks at, or of which it looks at more bits than others.
    fn verified(&self) -> impl Iterator<Item = FieldId> {
        let all = self.analysis.looked_at.iter();
        all.filter(|(field, mask)| self.keys.looked_at.get(field) != Some(mask))
            .map(|(field, _)| *field)
    }
}

/// Measures how often verdicts are found again. `None` if the program is too large to be run here.
fn reuse(program: &Checked, keys: &Analysis, pcaps: &[PortFile]) -> Result<Option<(String, Reuse)>> {
    if pcaps.is_empty() {
        let model = reuse::model();
        let packets = model.iter().map(|packet| (1, packet.as_slice()));
        let measured = reuse::measure(program, keys, packets).ok();
        return Ok(measured.map(|reuse| ("a model's 64 TCP flows".to_owned(), reuse)));
    }
    let mut contents = Vec::new();
    for file in pcaps {
        contents.push(limited(&file.path, MAX_CAPTURE)?);
    }
    let mut all = Vec::new();
    for (file, bytes) in pcaps.iter().zip(&contents) {
        let (packets, _) = packets(bytes).with_context(|| file.path.display().to_string())?;
        all.extend(packets.into_iter().map(|packet| (file.port, packet.frame)));
    }
    let names = pcaps.iter().map(|file| file.path.display().to_string());
    let measured = reuse::measure(program, keys, all.into_iter()).ok();
    Ok(measured.map(|reuse| (names.collect::<Vec<_>>().join(", "), reuse)))
}

/// The summary as text.
pub fn text(program: &Checked, facts: &Facts) -> String {
    let analysis = &facts.analysis;
    let mut text = format!("{}: a sound program for v1model\n", program.name);
    let mut section = |title: &str, body: String| {
        if !body.is_empty() {
            let _ = write!(text, "\n{title}\n{body}");
        }
    };
    section("BOUNDS OF ONE PACKET", bounds(program));
    section("HEADERS", headers(program));
    section("TABLES", tables(program));
    section("EXTERNS", externs(program));
    section("LOOKS AT", looked_at(program, facts));
    section("CHANGES", changes(program, analysis));
    let verdicts = if analysis.is_cacheable() {
        kept(facts)
    } else {
        analysis
            .obstacles
            .iter()
            .fold("no, the program\n".to_owned(), |mut text, (obstacle, place)| {
                let _ = writeln!(text, "  {} ({place})", obstacle.text());
                text
            })
    };
    section("VERDICTS CAN BE CACHED", verdicts);
    section(
        "WARNINGS",
        facts
            .warnings
            .iter()
            .map(|warning| format!("{warning}\n"))
            .collect(),
    );
    text
}

/// The text for verdicts that can be kept.
fn kept(facts: &Facts) -> String {
    let mut text = "yes: they follow from the bits above and the tables\n".to_owned();
    if facts.verified().next().is_some() {
        text.push_str("verified checksums are checked for each packet and need no bits of a key\n");
    }
    if let Some((traffic, reuse)) = &facts.reuse {
        let (share, packets) = (reuse.percent(), reuse.packets);
        let _ = writeln!(
            text,
            "found again: for {share} % of {packets} packets of {traffic}"
        );
    }
    text
}

fn bounds(program: &Checked) -> String {
    let bounds = program.bounds();
    let mut table = Table::new(&["WHAT", ">AT MOST", ">LIMIT"]);
    for (what, value, limit) in [
        (
            "bytes of the packet read",
            bounds.header_bytes_read,
            limits::HEADER_BYTES_READ,
        ),
        (
            "bytes added in a pass",
            bounds.header_bytes_grown,
            limits::HEADER_BYTES_GROWN,
        ),
        ("parser states", bounds.parser_steps, limits::PARSER_STEPS),
        ("turns of loops in actions", bounds.loop_turns, limits::LOOP_TURNS),
        ("operations in a pass", bounds.operations, limits::OPERATIONS),
        ("passes", bounds.passes.into(), limits::PASSES.into()),
        ("bits of metadata", bounds.metadata_bits, limits::METADATA_BITS),
        (
            "bytes of headers and metadata",
            program.phv.bytes,
            limits::PHV_BYTES,
        ),
    ] {
        table.row([what.to_owned(), value.to_string(), limit.to_string()]);
    }
    table.to_string()
}

/// Headers that are not elements of stacks, and stacks as one.
fn headers(program: &Checked) -> String {
    let mut table = Table::new(&["NAME", "TYPE", ">BYTES", ">FIELDS", "KIND"]);
    for (at, header) in program.headers.iter().enumerate() {
        let Some(id) = HeaderId::at(at) else { break };
        let ty = program.header_type(id);
        let (mut name, mut kind) = (
            header.name.clone(),
            if header.metadata { "metadata" } else { "header" }.to_owned(),
        );
        match program.membership(id) {
            p4_ir::Membership::Stack(_, 1..) => continue,
            p4_ir::Membership::Stack(stack, 0) => {
                let stack = &program.stacks[stack.index()];
                name.clone_from(&stack.name);
                kind = format!("stack of {}", stack.size);
            }
            p4_ir::Membership::Union(union, ..) => {
                kind = format!("in union {}", program.unions[union.index()].name)
            }
            p4_ir::Membership::None => {}
        }
        let bytes = ty.max_bits().div_ceil(8);
        let bytes = if ty.variable().is_some() {
            format!("<= {bytes}")
        } else {
            bytes.to_string()
        };
        table.row([name, ty.name.clone(), bytes, ty.fields.len().to_string(), kind]);
    }
    table.to_string()
}

fn tables(program: &Checked) -> String {
    let mut table = Table::new(&["NAME", "KEYS", ">SIZE", "ACTIONS", "BESIDES"]);
    let mut any = false;
    for one in program.tables.iter().filter(|one| !one.hidden) {
        any = true;
        let keys = one
            .keys
            .iter()
            .map(|key| format!("{} {} {}", key.name, key.width, kind(key.kind)));
        let actions = one
            .actions
            .iter()
            .map(|action| program.actions[action.action.index()].identity.alias.clone());
        let mut besides = Vec::new();
        if !one.entries.is_empty() {
            besides.push(format!("{} entries of its own", one.entries.len()));
        }
        if let Implementation::Profile(profile) = one.implementation {
            let profile = &program.profiles[profile.index()];
            let word = if profile.selector.is_some() {
                "selector"
            } else {
                "profile"
            };
            besides.push(format!("{word} {}", profile.identity.alias));
        }
        besides.extend(one.counter.map(|_| "counter".to_owned()));
        besides.extend(one.meter.map(|_| "meter".to_owned()));
        besides.extend(one.idle_timeout.then(|| "idle time".to_owned()));
        table.row([
            one.identity.name.clone(),
            or_dash(keys.collect()),
            one.size.to_string(),
            or_dash(actions.collect()),
            or_dash(besides),
        ]);
    }
    if any { table.to_string() } else { String::new() }
}

fn or_dash(parts: Vec<String>) -> String {
    if parts.is_empty() {
        "-".to_owned()
    } else {
        parts.join(", ")
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

/// Kind, name and size of each extern.
fn all_externs(program: &Checked) -> Vec<(&'static str, String, String)> {
    let cells = |size: u32, table: Option<p4_ir::TableId>| match table {
        Some(table) => format!("of table {}", program.tables[table.index()].identity.name),
        None => format!("{size} cells"),
    };
    let mut all = Vec::new();
    let mut add = |kind, name: &str, size| all.push((kind, name.to_owned(), size));
    for one in &program.counters {
        add("counter", &one.identity.name, cells(one.size, one.table));
    }
    for one in &program.meters {
        add("meter", &one.identity.name, cells(one.size, one.table));
    }
    for one in &program.registers {
        let size = format!("{} cells of {} bits", one.size, one.width);
        add("register", &one.identity.name, size);
    }
    for one in &program.digests {
        add("digest", &one.identity.name, format!("{} items", one.items.len()));
    }
    for one in &program.profiles {
        add(
            "action profile",
            &one.identity.name,
            format!("{} members", one.size),
        );
    }
    for one in &program.value_sets {
        add("value set", &one.identity.name, format!("{} members", one.size));
    }
    for one in &program.checksums {
        let algorithm = program.calculations[one.calculation.index()].algorithm;
        let what = match (one.verify, one.update) {
            (true, true) => "verified, updated",
            (true, false) => "verified",
            _ => "updated",
        };
        let size = format!("{}, {what}", algorithm_name(algorithm));
        add("checksum", &program.place_text(one.target), size);
    }
    for one in &program.extern_functions {
        add("function", &one.name, format!("{} bits", one.result));
    }
    all
}

fn algorithm_name(algorithm: Algorithm) -> String {
    format!("{algorithm:?}").to_lowercase()
}

fn externs(program: &Checked) -> String {
    let all = all_externs(program);
    let mut table = Table::new(&["KIND", "NAME", "SIZE"]);
    let none = all.is_empty();
    for (kind, name, size) in all {
        table.row([kind.to_owned(), name, size]);
    }
    if none { String::new() } else { table.to_string() }
}

/// The inputs of decisions: fields with masks, validity, metadata from the architecture.
fn looked_at(program: &Checked, facts: &Facts) -> String {
    let analysis = &facts.analysis;
    let verified = facts.verified().collect::<BTreeSet<_>>();
    let mut table = Table::new(&["FIELD", ">BITS", "MASK"]);
    for (field, mask) in &analysis.looked_at {
        let ones = mask.bytes().iter().map(|byte| byte.count_ones()).sum::<u32>();
        let all = ones == u32::from(mask.width());
        let mut mask = if all { "all".to_owned() } else { mask.to_string() };
        if verified.contains(field) {
            mask.push_str(match facts.keys.looked_at.get(field) {
                Some(_) => ", in part for a checksum",
                None => ", for a checksum",
            });
        }
        table.row([program.field_name(*field), ones.to_string(), mask]);
    }
    for header in &analysis.validity {
        table.row([
            program.headers[header.index()].name.clone(),
            "-".to_owned(),
            "is it there".to_owned(),
        ]);
    }
    for role in &analysis.given {
        table.row([role.name().to_owned(), "-".to_owned(), "given".to_owned()]);
    }
    if analysis.ahead > 0 {
        table.row([
            "ahead of headers".to_owned(),
            analysis.ahead.to_string(),
            "all".to_owned(),
        ]);
    }
    table.to_string()
}

fn changes(program: &Checked, analysis: &Analysis) -> String {
    let fields = analysis
        .changed
        .iter()
        .map(|field| program.field_name(*field))
        .collect::<Vec<_>>();
    let header = |id: &HeaderId| program.headers[id.index()].name.clone();
    let mut text = String::new();
    for (what, names) in [
        ("fields", fields),
        ("adds", analysis.added.iter().map(header).collect()),
        ("removes", analysis.removed.iter().map(header).collect()),
    ] {
        if !names.is_empty() {
            let _ = writeln!(text, "{what}: {}", names.join(", "));
        }
    }
    text
}
