//! One connection of a VMM: the vhost-user protocol, whose messages the `vhost` crate reads, and the rings
//! that run.
//!
//! A ring runs when it has everything: addresses, a kick descriptor, memory in which the addresses lie, and
//! it is enabled (by message, or from the start for a front end that does not know protocol features, as
//! UML's). Each message changes one of these, and then [`Session::settle`] starts or stops rings accordingly.
//! So any order of messages ends in the right state, or in an error that closes the connection.

use crate::call::Callee;
use crate::features::{Features, NET_MAC, NET_MTU, NET_STATUS, OFFERED, VHOST_USER_PROTOCOL};
use crate::quirk::{Message, acknowledge, take};
use crate::shortfall::Wish;
use crate::transmit::RingSetup;
use crate::{Call, Vnic};
use guest_memory::{Account, GuestMemory, MapError, Region};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use vhost::vhost_user::{Backend, BackendReqHandler, Error, Result, VhostUserBackendReqHandlerMut};
use virtqueue::QueueAddresses;
use virtqueue::net::TRANSMIT_QUEUE;

mod requests;

const QUEUES: usize = 2;

/// How long a stopping transmit ring waits for packets under way. Receivers that stall give up before.
const DRAIN_MS: u32 = 1_000;

/// A front end that hangs up within this time after it has learned how many queues there are wants more of
/// them.
const HANGS_UP_WITHIN: Duration = Duration::from_secs(1);

/// The data plane's services for a session.
pub trait Host: Send + Sync {
    /// Calls [`Host::schedule`]'s worker whenever the descriptor is signalled.
    fn watch(&self, queue: usize, kick: BorrowedFd<'_>) -> std::io::Result<()>;
    /// Ends the watching of that queue's descriptor.
    fn unwatch(&self, queue: usize);
    /// Has a worker serve both sides of the interface.
    fn schedule(&self);
    /// Rings started or stopped.
    fn changed(&self);
}

/// The features and values that are offered to the guest.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// MAC address in the configuration space.
    pub mac: Option<[u8; 6]>,
    /// Feature bits not to offer.
    pub masked_features: u64,
    /// The peer is our own driver domain.
    pub trusted: bool,
}

#[derive(Debug, Default)]
struct Ring {
    addresses: QueueAddresses,
    has_addresses: bool,
    base: u16,
    kick: Option<OwnedFd>,
    call: Call,
    enabled: bool,
    running: bool,
}

/// How far a front end has come, as far as that says whether it wants more than the port has.
#[derive(Debug, Default)]
struct Progress {
    /// When it asked for the number of queues.
    asked_queues: Option<Instant>,
    /// The front end has given its memory.
    has_memory: bool,
    /// What was refused in this connection.
    refused: Vec<Wish>,
}

/// The state of a connection.
pub struct Session {
    vnic: Arc<Vnic>,
    host: Arc<dyn Host>,
    config: DeviceConfig,
    memory: Arc<GuestMemory>,
    features: Features,
    rings: [Ring; QUEUES],
    /// The channel for our requests; kept open, since a front end may take its end for the end of the
    /// connection.
    requests: Option<Backend>,
    /// SET_OWNER has come.
    is_owned: bool,
    progress: Progress,
    /// The connection, if it came through a gate.
    line: Option<Arc<UnixStream>>,
}

fn refuse(what: impl std::fmt::Display) -> Error {
    Error::ReqHandlerError(std::io::Error::other(what.to_string()))
}

/// Why a connection was given up.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The VMM's message is not one of the protocol, or not allowed now.
    #[error(transparent)]
    Protocol(#[from] Error),
    /// A message cannot be read, or not be answered.
    #[error(transparent)]
    Stream(#[from] std::io::Error),
    /// A fault of ours.
    #[error("the session panicked")]
    Panicked,
}

fn lock(session: &Mutex<Session>) -> std::result::Result<MutexGuard<'_, Session>, SessionError> {
    session.lock().map_err(|_| SessionError::Panicked)
}

impl Session {
    /// Serves a connection until the VMM closes it. Blocks; shutting the stream down from elsewhere ends it.
    ///
    /// # Errors
    /// The VMM violates the protocol; the connection is closed.
    pub fn serve(
        vnic: Arc<Vnic>,
        host: Arc<dyn Host>,
        config: DeviceConfig,
        stream: UnixStream,
    ) -> std::result::Result<(), SessionError> {
        vnic.set_broken::<&str>(None);
        let line = if config.trusted {
            None
        } else {
            Some(Arc::new(stream.try_clone()?))
        };
        let session = Arc::new(Mutex::new(Session {
            vnic,
            host,
            config,
            memory: Arc::new(GuestMemory::new()),
            features: Features::default(),
            rings: Default::default(),
            requests: None,
            is_owned: false,
            progress: Progress::default(),
            line,
        }));
        let end = Session::serve_messages(&session, stream);
        lock(&session)?.close();
        end
    }

    fn serve_messages(
        session: &Arc<Mutex<Session>>,
        stream: UnixStream,
    ) -> std::result::Result<(), SessionError> {
        let mut second = stream.try_clone()?;
        let mut handler = BackendReqHandler::from_stream(stream, session.clone());
        loop {
            let early = !lock(session)?.features.has(VHOST_USER_PROTOCOL);
            match take(&mut second, early) {
                Ok(None) => {}
                Ok(Some(taken)) => {
                    let (message, code, need_reply) = taken.split();
                    let mut session = lock(session)?;
                    let result = match message {
                        Message::MemoryTable { regions, files } => {
                            session.set_mem_table(&regions, files, None).map(drop)
                        }
                        Message::EnableRing { index, enable } => session.set_vring_enable(index, enable),
                        Message::SetMtu(mtu) => session.set_net_mtu(mtu),
                    };
                    let ok = result.is_ok();
                    acknowledge(&mut second, code, need_reply, ok)?;
                    continue;
                }
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            match handler.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected | Error::SocketBroken(_)) => return Ok(()),
                // The request was refused and the front end informed; it decides how to go on.
                Err(Error::ReqHandlerError(error)) => log::debug!("vhost-user request refused: {error}"),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn close(&mut self) {
        let asked = self.progress.asked_queues;
        if !self.progress.has_memory && asked.is_some_and(|asked| asked.elapsed() < HANGS_UP_WITHIN) {
            let text = "its VMM hung up when it had learned that the port has one pair of queues: \
                        start the VMM with one (queues=1), or see its log";
            let _ = self.lacks(Wish::Queues, text.into());
        }
        for index in 0..QUEUES {
            self.stop(index, 0);
            self.unwatch(index);
            self.vnic.call_cost.waiting.forget(index);
        }
        self.features = Features::default();
        self.vnic.set_features(0);
        self.host.schedule();
        self.host.changed();
    }

    /// Passes on a descriptor that was accepted. Others are refused, and the port's state shows it, as the
    /// VMM may not inform its user.
    fn accept<T, E: std::fmt::Display>(&self, result: std::result::Result<T, E>) -> Result<T> {
        result.map_err(|error| {
            let port = self.vnic.port;
            telemetry::limited_by!(port.0, log::Level::Warn, "port {port}: refused: {error}");
            self.vnic.set_broken(Some(&error));
            self.host.changed();
            refuse(error)
        })
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        if index as usize >= QUEUES {
            let text = format!(
                "its VMM sets up queue {index}, and the port has one pair, 0 and 1: start the VMM with one (queues=1)"
            );
            return Err(self.lacks(Wish::Queues, text));
        }
        Ok(&mut self.rings[index as usize])
    }

    /// Refuses what the port does not have, and has the port say so, as the VMM may not inform its user.
    fn lacks(&mut self, wish: Wish, text: String) -> Error {
        self.progress.refused.retain(|known| *known != wish);
        self.progress.refused.push(wish);
        let port = self.vnic.port;
        if self.vnic.shortfalls.set(wish, Some(text.clone())) {
            telemetry::limited_by!(port.0, log::Level::Warn, "port {port}: {text}");
            self.host.changed();
        }
        refuse(text)
    }

    /// The front end wants what the port has.
    fn clear_shortfall(&self, wish: Wish) {
        if self.vnic.shortfalls.set(wish, None) {
            self.host.changed();
        }
    }

    /// The front end has given its memory: it goes on, with what it was not refused.
    fn on_memory(&mut self) {
        self.progress.has_memory = true;
        for wish in [Wish::Queues, Wish::Mtu] {
            if !self.progress.refused.contains(&wish) {
                self.clear_shortfall(wish);
            }
        }
    }

    /// Starts rings that have become complete, and stops those that no longer are.
    fn settle(&mut self) -> Result<()> {
        for index in 0..QUEUES {
            let ring = &self.rings[index];
            let complete =
                ring.has_addresses && ring.enabled && ring.kick.is_some() && self.memory.regions() > 0;
            match (ring.running, complete) {
                (false, true) => self.start(index)?,
                (true, false) => self.stop(index, DRAIN_MS),
                _ => {}
            }
        }
        Ok(())
    }

    fn start(&mut self, index: usize) -> Result<()> {
        let ring = &mut self.rings[index];
        let setup = RingSetup {
            memory: self.memory.clone(),
            addresses: ring.addresses,
            base: ring.base,
            features: self.features,
            call: ring.call.clone(),
        };
        if index == TRANSMIT_QUEUE {
            self.vnic.start_transmit(setup).map_err(refuse)?;
        } else {
            self.vnic.start_receive(setup).map_err(refuse)?;
        }
        self.vnic.set_broken::<&str>(None);
        ring.running = true;
        log::debug!(
            "port {}: queue {index} started, {:?}",
            self.vnic.port,
            ring.addresses
        );
        self.host.schedule();
        self.host.changed();
        Ok(())
    }

    fn stop(&mut self, index: usize, patience_ms: u32) {
        if !std::mem::take(&mut self.rings[index].running) {
            return;
        }
        let base = if index == TRANSMIT_QUEUE {
            self.vnic.stop_transmit(patience_ms)
        } else {
            self.vnic.stop_receive()
        };
        // A ring that was stopped for being malformed has no base worth keeping.
        self.rings[index].base = base.unwrap_or(self.rings[index].base);
        self.host.schedule();
        self.host.changed();
    }

    fn callee(&self, ring: usize) -> Callee {
        Callee {
            ring,
            cost: self.vnic.call_cost.clone(),
            trusted: self.config.trusted,
            line: self.line.clone(),
        }
    }

    fn unwatch(&mut self, index: usize) {
        if self.rings[index].kick.take().is_some() {
            self.host.unwatch(index);
        }
    }

    fn map(
        &self,
        map: impl FnOnce(&Account) -> std::result::Result<Region, MapError>,
    ) -> Result<std::result::Result<Region, MapError>> {
        self.vnic
            .map(map)
            .ok_or_else(|| refuse("the connection is ended"))
    }

    fn replace_memory(&mut self, memory: GuestMemory) -> Result<()> {
        self.memory = Arc::new(memory);
        self.on_memory();
        if self.vnic.move_to(&self.memory, DRAIN_MS).is_err() {
            // A ring lies outside the new memory: it must not go on in memory that the VMM has taken back. It
            // starts again, or is refused, below, and once more when there is memory for it.
            (0..QUEUES).for_each(|index| self.stop(index, 0));
        }
        self.host.schedule();
        self.settle()
    }

    fn config_space(&self) -> [u8; 12] {
        let mut space = [0; 12];
        space[..6].copy_from_slice(&self.config.mac.unwrap_or_default());
        space[6..8].copy_from_slice(&1u16.to_le_bytes()); // VIRTIO_NET_S_LINK_UP
        space[8..10].copy_from_slice(&1u16.to_le_bytes());
        space[10..].copy_from_slice(&self.vnic.mtu().to_le_bytes());
        space
    }

    /// The front end says the MTU of its guest (NET_SET_MTU).
    fn set_net_mtu(&mut self, mtu: u64) -> Result<()> {
        let most = self.vnic.mtu();
        if mtu <= most.into() {
            self.clear_shortfall(Wish::Mtu);
            return Ok(());
        }
        Err(self.lacks(
            Wish::Mtu,
            format!(
                "its VMM gives the guest an MTU of {mtu}, and the port has {most}: change host_mtu of the VMM, or mtu of the port"
            ),
        ))
    }

    fn offered(&self) -> u64 {
        let mac = if self.config.mac.is_some() { 0 } else { NET_MAC };
        OFFERED & !mac & !self.config.masked_features
    }
}

// Each feature that is offered must have its field in the configuration space above.
const _: () = assert!(OFFERED & (NET_MTU | NET_STATUS) == NET_MTU | NET_STATUS);
