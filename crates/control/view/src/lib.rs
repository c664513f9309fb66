//! Figures of the switch for programs that collect them, over HTTP.
//!
//! A process of its own, as it reads what strangers send: who takes it over can make queries, which change
//! nothing and show no bytes of packets, and nothing else. One thread runs one poll loop. Scrapes that come
//! while an answer is under way wait for it, so the control process has at most one question of this process
//! to answer, and an answer serves scrapes for [`FRESH`].
//!
//! | module | contents |
//! |---|---|
//! | `http` | requests and responses |
//! | `clients` | connections of clients, within bounds |
//! | `source` | the connection to the control process |
//! | `exposition` | families of metrics as text, in two formats |
//! | `metrics` | which metrics there are |

#![forbid(unsafe_code)]

mod clients;
mod exposition;
mod http;
mod metrics;
mod source;

use clients::Clients;
use control_protocol::supervisor::{FromChild, Role, ToChild};
use control_protocol::{Channel, ChannelError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::fs::Timespec;
use rustix::io::Errno;
use source::{Answer, Source};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long an answer serves further scrapes.
const FRESH: Duration = Duration::from_millis(200);

/// Why the process could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Waiting failed.
    #[error("poll: {0}")]
    Poll(#[from] Errno),
}

/// Runs until the supervisor says to finish, or is gone. The socket listens and does not block.
///
/// # Errors
/// See [`Error`].
pub fn run(supervisor: Channel, listener: OwnedFd) -> Result<(), Error> {
    let mut view = View {
        supervisor,
        clients: Clients::new(listener),
        source: Source::default(),
        latest: None,
    };
    while view.step()?.is_continue() {}
    Ok(())
}

struct View {
    supervisor: Channel,
    clients: Clients,
    source: Source,
    /// The latest figures, and when they came.
    latest: Option<(Answer, Instant)>,
}

/// A descriptor that is ready.
enum Ready {
    Supervisor,
    Source,
    Listener,
    Client(clients::Token),
}

impl View {
    fn step(&mut self) -> Result<ControlFlow<()>, Error> {
        for (ready, flags) in self.wait()? {
            let answer = match ready {
                Ready::Supervisor if self.on_supervisor().is_break() => return Ok(ControlFlow::Break(())),
                Ready::Supervisor => None,
                Ready::Source => self.source.on_ready(flags),
                Ready::Listener => {
                    self.clients.accept(Instant::now());
                    None
                }
                Ready::Client(token) => {
                    self.clients.on_ready(token, flags);
                    None
                }
            };
            self.on_answer(answer);
        }
        let now = Instant::now();
        let late = self.source.expire(now);
        self.on_answer(late);
        self.clients.expire(now);
        self.serve(now);
        Ok(ControlFlow::Continue(()))
    }

    /// Waits for descriptors that are ready.
    fn wait(&self) -> Result<Vec<(Ready, PollFlags)>, Error> {
        let mut sources = vec![
            (Ready::Supervisor, self.supervisor.as_fd(), PollFlags::IN),
            (Ready::Listener, self.clients.listener(), PollFlags::IN),
        ];
        let source = self.source.interest();
        sources.extend(source.map(|(fd, flags)| (Ready::Source, fd, flags)));
        let clients = self.clients.interests();
        sources.extend(clients.map(|(token, fd, flags)| (Ready::Client(token), fd, flags)));
        let mut fds: Vec<_> = sources
            .iter()
            .map(|(_, fd, flags)| PollFd::new(fd, *flags))
            .collect();
        let due = [self.source.due(), self.clients.due()]
            .into_iter()
            .flatten()
            .min();
        let timeout = due.map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or_default()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let flags: Vec<_> = fds.iter().map(PollFd::revents).collect();
        let ready = sources.into_iter().zip(flags);
        let ready = ready.filter(|(_, flags)| !flags.is_empty());
        Ok(ready.map(|((ready, ..), flags)| (ready, flags)).collect())
    }

    fn on_supervisor(&mut self) -> ControlFlow<()> {
        loop {
            match self.supervisor.try_recv::<ToChild>() {
                Ok((ToChild::Peer(Role::Control), mut fds)) => {
                    fds.pop()
                        .into_iter()
                        .for_each(|socket| self.source.attach(socket));
                    // Whoever waits for the answer of the process before gets that of this one.
                    self.latest = None;
                }
                Ok((ToChild::Ping(ping), _)) => {
                    // A supervisor that does not read its messages is gone or going.
                    let _ = self.supervisor.try_send(&FromChild::Pong(ping), &[]);
                }
                Ok((ToChild::Shutdown, _)) => return ControlFlow::Break(()),
                Ok(_) | Err(ChannelError::Malformed(_)) => {}
                Err(ChannelError::WouldBlock) => return ControlFlow::Continue(()),
                Err(_) => return ControlFlow::Break(()),
            }
        }
    }

    fn on_answer(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer else { return };
        self.latest = Some((answer, Instant::now()));
        self.respond();
    }

    /// Responds to clients from what is known, or asks for it.
    fn serve(&mut self, now: Instant) {
        if !self.clients.are_waiting() || self.source.is_asked() && !self.source.is_late() {
            return;
        }
        if self.source.is_late() {
            return self.respond();
        }
        let is_fresh = |(answer, since): &(Answer, Instant)| answer.is_ok() && *since + FRESH > now;
        if self.latest.as_ref().is_some_and(is_fresh) {
            return self.respond();
        }
        let refused = self.source.ask(now);
        self.on_answer(refused);
    }

    fn respond(&mut self) {
        if let Some((latest, _)) = &self.latest {
            self.clients.respond(|format| match latest {
                Ok(snapshot) => Ok(metrics::text(snapshot, format)),
                Err(reason) => Err(reason.clone()),
            });
        }
    }
}
