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
use p4_stf::script::{self, Add, Command, KeyValue, Leads, ProfileCommand};
use serde_json::Value;

/// BMv2's largest priority, so that those of entries are never negative here.
const LOWEST_PRIORITY: u32 = i32::MAX as u32;

/// Whether a text is in that form.
pub fn are_in(text: &str) -> bool {
    text.lines()
        .any(|line| line.trim_start().starts_with("table_") || is_of_profile(line))
}

/// Whether a line is a command of that form and not an entry, which may begin with `table_add`.
pub fn is_command(line: &str) -> bool {
    let first = line.split_whitespace().next();
    let is_shared = |word: &str| word.starts_with("mc_") || word.starts_with("mirroring_");
    is_of_profile(line) || first == Some("table_set_default") || first.is_some_and(is_shared)
}

fn is_of_profile(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("act_prof_") || line.starts_with("table_indirect_")
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
            [first, rest @ ..] if first.starts_with("act_prof_") || first.starts_with("table_indirect_") => {
                of_profile(program, first, rest).map(|command| vec![Command::Profile(command)])
            }
            _ => shared(line),
        };
        commands.extend(read.with_context(|| format!("line {}", number + 1))?);
    }
    Ok(commands)
}

/// A line about action profiles. The older form names a table in place of the profile.
fn of_profile(program: &Program, first: &str, rest: &[&str]) -> Result<ProfileCommand> {
    Ok(match (first, rest) {
        ("act_prof_create_member" | "table_indirect_create_member", [profile, action, values @ ..]) => {
            ProfileCommand::Member {
                profile: (*profile).into(),
                action: (*action).into(),
                arguments: member_arguments(program, action, values)?,
            }
        }
        ("act_prof_create_group" | "table_indirect_create_group", [profile]) => {
            ProfileCommand::Group((*profile).into())
        }
        ("act_prof_add_member_to_group" | "table_indirect_add_member_to_group", [profile, member, group]) => {
            ProfileCommand::Join {
                profile: (*profile).into(),
                member: number_of(member)?,
                group: number_of(group)?,
            }
        }
        _ => return indirect(program, first, rest),
    })
}

/// Arguments of a member's action, which have places and no names.
///
/// # Errors
/// There is no such action, or it has other parameters.
pub fn member_arguments(
    program: &Program,
    action: &str,
    values: &[impl AsRef<str>],
) -> Result<Vec<(String, Digits)>> {
    let mut actions = program.actions.iter();
    let found = actions.find(|own| is_meant(&own.identity.name, action));
    let found = found.with_context(|| format!("there is no action {action}"))?;
    let parameters = found.parameters.iter().map(|parameter| parameter.name.clone());
    let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
    named_arguments(&parameters.collect::<Vec<_>>(), &values)
}

/// A line about entries that lead to members or groups.
fn indirect(program: &Program, first: &str, rest: &[&str]) -> Result<ProfileCommand> {
    Ok(match (first, rest) {
        ("table_indirect_add", [table, rest @ ..]) => {
            let (add, to) = leading(program, table, rest)?;
            ProfileCommand::Add(add, Leads::Member(number_of(to)?))
        }
        ("table_indirect_add_with_group", [table, rest @ ..]) => {
            let (add, to) = leading(program, table, rest)?;
            ProfileCommand::Add(add, Leads::Group(number_of(to)?))
        }
        ("table_indirect_set_default", [table, member]) => {
            ProfileCommand::SetDefault((*table).into(), number_of(member)?)
        }
        _ => bail!("{first} is not supported, or takes other words"),
    })
}

/// The number of a member or group.
fn number_of(text: &str) -> Result<u32> {
    text.parse()
        .map_err(|_| anyhow!("{text} is no number of a member or group"))
}

/// An entry without action, and the number of what it leads to.
fn leading<'a>(program: &Program, table: &str, rest: &'a [&'a str]) -> Result<(Add, &'a str)> {
    let (keys, behind) = keys(table_of(program, table)?, rest)?;
    let [to, behind @ ..] = behind else {
        bail!("a number of a member or group is wanted behind =>");
    };
    let priority = priority(behind)?.with_context(|| format!("{} is no priority", behind.join(" ")))?;
    let add = Add {
        table: table.into(),
        priority,
        keys,
        action: String::new(),
        arguments: Vec::new(),
        id: None,
    };
    Ok((add, to))
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

    const SERVERS: &str = "
act_prof_create_member servers to_server 02:00:00:00:00:0b 10.0.1.1 8080 2
act_prof_create_member servers to_server 02:00:00:00:00:0c 10.0.1.2 5353 3
act_prof_create_group servers
act_prof_add_member_to_group servers 0 0
table_indirect_add_with_group pools 1 => 0
table_indirect_add pools 2 => 1
";

    /// As the packet test of the program, which fills the same tables by actions.
    #[test]
    fn members_and_groups_of_action_profiles_are_filled() {
        let own = program("load_balancer");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs/load_balancer");
        let script = std::fs::read_to_string(folder.join("test.stf")).unwrap();
        let commands = read(SERVERS, &own).unwrap();
        let (baked, _) = p4_stf::bake(own.clone(), &commands, &[]).unwrap();
        let rest: String = script
            .lines()
            .filter(|line| !line.starts_with("add pools"))
            .map(|line| format!("{line}\n"))
            .collect();
        let mut session = p4_stf::Session::new(baked).unwrap();
        let (mut sent, mut wanted) = (Vec::new(), Vec::new());
        for line in script::parse(&rest).unwrap() {
            match &line.command {
                Command::Expect(port, _) => wanted.push(*port),
                command => sent.extend(session.run(command).unwrap().into_iter().map(|(port, _)| port)),
            }
        }
        assert_eq!((sent, wanted), (vec![2, 1, 3, 3, 4, 4], vec![2, 1, 3, 3, 4, 4]));
        // The older form.
        let older = SERVERS
            .replace(
                "act_prof_create_member servers",
                "table_indirect_create_member pools",
            )
            .replace(
                "act_prof_create_group servers",
                "table_indirect_create_group pools",
            )
            .replace(
                "act_prof_add_member_to_group servers",
                "table_indirect_add_member_to_group pools",
            );
        let (again, _) = p4_stf::bake(own.clone(), &read(&older, &own).unwrap(), &[]).unwrap();
        assert_eq!(again.profiles, baked_profiles(&own));
    }

    #[test]
    fn lines_about_action_profiles_that_make_no_sense_are_refused() {
        let own = program("load_balancer");
        for (line, wanted) in [
            ("act_prof_create_member none to_server 1 2 3 4", "action profile"),
            ("act_prof_create_member servers nothing", "no action nothing"),
            (
                "act_prof_create_member servers to_server 1 2 3",
                "4 arguments are wanted, not 3",
            ),
            ("act_prof_create_member servers select_pool 3", "select_pool"),
            ("act_prof_create_member servers to_server 1 2 3 512", "port"),
            ("act_prof_add_member_to_group servers 0 0", "no member 0"),
            ("act_prof_add_member_to_group servers x 0", "x is no number"),
            ("act_prof_dump servers", "not supported"),
            ("act_prof_create_group", "takes other words"),
            ("table_indirect_add pools 2 => 7", "no member 7"),
            ("table_indirect_add_with_group pools 2 => 7", "no group 7"),
            ("table_indirect_add pools 2", "behind =>"),
            ("table_indirect_add services 1 2 3 => 0", "no action profile"),
            ("table_indirect_set_default pools 9", "no member 9"),
            ("table_indirect_set_default_with_group pools 0", "not supported"),
        ] {
            let read = read(&format!("{line}\n"), &own);
            let error = match read {
                Err(error) => format!("{error:#}"),
                Ok(commands) => match p4_stf::bake(own.clone(), &commands, &[]) {
                    Err((_, error)) => format!("{:#}", anyhow::Error::new(error)),
                    Ok(_) => String::new(),
                },
            };
            assert!(error.contains(wanted), "{line}: {error}");
        }
    }

    fn baked_profiles(own: &p4_ir::Checked) -> Vec<p4_ir::ActionProfile> {
        let commands = read(SERVERS, own).unwrap();
        let (baked, _) = p4_stf::bake(own.clone(), &commands, &[]).unwrap();
        baked.profiles.clone()
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
