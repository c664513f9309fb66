//! The thread that has the service: it takes requests one after the other, and sends messages to streams.
//!
//! A stream that does not read what is sent to it is ended, when its queue is full; nobody waits for it.

use crate::arbitration::StreamId;
use crate::data_plane::{self, Link};
use crate::failure::{Done, Failure};
use crate::jobs::{Answers, Job, ToStream};
use crate::proto::StreamMessageRequest;
use crate::service::{Messages, Refused, Service};
use crate::switches::Switches;
use crate::wire::Method;
use prost::Message;
use std::collections::HashMap;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::timeout_at;
use tonic::{Code, Status};

/// Messages for a stream that it has not read.
pub const STREAM_QUEUE: usize = 256;

/// Of these, messages that are no packets.
const RESERVED: usize = 64;

/// Works until nobody can send jobs any more; `own` is where its threads send theirs.
pub fn run(mut service: Service<impl Switches>, mut jobs: mpsc::Receiver<Job>, own: &mpsc::WeakSender<Job>) {
    let mut streams = Streams::default();
    let clock = match Builder::new_current_thread().enable_time().build() {
        Ok(clock) => clock,
        Err(error) => return log::error!("the service has no clock: {error}"),
    };
    loop {
        let job = match service.next_due() {
            Some(due) => match clock.block_on(async { timeout_at(due.into(), jobs.recv()).await }) {
                Ok(job) => job,
                Err(_) => {
                    let messages = service.due();
                    streams.offer(&mut service, messages);
                    continue;
                }
            },
            None => jobs.blocking_recv(),
        };
        let Some(job) = job else { return };
        match job {
            Job::FromDataPlane(device, message) => {
                let messages = service.on_data_plane(device, message);
                streams.offer(&mut service, messages);
                continue;
            }
            Job::Lost(device) => service.on_link(device, Link::Waiting),
            Job::Again(device) => service.on_link(device, Link::Apart),
            Job::Request { method, bytes, reply } => {
                // A client that has gone needs no answer.
                let _ = reply.send(answer(&mut service, method, &bytes));
            }
            Job::Open(stream, to) => drop(streams.open.insert(stream, to)),
            Job::Close(stream) => streams.end(&mut service, stream, None),
            Job::Message(stream, bytes) if streams.open.contains_key(&stream) => {
                let message = StreamMessageRequest::decode(&bytes[..]).map_err(unreadable);
                match message.and_then(|message| service.on_message(stream, message)) {
                    Ok(messages) => streams.send(&mut service, messages),
                    Err(failure) => streams.end(&mut service, stream, Some(failure)),
                }
            }
            Job::Message(..) => {}
        }
        for (device, channel) in service.connect() {
            data_plane::watch(device, channel, own.clone());
        }
    }
}

/// Streams that are open.
#[derive(Default)]
struct Streams {
    open: HashMap<StreamId, mpsc::Sender<ToStream>>,
    /// Messages of the data plane that were lost.
    lost: u64,
}

impl Streams {
    /// Sends messages of the data plane. Those that a stream has no room for are lost, which ends no stream.
    fn offer(&mut self, service: &mut Service<impl Switches>, messages: Messages) {
        for (stream, message) in messages {
            let to = self.open.get(&stream);
            let Some(to) = to.filter(|to| to.capacity() > RESERVED) else {
                self.lost += 1;
                service.on_lost(stream, &message);
                if self.lost.is_power_of_two() {
                    log::warn!(
                        "{} packets, lists of digests or news of idle entries were lost since clients do not read them",
                        self.lost
                    );
                }
                continue;
            };
            // A stream that ends needs no message.
            let _ = to.try_send(Ok(message.encode_to_vec()));
        }
    }

    /// Sends messages. A stream whose queue is full is ended, of which others may have to be told.
    fn send(&mut self, service: &mut Service<impl Switches>, messages: Messages) {
        let mut waiting = messages;
        while let Some((stream, message)) = (!waiting.is_empty()).then(|| waiting.remove(0)) {
            let sent = match self.open.get(&stream) {
                Some(to) => to.try_send(Ok(message.encode_to_vec())),
                None => Ok(()),
            };
            if sent.is_err() {
                log::warn!("a stream is ended that does not read its messages");
                self.open.remove(&stream);
                waiting.extend(service.on_end(stream));
            }
        }
    }

    fn end(&mut self, service: &mut Service<impl Switches>, stream: StreamId, failure: Option<Failure>) {
        if let (Some(to), Some(failure)) = (self.open.remove(&stream), failure) {
            // The stream ends in any case.
            let _ = to.try_send(Err(Status::new(failure.code, failure.text)));
        }
        let messages = service.on_end(stream);
        self.send(service, messages);
    }
}

fn unreadable(error: prost::DecodeError) -> Failure {
    Failure::invalid(format_args!("the message cannot be read: {error}"))
}

fn read<M: Message + Default>(bytes: &[u8]) -> Done<M> {
    M::decode(bytes).map_err(unreadable)
}

fn answer(service: &mut Service<impl Switches>, method: Method, bytes: &[u8]) -> Answers {
    if method == Method::Read {
        return match read(bytes) {
            Ok(request) => {
                let (answers, ended) = service.read(&request);
                (answers, ended.map_err(Refused::into_status))
            }
            Err(failure) => (Vec::new(), Err(Refused::from(failure).into_status())),
        };
    }
    let answer = match method {
        Method::Write => read(bytes)
            .map_err(Refused::from)
            .and_then(|request| service.write(&request))
            .map(|answer| answer.encode_to_vec()),
        Method::SetForwardingPipelineConfig => read(bytes)
            .map_err(Refused::from)
            .and_then(|request| service.set_pipeline(request))
            .map(|answer| answer.encode_to_vec()),
        Method::GetForwardingPipelineConfig => read(bytes)
            .map_err(Refused::from)
            .and_then(|request| service.get_pipeline(request))
            .map(|answer| answer.encode_to_vec()),
        Method::Capabilities => read(bytes)
            .map_err(Refused::from)
            .and_then(|request| service.capabilities(request))
            .map(|answer| answer.encode_to_vec()),
        Method::Read | Method::StreamChannel => {
            Err(Failure::new(Code::Internal, "no such request has one answer").into())
        }
    };
    match answer {
        Ok(answer) => (vec![answer], Ok(())),
        Err(refused) => (Vec::new(), Err(refused.into_status())),
    }
}
