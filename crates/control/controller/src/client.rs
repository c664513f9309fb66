//! A controller's side of its channel to the data plane.
//!
//! There is no difference whether the data plane or the controller was restarted: a new channel begins with a
//! hello, the controller asks for what the data plane has, and says when both agree. Until then packets wait.
//! A request has a purpose, and is answered once: by the data plane, or by [`Client::detach`], which returns
//! the purposes of all that were not.

use crate::asked::{Asked, Kind, List, Next, Purpose, is_plausible};
use crate::clean;
use crate::distrust::{Distrust, SYNC_MS};
use crate::link::{Link, Lost};
use crate::outbox::Subject;
use crate::upcalls::{Upcalls, bounded};
use control_protocol::data_plane::{Answer, Detail, FromDataPlane, Request, ToDataPlane, Upcall, VERSION};
use control_protocol::rules::LogRecord;
use control_protocol::supervisor::{FromChild, Role};
use control_protocol::{Channel, RequestError};
use flow::SwitchId;
use rustix::event::PollFlags;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Requests that are not answered.
const MAX_ASKED: usize = 1 << 18;

/// Requests under way, or waiting to be sent, beyond which no more should be asked on behalf of others.
pub const ROOM: usize = 512;

/// The answer to a request.
pub type Answered = Result<Answer, RequestError>;

/// What a data plane has said.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "an event lives for one receive; a box would only add an allocation"
)]
pub enum Event<P> {
    /// The answer to a request with this purpose. Lists are complete.
    Answered(P, Answered),
    /// A packet to decide about: exactly one [`Client::end_upcall`] ends it.
    Upcall(Upcall),
    /// Packets that rules noted.
    RuleRecords(Vec<LogRecord>),
    /// A port has changed: [`FromDataPlane::PortState`] or [`FromDataPlane::ForeignPort`].
    Port(FromDataPlane),
}

/// What a data plane has said about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Process identifier.
    pub pid: u32,
    /// Number of worker threads.
    pub workers: u32,
}

/// The data plane, or that there is none at the moment. `P`: the purposes of requests.
#[derive(Debug)]
pub struct Client<P> {
    session: Option<Session<P>>,
    distrust: Distrust,
    /// Violations on channels that are given up.
    violations: u64,
}

/// The channel, and the requests under way on it.
#[derive(Debug)]
struct Session<P> {
    link: Link<ToDataPlane>,
    serial: u32,
    asked: HashMap<u32, Asked<P>>,
    /// Entries of lists that are not complete.
    listed: usize,
    welcome: Option<Welcome>,
    /// Lists that are to be compared before both sides agree; `None` until that is known.
    to_compare: Option<usize>,
    upcalls: Upcalls,
    since_ms: u64,
}

impl<P> Default for Client<P> {
    fn default() -> Self {
        Client {
            session: None,
            distrust: Distrust::new(Role::DataPlane),
            violations: 0,
        }
    }
}

impl<P> Client<P> {
    /// Whether there is a data plane.
    pub fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// The descriptor and the events to poll for.
    pub fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let session = self.session.as_ref()?;
        let mut events = session.link.interest();
        if session.agrees() && !session.upcalls.is_empty() {
            events |= PollFlags::OUT;
        }
        Some((session.link.fd(), events))
    }

    /// Begins with a new channel. The one before was [given up](Self::detach).
    pub fn attach(&mut self, channel: Channel, now_ms: u64) {
        self.distrust.on_attach();
        let mut session = Session {
            link: Link::new(channel),
            serial: 0,
            asked: HashMap::new(),
            listed: 0,
            welcome: None,
            to_compare: None,
            upcalls: Upcalls::default(),
            since_ms: now_ms,
        };
        session.ask(
            Request::Hello { version: VERSION },
            Vec::new(),
            Purpose::Hello,
            None,
        );
        self.session = Some(session);
    }

    /// Gives up the channel, for this reason, if there is one; `None` as a reason: another channel takes its
    /// place. Returns the purposes of requests that are not answered; `None` if there was no channel.
    pub fn detach(&mut self, lost: Option<Lost>, now_ms: u64) -> Option<Vec<P>> {
        let session = self.session.take()?;
        self.violations += u64::from(session.link.violations());
        if let Some(lost) = lost {
            self.distrust.on_loss(lost, now_ms);
        }
        let unanswered = session.asked.into_values();
        Some(unanswered.filter_map(|asked| asked.purpose.asked()).collect())
    }

    /// The process of the data plane, once it has said so.
    pub fn welcome(&self) -> Option<Welcome> {
        self.session.as_ref()?.welcome
    }

    /// Messages that were malformed, of the wrong kind or not asked for.
    pub fn violations(&self) -> u64 {
        let now = self
            .session
            .as_ref()
            .map_or(0, |session| session.link.violations());
        self.violations + u64::from(now)
    }

    /// Whether more should be asked now on behalf of others.
    pub fn has_room(&self) -> bool {
        let has_room = |session: &Session<P>| session.asked.len() < ROOM && session.link.waiting() < ROOM;
        self.session.as_ref().is_none_or(has_room)
    }

    /// Whether messages wait to be sent.
    pub fn has_to_send(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| session.link.waiting() > 0)
    }

    /// Gathers requests from now on, to send many at a time, or gathers no longer.
    pub fn gather(&mut self, gathers: bool) {
        if let Some(session) = &mut self.session {
            session.link.flush();
            session.link.gather(gathers);
        }
    }

    /// Sends requests that wait, as far as there is room.
    pub fn flush(&mut self) {
        if let Some(session) = &mut self.session {
            session.link.flush();
        }
    }

    /// Sends a request. Without a data plane, the purpose comes back. Of flows, a list is one page.
    ///
    /// # Errors
    /// There is no data plane.
    pub fn ask(&mut self, request: Request, fds: Vec<OwnedFd>, purpose: P) -> Result<(), P> {
        let Some(session) = &mut self.session else {
            return Err(purpose);
        };
        session.ask(request, fds, Purpose::Asked(purpose), None);
        Ok(())
    }

    /// Asks for all flows of a switch, page by page.
    ///
    /// # Errors
    /// There is no data plane.
    pub fn ask_for_flows(&mut self, switch: SwitchId, detail: Detail, purpose: P) -> Result<(), P> {
        let Some(session) = &mut self.session else {
            return Err(purpose);
        };
        let request = Request::FlowList {
            switch,
            after: None,
            detail,
        };
        let pages = Some((switch, detail));
        session.ask(request, Vec::new(), Purpose::Asked(purpose), pages);
        Ok(())
    }

    /// Sends a request that fails only if one of both processes has an error.
    pub fn tell(&mut self, request: Request) {
        let Some(session) = &mut self.session else {
            return;
        };
        let purpose = match request {
            Request::PortDel { .. } => Purpose::Told("removing a port"),
            Request::PortSet { .. } => Purpose::Told("changing a port"),
            Request::PortRates { .. } => Purpose::Told("changing a port's bandwidth"),
            Request::FlowDel { .. } => Purpose::Told("removing a flow"),
            Request::FlowFlush { .. } => Purpose::Told("removing the flows of a switch"),
            Request::MeterSet { .. } => Purpose::Told("limiting a port"),
            // The port may be gone, of which its own controller knows.
            Request::PortThreads { .. } => Purpose::Forgotten,
            _ => Purpose::Told("a request"),
        };
        session.ask(request, Vec::new(), purpose, None);
    }

    /// Ends an upcall, or sends a packet that ends none. The packet is left out if too many wait to be sent
    /// already; false if that ends no upcall, so that nothing is sent.
    pub fn end_upcall(&mut self, request: Request) -> bool {
        self.session.as_mut().is_none_or(|session| session.end(request))
    }

    /// So many lists are still to be compared until both sides agree, and upcalls are decided about.
    pub fn compare(&mut self, lists: usize) {
        if let Some(session) = &mut self.session {
            session.to_compare = Some(lists);
        }
    }

    /// One of the lists was compared.
    pub fn compared(&mut self) {
        if let Some(session) = &mut self.session {
            session.to_compare = session.to_compare.map(|left| left.saturating_sub(1));
        }
    }

    /// The number of requests with a purpose of that sort.
    pub fn count(&self, of: impl Fn(&P) -> bool) -> usize {
        let session = self.session.iter();
        let asked = session.flat_map(|session| session.asked.values());
        asked
            .filter(|asked| matches!(&asked.purpose, Purpose::Asked(purpose) if of(purpose)))
            .count()
    }

    /// Nobody waits for answers to requests with purposes of that sort any longer.
    pub fn forget(&mut self, of: impl Fn(&P) -> bool) {
        let Some(session) = &mut self.session else {
            return;
        };
        for asked in session.asked.values_mut() {
            if matches!(&asked.purpose, Purpose::Asked(purpose) if of(purpose)) {
                asked.purpose = Purpose::Forgotten;
                session.listed -= std::mem::take(&mut asked.list).len();
            }
        }
    }

    /// What the data plane says next. `ports`: the number of the controller's ports, by which lists are
    /// bounded.
    ///
    /// # Errors
    /// The channel is to be [given up](Self::detach).
    pub fn receive(&mut self, ports: usize) -> Result<Option<Event<P>>, Lost> {
        let Some(session) = &mut self.session else {
            return Ok(None);
        };
        loop {
            if session.agrees()
                && let Some(upcall) = session.upcalls.next()
            {
                return Ok(Some(Event::Upcall(upcall)));
            }
            if session.asked.len() > MAX_ASKED {
                return Err(Lost::Unresponsive);
            }
            let Some((message, _)) = session.link.receive()? else {
                return Ok(None);
            };
            self.distrust.on_message();
            if let Some(event) = session.take(clean::data_plane(message), ports) {
                return Ok(Some(event));
            }
        }
    }

    /// Whether the data plane has listed its state in time.
    ///
    /// # Errors
    /// The channel is to be [given up](Self::detach).
    pub fn check(&self, now_ms: u64) -> Result<(), Lost> {
        match self.sync_deadline_ms() {
            Some(deadline_ms) if deadline_ms <= now_ms => Err(Lost::Unresponsive),
            _ => Ok(()),
        }
    }

    /// What the supervisor is to be told now.
    pub fn complaint(&mut self, now_ms: u64) -> Option<FromChild> {
        let owes = self
            .session
            .as_ref()
            .is_some_and(|session| !session.asked.is_empty());
        self.distrust.complaint(owes, now_ms)
    }

    /// When to [`check`](Self::check) and look for [complaints](Self::complaint) next.
    pub fn due_ms(&self) -> Option<u64> {
        let deadlines = [self.sync_deadline_ms(), self.distrust.due_ms()];
        deadlines.into_iter().flatten().min()
    }

    fn sync_deadline_ms(&self) -> Option<u64> {
        let session = self.session.as_ref()?;
        let is_known = session.welcome.is_some() && session.agrees();
        (!is_known).then_some(session.since_ms + SYNC_MS)
    }
}

/// What a request is about that a later one of the same kind replaces.
fn subject(request: &Request) -> Option<Subject> {
    match request {
        Request::PortSet { port, .. } => Some((0, port.0)),
        Request::PortEnable { port, .. } => Some((1, port.0)),
        Request::PortThreads { port, .. } => Some((2, port.0)),
        Request::PortRates { port, .. } => Some((3, port.0)),
        _ => None,
    }
}

impl<P> Session<P> {
    fn agrees(&self) -> bool {
        self.to_compare == Some(0)
    }

    fn ask(
        &mut self,
        request: Request,
        fds: Vec<OwnedFd>,
        purpose: Purpose<P>,
        pages: Option<(SwitchId, Detail)>,
    ) {
        let Some(kind) = Kind::of(&request) else {
            self.end(request);
            return;
        };
        let after = match request {
            Request::FlowList { after, .. } => after,
            _ => None,
        };
        let list = List::new(pages, after);
        // Somebody waits for the answer to each of the others.
        let subject = subject(&request).filter(|_| purpose.is_told());
        self.send(request, fds, subject, Asked { purpose, kind, list });
    }

    fn send(&mut self, request: Request, fds: Vec<OwnedFd>, subject: Option<Subject>, asked: Asked<P>) {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let message = ToDataPlane { serial, request };
        self.asked.insert(serial, asked);
        if let Some(replaced) = self.link.send_about(message, fds, 0, subject) {
            self.asked.remove(&replaced.serial);
        }
    }

    fn end(&mut self, request: Request) -> bool {
        let Some((request, bytes)) = bounded(request, self.link.bytes()) else {
            return false;
        };
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let message = ToDataPlane { serial, request };
        self.link.send_about(message, Vec::new(), bytes, None);
        true
    }

    fn take(&mut self, message: FromDataPlane, ports: usize) -> Option<Event<P>> {
        match message {
            FromDataPlane::Answer { serial, result } => self.answered(serial, result, ports),
            FromDataPlane::Upcall(upcall) if self.agrees() => Some(Event::Upcall(upcall)),
            FromDataPlane::Upcall(upcall) => {
                let ended = self.upcalls.hold(upcall)?;
                self.end(ended);
                None
            }
            changed @ (FromDataPlane::PortState { .. } | FromDataPlane::ForeignPort { .. }) => {
                Some(Event::Port(changed))
            }
            FromDataPlane::RuleRecords(records) => Some(Event::RuleRecords(records)),
        }
    }

    fn answered(&mut self, serial: u32, result: Answered, ports: usize) -> Option<Event<P>> {
        let Some(mut asked) = self.asked.remove(&serial) else {
            self.link.count_violation("an answer that was not asked for");
            return None;
        };
        let arrived = asked.list.len();
        let next = match result {
            Err(error) => Err(error),
            Ok(answer) if !asked.kind.is_of(&answer) => Err(self.refuse("an answer to another question")),
            Ok(answer) if !is_plausible(&answer, self.listed, ports) => {
                self.link.give_up("a list that cannot be");
                // The purpose is returned when the channel is given up.
                self.asked.insert(serial, asked);
                return None;
            }
            Ok(answer) => Ok(asked.list.take(answer)),
        };
        self.listed -= arrived;
        match next {
            Err(error) => self.end_request(asked.purpose, Err(error)),
            Ok(Next::Whole(answer)) => self.end_request(asked.purpose, Ok(answer)),
            Ok(Next::Disorder) if asked.list.has_pages() => {
                self.link.give_up("a list without order");
                self.asked.insert(serial, asked);
                None
            }
            Ok(Next::Disorder) => {
                let error = self.refuse("a list without order");
                self.end_request(asked.purpose, Err(error))
            }
            Ok(Next::Part) => {
                self.listed += asked.list.len();
                self.asked.insert(serial, asked);
                None
            }
            Ok(Next::Page) => {
                if !asked.purpose.is_told()
                    && let Some(request) = asked.list.next_page()
                {
                    self.listed += asked.list.len();
                    self.send(request, Vec::new(), None, asked);
                }
                None
            }
        }
    }

    fn end_request(&mut self, purpose: Purpose<P>, result: Answered) -> Option<Event<P>> {
        match (purpose, result) {
            (Purpose::Asked(purpose), result) => return Some(Event::Answered(purpose, result)),
            (Purpose::Hello, Ok(Answer::Welcome { workers, pid, .. })) => {
                self.welcome = Some(Welcome { workers, pid });
            }
            (Purpose::Told(what), Err(error)) => {
                telemetry::limited!(log::Level::Error, "{what}: {error}");
            }
            (Purpose::Hello, result) => {
                log::error!("the data plane does not understand us: {result:?}");
            }
            (Purpose::Told(_), Ok(_)) | (Purpose::Forgotten, _) => {}
        }
        None
    }

    /// Counts an answer as a violation, and makes an error of it.
    fn refuse(&mut self, what: &str) -> RequestError {
        self.link.count_violation(what);
        RequestError {
            errno: clean::EIO,
            text: "the data plane's answer makes no sense".into(),
        }
    }
}
