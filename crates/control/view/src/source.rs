//! The connection to the control process, over which queries go as over `view.sock`.
//!
//! The supervisor makes it anew when either process was started again. An answer is a line of JSON of at most
//! [`MAX_ANSWER`] bytes.

use management::{FlowInfo, Reply, Request, Response, Snapshot};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest answer in bytes: that about 10,000 ports.
const MAX_ANSWER: usize = 32 << 20;

/// How long an answer may take: longer than the control process allows itself.
const PATIENCE: Duration = Duration::from_secs(6);

/// Why there is no answer.
const NOT_THERE: &str = "there is no control process at the moment";
pub const SILENT: &str = "the control process does not answer";
const STRANGE: &str = "the control process gave another answer than asked for";

/// See the module.
#[derive(Debug, Default)]
pub struct Source {
    socket: Option<OwnedFd>,
    /// The question whose answer is waited for, and since when.
    asked: Option<(Question, Instant)>,
    /// The answer was given up, and is waited for all the same, since another one can only come after it.
    is_late: bool,
    /// What of the request was not sent.
    unsent: Vec<u8>,
    answer: Vec<u8>,
}

/// What the control process is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// All figures.
    Figures,
    /// Flows, with what they counted.
    Flows,
}

impl Question {
    fn request(self) -> Request {
        match self {
            Question::Figures => Request::Snapshot,
            Question::Flows => Request::FlowList { switch: None },
        }
    }
}

/// What the control process told.
#[derive(Debug)]
pub enum Told {
    Figures(Box<Snapshot>),
    Flows(Vec<FlowInfo>),
}

/// The answer to a question, or why there is none.
pub type Answer = (Question, Result<Told, String>);

impl Source {
    /// Takes a connection, in place of the one before.
    pub fn attach(&mut self, socket: OwnedFd) {
        *self = Source {
            socket: Some(socket),
            ..Source::default()
        };
    }

    /// The connection and what to poll it for.
    pub fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let socket = self.socket.as_ref()?;
        let flags = match self.unsent.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        };
        Some((socket.as_fd(), flags))
    }

    /// Whether an answer is waited for.
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether an answer has been waited for so long that nobody waits for it any more.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// When the answer is late.
    pub fn due(&self) -> Option<Instant> {
        let asked = self.asked.filter(|_| !self.is_late);
        asked.map(|(_, since)| since + PATIENCE)
    }

    /// Asks. Returns the answer if it is known at once that there will be none.
    pub fn ask(&mut self, question: Question, now: Instant) -> Option<Answer> {
        if self.socket.is_none() {
            return Some((question, Err(NOT_THERE.into())));
        }
        self.unsent = question.request().to_line().expect("a question has no path");
        self.asked = Some((question, now));
        self.send()
    }

    /// Gives up an answer that is late.
    pub fn expire(&mut self, now: Instant) -> Option<Answer> {
        self.due().filter(|due| *due <= now)?;
        self.is_late = true;
        let (question, _) = self.asked?;
        Some((question, Err(SILENT.into())))
    }

    /// Gives up the connection; returns the answer that will not come, if one was waited for.
    fn lose(&mut self, reason: &str) -> Option<Answer> {
        let lost = std::mem::take(self);
        let (question, _) = lost.asked?;
        Some((question, Err(reason.into())))
    }

    fn send(&mut self) -> Option<Answer> {
        let socket = self.socket.as_ref()?;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match send(socket, &self.unsent, flags) {
            Ok(sent) => drop(self.unsent.drain(..sent)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return self.lose(NOT_THERE),
        }
        None
    }

    /// Reads and writes as poll allows; returns an answer that is complete, or why none will come.
    pub fn on_ready(&mut self, flags: PollFlags) -> Option<Answer> {
        if flags.contains(PollFlags::OUT)
            && let Some(lost) = self.send()
        {
            return Some(lost);
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return None;
        }
        let socket = self.socket.as_ref()?;
        let mut bytes = [0u8; 65_536];
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return self.lose(NOT_THERE),
            Ok((received, _)) => self.answer.extend_from_slice(&bytes[..received]),
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(_) => return self.lose(NOT_THERE),
        }
        if !self.is_asked() || self.answer.len() > MAX_ANSWER {
            return self.lose(STRANGE);
        }
        if self.answer.last() != Some(&b'\n') {
            return None;
        }
        let answer = std::mem::take(&mut self.answer);
        self.is_late = false;
        let (question, _) = self.asked.take()?;
        let told = match (question, Response::from_json(&answer)) {
            (Question::Figures, Ok(Response::Ok(Reply::Snapshot(snapshot)))) => Ok(Told::Figures(snapshot)),
            (Question::Flows, Ok(Response::Ok(Reply::Flows(flows)))) => Ok(Told::Flows(flows)),
            (_, Ok(Response::Error(report))) => Err(report.error),
            (_, Ok(Response::Ok(_)) | Err(_)) => Err(STRANGE.into()),
        };
        Some((question, told))
    }
}
