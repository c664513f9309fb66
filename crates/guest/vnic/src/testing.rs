//! For this crate's tests: a guest's memory with one ring, whose driver writes what it likes.

use crate::features::Features;
use crate::transmit::RingSetup;
use crate::{Call, Counters, Packet};
use flow::PortId;
use guest_memory::{GuestMemory, Region};
use lock_free::{PoolOwner, Unique};
use std::sync::Arc;
use virtqueue::QueueAddresses;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Where tables and buffers may lie.
pub(crate) const DATA: u64 = 0x1_0000;

const FRONT_END: u64 = 1 << 40;
const LEN: u64 = 8 << 20;
const AVAILABLE: u64 = 0x8000;
const USED: u64 = 0xa000;
const SIZE: u16 = 1024;

pub(crate) struct Driver {
    pub memory: Arc<GuestMemory>,
    next: u16,
    seen: u16,
}

impl Driver {
    pub fn new() -> Driver {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, LEN).unwrap();
        let region = Region::map(0, FRONT_END, LEN, file, 0).unwrap();
        Driver {
            memory: Arc::new(GuestMemory::new().with(region).unwrap()),
            next: 0,
            seen: 0,
        }
    }

    pub fn setup(&self, features: u64) -> RingSetup {
        RingSetup {
            memory: self.memory.clone(),
            addresses: QueueAddresses {
                size: SIZE,
                descriptors: FRONT_END,
                available: FRONT_END + AVAILABLE,
                used: FRONT_END + USED,
            },
            base: 0,
            features: Features(features),
            call: Call::default(),
        }
    }

    pub fn put(&self, address: u64, bytes: &[u8]) {
        let range = self.memory.range(address, bytes.len() as u32).unwrap();
        self.memory.write(range, bytes);
    }

    pub fn get(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .read(self.memory.range(address, len as u32).unwrap(), &mut bytes);
        bytes
    }

    /// Writes the descriptor with that number in the table at `table`; the ring's is at 0.
    pub fn descriptor(&self, table: u64, number: u16, address: u64, len: u32, flags: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&(number + 1).to_le_bytes());
        self.put(table + 16 * u64::from(number), &bytes);
    }

    /// Makes a descriptor a table of `count` entries of `len` bytes one behind the other, from `data` on.
    pub fn table(&self, head: u16, table: u64, count: u16, data: u64, len: u32, flags: u16) {
        for number in 0..count {
            let more = if number + 1 < count { NEXT } else { 0 };
            let address = data + u64::from(len) * u64::from(number);
            self.descriptor(table, number, address, len, flags | more);
        }
        self.descriptor(0, head, table, 16 * u32::from(count), INDIRECT);
    }

    pub fn offer(&mut self, head: u16) {
        let slot = u64::from(self.next % SIZE);
        self.put(AVAILABLE + 4 + 2 * slot, &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.next.to_le_bytes());
    }

    /// Asks for a call when the used index passes `index`.
    pub fn ask_for_call_at(&self, index: u16) {
        self.put(AVAILABLE + 4 + 2 * u64::from(SIZE), &index.to_le_bytes());
    }

    /// Offers receive buffers of `len` bytes, one behind the other from `DATA` on.
    pub fn post(&mut self, heads: std::ops::Range<u16>, len: u32) {
        for head in heads {
            self.descriptor(0, head, DATA + u64::from(head) * u64::from(len), len, WRITE);
            self.offer(head);
        }
    }

    /// The next chain that came back, and how many bytes it has.
    pub fn take_used(&mut self) -> Option<(u32, u32)> {
        let index = u16::from_le_bytes(self.get(USED + 2, 2).try_into().unwrap());
        if index == self.seen {
            return None;
        }
        let entry = self.get(USED + 4 + 8 * u64::from(self.seen % SIZE), 8);
        self.seen = self.seen.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
        Some((word(0), word(4)))
    }
}

/// Packets that come from no ring.
pub(crate) struct Source {
    pool: PoolOwner<Packet>,
    pub account: Arc<Counters>,
    port: PortId,
}

impl Source {
    pub const SLOTS: usize = 2048;

    pub fn new(port: u32) -> Source {
        let account = Arc::new(Counters::default());
        let memory = Arc::new(GuestMemory::new());
        let pool = PoolOwner::new(Self::SLOTS as u32, || {
            Packet::new(PortId(port), account.clone(), memory.clone())
        });
        Source {
            pool,
            account,
            port: PortId(port),
        }
    }

    /// Slots that are not under way.
    pub fn free(&mut self) -> usize {
        self.pool.reclaim(Packet::clear);
        self.pool.available()
    }

    pub fn packet(&mut self, frame: &[u8]) -> Unique<Packet> {
        self.pool.reclaim(Packet::clear);
        let mut packet = self.pool.take().unwrap();
        packet.fill(self.port, self.account.clone(), frame.to_vec());
        packet.header = [0; 12];
        packet.parse_flow_key().unwrap();
        packet
    }
}
