//! A worker's scratch memory: everything that a packet needs while it runs, allocated once.

use crate::bits::SLACK;
use crate::engine::{Engine, Sizes};
use crate::packet::Counts;
use p4_ir::{DigestId, FieldListId, HeaderId};
use std::collections::VecDeque;

/// Snapshots that the waiting copies of a packet may need at a time.
pub(crate) const SNAPSHOTS: usize = 32;

/// Most copies of one received packet in all.
pub const MAX_COPIES: usize = 512;

/// Operations that a pass has asked for, which are carried out at the end of its control.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deferred {
    pub clone: Option<(u64, Option<FieldListId>)>,
    pub digest: Option<DigestId>,
    pub resubmit: Option<Option<FieldListId>>,
    pub recirculate: Option<Option<FieldListId>>,
}

/// What a packet carries from one control to the next.
#[derive(Clone, Debug)]
pub(crate) struct PacketState {
    pub phv: Vec<u8>,
    /// One bit per header instance. Bytes of invalid headers are zero.
    pub valid: Vec<u64>,
    /// Bits in use of each header's variable field.
    pub filled: Vec<u16>,
    /// Next index of each stack, then of each union stack.
    pub next: Vec<u16>,
    pub head: Vec<u8>,
    pub head_len: usize,
    /// Bytes of the received packet that the head holds or has replaced.
    pub pulled: usize,
    /// Where the parser is in the head.
    pub at: usize,
    /// Most bytes of the packet when it leaves.
    pub truncate: usize,
    /// Bytes of the packet when its pass through ingress began.
    pub length: usize,
}

impl PacketState {
    fn new(sizes: &Sizes) -> Self {
        PacketState {
            phv: vec![0; sizes.phv + SLACK],
            valid: vec![0; sizes.valid],
            filled: vec![0; sizes.headers],
            next: vec![0; sizes.stacks],
            head: vec![0; sizes.head + SLACK],
            head_len: 0,
            pulled: 0,
            at: 0,
            truncate: usize::MAX,
            length: 0,
        }
    }

    /// Becomes like another state of the same program. Bytes behind the head are left as they are.
    fn copy_from(&mut self, other: &PacketState) {
        self.phv.copy_from_slice(&other.phv);
        self.valid.copy_from_slice(&other.valid);
        self.filled.copy_from_slice(&other.filled);
        self.next.copy_from_slice(&other.next);
        self.head[..other.head_len].copy_from_slice(&other.head[..other.head_len]);
        self.head_len = other.head_len;
        self.pulled = other.pulled;
        self.at = other.at;
        self.truncate = other.truncate;
        self.length = other.length;
    }
}

/// A packet's state between the controls.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub packet: PacketState,
    /// The copy is to run again when egress ends.
    pub recirculate: Option<Option<FieldListId>>,
    /// Waiting copies that still refer to it.
    pub users: usize,
}

/// A copy of the packet that waits to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingCopy {
    pub snapshot: u16,
    pub kind: CopyKind,
    pub passes: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyKind {
    /// The snapshot's head is to be parsed; kept metadata is set.
    Ingress { instance: u8 },
    /// Egress for this port, as this replica.
    Egress { port: u32, rid: u16, instance: u8 },
}

/// Scratch memory of one worker for one engine. See the module's description.
#[derive(Debug)]
pub struct Context {
    pub(crate) regs: [u64; 256],
    pub(crate) wide: Vec<u64>,
    /// The packet that runs.
    pub(crate) packet: PacketState,
    pub(crate) key: [u64; p4_tables::MAX_KEY_WORDS],
    pub(crate) arguments: Vec<u64>,
    pub(crate) gathered: Vec<u8>,
    pub(crate) gathered_bits: usize,
    /// The payload belongs to the gathered bytes: see [`crate::code::Slow::GatherPayload`].
    pub(crate) payload: Option<Option<HeaderId>>,
    pub(crate) steps: u32,
    /// Turns that loops in actions may still take.
    pub(crate) loop_turns: u32,
    pub(crate) parser_error: u32,
    pub(crate) checksum_error: bool,
    pub(crate) deferred: Deferred,
    pub(crate) out: Vec<u8>,
    pub(crate) waiting: VecDeque<WaitingCopy>,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) copies: usize,
    /// Passes beyond the first, and copies, that may still run.
    pub(crate) spare_passes: u32,
    pub(crate) random: u64,
    pub(crate) counts: Counts,
}

impl Context {
    /// Scratch memory for an engine. `seed` decides the numbers that the program's `random` gives.
    pub fn new(engine: &Engine, seed: u64) -> Self {
        let sizes = engine.sizes();
        let packet = PacketState::new(sizes);
        let snapshot = Snapshot {
            packet: packet.clone(),
            recirculate: None,
            users: 0,
        };
        Context {
            regs: [0; 256],
            wide: vec![0; sizes.wide],
            packet,
            key: [0; p4_tables::MAX_KEY_WORDS],
            arguments: vec![0; sizes.arguments],
            gathered: vec![0; sizes.gathered + SLACK],
            gathered_bits: 0,
            payload: None,
            steps: 0,
            loop_turns: 0,
            parser_error: 0,
            checksum_error: false,
            deferred: Deferred::default(),
            out: vec![0; sizes.out + SLACK],
            waiting: VecDeque::with_capacity(MAX_COPIES),
            snapshots: vec![snapshot; SNAPSHOTS],
            copies: 0,
            spare_passes: u32::MAX,
            random: seed | 1,
            counts: Counts::default(),
        }
    }

    /// From now on, at most so many passes beyond the first of a packet, and runs of copies, for all packets
    /// together; further ones are dropped as [`Drop::Passes`](crate::Drop::Passes). Without bound at first.
    pub fn set_spare_passes(&mut self, passes: u32) {
        self.spare_passes = passes;
    }

    /// Further passes, and runs of copies, that are left.
    pub fn spare_passes(&self) -> u32 {
        self.spare_passes
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        let packet = |packet: &PacketState| {
            packet.phv.len()
                + packet.valid.len() * 8
                + packet.filled.len() * 2
                + packet.next.len() * 2
                + packet.head.len()
        };
        let snapshots = self.snapshots.iter().map(|snapshot| packet(&snapshot.packet));
        let words = self.wide.len() + self.arguments.len();
        size_of::<Self>()
            + snapshots.sum::<usize>()
            + packet(&self.packet)
            + words * 8
            + self.gathered.len()
            + self.out.len()
    }

    /// Takes one of the passes that are spare, if there is one.
    pub(crate) fn take_spare_pass(&mut self) -> bool {
        let left = self.spare_passes.checked_sub(1);
        self.spare_passes = left.unwrap_or(0);
        left.is_some()
    }

    /// The counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The next random number (xorshift64*).
    pub(crate) fn next_random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    #[inline]
    pub(crate) fn is_valid(&self, header: HeaderId) -> bool {
        let at = header.index();
        self.packet
            .valid
            .get(at / 64)
            .is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    #[inline]
    pub(crate) fn mark_valid(&mut self, header: usize) {
        if let Some(word) = self.packet.valid.get_mut(header / 64) {
            *word |= 1 << (header % 64);
        }
    }

    #[inline]
    pub(crate) fn mark_invalid(&mut self, header: usize) {
        if let Some(word) = self.packet.valid.get_mut(header / 64) {
            *word &= !(1 << (header % 64));
        }
    }

    /// Keeps the packet's present state, if there is room.
    pub(crate) fn save(&mut self) -> Option<u16> {
        let at = self.snapshots.iter().position(|snapshot| snapshot.users == 0)?;
        let snapshot = &mut self.snapshots[at];
        snapshot.packet.copy_from(&self.packet);
        snapshot.recirculate = self.deferred.recirculate;
        Some(at as u16)
    }

    /// Restores the state of a snapshot.
    pub(crate) fn restore(&mut self, number: u16) {
        let snapshot = &self.snapshots[usize::from(number)];
        self.packet.copy_from(&snapshot.packet);
        self.deferred.recirculate = snapshot.recirculate;
    }
}
