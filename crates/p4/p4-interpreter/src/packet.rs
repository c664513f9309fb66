//! Packets as they are received and as they leave.
//!
//! The first bytes of a packet, its *head*, are in memory that only the engine writes: the engine's caller
//! copied them there. The *tail* may be elsewhere, in a guest's memory for example, which the guest may
//! change at any time. So each byte of the tail that a program looks at is copied exactly once, into the
//! engine's own head; payload that no program looks at is never touched. A packet that leaves is again a
//! head, and a range of the received packet.

/// The bytes of a packet behind its head.
pub trait Tail {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Copies the bytes from `offset` on. Of `to`, bytes for which there are none stay as they are.
    fn read(&self, offset: usize, to: &mut [u8]);

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Tail for [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.get(offset..).unwrap_or(&[]);
        let length = from.len().min(to.len());
        to[..length].copy_from_slice(&from[..length]);
    }
}

/// No tail: the head is all.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTail;

impl Tail for NoTail {
    fn len(&self) -> usize {
        0
    }

    fn read(&self, _: usize, _: &mut [u8]) {}
}

/// A received packet.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    /// The port on which it was received; 9 bits in v1model.
    pub port: u32,
    /// The packet's first bytes.
    pub head: &'a [u8],
    /// The bytes behind them.
    pub tail: &'a dyn Tail,
}

impl<'a> Packet<'a> {
    /// A packet that lies in one piece.
    pub fn whole(port: u32, bytes: &'a [u8]) -> Self {
        Packet {
            port,
            head: bytes,
            tail: &NoTail,
        }
    }

    /// Length of the packet in bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from `offset` on. Of `to`, bytes for which there are none stay as they are.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let within = self.head.get(offset..).unwrap_or(&[]);
        let length = within.len().min(to.len());
        to[..length].copy_from_slice(&within[..length]);
        if length < to.len() {
            self.tail.read(
                (offset + length).saturating_sub(self.head.len()),
                &mut to[length..],
            );
        }
    }
}

impl std::fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packet")
            .field("port", &self.port)
            .field("length", &self.len())
            .finish_non_exhaustive()
    }
}

/// A packet that leaves: the head, and a range of the received packet.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// The port by which it leaves.
    pub port: u32,
    /// The packet's first bytes.
    pub head: &'a [u8],
    /// The received packet.
    pub packet: &'a Packet<'a>,
    /// First byte of the received packet that follows the head.
    pub offset: usize,
    /// Number of bytes that follow.
    pub length: usize,
    /// Whether it is a clone or a replica, not the packet itself.
    pub is_copy: bool,
}

impl Output<'_> {
    /// Length of the packet in bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.head.to_vec();
        bytes.resize(self.len(), 0);
        self.packet.read(self.offset, &mut bytes[self.head.len()..]);
        bytes
    }
}

/// Why a packet, or a copy of one, ended without leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drop {
    /// Ingress dropped it (`mark_to_drop`).
    Ingress,
    /// Egress dropped it.
    Egress,
    /// More passes than a packet may have.
    Passes,
    /// More copies than one packet may have.
    Copies,
    /// Headers grew beyond the bound.
    Grown,
    /// The multicast group or the clone session has no member.
    NoReplica,
    /// Loops in actions took more turns than the program's bound.
    LoopTurns,
}

impl Drop {
    /// All reasons, in the order of [`Counts::drops`].
    pub const ALL: [Drop; 7] = [
        Drop::Ingress,
        Drop::Egress,
        Drop::Passes,
        Drop::Copies,
        Drop::Grown,
        Drop::NoReplica,
        Drop::LoopTurns,
    ];

    /// A word for counters and people.
    pub const fn name(self) -> &'static str {
        match self {
            Drop::Ingress => "ingress",
            Drop::Egress => "egress",
            Drop::Passes => "passes",
            Drop::Copies => "copies",
            Drop::Grown => "grown",
            Drop::NoReplica => "no-replica",
            Drop::LoopTurns => "loop-turns",
        }
    }
}

/// Counts of packets that ran. Kept per worker, in its [`crate::Context`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets received.
    pub packets: u64,
    /// Packets that left.
    pub outputs: u64,
    /// Parsers that ended with an error.
    pub parser_errors: u64,
    /// Digests sent.
    pub digests: u64,
    /// Assertions and assumptions of the program (`assert`, `assume`) that were false.
    pub false_claims: u64,
    /// Packets and copies dropped, by reason: see [`Drop::ALL`].
    pub drops: [u64; Drop::ALL.len()],
}

impl Counts {
    /// How many were dropped for a reason.
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }
}

/// Takes the packets and digests that a program sends.
pub trait Sink {
    /// A packet leaves. Called while the packet runs: the output's bytes are the engine's.
    fn output(&mut self, output: &Output<'_>);

    /// Packets that wait in the queue of a port, as a packet is about to enter it. Asked of programs that
    /// read it.
    fn queue_depth(&self, port: u32) -> u32 {
        let _ = port;
        0
    }

    /// A digest for the controller: its values one behind the other, without padding, the last byte filled
    /// with zeros. At most one per pass through ingress.
    fn digest(&mut self, digest: p4_ir::DigestId, values: &[u8]) {
        let _ = (digest, values);
    }

    /// A packet, or a copy, ended.
    fn dropped(&mut self, reason: Drop) {
        let _ = reason;
    }
}

/// Collects packets and digests, for tests and tools.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Port and bytes, in order.
    pub outputs: Vec<(u32, Vec<u8>)>,
    /// Digests, in order.
    pub digests: Vec<(p4_ir::DigestId, Vec<u8>)>,
    /// Reasons for which packets and copies were dropped.
    pub drops: Vec<Drop>,
}

impl Sink for Collected {
    fn output(&mut self, output: &Output<'_>) {
        self.outputs.push((output.port, output.to_vec()));
    }

    fn digest(&mut self, digest: p4_ir::DigestId, values: &[u8]) {
        self.digests.push((digest, values.to_vec()));
    }

    fn dropped(&mut self, reason: Drop) {
        self.drops.push(reason);
    }
}
