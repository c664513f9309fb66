//! A port: its guest interface, and the thread that serves its VMM.

use crate::capture::Captures;
use crate::miss::MissQueue;
use crate::state::{Datapath, Side, Switch};
use classifier::PortFlows;
use control_protocol::data_plane::{GuestState, PortInfo, PortSpec, PortState};
use flow::PortId;
use parking_lot::{Mutex, RwLock};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{Shutdown, shutdown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use vm_state::{Slot, ThreadState};
use vnic::{DeviceConfig, Host, RECEIVE_QUEUE, Session, Vnic};

/// Session threads parse one message at a time and recurse nowhere.
const SESSION_STACK: usize = 256 * 1024;

/// Pause after a failed accept, when the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

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
    spec: Mutex<PortSpec>,
    connected: AtomicBool,
    /// Process at the other end; 0 for none.
    peer: AtomicU32,
    /// Threads of the guest, as far as the control process knows them.
    threads: RwLock<Arc<[Slot]>>,
    datapath: Weak<Datapath>,
    session: Mutex<Option<Serving>>,
}

/// A running session thread, and what to shut down to end it.
struct Serving {
    listener: Option<UnixListener>,
    stream: Arc<Mutex<Option<UnixStream>>>,
    ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Port {
    pub fn new(spec: PortSpec, datapath: &Arc<Datapath>) -> Arc<Port> {
        let switch = datapath.switch(spec.switch);
        let flows = switch.flows.lock().port(spec.port);
        Arc::new(Port {
            vnic: Arc::new(Vnic::new(spec.port, spec.mtu)),
            switch,
            flows,
            misses: MissQueue::new(spec.miss_rate),
            captures: Captures::default(),
            named: AtomicBool::new(false),
            spec: Mutex::new(spec),
            connected: AtomicBool::new(false),
            peer: AtomicU32::new(0),
            threads: RwLock::new(Arc::new([])),
            datapath: Arc::downgrade(datapath),
            session: Mutex::new(None),
        })
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

    /// Threads of the guest. None while they are not known, and never for ports of the driver domain. When the guest has
    /// gone, the control process says so a moment later.
    pub fn threads(&self) -> Arc<[Slot]> {
        self.threads.read().clone()
    }

    pub fn set_threads(&self, threads: Arc<[Slot]>) {
        *self.threads.write() = threads;
    }

    /// What the guest does, for users.
    fn guest(&self) -> GuestState {
        let datapath = self.datapath.upgrade();
        let state = datapath.as_ref().and_then(|datapath| datapath.vm_state.get());
        match state.map(|state| state.guest(&self.threads())) {
            Some(ThreadState::Running(core)) => GuestState::Running(core),
            Some(ThreadState::Runnable(core)) => GuestState::Runnable(core),
            Some(ThreadState::Blocked(core)) => GuestState::Blocked(core),
            Some(ThreadState::Dead | ThreadState::Unknown) | None => GuestState::Unknown,
        }
    }

    /// Accepts VMMs on `listener`, one after the other, until [`stop`](Self::stop).
    pub fn listen(self: &Arc<Self>, listener: UnixListener) -> std::io::Result<()> {
        let accepting = listener.try_clone()?;
        self.spawn(Some(listener), move |port, stream, ending| {
            while !ending.load(Ordering::Acquire) {
                match accepting.accept() {
                    Ok((connection, _)) => port.serve(connection, stream, ending),
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        })
    }

    /// Serves a connected VMM or driver domain instead of the one before.
    pub fn attach(self: &Arc<Self>, connection: UnixStream) -> std::io::Result<()> {
        self.stop();
        self.spawn(None, move |port, stream, ending| {
            port.serve(connection, stream, ending)
        })
    }

    fn spawn(
        self: &Arc<Self>,
        listener: Option<UnixListener>,
        body: impl FnOnce(&Arc<Port>, &Mutex<Option<UnixStream>>, &AtomicBool) + Send + 'static,
    ) -> std::io::Result<()> {
        let stream = Arc::new(Mutex::new(None));
        let ending = Arc::new(AtomicBool::new(false));
        let (port, shared_stream, shared_ending) = (self.clone(), stream.clone(), ending.clone());
        let thread = std::thread::Builder::new()
            .name(format!("session-{}", self.id()))
            .stack_size(SESSION_STACK)
            .spawn(move || body(&port, &shared_stream, &shared_ending))?;
        *self.session.lock() = Some(Serving {
            listener,
            stream,
            ending,
            thread,
        });
        Ok(())
    }

    fn serve(
        self: &Arc<Self>,
        connection: UnixStream,
        current: &Mutex<Option<UnixStream>>,
        ending: &AtomicBool,
    ) {
        let Ok(second) = connection.try_clone() else {
            return;
        };
        *current.lock() = Some(second);
        if ending.load(Ordering::Acquire) {
            return;
        }
        let config = {
            let spec = self.spec.lock();
            DeviceConfig {
                mac: spec.mac,
                masked_features: spec.masked_features,
            }
        };
        let peer = sandbox::peer_process(connection.as_fd());
        self.peer.store(peer.unwrap_or(0), Ordering::Relaxed);
        self.set_connected(true);
        let result = Session::serve(self.vnic.clone(), self.clone(), config, connection);
        *current.lock() = None;
        if let Err(error) = result {
            telemetry::limited!(log::Level::Warn, "port {}: connection closed: {error}", self.id());
        }
        self.peer.store(0, Ordering::Relaxed);
        self.set_connected(false);
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
        if let Some(stream) = &*serving.stream.lock() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if serving.thread.join().is_err() {
            log::error!("port {}: its session panicked", self.id());
        }
    }
}

impl Host for Port {
    fn watch(&self, queue: usize, kick: BorrowedFd<'_>) -> std::io::Result<()> {
        let side = if queue == RECEIVE_QUEUE {
            Side::Receive
        } else {
            Side::Transmit
        };
        self.datapath
            .upgrade()
            .map_or(Ok(()), |datapath| datapath.wakeups.watch(self.id(), side, kick))
    }

    fn unwatch(&self, kick: BorrowedFd<'_>) {
        if let Some(datapath) = self.datapath.upgrade() {
            datapath.wakeups.unwatch(kick);
        }
    }

    fn schedule(&self) {
        if let Some(datapath) = self.datapath.upgrade() {
            datapath.wakeups.name(self);
        }
    }

    fn changed(&self) {
        if let Some(datapath) = self.datapath.upgrade() {
            datapath.notices.changed(self.id());
        }
    }
}
