//! Folders of tests, and the report on them.
//!
//! A test's folder has a program (`program.json`, or a `.json` named like the folder), perhaps its P4Info
//! (`.p4info.txtpb` instead of `.json`) and scripts (`.stf`). Each script is a test of its own; with P4Info
//! it must give the same result for the program that P4Info was joined to. A test that makes the engine panic
//! fails like others.

use std::fmt::Write;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::check;
use crate::error::{Failure, Unreadable};
use crate::script;

/// A test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Folder, and the script's name if it is not `test.stf`.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// The program's P4Info.
    pub p4info: Option<PathBuf>,
    /// The script.
    pub script: PathBuf,
}

/// A test and its first difference.
pub type Outcome = (Test, Result<(), Failure>);

/// All tests of a folder, or of the folders in it, by name.
///
/// # Errors
///
/// A folder that cannot be read.
pub fn find(folder: &Path) -> Result<Vec<Test>, Unreadable> {
    let mut tests = in_folder(folder)?;
    for inner in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
        tests.extend(in_folder(&inner)?);
    }
    Ok(tests)
}

/// Runs a test.
///
/// # Errors
///
/// The test's first difference, or why it could not be run.
pub fn run(test: &Test) -> Result<(), Failure> {
    let result = catch_unwind(AssertUnwindSafe(|| run_once(test, None)));
    let result = result.unwrap_or(Err(Failure::Panicked));
    let Some(p4info) = test.p4info.as_deref().filter(|_| result.is_ok()) else {
        return result;
    };
    let joined = catch_unwind(AssertUnwindSafe(|| run_once(test, Some(p4info))));
    let joined = joined.unwrap_or(Err(Failure::Panicked));
    joined.map_err(|failure| Failure::WithP4Info(Box::new(failure)))
}

fn run_once(test: &Test, p4info: Option<&Path>) -> Result<(), Failure> {
    let read = |path: &Path| fs::read(path).map_err(|error| unreadable(path, error));
    let json = read(&test.program)?;
    let p4info = p4info.map(read).transpose()?;
    let program = p4_bmv2::load(&json, p4info.as_deref())?;
    let text = String::from_utf8(read(&test.script)?)?;
    let lines = script::parse(&text)?;
    Ok(check::run(program, &lines)?)
}

/// Each failing test with its first difference, and a line that sums up.
pub fn report(title: &str, outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let failed = outcomes
        .iter()
        .filter_map(|(test, result)| Some((test, result.as_ref().err()?)));
    let mut failures = 0;
    for (test, difference) in failed {
        failures += 1;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "FAILED {}\n      {difference}", test.name);
    }
    let passed = outcomes.len() - failures;
    let share = if outcomes.is_empty() {
        0.0
    } else {
        100.0 * passed as f64 / outcomes.len() as f64
    };
    let _ = writeln!(
        text,
        "{title}: {} tests, {passed} passed ({share:.1} %), {failures} failed",
        outcomes.len()
    );
    text
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Unreadable> {
    let error = |error| unreadable(folder, error);
    let entries = fs::read_dir(folder).map_err(error)?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(error)?;
    paths.sort();
    Ok(paths)
}

fn unreadable(path: &Path, error: io::Error) -> Unreadable {
    Unreadable {
        path: path.to_owned(),
        error,
    }
}

fn in_folder(folder: &Path) -> Result<Vec<Test>, Unreadable> {
    let name = folder
        .canonicalize()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let name = name.unwrap_or_default();
    let programs =
        ["program", name.as_str()].map(|stem| (folder.join(format!("{stem}.json")), stem.to_owned()));
    let Some((program, stem)) = programs.into_iter().find(|(path, _)| path.is_file()) else {
        return Ok(Vec::new());
    };
    let p4info = Some(folder.join(format!("{stem}.p4info.txtpb"))).filter(|path| path.is_file());
    let scripts = entries(folder)?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "stf"));
    let test = |script: PathBuf| {
        let stem = script.file_stem().unwrap_or_default().to_string_lossy();
        let name = if stem == "test" {
            name.clone()
        } else {
            format!("{name}/{stem}")
        };
        Test {
            name,
            program: program.clone(),
            p4info: p4info.clone(),
            script: script.clone(),
        }
    };
    Ok(scripts.map(test).collect())
}
