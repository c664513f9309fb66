//! The thread that opens and configures one port's interface, and tries again when that fails.
//!
//! | interface | a stream to the data plane |
//! |---|---|
//! | closed; opened again after a delay that doubles, or soon after its link is up | waits here |
//! | open | is passed on, for the forwarder |
//!
//! So the data plane sees a port as running only when it leads somewhere. A connection that was up stays up
//! while the interface is gone, since only a controller could bring a new one.
//!
//! A device that is down stays hidden from the host's stack until it is open again, is gone, or is detached.
//! What hides it is kept by the supervisor, as an open interface is, so it outlives the broker.

use super::open_interface::{Interface, Means};
use control_protocol::driver::InterfaceSpec;
use control_protocol::forwarder::Opened;
use flow::PortId;
use nic_packet::{Addresses, Hiding, NicError};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use virtqueue::driver::Doorbell;

/// First delay before an interface is opened again, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(16));

/// Delay after a failure until an interface is opened again whose link is said to be up.
const RETRY_UP: Duration = Duration::from_millis(100);

/// Commands of the main thread.
#[derive(Debug)]
pub enum Command {
    /// Use this stream, this specification if it differs, and this TAP if one was given.
    Attach(InterfaceSpec, UnixStream, Option<OwnedFd>),
    /// Use this specification from now on.
    Change(InterfaceSpec),
    /// Look at the interface and its addresses, which may have changed.
    Look,
    /// The interface with this index is up, or with `None` any may be.
    Up(Option<u32>),
    /// The forwarder cannot use the device any more.
    Broken(String),
    /// Close everything and end.
    Detach,
}

/// A report to the main thread: the port, the number of its opener among the port's openers, what is new.
pub type Report = (PortId, u64, News);

/// What is new about an interface.
#[derive(Debug)]
pub enum News {
    /// The interface is open, with this specification.
    Open {
        spec: InterfaceSpec,
        opened: Opened,
        descriptors: Vec<OwnedFd>,
        /// The program that hides it, if one does.
        link: Option<OwnedFd>,
        /// The descriptors are other ones than before.
        is_new: bool,
    },
    /// The interface cannot be used; why, for users, and the program that hides it all the same.
    Failed(String, Option<OwnedFd>),
    /// A stream to be used with the interface.
    Stream(UnixStream),
    /// New addresses of the interface.
    Addresses(Addresses),
}

/// How an opener is made.
pub struct Start {
    pub port: PortId,
    pub generation: u64,
    pub spec: InterfaceSpec,
    /// The interface, if an earlier broker has opened it.
    pub interface: Option<Interface>,
    /// What hides the device, if an earlier broker has hidden it and it is not open.
    pub hiding: Option<Hiding>,
    pub commands: Receiver<Command>,
    pub reports: Sender<Report>,
    /// To be signalled after a report was sent.
    pub reported: Arc<Doorbell>,
    /// What opening it takes.
    pub means: Arc<Means>,
}

impl Start {
    fn tell(&self, news: News) {
        // The main thread is gone only when the process ends.
        let _ = self.reports.send((self.port, self.generation, news));
        self.reported.ring();
    }
}

pub struct Opener {
    start: Start,
    /// Waits for the interface.
    stream: Option<UnixStream>,
    /// Addresses that an earlier specification had, and that may still have to be removed.
    stale: Vec<(IpAddr, u8)>,
    retry: Option<(Instant, Duration)>,
    /// What hides the device while it is not open.
    hiding: Option<Hiding>,
    /// As reported last.
    addresses: Addresses,
}

/// Whether to go on.
enum Next {
    GoOn,
    End,
}

impl Opener {
    pub fn new(mut start: Start) -> Opener {
        let hiding = start.hiding.take();
        Opener {
            start,
            stream: None,
            stale: Vec::new(),
            // What an earlier broker could not open is tried at once.
            retry: hiding.is_some().then(|| (Instant::now(), RETRY.0)),
            hiding,
            addresses: Addresses::default(),
        }
    }

    /// Runs until detached.
    pub fn run(mut self) {
        self.look();
        loop {
            let command = match self.retry {
                Some((at, _)) => {
                    let wait = at.saturating_duration_since(Instant::now());
                    self.start.commands.recv_timeout(wait)
                }
                None => self.start.commands.recv().map_err(RecvTimeoutError::from),
            };
            match command {
                Ok(command) => {
                    if let Next::End = self.obey(command) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.open(),
                // The main thread ends without a word only when the process does.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.pass_stream();
        }
    }

    fn obey(&mut self, command: Command) -> Next {
        match command {
            Command::Attach(spec, stream, tap) => {
                self.stream = Some(stream);
                self.specify(spec, tap);
            }
            Command::Change(spec) => self.specify(spec, None),
            Command::Look if self.is_gone() => self.close("its veth pair was removed".into()),
            Command::Look => self.look(),
            Command::Up(index) => self.on_up(index),
            // The end was noticed already, or the report is late.
            Command::Broken(_) if self.start.interface.is_none() => {}
            Command::Broken(reason) => self.close(reason),
            Command::Detach => {
                let name = self.start.spec.name.clone();
                self.remove(&name);
                return Next::End;
            }
        }
        Next::GoOn
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
            self.remove(&old.name);
        }
        if let Some(tap) = tap {
            let given = Interface::given(&self.start.spec.name, tap);
            return self.take_up(given);
        }
        let open = self.start.interface.as_ref();
        let open = open.filter(|interface| interface.is_current());
        match open.map(|interface| interface.change(&old, &self.start.spec, &self.start.means)) {
            Some(Ok(true)) => {
                self.stale.clear();
                self.tell_open(false);
                self.look();
            }
            Some(Err(error)) => self.close(error.to_string()),
            Some(Ok(false)) | None => {
                if self.start.interface.as_ref().is_some_and(Interface::is_exclusive) {
                    // Others give it up when they hear of that.
                    self.close("it is opened again".into());
                }
                self.let_go();
                self.open();
            }
        }
    }

    fn open(&mut self) {
        let start = &self.start;
        let opened = Interface::open(
            start.port,
            &start.spec,
            &self.stale,
            &start.means,
            &mut self.hiding,
        );
        self.take_up(opened);
    }

    fn take_up(&mut self, opened: Result<Interface, NicError>) {
        match opened {
            Ok(interface) => {
                self.start.interface = Some(interface);
                self.stale.clear();
                self.retry = None;
                self.tell_open(true);
                self.look();
            }
            Err(error) => {
                if matches!(error, NicError::Missing(_))
                    && let Some(hiding) = self.hiding.take()
                {
                    // The device may be another namespace's now.
                    hiding.end();
                }
                self.close(error.to_string());
            }
        }
    }

    /// An interface is up. If it is this one, and is to be opened again, that need not wait for long.
    fn on_up(&mut self, up: Option<u32>) {
        let Some((at, delay)) = self.retry else { return };
        let own = || nic_packet::index_and_mtu(&self.start.spec.name).ok();
        let is_own = up.is_none_or(|up| own().is_some_and(|(index, _)| index == up));
        let failed = at.checked_sub(delay).unwrap_or(at);
        if is_own && failed + RETRY_UP < at {
            self.retry = Some((failed + RETRY_UP, RETRY_UP));
        }
    }

    /// Closes the interface, which stays hidden.
    fn let_go(&mut self) {
        if let Some(Interface::Uplink(_, frames, hiding)) = self.start.interface.take() {
            frames.close();
            self.hiding = Some(hiding);
        }
    }

    fn tell_open(&mut self, is_new: bool) {
        let Some(interface) = &self.start.interface else {
            return;
        };
        let descriptors = interface
            .descriptors()
            .and_then(|descriptors| Ok((descriptors, interface.link()?)));
        match descriptors {
            Ok((descriptors, link)) => self.start.tell(News::Open {
                spec: self.start.spec.clone(),
                opened: interface.opened(),
                descriptors,
                link,
                is_new,
            }),
            Err(error) => self.close(error.to_string()),
        }
    }

    fn is_gone(&self) -> bool {
        self.start.interface.as_ref().is_some_and(Interface::is_gone)
    }

    /// Reports the addresses of the interface if they are other ones.
    fn look(&mut self) {
        let interface = self.start.interface.as_ref();
        match interface.and_then(|interface| interface.addresses(&self.start.spec, &self.start.means)) {
            Some(Ok(addresses)) if self.addresses != addresses => {
                self.addresses = addresses.clone();
                self.start.tell(News::Addresses(addresses));
            }
            Some(Err(error)) => log::debug!("port {}: {error}", self.start.port),
            Some(Ok(_)) | None => {}
        }
    }

    fn close(&mut self, reason: String) {
        self.let_go();
        let delay = self.retry.map_or(RETRY.0, |(_, delay)| (delay * 2).min(RETRY.1));
        self.retry = Some((Instant::now() + delay, delay));
        let link = self.hiding.as_ref().and_then(Hiding::link);
        let link = link.and_then(|link| link.try_clone_to_owned().ok());
        self.start.tell(News::Failed(reason, link));
    }

    /// Passes a waiting stream on if there is an interface to use it for.
    fn pass_stream(&mut self) {
        if self.start.interface.is_some()
            && let Some(stream) = self.stream.take()
        {
            self.start.tell(News::Stream(stream));
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(hiding) = self.hiding.take() {
            hiding.end();
        }
        let removed = match self.start.interface.take() {
            Some(interface) => interface.remove(name, &self.start.means.owner),
            // An interface that is gone may come back later, without an opener.
            None => nic_packet::show(name, &self.start.means.owner),
        };
        if let Err(error) = removed {
            log::warn!("port {} ({name}): {error}", self.start.port);
        }
    }
}

impl Drop for Opener {
    /// A bug here must not look like an interface that works.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.start.tell(News::Failed("internal error".into(), None));
        }
    }
}
