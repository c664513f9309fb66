//! Cells of counters and registers that a batch sets, behind its version.

use crate::arbitration::Scope;
use crate::device::{Device, Ended, Reading, no_pipeline, not_committed};
use crate::failure::{Done, Failure};
use crate::proto::Update;
use crate::read::Reader;
use crate::switches::Switches;
use crate::write::CellWrite;
use control_protocol::p4::{MAX_CELL_WORDS, MAX_CELL_WRITES as MAX_CELL_WRITES_AT_ONCE, P4CellWrite};
use tonic::Code;

/// Most cells of counters and registers that a batch may set.
const MAX_CELL_WRITES: u64 = 4096;

/// Updates that were made in the pipeline, with the cells that are to be set.
pub(crate) type Applied = Vec<Done<Option<CellWrite>>>;

impl Device {
    /// Sets the cells of a batch, each for itself.
    pub(crate) fn set_each(&self, applied: Applied, switches: &mut dyn Switches) -> Ended {
        let mut left = MAX_CELL_WRITES;
        let ended = applied.into_iter().map(|one| match one? {
            Some(cells) => self.set_cells(&cells, &mut left, switches),
            None => Ok(()),
        });
        ended.collect()
    }

    /// Sets the cells of a batch that packets see at once.
    pub(crate) fn set_at_once(
        &mut self,
        updates: &[Update],
        scope: &Scope,
        switches: &mut dyn Switches,
    ) -> Ended {
        let is_saved = self.saved.is_some();
        let own = self.held.as_mut().and_then(|held| held.pipeline.as_mut());
        let Some(pipeline) = self.saved.as_mut().or(own) else {
            return vec![Err(no_pipeline()); updates.len()];
        };
        let all = updates.iter().map(|update| pipeline.apply(update, scope));
        let mut applied: Applied = all.collect();
        refuse_cells(&mut applied, is_saved);
        if applied.iter().all(Result::is_ok) {
            let set = self.put_at_once(&applied, switches);
            if let (Err(failure), Some(first)) = (set, applied.first_mut()) {
                *first = Err(failure);
            }
        }
        if applied.iter().any(Result::is_err) {
            abort(&mut applied);
        }
        without_cells(applied)
    }

    fn put_at_once(&self, applied: &Applied, switches: &mut dyn Switches) -> Done<()> {
        let held = self.held.as_ref().ok_or_else(no_pipeline)?;
        switches.set_cells((&self.name, held.tag), self.writes_of(applied)?)
    }

    /// Cells of a batch that packets see at once.
    ///
    /// # Errors
    /// More cells than a request may have.
    pub(crate) fn writes_of(&self, applied: &Applied) -> Done<Vec<P4CellWrite>> {
        let held = self.held.as_ref().ok_or_else(no_pipeline)?;
        let pipeline = held.pipeline.as_ref().ok_or_else(no_pipeline)?;
        let mut writes = Vec::new();
        for write in applied.iter().flatten().flatten() {
            let of_cell = |cell| P4CellWrite {
                array: write.array,
                cell,
                words: write.words.clone(),
            };
            writes.extend(pipeline.cells_of(write)?.map(of_cell));
        }
        let words: usize = writes.iter().map(|write| write.words.len()).sum();
        if writes.len() > MAX_CELL_WRITES_AT_ONCE || words > MAX_CELL_WORDS {
            return Err(Failure::exhausted(format_args!(
                "{MAX_CELL_WRITES_AT_ONCE} cells with {MAX_CELL_WORDS} words are the most that packets can see at once"
            )));
        }
        Ok(writes)
    }

    /// Sets the cells of a batch that is made as a whole. If one cannot be set, those before it get their
    /// values back, and the former version returns.
    pub(crate) fn set_all(
        &mut self,
        mut applied: Applied,
        former: Option<Vec<u8>>,
        switches: &mut dyn Switches,
    ) -> Ended {
        let mut undo = Vec::new();
        let failed = applied.iter().enumerate().find_map(|(at, one)| {
            let Ok(Some(write)) = one else { return None };
            let done = self.set_with_undo(write, &mut undo, switches);
            Some((at, done.err()?))
        });
        if let Some((at, failure)) = failed {
            applied[at] = Err(failure);
            abort(&mut applied);
            self.take_back(undo, former, switches);
        }
        without_cells(applied)
    }

    /// Sets cells, and adds to `undo` what gives them their values back.
    fn set_with_undo(
        &self,
        write: &CellWrite,
        undo: &mut Vec<CellWrite>,
        switches: &mut dyn Switches,
    ) -> Done<()> {
        let held = self.held.as_ref().ok_or_else(no_pipeline)?;
        let pipeline = held.pipeline.as_ref().ok_or_else(no_pipeline)?;
        let mut reader = Reading {
            switches: &mut *switches,
            version: Some((self.name.as_str(), held.tag)),
            found: &mut |_| Ok(()),
        };
        let cells = pipeline.cells_of(write)?;
        let values = reader.cells(write.array, cells.clone())?;
        for (cell, words) in cells.zip(values) {
            undo.push(CellWrite {
                cells: cell..cell + 1,
                words,
                ..write.clone()
            });
            switches.set_cell((&self.name, held.tag), write.array, cell, write.words.clone())?;
        }
        Ok(())
    }

    /// Undoes what a batch has set, as far as the instance still lets it.
    fn take_back(&mut self, undo: Vec<CellWrite>, former: Option<Vec<u8>>, switches: &mut dyn Switches) {
        let Some(held) = &self.held else { return };
        for write in undo.into_iter().rev() {
            let version = (self.name.as_str(), held.tag);
            let undone = switches.set_cell(version, write.array, write.cells.start, write.words);
            if let Err(failure) = undone {
                log::warn!("{}: a cell keeps its value: {}", self.name, failure.text);
            }
        }
        let Some(former) = former else { return };
        let returned = switches.put(&self.name, &former, Some(held.tag), &[]);
        let known = returned.and_then(|()| switches.tag(&self.name));
        // The version that is in force now is read again.
        self.held = None;
        let known = known.and_then(|tag| self.synchronise(tag, switches));
        if let Err(failure) = known {
            log::warn!(
                "{}: the former version does not return: {}",
                self.name,
                failure.text
            );
        }
    }

    fn set_cells(&self, write: &CellWrite, left: &mut u64, switches: &mut dyn Switches) -> Done<()> {
        let held = self.held.as_ref().filter(|_| self.saved.is_none());
        let held = held.ok_or_else(not_committed)?;
        let count = u64::from(write.cells.end - write.cells.start);
        *left = left.checked_sub(count).ok_or_else(too_many_cells)?;
        let pipeline = held.pipeline.as_ref().ok_or_else(no_pipeline)?;
        let mut cells = pipeline.cells_of(write)?;
        cells.try_for_each(|cell| {
            switches.set_cell((&self.name, held.tag), write.array, cell, write.words.clone())
        })
    }
}

/// How updates ended whose cells were not set.
pub(crate) fn without_cells(applied: Applied) -> Ended {
    applied.into_iter().map(|one| one.map(drop)).collect()
}

/// Fails updates of a batch that is made as a whole, as another one has failed.
pub(crate) fn abort(applied: &mut [Done<Option<CellWrite>>]) {
    let aborted = || Failure::new(Code::Aborted, "another update of the batch failed");
    let made = applied.iter_mut().filter(|one| one.is_ok());
    made.for_each(|one| *one = Err(aborted()));
}

/// Fails updates of cells of a batch that is made as a whole, if they are too many or cannot be made at all.
pub(crate) fn refuse_cells(applied: &mut [Done<Option<CellWrite>>], is_saved: bool) {
    let mut left = MAX_CELL_WRITES;
    for one in applied {
        let Ok(Some(write)) = one else { continue };
        let count = u64::from(write.cells.end - write.cells.start);
        match left.checked_sub(count) {
            _ if is_saved => *one = Err(not_committed()),
            Some(rest) => left = rest,
            None => *one = Err(too_many_cells()),
        }
    }
}

fn too_many_cells() -> Failure {
    Failure::exhausted(format_args!("a batch sets {MAX_CELL_WRITES} cells at most"))
}
