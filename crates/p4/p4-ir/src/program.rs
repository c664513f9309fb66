//! A whole program.

use crate::action::Action;
use crate::bits::Bits;
use crate::control::Control;
use crate::expr::Expr;
use crate::externs::{Calculation, Checksum, Counter, Digest, ExternFunction, FieldList, Meter, Register};
use crate::header::{
    Field, Header, HeaderType, Membership, Phv, Stack, StandardMetadata, Union, UnionStack, UnionType,
};
use crate::identity::Identity;
use crate::parser::{Deparser, Parser, ValueSet};
use crate::table::{ActionProfile, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A header that packets to and from the controller carry in front (P4Runtime's packet-in and packet-out).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ControllerHeader {
    /// Names of the header: `packet_in` or `packet_out`.
    pub identity: Identity,
    /// Fields in the order of the wire.
    pub fields: Vec<ControllerField>,
}

/// A field of such a header.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ControllerField {
    /// The name.
    pub name: String,
    /// The number of P4Info; 0 if the field only fills a byte, and controllers do not have it.
    pub id: u32,
    /// Width in bits; 0 if controllers have the field in a type of their own.
    pub width: u16,
}

/// The architecture for which a program was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Architecture {
    /// `v1model` as BMv2's `simple_switch` runs it.
    V1Model,
}

/// A program as a front end made it. Its fields are public, so it guarantees nothing before it is checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The name, usually of the source.
    pub name: String,
    /// The architecture that it was written for.
    pub architecture: Architecture,
    /// Types of headers and metadata.
    pub header_types: Vec<HeaderType>,
    /// Instances; metadata first, then headers.
    pub headers: Vec<Header>,
    /// Fields of all instances.
    pub fields: Vec<Field>,
    /// Stacks of headers.
    pub stacks: Vec<Stack>,
    /// Types of unions.
    pub union_types: Vec<UnionType>,
    /// Unions.
    pub unions: Vec<Union>,
    /// Stacks of unions.
    pub union_stacks: Vec<UnionStack>,
    /// Sizes of the packet header vector.
    pub phv: Phv,
    /// The fields that the architecture fills or reads.
    pub standard: StandardMetadata,
    /// Names and numbers of parser errors.
    pub errors: Vec<(String, u32)>,
    /// Expressions, children before parents.
    pub exprs: Vec<Expr>,
    /// Constants of more than 64 bits.
    pub constants: Vec<Bits>,
    /// The parser.
    pub parser: Parser,
    /// Value sets of the parser.
    pub value_sets: Vec<ValueSet>,
    /// The control before the packet's destination is decided.
    pub ingress: Control,
    /// The control that runs once per copy that leaves.
    pub egress: Control,
    /// The deparser.
    pub deparser: Deparser,
    /// Checksums, in the order in which they are made.
    pub checksums: Vec<Checksum>,
    /// Actions.
    pub actions: Vec<Action>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Action profiles.
    pub profiles: Vec<ActionProfile>,
    /// Counters.
    pub counters: Vec<Counter>,
    /// Meters.
    pub meters: Vec<Meter>,
    /// Registers.
    pub registers: Vec<Register>,
    /// Hashes.
    pub calculations: Vec<Calculation>,
    /// Digests.
    pub digests: Vec<Digest>,
    /// Metadata kept by clones, resubmitted and recirculated packets.
    pub field_lists: Vec<FieldList>,
    /// Functions of the target's own.
    pub extern_functions: Vec<ExternFunction>,
    /// Headers of packets from and to the controller.
    pub controller_headers: Vec<ControllerHeader>,
}

impl Program {
    /// Ports that members of groups watch, each once.
    #[must_use]
    pub fn watched_ports(&self) -> BTreeSet<u16> {
        let groups = self.profiles.iter().flat_map(|profile| profile.groups.values());
        let members = groups.flat_map(|group| group.members.values());
        let of_groups = members.filter_map(|share| share.watch);
        of_groups
            .chain(self.tables.iter().flat_map(Table::watched))
            .collect()
    }

    /// A program that does nothing: for front ends to fill.
    #[must_use]
    pub fn empty(name: String, architecture: Architecture) -> Self {
        Self {
            name,
            architecture,
            header_types: Vec::new(),
            headers: Vec::new(),
            fields: Vec::new(),
            stacks: Vec::new(),
            union_types: Vec::new(),
            unions: Vec::new(),
            union_stacks: Vec::new(),
            phv: Phv::default(),
            standard: StandardMetadata::default(),
            errors: Vec::new(),
            exprs: Vec::new(),
            constants: Vec::new(),
            parser: Parser::default(),
            value_sets: Vec::new(),
            ingress: Control::default(),
            egress: Control::default(),
            deparser: Deparser::default(),
            checksums: Vec::new(),
            actions: Vec::new(),
            tables: Vec::new(),
            profiles: Vec::new(),
            counters: Vec::new(),
            meters: Vec::new(),
            registers: Vec::new(),
            calculations: Vec::new(),
            digests: Vec::new(),
            field_lists: Vec::new(),
            extern_functions: Vec::new(),
            controller_headers: Vec::new(),
        }
    }
}

/// The highest cost of one packet, proven by the checker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes of the packet that the parser may look at: engines need that many (or all) of them in one piece.
    pub header_bytes_read: u32,
    /// Bytes by which the packet may become longer in one pass.
    pub header_bytes_grown: u32,
    /// States that the parser may pass through. Engines end it there with `ParserTimeout`.
    pub parser_steps: u32,
    /// Turns of loops that actions may take in ingress, and again in egress. Engines drop a packet that
    /// needs more. 0 if no action has a loop.
    pub loop_turns: u32,
    /// Operations and nodes of expressions of one pass through ingress and egress.
    pub operations: u32,
    /// Passes of one packet, by resubmission and recirculation. A packet that would need more is dropped.
    pub passes: u8,
    /// Bits of metadata.
    pub metadata_bits: u32,
}

/// A program that the checker found sound. Engines take no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    program: Program,
    bounds: Bounds,
    pub(crate) memberships: Vec<Membership>,
}

impl Checked {
    /// A program in which the checker found no error.
    pub(crate) fn proven(program: Program, bounds: Bounds, memberships: Vec<Membership>) -> Self {
        Self {
            program,
            bounds,
            memberships,
        }
    }

    /// The program, for changes, after which it has to be checked again.
    #[must_use]
    pub fn into_program(self) -> Program {
        self.program
    }

    /// Forgets all entries, which are in tables by now.
    pub fn forget_entries(&mut self) {
        let tables = self.program.tables.iter_mut();
        tables.for_each(|table| table.entries = Vec::new());
    }

    /// The program.
    #[inline]
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The highest cost of one packet.
    #[inline]
    #[must_use]
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }
}

impl std::ops::Deref for Checked {
    type Target = Program;

    #[inline]
    fn deref(&self) -> &Program {
        &self.program
    }
}
