//! A program that has its entries before its first packet: commands of a script, put into the program and
//! what travels with it ([`p4_ir::setup`]).
//!
//! Names and values mean what they mean in a script. Entries and defaults become the program's own, so that
//! the checker proves them with it; groups, sessions and rates of meters go beside it. Whatever else a
//! command does is refused by name, and so is an entry in an action profile.
//!
//! A program that has begun is changed in the same way ([`change`]): other entries are another version.

use crate::entry::{self, pattern, target};
use crate::error::CommandError;
use crate::names;
use crate::profile::ProfileEdit;
use crate::script::{self, Add, Command};
use p4_interpreter::{CloneSession, Engine};
use p4_ir::setup::{Copy, Group, MeterRates, Rate, Session, Setup};
use p4_ir::{
    ActionId, Bits, Checked, DefaultEntry, Entry, EntryAction, EntryTarget, Implementation, MeterId, Program,
    TableId,
};
use p4_tables::Target;
use std::collections::BTreeMap;

/// Puts commands and clone sessions into a program, in their order.
///
/// # Errors
///
/// The first command that is not one for a program that has not begun, and its position; or that cannot be
/// done.
pub fn bake<'a>(
    program: Checked,
    commands: impl IntoIterator<Item = &'a Command>,
    sessions: &[(u64, CloneSession)],
) -> Result<(Checked, Setup), (usize, CommandError)> {
    let mut oven = Oven::new(program, Setup::default()).map_err(|error| (0, error))?;
    let mut count = 0;
    for (number, command) in commands.into_iter().enumerate() {
        oven.take(command).map_err(|error| (number, error))?;
        count = number;
    }
    let session = |(number, session): &(u64, CloneSession)| Session {
        number: *number,
        copies: session
            .replicas
            .iter()
            .map(|one| Copy {
                port: one.port,
                rid: one.rid,
            })
            .collect(),
        group: session.group,
        max_length: session.max_length.and_then(|length| u32::try_from(length).ok()),
    };
    oven.setup.sessions.extend(sessions.iter().map(session));
    oven.finish().map_err(|error| (count, error))
}

/// Puts commands into a program that has begun, all or none.
///
/// # Errors
///
/// As for [`bake`].
pub fn extend(
    (program, setup): (Checked, Setup),
    commands: &[Command],
) -> Result<(Checked, Setup), (usize, CommandError)> {
    let mut oven = Oven::new(program, setup).map_err(|error| (0, error))?;
    for (number, command) in commands.iter().enumerate() {
        oven.take(command).map_err(|error| (number, error))?;
    }
    let last = commands.len().saturating_sub(1);
    oven.finish().map_err(|error| (last, error))
}

/// Changes an action profile of a program that has begun.
///
/// # Errors
///
/// There is no such profile, what is added is there already, or what is changed is not; or the program cannot
/// be so, as when something leads to what is taken away.
pub fn edit_profile(
    (program, setup): (Checked, Setup),
    profile: &str,
    edit: &ProfileEdit,
) -> Result<(Checked, Setup), CommandError> {
    let mut oven = Oven::new(program, setup)?;
    oven.edit_profile(profile, edit)?;
    oven.finish()
}

/// What is done with an entry, a member or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryVerb {
    /// Adds one that there is not yet.
    Add,
    /// Gives one that there is another action.
    Set,
    /// Takes one away. What it leads to does not matter.
    Delete,
}

/// Changes the entries of a program, all or none.
///
/// # Errors
///
/// The first entry that cannot be changed, and its position.
pub fn change(
    (program, setup): (Checked, Setup),
    verb: EntryVerb,
    entries: &[Add],
) -> Result<(Checked, Setup), (usize, CommandError)> {
    let mut oven = Oven::new(program, setup).map_err(|error| (0, error))?;
    for (number, entry) in entries.iter().enumerate() {
        let done = oven.with_table(entry, |oven, add, table| match verb {
            EntryVerb::Add => oven.add(add, table),
            EntryVerb::Set => oven.set(add, table),
            EntryVerb::Delete => oven.delete(add, table),
        });
        done.map_err(|error| (number, error))?;
    }
    oven.finish()
        .map_err(|error| (entries.len().saturating_sub(1), error))
}

/// Gives a program's meter other rates.
///
/// # Errors
///
/// There is no such meter or cell, or it is a table's.
pub fn set_rates(
    (program, mut setup): (&Program, Setup),
    meter: &str,
    cell: Option<u64>,
    rates: &[script::Rate; 2],
) -> Result<Setup, CommandError> {
    let rates = meter_rates(program, meter, cell, rates)?;
    setup
        .meters
        .retain(|other| other.meter != rates.meter || cell.is_some() && other.cell != rates.cell);
    setup.meters.push(rates);
    Ok(setup)
}

/// Rates as they travel.
fn meter_rates(
    program: &Program,
    name: &str,
    cell: Option<u64>,
    [committed, peak]: &[script::Rate; 2],
) -> Result<MeterRates, CommandError> {
    let all = program.meters.iter().enumerate();
    let number = names::find(
        "meter",
        name,
        all.map(|(at, meter)| (at, meter.identity.name.as_str())),
    )?;
    let meter = &program.meters[number];
    if meter.table.is_some() {
        return Err(CommandError::NotBefore("a meter of a table's entries"));
    }
    let cell = cell
        .map(|cell| u32::try_from(cell).ok().filter(|cell| *cell < meter.size))
        .map(|cell| cell.ok_or(CommandError::NoCell(name.to_owned(), meter.size)))
        .transpose()?;
    let rate = |rate: &script::Rate| Rate {
        per_second: rate.per_second,
        burst: rate.burst,
    };
    Ok(MeterRates {
        meter: MeterId(number as _),
        cell,
        committed: rate(committed),
        peak: rate(peak),
    })
}

/// A program on its way.
pub(crate) struct Oven {
    pub engine: Engine,
    pub program: Program,
    setup: Setup,
    /// Replicas with one number: the number, and ports.
    nodes: Vec<(u16, Vec<u32>)>,
    /// Nodes of each group.
    groups: BTreeMap<u64, Vec<usize>>,
}

impl Oven {
    fn new(program: Checked, setup: Setup) -> Result<Oven, CommandError> {
        let engine = Engine::new(program)?;
        Ok(Oven {
            program: engine.program().clone(),
            engine,
            setup,
            nodes: Vec::new(),
            groups: BTreeMap::new(),
        })
    }

    fn take(&mut self, command: &Command) -> Result<(), CommandError> {
        match command {
            Command::Wait | Command::Show(..) => {}
            Command::Add(add) => self.with_table(add, Self::add)?,
            Command::SetDefault(add) => self.with_table(add, Self::set_default)?,
            Command::MirroringAdd(number, port) => {
                let copies = vec![Copy { port: *port, rid: 0 }];
                self.session(*number, copies, None);
            }
            Command::MirroringAddGroup(number, group) => self.session(*number, Vec::new(), Some(*group)),
            Command::GroupCreate(group) => drop(self.groups.entry(*group).or_default()),
            Command::NodeCreate(rid, ports) => self.nodes.push((*rid, ports.clone())),
            Command::NodeUpdate(node, ports) => {
                let known = self
                    .nodes
                    .get_mut(*node)
                    .ok_or(CommandError::UnknownNode(*node))?;
                known.1.clone_from(ports);
            }
            Command::NodeAssociate(group, node) if *node < self.nodes.len() => {
                let nodes = self.groups.get_mut(group);
                nodes.ok_or(CommandError::UnknownGroup(*group))?.push(*node);
            }
            Command::NodeAssociate(_, node) => return Err(CommandError::UnknownNode(*node)),
            Command::Packet(..) | Command::Expect(..) => return Err(CommandError::NotBefore("a packet")),
            Command::RemoveAll | Command::MirroringDelete(_) => {
                return Err(CommandError::NotBefore("what takes something away"));
            }
            Command::CheckCounter(..) | Command::CounterWrite(..) => {
                return Err(CommandError::NotBefore("a counter"));
            }
            Command::RegisterWrite(..) | Command::RegisterReset(_) => {
                return Err(CommandError::NotBefore("a register"));
            }
            Command::Profile(command) => self.take_profile(command)?,
            Command::MeterRates(name, cell, rates) => {
                let rates = meter_rates(&self.program, name, *cell, rates)?;
                self.setup.meters.push(rates);
            }
        }
        Ok(())
    }

    fn session(&mut self, number: u64, copies: Vec<Copy>, group: Option<u64>) {
        self.setup.sessions.push(Session {
            number,
            copies,
            group,
            max_length: None,
        });
    }

    /// Does something with the table of an entry. Errors name the table.
    pub(crate) fn with_table(
        &mut self,
        add: &Add,
        change: impl FnOnce(&mut Self, &Add, usize) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let number = names::table(&self.program, &add.table)?;
        change(self, add, number).map_err(|error| match error {
            CommandError::Name(_) => error,
            error => CommandError::Entry {
                table: self.program.tables[number].identity.name.clone(),
                error: Box::new(error),
            },
        })
    }

    fn add(&mut self, add: &Add, number: usize) -> Result<(), CommandError> {
        let table = &self.program.tables[number];
        let layout = self.engine.layout(TableId(number as u16));
        if table.constant {
            return Err(p4_tables::Error::Constant.into());
        }
        // Says better than the checker what is wrong with a value.
        pattern(table, layout, add)?;
        let entry = Entry {
            keys: entry::keys(table, add)?,
            target: EntryTarget::Action(self.action(add, number)?),
            rates: None,
            idle_timeout_ns: 0,
            priority: if layout.has_priorities() { add.priority } else { 0 },
        };
        self.program.tables[number].entries.push(entry);
        Ok(())
    }

    /// The position of the entry with such keys and priority.
    fn position(&self, add: &Add, number: usize) -> Result<usize, CommandError> {
        let table = &self.program.tables[number];
        let layout = self.engine.layout(TableId(number as u16));
        if table.constant {
            return Err(p4_tables::Error::Constant.into());
        }
        pattern(table, layout, add)?;
        let keys = entry::keys(table, add)?;
        let is_meant = |entry: &Entry| {
            entry.keys == keys && (!layout.has_priorities() || entry.priority == add.priority)
        };
        let found = table.entries.iter().position(is_meant);
        found.ok_or(CommandError::NoEntry)
    }

    fn set(&mut self, add: &Add, number: usize) -> Result<(), CommandError> {
        let at = self.position(add, number)?;
        let action = self.action(add, number)?;
        self.program.tables[number].entries[at].target = EntryTarget::Action(action);
        Ok(())
    }

    fn delete(&mut self, add: &Add, number: usize) -> Result<(), CommandError> {
        let at = self.position(add, number)?;
        self.program.tables[number].entries.remove(at);
        Ok(())
    }

    fn set_default(&mut self, add: &Add, number: usize) -> Result<(), CommandError> {
        let entry = self.action(add, number)?;
        let former = self.program.tables[number].default.as_ref();
        let (is_constant, constant_action) = former.map_or((false, false), |former| {
            (
                former.constant_arguments,
                former.constant_action && former.entry.action != entry.action,
            )
        });
        if is_constant || constant_action {
            return Err(p4_tables::Error::Constant.into());
        }
        self.program.tables[number].default = Some(DefaultEntry {
            entry,
            constant_action: false,
            constant_arguments: false,
            rates: None,
        });
        Ok(())
    }

    fn action(&self, add: &Add, number: usize) -> Result<EntryAction, CommandError> {
        let table = &self.program.tables[number];
        if table.implementation != Implementation::Direct {
            return Err(CommandError::NotBefore("an entry in an action profile"));
        }
        self.entry_action(add, number)
    }

    /// The action of a table's entry, or of a member of its profile.
    pub(crate) fn entry_action(&self, add: &Add, number: usize) -> Result<EntryAction, CommandError> {
        let table = &self.program.tables[number];
        let Target::Action { action, arguments } = target(&self.program, table, add)? else {
            return Err(CommandError::NotBefore("a member or a group"));
        };
        let mut words = &arguments[..];
        let parameters = &self.program.actions[action as usize].parameters;
        let argument = |parameter: &p4_ir::Parameter| {
            let (own, rest) =
                words.split_at(usize::from(parameter.width).div_ceil(64).max(1).min(words.len()));
            words = rest;
            entry::bits(own, parameter.width)
        };
        let arguments: Vec<Bits> = parameters.iter().map(argument).collect();
        Ok(EntryAction {
            action: ActionId(action as _),
            arguments,
        })
    }

    fn finish(mut self) -> Result<(Checked, Setup), CommandError> {
        for (group, nodes) in &self.groups {
            let nodes = nodes.iter().filter_map(|&node| self.nodes.get(node));
            let copies = nodes.flat_map(|(rid, ports)| ports.iter().map(|&port| Copy { port, rid: *rid }));
            let copies = copies.take(p4_interpreter::MAX_COPIES + 1).collect();
            self.setup.groups.push(Group {
                number: *group,
                copies,
            });
        }
        Ok((Checked::new(self.program)?, self.setup))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Session as Tested, script};
    use p4_interpreter::{Collected, Context, NoObserver, Packet, Replica, State, StateLimits};
    use std::path::Path;

    fn program(name: &str) -> (Checked, String) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../p4-bmv2/programs")
            .join(name);
        let json = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let script = std::fs::read_to_string(folder.join("test.stf")).unwrap();
        (p4_bmv2::load(&json, None).unwrap(), script)
    }

    /// A baked program, written and read, does what a script's session does.
    fn agree(name: &str) {
        let (checked, text) = program(name);
        let lines = script::parse(&text).unwrap();
        let (packets, commands): (Vec<_>, Vec<_>) = lines
            .into_iter()
            .map(|line| line.command)
            .filter(|command| !matches!(command, Command::Expect(..) | Command::CheckCounter(..)))
            .partition(|command| matches!(command, Command::Packet(..)));
        let (baked, given) = bake(checked.clone(), &commands, &[]).unwrap();
        let (baked, given) = p4_ir::setup::decode(&p4_ir::setup::encode(&baked, &given)).unwrap();
        let engine = Engine::new(baked).unwrap();
        let state = State::new(&engine, StateLimits::default()).unwrap();
        for group in &given.groups {
            let copies = group.copies.iter().map(|one| Replica {
                port: one.port,
                rid: one.rid,
            });
            state
                .set_group(group.number, &copies.collect::<Vec<_>>())
                .unwrap();
        }
        for session in &given.sessions {
            let copies = session.copies.iter().map(|one| Replica {
                port: one.port,
                rid: one.rid,
            });
            let made = CloneSession {
                replicas: copies.collect(),
                group: session.group,
                max_length: None,
            };
            state.set_session(session.number, made).unwrap();
        }
        let mut context = Context::new(&engine, 1);
        let mut session = Tested::new(checked).unwrap();
        commands
            .iter()
            .for_each(|command| drop(session.run(command).unwrap()));
        let mut left = 0;
        for packet in &packets {
            let Command::Packet(port, bytes) = packet else {
                unreachable!()
            };
            let mut sink = Collected::default();
            let packet = Packet::whole(*port, bytes);
            engine.run(
                &state.read(),
                &mut context,
                &packet,
                1000,
                &mut sink,
                &mut NoObserver,
            );
            assert_eq!(sink.outputs, session.send(*port, bytes), "{name}");
            left += sink.outputs.len();
        }
        assert!(left > 0, "{name}");
    }

    #[test]
    fn a_baked_program_does_what_its_script_says() {
        ["router", "l2_switch", "firewall", "multicast_l2"]
            .into_iter()
            .for_each(agree);
    }

    #[test]
    fn what_cannot_be_given_before_is_refused_by_name() {
        let (checked, _) = program("router");
        for (line, wanted) in [
            ("packet 1 00", "a packet"),
            ("add no_such_table a:1 b()", "no_such_table"),
            (
                "add routes hdr.ipv4.dst:0x1ffffffff via(next_hop_id:1)",
                "hdr.ipv4.dst",
            ),
            ("add routes via(next_hop:1)", "next_hop"),
        ] {
            let commands: Vec<_> = script::parse(line)
                .unwrap()
                .into_iter()
                .map(|line| line.command)
                .collect();
            let (number, error) = bake(checked.clone(), &commands, &[]).unwrap_err();
            assert_eq!(number, 0);
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }
}
