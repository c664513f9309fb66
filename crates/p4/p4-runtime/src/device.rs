//! A device: a P4 switch with its clients.
//!
//! The version that the instance has is the truth: other users may change it, and this process may be new. So
//! each request begins by asking for its tag, and a version that is not known is fetched. A batch becomes one
//! version, which the data plane puts in force at once or not at all; that makes every batch atomic that
//! touches no cells of counters or registers. A batch of `DATAPLANE_ATOMIC` has its cells set in the moment
//! in which the version comes into force. Others have them set one after the other, behind the version. If
//! one cannot be set in a batch that is to be made as a whole, the others get back the values that they had,
//! and the former version returns; what packets changed in those cells meanwhile is lost.

use crate::arbitration::{Arbitration, Scope, StreamId};
use crate::cells::{Applied, abort, refuse_cells, without_cells};
use crate::data_plane::Link;
use crate::digests::{self, Digests};
use crate::failure::{Done, Failure};
use crate::idle::{IdleEntries, IdleWatch};
use crate::packets;
use crate::pipeline::{Changed, Pipeline};
use crate::proto::{
    Cookie, DigestList, DigestListAck, Entity, ForwardingPipelineConfig, Kind, PacketIn, PacketOut,
    SetForwardingPipelineConfigRequest, Update, atomicity, pipeline_action, response_type, stream_response,
};
use crate::read::Reader;
use crate::switches::Switches;
use control_protocol::p4::{P4Array, P4CellWrite, ToP4};
use p4_ir::limits::SERIALISED;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::time::{Duration, Instant};
use tonic::Code;

/// Time between two reports of what was lost.
const REPORT: Duration = Duration::from_secs(1);

/// How often a batch is tried if another user changes the version meanwhile.
const ATTEMPTS: usize = 3;

/// See the module's description.
#[derive(Debug, Default)]
pub struct Device {
    /// Name of the P4 switch.
    pub name: String,
    /// Roles of its clients.
    pub arbitration: Arbitration,
    /// The connection by which packets come and go.
    pub link: Link,
    digests: Digests,
    lost: Lost,
    idle: IdleWatch,
    pub(crate) held: Option<Held>,
    /// A pipeline that is saved and not committed.
    pub(crate) saved: Option<Pipeline>,
    /// The compiler's JSON of the pipeline, as it was set. Lost with this process, and when another user
    /// changes the version.
    json: Option<Vec<u8>>,
    saved_json: Option<Vec<u8>>,
}

/// The version of the instance.
#[derive(Debug)]
pub(crate) struct Held {
    pub tag: u64,
    pub bytes: Vec<u8>,
    /// How many of the bytes came as a whole version; batches of changes stand behind them.
    pub whole: usize,
    /// `None`: no client has set its program.
    pub pipeline: Option<Pipeline>,
}

impl Held {
    /// A version that came as a whole.
    fn whole(tag: u64, bytes: Vec<u8>, pipeline: Option<Pipeline>) -> Held {
        Held {
            tag,
            whole: bytes.len(),
            bytes,
            pipeline,
        }
    }
}

/// Whether a batch is made as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    /// Each update is made, or has its error.
    No,
    /// All are made, or none.
    Yes,
    /// Likewise, and packets see all at once, cells with the version.
    AtOnce,
}

/// What was lost on the way to clients, and is told to the data plane, whose counts are shown.
#[derive(Debug, Default)]
struct Lost {
    packets: u64,
    digests: u64,
    told: Option<Instant>,
}

/// How the updates of a batch ended.
pub type Ended = Vec<Done<()>>;

impl Device {
    /// A device without clients, whose version is not known.
    #[must_use]
    pub fn new(name: String) -> Device {
        Device {
            name,
            ..Device::default()
        }
    }

    /// Has the version that the instance has.
    ///
    /// # Errors
    /// The instance does not answer, or its version cannot be read.
    pub fn synchronise(&mut self, tag: Option<u64>, switches: &mut dyn Switches) -> Done<()> {
        if tag == self.held.as_ref().map(|held| held.tag) {
            return Ok(());
        }
        self.held = None;
        self.json = None;
        if tag.is_some() {
            let (tag, bytes) = switches.fetch(&self.name)?;
            let pipeline = Pipeline::decode(&bytes)?;
            self.held = Some(Held::whole(tag, bytes, pipeline));
        }
        Ok(())
    }

    /// What requests are about: the pipeline that is saved, else the one in force.
    fn pipeline(&self) -> Done<&Pipeline> {
        let held = self.held.as_ref().and_then(|held| held.pipeline.as_ref());
        let pipeline = self.saved.as_ref().or(held);
        pipeline.ok_or_else(no_pipeline)
    }

    /// Whether there are clients, and a version, but no connection to the data plane.
    #[must_use]
    pub fn needs_link(&self) -> bool {
        matches!(self.link, Link::Apart) && self.held.is_some() && self.arbitration.has_streams()
    }

    /// The program in force, if a client has set it.
    fn program(&self) -> Option<&p4_ir::Program> {
        let pipeline = self.held.as_ref()?.pipeline.as_ref()?;
        Some(&pipeline.program)
    }

    /// Sends a client's packet.
    ///
    /// # Errors
    /// The client may not, the packet is none of this program, or the data plane does not take it now.
    pub fn send(&self, stream: StreamId, packet: &PacketOut) -> Done<()> {
        if !self.arbitration.scope_of_primary(stream)?.has_packets() {
            return Err(Failure::denied("the role may not send packets"));
        }
        let program = self.program().ok_or_else(no_pipeline)?;
        let frame = packets::encode(program, packet)?;
        self.link.send(&ToP4::PacketOut(frame))
    }

    /// A packet of the program, as clients get it, with those that get it.
    #[must_use]
    pub fn receive(&self, frame: &[u8]) -> Option<(PacketIn, Vec<StreamId>)> {
        let packet = packets::decode(self.program()?, frame)?;
        Some((packet, self.arbitration.receivers(Scope::has_packets)))
    }

    /// The pipeline in force, with what clients want of its digests.
    fn digesting(&mut self) -> Option<(&Pipeline, &mut Digests)> {
        let pipeline = self.held.as_ref()?.pipeline.as_ref()?;
        Some((pipeline, &mut self.digests))
    }

    /// Takes a digest of the program; a list, if one is to be sent now.
    pub fn digest(
        &mut self,
        (lineage, number): (u64, u16),
        values: Vec<u8>,
        now: Instant,
    ) -> Option<DigestList> {
        let (pipeline, digests) = self.digesting()?;
        let digest = pipeline.program.digests.get(usize::from(number))?;
        let id = digest.identity.id?;
        let config = pipeline.notes.digests.get(&id)?;
        if pipeline.lineage() != lineage || !digests.add(id, config, values, now) {
            return None;
        }
        digests.take(id, &pipeline.program, now)
    }

    /// Lists of digests that are due.
    pub fn lists(&mut self, now: Instant) -> Vec<DigestList> {
        let Some((pipeline, digests)) = self.digesting() else {
            return Vec::new();
        };
        let configs = &pipeline.notes.digests;
        digests.retain(|id| configs.contains_key(&id));
        let due = digests.due(configs).filter(|(_, due)| *due <= now);
        let due: Vec<u32> = due.map(|(id, _)| id).collect();
        due.into_iter()
            .filter_map(|id| digests.take(id, &pipeline.program, now))
            .collect()
    }

    /// When the next list of digests is due.
    #[must_use]
    pub fn next_list(&self) -> Option<Instant> {
        let pipeline = self.held.as_ref()?.pipeline.as_ref()?;
        let due = self.digests.due(&pipeline.notes.digests);
        due.map(|(_, due)| due).min()
    }

    /// Clients that get lists of a digest, or hear of a table's idle entries.
    #[must_use]
    pub fn receivers_of(&self, id: u32) -> Vec<StreamId> {
        self.arbitration.receivers(|scope| scope.may_read(id))
    }

    /// A client does not take a message of the data plane.
    pub fn on_lost(&mut self, message: &stream_response::Update) {
        match message {
            stream_response::Update::Packet(_) => self.lost.packets += 1,
            stream_response::Update::Digest(list) => self.lost.digests += list.data.len() as u64,
            _ => {}
        }
    }

    /// When the data plane is told next of what was lost.
    #[must_use]
    pub fn next_report(&self, now: Instant) -> Option<Instant> {
        let lost = self.lost.packets > 0 || self.lost.digests > 0 || self.digests.lost > 0;
        let is_possible = lost && matches!(self.link, Link::Joined(_));
        let next = self.lost.told.map_or(now, |told| told + REPORT);
        is_possible.then_some(next)
    }

    /// Tells the data plane of what was lost, if it is time.
    pub fn report_lost(&mut self, now: Instant) {
        if self.next_report(now).is_none_or(|due| due > now) {
            return;
        }
        self.lost.told = Some(now);
        let message = ToP4::Lost {
            packets: self.lost.packets,
            digests: self.lost.digests + self.digests.lost,
        };
        if self.link.send(&message).is_ok() {
            (self.lost.packets, self.lost.digests, self.digests.lost) = (0, 0, 0);
        }
    }

    /// When entries with idle times are looked at next: none while there are none, or no clients.
    #[must_use]
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        let pipeline = self.held.as_ref()?.pipeline.as_ref()?;
        let is_wanted = pipeline.timed > 0 && self.arbitration.has_streams();
        is_wanted.then(|| self.idle.due(now))
    }

    /// Entries that no packet has met for their time, if it is time to look.
    pub fn look_for_idle(&mut self, now: Instant, switches: &mut dyn Switches) -> Vec<IdleEntries> {
        if self.next_look(now).is_none_or(|due| due > now) {
            return Vec::new();
        }
        // Another user may have changed the version.
        let tag = switches.tag(&self.name);
        let found = tag
            .and_then(|tag| self.synchronise(tag, switches))
            .and_then(|()| {
                let Some(held) = &self.held else {
                    return Ok(Vec::new());
                };
                let Some(pipeline) = &held.pipeline else {
                    return Ok(Vec::new());
                };
                let mut reader = Reading {
                    switches,
                    version: Some((self.name.as_str(), held.tag)),
                    found: &mut |_| Ok(()),
                };
                self.idle.look(pipeline, &mut reader)
            });
        found.unwrap_or_else(|failure| {
            log::debug!("idle times of {}: {}", self.name, failure.text);
            self.idle.put_off();
            Vec::new()
        })
    }

    /// A client has acknowledged a list.
    ///
    /// # Errors
    /// The client may not, or there is no such digest.
    pub fn acknowledge(&mut self, stream: StreamId, ack: DigestListAck) -> Done<()> {
        let scope = self.arbitration.scope_of_primary(stream)?;
        if !scope.may_read(ack.digest_id) {
            return Err(Failure::denied("the role may not read this digest"));
        }
        let program = self.program().ok_or_else(no_pipeline)?;
        if digests::widths(program, ack.digest_id).is_none() {
            let text = format_args!("there is no digest {}", ack.digest_id);
            return Err(Failure::invalid(text));
        }
        self.digests.acknowledge(ack.digest_id, ack.list_id);
        Ok(())
    }

    /// Makes a batch of updates.
    ///
    /// # Errors
    /// No update was tried.
    pub fn write(
        &mut self,
        (updates, atomicity): (&[Update], i32),
        scope: &Scope,
        switches: &mut dyn Switches,
    ) -> Done<Ended> {
        let all_or_none = match atomicity {
            atomicity::CONTINUE_ON_ERROR => false,
            atomicity::ROLLBACK_ON_ERROR | atomicity::DATAPLANE_ATOMIC => true,
            other => return Err(Failure::invalid(format_args!("there is no atomicity {other}"))),
        };
        self.pipeline()?;
        let about_cells = updates.iter().filter(|update| is_about_cells(update)).count();
        let at_once = atomicity == atomicity::DATAPLANE_ATOMIC && about_cells > 0;
        if at_once && about_cells == updates.len() {
            return Ok(self.set_at_once(updates, scope, switches));
        }
        let whole = match (all_or_none, at_once) {
            (_, true) => Whole::AtOnce,
            (true, false) => Whole::Yes,
            (false, false) => Whole::No,
        };
        let mut ended = Vec::new();
        for _ in 0..ATTEMPTS {
            let (result, is_stale) = self.attempt(updates, whole, scope, switches);
            ended = result;
            if !is_stale {
                break;
            }
            let tag = switches.tag(&self.name)?;
            self.synchronise(tag, switches)?;
            self.pipeline()?;
        }
        Ok(ended)
    }

    /// Makes a batch; also says whether another user was quicker.
    fn attempt(
        &mut self,
        updates: &[Update],
        whole: Whole,
        scope: &Scope,
        switches: &mut dyn Switches,
    ) -> (Ended, bool) {
        let all_or_none = whole != Whole::No;
        let before = self.saved.clone().filter(|_| all_or_none);
        let own = self.held.as_mut().and_then(|held| held.pipeline.as_mut());
        let Some(pipeline) = self.saved.as_mut().or(own) else {
            return (vec![Err(no_pipeline()); updates.len()], false);
        };
        let all = updates.iter().map(|update| pipeline.apply(update, scope));
        let mut applied: Applied = all.collect();
        let changed = pipeline.changed != Changed::Nothing;
        let has_cells = applied.iter().any(|one| matches!(one, Ok(Some(_))));
        let former = self.held.as_ref().filter(|_| all_or_none && changed && has_cells);
        let former = former.map(|held| held.bytes.clone());
        if all_or_none {
            refuse_cells(&mut applied, self.saved.is_some());
        }
        let writes = match whole {
            Whole::AtOnce => self.cells_at_once(&mut applied),
            Whole::No | Whole::Yes => Vec::new(),
        };
        if all_or_none && applied.iter().any(Result::is_err) {
            abort(&mut applied);
            self.restore(before);
            return (without_cells(applied), false);
        }
        if changed
            && self.saved.is_none()
            && let Err((failure, is_stale)) = self.commit(&writes, switches)
        {
            let of_version = applied.iter_mut().filter(|one| matches!(one, Ok(None)));
            of_version.for_each(|one| *one = Err(failure.clone()));
            self.restore(None);
            if all_or_none {
                abort(&mut applied);
            }
            if is_stale || all_or_none {
                return (without_cells(applied), is_stale);
            }
        }
        if whole == Whole::AtOnce && changed {
            return (without_cells(applied), false);
        }
        if all_or_none {
            return (self.set_all(applied, former, switches), false);
        }
        (self.set_each(applied, switches), false)
    }

    /// Cells of a batch that packets see with its version. Fails the first update of cells if they are too
    /// many.
    fn cells_at_once(&self, applied: &mut Applied) -> Vec<P4CellWrite> {
        if applied.iter().any(Result::is_err) {
            return Vec::new();
        }
        self.writes_of(applied).unwrap_or_else(|failure| {
            let first = applied.iter_mut().find(|one| matches!(one, Ok(Some(_))));
            first.into_iter().for_each(|one| *one = Err(failure.clone()));
            Vec::new()
        })
    }

    /// Forgets what was changed and did not come into force.
    fn restore(&mut self, saved: Option<Pipeline>) {
        if self.saved.is_some() {
            self.saved = saved.or(self.saved.take());
        } else if let Some(held) = &mut self.held {
            held.pipeline = Pipeline::decode(&held.bytes).ok().flatten();
        }
    }

    /// Puts the pipeline, with what has changed, in force: as a batch of changes while those that stand
    /// behind the whole version are less than it, so that a batch costs what it changes. A failure tells
    /// whether another user was quicker.
    fn commit(&mut self, writes: &[P4CellWrite], switches: &mut dyn Switches) -> Result<(), (Failure, bool)> {
        let failed = |failure| (failure, false);
        let Some(held) = &mut self.held else {
            return Err(failed(no_pipeline()));
        };
        let pipeline = held.pipeline.as_mut().ok_or_else(|| failed(no_pipeline()))?;
        let replaced = held.tag;
        let room = held.whole.saturating_mul(2).min(SERIALISED);
        let room = room.saturating_sub(held.bytes.len());
        let batch = pipeline.batch().filter(|batch| batch.len() <= room);
        // What cannot be made as a change may be as a whole version.
        let is_made = |batch: &Vec<u8>| switches.change(&self.name, batch, replaced, writes).is_ok();
        let put = match batch.filter(is_made) {
            Some(batch) => {
                pipeline.changed = Changed::Nothing;
                Ok((None, batch))
            }
            None => {
                let bytes = pipeline.encode().map_err(failed)?;
                let put = switches.put(&self.name, &bytes, Some(replaced), writes);
                put.map(|()| (Some(bytes), Vec::new()))
            }
        };
        let tag = switches.tag(&self.name).map_err(failed)?;
        match (put, tag) {
            (Ok((whole, batch)), Some(tag)) => {
                if let Some(bytes) = whole {
                    (held.whole, held.bytes) = (bytes.len(), bytes);
                }
                held.bytes.extend(batch);
                held.tag = tag;
                Ok(())
            }
            (Ok(_), None) => Err(failed(Failure::new(Code::Aborted, "the P4 switch was removed"))),
            (Err(failure), tag) => Err((failure, tag != Some(replaced))),
        }
    }

    /// Answers a request of a read.
    ///
    /// # Errors
    /// The request makes no sense, or its answer is too long.
    pub fn read(
        &self,
        request: &Entity,
        scope: &Scope,
        found: &mut dyn FnMut(Kind) -> Done<()>,
        switches: &mut dyn Switches,
    ) -> Done<()> {
        let pipeline = self.pipeline()?;
        let in_force = self.held.as_ref().filter(|_| self.saved.is_none());
        let version = in_force.map(|held| (self.name.as_str(), held.tag));
        let mut reader = Reading {
            switches,
            version,
            found,
        };
        pipeline.read(request, scope, &mut reader)
    }

    /// Whether there is a pipeline to read from.
    ///
    /// # Errors
    /// There is none.
    pub fn require_pipeline(&self) -> Done<()> {
        self.pipeline().map(drop)
    }

    /// Sets a pipeline, as its action says.
    ///
    /// # Errors
    /// The pipeline cannot be run here, or its action makes no sense; the former one goes on.
    pub fn set_pipeline(
        &mut self,
        request: SetForwardingPipelineConfigRequest,
        switches: &mut dyn Switches,
    ) -> Done<()> {
        let config = request.config;
        if request.action == pipeline_action::COMMIT {
            if config.is_some() {
                return Err(Failure::invalid(
                    "what is committed was saved before; no configuration is given",
                ));
            }
            let saved = self.saved.clone();
            let saved = saved.ok_or_else(|| Failure::missing("no pipeline is saved"))?;
            let json = self.saved_json.clone();
            return self.put(saved, json, switches);
        }
        let mut pipeline = Pipeline::load(config.as_ref())?;
        let json = config.map(|config| config.p4_device_config);
        match request.action {
            pipeline_action::VERIFY => pipeline.encode().map(drop).map_err(cannot_be_realized),
            pipeline_action::VERIFY_AND_SAVE => {
                pipeline.begin_lineage(lineage());
                pipeline.encode().map_err(cannot_be_realized)?;
                self.saved = Some(pipeline);
                self.saved_json = json;
                Ok(())
            }
            pipeline_action::VERIFY_AND_COMMIT => {
                pipeline.begin_lineage(lineage());
                self.put(pipeline, json, switches)
            }
            pipeline_action::RECONCILE_AND_COMMIT => {
                match self.held.as_ref().and_then(|held| held.pipeline.as_ref()) {
                    Some(former) => pipeline.inherit(former)?,
                    None => pipeline.begin_lineage(lineage()),
                }
                self.put(pipeline, json, switches)
            }
            other => Err(Failure::invalid(format_args!("there is no action {other}"))),
        }
    }

    /// Puts a pipeline in force in place of the present one.
    fn put(
        &mut self,
        mut pipeline: Pipeline,
        json: Option<Vec<u8>>,
        switches: &mut dyn Switches,
    ) -> Done<()> {
        let bytes = pipeline.encode().map_err(cannot_be_realized)?;
        let replaces = self.held.as_ref().map(|held| held.tag);
        switches
            .put(&self.name, &bytes, replaces, &[])
            .map_err(cannot_be_realized)?;
        let tag = switches.tag(&self.name)?;
        let tag = tag.ok_or_else(|| Failure::new(Code::Aborted, "the P4 switch was removed"))?;
        self.held = Some(Held::whole(tag, bytes, Some(pipeline)));
        self.digests.retain(|_| false);
        (self.saved, self.saved_json) = (None, None);
        self.json = json;
        Ok(())
    }

    /// The pipeline's configuration, as it was set.
    ///
    /// # Errors
    /// There is no such type of answer.
    pub fn config(&self, kind: i32) -> Done<Option<ForwardingPipelineConfig>> {
        let (p4info, json) = match kind {
            response_type::ALL => (true, true),
            response_type::COOKIE_ONLY => (false, false),
            response_type::P4INFO_AND_COOKIE => (true, false),
            response_type::DEVICE_CONFIG_AND_COOKIE => (false, true),
            other => {
                return Err(Failure::invalid(format_args!(
                    "there is no type of answer {other}"
                )));
            }
        };
        let Ok(pipeline) = self.pipeline() else {
            return Ok(None);
        };
        let own = match self.saved {
            Some(_) => &self.saved_json,
            None => &self.json,
        };
        let (info, cookie) = pipeline.described();
        Ok(Some(ForwardingPipelineConfig {
            p4info: p4info.then(|| info.to_vec()),
            p4_device_config: own.clone().filter(|_| json).unwrap_or_default(),
            cookie: cookie.map(|cookie| Cookie { cookie }),
        }))
    }
}

/// A read that is under way.
pub(crate) struct Reading<'a> {
    pub switches: &'a mut dyn Switches,
    /// Name and tag of the version in force; none while what is read is not in force.
    pub version: Option<(&'a str, u64)>,
    pub found: &'a mut dyn FnMut(Kind) -> Done<()>,
}

impl Reader for Reading<'_> {
    fn cells(&mut self, array: P4Array, cells: Range<u32>) -> Done<Vec<Vec<u64>>> {
        let version = self.version.ok_or_else(not_committed)?;
        let mut values: Vec<Vec<u64>> = Vec::new();
        let wanted = (cells.end - cells.start) as usize;
        while values.len() < wanted {
            let read = u32::try_from(values.len()).map_err(Failure::exhausted)?;
            let (words, stride) = self.switches.cells(version, array, cells.start + read)?;
            if words.is_empty() {
                return Err(Failure::new(
                    Code::Internal,
                    "the array has fewer cells than its program says",
                ));
            }
            let page = words.chunks(stride.max(1)).map(<[u64]>::to_vec);
            values.extend(page.take(wanted - values.len()));
        }
        Ok(values)
    }

    fn found(&mut self, kind: Kind) -> Done<()> {
        (self.found)(kind)
    }
}

fn is_about_cells(update: &Update) -> bool {
    let kind = update.entity.as_ref().and_then(|entity| entity.kind.as_ref());
    matches!(
        kind,
        Some(Kind::CounterEntry(_) | Kind::DirectCounterEntry(_) | Kind::RegisterEntry(_))
    )
}

pub(crate) fn no_pipeline() -> Failure {
    Failure::new(
        Code::FailedPrecondition,
        "the device has no pipeline; one must be set",
    )
}

pub(crate) fn not_committed() -> Failure {
    Failure::new(
        Code::FailedPrecondition,
        "the pipeline is saved, and not committed",
    )
}

/// What is beyond a limit is, of a pipeline that is set, an argument that cannot be.
fn cannot_be_realized(failure: Failure) -> Failure {
    match failure.code {
        Code::ResourceExhausted => Failure::invalid(failure.text),
        _ => failure,
    }
}

/// A number that no other pipeline has, not 0.
fn lineage() -> u64 {
    RandomState::new().build_hasher().finish() | 1
}
