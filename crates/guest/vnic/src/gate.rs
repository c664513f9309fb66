//! The gate between a VMM's socket and the session that serves it.
//!
//! A thread that receives a descriptor must close it eventually, and `close` runs code of the file: a FUSE
//! daemon that does not answer holds the caller, and the end of its process, for as long as it likes; a
//! socket may linger, and so may a socket that waits to be received from another one. So a thread with a
//! descriptor table of its own receives descriptors (`process::spawn_apart`), and no other thread waits for
//! it. It passes on descriptors that cannot hold a thread up - eventfds, UNIX sockets, memory files - and
//! puts a harmless descriptor of no such kind in place of each other one, which the session then refuses. It
//! keeps the descriptors that it may not close at once, and closes them after all other threads have dropped
//! the connection; if a `close` then waits, only this thread does.
//!
//! The gate also keeps time. A message that has begun must be complete within [`HALF_MESSAGE`]. Messages have
//! a rate ([`Allowance`]), so a large number of VMMs does not keep the process busy, nor delay VMMs that send
//! little. Further messages wait in the VMM's own socket. Replies pass unchanged.
//!
//! To receive from the VMM's socket, to reply and to close it has the kernel ask all that wait for its other
//! end, a million if the VMM likes. Other files may be as costly to close. So there are pauses after what
//! took long (`pause`), which outlive the connection. After work that took far too long, a message is read
//! byte by byte: the VMM may have sent each for itself.

mod allowance;
mod pacer;

use crate::descriptor::Kind;
pub use allowance::Allowance;
use allowance::Said;
use pacer::Pacer;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};
use std::convert::Infallible;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// From a message's first byte to its last, and for a reply to be taken.
const HALF_MESSAGE: Duration = Duration::from_secs(10);

/// Of a message: request, flags and length, 32 bits each.
const HEADER: usize = 12;
/// Longest payload that any front end sends; the protocol library's own limit.
const MAX_PAYLOAD: usize = 4096;
/// Descriptors of one message; the specification allows 8.
const MAX_FILES: usize = 16;
/// Descriptors kept to the end. Of those, a VMM has a reason to send only a call's socket.
const MAX_KEPT: usize = 64;

/// From the end of the session to the closing of the VMM's connection, for as long as which the kernel may
/// lend the processor to nobody else: who ended the session, and the session's own thread, go on first.
const BEFORE_CLOSING: Duration = Duration::from_millis(10);

/// Why a connection ends.
type End = &'static str;

struct Gate {
    vmm: UnixStream,
    session: UnixStream,
    pacer: Pacer,
    said: Said,
    /// An epoll instance, passed on in place of descriptors that must not be.
    stand_in: OwnedFd,
    /// Descriptors to be closed last.
    kept: Vec<OwnedFd>,
}

/// Passes messages from `vmm` to `session` and replies back until either is closed, or the VMM breaks a rule
/// above. Then waits until `served` hangs up, since all other threads have dropped the connection, closes all
/// that it has, and returns; that may take any time. `allowance` is the port's.
pub fn guard(
    vmm: UnixStream,
    session: UnixStream,
    served: &Receiver<Infallible>,
    allowance: Arc<Mutex<Allowance>>,
) {
    let Ok(stand_in) = epoll::create(epoll::CreateFlags::CLOEXEC) else {
        return;
    };
    // If this fails, the gate waits for a VMM that does not read, and nothing else does.
    let _ = vmm.set_write_timeout(Some(HALF_MESSAGE));
    let mut gate = Gate {
        vmm,
        session,
        pacer: Pacer::new(allowance),
        said: Said::default(),
        stand_in,
        kept: Vec::new(),
    };
    if let Err(end) = gate.pass_all() {
        telemetry::limited!(log::Level::Warn, "a VMM's connection is closed: {end}");
    }
    gate.close(served);
}

/// Closes a VMM's connection that is not served, which may take any time as well.
pub fn refuse(vmm: UnixStream, allowance: Arc<Mutex<Allowance>>) {
    close(vmm, Vec::new(), Pacer::new(allowance));
}

impl Gate {
    fn pass_all(&mut self) -> Result<(), End> {
        loop {
            let pause = self.pacer.pause();
            let is_free = pause.is_zero();
            let interest = if is_free {
                PollFlags::IN
            } else {
                PollFlags::empty()
            };
            let timeout = (!is_free).then_some(pause);
            let [said, answered] = wait([(&self.vmm, interest), (&self.session, PollFlags::IN)], timeout);
            if answered && !self.pass_reply() {
                return Ok(());
            }
            if said && !is_free {
                return Ok(());
            }
            if said && self.pacer.begin() && !self.pass_message()? {
                return Ok(());
            }
        }
    }

    /// Passes on a reply of the session; false when one of the two is gone.
    fn pass_reply(&mut self) -> bool {
        let mut bytes = [0; HEADER + MAX_PAYLOAD];
        let count = self.session.read(&mut bytes).unwrap_or(0);
        count > 0 && self.pacer.measure(|| self.vmm.write_all(&bytes[..count]).is_ok())
    }

    /// Passes a message; false when one of the two is gone.
    fn pass_message(&mut self) -> Result<bool, End> {
        let end = Instant::now() + HALF_MESSAGE;
        let mut message = [0; HEADER + MAX_PAYLOAD];
        let first = self.pacer.at_once(HEADER);
        let Some((begun, files)) = self.begin(&mut message[..first])? else {
            return Ok(false);
        };
        if !self.complete(&mut message[begun..HEADER], end)? {
            return Ok(false);
        }
        let word =
            |at: usize| u32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
        let len = word(8) as usize;
        if len > MAX_PAYLOAD {
            return Err("a message is too long");
        }
        if !self.complete(&mut message[HEADER..HEADER + len], end)? {
            return Ok(false);
        }
        let message = &message[..HEADER + len];
        self.pacer.count(self.said.changes(message, !files.is_empty()));
        let Gate {
            session,
            stand_in,
            kept,
            pacer,
            ..
        } = self;
        pacer.measure(|| {
            // Closing those that were passed on does not wait: only harmless ones are among them.
            let files = sort(files, stand_in, kept)?;
            Ok(pass(session, message, &files))
        })
    }

    /// Reads the first bytes of a message, with which its descriptors come.
    fn begin(&mut self, header: &mut [u8]) -> Result<Option<(usize, Vec<OwnedFd>)>, End> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let receive = || recvmsg(&self.vmm, &mut [IoSliceMut::new(header)], &mut control, flags);
        let Ok(received) = self.pacer.measure(receive) else {
            return Ok(None);
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        if received.bytes == 0 {
            self.kept.append(&mut files);
            return Ok(None);
        }
        Ok(Some((received.bytes, files)))
    }

    /// Reads the remaining bytes of a header or payload; false when the VMM is gone. Descriptors that come
    /// with them are discarded.
    fn complete(&mut self, mut rest: &mut [u8], end: Instant) -> Result<bool, End> {
        while !rest.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("a message was begun and not completed");
            }
            let pause = self.pacer.pause();
            let (interest, timeout) = if pause.is_zero() {
                (PollFlags::IN, left)
            } else {
                (PollFlags::empty(), pause.min(left))
            };
            let streams = [(&self.vmm, interest), (&self.session, PollFlags::empty())];
            match wait(streams, Some(timeout)) {
                [_, true] => return Ok(false),
                [true, _] if interest.is_empty() => return Ok(false),
                [true, _] if self.pacer.begin() => {}
                _ => continue,
            }
            let most = self.pacer.at_once(rest.len());
            let receive = || recv(&self.vmm, &mut rest[..most], RecvFlags::DONTWAIT);
            match self.pacer.measure(receive) {
                Ok((0, _)) => return Ok(false),
                Ok((count, _)) => rest = &mut rest[count..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Closes everything, descriptors whose `close` may wait last. The VMM's end is closed only when the
    /// session has closed its own, since it too may hold descriptors that wait to be received.
    fn close(self, served: &Receiver<Infallible>) {
        let Gate {
            vmm,
            session,
            pacer,
            kept,
            ..
        } = self;
        // A session that waits to be read, or for a message, finds its end.
        drop(session);
        let Err(_) = served.recv();
        std::thread::sleep(BEFORE_CLOSING);
        close(vmm, kept, pacer);
    }
}

/// The descriptor to pass on for each one received: itself or the stand-in.
fn sort(files: Vec<OwnedFd>, stand_in: &OwnedFd, kept: &mut Vec<OwnedFd>) -> Result<Vec<OwnedFd>, End> {
    let mut passed = Vec::new();
    for file in files {
        let keeps = match Kind::of(file.as_fd()) {
            Kind::Eventfd | Kind::Memory => None,
            // It may hold descriptors that wait to be received: the last process to close it closes them.
            Kind::UnixSocket => Some(&file),
            Kind::Other => Some(stand_in),
        };
        let Some(sent) = keeps else {
            passed.push(file);
            continue;
        };
        passed.push(sent.try_clone().map_err(|_| "no descriptors left")?);
        kept.push(file);
    }
    if kept.len() > MAX_KEPT {
        return Err("it passed too many descriptors of other kinds than it should");
    }
    Ok(passed)
}

fn pass(session: &UnixStream, message: &[u8], files: &[OwnedFd]) -> bool {
    let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return false;
    }
    // A stream takes a message of this size as a whole.
    let sent = sendmsg(
        session,
        &[IoSlice::new(message)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    sent == Ok(message.len())
}

fn close(vmm: UnixStream, kept: Vec<OwnedFd>, mut pacer: Pacer) {
    // Each message that nobody has received has all that wait asked as well.
    while pacer.is_slow() {
        pacer.wait();
        let received = pacer.measure(|| recv(&vmm, &mut [0; 1], RecvFlags::DONTWAIT));
        if !received.is_ok_and(|(count, _)| count > 0) {
            break;
        }
    }
    for file in std::iter::once(vmm.into()).chain(kept) {
        pacer.wait();
        pacer.measure(|| drop::<OwnedFd>(file));
    }
}

/// Waits until one of the streams is ready or closed, at most `timeout`; returns which.
fn wait<const N: usize>(streams: [(&UnixStream, PollFlags); N], timeout: Option<Duration>) -> [bool; N] {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut fds = streams.map(|(stream, flags)| PollFd::new(stream, flags));
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => fds.each_ref().map(|fd| !fd.revents().is_empty()),
        Err(_) => [false; N],
    }
}
