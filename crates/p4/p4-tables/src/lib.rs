//! Match-action tables of P4 programs.
//!
//! [`Tables`] holds a program's tables, action profiles and value sets; [`Shared`] lets workers look up while
//! controllers change them in batches. A table's key has a [`KeyLayout`]; an entry matches with a [`Pattern`]
//! and leads to a [`Target`]: an action with arguments, or a member or group of an action profile. Look-ups
//! give a [`Handle`], by which the action, direct counters, meters and idle times of the entry are found:
//!
//! ```
//! use p4_tables::{
//!     Change, DEFAULT, Entry, KeyField, KeyLayout, Match, MatchKind, Shared, TableSpec, Tables, Target,
//! };
//!
//! let layout = KeyLayout::new(&[KeyField { kind: MatchKind::Lpm, width: 32 }])?;
//! let pattern = layout.pattern(&[Match::Lpm { value: &[0x0a00_0000], length: 8 }])?;
//! let mut tables = Tables::new();
//! let routes = tables.add_table(TableSpec::new(layout, 1024, 1))?;
//! let shared = Shared::new(tables);
//!
//! let target = Target::Action { action: 7, arguments: [3].as_slice().into() };
//! let entry = Entry { pattern, priority: 0, target, idle_timeout_ns: 0 };
//! shared.apply(&[Change::Insert { table: routes, entry }], 0)?;
//!
//! let tables = shared.read(); // once per burst
//! let table = tables.table(routes)?;
//! let mut key = [0; 1];
//! table.layout().places()[0].put(&mut key, 0, 0x0a01_0203);
//! let handle = table.lookup(&key).unwrap_or(DEFAULT);
//! assert_eq!(tables.action(table, handle, || 0), Some((7, &[3][..])));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `tables`, `change` | all tables of a program, and their changes in batches |
//! | `table`, `rows` | one table, and the contents of its entries |
//! | `blocks` | arrays that copies of a table share where they do not differ |
//! | `key` | keys, and the patterns that entries match them with |
//! | `map`, `hash` | exact keys: a hash table, keyed |
//! | `lpm`, `tuples`, `ranges` | prefixes; masks with priorities; ranges with priorities |
//! | `profile`, `value_set` | action profiles and selectors; value sets |
//! | `ports` | states of ports that groups watch |
//! | `meter` | meters of RFC 2698 |
//! | `error` | why a change was refused |
//!
//! The cost of a look-up does not depend on the entries but on limits of the table: two buckets for exact
//! keys, one node per six bits of a prefix, one probe per mask for ternary and optional keys, one comparison
//! per entry for ranges. Hashes are keyed with a secret. Memory is counted, see [`Tables::memory`]. Nothing
//! here does I/O or reads clocks.

#![forbid(unsafe_code)]

mod blocks;
mod change;
mod error;
mod hash;
mod key;
mod lpm;
mod map;
mod meter;
mod ports;
mod profile;
mod ranges;
mod rows;
mod table;
mod tables;
mod tuples;
mod value_set;

pub use change::{Change, GroupMember, ProfileChange};
pub use error::{BatchError, Error};
pub use key::{FieldPlace, KeyField, KeyLayout, MAX_KEY_WORDS, Match, MatchKind, Pattern, Words};
pub use meter::{Colour, Meter, MeterRates};
pub use ports::{PortStates, WATCHED_PORTS};
pub use profile::{MAX_WATCHING, Profile, ProfileSpec};
pub use ranges::MAX_RANGE_ENTRIES;
pub use rows::{Found, Target};
pub use table::{Count, DEFAULT, DEFAULT_MASK_LIMIT, Entry, Handle, Table, TableSpec};
pub use tables::{Author, MAX_BATCH, Shared, Tables};
pub use value_set::{MAX_VALUE_SET, ValueSet};
