//! Joins P4Info with the program: numbers, aliases, kinds of match, units; and compares the parts that both
//! have.

use super::{Object, P4Info, Part, Preamble};
use crate::error::{LoadError, Read, Within, wrong};
use p4_ir::{
    Action, ControllerField, ControllerHeader, CounterUnit, Identity, KeyMatch, MatchKind, Parameter,
    Program, Table,
};
use std::collections::HashMap;

/// Kinds of objects of which the JSON has only those that are used: P4Info is made before unused ones are
/// removed.
const UNUSED_ARE_LEFT_OUT: [&str; 4] = ["action_profiles", "digests", "direct_counters", "direct_meters"];

impl P4Info {
    /// Joins it with a program.
    ///
    /// # Errors
    ///
    /// The P4Info names an element that the program does not have, or gives other widths or kinds.
    pub fn join(&self, program: &mut Program) -> Result<(), LoadError> {
        self.join_all(program).map_err(LoadError::P4Info)
    }

    fn join_all(&self, program: &mut Program) -> Read<()> {
        let actions = self.actions(program)?;
        self.tables(program, &actions)?;
        self.identities(
            "action_profiles",
            program.profiles.iter_mut().map(|p| &mut p.identity),
        )?;
        for (object, profile) in self.each("action_profiles", |name| {
            program
                .profiles
                .iter()
                .position(|profile| profile.identity.name == name)
        }) {
            program.profiles[profile].max_group_size = object.max_group_size;
        }
        for kind in ["counters", "direct_counters"] {
            let direct = kind == "direct_counters";
            let counters = program
                .counters
                .iter_mut()
                .filter(|c| c.table.is_some() == direct || c.size == 0);
            self.identities(kind, counters.map(|c| &mut c.identity))?;
            for (object, counter) in self.each(kind, |name| {
                program
                    .counters
                    .iter()
                    .position(|counter| counter.identity.name == name)
            }) {
                program.counters[counter].unit = match object.unit.as_str() {
                    "PACKETS" => CounterUnit::Packets,
                    "BYTES" => CounterUnit::Bytes,
                    _ => CounterUnit::Both,
                };
                self.same_size(object, program.counters[counter].size, direct)?;
            }
        }
        for kind in ["meters", "direct_meters"] {
            self.identities(kind, program.meters.iter_mut().map(|m| &mut m.identity))?;
        }
        self.identities("registers", program.registers.iter_mut().map(|r| &mut r.identity))?;
        self.identities("digests", program.digests.iter_mut().map(|d| &mut d.identity))?;
        self.value_sets(program)?;
        self.controller_headers(program);
        Ok(())
    }

    fn objects(&self, kind: &str) -> &[Object] {
        self.objects.get(kind).map_or(&[], Vec::as_slice)
    }

    /// Objects of a kind, with where they are in the program.
    fn each(&self, kind: &str, at: impl Fn(&str) -> Option<usize>) -> Vec<(&Object, usize)> {
        self.objects(kind)
            .iter()
            .filter_map(|object| Some((object, at(&object.preamble.name)?)))
            .collect()
    }

    /// Gives numbers and aliases to all things of a kind. An object that the program does not have is an
    /// error, unless the compiler leaves objects of that kind that nothing uses out of the JSON.
    fn identities<'p>(&self, kind: &str, things: impl Iterator<Item = &'p mut Identity>) -> Read<()> {
        let mut by_name = HashMap::<String, Vec<&mut Identity>>::new();
        for identity in things {
            by_name.entry(identity.name.clone()).or_default().push(identity);
        }
        for object in self.objects(kind) {
            match by_name.get_mut(&object.preamble.name) {
                Some(identities) => identities
                    .iter_mut()
                    .for_each(|identity| set(identity, &object.preamble)),
                None if UNUSED_ARE_LEFT_OUT.contains(&kind) => {}
                None => {
                    return wrong("the program has none of this name")
                        .within(|| path(kind, &object.preamble));
                }
            }
        }
        Ok(())
    }

    fn same_size(&self, object: &Object, size: u32, direct: bool) -> Read<()> {
        match object.size {
            Some(said) if !direct && said != size => wrong(format!("{said} cells, the program has {size}"))
                .within(|| path("counters", &object.preamble)),
            _ => Ok(()),
        }
    }

    /// Joins actions; gives the names of all by number.
    fn actions(&self, program: &mut Program) -> Read<HashMap<u32, &str>> {
        let mut names = HashMap::new();
        for object in self.objects("actions") {
            names.insert(object.preamble.id, object.preamble.name.as_str());
            let mut own = program
                .actions
                .iter_mut()
                .filter(|action| action.identity.name == object.preamble.name)
                .collect::<Vec<_>>();
            // For calls with constant arguments, the compiler adds actions of the same name with fewer
            // parameters, which controllers do not know.
            let fits = |action: &&mut Action| action.parameters.len() == object.parts.len();
            if own.iter().any(fits) {
                own.retain(fits);
            }
            for action in own {
                set(&mut action.identity, &object.preamble);
                parameters(&object.parts, &mut action.parameters)
                    .within(|| path("actions", &object.preamble))?;
            }
        }
        Ok(names)
    }

    fn tables(&self, program: &mut Program, actions: &HashMap<u32, &str>) -> Read<()> {
        program.tables.iter_mut().for_each(|table| table.hidden = true);
        let numbers = program.tables.iter().enumerate();
        let numbers = numbers.map(|(at, table)| (table.identity.name.clone(), at));
        let numbers = numbers.collect::<HashMap<_, _>>();
        let names = program.actions.iter().map(|action| action.identity.name.clone());
        let names = names.collect::<Vec<_>>();
        let own = |name: &&str| *name != "NoAction" && names.iter().any(|other| other == name);
        let tables = self
            .tables
            .iter()
            .any(|info| numbers.contains_key(&info.preamble.name));
        if !self.tables.is_empty() && !tables && !actions.values().any(own) {
            return wrong("has none of the program's tables and actions").within(|| "tables".to_owned());
        }
        for info in &self.tables {
            let place = || path("tables", &info.preamble);
            // The compiler leaves tables that nothing applies out of the JSON, but not out of P4Info.
            let Some(&at) = numbers.get(&info.preamble.name) else {
                continue;
            };
            let table = &mut program.tables[at];
            set(&mut table.identity, &info.preamble);
            table.hidden = false;
            keys(&info.keys, table).within(place)?;
            for (id, scope) in &info.actions {
                let Some(name) = actions.get(id) else {
                    return wrong(format!("there is no action with number {id}")).within(place);
                };
                let mut found = false;
                for own in &mut table.actions {
                    if names[own.action.index()] == *name {
                        own.default_only = scope == "DEFAULT_ONLY";
                        own.table_only = scope == "TABLE_ONLY";
                        found = true;
                    }
                }
                if !found {
                    return wrong(format!("the table of the program has no action {name:?}")).within(place);
                }
            }
        }
        Ok(())
    }

    fn value_sets(&self, program: &mut Program) -> Read<()> {
        self.identities(
            "value_sets",
            program.value_sets.iter_mut().map(|set| &mut set.identity),
        )?;
        let at = |name: &str| {
            program
                .value_sets
                .iter()
                .position(|set| set.identity.name == name)
        };
        for (object, at) in self.each("value_sets", at) {
            let set = &mut program.value_sets[at];
            let said = object.parts.iter().map(|part| u64::from(part.width)).sum::<u64>();
            let has = set
                .parts
                .iter()
                .map(|(_, width, _)| u64::from(*width))
                .sum::<u64>();
            let mut parts = Vec::new();
            for part in &object.parts {
                let Ok(width) = u16::try_from(part.width) else {
                    return wrong("a part is too wide");
                };
                parts.push((part.name.clone(), width, kind(&part.kind)?));
            }
            if said != has && !object.parts.iter().any(|part| part.translated || part.width == 0) {
                return wrong(format!("{said} bits, the program has {has}"))
                    .within(|| path("value_sets", &object.preamble));
            }
            if said == has {
                set.parts = parts;
            }
            set.size = object.size.unwrap_or(set.size);
        }
        Ok(())
    }

    fn controller_headers(&self, program: &mut Program) {
        let field = |part: &Part| ControllerField {
            name: part.name.clone(),
            id: if part.padding { 0 } else { part.id },
            width: match part.translated {
                true => 0,
                false => u16::try_from(part.width).unwrap_or(u16::MAX),
            },
        };
        let header = |object: &Object| {
            let mut identity = Identity {
                name: object.preamble.name.clone(),
                ..Identity::default()
            };
            set(&mut identity, &object.preamble);
            ControllerHeader {
                identity,
                fields: object.parts.iter().map(field).collect(),
            }
        };
        program.controller_headers = self
            .objects("controller_packet_metadata")
            .iter()
            .map(header)
            .collect();
    }
}

fn path(kind: &str, preamble: &Preamble) -> String {
    format!("{kind} {:?}", preamble.name)
}

fn set(identity: &mut Identity, preamble: &Preamble) {
    identity.id = Some(preamble.id);
    identity.alias.clone_from(&preamble.alias);
}

fn parameters(parts: &[Part], parameters: &mut [Parameter]) -> Read<()> {
    if parts.len() != parameters.len() {
        return wrong(format!(
            "{} parameters, the program has {}",
            parts.len(),
            parameters.len()
        ));
    }
    for (part, parameter) in parts.iter().zip(parameters) {
        same_width(part, parameter.width).within(|| format!("params {:?}", part.name))?;
        parameter.id = part.id;
        parameter.name.clone_from(&part.name);
    }
    Ok(())
}

/// Widths must agree, unless the controller's type is another than the program's.
fn same_width(part: &Part, width: u16) -> Read<()> {
    if part.translated || part.width == 0 || part.width == u32::from(width) {
        return Ok(());
    }
    wrong(format!("{} bits, the program has {width}", part.width))
}

fn keys(parts: &[Part], table: &mut Table) -> Read<()> {
    if parts.len() != table.keys.len() {
        return wrong(format!(
            "{} keys, the program has {}",
            parts.len(),
            table.keys.len()
        ));
    }
    for (at, part) in parts.iter().enumerate() {
        let key = &mut table.keys[at];
        let place = || format!("match_fields {:?}", part.name);
        same_width(part, key.width).within(place)?;
        key.id = part.id;
        key.name.clone_from(&part.name);
        if part.kind.is_empty() {
            continue;
        }
        let said = kind(&part.kind).within(place)?;
        match (said, key.kind) {
            (said, own) if said == own => {}
            // BMv2 has no optional keys: the compiler writes ternary ones.
            (MatchKind::Optional, MatchKind::Ternary) => {
                key.kind = MatchKind::Optional;
                for entry in &mut table.entries {
                    let KeyMatch::Ternary(value, mask) = &entry.keys[at] else {
                        continue;
                    };
                    let any = mask.bytes().iter().all(|byte| *byte == 0);
                    entry.keys[at] = KeyMatch::Optional((!any).then(|| value.clone()));
                }
            }
            (said, own) => return wrong(format!("{said:?}, the program has {own:?}")).within(place),
        }
    }
    Ok(())
}

fn kind(word: &str) -> Read<MatchKind> {
    Ok(match word {
        "EXACT" => MatchKind::Exact,
        "LPM" => MatchKind::Lpm,
        "TERNARY" => MatchKind::Ternary,
        "RANGE" => MatchKind::Range,
        "OPTIONAL" => MatchKind::Optional,
        _ => return wrong(format!("kind of match {word:?}")),
    })
}
