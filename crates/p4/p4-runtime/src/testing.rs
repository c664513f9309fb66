//! Programs and an instance for tests.

use crate::arbitration::Scope;
use crate::bytestring;
use crate::failure::{Done, Failure};
use crate::pipeline::Pipeline;
use crate::proto::{
    Action, Cookie, Entity, FieldMatch, FieldMatchType, ForwardingPipelineConfig, Kind, LpmMatch, Param,
    TableAction, TableActionType, TableEntry, Update,
};
use crate::read::Reader;
use crate::switches::{DeviceInfo, Switches};
use control_protocol::Channel;
use control_protocol::p4::{P4Array, P4CellWrite};
use p4_ir::{Bits, Program, Table};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use tonic::Code;

/// A program of the project's own, as a client sets it, and as it is read.
pub fn program(name: &str) -> (ForwardingPipelineConfig, Program) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../p4-bmv2/programs")
        .join(name);
    let read = |end: &str| std::fs::read(folder.join(format!("{name}{end}"))).unwrap();
    let config = ForwardingPipelineConfig {
        p4info: Some(read(".p4info.txtpb")),
        p4_device_config: read(".json"),
        cookie: Some(Cookie { cookie: 5 }),
    };
    let program = Pipeline::load(Some(&config)).unwrap().program;
    (config, program)
}

/// A table by its short name.
pub fn table<'a>(program: &'a Program, name: &str) -> &'a Table {
    let mut tables = program.tables.iter();
    tables.find(|table| table.identity.alias == name).unwrap()
}

/// The number of a table.
pub fn table_id(program: &Program, name: &str) -> u32 {
    table(program, name).identity.id.unwrap()
}

/// The number of an action, by its short name.
pub fn action(program: &Program, name: &str) -> u32 {
    let mut actions = program.actions.iter();
    actions
        .find(|action| action.identity.alias == name)
        .unwrap()
        .identity
        .id
        .unwrap()
}

/// An update of an entity.
pub fn update(r#type: i32, kind: Kind) -> Update {
    Update {
        r#type,
        entity: Some(Entity { kind: Some(kind) }),
    }
}

/// An entry of the router's routes: a prefix and the number of a next hop.
pub fn route(program: &Program, prefix: [u8; 4], prefix_len: i32, hop: u8) -> TableEntry {
    let value = bytestring::write(&Bits::from_bytes(32, &prefix));
    let lpm = FieldMatchType::Lpm(LpmMatch { value, prefix_len });
    let field = FieldMatch {
        field_id: 1,
        field_match_type: Some(lpm),
    };
    let param = Param {
        param_id: 1,
        value: vec![hop],
    };
    TableEntry {
        table_id: table_id(program, "routes"),
        r#match: vec![field],
        action: Some(direct(action(program, "via"), vec![param])),
        ..TableEntry::default()
    }
}

/// An action of an entry.
pub fn direct(action_id: u32, params: Vec<Param>) -> TableAction {
    let r#type = Some(TableActionType::Action(Action { action_id, params }));
    TableAction { r#type }
}

/// An instance with one device, number 1, whose data plane takes what a version may be.
#[derive(Debug, Default)]
pub struct Instance {
    /// The version that is in force.
    pub version: Option<(u64, Vec<u8>)>,
    /// Values of cells that were set.
    pub cells: HashMap<(u16, u32), Vec<u64>>,
    /// The cell that cannot be set.
    pub refused_cell: Option<u32>,
    /// Times since the last packets of a table's entries, in nanoseconds; one of another cell is 0.
    pub idle: HashMap<u32, u64>,
    /// What the data plane says of the next version.
    pub refusal: Option<Failure>,
    /// Another user's version, which comes before the next one of ours.
    pub other: Option<Vec<u8>>,
    /// Versions that were put, batches of changes among them.
    pub puts: u64,
    /// Batches of changes.
    pub batches: u64,
    /// Times that cells were set at once.
    pub at_once: u64,
    /// The data plane's end of the latest connection.
    pub data_plane: Option<Channel>,
}

/// An instance that a test holds, too.
pub type Shared = Rc<RefCell<Instance>>;

impl Instance {
    /// Puts another user's version in force, if there is one.
    fn others_first(&mut self) {
        if let Some(other) = self.other.take() {
            self.take(other);
        }
    }

    fn refuses(&self, writes: &[P4CellWrite]) -> bool {
        writes.iter().any(|write| self.refused_cell == Some(write.cell))
    }

    /// Sets cells of registers in the moment in which a version comes into force.
    fn set(&mut self, writes: &[P4CellWrite]) {
        self.at_once += u64::from(!writes.is_empty());
        for write in writes {
            let (P4Array::Register(number)
            | P4Array::Counter(number)
            | P4Array::Entries(number)
            | P4Array::Idle(number)) = write.array;
            self.cells.insert((number, write.cell), write.words.clone());
        }
    }

    fn take(&mut self, bytes: Vec<u8>) {
        self.puts += 1;
        self.version = Some((self.puts, bytes));
    }
}

impl Switches for Shared {
    fn devices(&mut self) -> Done<Vec<DeviceInfo>> {
        let tag = self.borrow().version.as_ref().map(|(tag, _)| *tag);
        let name = "one".into();
        Ok(vec![DeviceInfo { id: 1, name, tag }])
    }

    fn fetch(&mut self, _: &str) -> Done<(u64, Vec<u8>)> {
        Ok(self.borrow().version.clone().unwrap())
    }

    fn change(&mut self, _: &str, batch: &[u8], replaces: u64, writes: &[P4CellWrite]) -> Done<()> {
        let mut own = self.borrow_mut();
        own.others_first();
        let (tag, bytes) = own.version.clone().unwrap();
        if tag != replaces || own.refusal.is_some() || own.refuses(writes) {
            return Err(Failure::new(Code::ResourceExhausted, "another version"));
        }
        let bytes = [&bytes[..], batch].concat();
        p4_ir::setup::decode(&bytes).unwrap();
        own.take(bytes);
        own.batches += 1;
        own.set(writes);
        Ok(())
    }

    fn put(&mut self, _: &str, bytes: &[u8], replaces: Option<u64>, writes: &[P4CellWrite]) -> Done<()> {
        let mut own = self.borrow_mut();
        own.others_first();
        if own.version.as_ref().map(|(tag, _)| *tag) != replaces {
            return Err(Failure::new(Code::ResourceExhausted, "another version"));
        }
        if let Some(refusal) = own.refusal.take() {
            return Err(refusal);
        }
        if own.refuses(writes) {
            return Err(Failure::new(Code::ResourceExhausted, "there is no such cell"));
        }
        p4_ir::setup::decode(bytes).unwrap();
        own.take(bytes.to_vec());
        own.set(writes);
        Ok(())
    }

    fn cells(&mut self, version: (&str, u64), array: P4Array, from: u32) -> Done<(Vec<u64>, usize)> {
        let own = self.borrow();
        assert_eq!(own.version.as_ref().map(|(tag, _)| *tag), Some(version.1));
        let number = match array {
            P4Array::Counter(number) | P4Array::Register(number) | P4Array::Entries(number) => number,
            P4Array::Idle(_) => {
                let cell = |cell| own.idle.get(&cell).copied().unwrap_or(0);
                return Ok(((from..from + 3).map(cell).collect(), 1));
            }
        };
        // Pages of three cells.
        let cell = |cell| own.cells.get(&(number, cell)).cloned().unwrap_or(vec![0, 0]);
        Ok(((from..from + 3).flat_map(cell).collect(), 2))
    }

    fn set_cell(&mut self, version: (&str, u64), array: P4Array, cell: u32, words: Vec<u64>) -> Done<()> {
        let mut own = self.borrow_mut();
        assert_eq!(own.version.as_ref().map(|(tag, _)| *tag), Some(version.1));
        let number = match array {
            P4Array::Counter(number) | P4Array::Register(number) | P4Array::Entries(number) => number,
            P4Array::Idle(_) => return Err(Failure::invalid("read only")),
        };
        if own.refused_cell == Some(cell) {
            return Err(Failure::new(Code::Unavailable, "the instance does not answer"));
        }
        own.cells.insert((number, cell), words);
        Ok(())
    }

    fn set_cells(&mut self, version: (&str, u64), writes: Vec<P4CellWrite>) -> Done<()> {
        let refused = self.borrow().refused_cell;
        if writes.iter().any(|write| Some(write.cell) == refused) {
            return Err(Failure::new(Code::Unavailable, "the instance does not answer"));
        }
        self.borrow_mut().at_once += 1;
        let mut each = writes.into_iter();
        each.try_for_each(|write| self.set_cell(version, write.array, write.cell, write.words))
    }

    fn connect(&mut self, _: &str) -> Done<Channel> {
        let (ours, theirs) = Channel::pair().unwrap();
        self.borrow_mut().data_plane = Some(theirs);
        Ok(ours)
    }
}

/// Collects what is found; cells have their number as value.
#[derive(Default)]
pub struct Found(pub Vec<Kind>);

impl Reader for Found {
    fn cells(&mut self, _: P4Array, cells: Range<u32>) -> Done<Vec<Vec<u64>>> {
        Ok(cells
            .map(|cell| vec![cell.into(), 100 + u64::from(cell)])
            .collect())
    }

    fn found(&mut self, kind: Kind) -> Done<()> {
        self.0.push(kind);
        Ok(())
    }
}

/// What a client reads that has a scope.
pub fn read_as(pipeline: &Pipeline, request: Kind, scope: &Scope) -> Done<Vec<Kind>> {
    let mut found = Found::default();
    let kind = Some(request);
    pipeline.read(&Entity { kind }, scope, &mut found)?;
    Ok(found.0)
}
