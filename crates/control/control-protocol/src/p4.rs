//! Requests of a controller about P4 switches, and their answers.
//!
//! A *P4 switch* is a P4 program in use: it forwards the packets of the ports that are bound to it
//! ([`P4Binding`]), and they meet no flow. Each controller has numbers of its own for its P4 switches, which
//! outlive the controller's process.
//!
//! Or it is a *stage* of ports ([`P4Attachment`]): it sees the packets that come from them before their
//! forwarder does, whichever that is, and passes each on, changed or not, or drops it.
//!
//! A version of a P4 switch (the program with its entries, as `p4_ir::setup` encodes them) is stated in a
//! *draft*: [`Begin`](P4Request::Begin), any number of [`Add`](P4Request::Add),
//! [`Commit`](P4Request::Commit). The former version forwards until the commit is answered, and goes on if
//! it is refused; no packet is lost, and each packet meets one version. Commits are made ready beside
//! forwarding, one at a time, and may be answered later than requests that were made behind them.
//!
//! Or the draft is a batch of changes of entries, from which the version is made with the former one
//! ([`CommitChanges`](P4Request::CommitChanges)).
//!
//! A version goes on with the registers, counters and meters of the former one where names and types agree,
//! and with the counts of entries that have the same keys and priority. Nothing that is counted is lost.
//!
//! Packets for the port of a P4 switch that its clients have, and digests, go past the controller: over a
//! socket that it hands on ([`Connect`](P4Request::Connect)), with [`FromP4`] one way and [`ToP4`] the other.
//!
//! | refused with | because |
//! |---|---|
//! | `ENOENT` | there is no such draft, or no such P4 switch |
//! | `E2BIG` | more bytes than a request, or a version, may have |
//! | `ENOSPC` | too many P4 switches or drafts, or the program is beyond a limit; the text names it |
//! | `EINVAL` | the version cannot be read, or the program is not sound; the text says why |
//! | `ESTALE` | arrays are asked for by numbers of another version, or changes are those of another version |

use flow::P4Id;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most bytes that a request adds to a draft.
pub const MAX_PIECE: usize = 64 * 1024;

/// Most drafts of a controller at a time.
pub const MAX_P4_DRAFTS: usize = 2;

/// Most P4 switches of a controller.
pub const MAX_P4_SWITCHES: usize = 64;

/// Most operations of one pass, unless more are allowed. An operation takes 1.2 ns on a machine of 2021, so a
/// pass takes 40 us there.
pub const USUAL_OPERATIONS: u32 = 32_768;

/// Most operations of one pass that can be allowed.
pub const MAX_OPERATIONS: u32 = 1_000_000;

/// Ports of a P4 switch have lower numbers: this one means "drop" in v1model.
pub const P4_PORTS: u16 = 511;

/// Most links between a controller's P4 switches.
pub const MAX_P4_LINKS: usize = 256;

/// Most P4 switches that links join, directly or by others.
pub const MAX_P4_JOINED: usize = 16;

/// Most words of the cells of an answer.
pub const MAX_CELL_WORDS: usize = 4096;

/// Most stages of a port.
pub const MAX_P4_STAGES: usize = 4;

/// Most writes of cells that are made at once.
pub const MAX_CELL_WRITES: usize = 1024;

/// A port's place at a P4 switch, or the end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct P4Binding {
    /// The P4 switch, one of the port's controller.
    pub switch: P4Id,
    /// Number by which the program knows the port, below [`P4_PORTS`].
    pub port: u16,
}

/// P4 switches that the packets of a port meet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct P4Attachment {
    /// P4 switches that see packets before the port's forwarder, in order, with the number by which each
    /// knows the port; several ports may have one number. [`MAX_P4_STAGES`] at most, each once, and none is
    /// the forwarder.
    pub stages: Vec<P4Binding>,
    /// The port's forwarder; `None`: packets are looked up in the flows of the port's switch.
    pub forwarder: Option<P4Binding>,
}

impl P4Attachment {
    /// Of a port that is bound to a P4 switch, or to none.
    #[must_use]
    pub fn bound(forwarder: Option<P4Binding>) -> P4Attachment {
        P4Attachment {
            stages: Vec::new(),
            forwarder,
        }
    }

    /// Whether no P4 switch is concerned.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.stages.is_empty() && self.forwarder.is_none()
    }
}

/// A request about P4 switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum P4Request {
    /// Begins a draft of a version, in the place of a draft that there may be. Answer: `Done`.
    Begin {
        /// The P4 switch, which need not exist.
        switch: P4Id,
    },
    /// Adds bytes to the draft. If it is refused, the draft is gone. Answer: `Done`.
    Add {
        /// The P4 switch.
        switch: P4Id,
        /// [`MAX_PIECE`] at most.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Says how many operations a pass of the draft's version may take at most; otherwise it is
    /// [`USUAL_OPERATIONS`]. Answer: `Done`.
    Allow {
        /// The P4 switch.
        switch: P4Id,
        /// [`MAX_OPERATIONS`] at most.
        operations: u32,
    },
    /// Says which cells get values in the moment in which the draft's version comes into force: each packet
    /// meets the former version with cells as they were, or this one with cells as they are to be. Packets
    /// wait in their rings meanwhile. If a cell cannot be set, the commit is refused. Answer: `Done`.
    Set {
        /// The P4 switch.
        switch: P4Id,
        /// As with [`WriteAll`](Self::WriteAll), in arrays of the draft's version.
        writes: Vec<P4CellWrite>,
    },
    /// Makes a version from the draft, and puts it in the former one's place; the draft is gone. Answer:
    /// `Done`, when no packet meets the former one any more.
    Commit {
        /// The P4 switch.
        switch: P4Id,
        /// Any number, for instance a hash of the bytes, by which a later process of the controller knows
        /// the version ([`P4Info`]).
        tag: u64,
    },
    /// Makes a version of the present one and the draft, which is a batch of changes of its entries, as
    /// `p4_ir::changes` encodes it; the draft is gone. It costs what it changes. The rest is as with
    /// [`Commit`](Self::Commit); it is refused if the present version is another one.
    CommitChanges {
        /// The P4 switch.
        switch: P4Id,
        /// The present version's.
        from: u64,
        /// As with [`Commit`](Self::Commit).
        tag: u64,
    },
    /// Removes a P4 switch; no error if there is none. Packets of ports that are bound to it are dropped
    /// from then on. Answer: `Done`.
    Delete {
        /// The P4 switch.
        switch: P4Id,
    },
    /// Joins ports of P4 switches, which need not exist, and parts those of the links before: a packet that a
    /// program sends by one end comes by the other one. A link goes before a port that is bound to its end.
    /// Answer: `Done`.
    Link {
        /// All of the controller's, [`MAX_P4_LINKS`] at most; each end is of one link.
        links: Vec<[P4Binding; 2]>,
    },
    /// Asks for the controller's P4 switches, in the order of their numbers. Answer:
    /// [`P4Answer::Switches`].
    List,
    /// Reads cells of an array, as they are when commits that were made before have been answered. Answer:
    /// [`P4Answer::Cells`].
    Read {
        /// The P4 switch.
        switch: P4Id,
        /// The version that the array's number belongs to.
        tag: u64,
        /// The array.
        array: P4Array,
        /// The first cell.
        from: u32,
    },
    /// Sets cells, one after the other; packets see each at once. Answer: `Done`.
    Write {
        /// The P4 switch.
        switch: P4Id,
        /// The version that the array's number belongs to.
        tag: u64,
        /// The array.
        array: P4Array,
        /// The first cell.
        cell: u32,
        /// As in [`P4Answer::Cells`].
        words: Vec<u64>,
    },
    /// Sets cells of several arrays at once: each packet sees all of them as they were, or as they are to be.
    /// Meanwhile packets wait in their rings. Nothing has changed if one of them cannot be set. Answer:
    /// `Done`.
    WriteAll {
        /// The P4 switch.
        switch: P4Id,
        /// The version that the arrays' numbers belong to.
        tag: u64,
        /// [`MAX_CELL_WRITES`] at most, with [`MAX_CELL_WORDS`] words together.
        writes: Vec<P4CellWrite>,
    },
    /// Joins a P4 switch with the process that serves its clients, in the place of the one before. One
    /// descriptor: a `SOCK_SEQPACKET` socket, on which the data plane sends [`FromP4`] without waiting and
    /// receives [`ToP4`]. Ends when its peer is closed, or the P4 switch deleted. Answer: `Done`.
    Connect {
        /// The P4 switch.
        switch: P4Id,
        /// Number of the port by which packets go to the clients and come from them, below [`P4_PORTS`]; in
        /// place of a port that is bound there. `None`: there is no such port.
        cpu_port: Option<u16>,
    },
}

/// What a P4 switch sends to its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromP4 {
    /// A packet that the program sent to the clients' port, as it left.
    PacketIn(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A digest.
    Digest {
        /// The number of the program's lineage, as its version has it.
        lineage: u64,
        /// The number of the digest in the program.
        digest: u16,
        /// Values of its items, one behind the other, the last byte filled with zeros.
        #[serde(with = "serde_bytes")]
        values: Vec<u8>,
    },
}

/// What clients send to a P4 switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToP4 {
    /// A packet that comes by the clients' port, 14 to 65,553 bytes.
    PacketOut(#[serde(with = "serde_bytes")] Vec<u8>),
    /// What was lost on the way to clients, since the last message of this kind.
    Lost {
        /// Packets.
        packets: u64,
        /// Digests.
        digests: u64,
    },
}

/// Cells that are set together with others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct P4CellWrite {
    /// The array.
    pub array: P4Array,
    /// The first cell.
    pub cell: u32,
    /// Words of the cells, as in [`P4Answer::Cells`].
    pub words: Vec<u64>,
}

/// An array of cells, by its number in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum P4Array {
    /// Cells of two words: packets and bytes.
    Counter(u16),
    /// Cells of as many words as a value takes, the least significant first.
    Register(u16),
    /// What entries of a table have counted, packets and bytes, in the order of the program's entries; the
    /// last cell is the default's.
    Entries(u16),
    /// Times since the last packet of entries of a table, in nanoseconds, in the order of the program's
    /// entries. Of tables of which an entry has an idle time; read only.
    Idle(u16),
}

impl fmt::Display for P4Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            P4Array::Counter(number) => write!(f, "counter {number}"),
            P4Array::Register(number) => write!(f, "register {number}"),
            P4Array::Entries(number) => write!(f, "table {number} with counts"),
            P4Array::Idle(number) => write!(f, "table {number} with idle times"),
        }
    }
}

/// Results of requests about P4 switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum P4Answer {
    /// To `List`: all, [`MAX_P4_SWITCHES`] at most.
    Switches(Vec<P4Info>),
    /// To `Read`.
    Cells {
        /// Words of the cells, one behind the other; [`MAX_CELL_WORDS`] at most.
        words: Vec<u64>,
        /// Words of one cell.
        stride: u32,
        /// Whether there are further cells.
        more: bool,
    },
}

/// A P4 switch as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct P4Info {
    /// The number.
    pub switch: P4Id,
    /// As given with the commit.
    pub tag: u64,
    /// Operations of one pass at most, look-ups among entries included.
    pub operations: u64,
    /// Bytes of memory: scratch memory of threads and tables.
    pub memory: u64,
    /// Since the P4 switch was made, over all versions.
    pub counts: P4Counts,
}

/// Counts of a P4 switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct P4Counts {
    /// Packets received.
    pub packets: u64,
    /// Packets among them that did not run, since the verdict about their kind was kept.
    pub repeated: u64,
    /// Packets that left, copies among them.
    pub outputs: u64,
    /// Parsers that ended with an error.
    pub parser_errors: u64,
    /// Digests that the program has sent.
    pub digests: u64,
    /// Packets and copies that the program or its limits ended, by the names of the reasons.
    pub drops: Vec<(String, u64)>,
    /// Time that forwarding threads took for packets of its ports, in microseconds.
    pub busy_us: u64,
    /// Turns at rings of its ports that were passed on to others, as it had more than its share of time.
    pub passed_on: u64,
    /// What went to its clients and came from them.
    pub clients: P4ClientCounts,
}

/// Counts of what a P4 switch and its clients sent each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct P4ClientCounts {
    /// Packets to clients.
    pub packets_in: u64,
    /// Packets to clients that were dropped: too many in a second, a socket that is not read, or a client
    /// that does not read.
    pub packets_in_lost: u64,
    /// Packets of clients that ran.
    pub packets_out: u64,
    /// Packets of clients that did not run: no frame, no slot, or no port at the P4 switch.
    pub packets_out_lost: u64,
    /// Packets of clients, and copies of them, that the program or a receiver dropped.
    pub packets_out_dropped: u64,
    /// Digests that did not reach a client.
    pub digests_lost: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::{Answer, FromDataPlane, Request, ToDataPlane};
    use crate::{Channel, MAX_MESSAGE, encoded_len};

    #[test]
    fn the_longest_messages_fit_and_arrive_whole() {
        let (a, b) = Channel::pair().unwrap();
        let message = ToDataPlane {
            serial: u32::MAX,
            request: Request::P4(P4Request::Add {
                switch: P4Id(u32::MAX),
                bytes: vec![0xff; MAX_PIECE],
            }),
        };
        assert!(encoded_len(&message) < MAX_MESSAGE);
        a.send(&message, &[]).unwrap();
        assert_eq!(b.recv::<ToDataPlane>().unwrap().0, message);
        let info = P4Info {
            switch: P4Id(u32::MAX),
            tag: u64::MAX,
            operations: u64::MAX,
            memory: u64::MAX,
            counts: P4Counts {
                packets: u64::MAX,
                repeated: u64::MAX,
                outputs: u64::MAX,
                parser_errors: u64::MAX,
                digests: u64::MAX,
                drops: vec![("a-long-reason".into(), u64::MAX); 10],
                busy_us: u64::MAX,
                passed_on: u64::MAX,
                clients: P4ClientCounts {
                    packets_in: u64::MAX,
                    packets_in_lost: u64::MAX,
                    packets_out: u64::MAX,
                    packets_out_lost: u64::MAX,
                    packets_out_dropped: u64::MAX,
                    digests_lost: u64::MAX,
                },
            },
        };
        let message = FromDataPlane::Answer {
            serial: u32::MAX,
            result: Ok(Answer::P4(P4Answer::Switches(vec![info; MAX_P4_SWITCHES]))),
        };
        assert!(encoded_len(&message) < MAX_MESSAGE);
        b.send(&message, &[]).unwrap();
        assert_eq!(a.recv::<FromDataPlane>().unwrap().0, message);
        let cells = P4Answer::Cells {
            words: vec![u64::MAX; MAX_CELL_WORDS],
            stride: u32::MAX,
            more: true,
        };
        let message = FromDataPlane::Answer {
            serial: u32::MAX,
            result: Ok(Answer::P4(cells)),
        };
        assert!(encoded_len(&message) < MAX_MESSAGE);
        let one = P4CellWrite {
            array: P4Array::Register(u16::MAX),
            cell: u32::MAX,
            words: vec![u64::MAX; MAX_CELL_WORDS / MAX_CELL_WRITES],
        };
        let message = ToDataPlane {
            serial: u32::MAX,
            request: Request::P4(P4Request::WriteAll {
                switch: P4Id(u32::MAX),
                tag: u64::MAX,
                writes: vec![one; MAX_CELL_WRITES],
            }),
        };
        assert!(encoded_len(&message) < MAX_MESSAGE);
    }
}
