//! Requests of a front end: each changes the session's settings, and [`Session::settle`] then starts or stops
//! rings.

use super::{DRAIN_MS, QUEUES, Ring, Session, refuse};
use crate::features::{Features, VHOST_USER_PROTOCOL};
use crate::shortfall::Wish;
use crate::{Call, descriptor};
use guest_memory::{GuestMemory, MAX_REGIONS};
use rustix::fd::{AsFd, OwnedFd};
use std::fs::File;
use std::time::Instant;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtqueue::net::TRANSMIT_QUEUE;
use virtqueue::{MAX_QUEUE_SIZE, QueueAddresses};

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        self.is_owned = true;
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
            self.vnic.call_cost.waiting.forget(index);
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
            let (size, offset) = (region.memory_size, region.mmap_offset);
            let mapped = self.map(|account| account.map(guest, front_end, size, file, offset))?;
            memory = self.accept(mapped.and_then(|region| memory.with(region)))?;
        }
        self.replace_memory(memory).map(|()| None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.ring(index)?;
        let size = u16::try_from(num)
            .ok()
            .filter(|size| size.is_power_of_two() && *size <= MAX_QUEUE_SIZE);
        let (wish, direction) = if index as usize == TRANSMIT_QUEUE {
            (Wish::TransmitRing, "transmit")
        } else {
            (Wish::ReceiveRing, "receive")
        };
        let Some(size) = size else {
            let text = format!(
                "its VMM wants a {direction} ring of {num} entries, and the port takes powers of two up to \
                 {MAX_QUEUE_SIZE}: set queue_size (or rx_queue_size, tx_queue_size) of the VMM"
            );
            return Err(self.lacks(wish, text));
        };
        self.clear_shortfall(wish);
        self.ring(index)?.addresses.size = size;
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
        let addresses = QueueAddresses {
            descriptors: descriptor,
            available,
            used,
            ..ring.addresses
        };
        let moved = ring.running && addresses != ring.addresses;
        if moved {
            self.stop(index as usize, DRAIN_MS);
        }
        let ring = self.ring(index)?;
        ring.addresses = addresses;
        ring.has_addresses = true;
        self.settle()
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| refuse(format!("ring base {base}")))?;
        self.ring(index)?.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        // The reply, for which the front end waits, cannot express a refusal.
        self.ring(index).map_err(|_| Error::InvalidParam)?;
        self.stop(index as usize, DRAIN_MS);
        self.unwatch(index as usize);
        let ring = self.ring(index)?;
        Ok(VhostUserVringState::new(index, ring.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let index = usize::from(index);
        self.ring(index as u32)?;
        let kick = fd.ok_or_else(|| refuse("a ring without a kick descriptor cannot be served"))?;
        let kick = self.accept(descriptor::eventfd(kick.into(), "kick"))?;
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
        let call = self.accept(Call::new(fd.map(OwnedFd::from), self.callee(index.into())))?;
        self.ring(index.into())?.call = call.clone();
        self.vnic.set_call(usize::from(index) == TRANSMIT_QUEUE, call);
        self.host.schedule();
        Ok(())
    }

    fn set_vring_err(&mut self, _index: u8, fd: Option<File>) -> Result<()> {
        // Not kept: the port's state shows errors of a ring.
        let checked = fd.map(|fd| descriptor::eventfd(fd.into(), "error").map(drop));
        self.accept(checked.unwrap_or(Ok(())))
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        // User Mode Linux allocates its interrupt only when BACKEND_REQ was negotiated. We never ask
        // anything. MQ is offered for the question that comes with it, by which a front end that wants more
        // queues is known.
        let offered = VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::MTU;
        // QEMU (7.2 to 10), which serves the configuration space of network devices itself, warns its user if
        // this is offered. No other front end is known to ask before SET_OWNER, which is to come first.
        let config = if self.is_owned {
            VhostUserProtocolFeatures::CONFIG
        } else {
            VhostUserProtocolFeatures::empty()
        };
        Ok(offered | config)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        log::debug!("port {}: protocol features {features:#x}", self.vnic.port);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        self.progress.asked_queues = Some(Instant::now());
        Ok(1)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.enabled = enable;
        self.settle()
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        // Front ends ask for their whole structure, which may be longer than ours: the remaining bytes are
        // zero.
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
        let (guest, front_end) = (region.guest_phys_addr, region.user_addr);
        let (size, offset) = (region.memory_size, region.mmap_offset);
        let mapped = self.map(|account| account.map(guest, front_end, size, fd, offset))?;
        let memory = self.accept(mapped.and_then(|region| self.memory.with(region)))?;
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
