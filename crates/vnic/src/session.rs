//! One connection of a VMM: the vhost-user protocol (its wire side is the `vhost` crate's), and which rings run.
//!
//! A ring runs when it has everything: addresses, a kick descriptor, memory in which the addresses lie, and it
//! is enabled (by message, or from the start for a front end that does not know protocol features, as UML's).
//! Each message changes one of these and then [`Session::settle`] starts or stops what must be; so any order of
//! messages ends in the right state or in an error that closes the connection.

use crate::features::{Features, NET_MAC, NET_MTU, NET_STATUS, OFFERED, VHOST_USER_PROTOCOL};
use crate::quirk::{Message, acknowledge, take};
use crate::transmit::RingSetup;
use crate::{Call, Vnic};
use guest_memory::{GuestMemory, MAX_REGIONS, Region};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Backend, BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
};
use virtqueue::{Layout, MAX_QUEUE_SIZE};

/// Index of the first receive queue (VIRTIO 1.2, 5.1.2), named from the driver's side.
pub const RECEIVE_QUEUE: usize = 0;
/// Index of the first transmit queue.
pub const TRANSMIT_QUEUE: usize = 1;
const QUEUES: usize = 2;

/// How long a stopping transmit ring waits for packets under way. Receivers that stall give up before.
const DRAIN_MS: u32 = 1_000;

/// What a session needs from the data plane around it.
pub trait Host: Send + Sync {
    /// Calls [`Host::schedule`]'s worker whenever the descriptor is signalled.
    fn watch(&self, queue: usize, kick: BorrowedFd<'_>) -> std::io::Result<()>;
    /// Ends that.
    fn unwatch(&self, queue: usize);
    /// A worker must look at both sides of the interface.
    fn schedule(&self);
    /// Rings started or stopped.
    fn changed(&self);
}

/// What is offered to the guest.
#[derive(Clone, Copy, Debug)]
pub struct DeviceConfig {
    /// MAC address in the configuration space.
    pub mac: Option<[u8; 6]>,
    /// Feature bits not to offer.
    pub masked_features: u64,
}

#[derive(Debug, Default)]
struct Ring {
    layout: Layout,
    has_addresses: bool,
    base: u16,
    kick: Option<OwnedFd>,
    call: Call,
    enabled: bool,
    running: bool,
}

/// The state of a connection.
pub struct Session {
    vnic: Arc<Vnic>,
    host: Arc<dyn Host>,
    config: DeviceConfig,
    memory: Arc<GuestMemory>,
    features: Features,
    rings: [Ring; QUEUES],
    /// The channel for our requests; kept open, since a front end may take its end for ours.
    requests: Option<Backend>,
}

fn refuse(what: impl std::fmt::Display) -> Error {
    Error::ReqHandlerError(std::io::Error::other(what.to_string()))
}

fn lock(session: &Mutex<Session>) -> std::result::Result<MutexGuard<'_, Session>, String> {
    session.lock().map_err(|_| "the session panicked".to_owned())
}

impl Session {
    /// Serves a connection until the VMM closes it or breaks the protocol, which is the result's text. Blocks;
    /// shutting the stream down from elsewhere ends it.
    pub fn serve(
        vnic: Arc<Vnic>,
        host: Arc<dyn Host>,
        config: DeviceConfig,
        stream: UnixStream,
    ) -> std::result::Result<(), String> {
        vnic.set_broken(None);
        let session = Arc::new(Mutex::new(Session {
            vnic,
            host,
            config,
            memory: Arc::new(GuestMemory::new()),
            features: Features::default(),
            rings: Default::default(),
            requests: None,
        }));
        let end = Session::serve_messages(&session, stream);
        lock(&session)?.close();
        end
    }

    fn serve_messages(session: &Arc<Mutex<Session>>, stream: UnixStream) -> std::result::Result<(), String> {
        let mut second = stream.try_clone().map_err(|error| error.to_string())?;
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
                    };
                    let ok = result.is_ok();
                    acknowledge(&mut second, code, need_reply, ok).map_err(|error| error.to_string())?;
                    continue;
                }
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
            match handler.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected | Error::SocketBroken(_)) => return Ok(()),
                // The request was refused and the front end told so; it decides what to do.
                Err(Error::ReqHandlerError(error)) => log::debug!("vhost-user request refused: {error}"),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn close(&mut self) {
        for index in 0..QUEUES {
            self.stop(index, 0);
            self.unwatch(index);
        }
        self.features = Features::default();
        self.vnic.set_features(0);
        self.host.schedule();
        self.host.changed();
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        self.rings
            .get_mut(index as usize)
            .ok_or_else(|| refuse(format!("queue {index} does not exist")))
    }

    /// Starts what has become complete and stops what no longer is.
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
            layout: ring.layout,
            base: ring.base,
            features: self.features,
            call: ring.call.clone(),
        };
        if index == TRANSMIT_QUEUE {
            self.vnic.start_transmit(setup).map_err(refuse)?;
        } else {
            self.vnic.start_receive(setup).map_err(refuse)?;
        }
        self.vnic.set_broken(None);
        ring.running = true;
        log::debug!(
            "port {}: queue {index} started, {:?}",
            self.vnic.port,
            ring.layout
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

    fn unwatch(&mut self, index: usize) {
        if self.rings[index].kick.take().is_some() {
            self.host.unwatch(index);
        }
    }

    fn replace_memory(&mut self, memory: GuestMemory) -> Result<()> {
        self.memory = Arc::new(memory);
        if self.vnic.move_to(&self.memory, DRAIN_MS).is_err() {
            // A ring lies outside: it must not go on in memory that the VMM has taken back. It starts again, or
            // is refused, below, and once more when there is memory for it.
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

    fn offered(&self) -> u64 {
        let mac = if self.config.mac.is_some() { 0 } else { NET_MAC };
        OFFERED & !mac & !self.config.masked_features
    }
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        for index in 0..QUEUES {
            self.stop(index, DRAIN_MS);
            self.unwatch(index);
            self.rings[index] = Ring::default();
        }
        self.features = Features::default();
        self.vnic.set_features(0);
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered() != 0 {
            return Err(refuse(format!(
                "features {:#x} were not offered",
                features & !self.offered()
            )));
        }
        let running: Vec<_> = (0..QUEUES).filter(|&index| self.rings[index].running).collect();
        if Features(features) != self.features {
            running.iter().for_each(|&index| self.stop(index, DRAIN_MS));
        }
        self.features = Features(features);
        self.vnic.set_features(features);
        if !self.features.has(VHOST_USER_PROTOCOL) {
            self.rings.iter_mut().for_each(|ring| ring.enabled = true);
        }
        self.settle()
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut memory = GuestMemory::new();
        for (region, file) in regions.iter().zip(files) {
            let (guest, front_end) = (region.guest_phys_addr, region.user_addr);
            let mapped = Region::map(guest, front_end, region.memory_size, file, region.mmap_offset);
            memory = memory.with(mapped.map_err(refuse)?).map_err(refuse)?;
        }
        self.replace_memory(memory).map(|()| None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num)
            .ok()
            .filter(|size| size.is_power_of_two() && *size <= MAX_QUEUE_SIZE);
        self.ring(index)?.layout.size = size.ok_or_else(|| refuse(format!("queue size {num}")))?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let ring = self.ring(index)?;
        let layout = Layout {
            descriptors: descriptor,
            available,
            used,
            ..ring.layout
        };
        let moved = ring.running && layout != ring.layout;
        if moved {
            self.stop(index as usize, DRAIN_MS);
        }
        let ring = self.ring(index)?;
        ring.layout = layout;
        ring.has_addresses = true;
        self.settle()
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| refuse(format!("ring base {base}")))?;
        self.ring(index)?.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        // A refusal cannot be told in the reply, for which the front end waits.
        self.ring(index).map_err(|_| Error::InvalidParam)?;
        self.stop(index as usize, DRAIN_MS);
        self.unwatch(index as usize);
        let ring = self.ring(index)?;
        ring.has_addresses = false;
        Ok(VhostUserVringState::new(index, ring.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let index = usize::from(index);
        self.ring(index as u32)?;
        let kick =
            OwnedFd::from(fd.ok_or_else(|| refuse("a ring without a kick descriptor cannot be served"))?);
        self.unwatch(index);
        if let Err(error) = self.host.watch(index, kick.as_fd()) {
            self.settle()?;
            return Err(refuse(error));
        }
        self.rings[index].kick = Some(kick);
        self.settle()?;
        // A kick between the old descriptor and the new one may have been missed.
        self.host.schedule();
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = Call::new(fd.map(OwnedFd::from)).map_err(refuse)?;
        self.ring(index.into())?.call = call.clone();
        self.vnic.set_call(usize::from(index) == TRANSMIT_QUEUE, call);
        self.host.schedule();
        Ok(())
    }

    fn set_vring_err(&mut self, _index: u8, _fd: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        // User Mode Linux allocates its interrupt only when BACKEND_REQ was negotiated. We never ask anything.
        Ok(VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        log::debug!("port {}: protocol features {features:#x}", self.vnic.port);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(1)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.enabled = enable;
        self.settle()
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        // Front ends ask for their whole structure, which may be longer than ours: the rest is zero.
        let (offset, size) = (offset as usize, size as usize);
        let mut space = self.config_space().to_vec();
        let end = offset
            .checked_add(size)
            .filter(|&end| end <= 256)
            .ok_or(Error::InvalidParam)?;
        space.resize(end.max(space.len()), 0);
        Ok(space[offset..end].to_vec())
    }

    fn set_config(&mut self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Err(refuse("the configuration space is read-only"))
    }

    fn set_backend_req_fd(&mut self, backend: Backend) {
        self.requests = Some(backend);
    }

    fn set_gpu_socket(&mut self, _backend: GpuBackend) -> Result<()> {
        Err(refuse("not a GPU"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(refuse("no shared objects"))
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(refuse("in-flight tracking was not offered"))
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(refuse("in-flight tracking was not offered"))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let mapped = Region::map(
            region.guest_phys_addr,
            region.user_addr,
            region.memory_size,
            fd,
            region.mmap_offset,
        );
        let memory = self.memory.with(mapped.map_err(refuse)?).map_err(refuse)?;
        self.replace_memory(memory).map(|()| None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self
            .memory
            .without(region.guest_phys_addr, region.user_addr, region.memory_size)
            .ok_or_else(|| refuse("no such memory region"))?;
        self.replace_memory(memory)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(refuse("no device state"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(refuse("no device state"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(refuse("no shared memory regions"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(refuse("dirty logging was not offered"))
    }
}

// What is offered must have a place in the configuration space above.
const _: () = assert!(OFFERED & (NET_MTU | NET_STATUS) == NET_MTU | NET_STATUS);
