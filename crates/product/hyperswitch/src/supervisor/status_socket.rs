//! What the supervisor knows of its children, for users to whom the control process does not answer.
//!
//! Who connects has the supervisor look at all children, and receives one line of JSON
//! ([`management::Supervision`]) once each has shown whether it works. Nothing is read from a connection, and
//! nothing is waited for: the line fits into the socket's buffer.

use management::{Process, Supervision};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use socket_path::{Access, Refusal, SocketPath};
use std::path::Path;
use std::time::{Duration, Instant};

/// Users that may wait at the same time; others are hung up on.
const MAX_WAITING: usize = 16;

/// How long a user waits for the looks at children to end.
const LONGEST: Duration = Duration::from_millis(600);

/// The socket, and the users who wait for an answer.
#[derive(Debug)]
pub struct StatusSocket {
    path: SocketPath,
    listener: OwnedFd,
    waiting: Vec<(OwnedFd, Instant)>,
    started: Instant,
}

impl StatusSocket {
    /// Listens in the run directory, for the owner of this process alone.
    ///
    /// # Errors
    /// See [`socket_path::listen_at`].
    pub fn listen(run_dir: &Path, now: Instant) -> Result<StatusSocket, Refusal> {
        let path = management::supervisor_socket(run_dir).into();
        Ok(StatusSocket {
            listener: socket_path::listen_at(&path, Access::OWNER)?,
            path,
            waiting: Vec::new(),
            started: now,
        })
    }

    /// Readable when a user has come.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// When somebody has waited long enough.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.first().map(|(_, since)| *since + LONGEST)
    }

    /// Accepts users. True if one has come who is to be answered.
    pub fn accept(&mut self, now: Instant) -> bool {
        let before = self.waiting.len();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(user) = accept_with(&self.listener, flags) {
            if self.waiting.len() < MAX_WAITING {
                self.waiting.push((user, now));
            }
        }
        self.waiting.len() > before
    }

    /// Answers those who wait, if all is known, or who have waited long enough.
    pub fn answer(&mut self, is_all_known: bool, processes: impl FnOnce() -> Vec<Process>, now: Instant) {
        let is_due = |since: Instant| is_all_known || now >= since + LONGEST;
        if !self.waiting.iter().any(|(_, since)| is_due(*since)) {
            return;
        }
        let supervision = Supervision {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            processes: processes(),
        };
        let Ok(mut line) = serde_json::to_vec(&supervision) else {
            return;
        };
        line.push(b'\n');
        self.waiting.retain(|(user, since)| {
            let is_due = is_due(*since);
            if is_due {
                // A user who is gone needs no answer.
                let _ = send(user, &line, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
            !is_due
        });
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        socket_path::remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;

    fn connect(directory: &Path) -> UnixStream {
        UnixStream::connect(management::supervisor_socket(directory)).unwrap()
    }

    /// The line, if it is there. The connection may be open still: processes that other tests start inherit
    /// it for a moment.
    fn told(user: &UnixStream) -> Option<Supervision> {
        user.set_nonblocking(true).unwrap();
        let mut line = String::new();
        BufReader::new(user).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    #[test]
    fn users_are_answered_when_all_is_known_or_late() {
        let directory = tempfile::tempdir().unwrap();
        let mut now = Instant::now();
        let mut socket = StatusSocket::listen(directory.path(), now).unwrap();
        assert_eq!((socket.accept(now), socket.due()), (false, None));
        let first = connect(directory.path());
        assert!(socket.accept(now) && socket.due().is_some());
        socket.answer(false, || panic!("not yet"), now);
        now += LONGEST / 2;
        let second = connect(directory.path());
        assert!(socket.accept(now));
        now += LONGEST / 2;
        socket.answer(false, Vec::new, now);
        assert_eq!(told(&first).unwrap().pid, std::process::id());
        assert!(told(&second).is_none());
        socket.answer(true, Vec::new, now);
        assert!(told(&second).is_some());
        assert_eq!(socket.due(), None);
        drop(socket);
        assert!(!management::supervisor_socket(directory.path()).exists());
    }

    #[test]
    fn a_crowd_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let mut socket = StatusSocket::listen(directory.path(), now).unwrap();
        let mut users = Vec::new();
        for _ in 0..10 * MAX_WAITING {
            users.push(connect(directory.path()));
            socket.accept(now);
        }
        assert_eq!(socket.waiting.len(), MAX_WAITING);
        socket.answer(true, Vec::new, now);
        let answered = users.iter().filter(|user| told(user).is_some()).count();
        assert_eq!(answered, MAX_WAITING);
    }
}
