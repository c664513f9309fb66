//! Programs in files of their own, with entries and state: `hyperswitch p4 export` and `import`.
//!
//! A file has a mark, the length of the program, the program with its entries as [`p4_ir::setup`] has them,
//! and behind it the cells of counters, registers and counting entries that are not zero, as JSON. What only
//! wants the program reads the front. An import is loaded without ports first, and its ports are bound when
//! all cells are there: no packet meets half of them.

use super::running::Running;
use crate::cli::P4ImportArgs;
use crate::output;
use crate::verbs::Session;
use anyhow::{Context, Result, anyhow, ensure};
use management::sealed;
use management::{MAX_CELL_WORDS, Name, P4Array, P4Operations, Reply, Request};
use p4_ir::{Program, setup};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::path::Path;

/// The first bytes.
const MARK: &[u8] = b"P4EX";

/// Most bytes of a file: of 32 MiB of state, each word takes up to 21.
const MAX_FILE: u64 = 128 << 20;

/// Cells in sequence.
#[derive(Serialize, Deserialize)]
struct Cells {
    array: P4Array,
    from: u32,
    words: Vec<u64>,
}

/// The program with its entries, of an exported one or of that form itself; `None`: it is neither.
pub fn program(bytes: &[u8]) -> Option<&[u8]> {
    if setup::is_one(bytes) {
        return Some(bytes);
    }
    split(bytes).map(|(program, _)| program)
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, body) = bytes.strip_prefix(MARK)?.split_first_chunk()?;
    body.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

/// `hyperswitch p4 export`.
///
/// # Errors
/// The instance refuses, or the file cannot be written.
pub fn export(session: &mut Session<'_>, name: &str, file: &Path) -> Result<()> {
    let running = Running::fetch(session, name)?;
    let mut cells = Vec::new();
    for array in arrays(running.program())? {
        let (from, read) = (0, running.cells(session, array)?);
        cells.extend(runs(array, from, &read));
    }
    let program = running.encode();
    let mut bytes = MARK.to_vec();
    bytes.extend(u32::try_from(program.len())?.to_be_bytes());
    bytes.extend(program);
    serde_json::to_writer(&mut bytes, &cells)?;
    std::fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
    if session.json {
        return output::json(&output::Done::TRUE);
    }
    output::print(&format!("{name} is in {}\n", file.display()))
}

/// Arrays that packets change.
fn arrays(program: &Program) -> Result<Vec<P4Array>> {
    let mut arrays = Vec::new();
    for (number, counter) in program.counters.iter().enumerate() {
        // What tables count is read by their entries.
        if counter.table.is_none() {
            arrays.push(P4Array::Counter(u16::try_from(number)?));
        }
    }
    for number in 0..program.registers.len() {
        arrays.push(P4Array::Register(u16::try_from(number)?));
    }
    for (number, table) in program.tables.iter().enumerate() {
        if table.counter.is_some() {
            arrays.push(P4Array::Entries(u16::try_from(number)?));
        }
    }
    Ok(arrays)
}

/// Cells that are not zero, each run as long as a request may be.
fn runs(array: P4Array, first: u32, cells: &[Vec<u64>]) -> Vec<Cells> {
    let mut runs: Vec<Cells> = Vec::new();
    let mut end = first;
    for (at, words) in (first..).zip(cells) {
        if words.iter().all(|word| *word == 0) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if end == at && run.words.len() + words.len() <= MAX_CELL_WORDS => {
                run.words.extend(words);
            }
            _ => runs.push(Cells {
                array,
                from: at,
                words: words.clone(),
            }),
        }
        end = at + 1;
    }
    runs
}

/// `hyperswitch p4 import`.
///
/// # Errors
/// The file makes no sense, there is a program of that name, or the instance refuses.
pub fn import(session: &mut Session<'_>, args: &P4ImportArgs) -> Result<()> {
    let bytes = super::run::limited(&args.file, MAX_FILE)?;
    let named = || args.file.display().to_string();
    let (program, cells) = split(&bytes)
        .context("no exported P4 program")
        .with_context(named)?;
    let cells: Vec<Cells> = serde_json::from_slice(cells).with_context(named)?;
    let name = super::load::name(args.place.name.as_ref(), &args.file)?;
    ensure!(
        Running::find(session, name.as_str())?.is_none(),
        "there is a P4 program {name} already; unload it, or give another name with --name"
    );
    let load = |replaces, ports| Request::P4Load {
        name: name.clone(),
        replaces,
        changes: false,
        writes: Vec::new(),
        ports: Some(ports),
        operations: args.place.operations.map(P4Operations::get),
    };
    session.call_sent(&load(None, Vec::new()), sealed(program)?.as_fd())?;
    let filled = fill(session, &name, cells);
    let ports = super::load::places(&args.place);
    let bound = filled.and_then(|tag| session.show_sent(&load(Some(tag), ports), sealed(program)?.as_fd()));
    if bound.is_err() {
        let name = name.to_string();
        // The first error is told.
        let _ = session.call(&Request::P4Unload { name });
    }
    bound
}

/// Sets cells. Returns the program's tag.
fn fill(session: &mut Session<'_>, name: &Name, cells: Vec<Cells>) -> Result<u64> {
    let running = Running::fetch(session, name.as_str())?;
    for Cells { array, from, words } in cells {
        let request = running.write_request(array, from, words);
        match session.call(&request)? {
            Reply::Done => {}
            _ => return Err(anyhow!("another answer than asked for")),
        }
    }
    Ok(running.tag())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_are_not_zero_are_runs_that_fit_a_request() {
        let cells: Vec<Vec<u64>> = [0, 5, 6, 0, 0, 7].map(|word| vec![word, 0]).to_vec();
        let found = runs(P4Array::Register(1), 0, &cells);
        let found: Vec<_> = found.iter().map(|run| (run.from, run.words.clone())).collect();
        assert_eq!(found, [(1, vec![5, 0, 6, 0]), (5, vec![7, 0])]);
        let many = vec![vec![1; 3]; MAX_CELL_WORDS];
        let found = runs(P4Array::Register(1), 0, &many);
        assert!(
            found
                .iter()
                .all(|run| run.words.len() <= MAX_CELL_WORDS && run.words.len() % 3 == 0)
        );
        assert_eq!(
            found.iter().map(|run| run.words.len()).sum::<usize>(),
            3 * MAX_CELL_WORDS
        );
        let ends = found.iter().map(|run| run.from + run.words.len() as u32 / 3);
        assert!(ends.zip(&found[1..]).all(|(end, next)| end == next.from));
    }

    #[test]
    fn files_that_are_cut_are_none() {
        let mut bytes = MARK.to_vec();
        bytes.extend(3u32.to_be_bytes());
        bytes.extend(b"abc[]");
        assert_eq!(split(&bytes), Some((&b"abc"[..], &b"[]"[..])));
        for length in 0..11 {
            assert_eq!(split(&bytes[..length]), None, "{length}");
        }
    }
}
