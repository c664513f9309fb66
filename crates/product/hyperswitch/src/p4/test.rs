//! `hyperswitch p4 test`: packet tests on a program as it is loaded, or on that of a file.
//!
//! A test runs on a copy of the program in this process: its entries, groups, sessions and rates are those
//! that the program has, its counters and registers are zero. So packets of tests never meet those of ports,
//! and what a script adds is gone when it ends. Each script begins with a copy of its own.

use super::running::Running;
use super::{entries, load_given, run::limited};
use crate::cli::P4TestArgs;
use crate::output;
use crate::verbs::Session;
use anyhow::{Context, Result, ensure};
use p4_ir::Checked;
use p4_ir::setup::Setup;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;

/// A script, and how it ended.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Test")]
pub struct TestRow {
    script: String,
    passed: bool,
    /// The first difference; absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<String>,
}

/// Runs all scripts, and says which passed.
///
/// # Errors
/// A script failed or cannot be read, or there is no such program.
pub fn run(session: &mut Session<'_>, args: &P4TestArgs) -> Result<()> {
    let file = Path::new(&args.program);
    let (program, setup) = match file.is_file() {
        true => load_given(file, None)?,
        false => Running::fetch(session, &args.program)?.into_parts(),
    };
    let rows = args.scripts.iter().map(|script| test(&program, &setup, script));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    if session.json {
        output::json(&rows)?;
    } else {
        let line = |row: &TestRow| match &row.difference {
            None => format!("passed  {}\n", row.script),
            Some(difference) => format!("FAILED  {}: {difference}\n", row.script),
        };
        output::print(&rows.iter().map(line).collect::<String>())?;
    }
    let failed = rows.iter().filter(|row| !row.passed).count();
    ensure!(failed == 0, "{failed} of {} scripts failed", rows.len());
    Ok(())
}

fn test(program: &Checked, setup: &Setup, script: &Path) -> Result<TestRow> {
    let named = || script.display().to_string();
    let text = String::from_utf8(limited(script, entries::MAX_FILE)?).with_context(named)?;
    let lines = p4_stf::script::parse(&text).with_context(named)?;
    let ended = p4_stf::run_given(program.clone(), setup, &lines);
    Ok(TestRow {
        script: named(),
        passed: ended.is_ok(),
        difference: ended.err().map(|difference| difference.to_string()),
    })
}
