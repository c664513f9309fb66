//! What a program sends while a packet runs, kept until its run ends: only then is known whether it is one
//! packet or several, and the received packet is needed until then.

use p4_interpreter::{Drop, Output, Sink};
use p4_ir::DigestId;
use std::ops::Range;

/// Most packets that leave for one that came; further ones are dropped.
const MAX_OUTPUTS: usize = 32;

/// Bytes of the heads of them, together.
const HEADS: usize = 16 * 1024;

/// Most digests of one packet; further ones are lost.
const MAX_DIGESTS: usize = 8;

/// A packet that leaves: bytes of its own, and a range of the received packet behind them.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// The program's number of the port.
    pub port: u32,
    head: Range<usize>,
    /// First byte of the received packet that follows.
    pub offset: usize,
    /// Number of bytes that follow.
    pub length: usize,
    /// Whether it is a clone or a replica.
    pub is_copy: bool,
}

/// See the module's description. Its memory is made once.
pub(super) struct Outputs {
    heads: Vec<u8>,
    pub sent: Vec<Sent>,
    /// Packets and copies that the program or its limits ended, in order; as many as there is room for.
    pub ended: Vec<Drop>,
    /// Further ends.
    pub lost: u64,
    digests: Vec<(DigestId, Range<usize>)>,
    /// Further digests.
    pub digests_lost: u64,
}

impl Outputs {
    pub fn new() -> Outputs {
        Outputs {
            heads: Vec::with_capacity(HEADS),
            sent: Vec::with_capacity(MAX_OUTPUTS),
            ended: Vec::with_capacity(MAX_OUTPUTS),
            lost: 0,
            digests: Vec::with_capacity(MAX_DIGESTS),
            digests_lost: 0,
        }
    }

    pub fn clear(&mut self) {
        self.heads.clear();
        self.sent.clear();
        self.ended.clear();
        self.lost = 0;
        self.digests.clear();
        self.digests_lost = 0;
    }

    /// Digests with their values.
    pub fn digests(&self) -> impl Iterator<Item = (DigestId, &[u8])> {
        let digests = self.digests.iter();
        digests.map(|(digest, values)| (*digest, &self.heads[values.clone()]))
    }

    /// Whether the packet has sent digests.
    pub fn has_digests(&self) -> bool {
        !self.digests.is_empty() || self.digests_lost > 0
    }

    /// The bytes of its own that a packet leaves with.
    pub fn head(&self, sent: &Sent) -> &[u8] {
        &self.heads[sent.head.clone()]
    }

    /// How many packets and copies have ended.
    pub fn ends(&self) -> u64 {
        (self.sent.len() + self.ended.len()) as u64 + self.lost
    }

    pub fn memory(&self) -> usize {
        let sent = self.sent.capacity() * size_of::<Sent>();
        let digests = self.digests.capacity() * size_of::<(DigestId, Range<usize>)>();
        self.heads.capacity() + sent + digests + self.ended.capacity() * size_of::<Drop>()
    }
}

impl Sink for Outputs {
    fn output(&mut self, output: &Output<'_>) {
        let begin = self.heads.len();
        if self.sent.len() == MAX_OUTPUTS || HEADS - begin < output.head.len() {
            self.lost += 1;
            return;
        }
        self.heads.extend_from_slice(output.head);
        self.sent.push(Sent {
            port: output.port,
            head: begin..self.heads.len(),
            offset: output.offset,
            length: output.length,
            is_copy: output.is_copy,
        });
    }

    fn digest(&mut self, digest: DigestId, values: &[u8]) {
        let begin = self.heads.len();
        if self.digests.len() == MAX_DIGESTS || HEADS - begin < values.len() {
            self.digests_lost += 1;
            return;
        }
        self.heads.extend_from_slice(values);
        self.digests.push((digest, begin..self.heads.len()));
    }

    fn dropped(&mut self, reason: Drop) {
        if self.ended.len() < MAX_OUTPUTS {
            self.ended.push(reason);
        } else {
            self.lost += 1;
        }
    }
}
