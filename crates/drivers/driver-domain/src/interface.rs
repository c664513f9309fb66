//! The worker of one port: the life of its interface and of its connection to the data plane.
//!
//! | interface | session | state reported | frames |
//! |---|---|---|---|
//! | closed | any | `Failed`; opened again after a delay that doubles | from the data plane: thrown away |
//! | open | none | `Disconnected`, or `Failed` if the data plane broke a rule; until the next `Attach` | none |
//! | open | up | `Up` | both ways |
//!
//! The two sides fail independently. A stream that arrives while the interface is closed waits for it, so
//! that the data plane sees a port as running only when it leads somewhere. A connection that was up stays up
//! while the interface is gone, since only the control process could bring a new one.
//!
//! The worker sleeps in `epoll_wait`, without timeout unless the interface is to be tried again, or its
//! device's queue is full. While frames flow it asks without waiting, between batches.

use crate::coalescing::{Coalescing, Frames, PAUSE, WhenIdle};
use crate::forward::{Counters, End, Progress, receive, transmit};
use crate::nic::{Full, Nic};
use crate::session::{Session, SessionError};
use crate::waking_core::{Reason, WakingCore};
use control_protocol::driver::{InterfaceSpec, InterfaceState};
use flow::PortId;
use nic_packet::{Addresses, NicError, Owner, Uplink};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use thread_priority::{Booster, Priority, WakeMode};
use virtqueue::driver::Doorbell;
use vm_state::VmState;

/// First delay before an interface is opened again, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(16));

/// After how long frames are tried again for which the device's queue had no room.
const FULL_NAP: Duration = Duration::from_millis(1);

/// Commands of the main thread to a worker.
#[derive(Debug)]
pub enum Command {
    /// Use this stream, this specification if it differs, and this TAP if one was given.
    Attach(InterfaceSpec, UnixStream, Option<OwnedFd>),
    /// Use this specification from now on.
    Change(InterfaceSpec),
    /// Look at the interface's addresses, which may have changed.
    Look,
    /// Close everything and end.
    Detach,
}

/// A worker's report to the main thread: its port, its generation among the port's workers, what is new.
pub type Report = (PortId, u64, News);

/// What is new about an interface.
#[derive(Debug)]
pub enum News {
    State(InterfaceState),
    Addresses(Addresses),
}

/// How a worker is made.
pub struct Start {
    pub port: PortId,
    pub generation: u64,
    pub spec: InterfaceSpec,
    pub commands: Receiver<Command>,
    /// Signalled after a command was sent.
    pub wake: Arc<Doorbell>,
    pub reports: Sender<Report>,
    /// To be signalled after a report was sent.
    pub reported: Arc<Doorbell>,
    /// How the worker is scheduled while it forwards.
    pub priority: Priority,
    /// Whose the interface is.
    pub owner: Arc<Owner>,
    /// The states of cores, if they are published.
    pub states: Option<Arc<VmState>>,
}

/// What a descriptor that became ready means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Source {
    Command,
    Interface,
    Stream,
    Received,
    Returned,
}

impl Start {
    fn tell(&self, news: News) {
        // The main thread is gone only when the process ends.
        let _ = self.reports.send((self.port, self.generation, news));
        self.reported.ring();
    }
}

pub struct Worker {
    start: Start,
    nic: Option<Nic>,
    session: Option<Session>,
    /// Waits for the interface.
    stream: Option<UnixStream>,
    /// Addresses that an earlier specification had, and that may still have to be removed.
    stale: Vec<(IpAddr, u8)>,
    /// Why the last attempt on either side failed.
    failure: Option<String>,
    retry: Option<(Instant, Duration)>,
    told: Option<InterfaceState>,
    /// As reported last.
    addresses: Addresses,
    counters: Counters,
    /// Transmit buffers have run out.
    blocked: bool,
    /// The queue of the kernel for which frames wait.
    full: Option<Full>,
    poller: Option<OwnedFd>,
    /// The core from which the thread is woken; `None` if that is not known, or does not matter.
    waking_core: Option<WakingCore>,
}

impl Worker {
    pub fn new(start: Start) -> Worker {
        Worker {
            start,
            nic: None,
            session: None,
            stream: None,
            stale: Vec::new(),
            failure: None,
            retry: None,
            told: None,
            addresses: Addresses::default(),
            counters: Counters::default(),
            blocked: false,
            full: None,
            poller: None,
            waking_core: None,
        }
    }

    /// Runs until detached.
    pub fn run(mut self) {
        let mut booster = Booster::anchored(self.start.priority);
        let is_real_time = self.start.priority == Priority::Realtime;
        let states = self.start.states.take().filter(|_| is_real_time);
        self.waking_core = states.and_then(WakingCore::new);
        // There is nothing to report before the first command.
        let mut next = self.start.commands.recv().ok();
        loop {
            while let Some(command) = next {
                match command {
                    Command::Attach(spec, stream, tap) => self.attach(spec, stream, tap),
                    Command::Change(spec) => self.specify(spec, None),
                    Command::Look => self.look(),
                    Command::Detach => {
                        self.remove();
                        return;
                    }
                }
                next = self.start.commands.try_recv().ok();
            }
            if self.retry_is_due() {
                self.open();
            }
            self.connect();
            // The next command may make this state obsolete: the control process must not take the end of a
            // stream that it has replaced for the end of the new one.
            next = self.start.commands.try_recv().ok();
            if next.is_some() {
                continue;
            }
            self.report();
            if let Err(error) = self.serve(&mut booster) {
                // Only descriptors or kernel memory running out can bring us here.
                self.close_interface(format!("waiting: {error}"));
                self.session = None;
                self.poller = None;
                next = self.start.commands.recv_timeout(RETRY.0).ok();
            } else {
                next = self.start.commands.try_recv().ok();
            }
        }
    }

    fn attach(&mut self, spec: InterfaceSpec, stream: UnixStream, tap: Option<OwnedFd>) {
        self.session = None;
        self.poller = None;
        self.stream = Some(stream);
        self.told = None;
        self.specify(spec, tap);
    }

    /// Takes on a specification, which may be the one it has. The device changes in place if it is open and
    /// the same one.
    fn specify(&mut self, spec: InterfaceSpec, tap: Option<OwnedFd>) {
        let old = std::mem::replace(&mut self.start.spec, spec);
        let spec = &self.start.spec;
        self.retry = None;
        if old.is_same_device(spec) {
            self.stale.extend(old.addresses());
            self.stale.retain(|address| !spec.addresses().contains(address));
            self.stale.sort_unstable();
            self.stale.dedup();
        } else {
            self.stale.clear();
            self.remove_interface(&old.name);
        }
        if let Some(tap) = tap {
            self.nic = None;
            let given = Nic::given(&self.start.spec.name, tap);
            return self.take_up(given);
        }
        let open = self.nic.as_ref().filter(|nic| nic.is_current());
        match open.map(|nic| nic.change(&old, &self.start.spec)) {
            Some(Ok(true)) => {
                self.stale.clear();
                self.failure = None;
                self.look();
            }
            Some(Err(error)) => self.close_interface(error.to_string()),
            Some(Ok(false)) | None => {
                self.nic = None;
                self.open();
            }
        }
    }

    fn open(&mut self) {
        let opened = Nic::open(&self.start.spec, &self.stale, &self.start.owner);
        self.take_up(opened);
    }

    fn take_up(&mut self, opened: Result<Nic, NicError>) {
        let opened = opened.and_then(|nic| {
            if let Some(session) = &self.session {
                nic.set_offloads(session.offloads())?;
            }
            Ok(nic)
        });
        match opened {
            Ok(nic) => {
                self.nic = Some(nic);
                self.stale.clear();
                self.poller = None;
                self.failure = None;
                self.retry = None;
                self.blocked = false;
                self.look();
            }
            Err(error) => self.close_interface(error.to_string()),
        }
    }

    /// Reports the addresses of the interface if they are other ones.
    fn look(&mut self) {
        match self.nic.as_ref().and_then(|nic| nic.addresses(&self.start.spec)) {
            Some(Ok(addresses)) if self.addresses != addresses => {
                self.addresses = addresses.clone();
                self.start.tell(News::Addresses(addresses));
            }
            Some(Err(error)) => log::debug!("port {}: {error}", self.start.port),
            Some(Ok(_)) | None => {}
        }
    }

    fn close_interface(&mut self, reason: String) {
        self.nic = None;
        self.poller = None;
        let delay = self.retry.map_or(RETRY.0, |(_, delay)| (delay * 2).min(RETRY.1));
        self.retry = Some((Instant::now() + delay, delay));
        self.failure = Some(reason);
    }

    /// Uses a waiting stream if there is an interface to use it for.
    fn connect(&mut self) {
        if self.nic.is_none() {
            return;
        }
        let Some(stream) = self.stream.take() else { return };
        let spare = stream.try_clone();
        self.blocked = false;
        self.poller = None;
        match Session::connect(stream) {
            Ok(session) => {
                log::debug!("port {}: features {:#x}", self.start.port, session.features);
                let accepted = self.nic.as_ref().map(|nic| nic.set_offloads(session.offloads()));
                self.session = Some(session);
                if let Some(Err(error)) = accepted {
                    self.close_interface(error.to_string());
                }
            }
            // A peer that disconnected is no error.
            Err(_) if spare.is_ok_and(|stream| has_hung_up(&stream)) => {}
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    fn report(&mut self) {
        let state = match (&self.failure, &self.session) {
            (Some(reason), _) => InterfaceState::Failed(reason.clone()),
            (None, None) => InterfaceState::Disconnected,
            (None, Some(_)) => InterfaceState::Up,
        };
        if self.told.as_ref() == Some(&state) {
            return;
        }
        let (port, name) = (self.start.port, &self.start.spec.name);
        // The controller tells users, once: each of its attempts makes the state new here, with the same
        // outcome most often.
        log::debug!("port {port} ({name}): {state:?}");
        self.told = Some(state.clone());
        self.start.tell(News::State(state));
    }

    /// Forwards until something else is to be done.
    fn serve(&mut self, booster: &mut Booster) -> io::Result<()> {
        let mut readable = true;
        let mut busy = true;
        let mut coalescing = Coalescing::new(Instant::now());
        loop {
            if self.poller.is_none() {
                self.poller = Some(self.watch()?);
            }
            let timeout = if busy {
                Some(Duration::ZERO)
            } else if self.full == Some(Full::Device) && self.session.is_some() {
                Some(FULL_NAP)
            } else {
                self.until_retry()
            };
            if timeout == Some(Duration::ZERO) {
                booster.check();
            } else {
                booster.prepare_sleep(WakeMode::Preempting);
            }
            let ready = self.wait(timeout)?;
            if timeout != Some(Duration::ZERO) {
                booster.woken();
                self.follow_waker(booster, ready);
            }
            if ready.contains(Source::Command) || self.retry_is_due() {
                return Ok(());
            }
            if ready.contains(Source::Stream) {
                self.session = None;
                self.poller = None;
                return Ok(());
            }
            if let Some(nic) = self.nic.as_ref().filter(|_| ready.interface_broken) {
                let reason = interface_error(nic);
                self.close_interface(reason);
                return Ok(());
            }
            readable |= ready.contains(Source::Interface);
            if self.blocked && ready.contains(Source::Returned) {
                self.set_blocked(false)?;
                readable = true;
            }
            match self.forward_and_pause(&mut readable, &mut coalescing, booster) {
                Ok(more) => busy = more,
                Err(End::Interface(error)) => {
                    self.close_interface(error.to_string());
                    return Ok(());
                }
                Err(End::Session(error)) => {
                    self.end_session(&error);
                    return Ok(());
                }
            }
        }
    }

    /// Has the thread go where it is woken from mostly.
    fn follow_waker(&mut self, booster: &mut Booster, ready: Ready) {
        let reason = if ready.contains(Source::Interface) {
            Reason::Sent
        } else {
            Reason::Delivered
        };
        let core = self.waking_core.as_mut().and_then(|core| core.note(reason));
        if let Some(core) = core {
            booster.stay_on(core);
        }
    }

    /// Forwards, and sleeps for a while if frames come too fast to be waited for one by one. Returns whether
    /// there may be more.
    fn forward_and_pause(
        &mut self,
        readable: &mut bool,
        coalescing: &mut Coalescing,
        booster: &mut Booster,
    ) -> Result<bool, End> {
        let before = self.counters;
        let action = coalescing.when_idle(self.blocked);
        let more = self.forward(readable, action == WhenIdle::Sleep)?;
        let frames = Frames {
            from_interface: self.counters.from_interface - before.from_interface,
            to_interface: self.counters.to_interface - before.to_interface,
        };
        coalescing.note(Instant::now(), frames);
        if more || coalescing.when_idle(self.blocked) == WhenIdle::Sleep {
            // The data plane must know that it is to call.
            return Ok(more || action != WhenIdle::Sleep);
        }
        booster.prepare_sleep(WakeMode::Preempting);
        std::thread::sleep(PAUSE);
        booster.woken();
        *readable = true;
        Ok(true)
    }

    /// One batch each way. Returns whether there may be more; if not, the data plane calls if that
    /// `is_wanted`.
    fn forward(&mut self, readable: &mut bool, is_wanted: bool) -> Result<bool, End> {
        let Some(session) = &mut self.session else {
            return Ok(false);
        };
        let mut busy = false;
        if let Some(nic) = self.nic.as_mut().filter(|_| *readable && !self.blocked) {
            match transmit(nic, session, &mut self.counters)? {
                Progress::More => busy = true,
                Progress::Idle | Progress::Full(_) => *readable = false,
                Progress::Blocked => {
                    *readable = false;
                    self.set_blocked(true).map_err(End::Interface)?;
                }
            }
        }
        let Some(session) = &mut self.session else {
            return Ok(false);
        };
        let progress = receive(self.nic.as_ref(), session, &mut self.counters, is_wanted)?;
        let full = match progress {
            Progress::Full(full) => Some(full),
            _ => None,
        };
        if self.full != full {
            self.full = full;
            self.listen().map_err(End::Interface)?;
        }
        Ok(busy || progress == Progress::More)
    }

    fn end_session(&mut self, error: &SessionError) {
        self.session = None;
        self.poller = None;
        self.failure = Some(error.to_string());
    }

    /// Stops or resumes listening to the interface, which stays readable while we cannot read.
    fn set_blocked(&mut self, blocked: bool) -> io::Result<()> {
        self.blocked = blocked;
        self.listen()?;
        if let Some(session) = self.session.as_mut().filter(|_| !blocked) {
            session.transmit.disable_notifications();
        }
        Ok(())
    }

    /// Listens to the interface for what is of use now.
    fn listen(&self) -> io::Result<()> {
        if let (Some(poller), Some(nic)) = (&self.poller, &self.nic) {
            epoll::modify(poller, nic, data(Source::Interface), self.interface_events())?;
        }
        Ok(())
    }

    /// Errors are reported always. Without a session frames wait in the kernel.
    fn interface_events(&self) -> EventFlags {
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, self.session.is_some() && !self.blocked);
        events.set(EventFlags::OUT, self.full == Some(Full::Socket));
        events
    }

    /// Makes an epoll instance for what is there now. Interface and stream are watched by level, event
    /// descriptors by edge, because they are not read.
    fn watch(&self) -> io::Result<OwnedFd> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&poller, &*self.start.wake, data(Source::Command), edge)?;
        if let Some(nic) = &self.nic {
            epoll::add(&poller, nic, data(Source::Interface), self.interface_events())?;
        }
        if let Some(session) = &self.session {
            epoll::add(
                &poller,
                &session.stream,
                data(Source::Stream),
                EventFlags::IN | EventFlags::RDHUP,
            )?;
            epoll::add(&poller, &session.receive_bell.call, data(Source::Received), edge)?;
            epoll::add(&poller, &session.transmit_bell.call, data(Source::Returned), edge)?;
        }
        Ok(poller)
    }

    fn retry_is_due(&self) -> bool {
        self.retry.is_some_and(|(at, _)| at <= Instant::now())
    }

    fn until_retry(&self) -> Option<Duration> {
        self.retry
            .map(|(at, _)| at.saturating_duration_since(Instant::now()))
    }

    fn wait(&self, timeout: Option<Duration>) -> io::Result<Ready> {
        let poller = self.poller.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; 8];
        let timespec =
            timeout.map(|timeout| Timespec::try_from(timeout).expect("delays are seconds, not centuries"));
        let count = match epoll::wait(poller, &mut events[..], timespec.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            count => count?,
        };
        let mut ready = Ready::default();
        for event in &events[..count] {
            let (flags, source) = (event.flags, event.data.u64());
            ready.sources |= 1 << source;
            ready.interface_broken |=
                source == Source::Interface as u64 && flags.intersects(EventFlags::ERR | EventFlags::HUP);
        }
        Ok(ready)
    }

    fn remove(&mut self) {
        self.session = None;
        let name = self.start.spec.name.clone();
        self.remove_interface(&name);
        log::debug!("port {} ({name}): closed, {:?}", self.start.port, self.counters);
    }

    fn remove_interface(&mut self, name: &str) {
        self.poller = None;
        let removed = match self.nic.take() {
            Some(nic) => nic.remove(&self.start.owner),
            // It may come back later, without a worker.
            None => Uplink::show(name, &self.start.owner),
        };
        if let Err(error) = removed {
            log::warn!("port {} ({name}): {error}", self.start.port);
        }
    }
}

impl Drop for Worker {
    /// A bug here must not look like an interface that works.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let failed = InterfaceState::Failed("internal error".into());
            self.start.tell(News::State(failed));
        }
    }
}

/// The result of `epoll_wait`.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    /// One bit per [`Source`].
    sources: u64,
    interface_broken: bool,
}

impl Ready {
    fn contains(self, source: Source) -> bool {
        self.sources & 1 << source as u64 != 0
    }
}

fn data(source: Source) -> EventData {
    EventData::new_u64(source as u64)
}

/// The pending error of a packet socket. A TAP signals an error only when it was removed.
fn interface_error(nic: &Nic) -> String {
    match nic {
        Nic::Tap(_) => "the interface was removed".into(),
        Nic::Uplink(uplink) | Nic::Device(uplink, _) => match rustix::net::sockopt::socket_error(uplink) {
            Ok(Err(error)) => format!("the interface is gone: {}", io::Error::from(error)),
            _ => "the interface is gone".into(),
        },
    }
}

fn has_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let ready = rustix::event::poll(&mut fds, Some(&now));
    ready.is_ok()
        && fds[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}
