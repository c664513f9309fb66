//! The user's end of the management socket. Blocking; one request at a time.

use crate::reply::{Reply, Response};
use crate::request::Request;
use control_protocol::Channel;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process answers at the run directory's socket.
    #[error("cannot reach hyperswitch at {path}: {error}; is it running with this run directory?")]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The control process refused the request.
    #[error("{0}")]
    Refused(String),
    /// The connection broke, for instance because the control process ended.
    #[error("the connection to hyperswitch broke: {0}")]
    Broken(#[from] io::Error),
    /// An answer that makes no sense: client and server are of different versions.
    #[error("cannot understand hyperswitch's answer: {0}")]
    Malformed(String),
}

/// A connection to the control process.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the instance with this run directory.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub fn connect(run_dir: &Path) -> Result<Client, ClientError> {
        let path = crate::control_socket(run_dir);
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Client {
                stream: BufReader::new(stream),
            }),
            Err(error) => Err(ClientError::Unreachable { path, error }),
        }
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the control process refuses the request, the others when there is no usable answer.
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let line = line(request)?;
        self.stream.get_mut().write_all(&line)?;
        self.reply()
    }

    /// Starts a capture and returns the socket on which
    /// [`CapturedPacket`](control_protocol::data_plane::CapturedPacket)s arrive, by `recv()`. Drop it to end
    /// the capture.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn capture(&mut self, port: &str, snap_length: u32) -> Result<Channel, ClientError> {
        let (ours, theirs) = Channel::pair().map_err(|error| io::Error::other(error.to_string()))?;
        let line = line(&Request::Capture {
            port: port.into(),
            snap_length,
        })?;
        let fds = [theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let sent = sendmsg(
            self.stream.get_ref(),
            &[IoSlice::new(&line)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .map_err(io::Error::from)?;
        self.stream.get_mut().write_all(&line[sent..])?;
        drop(theirs);
        self.reply()?;
        Ok(ours)
    }

    fn reply(&mut self) -> Result<Reply, ClientError> {
        let mut answer = String::new();
        if self.stream.read_line(&mut answer)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        match serde_json::from_str(&answer) {
            Ok(Response::Ok(reply)) => Ok(reply),
            Ok(Response::Error(text)) => Err(ClientError::Refused(text)),
            Err(error) => Err(ClientError::Malformed(error.to_string())),
        }
    }
}

fn line(request: &Request) -> Result<Vec<u8>, ClientError> {
    let mut line = serde_json::to_vec(request).map_err(|error| ClientError::Malformed(error.to_string()))?;
    line.push(b'\n');
    Ok(line)
}
