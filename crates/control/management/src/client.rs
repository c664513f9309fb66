//! The user's end of the management socket. Blocking, for a bounded time; one request at a time.
//!
//! The control process answers. When it does not, the supervisor is asked which process does not work
//! ([`Supervision`]): it has a socket of its own, and asking there makes it look at all processes. A request
//! that changes nothing is made again when the control process ended before it answered.

use crate::error_report::{ErrorCode, ErrorReport};
use crate::reply::{Reply, Response, Supervision};
use crate::request::Request;
use control_protocol::Channel;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg, socket_with,
};
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Silence after which the supervisor is asked to look at its processes.
const SILENCE: Duration = Duration::from_millis(control_protocol::supervisor::ANSWER_MS);

/// Time between two attempts to reach a process that is being started.
const RETRY: Duration = Duration::from_millis(20);

/// How long the supervisor may take: it waits for its processes' answers itself.
const SUPERVISION: Duration = Duration::from_secs(1);

/// The time of users for whom the control process gives up a request by itself early enough.
const OWN_LIMIT: Duration = Duration::from_secs(5);

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
    /// The user may use neither socket.
    #[error(
        "{path}: permission denied; its owner may use it, and for queries the group of view.sock (`view-group` in [access])"
    )]
    Forbidden {
        /// The socket for all requests.
        path: PathBuf,
    },
    /// Time is up.
    #[error("no answer within {} s: {who}", .limit.as_secs_f32())]
    NoAnswer {
        /// The time.
        limit: Duration,
        /// Who did not answer, for users.
        who: String,
    },
    /// The control process refused the request.
    #[error("{0}")]
    Refused(ErrorReport),
    /// The control process ended before it answered.
    #[error("the control process ended before it answered, so it is not known whether this was done: {0}")]
    Ended(String),
    /// The connection broke in another way.
    #[error("the connection to hyperswitch broke: {0}")]
    Broken(#[from] io::Error),
    /// An answer that makes no sense: client and server are of different versions.
    #[error("cannot understand hyperswitch's answer: {0}")]
    Malformed(String),
}

impl ClientError {
    /// The error as programs read it.
    pub fn report(&self) -> ErrorReport {
        let code = match self {
            ClientError::Refused(report) => return report.clone(),
            ClientError::Unreachable { .. } => ErrorCode::Unreachable,
            ClientError::Forbidden { .. } => ErrorCode::Forbidden,
            ClientError::NoAnswer { .. } => ErrorCode::Unavailable,
            ClientError::Ended(_) | ClientError::Broken(_) => ErrorCode::Unknown,
            ClientError::Malformed(_) => ErrorCode::Version,
        };
        ErrorReport::new(code, self.to_string())
    }
}

/// A connection to the control process.
#[derive(Debug)]
pub struct Client {
    run_dir: PathBuf,
    limit: Duration,
    /// Queries only, and so the socket for them.
    views: bool,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the instance with this run directory. Each call may take `limit`, and so may connecting.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], or [`ClientError::NoAnswer`] when only the supervisor is there.
    pub fn connect(run_dir: &Path, limit: Duration) -> Result<Client, ClientError> {
        Client::connect_to(run_dir, limit, false)
    }

    /// As [`connect`](Self::connect), to the socket that answers queries alone.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_to_view(run_dir: &Path, limit: Duration) -> Result<Client, ClientError> {
        Client::connect_to(run_dir, limit, true)
    }

    fn connect_to(run_dir: &Path, limit: Duration, views: bool) -> Result<Client, ClientError> {
        let deadline = Instant::now() + limit;
        let mut client = Client {
            run_dir: run_dir.into(),
            limit,
            views,
            stream: reach(run_dir, limit, deadline, views)?,
        };
        client.extend_timeout(deadline)?;
        Ok(client)
    }

    /// The control process gives up by itself earlier than users who have said that they wait longer.
    fn extend_timeout(&mut self, deadline: Instant) -> Result<(), ClientError> {
        if self.limit <= OWN_LIMIT {
            return Ok(());
        }
        let seconds = u32::try_from(self.limit.as_secs()).unwrap_or(u32::MAX);
        while let Err(error) = self.attempt(&Request::Timeout { seconds }, deadline) {
            self.reach_again(error, deadline)?;
        }
        Ok(())
    }

    /// Connects again after a connection broke, if there is time.
    fn reach_again(&mut self, error: ClientError, deadline: Instant) -> Result<(), ClientError> {
        if !matches!(error, ClientError::Broken(_)) || Instant::now() >= deadline {
            return Err(error);
        }
        self.stream = reach(&self.run_dir, self.limit, deadline, self.views)?;
        Ok(())
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the control process refuses the request, the others when there is no
    /// usable answer.
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let deadline = Instant::now() + self.limit;
        loop {
            match self.attempt(request, deadline) {
                Err(error) if request.changes_nothing() => {
                    self.reach_again(error, deadline)?;
                    self.extend_timeout(deadline)?;
                }
                Err(ClientError::Broken(error)) if has_ended(&error) => {
                    return Err(ClientError::Ended(who(supervision(&self.run_dir))));
                }
                result => return result,
            }
        }
    }

    fn attempt(&mut self, request: &Request, deadline: Instant) -> Result<Reply, ClientError> {
        let line = line(request)?;
        self.write(&line, deadline)?;
        self.reply(deadline)
    }

    /// Starts a capture and returns the socket on which
    /// [`CapturedPacket`](control_protocol::data_plane::CapturedPacket)s arrive, by `recv()`. Drop it to end
    /// the capture.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn capture(&mut self, port: &str, snap_length: u32) -> Result<Channel, ClientError> {
        let (ours, theirs) = Channel::pair().map_err(|error| io::Error::other(error.to_string()))?;
        let request = Request::Capture {
            port: port.into(),
            snap_length,
        };
        self.call_with(&request, theirs.as_fd())?;
        Ok(ours)
    }

    /// As [`call`](Self::call), with a descriptor sent along; the request is made once.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_with(&mut self, request: &Request, fd: BorrowedFd<'_>) -> Result<Reply, ClientError> {
        let deadline = Instant::now() + self.limit;
        let line = line(request)?;
        let fds = [fd];
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
        self.write(&line[sent..], deadline)?;
        self.reply(deadline)
    }

    fn write(&mut self, line: &[u8], deadline: Instant) -> Result<(), ClientError> {
        let stream = self.stream.get_mut();
        stream.set_write_timeout(Some(left(deadline)))?;
        match stream.write_all(line) {
            Err(error) if is_late(&error) => Err(no_answer(self.limit, who(supervision(&self.run_dir)))),
            result => Ok(result?),
        }
    }

    fn reply(&mut self, deadline: Instant) -> Result<Reply, ClientError> {
        let mut answer = Vec::new();
        let mut told = None;
        while !answer.ends_with(b"\n") {
            let timeout = left(deadline);
            let timeout = if told.is_none() {
                timeout.min(SILENCE)
            } else {
                timeout
            };
            self.stream.get_mut().set_read_timeout(Some(timeout))?;
            match self.stream.read_until(b'\n', &mut answer) {
                Ok(_) if answer.ends_with(b"\n") => {}
                Ok(_) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if !is_late(&error) => return Err(error.into()),
                // It looks at once; what it found is read when it is needed.
                Err(_) => {
                    let asked = told.get_or_insert_with(|| connect(&crate::supervisor_socket(&self.run_dir)));
                    if Instant::now() >= deadline {
                        let report = asked.as_mut().ok().and_then(read);
                        return Err(no_answer(self.limit, who(report)));
                    }
                }
            }
        }
        match Response::from_json(&answer) {
            Ok(Response::Ok(reply)) => Ok(reply),
            Ok(Response::Error(report)) => Err(ClientError::Refused(report)),
            Err(error) => Err(ClientError::Malformed(error.to_string())),
        }
    }
}

/// Connects to the control process, which may be being started as long as there is a supervisor. Users who
/// may not use its socket for all requests get the one for queries, as do those who only view.
fn reach(
    run_dir: &Path,
    limit: Duration,
    deadline: Instant,
    views: bool,
) -> Result<BufReader<UnixStream>, ClientError> {
    let path = match views {
        true => crate::view_socket(run_dir),
        false => crate::control_socket(run_dir),
    };
    let mut supervisor = None;
    loop {
        let error = match connect(&path) {
            Ok(stream) => return Ok(BufReader::new(stream)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let view = crate::view_socket(run_dir);
                match connect(&view) {
                    Ok(stream) => return Ok(BufReader::new(stream)),
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        return Err(ClientError::Forbidden { path });
                    }
                    Err(error) if Instant::now() >= deadline => {
                        return Err(ClientError::Unreachable { path: view, error });
                    }
                    // Whether there is a supervisor, such users cannot ask.
                    Err(_) => std::thread::sleep(RETRY),
                }
                continue;
            }
            Err(error) => error,
        };
        if supervisor.is_none() {
            supervisor = connect(&crate::supervisor_socket(run_dir)).ok();
        }
        match &mut supervisor {
            None => return Err(ClientError::Unreachable { path, error }),
            Some(supervisor) if Instant::now() >= deadline => {
                return Err(no_answer(limit, who(read(supervisor))));
            }
            Some(_) => std::thread::sleep(RETRY),
        }
    }
}

/// What the supervisor knows of its processes, after it has looked at them; `None` if it does not answer.
#[must_use]
pub fn supervision(run_dir: &Path) -> Option<Supervision> {
    read(&mut connect(&crate::supervisor_socket(run_dir)).ok()?)
}

fn read(supervisor: &mut UnixStream) -> Option<Supervision> {
    supervisor.set_read_timeout(Some(SUPERVISION)).ok()?;
    let mut line = Vec::new();
    BufReader::new(supervisor).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

/// Who did not answer, for users.
fn who(supervision: Option<Supervision>) -> String {
    let Some(supervision) = supervision else {
        return "neither the control process nor the supervisor answers".into();
    };
    let said: Vec<_> = supervision
        .processes
        .iter()
        .filter_map(|it| it.complaint())
        .collect();
    if said.is_empty() {
        "all processes work; the request takes longer (--timeout)".into()
    } else {
        said.join("; ")
    }
}

fn no_answer(limit: Duration, who: String) -> ClientError {
    ClientError::NoAnswer { limit, who }
}

/// Time left, but never none, which would be for ever.
fn left(deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    left.max(Duration::from_millis(1))
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Connects without waiting for a process that accepts no connections.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn line(request: &Request) -> Result<Vec<u8>, ClientError> {
    request
        .to_line()
        .map_err(|error| ClientError::Malformed(error.to_string()))
}
