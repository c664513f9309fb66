//! Figures of the switch for programs that collect them, over HTTP.
//!
//! A process of its own, as it reads what strangers send: who takes it over can make queries, which change
//! nothing and show no bytes of packets, and nothing else. One thread runs one poll loop. Scrapes that come
//! while an answer is under way wait for it, so the control process has at most one question of this process
//! to answer, and an answer serves scrapes for [`FRESH`].
//!
//! The page shows the same to people. It is one file, which asks for figures as long as it is open; the
//! process itself asks nothing that no client waits for. So the history that it shows begins with the first
//! scrape, or with the page.
//!
//! | module | contents |
//! |---|---|
//! | `http`, `hosts` | requests and responses; names by which clients call this process |
//! | `clients` | connections of clients, within bounds |
//! | `source` | the connection to the control process |
//! | `exposition` | families of metrics as text, in two formats |
//! | `metrics` | which metrics there are |
//! | `page` | the page, and the figures that it shows |
//! | `history` | rates of the last 15 minutes |
//! | `talkers` | which port sends to which |

#![forbid(unsafe_code)]

mod clients;
mod exposition;
mod history;
mod hosts;
mod http;
mod metrics;
mod page;
mod source;
mod talkers;

pub use hosts::Hosts;

use clients::Clients;
use control_protocol::supervisor::{FromChild, Role, ToChild};
use control_protocol::{Channel, ChannelError};
use history::History;
use http::Resource;
use management::Snapshot;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::fs::Timespec;
use rustix::io::Errno;
use source::{Answer, Question, Source, Told};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long an answer serves further scrapes.
const FRESH: Duration = Duration::from_millis(200);

/// How long flows serve further pages: to list them is more work.
const FLOWS_FRESH: Duration = Duration::from_secs(5);

/// Why the process could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Waiting failed.
    #[error("poll: {0}")]
    Poll(#[from] Errno),
}

/// Runs until the supervisor says to finish, or is gone. The socket listens and does not block; its clients
/// call it by one of these names.
///
/// # Errors
/// See [`Error`].
pub fn run(supervisor: Channel, listener: OwnedFd, hosts: Hosts) -> Result<(), Error> {
    let mut view = View {
        supervisor,
        clients: Clients::new(listener, hosts),
        source: Source::default(),
        figures: Latest::default(),
        talkers: Latest::default(),
        history: History::default(),
    };
    while view.step()?.is_continue() {}
    Ok(())
}

struct View {
    supervisor: Channel,
    clients: Clients,
    source: Source,
    figures: Latest<Box<Snapshot>>,
    /// Which port sends to which, as text.
    talkers: Latest<String>,
    history: History,
}

/// The latest answer to a question, and when it came.
struct Latest<T>(Option<(Result<T, String>, Instant)>);

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Latest(None)
    }
}

impl<T> Latest<T> {
    fn is_fresh(&self, now: Instant, fresh: Duration) -> bool {
        let is_fresh =
            |(answer, since): &(Result<T, String>, Instant)| answer.is_ok() && *since + fresh > now;
        self.0.as_ref().is_some_and(is_fresh)
    }

    /// The answer as text.
    fn text(&self, text: impl Fn(&T) -> String) -> Option<Result<String, String>> {
        let (answer, _) = self.0.as_ref()?;
        Some(answer.as_ref().map(text).map_err(Clone::clone))
    }
}

/// The question whose answer a resource is made of; `None` if it is always the same.
fn question(resource: Resource) -> Option<Question> {
    match resource {
        Resource::Page => None,
        Resource::Metrics(_) | Resource::Figures | Resource::History => Some(Question::Figures),
        Resource::Talkers => Some(Question::Flows),
    }
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
                    (self.figures, self.talkers) = Default::default();
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
        let Some((question, told)) = answer else { return };
        let now = Instant::now();
        match (question, told) {
            (Question::Figures, Ok(Told::Figures(snapshot))) => {
                self.history.take(&snapshot, now);
                self.figures = Latest(Some((Ok(snapshot), now)));
            }
            (Question::Flows, Ok(Told::Flows(flows))) => {
                self.talkers = Latest(Some((Ok(talkers::json(&flows)), now)));
            }
            (Question::Figures, Err(reason)) => self.figures = Latest(Some((Err(reason), now))),
            (Question::Flows, Err(reason)) => self.talkers = Latest(Some((Err(reason), now))),
            // Told is what was asked for.
            (Question::Figures, Ok(Told::Flows(_))) | (Question::Flows, Ok(Told::Figures(_))) => {}
        }
        self.respond(question);
    }

    /// Responds to clients from what is known, or asks for it.
    fn serve(&mut self, now: Instant) {
        self.clients.respond(|resource| match question(resource) {
            None => Some(Ok(page::HTML.to_owned())),
            Some(_) => None,
        });
        for asked in [Question::Figures, Question::Flows] {
            let is_wanted = |resource| question(resource) == Some(asked);
            if !self.clients.wanted().any(is_wanted) {
                continue;
            }
            let is_fresh = match asked {
                Question::Figures => self.figures.is_fresh(now, FRESH),
                Question::Flows => self.talkers.is_fresh(now, FLOWS_FRESH),
            };
            if is_fresh {
                self.respond(asked);
            } else if self.source.is_late() {
                self.on_answer(Some((asked, Err(source::SILENT.into()))));
            } else if !self.source.is_asked() {
                let refused = self.source.ask(asked, now);
                self.on_answer(refused);
            }
        }
    }

    /// Responds to clients that wait for the answer to a question.
    fn respond(&mut self, asked: Question) {
        let View {
            clients,
            figures,
            talkers,
            history,
            ..
        } = self;
        clients.respond(|resource| match resource {
            resource if question(resource) != Some(asked) => None,
            Resource::Metrics(format) => figures.text(|snapshot| metrics::text(snapshot, format)),
            Resource::Figures => figures.text(|snapshot| page::figures(snapshot)),
            Resource::History => figures.text(|_| history.json(Instant::now())),
            Resource::Talkers => talkers.text(String::clone),
            Resource::Page => None,
        });
    }
}
