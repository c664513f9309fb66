//! A program with its state, to which a script's commands are done.

use std::collections::{BTreeMap, HashMap};

use p4_interpreter::{
    Collected, Context, CounterValue, Engine, NoObserver, Packet, Replica, State, StateLimits,
};
use p4_ir::{Checked, CounterId, Implementation, MeterId, RegisterId, TableId};
use p4_tables::{Change, Count, Entry, Handle, MeterRates, Pattern, ProfileChange, Target};

use crate::entry::{fitted, pattern, target};
use crate::error::{CommandError, NameError};
use crate::limits::MAX_NODES;
use crate::names;
use crate::script::{Add, Cell, Command, Comparison, Rate, Shown, Unit};

/// Nanoseconds between two packets.
const STEP: u64 = 1000;
/// Port and bytes of each packet that left, in order.
pub type Sent = Vec<(u32, Vec<u8>)>;

/// An engine, a state, and the names that a script has given.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    state: State,
    context: Context,
    now: u64,
    /// Entries that were given a name.
    entries: HashMap<String, (usize, Pattern, u32)>,
    nodes: Vec<Node>,
    groups: BTreeMap<u64, Vec<usize>>,
    /// The next identifier for members of action profiles.
    member: u32,
}

/// Replicas with one number.
#[derive(Debug)]
struct Node {
    rid: u16,
    ports: Vec<u32>,
}

impl Session {
    /// A fresh program: constant entries only, counters and registers zero.
    ///
    /// # Errors
    ///
    /// Why the program cannot run.
    pub fn new(program: Checked) -> Result<Session, p4_interpreter::Error> {
        let engine = Engine::new(program)?;
        let state = State::new(&engine, StateLimits::default())?;
        let context = Context::new(&engine, 1);
        let profiles = engine.program().profiles.iter();
        let taken = profiles.filter_map(|profile| profile.members.keys().next_back());
        let member = taken.max().map_or(1, |last| last.saturating_add(1));
        Ok(Session {
            engine,
            state,
            context,
            now: STEP,
            entries: HashMap::new(),
            nodes: Vec::new(),
            groups: BTreeMap::new(),
            member,
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Runs a packet and its copies to their ends, and returns the packets that left.
    pub fn send(&mut self, port: u32, bytes: &[u8]) -> Sent {
        let mut sink = Collected::default();
        self.now += STEP;
        let packet = Packet::whole(port, bytes);
        self.engine.run(
            &self.state.read(),
            &mut self.context,
            &packet,
            self.now,
            &mut sink,
            &mut NoObserver,
        );
        sink.outputs
    }

    /// Executes a command, and returns the packets that left because of it. The caller compares them with
    /// expectations.
    ///
    /// # Errors
    ///
    /// The error in it, or how a counter differs.
    pub fn run(&mut self, command: &Command) -> Result<Sent, CommandError> {
        match command {
            Command::Packet(port, bytes) => return Ok(self.send(*port, bytes)),
            Command::Expect(..) | Command::Wait => {}
            Command::Add(add) => self.with_table(&add.table, |session, table| session.add(add, table))?,
            Command::SetDefault(add) => {
                self.with_table(&add.table, |session, table| session.set_default(add, table))?;
            }
            Command::RemoveAll => self.remove_all()?,
            Command::CheckCounter(name, cell, condition) => self.check(name, cell, *condition)?,
            Command::CounterWrite(name, index, packets, bytes) => {
                let value = CounterValue {
                    packets: *packets,
                    bytes: *bytes,
                };
                self.write_counter(name, *index, value)?;
            }
            Command::RegisterWrite(name, index, value) => {
                let register = self.register(name)?;
                let width = u32::from(self.engine.program().registers[register.index()].width);
                let words = fitted(&value.value, width).ok_or(CommandError::ValueTooLarge(width))?;
                self.state.set_register(register, *index, &words)?;
            }
            Command::RegisterReset(name) => self.state.reset_register(self.register(name)?),
            Command::Profile(_) => return Err(CommandError::OnlyBefore("a member or a group")),
            Command::MeterRates(name, index, rates) => self.set_rates(name, *index, rates)?,
            Command::Show(what, name, index) => self.show(*what, name, *index)?,
            other => self.replicate(other)?,
        }
        Ok(Vec::new())
    }

    fn table(&self, name: &str) -> Result<usize, NameError> {
        names::table(self.engine.program(), name)
    }

    /// Does something with a table. Errors name the table.
    fn with_table(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Self, usize) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let number = self.table(name)?;
        change(self, number).map_err(|error| match error {
            // Names are looked for in a table, and these errors say in which.
            CommandError::Name(_) => error,
            error => CommandError::Entry {
                table: self.engine.program().tables[number].identity.name.clone(),
                error: Box::new(error),
            },
        })
    }

    fn add(&mut self, add: &Add, number: usize) -> Result<(), CommandError> {
        let program = self.engine.program();
        let table = &program.tables[number];
        let layout = self.engine.layout(TableId(number as u16));
        let pattern = pattern(table, layout, add)?;
        let mut target = target(program, table, add)?;
        let priority = if layout.has_priorities() { add.priority } else { 0 };
        let mut changes = Vec::new();
        if let (Implementation::Profile(profile), Target::Action { action, arguments }) =
            (table.implementation, target.clone())
        {
            // A member of its own, and an entry that points to it.
            let change = ProfileChange::AddMember {
                member: self.member,
                action,
                arguments,
            };
            changes.push(Change::Profile {
                profile: u32::from(profile.0),
                change,
            });
            target = Target::Member(self.member);
            self.member += 1;
        }
        let entry = Entry {
            pattern: pattern.clone(),
            priority,
            target,
            idle_timeout_ns: 0,
        };
        changes.push(Change::Insert {
            table: number as u32,
            entry,
        });
        self.apply(&changes)?;
        if let Some(id) = &add.id {
            self.entries.insert(id.clone(), (number, pattern, priority));
        }
        Ok(())
    }

    fn set_default(&mut self, add: &Add, number: usize) -> Result<(), CommandError> {
        let program = self.engine.program();
        let target = target(program, &program.tables[number], add)?;
        self.apply(&[Change::SetDefault {
            table: number as u32,
            target: Some(target),
        }])
    }

    fn remove_all(&mut self) -> Result<(), CommandError> {
        let mut changes = Vec::new();
        for number in 0..self.engine.program().tables.len() as u32 {
            let tables = self.state.tables().look();
            let table = tables.table(number)?;
            let handles = table.handles().filter(|&handle| !table.is_constant(handle));
            let patterns = handles.filter_map(|handle| table.pattern(handle));
            changes.extend(patterns.map(|(pattern, priority)| Change::Remove {
                table: number,
                pattern,
                priority,
            }));
        }
        for batch in changes.chunks(p4_tables::MAX_BATCH) {
            self.apply(batch)?;
        }
        self.entries.clear();
        Ok(())
    }

    fn apply(&self, changes: &[Change]) -> Result<(), CommandError> {
        self.state
            .tables()
            .apply(changes, self.now)
            .map_err(|refused| refused.error.into())
    }

    fn counter(&self, name: &str) -> Result<CounterId, NameError> {
        let counters = self.engine.program().counters.iter().enumerate();
        let number = names::find(
            "counter",
            name,
            counters.map(|(index, one)| (index, one.identity.name.as_str())),
        )?;
        Ok(CounterId(number as u16))
    }

    fn register(&self, name: &str) -> Result<RegisterId, NameError> {
        let registers = self.engine.program().registers.iter().enumerate();
        let number = names::find(
            "register",
            name,
            registers.map(|(index, one)| (index, one.identity.name.as_str())),
        )?;
        Ok(RegisterId(number as u16))
    }

    fn meter(&self, name: &str) -> Result<MeterId, NameError> {
        let meters = self.engine.program().meters.iter().enumerate();
        let number = names::find(
            "meter",
            name,
            meters.map(|(index, one)| (index, one.identity.name.as_str())),
        )?;
        Ok(MeterId(number as u16))
    }

    fn counted(&self, name: &str, cell: &Cell) -> Result<CounterValue, CommandError> {
        let counter = self.counter(name)?;
        let direct = self.engine.program().counters[counter.index()].table;
        let (table, handle) = match (cell, direct) {
            (Cell::Index(index), None) => {
                return self.state.counter(counter, *index).map_err(CommandError::from);
            }
            (Cell::Index(index), Some(table)) => (table.index(), self.handle(table, *index)?),
            (Cell::Entry(id), _) => {
                let (table, pattern, priority) = self
                    .entries
                    .get(id)
                    .ok_or_else(|| CommandError::UnknownEntry(id.clone()))?;
                if self.engine.program().tables[*table].counter != Some(counter) {
                    return Err(CommandError::OtherTable {
                        counter: name.to_owned(),
                        entry: id.clone(),
                    });
                }
                let tables = self.state.tables().look();
                let found = tables.table(*table as u32)?;
                (
                    *table,
                    found
                        .find(pattern, *priority)
                        .ok_or_else(|| CommandError::RemovedEntry(id.clone()))?,
                )
            }
        };
        let tables = self.state.tables().look();
        let table = tables.table(table as u32)?;
        let count = table.counted(handle).unwrap_or_default();
        Ok(CounterValue {
            packets: count.packets,
            bytes: count.bytes,
        })
    }

    /// The entry of a table with a number as BMv2 gives them: from 0 on in the order in which they were
    /// added.
    fn handle(&self, table: TableId, index: u64) -> Result<Handle, CommandError> {
        let tables = self.state.tables().look();
        let entries = tables.table(u32::from(table.0))?;
        let wanted = index
            .checked_add(1)
            .and_then(|number| Handle::try_from(number).ok());
        let found = wanted.filter(|&wanted| entries.pattern(wanted).is_some());
        found.ok_or_else(|| CommandError::NoSuchEntry {
            table: self.engine.program().tables[table.index()].identity.name.clone(),
            index,
        })
    }

    fn write_counter(&self, name: &str, index: u64, value: CounterValue) -> Result<(), CommandError> {
        let counter = self.counter(name)?;
        let Some(table) = self.engine.program().counters[counter.index()].table else {
            return self
                .state
                .set_counter(counter, index, value)
                .map_err(CommandError::from);
        };
        let handle = self.handle(table, index)?;
        let tables = self.state.tables().look();
        let table = tables.table(u32::from(table.0))?;
        let count = Count {
            packets: value.packets,
            bytes: value.bytes,
        };
        table.set_counted(handle, count).map_err(CommandError::from)
    }

    /// Sets the rates of a table's direct meters: of one entry, or of all that there are.
    fn set_direct_rates(
        &self,
        table: TableId,
        index: Option<u64>,
        rates: MeterRates,
    ) -> Result<(), CommandError> {
        let one = index.map(|index| self.handle(table, index)).transpose()?;
        let tables = self.state.tables().look();
        let table = tables.table(u32::from(table.0))?;
        let handles = table
            .handles()
            .filter(|&handle| one.is_none_or(|one| one == handle));
        for meter in handles.filter_map(|handle| table.meter(handle)) {
            meter.set(Some(rates), self.now)?;
        }
        Ok(())
    }

    fn check(
        &self,
        name: &str,
        cell: &Cell,
        condition: Option<(Unit, Comparison, u64)>,
    ) -> Result<(), CommandError> {
        let CounterValue { packets, bytes } = self.counted(name, cell)?;
        let Some((unit, comparison, wanted)) = condition else {
            let zero = packets == 0 && bytes == 0;
            return if zero {
                Ok(())
            } else {
                Err(CommandError::NotZero {
                    counter: name.to_owned(),
                    packets,
                    bytes,
                })
            };
        };
        let value = match unit {
            Unit::Packets => packets,
            Unit::Bytes => bytes,
        };
        if comparison.holds(value, wanted) {
            return Ok(());
        }
        Err(CommandError::OtherCount {
            counter: name.to_owned(),
            value,
            unit,
            comparison,
            wanted,
        })
    }

    fn set_rates(
        &self,
        name: &str,
        index: Option<u64>,
        [committed, peak]: &[Rate; 2],
    ) -> Result<(), CommandError> {
        let meter = self.meter(name)?;
        let rates = MeterRates {
            cir: committed.per_second,
            cbs: committed.burst,
            pir: peak.per_second,
            pbs: peak.burst,
        };
        if let Some(table) = self.engine.program().meters[meter.index()].table {
            return self.set_direct_rates(table, index, rates);
        }
        let cells = match index {
            Some(index) => index..index.saturating_add(1),
            None => 0..self.state.meter_cells(meter),
        };
        for cell in cells {
            self.state.set_meter(meter, cell, Some(rates), self.now)?;
        }
        Ok(())
    }

    /// Commands that only show: that what they name exists is all a test can want.
    fn show(&self, what: Shown, name: &str, index: u64) -> Result<(), CommandError> {
        match what {
            Shown::Mirroring => Ok(()),
            Shown::Counter => self.counted(name, &Cell::Index(index)).map(|_| ()),
            Shown::Register => self
                .state
                .register(self.register(name)?, index)
                .map(|_| ())
                .map_err(CommandError::from),
            Shown::Meter => self
                .state
                .meter(self.meter(name)?, index)
                .map(|_| ())
                .map_err(CommandError::from),
        }
    }

    /// Clone sessions and multicast groups.
    fn replicate(&mut self, command: &Command) -> Result<(), CommandError> {
        let session = |replicas: &[Replica], group| p4_interpreter::CloneSession {
            replicas: replicas.into(),
            group,
            max_length: None,
        };
        let done = match command {
            Command::MirroringAdd(number, port) => self
                .state
                .set_session(*number, session(&[Replica { port: *port, rid: 0 }], None)),
            Command::MirroringAddGroup(number, group) => {
                self.state.set_session(*number, session(&[], Some(*group)))
            }
            Command::MirroringDelete(number) => {
                self.state.remove_session(*number);
                Ok(())
            }
            Command::GroupCreate(group) => {
                self.groups.entry(*group).or_default();
                return self.set_group(*group);
            }
            Command::NodeCreate(rid, ports) if self.nodes.len() < MAX_NODES => {
                self.nodes.push(Node {
                    rid: *rid,
                    ports: ports.clone(),
                });
                Ok(())
            }
            Command::NodeCreate(..) => return Err(CommandError::TooManyNodes),
            Command::NodeUpdate(node, ports) => return self.update_node(*node, ports),
            Command::NodeAssociate(group, node) => return self.associate_node(*group, *node),
            _ => Ok(()),
        };
        done.map_err(CommandError::from)
    }

    /// Gives a node of multicast groups other ports.
    fn update_node(&mut self, node: usize, ports: &[u32]) -> Result<(), CommandError> {
        let known = self.nodes.get_mut(node).ok_or(CommandError::UnknownNode(node))?;
        known.ports = ports.to_vec();
        let groups = self.groups.iter().filter(|(_, nodes)| nodes.contains(&node));
        let groups: Vec<u64> = groups.map(|(&group, _)| group).collect();
        groups.into_iter().try_for_each(|group| self.set_group(group))
    }

    fn associate_node(&mut self, group: u64, node: usize) -> Result<(), CommandError> {
        if node >= self.nodes.len() {
            return Err(CommandError::UnknownNode(node));
        }
        let nodes = self.groups.get_mut(&group);
        nodes.ok_or(CommandError::UnknownGroup(group))?.push(node);
        self.set_group(group)
    }

    fn set_group(&self, group: u64) -> Result<(), CommandError> {
        let nodes = self
            .groups
            .get(&group)
            .into_iter()
            .flatten()
            .filter_map(|&node| self.nodes.get(node));
        let replicas = nodes.flat_map(|node| node.ports.iter().map(|&port| Replica { port, rid: node.rid }));
        let replicas: Vec<Replica> = replicas.take(p4_interpreter::MAX_COPIES + 1).collect();
        self.state.set_group(group, &replicas).map_err(CommandError::from)
    }
}
