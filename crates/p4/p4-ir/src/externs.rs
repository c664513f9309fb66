//! Externs: objects that keep state, compute checksums and send messages.
//!
//! The program defines the size of each and its use; the state itself belongs to the engine.

use crate::expr::Place;
use crate::identity::Identity;
use crate::ids::{CalculationId, ExprId, FieldId, HeaderId, TableId};
use serde::{Deserialize, Serialize};

/// The unit in which a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CounterUnit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Packets and bytes.
    Both,
}

/// An array of counters, or the direct counters of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Names of the counter array.
    pub identity: Identity,
    /// The unit in which a counter counts.
    pub unit: CounterUnit,
    /// Number of cells; 0 if direct.
    pub size: u32,
    /// The table whose entries it counts, if direct.
    pub table: Option<TableId>,
}

/// An array of meters, or the direct meters of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    /// Names of the meter array.
    pub identity: Identity,
    /// In bytes rather than packets.
    pub bytes: bool,
    /// Number of cells; 0 if direct.
    pub size: u32,
    /// The table whose entries it measures, if direct.
    pub table: Option<TableId>,
}

/// An array of registers, zero at first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// Names of the register array.
    pub identity: Identity,
    /// Bits of a cell.
    pub width: u16,
    /// Number of cells.
    pub size: u32,
}

/// An algorithm for hashes and checksums. Names as in v1model and BMv2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// CRC-16/ARC: polynomial 0x8005, reflected, initial 0.
    Crc16,
    /// CRC-32 of Ethernet.
    Crc32,
    /// CRC-16/CCITT-FALSE as in BMv2's `crcCCITT`.
    CrcCcitt,
    /// The Internet checksum (RFC 1071).
    Csum16,
    /// Exclusive or of all 16-bit words.
    Xor16,
    /// The first eight bytes of the input (all, if there are fewer) as a number, as in BMv2.
    Identity,
    /// A random number.
    Random,
    /// The next number at each call.
    RoundRobin,
    /// xxHash, 64 bits.
    Xxh64,
    /// As [`Algorithm::Crc16`] until a controller sets other parameters.
    Crc16Custom,
    /// As [`Algorithm::Crc32`] until a controller sets other parameters.
    Crc32Custom,
}

/// An algorithm and its inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calculation {
    /// The name in the program.
    pub name: String,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The inputs, concatenated without padding; the last byte is filled with zeros on the right.
    pub inputs: Vec<CalculationInput>,
}

/// A part of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CalculationInput {
    /// A field, at its present width. Left out if its header is invalid.
    Field(FieldId),
    /// A constant or any other expression of bits.
    Value(ExprId),
    /// All fields of a header. Left out if it is invalid.
    Header(HeaderId),
    /// The bytes that leave behind this header: all valid headers that the deparser emits after it (all, if
    /// `None`), and the packet's bytes behind the parsed headers.
    Payload(Option<HeaderId>),
}

/// A checksum that is verified after the parser or written before the deparser, or both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// The name in the program.
    pub name: String,
    /// How it is computed.
    pub calculation: CalculationId,
    /// The field that holds it. Nothing is done while its header is invalid.
    pub target: Place,
    /// A bool: nothing is done if it is false.
    pub condition: Option<ExprId>,
    /// Compared after the parser: a difference sets `checksum_error` to 1.
    pub verify: bool,
    /// Written before the deparser.
    pub update: bool,
}

/// A message to the controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Names of the digest.
    pub identity: Identity,
    /// Number of the field list in the JSON of BMv2.
    pub list: u32,
    /// The fields that it sends.
    pub items: Vec<DigestItem>,
}

/// A part of a digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestItem {
    /// The name, if there is one.
    pub name: String,
    /// Bits.
    pub value: ExprId,
}

/// Metadata that clones, resubmitted and recirculated packets keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldList {
    /// The name in the program.
    pub name: String,
    /// The number in the program.
    pub number: u32,
    /// Fields that are kept.
    pub fields: Vec<FieldId>,
}

/// A function that the target offers beyond the architecture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternFunction {
    /// Name of the function. Engines refuse a program with a function that they do not know.
    pub name: String,
    /// Width of the result in bits.
    pub result: u16,
    /// Widths of the arguments.
    pub arguments: Vec<u16>,
}
