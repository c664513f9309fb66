//! Packet tests of P4 programs.
//!
//! A test is a folder: a compiled program (BMv2 JSON), perhaps its P4Info, and scripts in STF, p4c's *simple
//! test framework*: packets that are sent, packets that are expected, entries and state in between.
//! [`script::parse`] reads a script, a [`Session`] carries its commands out on the interpreter, [`run`]
//! compares what left with what was expected, and [`folder`] does all that for a folder of tests and reports.
//!
//! For each port that a script names, the packets that left must be as many as were expected, and match one
//! by one in order. Packets on other ports are not looked at. A `check_counter` is compared where it stands.
//!
//! | module | contents |
//! |---|---|
//! | [`script`] | scripts: text to commands |
//! | `number` | numbers of any width, digits that do not matter |
//! | `names` | resolving names in a script |
//! | `entry` | entries from names and values |
//! | `session` | commands on an engine and its state |
//! | `bake` | commands put into a program before its first packet |
//! | `profile` | members and groups of action profiles, put into a program likewise |
//! | `check`, `comparison` | expectations; comparing a counter with a number |
//! | `limits` | limits of scripts |
//! | `error` | errors of a script, a command, a packet, a folder |
//! | [`folder`] | folders of tests, and the report |

#![forbid(unsafe_code)]

mod bake;
mod check;
mod comparison;
mod entry;
mod error;
pub mod folder;
mod limits;
mod names;
mod number;
mod profile;
pub mod script;
mod session;

pub use bake::{EntryVerb, bake, change, edit_profile, extend, set_rates};
pub use check::{Expectations, run, run_given};

pub use error::{CommandError, Difference, Expected, Failure, NameError, Problem, ScriptError, Unreadable};
pub use number::{Digits, MAX_DIGITS};
pub use profile::ProfileEdit;
pub use session::{Sent, Session};
