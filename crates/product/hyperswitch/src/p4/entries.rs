//! Entries of tables in the form that the tutorials of P4 use (`s1-runtime.json`).
//!
//! A file names tables, keys, actions and parameters as P4Info does. It is turned into the commands that
//! packet tests have, so that names and values are interpreted in one place. The target and the paths that
//! the tutorials write are ignored. Any other unknown member is an error: a misspelt one would lose entries.

use anyhow::{Context, Result, anyhow, bail, ensure};
use p4_ir::{MatchKind, Program};
use p4_stf::Digits;
use p4_stf::script::{Add, Command, KeyValue};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Greatest size of a file in bytes.
pub const MAX_FILE: u64 = 16 << 20;

/// Replicas of all groups and sessions of a file.
const MAX_REPLICAS: usize = 4096;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "target")]
    _target: Value,
    #[serde(default, rename = "p4info")]
    _p4info: Value,
    #[serde(default, rename = "bmv2_json")]
    _bmv2_json: Value,
    #[serde(default)]
    table_entries: Vec<TableEntry>,
    #[serde(default)]
    multicast_group_entries: Vec<Group>,
    #[serde(default)]
    clone_session_entries: Vec<CloneSession>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableEntry {
    table: String,
    #[serde(default, rename = "match")]
    keys: BTreeMap<String, Value>,
    #[serde(default)]
    priority: u32,
    #[serde(default)]
    default_action: bool,
    action_name: String,
    #[serde(default)]
    action_params: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    multicast_group_id: u64,
    replicas: Vec<Replica>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CloneSession {
    clone_session_id: u64,
    replicas: Vec<Replica>,
    #[serde(default)]
    packet_length_bytes: usize,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Replica {
    egress_port: u32,
    #[serde(default)]
    instance: u16,
}

/// The contents of a file.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Entries and groups.
    pub commands: Vec<Command>,
    /// Clone sessions by number.
    pub sessions: Vec<(u64, p4_interpreter::CloneSession)>,
}

/// Reads a file for a program.
///
/// # Errors
/// The first thing that is not JSON, not of that form, or not a value; with its place.
pub fn read(text: &str, program: &Program) -> Result<Wanted> {
    let file: File = serde_json::from_str(text)?;
    let mut wanted = Wanted::default();
    for (number, entry) in file.table_entries.iter().enumerate() {
        let command = command(entry, program).with_context(|| format!("table_entries[{number}]"))?;
        wanted.commands.push(command);
    }
    let groups = file.multicast_group_entries.iter().map(|group| &group.replicas);
    let sessions = file.clone_session_entries.iter().map(|session| &session.replicas);
    let replicas: usize = groups.chain(sessions).map(Vec::len).sum();
    ensure!(
        replicas <= MAX_REPLICAS,
        "{replicas} replicas, {MAX_REPLICAS} are the limit"
    );
    let mut nodes = 0;
    for group in &file.multicast_group_entries {
        wanted
            .commands
            .push(Command::GroupCreate(group.multicast_group_id));
        for replica in &group.replicas {
            wanted
                .commands
                .push(Command::NodeCreate(replica.instance, vec![replica.egress_port]));
            wanted
                .commands
                .push(Command::NodeAssociate(group.multicast_group_id, nodes));
            nodes += 1;
        }
    }
    for session in &file.clone_session_entries {
        let replicas = session.replicas.iter().map(|replica| p4_interpreter::Replica {
            port: replica.egress_port,
            rid: replica.instance,
        });
        let made = p4_interpreter::CloneSession {
            replicas: replicas.collect(),
            group: None,
            max_length: (session.packet_length_bytes > 0).then_some(session.packet_length_bytes),
        };
        wanted.sessions.push((session.clone_session_id, made));
    }
    Ok(wanted)
}

fn command(entry: &TableEntry, program: &Program) -> Result<Command> {
    let mut keys = Vec::new();
    for (name, value) in &entry.keys {
        if !value.is_null() {
            let kind = kind(program, &entry.table, name);
            keys.push((
                name.clone(),
                key(value, kind).with_context(|| format!("key {name}"))?,
            ));
        }
    }
    let mut arguments = Vec::new();
    for (name, value) in &entry.action_params {
        arguments.push((
            name.clone(),
            number(value).with_context(|| format!("parameter {name}"))?,
        ));
    }
    let add = Add {
        table: entry.table.clone(),
        priority: entry.priority,
        keys,
        action: entry.action_name.clone(),
        arguments,
        id: None,
    };
    Ok(if entry.default_action {
        Command::SetDefault(add)
    } else {
        Command::Add(add)
    })
}

/// How a key is matched, if table and key are known by these names.
fn kind(program: &Program, table: &str, key: &str) -> Option<MatchKind> {
    let named = |name: &str, wanted: &str| {
        name == wanted
            || name
                .strip_suffix(wanted)
                .is_some_and(|front| front.ends_with('.'))
    };
    let table = program
        .tables
        .iter()
        .find(|one| named(&one.identity.name, table) || one.identity.alias == table)?;
    table
        .keys
        .iter()
        .find(|one| named(&one.name, key))
        .map(|key| key.kind)
}

/// A number, also in a list of its own, or two: with a prefix length, a mask, or an upper bound.
fn key(value: &Value, kind: Option<MatchKind>) -> Result<KeyValue> {
    let Value::Array(parts) = value else {
        return Ok(KeyValue::Digits(number(value)?));
    };
    let (first, second) = match &parts[..] {
        [only] => return Ok(KeyValue::Digits(number(only)?)),
        [first, second] => (first, second),
        _ => bail!("a list of one or two is wanted, not of {}", parts.len()),
    };
    let first = number(first)?;
    Ok(match kind {
        Some(MatchKind::Ternary) => KeyValue::Digits(masked(first, number(second)?)),
        Some(MatchKind::Range) => KeyValue::Range(first, number(second)?),
        _ => {
            let length = second.as_u64().and_then(|length| u32::try_from(length).ok());
            KeyValue::Prefix(
                first,
                length.ok_or_else(|| anyhow!("{second} is no prefix length"))?,
            )
        }
    })
}

/// A value of which only the bits of a mask matter.
pub(super) fn masked(mut value: Digits, mask: Digits) -> Digits {
    for (at, word) in value.value.iter_mut().enumerate() {
        *word &= mask.value.get(at).copied().unwrap_or(0);
    }
    value.mask = mask.value;
    // Digits of four bits, of which some do not matter.
    value.bits = 4;
    value
}

/// A number, a MAC address, an IPv4 or an IPv6 address.
pub(super) fn number(value: &Value) -> Result<Digits> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::Bool(value) => u8::from(*value).to_string(),
        Value::String(text) => written(text),
        _ => bail!("{value} is no number and no address"),
    };
    match Digits::parse(&text) {
        Some(digits) if !text.contains('*') => Ok(digits),
        _ => bail!("{value} is no number and no address"),
    }
}

fn written(text: &str) -> String {
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        return format!("{:#x}", address.to_bits());
    }
    let parts: Vec<&str> = text.split(':').collect();
    let is_mac = parts.len() == 6
        && parts
            .iter()
            .all(|part| part.len() <= 2 && u8::from_str_radix(part, 16).is_ok());
    if is_mac {
        let byte = |part: &&str| format!("{:02x}", u8::from_str_radix(part, 16).unwrap_or(0));
        return format!("0x{}", parts.iter().map(byte).collect::<String>());
    }
    match text.parse::<Ipv6Addr>() {
        Ok(address) => format!("{:#x}", address.to_bits()),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Vec<u64> {
        number(&Value::String(text.into())).unwrap().value.to_vec()
    }

    #[test]
    fn addresses_are_numbers() {
        assert_eq!(value("10.0.1.2")[0], 0x0A00_0102);
        assert_eq!(value("08:00:00:00:04:44")[0], 0x0800_0000_0444);
        assert_eq!(value("2001:db8::1")[..2], [1, 0x2001_0db8_0000_0000]);
        assert_eq!(value("0x800")[0], 0x800);
        assert_eq!(value("17")[0], 17);
        for bad in ["", "ten", "10.0.0", "0x", "0x1*", "-1", "1:2"] {
            assert!(number(&Value::String(bad.into())).is_err(), "{bad}");
        }
        assert!(number(&Value::from(1.5)).is_err());
        assert!(number(&Value::Null).is_err());
    }

    #[test]
    fn lists_mean_what_the_key_wants() {
        let list: Value = serde_json::from_str("[\"10.0.1.0\", 24]").unwrap();
        assert!(matches!(
            key(&list, Some(MatchKind::Lpm)).unwrap(),
            KeyValue::Prefix(_, 24)
        ));
        assert!(matches!(
            key(&list, Some(MatchKind::Range)).unwrap(),
            KeyValue::Range(..)
        ));
        let KeyValue::Digits(digits) = key(&list, Some(MatchKind::Ternary)).unwrap() else {
            panic!()
        };
        assert_eq!((digits.value[0], digits.mask[0]), (0, 24));
        let long: Value = serde_json::from_str("[1, 2, 3]").unwrap();
        assert!(key(&long, None).is_err());
        let wrong: Value = serde_json::from_str("[1, \"x\"]").unwrap();
        assert!(key(&wrong, Some(MatchKind::Lpm)).is_err());
    }
}
