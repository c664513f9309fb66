//! Headers, metadata, and the place of each of their fields while a packet runs.
//!
//! One flat array of bytes, the packet header vector (PHV), holds every field of every header instance. Bit 0
//! is the highest bit of byte 0, and a field of width `w` at offset `o` is bits `o .. o + w`, highest first -
//! as on the wire.
//!
//! * A *header* instance starts at a whole byte and lies as on the wire, so extracting and emitting it are
//!   copies. A variable field has room for its greatest width; it is filled from the left, and its present
//!   width is state of the packet. The fields that follow it on the wire follow its room here.
//! * A *metadata* instance is never on the wire. Each of its fields ends where a cell ends: of 1, 2, 4 or 8
//!   bytes for up to 8, 16, 32 or 64 bits, of whole 8 bytes for more, aligned to its size (8 at most). The
//!   bits of the cell before the field are always zero, so loading the cell as a big-endian number gives the
//!   field.
//! * Metadata comes first: bytes `0 .. phv.metadata_bytes` are set to zero for a new packet.
//!
//! [`crate::program::Program::place`] computes all this; the checker computes it again and compares.
//!
//! Validity is not a field: the engine keeps one bit per header instance. Metadata instances are always
//! valid.

use crate::ids::{FieldId, HeaderId, HeaderTypeId, StackId, UnionId, UnionStackId, UnionTypeId};
use serde::{Deserialize, Serialize};

/// A type of header or of metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderType {
    /// The name in the program.
    pub name: String,
    /// The fields in the order of the wire. At most one is variable.
    pub fields: Vec<FieldType>,
}

impl HeaderType {
    /// Bits of all fields but the variable one.
    #[must_use]
    pub fn fixed_bits(&self) -> u32 {
        self.fields
            .iter()
            .filter(|field| !field.variable)
            .map(|field| u32::from(field.width))
            .sum()
    }

    /// Bits of all fields, with the greatest width of the variable one.
    #[must_use]
    pub fn max_bits(&self) -> u32 {
        self.fields.iter().map(|field| u32::from(field.width)).sum()
    }

    /// The position of the variable field, if there is one.
    #[must_use]
    pub fn variable(&self) -> Option<u16> {
        self.fields
            .iter()
            .position(|field| field.variable)
            .map(|at| at as u16)
    }
}

/// A field of a header type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldType {
    /// The name in the program.
    pub name: String,
    /// Width in bits, at least 1; of a variable field the greatest.
    pub width: u16,
    /// `int<W>` rather than `bit<W>`. Expressions have signs in their operators; this is for users and
    /// controllers.
    pub signed: bool,
    /// `varbit<W>`.
    pub variable: bool,
}

/// An instance of a header or of metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The name in the program, without `hdr.` if the compiler left that out.
    pub name: String,
    /// Type of the header.
    pub ty: HeaderTypeId,
    /// Metadata: never extracted or emitted, always valid.
    pub metadata: bool,
    /// The first of its fields; as many follow as the type has.
    pub first_field: FieldId,
    /// First byte in the PHV.
    pub offset: u32,
}

/// A field of a header instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// The instance.
    pub header: HeaderId,
    /// Position of the field in the header's type.
    pub member: u16,
    /// First bit in the PHV.
    pub offset: u32,
    /// Width in bits; of a variable field the greatest.
    pub width: u16,
    /// Variable: read and written as a whole with its header, or by [`crate::Op::CopyVariable`].
    pub variable: bool,
}

/// A stack of headers of one type. Its elements are `size` header instances side by side.
///
/// The number of the next element to extract into, 0 at first, is state of the packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// The name in the program.
    pub name: String,
    /// Type of the elements.
    pub ty: HeaderTypeId,
    /// The first element.
    pub first: HeaderId,
    /// Number of elements, at least 1.
    pub size: u16,
}

/// A type of header union.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnionType {
    /// The name in the program.
    pub name: String,
    /// Names and types of the members.
    pub members: Vec<(String, HeaderTypeId)>,
}

/// A header union: at most one of its members is valid. Its members are header instances side by side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Union {
    /// The name in the program.
    pub name: String,
    /// Type of the union.
    pub ty: UnionTypeId,
    /// The first member; as many follow as the type has.
    pub first: HeaderId,
}

/// A stack of unions of one type. Its elements are `size` unions side by side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnionStack {
    /// The name in the program.
    pub name: String,
    /// Type of the elements.
    pub ty: UnionTypeId,
    /// The first element.
    pub first: UnionId,
    /// Number of elements, at least 1.
    pub size: u16,
}

/// The error that the elements of a stack or union, given by its name, do not exist or belong to another one
/// as well.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} has elements that do not exist, are of another type, or belong elsewhere")]
pub(crate) struct Misplaced(pub String);

/// The stack or union to which a header instance belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// The header stands alone.
    None,
    /// An element of a stack.
    Stack(StackId, u16),
    /// A member of a union, which may be an element of a union stack.
    Union(UnionId, u16, Option<(UnionStackId, u16)>),
}

/// Sizes of the packet header vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Phv {
    /// Bytes of metadata, which come first; a multiple of 8.
    pub metadata_bytes: u32,
    /// Bytes in all; a multiple of 8.
    pub bytes: u32,
}

macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident = $name:literal,)*) => {
        /// The role of a field of standard metadata. Names and meanings are those of `v1model.p4` and of the
        /// documentation of BMv2's `simple_switch`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Role {
            $($(#[$doc])* $role,)*
        }

        impl Role {
            /// All roles in order.
            pub const ALL: &'static [Role] = &[$(Role::$role),*];

            /// The name of the field in `simple_switch`, with its header.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Role::$role => $name,)* }
            }
        }
    };
}

roles! {
    /// Port on which the packet was received (9 bits).
    IngressPort = "standard_metadata.ingress_port",
    /// Port to leave by, as ingress sets it; 511 is drop.
    EgressSpec = "standard_metadata.egress_spec",
    /// Port that it leaves by; egress reads it.
    EgressPort = "standard_metadata.egress_port",
    /// How the packet came to be: 0 normal, 1 clone of ingress, 2 clone of egress, 4 recirculated, 5 replica,
    /// 6 resubmitted. Only ingress sees 4 and 6: egress sees 0 then, as in BMv2.
    InstanceType = "standard_metadata.instance_type",
    /// Bytes of the packet as it was received (for a clone, as it was cloned).
    PacketLength = "standard_metadata.packet_length",
    /// Microseconds since the start at which it was put in the queue.
    EnqTimestamp = "standard_metadata.enq_timestamp",
    /// Packets in the queue at that time.
    EnqQdepth = "standard_metadata.enq_qdepth",
    /// Microseconds spent in the queue.
    DeqTimedelta = "standard_metadata.deq_timedelta",
    /// Packets in the queue when the packet left the queue.
    DeqQdepth = "standard_metadata.deq_qdepth",
    /// Microseconds since the start at which ingress began.
    IngressGlobalTimestamp = "standard_metadata.ingress_global_timestamp",
    /// Microseconds since the start at which egress began.
    EgressGlobalTimestamp = "standard_metadata.egress_global_timestamp",
    /// Multicast group, 0 for none.
    McastGrp = "standard_metadata.mcast_grp",
    /// Number of the replica.
    EgressRid = "standard_metadata.egress_rid",
    /// One if a checksum that was verified is wrong.
    ChecksumError = "standard_metadata.checksum_error",
    /// Number of the error that ended the parser.
    ParserError = "standard_metadata.parser_error",
    /// Priority in the queues.
    Priority = "standard_metadata.priority",
    /// Queue that it went through.
    Qid = "standard_metadata.qid",
    /// Clone session and field list of P4_14 programs.
    CloneSpec = "standard_metadata.clone_spec",
    /// Digest receiver and field list of P4_14 programs.
    LfFieldList = "intrinsic_metadata.lf_field_list",
    /// Field list to resubmit with, of P4_14 programs.
    ResubmitFlag = "intrinsic_metadata.resubmit_flag",
    /// Field list to recirculate with, of P4_14 programs.
    RecirculateFlag = "intrinsic_metadata.recirculate_flag",
}

/// The fields that the architecture fills or reads. A program need not have all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StandardMetadata {
    /// Role and field, at most once per role.
    pub roles: Vec<(Role, FieldId)>,
}

impl StandardMetadata {
    /// The field with a role. Engines ask once, when a program is loaded.
    #[must_use]
    pub fn get(&self, role: Role) -> Option<FieldId> {
        self.roles
            .iter()
            .find(|(other, _)| *other == role)
            .map(|(_, field)| *field)
    }
}
