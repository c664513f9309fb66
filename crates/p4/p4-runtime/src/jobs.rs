//! Work for the thread that has the service, from the transport and from the data plane.

use crate::arbitration::StreamId;
use crate::wire::Method;
use control_protocol::p4::FromP4;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

/// What a stream gets.
pub type ToStream = Result<Vec<u8>, Status>;

/// Answers to a request, and how it ended.
pub type Answers = (Vec<Vec<u8>>, Result<(), Status>);

/// Work for the thread.
#[derive(Debug)]
pub enum Job {
    /// A request that is no stream.
    Request {
        /// The method.
        method: Method,
        /// The message.
        bytes: Vec<u8>,
        /// Where the answer goes.
        reply: oneshot::Sender<Answers>,
    },
    /// A stream begins.
    Open(StreamId, mpsc::Sender<ToStream>),
    /// A stream's message.
    Message(StreamId, Vec<u8>),
    /// A stream has ended.
    Close(StreamId),
    /// The data plane's message for a device.
    FromDataPlane(u64, FromP4),
    /// A device's connection to the data plane has ended.
    Lost(u64),
    /// A device may be connected again.
    Again(u64),
}
