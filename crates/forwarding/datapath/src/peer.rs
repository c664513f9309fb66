//! Peers of ports: the thread that serves a port's VMM or the driver domain, and connections.
//!
//! One session thread per port speaks vhost-user. Before a VMM's connection stands a gate: a thread with a
//! descriptor table of its own, which receives the VMM's descriptors (`vnic::gate`).

use pacing::{TokenBucket, since_first};
use parking_lot::Mutex;
use rustix::fd::AsFd;
use rustix::net::{Shutdown, shutdown};
use std::convert::Infallible;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vnic::gate::Allowance;
use vnic::{DeviceConfig, Host, Session, Vnic};

/// Session threads parse one message at a time and recurse nowhere.
const SESSION_STACK: usize = 256 * 1024;

/// Pause after a failed accept, when the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Connections that a listening port accepts at once, and per second: guests restart, and some in a loop.
const CONNECTS: (u32, u32) = (16, 4);

/// Gates of earlier connections that may be left, since a file that their VMM passed cannot be closed.
const MAX_GATES: usize = 4;

/// Gates, and threads that close connections which were refused.
const MAX_CLOSING: usize = 2 * MAX_GATES;

/// How long a connection waits until one of them has ended: on a full host a gate may not have run yet.
const GATE_TIMEOUT: Duration = Duration::from_secs(2);

const GATE_PAUSE: Duration = Duration::from_millis(10);

/// How long the thread that ends a session waits for it in naps, which shows the supervisor that it does not
/// hang.
const ENDING_TIME: Duration = Duration::from_secs(5);

const NAP: Duration = Duration::from_millis(20);

/// The process at the other end of a port.
pub(crate) struct Peer {
    vnic: Arc<Vnic>,
    config: DeviceConfig,
    connected: AtomicBool,
    /// Process at the other end; 0 for none.
    pid: AtomicU32,
    session: Mutex<Option<Serving>>,
    /// Threads that receive, or received, a VMM's descriptors.
    gates: Arc<AtomicUsize>,
    /// For VMMs' messages.
    allowance: Arc<std::sync::Mutex<Allowance>>,
}

/// The stream of a session, to be shut down by the thread that ends the connection.
type Outer = Mutex<Option<UnixStream>>;

/// What belongs to a session's stream.
struct Line {
    /// To be shut down by the thread that ends the connection.
    outer: UnixStream,
    /// Until this is dropped the gate, if there is one, keeps what it has received.
    gate: Option<Sender<Infallible>>,
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
    outer: Arc<Outer>,
    ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// Hangs up when the thread ends.
    ended: Receiver<()>,
}

impl Peer {
    /// No peer, until [`listen`](Self::listen) or [`attach`](Self::attach).
    pub fn new(vnic: Arc<Vnic>, config: DeviceConfig) -> Arc<Peer> {
        Arc::new(Peer {
            vnic,
            config,
            connected: AtomicBool::new(false),
            pid: AtomicU32::new(0),
            session: Mutex::new(None),
            gates: Arc::default(),
            allowance: Arc::default(),
        })
    }

    /// Whether a peer is connected.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Process that is connected, if it can be seen.
    pub fn pid(&self) -> Option<u32> {
        Some(self.pid.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    /// Accepts VMMs on `listener`, one after the other, until [`stop`](Self::stop).
    pub fn listen(self: &Arc<Self>, host: Arc<dyn Host>, listener: UnixListener) -> std::io::Result<()> {
        // The thread sleeps until a VMM connects, so the listener must block, in whatever mode it came.
        listener.set_nonblocking(false)?;
        let accepting = listener.try_clone()?;
        self.spawn(Some(listener), move |peer, outer, ending| {
            let mut bucket = TokenBucket::new(CONNECTS.0, CONNECTS.1);
            while !ending.load(Ordering::Acquire) {
                match accepting.accept() {
                    Ok((connection, _)) => {
                        while !bucket.take(since_first(Instant::now())) && !ending.load(Ordering::Acquire) {
                            std::thread::sleep(ACCEPT_PAUSE);
                        }
                        peer.serve(&host, connection, outer, ending);
                    }
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        })
    }

    /// Serves a connected VMM or driver domain instead of the one before.
    pub fn attach(self: &Arc<Self>, host: Arc<dyn Host>, connection: UnixStream) -> std::io::Result<()> {
        self.stop();
        self.spawn(None, move |peer, outer, ending| {
            peer.serve(&host, connection, outer, ending)
        })
    }

    fn spawn(
        self: &Arc<Self>,
        listener: Option<UnixListener>,
        body: impl FnOnce(&Peer, &Outer, &AtomicBool) + Send + 'static,
    ) -> std::io::Result<()> {
        let outer = Arc::<Outer>::default();
        let ending = Arc::new(AtomicBool::new(false));
        let (lives, ended) = channel();
        let (peer, shared_outer, shared_ending) = (self.clone(), outer.clone(), ending.clone());
        let thread = std::thread::Builder::new()
            .name(format!("session-{}", self.vnic.port))
            .stack_size(SESSION_STACK)
            .spawn(move || {
                body(&peer, &shared_outer, &shared_ending);
                drop(lives);
            })?;
        *self.session.lock() = Some(Serving {
            listener,
            outer,
            ending,
            thread,
            ended,
        });
        Ok(())
    }

    fn serve(&self, host: &Arc<dyn Host>, connection: UnixStream, outer: &Outer, ending: &AtomicBool) {
        let pid = process::peer_process(connection.as_fd());
        let line = if self.config.trusted {
            connection.try_clone().map(|second| {
                let line = Line {
                    outer: second,
                    gate: None,
                };
                (line, connection)
            })
        } else {
            self.open_gate(connection, &**host, ending)
        };
        let (line, stream) = match line {
            Ok(line) => line,
            Err(error) => {
                telemetry::limited_by!(
                    self.vnic.port.0,
                    log::Level::Warn,
                    "port {}: connection refused: {error}",
                    self.vnic.port
                );
                return std::thread::sleep(ACCEPT_PAUSE);
            }
        };
        *outer.lock() = Some(line.outer);
        if !ending.load(Ordering::Acquire) {
            self.pid.store(pid.unwrap_or(0), Ordering::Relaxed);
            self.set_connected(true, &**host);
            let result = Session::serve(self.vnic.clone(), host.clone(), self.config, stream);
            if let Err(error) = result {
                telemetry::limited_by!(
                    self.vnic.port.0,
                    log::Level::Warn,
                    "port {}: connection closed: {error}",
                    self.vnic.port
                );
            }
        }
        *outer.lock() = None;
        self.pid.store(0, Ordering::Relaxed);
        self.set_connected(false, &**host);
        drop(line.gate);
    }

    /// Puts a gate between a VMM and its session; returns the session's stream and what belongs to it.
    fn open_gate(
        &self,
        connection: UnixStream,
        host: &dyn Host,
        ending: &AtomicBool,
    ) -> std::io::Result<(Line, UnixStream)> {
        if !self.has_room(MAX_GATES, Some(GATE_TIMEOUT), ending) {
            self.refuse(connection, host, ending)?;
            let text = "files that came with earlier ones cannot be closed";
            return Err(std::io::Error::other(text));
        }
        let gates = self.count_gate();
        let (inner, other) = UnixStream::pair()?;
        let (serves, served) = channel();
        let line = Line {
            // Only the gate shuts the VMM's connection down, which may be costly.
            outer: inner.try_clone()?,
            gate: Some(serves),
        };
        let ends = [connection.into(), other.into()];
        let allowance = self.allowance.clone();
        process::spawn_apart(format!("gate-{}", self.vnic.port), ends, move |[vmm, session]| {
            vnic::gate::guard(vmm.into(), session.into(), &served, allowance);
            drop(gates);
        })?;
        Ok((line, inner))
    }

    /// Has a connection closed, which may take any time, as its VMM may have sent files over it. While there
    /// is no room for another thread that may hang, the connection stays: so the VMM has no further one.
    fn refuse(&self, connection: UnixStream, host: &dyn Host, ending: &AtomicBool) -> std::io::Result<()> {
        self.set_connected(true, host);
        self.has_room(MAX_CLOSING, None, ending);
        let (gates, allowance) = (self.count_gate(), self.allowance.clone());
        let name = format!("gate-{}", self.vnic.port);
        let closing = process::spawn_apart(name, [connection.into()], move |[vmm]| {
            vnic::gate::refuse(vmm.into(), allowance);
            drop(gates);
        });
        self.set_connected(false, host);
        closing
    }

    /// Waits until there are fewer gates than that, at most for `timeout`; false if there are not.
    fn has_room(&self, most: usize, timeout: Option<Duration>, ending: &AtomicBool) -> bool {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        while self.gates.load(Ordering::Relaxed) >= most {
            let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if is_late || ending.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(GATE_PAUSE);
        }
        true
    }

    /// Counts one more gate. Only the session's thread does so.
    fn count_gate(&self) -> Leaving {
        self.gates.fetch_add(1, Ordering::Relaxed);
        Leaving(self.gates.clone())
    }

    fn set_connected(&self, connected: bool, host: &dyn Host) {
        self.connected.store(connected, Ordering::Relaxed);
        host.changed();
    }

    /// Ends the session thread and waits for it.
    pub fn stop(&self) {
        let Some(serving) = self.session.lock().take() else {
            return;
        };
        serving.ending.store(true, Ordering::Release);
        self.vnic.set_ending(true);
        if let Some(listener) = &serving.listener {
            // Makes a blocked accept return.
            let _ = shutdown(listener, Shutdown::Both);
        }
        if let Some(stream) = &*serving.outer.lock() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let deadline = Instant::now() + ENDING_TIME;
        let lives = || serving.ended.recv_timeout(NAP) == Err(RecvTimeoutError::Timeout);
        while lives() && Instant::now() < deadline {}
        if serving.thread.join().is_err() {
            log::error!("port {}: its session panicked", self.vnic.port);
        }
        self.vnic.set_ending(false);
    }
}
