//! A program with what it is given before its first packet, in the form in which it travels between
//! processes.
//!
//! Entries and defaults of tables are in the program itself ([`crate::Table::entries`]), so that the checker
//! proves them together; multicast groups, clone sessions and rates of meters are no part of a program and
//! stand beside it. Behind them may stand batches of changes of entries ([`crate::changes`]). Whoever reads
//! the form trusts none of it: the program with its changes is checked again, the rest is bounded.

use crate::changes;
use crate::ids::MeterId;
use crate::limits;
use crate::program::Checked;
use crate::serial::{self, DecodeError};
pub use crate::table::Rate;
use serde::{Deserialize, Serialize};

/// The first bytes.
const MARK: [u8; 4] = *b"P4ST";

/// Most groups, and most sessions.
const MOST: usize = 1024;
/// Most replicas of one of them.
const MOST_REPLICAS: usize = 512;
/// Most bytes of groups and sessions.
const MOST_BYTES: usize = 1 << 20;

/// Most bytes of the form.
pub const SERIALISED: usize = limits::SERIALISED + MOST_BYTES + 8;

/// A copy that a group or a session makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// The port that it leaves by.
    pub port: u32,
    /// Number of the replica.
    pub rid: u16,
}

/// A multicast group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The number, not 0.
    pub number: u64,
    /// The copies.
    pub copies: Vec<Copy>,
}

/// A clone session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The number.
    pub number: u64,
    /// The copies.
    pub copies: Vec<Copy>,
    /// A multicast group whose copies are made too.
    pub group: Option<u64>,
    /// Bytes that a clone is cut to.
    pub max_length: Option<u32>,
}

/// Rates of one cell of a meter, or of all cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterRates {
    /// The meter, which is no table's.
    pub meter: MeterId,
    /// `None`: all cells.
    pub cell: Option<u32>,
    /// Up to which packets are green.
    pub committed: Rate,
    /// Up to which packets are yellow.
    pub peak: Rate,
}

/// Versions that take over registers, counters and meters from each other: those with the same number. A
/// version with number 0 takes over those of any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage(pub u64);

impl Lineage {
    /// Whether a version of this lineage takes over the state of one of a `former` lineage.
    #[must_use]
    pub fn succeeds(self, former: Lineage) -> bool {
        self.0 == 0 || self == former
    }
}

/// What a program is given beside its entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Multicast groups.
    pub groups: Vec<Group>,
    /// Clone sessions.
    pub sessions: Vec<Session>,
    /// Rates of meters. Of two for a cell the later one holds.
    pub meters: Vec<MeterRates>,
    /// The versions whose state this one takes over.
    pub lineage: Lineage,
    /// Whatever a controller wants to find again beside the program; nothing here reads it.
    #[serde(with = "serde_bytes")]
    pub notes: Vec<u8>,
}

impl Setup {
    /// Whether it is within its limits, but for that of all bytes.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let groups = self.groups.iter().map(|group| group.copies.len());
        let sessions = self.sessions.iter().map(|session| session.copies.len());
        self.groups.len() <= MOST
            && self.sessions.len() <= MOST
            && groups.chain(sessions).all(|copies| copies <= MOST_REPLICAS)
    }
}

/// Whether bytes begin as the form does.
#[must_use]
pub fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(&MARK)
}

/// Serialises a program and what it is given.
#[must_use]
pub fn encode(program: &Checked, setup: &Setup) -> Vec<u8> {
    // Serialising these types into a vector cannot fail, and no length reaches 4 GiB.
    let setup = postcard::to_allocvec(setup).expect("a setup is serialised into memory");
    let mut bytes = MARK.to_vec();
    bytes.extend((setup.len() as u32).to_be_bytes());
    bytes.extend(setup);
    bytes.extend(serial::encode(program));
    bytes
}

/// Reads a program and what it is given, makes the changes that stand behind them, and checks the result.
///
/// # Errors
///
/// As for [`serial::decode`].
pub fn decode(bytes: &[u8]) -> Result<(Checked, Setup), DecodeError> {
    let body = bytes.strip_prefix(&MARK).ok_or(DecodeError::NoProgram)?;
    let (len, body) = body.split_first_chunk().ok_or(DecodeError::NoProgram)?;
    let len = u32::from_be_bytes(*len) as usize;
    if len > MOST_BYTES {
        return Err(DecodeError::TooLong(len));
    }
    let (setup, program) = body.split_at_checked(len).ok_or(DecodeError::Damaged)?;
    let (setup, rest) = postcard::take_from_bytes::<Setup>(setup).map_err(|_| DecodeError::Damaged)?;
    if !rest.is_empty() || !setup.is_bounded() {
        return Err(DecodeError::Damaged);
    }
    let (mut program, batches) = serial::take(program)?;
    changes::make_all(&mut program, batches)?;
    Ok((Checked::new(program)?, setup))
}
