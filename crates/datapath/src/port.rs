//! A port: its guest interface, and the thread that serves its VMM.

use crate::capture::Captures;
use crate::executor::Executor;
use crate::miss::MissQueue;
use crate::state::{Datapath, Side, Switch};
use classifier::PortFlows;
use control_protocol::data_plane::{Connection, GuestState, PortInfo, PortSpec, PortState};
use flow::PortId;
use parking_lot::{Mutex, RwLock};
use placement::Cpu;
use ring::Assignment;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{Shutdown, shutdown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vm_state::{Slot, ThreadState};
use vnic::{DeviceConfig, Host, RECEIVE_QUEUE, Rate, Session, Vnic};

/// Session threads parse one message at a time and recurse nowhere.
const SESSION_STACK: usize = 256 * 1024;

/// Pause after a failed accept, when the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Connections that a listening port accepts at once, and per second: guests restart, and some in a loop.
const CONNECTS: (u32, u32) = (16, 4);

/// Gates of earlier connections that may be left, since a file that their VMM passed cannot be closed.
const MAX_GATES: usize = 4;

/// Misdirected kicks in sequence after which a port's home moves.
const PATIENCE: u16 = 16;

/// In the order of virtqueues.
const SIDES: [Side; 2] = [Side::Receive, Side::Transmit];

/// A port of the data plane.
pub(crate) struct Port {
    pub vnic: Arc<Vnic>,
    pub switch: Arc<Switch>,
    /// Those of the switch that are for this port's packets.
    pub flows: PortFlows,
    pub misses: MissQueue,
    pub captures: Captures,
    /// On the list of ports a worker is to look at.
    pub named: AtomicBool,
    /// The executor of its own thread, if each port has one.
    pub own: Option<Arc<Executor>>,
    /// That thread is to end.
    pub ending: Arc<AtomicBool>,
    /// The core whose worker copies to it, or was told to.
    copier: Assignment,
    /// When its driver may have been called last, in nanoseconds of the data plane's clock.
    pub called_ns: AtomicU64,
    /// How often a worker in sequence found that another one should have heard the kick.
    misdirected: AtomicU16,
    /// How often in sequence the guest waited for the core on which its ring was served, and when it did last, in
    /// nanoseconds of the data plane's clock.
    waits: AtomicU32,
    waited_ns: AtomicU64,
    kicks: Mutex<Kicks>,
    spec: Mutex<PortSpec>,
    connected: AtomicBool,
    /// Process at the other end; 0 for none.
    peer: AtomicU32,
    /// Threads of the guest, as far as the control process knows them.
    threads: Threads,
    datapath: Weak<Datapath>,
    session: Mutex<Option<Serving>>,
    /// Threads that receive, or received, a VMM's descriptors.
    gates: Arc<AtomicUsize>,
}

/// The streams of a connection, to be shut down by who ends it.
type Streams = Mutex<Vec<UnixStream>>;

/// Who hears a port's kicks.
#[derive(Default)]
struct Kicks {
    home: Option<Arc<Executor>>,
    /// Of the receive and the transmit ring.
    watched: [Option<OwnedFd>; 2],
}

/// The threads of a guest, as the placement policy asks for them with each burst: as long as there are few, by plain loads.
/// Who reads while they change may see some of both, which is a hint as good as any.
#[derive(Default)]
struct Threads {
    /// How many of `few` count; more: see `many`.
    count: AtomicU8,
    few: [AtomicU16; FEW],
    many: RwLock<Box<[Slot]>>,
}

/// vCPUs of most guests.
const FEW: usize = 8;

impl Threads {
    #[inline]
    fn with<R>(&self, look: impl FnOnce(&[Slot]) -> R) -> R {
        let count = usize::from(self.count.load(Ordering::Acquire));
        if count > FEW {
            return look(&self.many.read());
        }
        let slots: [Slot; FEW] = std::array::from_fn(|at| Slot(self.few[at].load(Ordering::Relaxed)));
        look(&slots[..count])
    }

    fn set(&self, threads: Box<[Slot]>) {
        for (few, slot) in self.few.iter().zip(&threads) {
            few.store(slot.0, Ordering::Relaxed);
        }
        let count = threads.len().min(FEW + 1) as u8;
        *self.many.write() = threads;
        self.count.store(count, Ordering::Release);
    }
}

/// What belongs to a session's stream.
struct Line {
    /// To be shut down by who ends the connection.
    outer: Vec<UnixStream>,
    /// While this is open the gate, if there is one, keeps what it has received.
    inner: Option<UnixStream>,
}

/// Counts a gate until it is dropped.
struct Leaving(Arc<AtomicUsize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running session thread, and what to shut down to end it.
struct Serving {
    listener: Option<UnixListener>,
    streams: Arc<Streams>,
    ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Port {
    /// A port that nobody knows yet. Fails if it needs an executor and there are no descriptors left.
    pub fn new(spec: PortSpec, datapath: &Arc<Datapath>) -> std::io::Result<Arc<Port>> {
        let own = if datapath.placement.has_threads() {
            Some(Arc::new(Executor::new()?))
        } else {
            None
        };
        let switch = datapath.switch(spec.switch);
        let flows = switch.flows.lock().port(spec.port);
        Ok(Arc::new(Port {
            vnic: Arc::new(Vnic::new(spec.port, spec.mtu)),
            switch,
            flows,
            misses: MissQueue::new(spec.miss_rate),
            captures: Captures::default(),
            named: AtomicBool::new(false),
            own,
            ending: Arc::default(),
            copier: Assignment::nobody(),
            called_ns: AtomicU64::new(0),
            misdirected: AtomicU16::new(0),
            waits: AtomicU32::new(0),
            waited_ns: AtomicU64::new(0),
            kicks: Mutex::default(),
            spec: Mutex::new(spec),
            connected: AtomicBool::new(false),
            peer: AtomicU32::new(0),
            threads: Threads::default(),
            datapath: Arc::downgrade(datapath),
            session: Mutex::new(None),
            gates: Arc::default(),
        }))
    }

    /// The core whose worker copies to the port, or was told to and has not begun.
    pub fn copier(&self) -> Option<Cpu> {
        self.copier.get().map(Cpu)
    }

    /// Says who copies. After `None` the caller must look at the queue once more.
    pub fn set_copier(&self, cpu: Option<Cpu>) {
        self.copier.set(cpu.map(|cpu| cpu.0));
    }

    /// To be called between queueing packets for the port and leaving them to its copier.
    pub fn announce_queued(&self) {
        self.copier.announce();
    }

    /// A kick should have been heard by another executor. If that is so time and again, it will be.
    pub fn prefer(&self, executor: &Arc<Executor>) {
        if self.misdirected.fetch_add(1, Ordering::Relaxed) >= PATIENCE
            && let Some(mut kicks) = self.kicks.try_lock()
        {
            self.misdirected.store(0, Ordering::Relaxed);
            self.move_home(&mut kicks, executor);
        }
    }

    /// The kick was heard where it should be.
    pub fn keep_home(&self) {
        if self.misdirected.load(Ordering::Relaxed) != 0 {
            self.misdirected.store(0, Ordering::Relaxed);
        }
    }

    /// The guest waits for the core on which its ring was served, for the how manieth time in a sequence without breaks of
    /// more than `within_ns`.
    pub fn waits_for_core(&self, now_ns: u64, within_ns: u64) -> u32 {
        let last_ns = self.waited_ns.swap(now_ns, Ordering::Relaxed);
        if now_ns.saturating_sub(last_ns) > within_ns {
            self.has_core();
        }
        self.waits.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// It does not.
    pub fn has_core(&self) {
        if self.waits.load(Ordering::Relaxed) != 0 {
            self.waits.store(0, Ordering::Relaxed);
        }
    }

    fn move_home(&self, kicks: &mut Kicks, home: &Arc<Executor>) {
        let Some(old) = kicks.home.replace(home.clone()) else {
            return;
        };
        for (side, kick) in SIDES.into_iter().zip(&kicks.watched) {
            let Some(kick) = kick else { continue };
            old.unwatch(kick.as_fd());
            if let Err(error) = home.watch(self.id(), side, kick.as_fd()) {
                telemetry::limited_by!(
                    self.id().0,
                    log::Level::Error,
                    "port {}: kicks are not heard: {error}",
                    self.id()
                );
            }
        }
    }

    /// Who hears its kicks, decided if it was not.
    fn home<'a>(&self, kicks: &'a mut Kicks, datapath: &Datapath) -> &'a Arc<Executor> {
        let decide = || datapath.placement.home(self, &datapath.ports());
        kicks.home.get_or_insert_with(decide)
    }

    pub fn id(&self) -> PortId {
        self.vnic.port
    }

    /// Changes what can change without the guest noticing.
    pub fn set(&self, mtu: u16, miss_rate: u32) {
        let mut spec = self.spec.lock();
        (spec.mtu, spec.miss_rate) = (mtu, miss_rate);
        self.vnic.set_mtu(mtu);
        self.misses.set_rate(miss_rate);
    }

    pub fn state(&self) -> PortState {
        if !self.connected.load(Ordering::Relaxed) {
            PortState::Disconnected
        } else if let Some(text) = self.vnic.broken() {
            PortState::Broken(text)
        } else if self.vnic.is_running() {
            PortState::Running
        } else {
            PortState::Connected
        }
    }

    pub fn info(&self) -> PortInfo {
        PortInfo {
            spec: self.spec.lock().clone(),
            state: self.state(),
            peer: self.peer(),
            guest: self.guest(),
            features: self.vnic.features(),
            counters: self.vnic.account.read(),
        }
    }

    /// Process that is connected, if it can be seen.
    pub fn peer(&self) -> Option<u32> {
        Some(self.peer.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    /// What `look` sees in the threads of the guest. There are none while they are not known, and never for ports of the
    /// driver domain. When the guest has gone, the control process says so a moment later.
    #[inline]
    pub fn with_threads<R>(&self, look: impl FnOnce(&[Slot]) -> R) -> R {
        self.threads.with(look)
    }

    pub fn set_threads(&self, threads: Box<[Slot]>) {
        self.threads.set(threads);
    }

    /// What the guest does, for users.
    fn guest(&self) -> GuestState {
        let datapath = self.datapath.upgrade();
        match datapath.and_then(|datapath| datapath.placement.guest(self)) {
            Some(ThreadState::Running(core)) => GuestState::Running(core),
            Some(ThreadState::Runnable(core)) => GuestState::Runnable(core),
            Some(ThreadState::Blocked(core)) => GuestState::Blocked(core),
            Some(ThreadState::Dead | ThreadState::Unknown) | None => GuestState::Unknown,
        }
    }

    /// Accepts VMMs on `listener`, one after the other, until [`stop`](Self::stop).
    pub fn listen(self: &Arc<Self>, listener: UnixListener) -> std::io::Result<()> {
        let accepting = listener.try_clone()?;
        self.spawn(Some(listener), move |port, streams, ending| {
            let mut rate = Rate::new(CONNECTS.0, CONNECTS.1);
            while !ending.load(Ordering::Acquire) {
                match accepting.accept() {
                    Ok((connection, _)) => {
                        while !rate.take(Instant::now()) && !ending.load(Ordering::Acquire) {
                            std::thread::sleep(ACCEPT_PAUSE);
                        }
                        port.serve(connection, streams, ending);
                    }
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        })
    }

    /// Serves a connected VMM or driver domain instead of the one before.
    pub fn attach(self: &Arc<Self>, connection: UnixStream) -> std::io::Result<()> {
        self.stop();
        self.spawn(None, move |port, streams, ending| {
            port.serve(connection, streams, ending)
        })
    }

    fn spawn(
        self: &Arc<Self>,
        listener: Option<UnixListener>,
        body: impl FnOnce(&Arc<Port>, &Streams, &AtomicBool) + Send + 'static,
    ) -> std::io::Result<()> {
        let streams = Arc::<Streams>::default();
        let ending = Arc::new(AtomicBool::new(false));
        let (port, shared_streams, shared_ending) = (self.clone(), streams.clone(), ending.clone());
        let thread = std::thread::Builder::new()
            .name(format!("session-{}", self.id()))
            .stack_size(SESSION_STACK)
            .spawn(move || body(&port, &shared_streams, &shared_ending))?;
        *self.session.lock() = Some(Serving {
            listener,
            streams,
            ending,
            thread,
        });
        Ok(())
    }

    fn serve(self: &Arc<Self>, connection: UnixStream, streams: &Streams, ending: &AtomicBool) {
        let config = {
            let spec = self.spec.lock();
            DeviceConfig {
                mac: spec.mac,
                masked_features: spec.masked_features,
                trusted: spec.connection == Connection::Driver,
            }
        };
        let peer = process::peer_process(connection.as_fd());
        let line = if config.trusted {
            connection.try_clone().map(|second| {
                let line = Line {
                    outer: vec![second],
                    inner: None,
                };
                (line, connection)
            })
        } else {
            self.open_gate(connection)
        };
        let (line, stream) = match line {
            Ok(line) => line,
            Err(error) => {
                telemetry::limited_by!(
                    self.id().0,
                    log::Level::Warn,
                    "port {}: connection refused: {error}",
                    self.id()
                );
                return std::thread::sleep(ACCEPT_PAUSE);
            }
        };
        streams.lock().extend(line.outer);
        if !ending.load(Ordering::Acquire) {
            self.peer.store(peer.unwrap_or(0), Ordering::Relaxed);
            self.set_connected(true);
            let result = Session::serve(self.vnic.clone(), self.clone(), config, stream);
            if let Err(error) = result {
                telemetry::limited_by!(
                    self.id().0,
                    log::Level::Warn,
                    "port {}: connection closed: {error}",
                    self.id()
                );
            }
        }
        // Before the gate closes the same.
        streams.lock().clear();
        drop(line.inner);
        self.peer.store(0, Ordering::Relaxed);
        self.set_connected(false);
    }

    /// Puts a gate between a VMM and its session; returns the session's stream and what belongs to it.
    fn open_gate(&self, connection: UnixStream) -> std::io::Result<(Line, UnixStream)> {
        if self.gates.fetch_add(1, Ordering::Relaxed) >= MAX_GATES {
            self.gates.fetch_sub(1, Ordering::Relaxed);
            return Err(std::io::Error::other(
                "files that came with earlier ones cannot be closed",
            ));
        }
        let gates = Leaving(self.gates.clone());
        let (inner, other) = UnixStream::pair()?;
        let line = Line {
            outer: vec![connection.try_clone()?, inner.try_clone()?],
            inner: Some(inner.try_clone()?),
        };
        let ends = [connection.into(), other.into()];
        process::spawn_apart(format!("gate-{}", self.id()), ends, move |[vmm, session]| {
            vnic::gate::guard(vmm.into(), session.into());
            drop(gates);
        })?;
        Ok((line, inner))
    }

    fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
        self.changed();
    }

    /// Ends the session thread and waits for it.
    pub fn stop(&self) {
        let Some(serving) = self.session.lock().take() else {
            return;
        };
        serving.ending.store(true, Ordering::Release);
        if let Some(listener) = &serving.listener {
            // Makes a blocked accept return.
            let _ = shutdown(listener, Shutdown::Both);
        }
        for stream in &*serving.streams.lock() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if serving.thread.join().is_err() {
            log::error!("port {}: its session panicked", self.id());
        }
    }
}

impl Host for Port {
    fn watch(&self, queue: usize, kick: BorrowedFd<'_>) -> std::io::Result<()> {
        let Some(datapath) = self.datapath.upgrade() else {
            return Ok(());
        };
        let mut kicks = self.kicks.lock();
        let index = usize::from(queue != RECEIVE_QUEUE);
        // One of our own: an executor knows descriptors by their numbers, and may change.
        let kick = kick.try_clone_to_owned()?;
        self.home(&mut kicks, &datapath)
            .watch(self.id(), SIDES[index], kick.as_fd())?;
        kicks.watched[index] = Some(kick);
        Ok(())
    }

    fn unwatch(&self, queue: usize) {
        let mut kicks = self.kicks.lock();
        let kick = kicks.watched[usize::from(queue != RECEIVE_QUEUE)].take();
        if let (Some(home), Some(kick)) = (&kicks.home, kick) {
            home.unwatch(kick.as_fd());
        }
    }

    fn schedule(&self) {
        if let Some(datapath) = self.datapath.upgrade() {
            self.home(&mut self.kicks.lock(), &datapath).name(self);
        }
    }

    fn changed(&self) {
        if let Some(datapath) = self.datapath.upgrade() {
            datapath.notices.changed(self.id());
        }
    }
}
