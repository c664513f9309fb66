//! A vhost-user back end for two ports that hands each frame of one to the other: the plainest data plane
//! there is, built from parts that others have written (`vhost`, `virtio-queue`, `vm-memory`).

use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{
    Backend as BackendRequests, BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
    VhostUserProtocolFeatures,
};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use virtqueue::driver::Doorbell;
use vm_memory::{Address, Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Everything a driver domain can use.
pub const ALL: u64 = 0b11 | 0b111 << 7 | 0b111 << 11 | 1 << 15 | 1 << 29 | 1 << 30 | 1 << 32;
pub const MRG_RXBUF: u64 = 1 << 15;
pub const EVENT_IDX: u64 = 1 << 29;

const RX: usize = 0;
const TX: usize = 1;

/// One port.
#[derive(Default)]
pub struct Device {
    offered: u64,
    pub acked: u64,
    memory: Option<GuestMemoryMmap>,
    regions: Vec<VhostUserMemoryRegion>,
    queues: Vec<Queue>,
    kick: [Option<File>; 2],
    call: [Option<File>; 2],
    enabled: [bool; 2],
    changed: Option<Arc<Doorbell>>,
    pub frames: u64,
    pub frame_bytes: u64,
    pub largest: usize,
    /// Frames with segmentation or checksum left to do.
    pub segmented: u64,
    pub unsummed: u64,
    pub calls: u64,
    /// The first frames, header included, up to [`Self::keep`] bytes of each.
    pub kept: Vec<Vec<u8>>,
    /// Bytes that are kept of a frame; at least 64.
    pub keep: usize,
}

pub type Shared = Arc<Mutex<Device>>;

/// Runs until dropped.
pub struct Backend {
    pub devices: [Shared; 2],
    streams: Vec<UnixStream>,
    threads: Vec<JoinHandle<()>>,
    changed: Arc<Doorbell>,
    stop: Arc<AtomicBool>,
}

impl Backend {
    /// Offers these features to both ports. Returns the streams for the front ends, too.
    pub fn start(features: u64) -> (Backend, [UnixStream; 2]) {
        let changed = Arc::new(Doorbell::new().unwrap());
        let mut streams = Vec::new();
        let mut threads = Vec::new();
        let mut port = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let device = Device {
                offered: features,
                queues: (0..2).map(|_| Queue::new(1024).unwrap()).collect(),
                changed: Some(changed.clone()),
                ..Device::default()
            };
            let shared = Arc::new(Mutex::new(device));
            streams.push(ours.try_clone().unwrap());
            let mut handler = BackendReqHandler::from_stream(ours, shared.clone());
            let device = shared.clone();
            threads.push(std::thread::spawn(move || {
                while handler.handle_request().is_ok() {}
                device.lock().unwrap().enabled = [false; 2];
            }));
            (shared, theirs)
        };
        let (first, near) = port();
        let (second, far) = port();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, wake) = (stop.clone(), changed.clone());
        let pair = [first.clone(), second.clone()];
        threads.push(std::thread::spawn(move || forward(&pair, &wake, &stopped)));
        (
            Backend {
                devices: [first, second],
                streams,
                threads,
                changed,
                stop,
            },
            [near, far],
        )
    }

    /// Writes nonsense into a used ring and calls the driver.
    pub fn corrupt(&self, port: usize) {
        let device = self.devices[port].lock().unwrap();
        let used = device.queues[RX].used_ring();
        device
            .memory
            .as_ref()
            .unwrap()
            .write_obj(0x7777u16, GuestAddress(used + 2))
            .unwrap();
        device.call[RX]
            .as_ref()
            .unwrap()
            .write_all(&1u64.to_ne_bytes())
            .unwrap();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.changed.ring();
        for stream in &self.streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn forward(devices: &[Shared; 2], changed: &Doorbell, stop: &AtomicBool) {
    let changed = File::from(changed.as_fd().try_clone_to_owned().unwrap());
    while !stop.load(Ordering::Relaxed) {
        let kicks: Vec<File> = devices
            .iter()
            .flat_map(|device| {
                let device = device.lock().unwrap();
                device
                    .kick
                    .iter()
                    .flatten()
                    .map(|kick| kick.try_clone().unwrap())
                    .collect::<Vec<_>>()
            })
            .collect();
        if !(serve(devices, 0) | serve(devices, 1)) {
            let mut fds = vec![PollFd::new(&changed, PollFlags::IN)];
            fds.extend(kicks.iter().map(|kick| PollFd::new(kick, PollFlags::IN)));
            poll(&mut fds, None).unwrap();
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (mut file, _) in std::iter::once(&changed)
                .chain(&kicks)
                .zip(ready)
                .filter(|(_, ready)| *ready)
            {
                let _ = file.read(&mut [0; 8]);
            }
        }
    }
}

/// Forwards what one port has sent. Returns whether there was anything.
fn serve(devices: &[Shared; 2], from: usize) -> bool {
    let frames = devices[from].lock().unwrap().take();
    let any = !frames.is_empty();
    if any {
        devices[1 - from].lock().unwrap().deliver(&frames);
    }
    any
}

impl Device {
    fn take(&mut self) -> Vec<Vec<u8>> {
        let Some(memory) = self.memory.clone().filter(|_| self.enabled[TX]) else {
            return Vec::new();
        };
        let mut frames = Vec::new();
        let queue = &mut self.queues[TX];
        loop {
            queue.disable_notification(&memory).unwrap();
            while let Some(chain) = queue.pop_descriptor_chain(&memory) {
                let head = chain.head_index();
                let mut frame = Vec::new();
                for descriptor in chain {
                    assert!(!descriptor.is_write_only());
                    let start = frame.len();
                    frame.resize(start + descriptor.len() as usize, 0);
                    memory.read_slice(&mut frame[start..], descriptor.addr()).unwrap();
                }
                assert!(frame.len() >= 12 + 14);
                assert_eq!(frame[0] & !1, 0, "a driver sets no flag but NEEDS_CSUM");
                assert_eq!(frame[10..12], [0, 0], "a driver leaves num_buffers zero");
                self.frames += 1;
                self.frame_bytes += frame.len() as u64 - 12;
                self.largest = self.largest.max(frame.len() - 12);
                self.unsummed += u64::from(frame[0] & 1);
                self.segmented += u64::from(frame[1] != 0);
                if self.kept.len() < 1000 {
                    self.kept
                        .push(frame[..frame.len().min(self.keep.max(64))].to_vec());
                }
                frames.push(frame);
                queue.add_used(&memory, head, 0).unwrap();
            }
            if !queue.enable_notification(&memory).unwrap() || frames.len() > 64 {
                break;
            }
        }
        if !frames.is_empty() && queue.needs_notification(&memory).unwrap() {
            self.calls += 1;
            if let Some(call) = &mut self.call[TX] {
                call.write_all(&1u64.to_ne_bytes()).unwrap();
            }
        }
        if frames.len() > 64
            && let Some(changed) = &self.changed
        {
            changed.ring();
        }
        frames
    }

    /// Spreads each frame over receive buffers; drops it when they run out.
    fn deliver(&mut self, frames: &[Vec<u8>]) {
        let Some(memory) = self.memory.clone().filter(|_| self.enabled[RX]) else {
            return;
        };
        let before = self.queues[RX].next_used();
        for frame in frames {
            let mut used: Vec<(u16, u32, GuestAddress)> = Vec::new();
            let mut at = 0;
            while at < frame.len() {
                let Some(chain) = self.queues[RX].pop_descriptor_chain(&memory) else {
                    break;
                };
                let head = chain.head_index();
                let descriptor = chain.into_iter().next().unwrap();
                assert!(descriptor.is_write_only());
                let len = (frame.len() - at).min(descriptor.len() as usize);
                memory
                    .write_slice(&frame[at..at + len], descriptor.addr())
                    .unwrap();
                used.push((head, len as u32, descriptor.addr()));
                at += len;
            }
            let merged = self.acked & MRG_RXBUF != 0;
            if at < frame.len() || (!merged && used.len() > 1) {
                let queue = &mut self.queues[RX];
                used.iter().for_each(|_| queue.go_to_previous_position());
                break;
            }
            memory
                .write_obj((used.len() as u16).to_le(), used[0].2.unchecked_add(10))
                .unwrap();
            self.publish(&memory, &used);
        }
        let now = self.queues[RX].next_used();
        let avail = self.queues[RX].avail_ring();
        let wanted = if self.acked & EVENT_IDX != 0 {
            std::sync::atomic::fence(Ordering::SeqCst);
            let offset = 4 + u64::from(self.queues[RX].size()) * 2;
            let event: u16 = memory.read_obj(GuestAddress(avail + offset)).unwrap();
            now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
        } else {
            std::sync::atomic::fence(Ordering::SeqCst);
            memory.read_obj::<u16>(GuestAddress(avail)).unwrap() & 1 == 0
        };
        if now != before && wanted {
            self.calls += 1;
            self.call[RX]
                .as_mut()
                .unwrap()
                .write_all(&1u64.to_ne_bytes())
                .unwrap();
        }
    }

    /// All buffers of a frame at once, which `Queue::add_used` cannot.
    fn publish(&mut self, memory: &GuestMemoryMmap, used: &[(u16, u32, GuestAddress)]) {
        let queue = &mut self.queues[RX];
        let (ring, size) = (queue.used_ring(), queue.size());
        for (head, len, _) in used {
            let entry = ring + 4 + u64::from(queue.next_used() % size) * 8;
            memory
                .write_obj(u32::from(*head).to_le(), GuestAddress(entry))
                .unwrap();
            memory.write_obj(len.to_le(), GuestAddress(entry + 4)).unwrap();
            queue.set_next_used(queue.next_used().wrapping_add(1));
        }
        memory
            .store(
                queue.next_used().to_le(),
                GuestAddress(ring + 2),
                Ordering::Release,
            )
            .unwrap();
    }

    fn guest_address(&self, user: u64) -> Result<u64> {
        let inside = |region: &&VhostUserMemoryRegion| {
            (region.user_addr..region.user_addr + region.memory_size).contains(&user)
        };
        let region = self.regions.iter().find(inside).ok_or(Error::InvalidParam)?;
        Ok(user - region.user_addr + region.guest_phys_addr)
    }

    fn poke(&self) {
        self.changed.as_ref().unwrap().ring();
    }
}

/// What a driver domain does not use is refused.
macro_rules! unused_requests {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&mut self, $($argument: $type),*) -> Result<$result> {
            $(let _ = $argument;)*
            Err(Error::InvalidOperation(stringify!($name)))
        })*
    };
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }
    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered)
    }
    fn set_features(&mut self, features: u64) -> Result<()> {
        assert_eq!(features & !self.offered, 0);
        self.acked = features;
        self.queues
            .iter_mut()
            .for_each(|queue| queue.set_event_idx(features & EVENT_IDX != 0));
        Ok(())
    }
    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let maps = regions.iter().zip(files).map(|(region, file)| {
            let offset = FileOffset::new(file, region.mmap_offset);
            let map = MmapRegion::from_file(offset, region.memory_size as usize).unwrap();
            GuestRegionMmap::new(map, GuestAddress(region.guest_phys_addr)).unwrap()
        });
        self.memory = Some(GuestMemoryMmap::from_regions(maps.collect()).unwrap());
        self.regions = regions.to_vec();
        Ok(None)
    }
    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.queues[index as usize].set_size(num as u16);
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
        let addresses = [
            self.guest_address(descriptor)?,
            self.guest_address(available)?,
            self.guest_address(used)?,
        ];
        let queue = &mut self.queues[index as usize];
        queue
            .try_set_desc_table_address(GuestAddress(addresses[0]))
            .map_err(|_| Error::InvalidParam)?;
        queue
            .try_set_avail_ring_address(GuestAddress(addresses[1]))
            .map_err(|_| Error::InvalidParam)?;
        queue
            .try_set_used_ring_address(GuestAddress(addresses[2]))
            .map_err(|_| Error::InvalidParam)
    }
    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.queues[index as usize].set_next_avail(base as u16);
        Ok(())
    }
    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.queues[usize::from(index)].set_ready(true);
        self.kick[usize::from(index)] = fd;
        if self.offered & 1 << 30 == 0 {
            self.enabled[usize::from(index)] = true;
            self.poke();
        }
        Ok(())
    }
    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.call[usize::from(index)] = fd;
        Ok(())
    }
    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::MQ)
    }
    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        assert_eq!(features, VhostUserProtocolFeatures::REPLY_ACK.bits());
        Ok(())
    }
    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.enabled[index as usize] = enable;
        self.poke();
        Ok(())
    }
    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("set_gpu_socket"))
    }
    fn set_backend_req_fd(&mut self, _backend: BackendRequests) {}
    unused_requests! {
        reset_owner() -> ();
        reset_device() -> ();
        get_vring_base(index: u32) -> VhostUserVringState;
        set_vring_err(index: u8, fd: Option<File>) -> ();
        get_queue_num() -> u64;
        get_config(offset: u32, size: u32, flags: VhostUserConfigFlags) -> Vec<u8>;
        set_config(offset: u32, bytes: &[u8], flags: VhostUserConfigFlags) -> ();
        get_shared_object(uuid: VhostUserSharedMsg) -> File;
        get_inflight_fd(inflight: &VhostUserInflight) -> (VhostUserInflight, File);
        set_inflight_fd(inflight: &VhostUserInflight, file: File) -> ();
        get_max_mem_slots() -> u64;
        add_mem_region(region: &VhostUserSingleMemoryRegion, fd: File, postcopy: Option<bool>) -> Option<u64>;
        remove_mem_region(region: &VhostUserSingleMemoryRegion) -> ();
        set_device_state_fd(
            direction: VhostTransferStateDirection, phase: VhostTransferStatePhase, fd: File
        ) -> Option<File>;
        check_device_state() -> ();
        get_shmem_config() -> VhostUserShMemConfig;
        set_log_base(log: &VhostUserLog, file: File) -> ();
    }
}
