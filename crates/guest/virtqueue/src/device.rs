//! The device side of a split virtqueue.

mod give_back;

use crate::chain::{Chain, ChainError, Direction, ENOUGH};
use crate::split::{
    AVAIL_F_NO_INTERRUPT, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, DESC_LEN, USED_F_NO_NOTIFY,
};
use give_back::Early;
use guest_memory::{Access, GuestMemory, GuestRange, prefetch};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Largest queue size, as `SPECIFICATION.md` promises and as QEMU limits it. VIRTIO (1.2, 2.7) has 32,768.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Most descriptors in an indirect table, which is the largest queue size of VIRTIO (1.2, 2.7.5.3.1). Of a
/// large table only [`MAX_DESCRIPTORS`](crate::MAX_DESCRIPTORS) are examined.
const MAX_INDIRECT: u32 = 32_768;

const DESC_SIZE: u32 = DESC_LEN as u32;

/// Entries of the used ring in a cache line.
const USED_PER_LINE: usize = 8;
/// Chains whose descriptors are prefetched.
const AHEAD: u16 = 32;

/// Where a queue lies, in front-end (VMM user space) addresses, as vhost-user gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAddresses {
    /// Number of descriptors: a power of two up to [`MAX_QUEUE_SIZE`].
    pub size: u16,
    /// Descriptor table, aligned to 16.
    pub descriptors: u64,
    /// Driver area ("available ring"), aligned to 2.
    pub available: u64,
    /// Device area ("used ring"), aligned to 4.
    pub used: u64,
}

/// Why a queue cannot be used, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Size 0, above the maximum or not a power of two.
    #[error("queue size {0} is not a power of two between 1 and 1024")]
    Size(u16),
    /// A ring is outside guest memory or misaligned.
    #[error("the {0} lies outside guest memory or is misaligned")]
    Address(&'static str),
    /// The driver moved its index so that more chains would be under way than the queue holds.
    #[error("available index moved by {0}, more than the queue has room for")]
    AvailableIndex(u16),
    /// A chain in a receive queue is malformed, so nothing can be delivered.
    #[error("malformed descriptor chain in a receive queue")]
    ReceiveChain,
    /// The available ring names a descriptor that does not exist.
    #[error("available ring names descriptor {0}, which does not exist")]
    Head(u16),
}

/// A queue being served. Everything it reads is checked: an inconsistency is an error, never a wrong access.
#[derive(Debug)]
pub struct DeviceQueue {
    memory: Arc<GuestMemory>,
    addresses: QueueAddresses,
    descriptors: NonNull<[AtomicU64; 2]>,
    available: NonNull<AtomicU16>,
    used: NonNull<AtomicU16>,
    event_idx: bool,
    indirect: bool,
    /// Next entry of the available ring to read.
    next_available: u16,
    /// The driver's index when it was read last.
    seen_available: u16,
    /// Head of the chain that was taken last.
    last_head: u16,
    /// Next entry of the used ring to write.
    next_used: u16,
    /// Distance from a chain's entry of the available ring to its entry of the used ring. 0 unless the used
    /// index of a ring was no place to go on at.
    lead: u16,
    /// Chains that were given back before older ones.
    early: Early,
    /// Used index that was written to the ring last.
    shown_used: u16,
    /// Whether reads of the driver's notification suppression are sure to come after it could see
    /// `shown_used`.
    ordered: bool,
    /// Used index as of the last [`publish`](Self::publish).
    published_used: u16,
    /// Used index when the driver was last notified, or would have been; `None` forces the next notification.
    signalled_used: Option<u16>,
    /// Value of `signalled_used` before the last [`publish`](Self::publish).
    signalled_before: Option<u16>,
    /// The driver's notification suppression when it was read last.
    seen_suppression: u16,
}

// SAFETY: the pointers lead into mappings that `memory` keeps alive, and are used for atomic accesses only.
unsafe impl Send for DeviceQueue {}

struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    /// From the two little-endian words of VIRTIO 1.2, 2.7.5.
    fn decode(words: [u64; 2]) -> Descriptor {
        let [address, rest] = words.map(u64::from_le);
        Descriptor {
            address,
            len: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        }
    }

    fn is_writable(&self) -> bool {
        self.flags & DESC_F_WRITE != 0
    }
}

struct Pointers {
    descriptors: NonNull<[AtomicU64; 2]>,
    available: NonNull<AtomicU16>,
    used: NonNull<AtomicU16>,
}

fn locate(memory: &GuestMemory, addresses: &QueueAddresses) -> Result<Pointers, QueueError> {
    let size = u64::from(addresses.size);
    if !addresses.size.is_power_of_two() || addresses.size > MAX_QUEUE_SIZE {
        return Err(QueueError::Size(addresses.size));
    }
    let find = |address, len, align, what| {
        memory
            .host_address(address, len, align)
            .ok_or(QueueError::Address(what))
    };
    Ok(Pointers {
        descriptors: find(addresses.descriptors, 16 * size, 16, "descriptor table")?.cast(),
        available: find(addresses.available, 6 + 2 * size, 2, "available ring")?.cast(),
        used: find(addresses.used, 6 + 8 * size, 4, "used ring")?.cast(),
    })
}

impl DeviceQueue {
    /// A queue that goes on behind the last chain that the driver has back, which the used index in the ring
    /// tells: chains come back in the order in which they were made available (`give_back.rs`). So a device
    /// that ended in the middle of anything is succeeded by one that gives every chain back exactly once.
    ///
    /// `base` is the index at which the front end wants the queue to go on: the used index, 0 for a fresh
    /// queue, and, from front ends that were left by their device, 0 for any queue (DPDK virtio-user as
    /// server) or the available index (Cloud Hypervisor). The used index takes precedence, unless it
    /// contradicts the available index and `base` does not.
    pub fn new(
        memory: Arc<GuestMemory>,
        addresses: QueueAddresses,
        base: u16,
        event_idx: bool,
        indirect: bool,
    ) -> Result<DeviceQueue, QueueError> {
        let Pointers {
            descriptors,
            available,
            used,
        } = locate(&memory, &addresses)?;
        // SAFETY: `locate` found both rings, whose second words are the indices, in a mapping kept by
        // `memory`.
        let [index, next_used] = [available, used]
            .map(|ring| u16::from_le(unsafe { ring.add(1).as_ref() }.load(Ordering::Acquire)));
        let may_go_on_at = |place: u16| index.wrapping_sub(place) <= addresses.size;
        let base = if may_go_on_at(base) && !may_go_on_at(next_used) {
            base
        } else {
            next_used
        };
        Ok(DeviceQueue {
            memory,
            addresses,
            descriptors,
            available,
            used,
            event_idx,
            indirect,
            next_available: base,
            seen_available: base,
            last_head: 0,
            next_used,
            lead: next_used.wrapping_sub(base),
            early: Early::new(addresses.size),
            shown_used: next_used,
            ordered: true,
            published_used: next_used,
            signalled_used: None,
            signalled_before: None,
            seen_suppression: 0,
        })
    }

    /// Goes on with other memory, in which the rings must lie at the same front-end addresses.
    pub fn move_to(&mut self, memory: Arc<GuestMemory>) -> Result<(), QueueError> {
        let Pointers {
            descriptors,
            available,
            used,
        } = locate(&memory, &self.addresses)?;
        (self.descriptors, self.available, self.used, self.memory) = (descriptors, available, used, memory);
        Ok(())
    }

    /// The memory the queue and its buffers lie in.
    #[inline]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Number of descriptors.
    pub fn size(&self) -> u16 {
        self.addresses.size
    }

    /// Whether the driver has had chains back. Just after [`new`](Self::new), a device before this one gave
    /// them back, and may have ended before the driver was notified.
    pub fn has_history(&self) -> bool {
        self.published_used != 0
    }

    /// The index to go on at later: the chains before it were given back.
    pub fn base(&self) -> u16 {
        self.next_used.wrapping_sub(self.lead)
    }

    /// Chains that were taken and not given back, or not before older ones.
    fn outstanding(&self) -> u16 {
        self.next_available.wrapping_sub(self.base())
    }

    /// Number of chains waiting. Reads the driver's index only when all chains seen before are taken.
    #[inline]
    pub fn waiting(&mut self) -> Result<u16, QueueError> {
        let known = self.seen_available.wrapping_sub(self.next_available);
        if known > 0 {
            return Ok(known);
        }
        self.look()
    }

    /// Number of chains waiting, freshly read.
    #[inline]
    pub fn look(&mut self) -> Result<u16, QueueError> {
        let index = u16::from_le(self.available_word(1).load(Ordering::Acquire));
        let moved = index.wrapping_sub(self.next_available);
        // An entry of the used ring belongs to one chain at a time.
        if u32::from(moved) + u32::from(self.outstanding()) > u32::from(self.addresses.size) {
            return Err(QueueError::AvailableIndex(moved));
        }
        self.seen_available = index;
        if moved > 0 {
            let slot = self.next_available & (self.addresses.size - 1);
            prefetch(self.available_word(2 + usize::from(slot)), Access::Read);
            // Many drivers use their descriptors in turn.
            self.prefetch_descriptor(self.last_head.wrapping_add(1) & (self.addresses.size - 1));
        }
        Ok(moved)
    }

    /// Takes the next chain into `chain`; `None` when none is waiting. After an inner error the chain is
    /// taken all the same, with only its head valid, and should be given back with length 0.
    #[inline]
    pub fn take(
        &mut self,
        direction: Direction,
        chain: &mut Chain,
    ) -> Result<Option<Result<(), ChainError>>, QueueError> {
        if self.waiting()? == 0 {
            return Ok(None);
        }
        let slot = self.next_available & (self.addresses.size - 1);
        let head = u16::from_le(self.available_word(2 + usize::from(slot)).load(Ordering::Relaxed));
        if head >= self.addresses.size {
            return Err(QueueError::Head(head));
        }
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(self.chain(head, direction, 0, chain)))
    }

    /// Takes as many chains as are waiting and `heads` has room for, and returns their number.
    /// [`chain`](Self::chain), or [`buffer`](Self::buffer), reads their descriptors one burst later, when
    /// these are in the cache.
    #[inline]
    pub fn take_heads(&mut self, heads: &mut [u16]) -> Result<usize, QueueError> {
        let mut waiting = usize::from(self.seen_available.wrapping_sub(self.next_available));
        if waiting < heads.len() {
            waiting = self.look()?.into();
        }
        let count = waiting.min(heads.len());
        let mask = self.addresses.size - 1;
        for (number, head) in heads[..count].iter_mut().enumerate() {
            let slot = usize::from(self.next_available.wrapping_add(number as u16) & mask);
            *head = u16::from_le(self.available_word(2 + slot).load(Ordering::Relaxed));
            if *head > mask {
                return Err(QueueError::Head(*head));
            }
            self.prefetch_descriptor(*head);
        }
        self.next_available = self.next_available.wrapping_add(count as u16);
        self.last_head = heads[..count].last().copied().unwrap_or(self.last_head);
        for place in (0..count as u16).step_by(USED_PER_LINE) {
            prefetch(self.used_entry(self.next_used.wrapping_add(place)), Access::Write);
        }
        Ok(count)
    }

    /// Prefetches the descriptors of chains that are known to wait, about a burst of them, for the next time
    /// that heads are taken. A driver that receives has many of them waiting, and they no longer change.
    pub fn look_ahead(&self) {
        let waiting = self.seen_available.wrapping_sub(self.next_available);
        let mask = self.addresses.size - 1;
        for number in 0..waiting.min(AHEAD) {
            let slot = usize::from(self.next_available.wrapping_add(number) & mask);
            let head = u16::from_le(self.available_word(2 + slot).load(Ordering::Relaxed));
            self.prefetch_descriptor(head);
        }
        let later = usize::from(self.next_available.wrapping_add(AHEAD) & mask);
        prefetch(self.available_word(2 + later), Access::Read);
    }

    fn prefetch_descriptor(&self, head: u16) {
        prefetch(self.descriptors.as_ptr().wrapping_add(head.into()), Access::Read);
    }

    /// Walks a chain that was taken into `chain`, and prefetches the first `ahead` bytes of its first buffer.
    /// After an error only its head is valid, and it should be given back with length 0.
    #[inline]
    pub fn chain(
        &self,
        head: u16,
        direction: Direction,
        ahead: u32,
        chain: &mut Chain,
    ) -> Result<(), ChainError> {
        let first = self.descriptor(head);
        let plain = first.flags & (DESC_F_NEXT | DESC_F_INDIRECT) == 0
            && first.is_writable() == (direction == Direction::ToDriver);
        if plain
            && let Some(range) = self
                .memory
                .range_ahead(first.address, first.len, ahead, Access::Read)
            && range.len() == first.len
        {
            chain.set(head, range);
            return Ok(());
        }
        chain.reset(head);
        self.walk(head, direction, chain)
    }

    /// The only buffer of a chain that was taken from a receive queue, of which the first `ahead` bytes are
    /// prefetched; `None` for a chain that has several, or is malformed.
    #[inline]
    pub fn buffer(&self, head: u16, ahead: u32) -> Option<GuestRange> {
        let first = self.descriptor(head);
        let range = self
            .memory
            .range_ahead(first.address, first.len, ahead, Access::Write)?;
        (first.flags & (DESC_F_NEXT | DESC_F_INDIRECT | DESC_F_WRITE) == DESC_F_WRITE
            && range.len() == first.len)
            .then_some(range)
    }

    /// Whether the driver has made every descriptor available again, freshly read: of a receive queue whose
    /// driver uses each for a chain of its own, that nothing is left of what was given to it.
    pub fn has_all_back(&self) -> bool {
        let index = u16::from_le(self.available_word(1).load(Ordering::Acquire));
        let is_shown = self.next_used == self.published_used;
        is_shown && index.wrapping_sub(self.base()) == self.addresses.size
    }

    /// Moves back by `count` chains that were taken last and are not in the used ring: they will be taken
    /// again.
    pub fn rewind(&mut self, count: u16) {
        self.next_available = self.next_available.wrapping_sub(count);
    }

    /// Moves back to the first chain that the driver does not have back: it and those behind it will be taken
    /// again.
    pub fn rewind_all(&mut self) {
        self.next_available = self.base();
        self.early = Early::new(self.addresses.size);
    }

    #[cold]
    fn walk(&self, head: u16, direction: Direction, chain: &mut Chain) -> Result<(), ChainError> {
        let mut index = head;
        // A chain that is longer than the table has descriptors runs in a circle.
        for _ in 0..self.addresses.size {
            if index >= self.addresses.size {
                return Err(ChainError::Malformed);
            }
            let descriptor = self.descriptor(index);
            if descriptor.flags & DESC_F_INDIRECT != 0 {
                // An indirect descriptor ends the chain and has no direction of its own (2.7.5.3.1).
                if !self.indirect || descriptor.flags & DESC_F_NEXT != 0 {
                    return Err(ChainError::Malformed);
                }
                return self.walk_indirect(&descriptor, direction, chain);
            }
            if descriptor.is_writable() != (direction == Direction::ToDriver) {
                return Err(ChainError::Malformed);
            }
            chain.append(&self.memory, descriptor.address, descriptor.len)?;
            if descriptor.flags & DESC_F_NEXT == 0 || chain.len() >= ENOUGH {
                return Ok(());
            }
            index = descriptor.next;
        }
        Err(ChainError::Malformed)
    }

    fn walk_indirect(
        &self,
        table: &Descriptor,
        direction: Direction,
        chain: &mut Chain,
    ) -> Result<(), ChainError> {
        let count = table.len / DESC_SIZE;
        if !table.len.is_multiple_of(DESC_SIZE) || count == 0 || count > MAX_INDIRECT {
            return Err(ChainError::Malformed);
        }
        let whole = self
            .memory
            .range(table.address, table.len)
            .ok_or(ChainError::Malformed)?;
        if whole.len() != table.len {
            return Err(ChainError::Malformed);
        }
        let mut index = 0;
        for _ in 0..count {
            if index >= count {
                return Err(ChainError::Malformed);
            }
            let mut bytes = [0u8; DESC_SIZE as usize];
            self.memory.read(whole.split_at(index * DESC_SIZE).1, &mut bytes);
            let [low, high] = [0, 8].map(|at| {
                let mut word = [0; 8];
                word.copy_from_slice(&bytes[at..at + 8]);
                u64::from_ne_bytes(word)
            });
            let descriptor = Descriptor::decode([low, high]);
            let nested = descriptor.flags & DESC_F_INDIRECT != 0;
            if nested || descriptor.is_writable() != (direction == Direction::ToDriver) {
                return Err(ChainError::Malformed);
            }
            chain.append(&self.memory, descriptor.address, descriptor.len)?;
            if descriptor.flags & DESC_F_NEXT == 0 || chain.len() >= ENOUGH {
                return Ok(());
            }
            index = u32::from(descriptor.next);
        }
        Err(ChainError::Malformed)
    }

    /// Whether [`publish`](Self::publish) has anything to show.
    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.next_used != self.published_used
    }

    /// Shows the driver the chains given back so far, without waiting until it can see them. The driver is
    /// not notified before [`publish`](Self::publish).
    #[inline]
    pub fn show(&mut self) {
        if self.next_used != self.shown_used {
            self.used_word(1).store(self.next_used.to_le(), Ordering::Release);
            (self.shown_used, self.ordered) = (self.next_used, false);
        }
    }

    /// As [`show`](Self::show) for two queues, with a fence after which both drivers can see the chains. It
    /// takes the place of the fences of each one's [`publish`](Self::publish).
    #[inline]
    pub fn show_both(&mut self, other: &mut DeviceQueue) {
        self.show();
        other.show();
        full_fence();
        (self.ordered, other.ordered) = (true, true);
    }

    /// Shows the driver all chains given back so far. True when it must be notified.
    pub fn publish(&mut self) -> bool {
        if self.next_used == self.published_used {
            return false;
        }
        let (shown, ordered) = (self.shown_used == self.next_used, self.ordered);
        (self.shown_used, self.ordered) = (self.next_used, true);
        let suppression = self.suppression();
        // The index must be visible before the driver's suppression is read, or both sides could wait
        // (2.7.10).
        if !shown {
            // One order for these two accesses costs less than a fence for all. Both cache lines are fetched
            // at the same time.
            prefetch(suppression, Access::Read);
            self.used_word(1).store(self.next_used.to_le(), Ordering::SeqCst);
        } else if !ordered {
            full_fence();
        }
        self.seen_suppression = u16::from_le(suppression.load(Ordering::SeqCst));
        self.published_used = self.next_used;
        self.signalled_before = self.signalled_used.replace(self.next_used);
        self.is_wanted(self.signalled_before)
    }

    /// Whether the driver is to be notified of what was published since `signalled`.
    #[inline]
    fn is_wanted(&self, signalled: Option<u16>) -> bool {
        if self.event_idx {
            signalled.is_none_or(|signalled| passed(self.seen_suppression, self.published_used, signalled))
        } else {
            self.seen_suppression & AVAIL_F_NO_INTERRUPT == 0
        }
    }

    /// Where the driver says which notifications it wants: its event index, or its flags.
    #[inline]
    fn suppression(&self) -> &AtomicU16 {
        if self.event_idx {
            self.available_word(2 + usize::from(self.addresses.size))
        } else {
            self.available_word(0)
        }
    }

    /// The notification that [`publish`](Self::publish) asked for is put off: it and
    /// [`look_for_notification`](Self::look_for_notification) go on asking for it until the driver has looked
    /// at the used ring, or [`notified`](Self::notified).
    pub fn put_off_notification(&mut self) {
        self.signalled_used = self.signalled_before;
    }

    /// The driver is notified of all that was published.
    pub fn notified(&mut self) {
        self.signalled_used = Some(self.published_used);
    }

    /// Whether the driver still wants a notification that was [put off](Self::put_off_notification).
    pub fn look_for_notification(&mut self) -> bool {
        self.seen_suppression = u16::from_le(self.suppression().load(Ordering::Relaxed));
        self.is_wanted(self.signalled_used)
    }

    /// The driver's event index, or its flags, when they were read last. The event index has moved if the
    /// driver has looked at the used ring and waits for more of it.
    pub fn suppression_seen(&self) -> u16 {
        self.seen_suppression
    }

    /// Asks the driver to kick when it makes a chain available beyond those that were seen last. Returns
    /// whether it has done so already, in which case no kick may come.
    pub fn enable_kicks(&mut self) -> Result<bool, QueueError> {
        let seen = self.seen_available;
        if self.event_idx {
            self.avail_event().store(seen.to_le(), Ordering::Relaxed);
        } else {
            self.used_word(0).store(0, Ordering::Relaxed);
        }
        // Our suppression must be visible before the index is read again.
        full_fence();
        self.look()?;
        Ok(self.seen_available != seen)
    }

    /// Asks the driver not to kick. With EVENT_IDX it is enough not to move the event index.
    pub fn disable_kicks(&mut self) {
        if !self.event_idx {
            self.used_word(0)
                .store(USED_F_NO_NOTIFY.to_le(), Ordering::Relaxed);
        }
    }

    fn descriptor(&self, index: u16) -> Descriptor {
        debug_assert!(index < self.addresses.size);
        // SAFETY: index < size, and `locate` checked that the whole table lies in a mapping kept by `memory`,
        // aligned to 16.
        let words = unsafe { self.descriptors.add(usize::from(index)).as_ref() };
        Descriptor::decode([words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)])
    }

    /// Word of the available ring: 0 flags, 1 index, 2.. ring, 2 + size used_event.
    fn available_word(&self, word: usize) -> &AtomicU16 {
        debug_assert!(word <= usize::from(self.addresses.size) + 2);
        // SAFETY: the ring has 3 + size words, all in a mapping kept by `memory` (`locate`).
        unsafe { self.available.add(word).as_ref() }
    }

    /// Word of the used ring's head: 0 flags, 1 index.
    fn used_word(&self, word: usize) -> &AtomicU16 {
        debug_assert!(word < 2);
        // SAFETY: the ring has at least two words, in a mapping kept by `memory` (`locate`).
        unsafe { self.used.add(word).as_ref() }
    }

    fn avail_event(&self) -> &AtomicU16 {
        // SAFETY: the ring is two words, 4 * size words of entries and this one (`locate`).
        unsafe { self.used.add(2 + 4 * usize::from(self.addresses.size)).as_ref() }
    }
}

/// As `fence(SeqCst)`, which processors execute slower than any locked operation.
#[inline(always)]
fn full_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: leaves a word of the stack as it is.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp - 4], 0", options(nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Whether going from `old` to `new` passed `event` (VIRTIO 1.2, 2.7.7.1).
fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
