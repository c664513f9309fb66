//! Finds out when the switch is ready, and notifies the service manager.
//!
//! Ready means that the control process answers a request. The supervisor has one thread and must not wait
//! for another process, so the request is a small state machine on a non-blocking socket, driven by the poll
//! loop.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often to try while the control process does not listen yet.
const RETRY: Duration = Duration::from_millis(50);

/// How long an answer may take before the request is repeated.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Finds out when the control process answers.
#[derive(Debug)]
pub struct Probe {
    socket: PathBuf,
    asked: Option<OwnedFd>,
    due: Instant,
}

impl Probe {
    /// A probe of the control socket in a run directory.
    pub fn new(run_dir: &Path, now: Instant) -> Self {
        Probe {
            socket: management::control_socket(run_dir),
            asked: None,
            due: now,
        }
    }

    /// When to call [`advance`](Self::advance) at the latest.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Readable when there is an answer.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.asked.as_ref().map(AsFd::as_fd)
    }

    /// Advances as far as possible without waiting; true once the control process has answered.
    pub fn advance(&mut self, now: Instant) -> bool {
        if let Some(asked) = &self.asked {
            match recv(asked, &mut [0u8; 64], RecvFlags::DONTWAIT) {
                Ok((_, length)) if length > 0 => return true,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) if now < self.due => return false,
                _ => self.asked = None,
            }
        }
        if now >= self.due {
            self.asked = self.ask().ok();
            self.due = now
                + if self.asked.is_some() {
                    ANSWER_TIMEOUT
                } else {
                    RETRY
                };
        }
        false
    }

    fn ask(&self) -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        let mut request =
            serde_json::to_vec(&management::Request::Version).map_err(|_| rustix::io::Errno::INVAL)?;
        request.push(b'\n');
        // A fresh socket has room for one line; if not, the request is repeated soon.
        send(&socket, &request, SendFlags::NOSIGNAL)?;
        Ok(socket)
    }
}

/// Notifies the service manager, if there is one (`sd_notify(3)`), by a datagram to the socket in
/// `NOTIFY_SOCKET`, whose leading `@` stands for the abstract name space.
pub fn notify(state: &str) {
    let Some(target) = std::env::var_os(NOTIFY_VARIABLE) else {
        return;
    };
    if let Err(error) = send_state(&target, state) {
        log::warn!(
            "cannot notify the service manager at {}: {error}",
            target.display()
        );
    }
}

/// Environment variable that names the service manager's socket. Not for the children.
pub const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";

fn send_state(target: &std::ffi::OsStr, state: &str) -> std::io::Result<()> {
    let address = match target.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(target)?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(state.as_bytes(), &address)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn ready_when_somebody_answers() {
        let directory = tempfile::tempdir().unwrap();
        let mut now = Instant::now();
        let mut probe = Probe::new(directory.path(), now);
        assert!(!probe.advance(now), "nobody is there");
        assert!(probe.descriptor().is_none());
        let listener = UnixListener::bind(directory.path().join("control.sock")).unwrap();
        now = probe.due();
        assert!(!probe.advance(now), "asked, no answer yet");
        let (mut first, _) = listener.accept().unwrap();
        assert!(!probe.advance(now));
        drop(first);
        now += ANSWER_TIMEOUT;
        assert!(!probe.advance(now), "the first one hung up; asked anew");
        (first, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&first).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"verb\":\"version\"}\n");
        first.write_all(b"{}\n").unwrap();
        assert!(probe.advance(now));
    }

    #[test]
    fn the_service_manager_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        send_state(path.as_os_str(), "READY=1").unwrap();
        let mut bytes = [0; 16];
        let length = manager.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"READY=1");
        let name = format!("hyperswitch-test-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send_state(format!("@{name}").as_ref(), "STOPPING=1").unwrap();
        assert_eq!(manager.recv(&mut bytes).unwrap(), 10);
    }
}
