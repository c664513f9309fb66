//! A packet on its way: a private head, and a tail that still lies where the sender put it.

use crate::Counters;
use accelerator::Arrived;
use flow::{DropReason, Edit, Encapsulation, ExactKey, FlowKey, PortId, Unseen};
use guest_memory::{GuestMemory, GuestRange};
use lock_free::{PoolOwner, Shared};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtqueue::Chain;
use wire::{
    BadOffload, GSO_NONE, Layers, MAX_HEADERS, Offload, Parsed, Snapshot, VnetHeader, exact_key, parse,
    set_field,
};

/// Largest frame in bytes: the largest IP packet with Ethernet header and one VLAN tag.
pub const MAX_FRAME: u32 = 65_535 + 18;

/// Type of the tag that a mirror's copies get.
pub(crate) const COPY_TPID: u16 = 0x8100;

/// How a mirror's copy differs from its packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyForm {
    /// Bytes of the frame that are copied, at least an Ethernet header's; all if `None`.
    pub length: Option<u32>,
    /// VLAN of a tag that the copy has in front of the packet's own.
    pub vlan: Option<u16>,
}

/// A packet slot. `head` and `tail` together are the frame; decisions are made on `head` only, which no guest
/// can change. What every packet needs lies together.
#[derive(Debug)]
#[repr(C)]
pub struct Packet {
    /// The first bytes of the frame, with header changes made so far.
    pub head: Snapshot,
    /// The port it came from, whose ring gets the chain back.
    pub origin: PortId,
    /// Bytes of the frame behind `head`.
    pub(crate) tail_len: u32,
    /// The virtio-net header as the sender gave it, unchecked.
    pub header: [u8; VnetHeader::LEN],
    /// Checksum and segmentation left to do.
    pub offload: Offload,
    /// Offsets in the frame as it is now.
    pub layers: Layers,
    /// The part of the tail that lies in `chain`, from byte `tail_start` on. The origin's ring still has to
    /// get the chain back if there is one.
    pub(crate) in_chain: InChain,
    /// The tail, or its front, lies `elsewhere`, or the packet has a class: the slot has to be cleared.
    is_copy: bool,
    /// See [`Edit::Class`].
    class: u8,
    /// The packet is a mirror's copy, which no mirror copies again.
    pub is_mirrored: bool,
    /// Place of `chain` in the origin's ring.
    pub(crate) place: u16,
    pub(crate) tail_start: u32,
    /// The origin's counters.
    pub account: Arc<Counters>,
    memory: Arc<GuestMemory>,
    pub(crate) chain: Chain,
    elsewhere: Elsewhere,
    /// Room for a tail that was copied out of its guest's memory, kept by the slot: slots that come back last
    /// are used first, so it is in the cache. As long as the longest tail so far; what is behind the present
    /// one is left from others.
    copy: Vec<u8>,
}

/// The part of a packet's tail that lies in its own chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InChain {
    /// None.
    Nothing,
    /// All of it.
    Tail,
    /// What is behind the front, which lies in our memory.
    BehindFront,
}

/// Where a tail is that does not lie in the packet's own chain.
#[derive(Debug, Default)]
enum Elsewhere {
    /// The front in our memory, which no guest can change while decisions are made on it. What is behind lies
    /// where that packet has it, or in the own chain.
    Front(Box<[u8]>, Option<Shared<Packet>>),
    /// Where another packet has it, of which this one is a copy with another head.
    Of(Shared<Packet>),
    /// In our memory.
    Bytes(Vec<u8>),
    /// In the slot's `copy`.
    Copied,
    /// Nowhere.
    #[default]
    None,
}

impl Packet {
    /// An empty slot for packets of a guest with that memory.
    pub fn new(origin: PortId, account: Arc<Counters>, memory: Arc<GuestMemory>) -> Packet {
        Packet {
            origin,
            account,
            head: Snapshot::new(),
            header: [0; VnetHeader::LEN],
            layers: Layers::default(),
            offload: Offload::NONE,
            tail_len: 0,
            tail_start: 0,
            place: 0,
            in_chain: InChain::Nothing,
            is_copy: false,
            class: 0,
            is_mirrored: false,
            chain: Chain::default(),
            memory,
            elsewhere: Elsewhere::None,
            copy: Vec::new(),
        }
    }

    /// Length of the frame in bytes, Ethernet header included.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.head.len() + self.tail_len as usize
    }

    /// The class of the receiver's packets that the packet is of.
    pub fn class(&self) -> u8 {
        self.class
    }

    /// Whether the destination is a group of stations, or all.
    pub fn is_for_group(&self) -> bool {
        self.head.bytes().first().is_some_and(|first| first & 1 == 1)
    }

    /// Makes the packet's exact key, and checks what the sender's header asks for against the head.
    ///
    /// # Errors
    ///
    /// There is more to be done: the head does not hold all headers, as the key tells, or the header
    /// contradicts the frame. See [`parse_again`](Self::parse_again).
    #[inline]
    pub fn parse(&mut self, key: &mut ExactKey) -> Result<(), BadOffload> {
        let (head, behind) = (self.head.bytes(), self.tail_len as usize);
        if exact_key(head, behind, self.origin, key, &mut self.layers) {
            self.check_offload()
        } else {
            Err(BadOffload)
        }
    }

    /// Notes what delivery needs to know of a frame without tags whose sender asks for nothing. False, and
    /// nothing has changed, if it is another one.
    #[inline]
    pub fn parse_plain(&mut self) -> bool {
        let is_plain = !Offload::is_wanted(&self.header) && self.is_untagged();
        if is_plain {
            self.note_plain();
        }
        is_plain
    }

    /// Notes of a frame without tags that nothing is left to be done for it.
    #[inline]
    pub(crate) fn note_plain(&mut self) {
        self.layers = Layers {
            l3: 14,
            ..Layers::default()
        };
        self.offload = Offload::NONE;
    }

    /// Whether the Ethernet header is followed by an IP header.
    #[inline]
    pub(crate) fn is_untagged(&self) -> bool {
        let ether_type = self.head.bytes().get(12..14);
        ether_type.is_some_and(|ether_type| matches!(ether_type, [0x08, 0x00] | [0x86, 0xDD]))
    }

    /// Goes on where [`parse`](Self::parse) made this key and did not succeed. Fields that are unknown and
    /// that `is_read` stay so no longer: the front of the tail, where they are, is copied to our memory.
    ///
    /// # Errors
    ///
    /// A reason to drop the packet.
    pub fn parse_again(
        &mut self,
        key: &mut ExactKey,
        is_read: impl FnOnce(Unseen) -> bool,
        may_copy: impl FnOnce() -> bool,
    ) -> Result<(), DropReason> {
        let unseen = key.unseen();
        let offload = self.check_offload().map_err(|_| DropReason::BadOffload);
        // Headers that segments repeat, as those of a tunnel, may be behind the head as well.
        let is_settled = match offload {
            Ok(()) => unseen.is_nothing() || !is_read(unseen),
            Err(_) => unseen.is_nothing() && (self.header[1] == GSO_NONE || self.tail_len == 0),
        };
        if is_settled {
            return offload;
        }
        if !may_copy() {
            return Err(DropReason::DeepHeaders);
        }
        *key = ExactKey::of(&self.parse_flow_key()?);
        Ok(())
    }

    /// Makes the flow key, of which all fields are known, and checks what the sender's header asks for.
    ///
    /// # Errors
    ///
    /// A reason to drop the packet.
    pub fn parse_flow_key(&mut self) -> Result<FlowKey, DropReason> {
        if self.header[1] != GSO_NONE && self.front().is_empty() && self.tail_len > 0 {
            self.copy_front();
        }
        let (key, layers) = self.whole_key()?;
        self.layers = layers;
        self.offload = if Offload::is_wanted(&self.header) {
            let checked = self.wanted_offload(&self.headers());
            checked.map_err(|_| DropReason::BadOffload)?
        } else {
            Offload::NONE
        };
        Ok(key)
    }

    #[inline(always)]
    fn check_offload(&mut self) -> Result<(), BadOffload> {
        if Offload::is_wanted(&self.header) {
            self.offload = self.wanted_offload(self.head.bytes())?;
        } else if self.offload.needs_checksum() {
            self.offload = Offload::NONE;
        }
        Ok(())
    }

    /// What the sender's header asks for, checked against the beginning of the frame.
    #[inline]
    fn wanted_offload(&self, headers: &[u8]) -> Result<Offload, BadOffload> {
        let header = VnetHeader::from_bytes(&self.header);
        Offload::check(&header, &self.layers, headers, self.frame_len())
    }

    /// The flow key of the frame as it is now; `None` if fields are unknown, as their headers lie in memory
    /// of a guest or are too deep.
    pub fn key(&self) -> Option<FlowKey> {
        let Parsed { key, unseen, .. } = self.parsed();
        unseen.is_nothing().then_some(key)
    }

    /// What can be known of the frame as it is now.
    fn parsed(&self) -> Parsed {
        let parsed = parse(self.head.bytes(), self.frame_len(), self.origin);
        if parsed.unseen.is_nothing() {
            return parsed;
        }
        parse(&self.headers(), self.frame_len(), self.origin)
    }

    /// The beginning of the frame, as far as it lies in our memory and headers are looked for.
    pub(crate) fn headers(&self) -> Cow<'_, [u8]> {
        let (head, front) = (self.head.bytes(), self.front());
        let front = &front[..front.len().min(MAX_HEADERS.saturating_sub(head.len()))];
        if front.is_empty() {
            Cow::Borrowed(head)
        } else {
            Cow::Owned([head, front].concat())
        }
    }

    /// The flow key of the frame as it is now, of which all fields are known, and its layers. What the head
    /// lacks for that is copied from the guest's memory, so that it stays as it was when the packet was
    /// decided about.
    ///
    /// # Errors
    ///
    /// Headers lie further inside than [`MAX_HEADERS`].
    pub fn whole_key(&mut self) -> Result<(FlowKey, Layers), DropReason> {
        let mut parsed = self.parsed();
        if !parsed.unseen.is_nothing() && self.front().is_empty() {
            self.copy_front();
            parsed = self.parsed();
        }
        let Parsed { key, layers, unseen } = parsed;
        if unseen.is_nothing() {
            Ok((key, layers))
        } else {
            Err(DropReason::DeepHeaders)
        }
    }

    /// The bytes behind the head that lie in our memory.
    fn front(&self) -> &[u8] {
        let owner = self.tail_owner();
        match &owner.elsewhere {
            Elsewhere::Front(bytes, _) => bytes,
            Elsewhere::Bytes(bytes) => bytes,
            Elsewhere::Copied => &owner.copy[..owner.tail_len as usize],
            Elsewhere::Of(_) | Elsewhere::None => &[],
        }
    }

    /// Copies the part of the tail in which headers may be to our memory.
    #[cold]
    fn copy_front(&mut self) {
        let room = MAX_HEADERS.saturating_sub(self.head.len());
        let mut front = vec![0; room.min(self.tail_len as usize)].into_boxed_slice();
        let mut done = 0;
        self.tail(0, front.len() as u32).for_each(|piece| {
            if let Piece::Guest(memory, range) = piece {
                done += memory.read(range, &mut front[done..]);
            }
        });
        self.account.copied_in.fetch_add(done as u64, Ordering::Relaxed);
        let behind = match std::mem::take(&mut self.elsewhere) {
            Elsewhere::Of(other) => Some(other),
            _ => None,
        };
        if self.in_chain == InChain::Tail {
            self.in_chain = InChain::BehindFront;
        }
        self.elsewhere = Elsewhere::Front(front, behind);
        self.is_copy = true;
    }

    /// The tail, if it lies in one piece of its guest's memory.
    #[inline]
    pub(crate) fn tail_in_one(&self) -> Option<(&GuestMemory, GuestRange)> {
        match self.chain.segments() {
            [range] if self.in_chain == InChain::Tail => {
                Some((&self.memory, range.split_at(self.tail_start).1))
            }
            _ => None,
        }
    }

    /// Makes a change of the head.
    ///
    /// # Errors
    ///
    /// The edit cannot be made; the packet is as before.
    pub fn edit(&mut self, edit: &Edit) -> Result<(), DropReason> {
        match edit {
            Edit::Set(set) => {
                let frame_len = self.frame_len();
                let Packet {
                    head,
                    layers,
                    offload,
                    ..
                } = self;
                set_field(head.bytes_mut(), layers, offload, frame_len, set).map_err(|_| DropReason::NoHeader)
            }
            Edit::PushVlan { tpid, tci } => self
                .push_vlan(*tpid, *tci)
                .then_some(())
                .ok_or(DropReason::Policy),
            Edit::PopVlan => self.pop_vlan().then_some(()).ok_or(DropReason::Policy),
            Edit::PushMpls { lse, eth_type } => self
                .push_mpls(*lse, *eth_type)
                .then_some(())
                .ok_or(DropReason::NoHeader),
            Edit::PopMpls(eth_type) => {
                self.pop_mpls(*eth_type);
                Ok(())
            }
            // What the packet begins with is for the caller to know, see `encapsulate`.
            Edit::Encapsulate(_) => Err(DropReason::NoHeader),
            Edit::Class(class) => {
                (self.class, self.is_copy) = (*class, true);
                Ok(())
            }
        }
    }

    /// Bytes of the frame, or of the longest one it is cut into.
    pub fn longest_frame(&self) -> usize {
        self.offload.l3_len(&self.layers, self.frame_len()) + usize::from(self.layers.l3)
    }

    /// Forgets what is behind the first `len` bytes, and what was left to do with the whole. The packet is a
    /// copy.
    pub fn truncate(&mut self, len: u32) {
        debug_assert!(self.in_chain == InChain::Nothing);
        let head = u32::try_from(self.head.len()).unwrap_or(u32::MAX);
        self.tail_len = self.tail_len.min(len.saturating_sub(head));
        self.head.truncate(len as usize);
        self.offload = Offload::NONE;
        self.header = [0; VnetHeader::LEN];
    }

    /// Inserts a VLAN tag; false if there is no room for it.
    #[inline]
    pub fn push_vlan(&mut self, tpid: u16, tci: u16) -> bool {
        self.head.push_vlan(tpid, tci) && self.moved(4)
    }

    /// Removes the outermost VLAN tag; without effect if there is none.
    pub fn pop_vlan(&mut self) -> bool {
        !self.head.pop_vlan() || self.moved(-4)
    }

    /// Inserts an MPLS label stack entry; false if there is no room for it, or no Ethernet type.
    fn push_mpls(&mut self, lse: u32, eth_type: u16) -> bool {
        let before = self.head.len();
        let pushed = self.head.push_mpls(lse, eth_type);
        self.resized(before);
        pushed
    }

    /// Removes the outermost MPLS label stack entry; without effect if there is none.
    fn pop_mpls(&mut self, eth_type: u16) {
        let before = self.head.len();
        self.head.pop_mpls(eth_type);
        self.resized(before);
    }

    /// Changes what the packet begins with. Says whether it has an Ethernet header then.
    ///
    /// # Errors
    ///
    /// The packet does not begin as the change needs it, or there is no room; it is as before.
    pub fn encapsulate(&mut self, change: &Encapsulation, has_ethernet: bool) -> Result<bool, DropReason> {
        let before = self.head.len();
        let has_ethernet = self.head.encapsulate(change, has_ethernet);
        self.resized(before);
        has_ethernet.ok_or(DropReason::NoHeader)
    }

    /// Offsets after a header was pushed or removed, before which the head had that length.
    fn resized(&mut self, before: usize) {
        let by = self.head.len() as i16 - before as i16;
        let layers = match by {
            0 => return,
            1.. => Some(self.layers.behind(by.unsigned_abs())),
            _ => self.layers.uncovered(by.unsigned_abs()),
        };
        self.offload = self.offload.moved(by);
        // What was hidden since the packet came was not looked at before.
        self.layers = layers.unwrap_or_else(|| self.parsed().layers);
    }

    #[inline]
    fn moved(&mut self, by: i16) -> bool {
        self.layers = self.layers.moved(by);
        if self.offload.needs_checksum() {
            self.offload = self.offload.moved(by);
        }
        true
    }

    /// Makes this slot hold a frame of ours. `frame` has at least 14 bytes.
    pub fn fill(&mut self, origin: PortId, account: Arc<Counters>, mut frame: Vec<u8>) {
        self.origin = origin;
        self.account = account;
        let head = frame.len().min(Snapshot::CAPACITY);
        self.head.fill(head).copy_from_slice(&frame[..head]);
        frame.drain(..head);
        self.tail_len = u32::try_from(frame.len()).unwrap_or(0);
        self.elsewhere = Elsewhere::Bytes(frame);
        (self.in_chain, self.is_copy) = (InChain::Nothing, true);
    }

    /// Makes this slot hold a frame that `take` puts into room for header and head, and for what is behind:
    /// at most `longest` bytes together. Returns the frame's length.
    ///
    /// # Errors
    ///
    /// What `take` has said otherwise, or a frame of no possible length is [`Arrived::Unusable`].
    pub(crate) fn receive(
        &mut self,
        longest: usize,
        take: impl FnOnce([&mut [u8]; 2]) -> Arrived,
    ) -> Result<usize, Arrived> {
        let most = VnetHeader::LEN + Snapshot::CAPACITY;
        let behind = longest.saturating_sub(most);
        if self.copy.len() < behind {
            self.copy = vec![0; behind];
        }
        let front = self.head.fill_behind(VnetHeader::LEN, Snapshot::CAPACITY);
        let len = match take([&mut *front, &mut self.copy]) {
            Arrived::Frame(len) => len,
            other => return Err(other),
        };
        if let Some(header) = front.first_chunk() {
            self.header = *header;
        }
        let frame_len = len.saturating_sub(VnetHeader::LEN);
        if !(14..=MAX_FRAME as usize).contains(&frame_len) || len > most + self.copy.len() {
            return Err(Arrived::Unusable);
        }
        self.head.truncate(frame_len);
        let tail = frame_len - self.head.len();
        self.tail_len = u32::try_from(tail).unwrap_or(0);
        self.elsewhere = if tail > 0 {
            Elsewhere::Copied
        } else {
            Elsewhere::None
        };
        (self.in_chain, self.is_copy) = (InChain::Nothing, tail > 0);
        Ok(frame_len)
    }

    /// Makes this slot a copy of `other` whose head can be changed.
    pub fn fill_from(&mut self, other: &Shared<Packet>) {
        self.origin = other.origin;
        self.account = other.account.clone();
        self.head = other.head.clone();
        self.layers = other.layers;
        self.offload = other.offload;
        self.is_mirrored = other.is_mirrored;
        self.class = other.class;
        self.tail_len = other.tail_len;
        self.elsewhere = if other.tail_len == 0 {
            Elsewhere::None
        } else {
            Elsewhere::Of(other.clone())
        };
        (self.in_chain, self.is_copy) = (InChain::Nothing, true);
    }

    /// A copy of a packet, tail and all, in a slot that belongs to no pool; and how many bytes the tail has.
    pub(crate) fn copy_out(packet: &Shared<Packet>) -> (Shared<Packet>, usize) {
        let no_memory = Arc::new(GuestMemory::new());
        let mut pool = PoolOwner::new(1, || {
            Packet::new(packet.origin, packet.account.clone(), no_memory.clone())
        });
        let mut slot = pool.take().expect("a new pool has a free slot");
        slot.fill_from(packet);
        let tail = slot.detach();
        (slot.share(), tail)
    }

    /// Copies the tail to our memory, so that the chain is not needed any more; returns its length.
    pub(crate) fn detach(&mut self) -> usize {
        let len = self.tail_len as usize;
        let mut copy = std::mem::take(&mut self.copy);
        if copy.len() < len {
            copy.resize(len, 0);
        }
        let mut done = 0;
        self.tail(0, self.tail_len).for_each(|piece| match piece {
            Piece::Guest(memory, range) => done += memory.read(range, &mut copy[done..len]),
            Piece::Bytes(piece) => {
                copy[done..done + piece.len()].copy_from_slice(piece);
                done += piece.len();
            }
        });
        // What could not be read is zeros, as memory that vanished is: an earlier packet is nobody's
        // business.
        copy[done..len].fill(0);
        self.copy = copy;
        self.elsewhere = Elsewhere::Copied;
        (self.in_chain, self.is_copy) = (InChain::Nothing, true);
        done
    }

    /// A mirror's copy of a packet, in a slot that belongs to no pool and memory of its own. `None` if it
    /// cannot have that form.
    pub fn mirrored(&self, form: &CopyForm) -> Option<Shared<Packet>> {
        let no_memory = Arc::new(GuestMemory::new());
        let mut pool = PoolOwner::new(1, || {
            Packet::new(self.origin, self.account.clone(), no_memory.clone())
        });
        let mut slot = pool.take()?;
        let kept = form.length.map_or(usize::MAX, |length| length as usize);
        slot.fill(self.origin, self.account.clone(), self.to_bytes(kept));
        slot.layers = self.layers;
        if kept >= self.frame_len() {
            slot.offload = self.offload;
        }
        slot.is_mirrored = true;
        let is_tagged = form.vlan.is_none_or(|vlan| slot.push_vlan(COPY_TPID, vlan));
        is_tagged.then(|| slot.share())
    }

    /// The slot that has the tail.
    fn tail_owner(&self) -> &Packet {
        let mut owner = self;
        while let Elsewhere::Of(other) = &owner.elsewhere {
            owner = other;
        }
        owner
    }

    /// The tail from byte `offset` on, at most `len` bytes of it.
    pub(crate) fn tail(&self, offset: u32, len: u32) -> TailPart<'_> {
        let owner = self.tail_owner();
        if owner.in_chain == InChain::Tail {
            return owner.chain_part(&[], offset, len);
        }
        let bytes = match &owner.elsewhere {
            Elsewhere::Front(front, behind) => {
                let front = front.get(offset as usize..).unwrap_or(&[]);
                let front = &front[..front.len().min(len as usize)];
                let done = front.len() as u32;
                // A front is copied from a chain only.
                let owner = behind.as_ref().map_or(owner, |behind| behind.tail_owner());
                return owner.chain_part(front, offset + done, len - done);
            }
            Elsewhere::Bytes(bytes) => &bytes[..],
            Elsewhere::Copied => &owner.copy[..owner.tail_len as usize],
            Elsewhere::Of(_) | Elsewhere::None => &[],
        };
        let bytes = bytes.get(offset as usize..).unwrap_or(&[]);
        TailPart::Bytes(&bytes[..bytes.len().min(len as usize)])
    }

    /// `front`, and the part of the tail that lies in the own chain from byte `offset` on.
    fn chain_part<'a>(&'a self, front: &'a [u8], offset: u32, len: u32) -> TailPart<'a> {
        TailPart::Guest {
            front,
            memory: &self.memory,
            chain: &self.chain,
            offset: self.tail_start + offset,
            len,
        }
    }

    /// Whether the memory the tail lies in vanished.
    pub(crate) fn is_broken(&self) -> bool {
        let owner = self.tail_owner();
        let owner = match &owner.elsewhere {
            Elsewhere::Front(_, Some(behind)) => behind.tail_owner(),
            _ => owner,
        };
        owner.in_chain != InChain::Nothing && owner.memory.is_broken()
    }

    /// Copies the first `limit` bytes of the frame, or all of it, into our memory.
    pub fn to_bytes(&self, limit: usize) -> Vec<u8> {
        let len = self.frame_len().min(limit);
        let mut bytes = vec![0; len];
        let head = self.head.len().min(len);
        bytes[..head].copy_from_slice(&self.head.bytes()[..head]);
        let mut done = head;
        self.tail(0, (len - head) as u32).for_each(|piece| match piece {
            Piece::Guest(memory, range) => done += memory.read(range, &mut bytes[done..]),
            Piece::Bytes(piece) => {
                bytes[done..done + piece.len()].copy_from_slice(piece);
                done += piece.len();
            }
        });
        bytes
    }

    /// Like a fresh slot: nothing in it belongs to a port.
    pub fn reset(&mut self, account: &Arc<Counters>) {
        self.clear();
        self.account = account.clone();
    }

    /// Forgets the tail, so that a slot at rest keeps no other packet, no guest's memory, and of ours only
    /// its `copy`.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        if self.is_copy {
            (self.elsewhere, self.class) = (Elsewhere::None, 0);
        }
        if self.is_copy || self.in_chain != InChain::Nothing {
            (self.is_copy, self.in_chain, self.tail_len) = (false, InChain::Nothing, 0);
        }
    }
}

/// A stretch of a packet's tail.
#[derive(Clone, Copy)]
pub(crate) enum TailPart<'a> {
    Guest {
        /// Before what lies in the guest's memory.
        front: &'a [u8],
        memory: &'a GuestMemory,
        chain: &'a Chain,
        offset: u32,
        len: u32,
    },
    Bytes(&'a [u8]),
}

/// A contiguous piece of it.
pub(crate) enum Piece<'a> {
    Guest(&'a GuestMemory, GuestRange),
    Bytes(&'a [u8]),
}

impl<'a> TailPart<'a> {
    #[inline]
    pub(crate) fn for_each(self, mut f: impl FnMut(Piece<'a>)) {
        match self {
            TailPart::Bytes(bytes) => f(Piece::Bytes(bytes)),
            TailPart::Guest {
                front,
                memory,
                chain,
                offset,
                len,
            } => {
                if !front.is_empty() {
                    f(Piece::Bytes(front));
                }
                let mut left = len;
                for range in chain.from(offset) {
                    let (part, _) = range.split_at(left);
                    left -= part.len();
                    f(Piece::Guest(memory, part));
                    if left == 0 {
                        break;
                    }
                }
            }
        }
    }
}
