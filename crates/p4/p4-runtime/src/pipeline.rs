//! A program with its entries, as a client of P4Runtime sees it: by the numbers of P4Info.
//!
//! A pipeline travels to the data plane as a version ([`p4_ir::setup`]). P4Info, the cookie, metadata of
//! entries and the program's own defaults, which only clients want back, travel in it as notes. So the
//! version is all there is: whoever starts anew finds everything there.
//!
//! Entries that change alone travel as a batch, which stands behind the version that it changes.

use crate::entry::EntryKey;
use crate::failure::{Done, Failure};
use crate::proto::{DigestConfig, ForwardingPipelineConfig};
use crate::rates;
use crate::uses::Uses;
use p4_ir::changes::{self, EntryChange};
use p4_ir::setup::{self, Lineage, Setup};
use p4_ir::{Checked, DefaultEntry, Identity, Program, Table};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use tonic::Code;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The program, whose entries change.
    pub(crate) program: Program,
    /// Groups, sessions and rates.
    pub(crate) setup: Setup,
    pub(crate) notes: Notes,
    /// Positions of a table's entries.
    pub(crate) positions: Vec<HashMap<EntryKey, usize>>,
    /// What refers to members and groups of action profiles.
    pub(crate) uses: Vec<Uses>,
    /// Number of entries with idle times.
    pub(crate) timed: usize,
    /// What has changed since it was in force.
    pub(crate) changed: Changed,
}

/// What has changed of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Changed {
    /// Nothing.
    #[default]
    Nothing,
    /// Entries alone: these changes were made.
    Entries(Vec<EntryChange>),
    /// Something else.
    All,
}

impl Changed {
    /// Notes a change of entries.
    pub fn note(&mut self, change: EntryChange) {
        match self {
            Changed::Nothing => *self = Changed::Entries(vec![change]),
            Changed::Entries(all) if all.len() < changes::MOST => all.push(change),
            Changed::Entries(_) | Changed::All => *self = Changed::All,
        }
    }
}

/// What clients want back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notes {
    /// As a client has sent it.
    pub p4info: Vec<u8>,
    /// As a client has sent it.
    pub cookie: Option<u64>,
    /// Defaults of all tables, as the program has them.
    pub defaults: Vec<Option<DefaultEntry>>,
    /// Remarks about entries, by table.
    pub entries: Vec<HashMap<EntryKey, EntryNote>>,
    /// Remarks about multicast groups.
    pub groups: HashMap<u64, Vec<u8>>,
    /// What clients get of digests, by the numbers of P4Info.
    pub digests: BTreeMap<u32, DigestConfig>,
}

/// A client's remark about an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryNote {
    pub metadata: Vec<u8>,
    pub controller_metadata: u64,
}

impl Pipeline {
    /// Reads a program that a client sets: P4Info, and the compiler's JSON for BMv2.
    ///
    /// # Errors
    /// The configuration is missing, or its program cannot be run here.
    pub fn load(config: Option<&ForwardingPipelineConfig>) -> Done<Pipeline> {
        let config = config.ok_or_else(|| Failure::invalid("no configuration is given"))?;
        let p4info = config
            .p4info
            .clone()
            .ok_or_else(|| Failure::invalid("the configuration has no p4info"))?;
        if config.p4_device_config.is_empty() {
            return Err(Failure::invalid(
                "p4_device_config is empty; it is the compiler's JSON for BMv2",
            ));
        }
        let program = p4_bmv2::load(&config.p4_device_config, Some(&p4info)).map_err(Failure::invalid)?;
        let program = program.into_program();
        let notes = Notes {
            p4info,
            cookie: config.cookie.map(|cookie| cookie.cookie),
            defaults: program.tables.iter().map(|table| table.default.clone()).collect(),
            entries: vec![HashMap::new(); program.tables.len()],
            groups: HashMap::new(),
            digests: BTreeMap::new(),
        };
        let setup = Setup::default();
        Ok(Pipeline::new(program, setup, notes))
    }

    fn new(program: Program, setup: Setup, notes: Notes) -> Pipeline {
        let positions = |table: &Table| {
            let entries = table.entries.iter().enumerate();
            entries.map(|(at, entry)| (EntryKey::of(entry), at)).collect()
        };
        Pipeline {
            positions: program.tables.iter().map(positions).collect(),
            uses: Uses::of(&program),
            timed: rates::timed(&program),
            program,
            setup,
            notes,
            changed: Changed::Nothing,
        }
    }

    /// Reads a version. `None` if no client of P4Runtime has set its program.
    ///
    /// # Errors
    /// The version cannot be read.
    pub fn decode(bytes: &[u8]) -> Done<Option<Pipeline>> {
        let internal = |error| Failure::new(Code::Internal, error);
        let (program, setup) = setup::decode(bytes).map_err(|error| internal(error.to_string()))?;
        if setup.notes.is_empty() {
            return Ok(None);
        }
        let notes: Notes = postcard::from_bytes(&setup.notes).map_err(|error| internal(error.to_string()))?;
        let tables = program.tables.len();
        if notes.defaults.len() != tables || notes.entries.len() != tables {
            return Err(internal("the version's notes are about another program".into()));
        }
        Ok(Some(Pipeline::new(program.into_program(), setup, notes)))
    }

    /// The version. The program is checked as a whole, which a single update cannot be.
    ///
    /// # Errors
    /// The program with these entries is beyond a limit.
    pub fn encode(&mut self) -> Done<Vec<u8>> {
        let internal = |error: postcard::Error| Failure::new(Code::Internal, error);
        self.setup.notes = postcard::to_allocvec(&self.notes).map_err(internal)?;
        let checked = Checked::new(self.program.clone()).map_err(Failure::exhausted)?;
        let bytes = setup::encode(&checked, &self.setup);
        if !self.setup.is_bounded() || bytes.len() > setup::SERIALISED {
            return Err(Failure::exhausted("the program with its entries is too large"));
        }
        self.changed = Changed::Nothing;
        Ok(bytes)
    }

    /// What has changed as a batch, if it is entries alone.
    #[must_use]
    pub fn batch(&self) -> Option<Vec<u8>> {
        match &self.changed {
            Changed::Entries(all) => Some(changes::encode(all)),
            Changed::Nothing | Changed::All => None,
        }
    }

    /// Has registers, counters and meters begin anew, unless an earlier version has the same number.
    pub fn begin_lineage(&mut self, number: u64) {
        self.setup.lineage = Lineage(number);
        self.changed = Changed::All;
    }

    /// The number of the versions whose registers, counters and meters go on here.
    #[must_use]
    pub fn lineage(&self) -> u64 {
        self.setup.lineage.0
    }

    /// P4Info and the cookie, as they were set.
    #[must_use]
    pub fn described(&self) -> (&[u8], Option<u64>) {
        (&self.notes.p4info, self.notes.cookie)
    }

    /// The table with a number.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn table(&self, id: u32) -> Done<usize> {
        let tables = self.program.tables.iter().map(|table| &table.identity);
        find("table", tables, id)
    }
}

/// The position of what has a number of P4Info.
///
/// # Errors
/// There is none.
pub(crate) fn find<'a>(what: &str, mut all: impl Iterator<Item = &'a Identity>, id: u32) -> Done<usize> {
    let found = all.position(|identity| identity.id == Some(id));
    found.ok_or_else(|| Failure::missing(format_args!("there is no {what} {id}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_version_has_all_that_a_client_wants_back() {
        let (config, _) = testing::program("router");
        let mut pipeline = Pipeline::load(Some(&config)).unwrap();
        pipeline.begin_lineage(7);
        assert_eq!(pipeline.changed, Changed::All);
        let bytes = pipeline.encode().unwrap();
        assert_eq!(pipeline.changed, Changed::Nothing);
        let read = Pipeline::decode(&bytes).unwrap().unwrap();
        assert_eq!(read.described(), (&config.p4info.clone().unwrap()[..], Some(5)));
        assert_eq!(read.lineage(), 7);
        assert_eq!((&read.program, &read.notes), (&pipeline.program, &pipeline.notes));
    }

    #[test]
    fn programs_that_no_client_has_set_are_no_pipelines() {
        let (_, program) = testing::program("router");
        let checked = Checked::new(program).unwrap();
        let bytes = setup::encode(&checked, &Setup::default());
        assert!(Pipeline::decode(&bytes).unwrap().is_none());
        assert_eq!(Pipeline::decode(&bytes[1..]).unwrap_err().code, Code::Internal);
    }

    #[test]
    fn configurations_that_are_not_whole_are_refused() {
        let (right, _) = testing::program("router");
        let without_info = ForwardingPipelineConfig {
            p4info: None,
            ..right.clone()
        };
        let without_program = ForwardingPipelineConfig {
            p4_device_config: Vec::new(),
            ..right.clone()
        };
        let (other, _) = testing::program("firewall");
        let of_two = ForwardingPipelineConfig {
            p4info: other.p4info,
            ..right
        };
        for wrong in [None, Some(&without_info), Some(&without_program), Some(&of_two)] {
            assert_eq!(Pipeline::load(wrong).unwrap_err().code, Code::InvalidArgument);
        }
    }
}
