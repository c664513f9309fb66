//! The worker of one port: its device, and its connection to the data plane.
//!
//! | device | session | state reported | frames |
//! |---|---|---|---|
//! | none, or broken (reported once) | up | `Up` | from the data plane: thrown away |
//! | any | none | `Disconnected`, or `Failed` if the data plane broke a rule; until the next `Attach` | none |
//! | there | up | `Up` | both ways |
//!
//! The two sides fail independently. A connection that was up stays up while there is no device.
//!
//! The worker sleeps in `epoll_wait`, without timeout unless the queue of its device is full. While frames
//! flow it asks without waiting, between batches.

use super::back_end::{self, BackEnd, Full, Takes};
use super::coalescing::{Coalescing, Frames, WhenIdle};
use super::forward::{Counters, DueMark, End, Progress, receive, transmit};
use super::session::{Session, SessionError};
use super::waking_core::{Reason, WakingCore};
use super::watchdog::{Beats, Watchdog};
use control_protocol::driver::InterfaceState;
use control_protocol::forwarder::Device;
use flow::PortId;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};
use thread_priority::{Booster, Priority, WakeMode};
use virtqueue::driver::Doorbell;
use vm_state::VmState;

/// After how long frames are tried again for which the device's queue had no room.
const FULL_NAP: Duration = Duration::from_millis(1);

/// After how long a worker goes on that had no descriptor or memory to wait with.
const SHORTAGE_NAP: Duration = Duration::from_millis(250);

/// Commands of the main thread to a worker.
#[derive(Debug)]
pub enum Command {
    /// Use this stream, which has this number, and this device.
    Attach(u32, UnixStream, Device, Vec<OwnedFd>),
    /// Use this device from now on, or none.
    Device(Option<(Device, Vec<OwnedFd>)>),
    /// Mark the ring to the data plane once the device has no frame that was there before.
    Mark(u16),
    /// Close everything and end.
    Detach,
}

/// A worker's report to the main thread: its port, its generation among the port's workers, what is new.
pub type Report = (PortId, u64, News);

/// What is new about a port.
#[derive(Debug)]
pub enum News {
    /// The state of the stream with this number.
    State(u32, InterfaceState),
    /// The device does not work any more.
    Broken(String),
}

/// How a worker is made.
pub struct Start {
    pub port: PortId,
    pub generation: u64,
    pub commands: Receiver<Command>,
    /// Signalled after a command was sent.
    pub wake: Arc<Doorbell>,
    pub reports: Sender<Report>,
    /// To be signalled after a report was sent.
    pub reported: Arc<Doorbell>,
    /// How the worker is scheduled while it forwards.
    pub priority: Priority,
    /// The states of cores, if they are published.
    pub states: Option<Arc<VmState>>,
    /// Sees to it that the worker goes on.
    pub watchdog: Arc<Watchdog>,
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
    back_end: Option<Box<dyn BackEnd>>,
    session: Option<Session>,
    /// Number of the stream that is used.
    stream: u32,
    /// What the data plane did against the rules.
    failure: Option<String>,
    told: Option<(u32, InterfaceState)>,
    counters: Counters,
    /// Transmit buffers have run out.
    blocked: bool,
    /// The mark that the ring is to get.
    mark: Option<DueMark>,
    /// The queue of the kernel for which frames wait.
    full: Option<Full>,
    poller: Option<OwnedFd>,
    /// The core from which the thread is woken; `None` if that is not known, or does not matter.
    waking_core: Option<WakingCore>,
    /// Of this thread, once it runs.
    beats: Option<Arc<Beats>>,
}

impl Worker {
    pub fn new(start: Start) -> Worker {
        Worker {
            start,
            back_end: None,
            session: None,
            stream: 0,
            failure: None,
            told: None,
            counters: Counters::default(),
            blocked: false,
            mark: None,
            full: None,
            poller: None,
            waking_core: None,
            beats: None,
        }
    }

    /// Runs until detached.
    pub fn run(mut self) {
        let beats = self.start.watchdog.admit();
        self.beats = Some(beats.clone());
        let mut booster = Booster::anchored(self.start.priority);
        let is_real_time = self.start.priority == Priority::Realtime;
        let states = self.start.states.take().filter(|_| is_real_time);
        self.waking_core = states.and_then(WakingCore::new);
        // There is nothing to report before the first command.
        let mut next = self.start.commands.recv().ok();
        loop {
            while let Some(command) = next {
                match command {
                    Command::Attach(number, stream, device, descriptors) => {
                        self.attach(number, stream, &device, descriptors);
                    }
                    Command::Device(device) => self.set_device(device),
                    Command::Mark(number) => self.mark = Some(DueMark::new(number)),
                    Command::Detach => {
                        log::debug!("port {}: closed, {:?}", self.start.port, self.counters);
                        return;
                    }
                }
                next = self.start.commands.try_recv().ok();
            }
            self.report();
            beats.wake();
            let served = self.serve(&mut booster, &beats);
            beats.rest();
            if let Err(error) = served {
                // Only descriptors or kernel memory running out can bring us here.
                self.lose_device(format!("waiting: {error}"));
                self.session = None;
                self.poller = None;
                next = self.start.commands.recv_timeout(SHORTAGE_NAP).ok();
            } else {
                next = self.start.commands.try_recv().ok();
            }
        }
    }

    fn attach(&mut self, number: u32, stream: UnixStream, device: &Device, descriptors: Vec<OwnedFd>) {
        self.session = None;
        self.poller = None;
        self.failure = None;
        self.stream = number;
        self.told = None;
        self.take_up(device, descriptors);
        self.connect(stream);
    }

    fn set_device(&mut self, device: Option<(Device, Vec<OwnedFd>)>) {
        self.back_end = None;
        self.poller = None;
        if let Some((device, descriptors)) = device {
            self.take_up(&device, descriptors);
        }
    }

    fn take_up(&mut self, device: &Device, descriptors: Vec<OwnedFd>) {
        self.back_end = None;
        self.poller = None;
        self.blocked = false;
        let back_end = back_end::open(device, descriptors).and_then(|mut back_end| {
            let fits = |session: &Session| session.gives_no_more_than(back_end.takes());
            if !self.session.as_ref().is_none_or(fits) {
                // The next stream is negotiated without what it does not take.
                self.session = None;
            }
            if let Some(session) = &self.session {
                back_end.set_offloads(session.offloads())?;
            }
            Ok(back_end)
        });
        match back_end {
            Ok(back_end) => self.back_end = Some(back_end),
            Err(error) => self.lose_device(error.to_string()),
        }
    }

    /// The device cannot be used. The broker opens another one.
    fn lose_device(&mut self, reason: String) {
        self.poller = None;
        self.back_end = None;
        self.start.tell(News::Broken(reason));
    }

    fn connect(&mut self, stream: UnixStream) {
        let spare = stream.try_clone();
        self.blocked = false;
        self.poller = None;
        let back_end = self.back_end.as_ref();
        let takes = back_end.map_or(Takes::TcpSegments, |back_end| back_end.takes());
        match Session::connect(stream, takes) {
            Ok(session) => {
                log::debug!("port {}: features {:#x}", self.start.port, session.features);
                let accepted = self
                    .back_end
                    .as_mut()
                    .map(|back_end| back_end.set_offloads(session.offloads()));
                self.session = Some(session);
                if let Some(Err(error)) = accepted {
                    self.lose_device(error.to_string());
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
        let state = (self.stream, state);
        if self.told.as_ref() == Some(&state) {
            return;
        }
        self.told = Some(state.clone());
        self.start.tell(News::State(state.0, state.1));
    }

    /// Forwards until something else is to be done.
    fn serve(&mut self, booster: &mut Booster, beats: &Beats) -> io::Result<()> {
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
                None
            };
            if timeout == Some(Duration::ZERO) {
                booster.check();
                beats.turn();
            } else {
                booster.prepare_sleep(WakeMode::Preempting);
                beats.rest();
            }
            let ready = self.wait(timeout);
            if timeout != Some(Duration::ZERO) {
                beats.wake();
            }
            let ready = ready?;
            if timeout != Some(Duration::ZERO) {
                booster.woken();
                coalescing.on_wake(Instant::now());
                self.follow_waker(booster, ready);
            }
            if ready.contains(Source::Command) {
                return Ok(());
            }
            if ready.contains(Source::Stream) {
                self.session = None;
                self.poller = None;
                return Ok(());
            }
            if let Some(back_end) = self.back_end.as_ref().filter(|_| ready.interface_broken) {
                let reason = back_end.trouble();
                self.lose_device(reason);
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
                    self.lose_device(error.to_string());
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
            bytes: self.counters.bytes - before.bytes,
        };
        coalescing.note(Instant::now(), frames);
        let WhenIdle::Pause(pause) = coalescing.when_idle(self.blocked) else {
            // The data plane must know that it is to call.
            return Ok(more || action != WhenIdle::Sleep);
        };
        if more {
            return Ok(true);
        }
        booster.prepare_sleep(WakeMode::Preempting);
        std::thread::sleep(pause);
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
        if let Some(back_end) = self.back_end.as_mut().filter(|_| *readable && !self.blocked) {
            let progress = transmit(back_end.as_mut(), session, &mut self.counters)?;
            if let Some(mark) = self.mark.take() {
                self.mark = mark.put(progress, session);
            }
            match progress {
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
        let progress = receive(
            self.back_end.as_deref_mut(),
            session,
            &mut self.counters,
            is_wanted,
        )?;
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
        if let (Some(poller), Some(back_end)) = (&self.poller, &self.back_end) {
            epoll::modify(poller, back_end, data(Source::Interface), self.interface_events())?;
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
        if let Some(back_end) = &self.back_end {
            epoll::add(
                &poller,
                back_end,
                data(Source::Interface),
                self.interface_events(),
            )?;
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
}

impl Drop for Worker {
    /// A bug here must not look like an interface that works.
    fn drop(&mut self) {
        if let Some(beats) = &self.beats {
            self.start.watchdog.dismiss(beats);
        }
        if std::thread::panicking() {
            let failed = InterfaceState::Failed("internal error".into());
            self.start.tell(News::State(self.stream, failed));
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
