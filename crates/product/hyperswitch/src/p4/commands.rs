//! Entries in the form of BMv2's command line (`commands.txt` of its users).
//!
//! Keys and arguments have places there and no names: a line is turned into the command of a packet test
//! that says the same with names, so that values are interpreted in one place. Lines that both forms share,
//! for groups and clone sessions, are read as those of a packet test. A priority counts the other way round:
//! BMv2's smallest wins.

use super::entries::number;
use anyhow::{Context, Result, anyhow, bail, ensure};
use p4_ir::{Entry, EntryAction, EntryTarget, KeyMatch, MatchKind, Program, Table};
use p4_stf::Digits;
use p4_stf::script::{self, Add, Command, KeyValue};
use serde_json::Value;

/// BMv2's largest priority, so that those of entries are never negative here.
const LOWEST_PRIORITY: u32 = i32::MAX as u32;

/// Whether a text is in that form.
pub fn are_in(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with("table_"))
}

/// Reads a text for a program.
///
/// # Errors
/// The first line that makes no sense, with its number.
pub fn read(text: &str, program: &Program) -> Result<Vec<Command>> {
    let mut commands = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let words: Vec<&str> = line.split_whitespace().collect();
        let read = match &words[..] {
            [] => Ok(Vec::new()),
            ["table_add", table, action, rest @ ..] => {
                add(program, (table, action), rest).map(|add| vec![add])
            }
            ["table_set_default", table, action, rest @ ..] => {
                set_default(program, (table, action), rest).map(|add| vec![add])
            }
            _ => shared(line),
        };
        commands.extend(read.with_context(|| format!("line {}", number + 1))?);
    }
    Ok(commands)
}

/// A line that packet tests have too.
fn shared(line: &str) -> Result<Vec<Command>> {
    Ok(script::parse(line)?
        .into_iter()
        .map(|line| line.command)
        .collect())
}

/// Reads an entry, which may begin with `table_add`.
///
/// # Errors
/// The line makes no sense.
pub fn entry(line: &str, program: &Program) -> Result<Add> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let words = words.strip_prefix(&["table_add"]).unwrap_or(&words);
    let [table, action, rest @ ..] = words else {
        bail!("an entry is TABLE ACTION KEYS => ARGUMENTS");
    };
    match add(program, (table, action), rest)? {
        Command::Add(add) => Ok(add),
        other => bail!("{other:?} is no entry"),
    }
}

/// Reads which entry is meant, by its keys.
///
/// # Errors
/// The line makes no sense.
pub fn meant(line: &str, program: &Program) -> Result<Add> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [table, rest @ ..] = &words[..] else {
        bail!("an entry to delete is TABLE KEYS => PRIORITY");
    };
    let found = table_of(program, table)?;
    let (keys, behind) = keys(found, rest)?;
    Ok(Add {
        table: (*table).into(),
        priority: priority(behind)?.with_context(|| format!("{} is no priority", behind.join(" ")))?,
        keys,
        action: String::new(),
        arguments: Vec::new(),
        id: None,
    })
}

/// An entry as a line, from which [`entry`] makes it again, unless its actions are in a profile.
pub fn line(program: &Program, table: &Table, entry: &Entry) -> String {
    let keys = entry.keys.iter().map(|key| match key {
        KeyMatch::Exact(value) => value.to_string(),
        KeyMatch::Lpm(value, length) => format!("{value}/{length}"),
        KeyMatch::Ternary(value, mask) => format!("{value}&&&{mask}"),
        KeyMatch::Range(low, high) => format!("{low}->{high}"),
        KeyMatch::Optional(Some(value)) => value.to_string(),
        KeyMatch::Optional(None) => "*".into(),
    });
    let name_of = |own: &EntryAction| program.actions[own.action.index()].identity.name.clone();
    let arguments_of = |own: &EntryAction| own.arguments.iter().map(ToString::to_string).collect();
    let (action, arguments): (String, Vec<String>) = match &entry.target {
        EntryTarget::Action(own) => (name_of(own), arguments_of(own)),
        EntryTarget::Member(number) => ("member".into(), vec![number.to_string()]),
        EntryTarget::Group(number) => ("group".into(), vec![number.to_string()]),
        EntryTarget::Choices(all) => (
            "one-of".into(),
            all.iter().map(|one| name_of(&one.action)).collect(),
        ),
    };
    let priority = (entry.priority > 0).then(|| LOWEST_PRIORITY.saturating_sub(entry.priority).to_string());
    let head = [table.identity.name.clone(), action];
    let words = head.into_iter().chain(keys).chain(["=>".into()]);
    words
        .chain(arguments)
        .chain(priority)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Values of keys by name, and what is behind the arrow.
type KeysAndRest<'a> = (Vec<(String, KeyValue)>, &'a [&'a str]);

/// Reads the values of a table's keys.
fn keys<'a>(table: &Table, rest: &'a [&'a str]) -> Result<KeysAndRest<'a>> {
    let arrow = rest.iter().position(|word| *word == "=>");
    let (keys, behind) = match arrow {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &rest[rest.len()..]),
    };
    ensure!(
        keys.len() == table.keys.len(),
        "table {} has {} keys, not {}",
        table.identity.name,
        table.keys.len(),
        keys.len()
    );
    let given = table.keys.iter().zip(keys).filter(|(_, text)| **text != "*");
    let named = given.map(|(own, text)| {
        let value = key(text, own.kind).with_context(|| format!("key {}", own.name))?;
        Ok((own.name.clone(), value))
    });
    Ok((named.collect::<Result<_>>()?, behind))
}

/// A priority as entries have it; `None`: there are several words.
fn priority(words: &[&str]) -> Result<Option<u32>> {
    Ok(match words {
        [] => Some(0),
        [priority] => {
            let priority: u32 = priority
                .parse()
                .map_err(|_| anyhow!("{priority} is no priority"))?;
            Some(LOWEST_PRIORITY.saturating_sub(priority))
        }
        _ => None,
    })
}

fn add(program: &Program, (table, action): (&str, &str), rest: &[&str]) -> Result<Command> {
    let found = table_of(program, table)?;
    let (keys, behind) = keys(found, rest)?;
    let parameters = parameters(program, found, action)?;
    let (arguments, rest) = behind.split_at(parameters.len().min(behind.len()));
    let priority = priority(rest)?.with_context(|| {
        format!(
            "action {action} has {} parameters, not {}",
            parameters.len(),
            behind.len()
        )
    })?;
    Ok(Command::Add(Add {
        table: table.into(),
        priority,
        keys,
        action: action.into(),
        arguments: named_arguments(&parameters, arguments)?,
        id: None,
    }))
}

fn set_default(program: &Program, (table, action): (&str, &str), rest: &[&str]) -> Result<Command> {
    let found = table_of(program, table)?;
    let rest = rest.strip_prefix(&["=>"]).unwrap_or(rest);
    Ok(Command::SetDefault(Add {
        table: table.into(),
        priority: 0,
        keys: Vec::new(),
        action: action.into(),
        arguments: named_arguments(&parameters(program, found, action)?, rest)?,
        id: None,
    }))
}

fn named_arguments(parameters: &[String], values: &[&str]) -> Result<Vec<(String, Digits)>> {
    ensure!(
        parameters.len() == values.len(),
        "{} arguments are wanted, not {}",
        parameters.len(),
        values.len()
    );
    let named = parameters.iter().zip(values);
    named
        .map(|(name, text)| Ok((name.clone(), value(text)?)))
        .collect()
}

/// Whether a name is meant by a text: the whole name, or its end.
pub fn is_meant(name: &str, text: &str) -> bool {
    name == text || name.strip_suffix(text).is_some_and(|front| front.ends_with('.'))
}

fn table_of<'a>(program: &'a Program, name: &str) -> Result<&'a Table> {
    let mut tables = program.tables.iter();
    let found = tables.find(|table| is_meant(&table.identity.name, name));
    found.with_context(|| format!("there is no table {name}"))
}

/// Names of the parameters of an action of a table.
fn parameters(program: &Program, table: &Table, name: &str) -> Result<Vec<String>> {
    let mut actions = table
        .actions
        .iter()
        .map(|action| &program.actions[action.action.index()]);
    let action = actions.find(|action| is_meant(&action.identity.name, name));
    let action = action.with_context(|| format!("table {} has no action {name}", table.identity.name))?;
    Ok(action
        .parameters
        .iter()
        .map(|parameter| parameter.name.clone())
        .collect())
}

/// `VALUE`, `VALUE/LENGTH`, `VALUE&&&MASK` or `LOW->HIGH`.
fn key(text: &str, kind: MatchKind) -> Result<KeyValue> {
    if let Some((low, high)) = text.split_once("->") {
        return Ok(KeyValue::Range(value(low)?, value(high)?));
    }
    if let Some((bits, mask)) = text.split_once("&&&") {
        return Ok(KeyValue::Digits(super::entries::masked(
            value(bits)?,
            value(mask)?,
        )));
    }
    if let (MatchKind::Lpm, Some((prefix, length))) = (kind, text.rsplit_once('/')) {
        let length = length
            .parse()
            .map_err(|_| anyhow!("{length} is no prefix length"))?;
        return Ok(KeyValue::Prefix(value(prefix)?, length));
    }
    Ok(KeyValue::Digits(value(text)?))
}

fn value(text: &str) -> Result<Digits> {
    number(&Value::String(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn program(name: &str) -> p4_ir::Checked {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs");
        let json = std::fs::read(folder.join(name).join(format!("{name}.json"))).unwrap();
        p4_bmv2::load(&json, None).unwrap()
    }

    #[test]
    fn lines_of_bmv2_mean_what_a_script_says() {
        let program = program("router");
        let text = "# routes\n\
                    table_add routes via 10.1.0.0/16 => 1\n\
                    table_add RouterIngress.routes via 10.1.2.0/24 => 2\n\
                    table_add next_hops send 1 => 2 02:00:00:00:01:01\n\
                    table_set_default routes via 3\n";
        let script = "add routes hdr.ipv4.dst:0x0a010000/16 via(next_hop_id:1)\n\
                      add RouterIngress.routes hdr.ipv4.dst:0x0a010200/24 via(next_hop_id:2)\n\
                      add next_hops meta.next_hop_id:1 send(port:2, mac:0x020000000101)\n\
                      setdefault routes via(next_hop_id:3)\n";
        assert!(are_in(text) && !are_in(script));
        let (baked, _) = p4_stf::bake(program.clone(), &read(text, &program).unwrap(), &[]).unwrap();
        let (wanted, _) = p4_stf::bake(program.clone(), &shared(script).unwrap(), &[]).unwrap();
        assert_eq!(baked, wanted);
        for (line, wanted) in [
            ("table_add nothing via 1 => 1", "no table nothing"),
            ("table_add routes nothing 10.0.0.0/8 => 1", "no action nothing"),
            ("table_add routes via 1 2 => 1", "has 1 keys, not 2"),
            ("table_add routes via 10.0.0.0/x => 1", "no prefix length"),
            ("table_add routes via 10.0.0.0/8", "1 arguments are wanted, not 0"),
            ("\ntable_add routes via 10.0.0.0/8 => 1 2 3", "line 2"),
        ] {
            let error = format!("{:#}", read(line, &program).unwrap_err());
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn the_smallest_priority_wins() {
        let program = program("firewall");
        let table = program
            .tables
            .iter()
            .find(|table| table.keys.iter().any(|key| key.kind == MatchKind::Ternary));
        let table = table.unwrap();
        let keys: Vec<_> = table
            .keys
            .iter()
            .map(|key| match key.kind {
                MatchKind::Lpm => "0/0",
                MatchKind::Range => "0->1",
                MatchKind::Ternary => "0&&&0",
                _ => "0",
            })
            .collect();
        let action = table
            .actions
            .iter()
            .map(|action| &program.actions[action.action.index()]);
        let action = action
            .clone()
            .find(|action| action.parameters.is_empty())
            .unwrap();
        let line = |priority: u32| {
            let (table, action) = (&table.identity.name, &action.identity.name);
            format!("table_add {table} {action} {} => {priority}", keys.join(" "))
        };
        let priority = |text: &str| match &read(text, &program).unwrap()[..] {
            [Command::Add(add)] => add.priority,
            other => panic!("{other:?}"),
        };
        assert!(priority(&line(1)) > priority(&line(2)));
    }
}
