//! A controller's requests about P4 switches.
//!
//! Drafts are bytes, of a version or of changes of the present one's entries. A commit is made ready by a
//! thread of its own, one at a time, since the checker and the tables of a large program take tens of
//! milliseconds, in which the channel thread has others to serve. Commits, deletions, and requests about
//! cells are served in their order. Commits, deletions and links are answered when no forwarding thread can
//! have what was before any more. What entries of a version have counted is added to the next one's then, and
//! it is freed here: a forwarding thread frees no tables.

use super::version::{P4Refused, Version, within};
use super::{P4Key, P4Switch, cells};
use crate::refusal::Refusal;
use crate::state::Datapath;
use control_protocol::data_plane::Answer;
use control_protocol::p4::{
    MAX_CELL_WORDS, MAX_CELL_WRITES, MAX_OPERATIONS, MAX_P4_DRAFTS, MAX_P4_SWITCHES, MAX_PIECE, P4Answer,
    P4Array, P4CellWrite, P4Info, P4Request, USUAL_OPERATIONS,
};
use flow::{ControllerId, P4Id};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;
use std::sync::Arc;
use std::thread::{JoinHandle, available_parallelism};

/// Bytes of a version.
const MAX_BYTES: usize = p4_ir::setup::SERIALISED;
/// Requests that wait for their turn, or for a grace period; with more, nothing is read from the controller.
const MAX_WAITING: usize = 64;
/// Bytes of the stack of a thread that makes a version ready.
const STACK: usize = 8 << 20;

/// A controller's drafts, and the work on its P4 switches.
#[derive(Default)]
pub(crate) struct P4Work {
    drafts: BTreeMap<P4Id, Draft>,
    waiting: VecDeque<(u32, Change)>,
    making: Option<Making>,
    writing: Option<Writing>,
    /// Changes that were published, of which forwarding threads may not know.
    published: VecDeque<Published>,
    /// Versions that forwarding threads may still have.
    retired: Vec<Arc<P4Switch>>,
}

/// A version that is being stated.
struct Draft {
    bytes: Vec<u8>,
    /// Most operations of a pass.
    operations: u32,
    /// Cells that get values when the version comes into force.
    writes: Vec<P4CellWrite>,
}

enum Change {
    Commit {
        switch: P4Id,
        /// The tag of the version that the draft changes; `None`: the draft is a whole one.
        from: Option<u64>,
        tag: u64,
        draft: Draft,
    },
    Delete(P4Id),
    Cells(CellRequest),
    /// Cells that are set at once.
    AllCells {
        switch: P4Id,
        tag: u64,
        writes: Vec<P4CellWrite>,
    },
}

/// Cells that are set when no packet runs through the version that is closed for it.
struct Writing {
    /// Of the request; `None` if its controller is gone.
    serial: Option<u32>,
    period: u64,
    switch: Arc<P4Switch>,
    writes: Vec<P4CellWrite>,
    /// The version that comes into force with these cells.
    next: Option<(P4Key, Arc<P4Switch>)>,
}

/// A request about cells of a version's arrays.
struct CellRequest {
    switch: P4Id,
    tag: u64,
    array: P4Array,
    cell: u32,
    /// What the cell is set to; `None`: it is read.
    words: Option<Vec<u64>>,
}

/// A change that is answered when a grace period is over.
struct Published {
    /// Of the request; `None` if its controller is gone.
    serial: Option<u32>,
    period: u64,
    /// The former version and the new one.
    versions: Option<[Arc<P4Switch>; 2]>,
}

/// When what a former version has counted is added to the next one's counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// As soon as no packet runs through it.
    Later,
    /// Has been done.
    Already,
}

/// A version that a thread makes ready.
struct Making {
    /// Of the request; `None` if its controller is gone.
    serial: Option<u32>,
    switch: P4Id,
    tag: u64,
    /// Cells that get values then.
    writes: Vec<P4CellWrite>,
    thread: JoinHandle<Result<Version, P4Refused>>,
}

/// An answer to the request with that serial number.
type P4Result = (u32, Result<Answer, Refusal>);

impl P4Work {
    /// Whether there is something to do now and then.
    pub fn is_busy(&self) -> bool {
        self.making.is_some()
            || self.writing.is_some()
            || !(self.waiting.is_empty() && self.published.is_empty() && self.retired.is_empty())
    }

    /// Whether no further request can wait.
    pub fn is_full(&self) -> bool {
        self.waiting.len() + self.published.len() >= MAX_WAITING
    }

    /// The controller's process has gone. What was published stays.
    pub fn lose(&mut self) {
        self.drafts.clear();
        self.waiting.clear();
        self.published.iter_mut().for_each(|change| change.serial = None);
        if let Some(making) = &mut self.making {
            making.serial = None;
        }
        if let Some(writing) = &mut self.writing {
            writing.serial = None;
        }
    }

    /// Serves a request; `None` if it is answered later.
    pub fn serve(
        &mut self,
        owner: ControllerId,
        datapath: &Datapath,
        serial: u32,
        request: P4Request,
    ) -> Option<Result<Answer, Refusal>> {
        let done = match request {
            P4Request::Begin { switch } => self.begin(switch),
            P4Request::Add { switch, bytes } => self.add(switch, &bytes),
            P4Request::Allow { switch, operations } => self.allow(switch, operations),
            P4Request::Set { switch, writes } => self.set(switch, writes),
            P4Request::Commit { switch, tag } => return self.commit(serial, switch, None, tag),
            P4Request::CommitChanges { switch, from, tag } => {
                return self.commit(serial, switch, Some(from), tag);
            }
            P4Request::Delete { switch } => {
                self.waiting.push_back((serial, Change::Delete(switch)));
                return None;
            }
            // Served where descriptors are.
            P4Request::Connect { switch, .. } => Err(P4Refused::NoSwitch(switch)),
            P4Request::Link { links } => match datapath.change_p4(|table| table.link(owner, &links)) {
                Ok(()) => {
                    self.answer_in_a_period(serial, datapath);
                    return None;
                }
                Err(refused) => Err(refused),
            },
            P4Request::List => return Some(Ok(Answer::P4(list(owner, datapath)))),
            P4Request::Read {
                switch,
                tag,
                array,
                from: cell,
            } => return self.ask_cells(serial, (switch, tag), (array, cell), None),
            P4Request::Write {
                switch,
                tag,
                array,
                cell,
                words,
            } => return self.ask_cells(serial, (switch, tag), (array, cell), Some(words)),
            P4Request::WriteAll { switch, tag, writes } => {
                return self.ask_to_set_all(serial, (switch, tag), writes);
            }
        };
        Some(done.map(|()| Answer::Done).map_err(Refusal::from))
    }

    /// Has a request answered when all forwarding threads know what was changed before.
    pub fn answer_in_a_period(&mut self, serial: u32, datapath: &Datapath) {
        self.published.push_back(Published {
            serial: Some(serial),
            period: datapath.periods.begin(),
            versions: None,
        });
    }

    /// Queues a commit.
    fn commit(
        &mut self,
        serial: u32,
        switch: P4Id,
        from: Option<u64>,
        tag: u64,
    ) -> Option<Result<Answer, Refusal>> {
        let Some(draft) = self.drafts.remove(&switch) else {
            return Some(Err(P4Refused::NoDraft(switch).into()));
        };
        let change = Change::Commit {
            switch,
            from,
            tag,
            draft,
        };
        self.waiting.push_back((serial, change));
        None
    }

    /// Queues a request about cells, so that it is served behind commits that were made before.
    fn ask_cells(
        &mut self,
        serial: u32,
        (switch, tag): (P4Id, u64),
        (array, cell): (P4Array, u32),
        words: Option<Vec<u64>>,
    ) -> Option<Result<Answer, Refusal>> {
        let request = CellRequest {
            switch,
            tag,
            array,
            cell,
            words,
        };
        self.waiting.push_back((serial, Change::Cells(request)));
        None
    }

    /// Likewise a request to set cells at once.
    fn ask_to_set_all(
        &mut self,
        serial: u32,
        (switch, tag): (P4Id, u64),
        writes: Vec<P4CellWrite>,
    ) -> Option<Result<Answer, Refusal>> {
        if let Err(refused) = check_writes(&writes) {
            return Some(Err(refused.into()));
        }
        let change = Change::AllCells { switch, tag, writes };
        self.waiting.push_back((serial, change));
        None
    }

    fn begin(&mut self, switch: P4Id) -> Result<(), P4Refused> {
        if self.drafts.len() >= MAX_P4_DRAFTS && !self.drafts.contains_key(&switch) {
            return Err(P4Refused::Drafts(MAX_P4_DRAFTS));
        }
        let draft = Draft {
            bytes: Vec::new(),
            operations: USUAL_OPERATIONS,
            writes: Vec::new(),
        };
        self.drafts.insert(switch, draft);
        Ok(())
    }

    fn allow(&mut self, switch: P4Id, operations: u32) -> Result<(), P4Refused> {
        let draft = self.drafts.get_mut(&switch).ok_or(P4Refused::NoDraft(switch))?;
        let (value, limit) = (operations.into(), MAX_OPERATIONS.into());
        within("operations of one pass that are allowed", value, limit)?;
        draft.operations = operations;
        Ok(())
    }

    fn set(&mut self, switch: P4Id, writes: Vec<P4CellWrite>) -> Result<(), P4Refused> {
        check_writes(&writes)?;
        let draft = self.drafts.get_mut(&switch).ok_or(P4Refused::NoDraft(switch))?;
        draft.writes = writes;
        Ok(())
    }

    fn add(&mut self, switch: P4Id, bytes: &[u8]) -> Result<(), P4Refused> {
        let mut draft = self.drafts.remove(&switch).ok_or(P4Refused::NoDraft(switch))?;
        let len = draft.bytes.len() + bytes.len();
        if bytes.len() > MAX_PIECE || len > MAX_BYTES {
            return Err(P4Refused::Bytes(len, MAX_BYTES));
        }
        draft.bytes.extend_from_slice(bytes);
        self.drafts.insert(switch, draft);
        Ok(())
    }

    /// Goes on with what is under way, for a process with so many workers. Returns the answers to requests
    /// that are done.
    pub fn work(&mut self, owner: ControllerId, datapath: &Arc<Datapath>, workers: usize) -> Vec<P4Result> {
        let mut done = Vec::new();
        // What only this list still has is freed here.
        self.retired.retain(|switch| Arc::strong_count(switch) > 1);
        if let Some(making) = self.making.take_if(|making| making.thread.is_finished()) {
            done.extend(self.finish(owner, datapath, making));
        }
        self.end_periods(datapath, &mut done);
        done.extend(self.end_writing(datapath));
        while self.making.is_none() && self.writing.is_none() {
            // Cells of a version are final, and rows of removed entries free, when no packet meets the former
            // one.
            let is_early = |(_, change): &mut (u32, Change)| {
                let is_whole = matches!(change, Change::Commit { from: None, .. } | Change::Delete(_));
                self.published.is_empty() || is_whole
            };
            let Some((serial, change)) = self.waiting.pop_front_if(is_early) else {
                break;
            };
            done.extend(self.begin_change((owner, serial), change, datapath, workers));
        }
        self.end_periods(datapath, &mut done);
        done.extend(self.end_writing(datapath));
        done
    }

    /// Closes a version, so that cells can be set when no packet runs through it.
    fn close(
        &mut self,
        (key, tag): (P4Key, u64),
        serial: u32,
        writes: Vec<P4CellWrite>,
        datapath: &Datapath,
    ) -> Result<(), P4Refused> {
        let switch = present(datapath, key).ok_or(P4Refused::NoSwitch(key.1))?;
        if switch.tag != tag {
            return Err(P4Refused::OtherVersion);
        }
        switch.version.set_closed(true);
        self.writing = Some(Writing {
            serial: Some(serial),
            period: datapath.periods.begin(),
            switch,
            writes,
            next: None,
        });
        Ok(())
    }

    /// Sets cells if no packet runs any more, and lets packets run again: through the version that is closed,
    /// or the one that takes its place now.
    fn end_writing(&mut self, datapath: &Datapath) -> Option<P4Result> {
        let is_over = |writing: &mut Writing| datapath.periods.is_over(writing.period);
        let writing = self.writing.take_if(is_over)?;
        let former = &writing.switch.version;
        let written = match &writing.next {
            Some((_, next)) => {
                // Counts of entries are set behind what the former version has counted.
                if !Arc::ptr_eq(&former.engine, &next.version.engine) {
                    next.version.add_counts(former);
                }
                cells::write_all(&next.version, &writing.writes)
            }
            None => cells::write_all(former, &writing.writes),
        };
        match (written, writing.next) {
            (Ok(()), Some((key, next))) => {
                self.publish(writing.serial, key, Some(next), datapath, Counted::Already);
                None
            }
            (written, _) => {
                former.set_closed(false);
                let written = written.map(|()| Answer::Done).map_err(Refusal::from);
                Some((writing.serial?, written))
            }
        }
    }

    /// Begins a change; returns the answer if there is one already.
    fn begin_change(
        &mut self,
        (owner, serial): (ControllerId, u32),
        change: Change,
        datapath: &Arc<Datapath>,
        workers: usize,
    ) -> Option<P4Result> {
        match change {
            Change::Cells(request) => Some((serial, serve_cells(owner, datapath, &request))),
            Change::AllCells { switch, tag, writes } => {
                let closed = self.close(((owner, switch), tag), serial, writes, datapath);
                closed.err().map(|refused| (serial, Err(refused.into())))
            }
            Change::Delete(switch) => {
                self.publish(Some(serial), (owner, switch), None, datapath, Counted::Later);
                None
            }
            Change::Commit {
                switch,
                from,
                tag,
                mut draft,
            } => {
                let writes = std::mem::take(&mut draft.writes);
                match self.make(owner, datapath, (switch, from, draft), workers) {
                    Ok(thread) => {
                        self.making = Some(Making {
                            serial: Some(serial),
                            switch,
                            tag,
                            writes,
                            thread,
                        });
                        None
                    }
                    Err(refusal) => Some((serial, Err(refusal))),
                }
            }
        }
    }

    /// Ends changes that all forwarding threads know.
    fn end_periods(&mut self, datapath: &Datapath, done: &mut Vec<P4Result>) {
        let is_over = |change: &mut Published| datapath.periods.is_over(change.period);
        while let Some(change) = self.published.pop_front_if(is_over) {
            if let Some([former, new]) = &change.versions {
                new.version.add_counts(&former.version);
            }
            done.extend(change.serial.map(|serial| (serial, Ok(Answer::Done))));
        }
    }

    /// Has a thread make a version ready.
    fn make(
        &self,
        owner: ControllerId,
        datapath: &Arc<Datapath>,
        (switch, from, draft): (P4Id, Option<u64>, Draft),
        workers: usize,
    ) -> Result<JoinHandle<Result<Version, P4Refused>>, Refusal> {
        let ports = datapath.ports();
        let own = || ports.p4().into_iter().flat_map(|table| table.of(owner));
        if own().count() >= MAX_P4_SWITCHES && !own().any(|(id, _)| id == switch) {
            return Err(P4Refused::Switches(MAX_P4_SWITCHES).into());
        }
        let (datapath, former) = (datapath.clone(), present(datapath, (owner, switch)));
        let thread = std::thread::Builder::new().name("p4".into()).stack_size(STACK);
        let thread = thread.spawn(move || {
            // In some modes the threads are not workers.
            let threads = workers.max(available_parallelism().map_or(1, NonZero::get));
            let present = former.as_ref().map(|former| &former.version);
            let made = match (from, &former) {
                (None, _) => Version::new(&draft.bytes, draft.operations, threads, present),
                (Some(from), Some(former)) if former.tag == from => {
                    former.version.changed(&draft.bytes, draft.operations)
                }
                (Some(_), _) => Err(P4Refused::OtherVersion),
            };
            datapath.notices.again();
            made
        });
        thread.map_err(Refusal::Io)
    }

    fn finish(&mut self, owner: ControllerId, datapath: &Datapath, making: Making) -> Option<P4Result> {
        let Making {
            serial,
            switch,
            tag,
            writes,
            thread,
        } = making;
        let made = thread.join();
        let serial = serial?;
        let made = made.unwrap_or_else(|_| Err(P4Refused::Failed("its maker panicked".into())));
        match made {
            Ok(version) => {
                let key = (owner, switch);
                let former = present(datapath, key);
                let counts = former.as_ref().map(|former| former.counts.clone());
                let counts = counts.unwrap_or_default();
                let made = Arc::new(P4Switch { version, tag, counts });
                match former.filter(|_| !writes.is_empty()) {
                    Some(former) => self.close_for((key, made), former, serial, writes, datapath),
                    None => {
                        if let Err(refused) = cells::write_all(&made.version, &writes) {
                            return Some((serial, Err(refused.into())));
                        }
                        self.publish(Some(serial), key, Some(made), datapath, Counted::Later);
                    }
                }
                None
            }
            Err(refused) => Some((serial, Err(refused.into()))),
        }
    }

    /// Closes a version, so that the next one takes its place with cells set.
    fn close_for(
        &mut self,
        next: (P4Key, Arc<P4Switch>),
        former: Arc<P4Switch>,
        serial: u32,
        writes: Vec<P4CellWrite>,
        datapath: &Datapath,
    ) {
        former.version.set_closed(true);
        self.writing = Some(Writing {
            serial: Some(serial),
            period: datapath.periods.begin(),
            switch: former,
            writes,
            next: Some(next),
        });
    }

    /// Puts a P4 switch in the place of the former one, and has that answered when no thread has it any
    /// more.
    fn publish(
        &mut self,
        serial: Option<u32>,
        key: P4Key,
        switch: Option<Arc<P4Switch>>,
        datapath: &Datapath,
        counted: Counted,
    ) {
        let former = present(datapath, key);
        self.retired.extend(former.clone());
        // Versions with one engine have one count for each entry.
        let is_apart =
            |[former, new]: &[Arc<P4Switch>; 2]| !Arc::ptr_eq(&former.version.engine, &new.version.engine);
        let versions = former.zip(switch.clone()).map(<[_; 2]>::from);
        let versions = versions.filter(|both| counted == Counted::Later && is_apart(both));
        datapath.change_p4(|table| match switch {
            Some(switch) => drop(table.switches.insert(key, switch)),
            None => {
                table.switches.remove(&key);
                table.part(key);
            }
        });
        self.published.push_back(Published {
            serial,
            period: datapath.periods.begin(),
            versions,
        });
    }
}

/// Whether so many cells can be set at once.
fn check_writes(writes: &[P4CellWrite]) -> Result<(), P4Refused> {
    let words: usize = writes.iter().map(|write| write.words.len()).sum();
    within("writes at once", writes.len() as u64, MAX_CELL_WRITES as u64)?;
    within("words of cells at once", words as u64, MAX_CELL_WORDS as u64)
}

fn serve_cells(owner: ControllerId, datapath: &Datapath, request: &CellRequest) -> Result<Answer, Refusal> {
    let switch = present(datapath, (owner, request.switch));
    let switch = switch.ok_or(P4Refused::NoSwitch(request.switch))?;
    if switch.tag != request.tag {
        return Err(P4Refused::OtherVersion.into());
    }
    let (version, array, cell) = (&switch.version, request.array, request.cell);
    match &request.words {
        Some(words) => {
            cells::write(version, array, cell, words)?;
            Ok(Answer::Done)
        }
        None => Ok(Answer::P4(cells::read(version, array, cell)?)),
    }
}

fn list(owner: ControllerId, datapath: &Datapath) -> P4Answer {
    let ports = datapath.ports();
    let info = |(id, switch): (P4Id, &P4Switch)| P4Info {
        switch: id,
        tag: switch.tag,
        operations: switch.version.operations,
        memory: switch.version.memory,
        counts: switch.counts.read(),
    };
    let own = ports.p4().into_iter().flat_map(|table| table.of(owner));
    P4Answer::Switches(own.map(info).collect())
}

fn present(datapath: &Datapath, key: P4Key) -> Option<Arc<P4Switch>> {
    datapath.ports().p4()?.switches.get(&key).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::placement::{Config, Costs, Policy, Topology};
    use scheduler::Placement;

    /// A thread that has found packets may still have the ports as they were.
    #[test]
    fn links_are_answered_when_all_threads_know_them() {
        let policy = Policy::new(Config::default(), Topology::of_machine(), Costs::default());
        let datapath = Datapath::new(Placement::new(policy, None).unwrap()).unwrap();
        let (thread, mut work) = (datapath.periods.join(), P4Work::default());
        thread.online();
        let links = P4Request::Link { links: Vec::new() };
        assert!(work.serve(ControllerId::BUILT_IN, &datapath, 7, links).is_none());
        assert!(work.work(ControllerId::BUILT_IN, &datapath, 1).is_empty());
        thread.quiescent(|| true);
        let done = work.work(ControllerId::BUILT_IN, &datapath, 1);
        assert!(matches!(done[..], [(7, Ok(Answer::Done))]));
    }
}
