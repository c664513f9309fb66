//! The service without its transport: requests of clients in, answers and messages for streams out.
//!
//! One thread has the service, so requests are made one after the other, and a read finds a state between two
//! writes.

use crate::arbitration::{Notices, StreamId};
use crate::data_plane::Link;
use crate::device::Device;
use crate::digests;
use crate::failure::{Done, Failure};
use crate::proto::{
    self, CapabilitiesRequest, CapabilitiesResponse, DigestList, DigestListAck, DigestListAckError, Entity,
    GetForwardingPipelineConfigRequest, GetForwardingPipelineConfigResponse, IdleTimeoutNotification, Kind,
    MasterArbitrationUpdate, PacketOut, PacketOutError, ReadRequest, ReadResponse,
    SetForwardingPipelineConfigRequest, SetForwardingPipelineConfigResponse, StreamError,
    StreamMessageRequest, StreamMessageResponse, StreamOtherError, WriteRequest, WriteResponse, stream_error,
    stream_request, stream_response,
};
use crate::switches::Switches;
use control_protocol::Channel;
use control_protocol::p4::FromP4;
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;
use tonic::Code;

/// Version of P4Runtime.
const API_VERSION: &str = "1.5.0";

/// Bytes of an answer to a read at which it ends; clients take 4 MiB at least.
const ANSWER: usize = 256 * 1024;

/// Most bytes of all answers to a read.
const MAX_ANSWERS: usize = 64 << 20;

/// Most bytes of a message of a stream that the error about it has in it.
const MAX_COPY: usize = 2048;

/// Failures of a batch that have their texts, and most bytes of one: clients bound what they take of these.
const TEXTS: usize = 32;
const MAX_TEXT: usize = 256;

/// The space of error codes of our own. There are none besides the canonical ones.
const SPACE: &str = "hyperswitch-v1model";

/// See the module's description.
#[derive(Debug)]
pub struct Service<S> {
    switches: S,
    devices: BTreeMap<u64, Device>,
    /// Devices of streams that were arbitrated.
    streams: HashMap<StreamId, u64>,
}

/// Why a request was refused, with the failures of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The failure as a whole.
    pub failure: Failure,
    /// The end of each part, if parts were tried.
    pub parts: Vec<Done<()>>,
}

/// Messages for streams.
pub type Messages = Vec<(StreamId, StreamMessageResponse)>;

impl<S: Switches> Service<S> {
    /// A service for the devices of an instance.
    pub fn new(switches: S) -> Service<S> {
        Service {
            switches,
            devices: BTreeMap::new(),
            streams: HashMap::new(),
        }
    }

    /// A device, with the version that the instance has.
    fn device(&mut self, id: u64) -> Done<(&mut Device, &mut S)> {
        let info = self
            .switches
            .devices()?
            .into_iter()
            .find(|device| device.id == id);
        let info = info.ok_or_else(|| Failure::missing(format_args!("there is no device {id}")))?;
        let device = self.devices.entry(id).or_default();
        if device.name != info.name {
            let link = std::mem::take(&mut device.link).parted();
            *device = Device::new(info.name);
            device.link = link;
        }
        device.synchronise(info.tag, &mut self.switches)?;
        Ok((device, &mut self.switches))
    }

    /// Serves `Write`.
    ///
    /// # Errors
    /// The batch was refused, or an update of it failed.
    pub fn write(&mut self, request: &WriteRequest) -> Result<WriteResponse, Refused> {
        refuse_role_numbers(request.role_id)?;
        let (device, switches) = self.device(request.device_id)?;
        let scope = device
            .arbitration
            .authorise(&request.role, request.election_id)?
            .clone();
        let batch = (&request.updates[..], request.atomicity);
        let parts = device.write(batch, &scope, switches)?;
        Refused::if_any("updates", parts)?;
        Ok(WriteResponse {})
    }

    /// Serves `Read`: encoded answers, and how it ended.
    pub fn read(&mut self, request: &ReadRequest) -> (Vec<Vec<u8>>, Result<(), Refused>) {
        let mut answers = Answers::default();
        let ended = self.read_into(request, &mut answers);
        (answers.finish(), ended)
    }

    fn read_into(&mut self, request: &ReadRequest, answers: &mut Answers) -> Result<(), Refused> {
        let (device, switches) = self.device(request.device_id)?;
        let scope = device.arbitration.scope(&request.role)?.clone();
        device.require_pipeline()?;
        let one = |entity: &Entity| device.read(entity, &scope, &mut |kind| answers.add(kind), switches);
        let parts = request.entities.iter().map(one).collect();
        Refused::if_any("requests", parts)
    }

    /// Serves `SetForwardingPipelineConfig`.
    ///
    /// # Errors
    /// The pipeline was refused; the former one goes on.
    pub fn set_pipeline(
        &mut self,
        request: SetForwardingPipelineConfigRequest,
    ) -> Result<SetForwardingPipelineConfigResponse, Refused> {
        refuse_role_numbers(request.role_id)?;
        let (device, switches) = self.device(request.device_id)?;
        let scope = device.arbitration.authorise(&request.role, request.election_id)?;
        if !scope.may_set_pipeline() {
            return Err(Failure::denied("the role may not set pipelines").into());
        }
        device.set_pipeline(request, switches)?;
        Ok(SetForwardingPipelineConfigResponse {})
    }

    /// Serves `GetForwardingPipelineConfig`.
    ///
    /// # Errors
    /// There is no such device, or no such type of answer.
    pub fn get_pipeline(
        &mut self,
        request: GetForwardingPipelineConfigRequest,
    ) -> Result<GetForwardingPipelineConfigResponse, Refused> {
        let (device, _) = self.device(request.device_id)?;
        let config = device.config(request.response_type)?;
        Ok(GetForwardingPipelineConfigResponse { config })
    }

    /// Serves `Capabilities`.
    ///
    /// # Errors
    /// There is no such device.
    pub fn capabilities(&mut self, request: CapabilitiesRequest) -> Result<CapabilitiesResponse, Refused> {
        if request.device_id != 0 {
            self.device(request.device_id)?;
        }
        Ok(CapabilitiesResponse {
            p4runtime_api_version: API_VERSION.into(),
        })
    }

    /// Takes a message of a stream.
    ///
    /// # Errors
    /// The stream is to be ended with this.
    pub fn on_message(&mut self, stream: StreamId, message: StreamMessageRequest) -> Done<Messages> {
        use stream_request::Update;
        let update = message
            .update
            .ok_or_else(|| Failure::invalid("the message is empty"))?;
        let error = match update {
            Update::Arbitration(update) => return self.arbitrate(stream, &update),
            Update::Packet(packet_out) => {
                let Err(failure) = self.send(stream, &packet_out) else {
                    return Ok(Vec::new());
                };
                let packet_out = Some(packet_out).filter(|packet| packet.encoded_len() <= MAX_COPY);
                let details = stream_error::Details::PacketOut(PacketOutError { packet_out });
                (failure, details)
            }
            Update::DigestAck(ack) => {
                let Err(failure) = self.acknowledge(stream, ack) else {
                    return Ok(Vec::new());
                };
                let digest_list_ack = Some(ack);
                let details = stream_error::Details::DigestListAck(DigestListAckError { digest_list_ack });
                (failure, details)
            }
            Update::Other(other) => {
                let other = Some(other).filter(|other| other.encoded_len() <= MAX_COPY);
                let details = stream_error::Details::Other(StreamOtherError { other });
                (Failure::unimplemented("no such messages are read"), details)
            }
        };
        let (failure, details) = error;
        let error = StreamError {
            canonical_code: failure.code.into(),
            message: failure.text,
            space: SPACE.into(),
            code: 0,
            details: Some(details),
        };
        let update = Some(stream_response::Update::Error(error));
        Ok(vec![(stream, StreamMessageResponse { update })])
    }

    fn send(&self, stream: StreamId, packet: &PacketOut) -> Done<()> {
        let device = self.streams.get(&stream).and_then(|id| self.devices.get(id));
        let device = device.ok_or_else(|| Failure::denied("the stream has asked for no device"))?;
        device.send(stream, packet)
    }

    /// Takes a message of the data plane. Messages for clients, any of which may be lost.
    #[must_use]
    pub fn on_data_plane(&mut self, device: u64, message: FromP4) -> Messages {
        let Some(device) = self.devices.get_mut(&device) else {
            return Vec::new();
        };
        let frame = match message {
            FromP4::PacketIn(frame) => frame,
            FromP4::Digest {
                lineage,
                digest,
                values,
            } => {
                let list = device.digest((lineage, digest), values, Instant::now());
                return list.map_or_else(Vec::new, |list| list_for_clients(device, &list));
            }
        };
        let Some((packet, streams)) = device.receive(&frame) else {
            return Vec::new();
        };
        let message = |stream| {
            let update = Some(stream_response::Update::Packet(packet.clone()));
            (stream, StreamMessageResponse { update })
        };
        streams.into_iter().map(message).collect()
    }

    fn acknowledge(&mut self, stream: StreamId, ack: DigestListAck) -> Done<()> {
        let device = self.streams.get(&stream);
        let device = device.and_then(|id| self.devices.get_mut(id));
        let device = device.ok_or_else(|| Failure::denied("the stream has asked for no device"))?;
        device.acknowledge(stream, ack)
    }

    /// When messages for clients are due next: lists of digests, or news of idle entries.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let due = |device: &Device| {
            let due = [device.next_list(), device.next_look(now), device.next_report(now)];
            due.into_iter().flatten().min()
        };
        self.devices.values().filter_map(due).min()
    }

    /// Messages for clients that are due.
    #[must_use]
    pub fn due(&mut self) -> Messages {
        let mut messages = self.lists();
        messages.extend(self.idle_entries());
        let now = Instant::now();
        self.devices
            .values_mut()
            .for_each(|device| device.report_lost(now));
        messages
    }

    /// A stream has no room for a message of the data plane.
    pub fn on_lost(&mut self, stream: StreamId, message: &StreamMessageResponse) {
        let device = self.streams.get(&stream);
        let device = device.and_then(|id| self.devices.get_mut(id));
        if let (Some(device), Some(update)) = (device, &message.update) {
            device.on_lost(update);
        }
    }

    fn idle_entries(&mut self) -> Messages {
        let now = Instant::now();
        let mut messages = Vec::new();
        for device in self.devices.values_mut() {
            for (table, table_entry) in device.look_for_idle(now, &mut self.switches) {
                let notification = IdleTimeoutNotification {
                    table_entry,
                    timestamp: digests::timestamp(),
                };
                messages.extend(device.receivers_of(table).into_iter().map(|stream| {
                    let update = Some(stream_response::Update::Idle(notification.clone()));
                    (stream, StreamMessageResponse { update })
                }));
            }
        }
        messages
    }

    fn lists(&mut self) -> Messages {
        let now = Instant::now();
        let lists = self.devices.values_mut().flat_map(|device| {
            let lists = device.lists(now);
            let messages = lists.iter().flat_map(|list| list_for_clients(device, list));
            messages.collect::<Vec<_>>()
        });
        lists.collect()
    }

    /// Connects devices with the data plane whose clients wait for that; what is to be watched.
    pub fn connect(&mut self) -> Vec<(u64, Option<Arc<Channel>>)> {
        let mut begun = Vec::new();
        for (id, device) in self.devices.iter_mut().filter(|(_, device)| device.needs_link()) {
            let channel = self.switches.connect(&device.name).map(Arc::new);
            let channel = channel.inspect_err(|error| log::warn!("packets of device {id}: {error}"));
            device.link = channel.clone().map_or(Link::Waiting, Link::Joined);
            begun.push((*id, channel.ok()));
        }
        begun
    }

    /// The connection of a device has ended, or it is time for another one.
    pub fn on_link(&mut self, device: u64, link: Link) {
        if let Some(device) = self.devices.get_mut(&device) {
            device.link = link;
        }
    }

    fn arbitrate(&mut self, stream: StreamId, update: &MasterArbitrationUpdate) -> Done<Messages> {
        let own = self.streams.get(&stream).copied();
        if own.is_some_and(|own| own != update.device_id) {
            return Err(Failure::new(
                Code::FailedPrecondition,
                "the stream is for another device",
            ));
        }
        let (device, _) = self.device(update.device_id)?;
        let notices = device.arbitration.update(stream, update)?;
        self.streams.insert(stream, update.device_id);
        Ok(messages(notices))
    }

    /// A stream has ended. Messages for those that have to know.
    pub fn on_end(&mut self, stream: StreamId) -> Messages {
        let Some(id) = self.streams.remove(&stream) else {
            return Vec::new();
        };
        let Some(device) = self.devices.get_mut(&id) else {
            return Vec::new();
        };
        let notices = device.arbitration.remove(stream, id);
        if !device.arbitration.has_streams() {
            device.link = std::mem::take(&mut device.link).parted();
        }
        messages(notices)
    }
}

/// A list of digests, for each client that gets it.
fn list_for_clients(device: &Device, list: &DigestList) -> Messages {
    let message = |stream| {
        let update = Some(stream_response::Update::Digest(list.clone()));
        (stream, StreamMessageResponse { update })
    };
    let receivers = device.receivers_of(list.digest_id);
    receivers.into_iter().map(message).collect()
}

fn messages(notices: Notices) -> Messages {
    let message = |(stream, notice)| {
        let update = Some(stream_response::Update::Arbitration(notice));
        (stream, StreamMessageResponse { update })
    };
    notices.into_iter().map(message).collect()
}

/// Roles had numbers until version 1.3, which no client that is known uses.
fn refuse_role_numbers(role: u64) -> Done<()> {
    match role {
        0 => Ok(()),
        _ => Err(Failure::invalid(
            "roles have names; numbers of roles are those of version 1.3",
        )),
    }
}

/// Answers to a read, as they leave.
#[derive(Debug, Default)]
struct Answers {
    full: Vec<Vec<u8>>,
    bytes: usize,
    next: ReadResponse,
    next_bytes: usize,
}

impl Answers {
    fn add(&mut self, kind: Kind) -> Done<()> {
        let kind = Some(kind);
        let entity = Entity { kind };
        self.next_bytes += entity.encoded_len();
        self.next.entities.push(entity);
        if self.bytes + self.next_bytes > MAX_ANSWERS {
            return Err(Failure::exhausted(
                "the answer is too long; parts of it can be asked for",
            ));
        }
        if self.next_bytes >= ANSWER {
            self.flush();
        }
        Ok(())
    }

    fn flush(&mut self) {
        let answer = std::mem::take(&mut self.next);
        self.bytes += std::mem::take(&mut self.next_bytes);
        self.full.push(answer.encode_to_vec());
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        if !self.next.entities.is_empty() {
            self.flush();
        }
        self.full
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        let parts = Vec::new();
        Refused { failure, parts }
    }
}

impl Refused {
    /// A refusal if a part failed.
    fn if_any(what: &str, parts: Vec<Done<()>>) -> Result<(), Refused> {
        let failed: Vec<_> = parts
            .iter()
            .enumerate()
            .filter(|(_, part)| part.is_err())
            .collect();
        let Some((at, Err(first))) = failed.first() else {
            return Ok(());
        };
        let text = format!(
            "{} of {} {what} failed; number {at}: {first}",
            failed.len(),
            parts.len()
        );
        let failure = Failure::new(Code::Unknown, text);
        Err(Refused { failure, parts })
    }

    /// The form in which it leaves, with `google.rpc.Status` as details.
    #[must_use]
    pub fn into_status(self) -> tonic::Status {
        let mut texts = TEXTS;
        let mut error = |part: &Done<()>| match part {
            Ok(()) => proto::Error::default(),
            Err(failure) => {
                texts = texts.saturating_sub(1);
                let text = failure.text.chars().take(MAX_TEXT);
                proto::Error {
                    canonical_code: failure.code.into(),
                    message: if texts > 0 { text.collect() } else { String::new() },
                    space: SPACE.into(),
                    ..proto::Error::default()
                }
            }
        };
        let Failure { code, text } = self.failure;
        if self.parts.is_empty() {
            return tonic::Status::new(code, text);
        }
        let mut any = |part: &Done<()>| proto::Any {
            type_url: proto::Error::TYPE_URL.into(),
            value: error(part).encode_to_vec(),
        };
        let status = proto::Status {
            code: code.into(),
            message: text.clone(),
            details: self.parts.iter().map(&mut any).collect(),
        };
        tonic::Status::with_details(code, text, status.encode_to_vec().into())
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
