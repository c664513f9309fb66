//! A program that is ready to run.
//!
//! An [`Engine`] does not change, so all workers can share it. State is elsewhere: the program's in
//! [`crate::State`], a packet's in [`crate::Context`].

use crate::code::Size;
use crate::compile::{self, Code};
use crate::error::Error;
use crate::hash::{Algorithm, Crc, CrcParameters};
use p4_ir::{
    Bounds, CalculationInput, Checked, Emit, ExprKind, Field, FieldId, HeaderRef, Op, ParserOp, Place,
    Program, Role,
};
use p4_tables::{KeyField, KeyLayout, MatchKind};

/// The port that means "drop" in v1model.
pub const DROP_PORT: u64 = 511;

/// Most passes of one packet through ingress; also how often a clone may be cloned in turn.
pub const MAX_PASSES: u8 = p4_ir::limits::PASSES;

/// Bytes that are copied to the engine's head at first. More follow if the parser asks for them.
pub const INITIAL_HEAD: usize = 128;

// Positions in `CORE_ERRORS`.
pub(crate) const PACKET_TOO_SHORT: u32 = 1;
pub(crate) const NO_MATCH: u32 = 2;
pub(crate) const STACK_OUT_OF_BOUNDS: u32 = 3;
pub(crate) const HEADER_TOO_SHORT: u32 = 4;
pub(crate) const PARSER_TIMEOUT: u32 = 5;
pub(crate) const PARSER_INVALID_ARGUMENT: u32 = 6;

/// Parser errors of the P4-16 core library, at the numbers that they have unless the program says otherwise.
const CORE_ERRORS: [&str; 7] = [
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
];

/// Numbers of the core library's errors in a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Errors([u32; CORE_ERRORS.len()]);

impl Errors {
    fn new(program: &Program) -> Self {
        let number = |position: usize| {
            let name = CORE_ERRORS[position];
            let named = program
                .errors
                .iter()
                .find(|(other, _)| other.rsplit('.').next() == Some(name));
            named.map_or(position as u32, |(_, number)| *number)
        };
        Errors(std::array::from_fn(number))
    }

    pub fn number(&self, error: u32) -> u32 {
        self.0.get(error as usize).copied().unwrap_or(error)
    }
}

/// A metadata field's cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub at: u32,
    pub size: Size,
    pub mask: u64,
}

impl Cell {
    fn new(field: &Field) -> Option<Self> {
        let (size, bytes) = match field.width {
            ..=8 => (Size::One, 1),
            9..=16 => (Size::Two, 2),
            17..=32 => (Size::Four, 4),
            33..=64 => (Size::Eight, 8),
            _ => return None,
        };
        let at = (field.offset + u32::from(field.width)) / 8 - bytes;
        Some(Cell {
            at,
            size,
            mask: crate::bits::mask(u32::from(field.width)),
        })
    }
}

/// Cells of standard metadata; those that only the program reads, if it does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standard {
    pub ingress_port: Option<Cell>,
    pub egress_spec: Option<Cell>,
    pub egress_port: Option<Cell>,
    pub instance_type: Option<Cell>,
    pub packet_length: Option<Cell>,
    pub enq_timestamp: Option<Cell>,
    pub ingress_timestamp: Option<Cell>,
    pub egress_timestamp: Option<Cell>,
    /// Lengths of the queue that the packet is to leave by.
    pub queue_depths: [Option<Cell>; 2],
    pub mcast_grp: Option<Cell>,
    pub egress_rid: Option<Cell>,
    pub checksum_error: Option<Cell>,
    pub parser_error: Option<Cell>,
}

impl Standard {
    fn new(program: &Program) -> Self {
        let cell = |role| {
            let field = program.standard.get(role)?;
            Cell::new(&program.fields[field.index()])
        };
        // Nobody misses what nobody reads.
        let read = |role| {
            let is_read = (program.standard.get(role)).is_some_and(|field| is_read(program, field));
            cell(role).filter(|_| is_read)
        };
        Standard {
            ingress_port: cell(Role::IngressPort),
            egress_spec: cell(Role::EgressSpec),
            egress_port: read(Role::EgressPort),
            instance_type: read(Role::InstanceType),
            packet_length: read(Role::PacketLength),
            enq_timestamp: read(Role::EnqTimestamp),
            ingress_timestamp: read(Role::IngressGlobalTimestamp),
            egress_timestamp: read(Role::EgressGlobalTimestamp),
            queue_depths: [Role::EnqQdepth, Role::DeqQdepth].map(read),
            mcast_grp: cell(Role::McastGrp),
            egress_rid: read(Role::EgressRid),
            checksum_error: read(Role::ChecksumError),
            parser_error: read(Role::ParserError),
        }
    }
}

/// Whether a program reads a field of metadata, alone or with its header.
fn is_read(program: &Program, field: FieldId) -> bool {
    let header = program.fields[field.index()].header;
    let is_whole = |of: HeaderRef| of == HeaderRef::Header(header);
    let mut exprs = program.exprs.iter();
    let mut inputs = program.calculations.iter().flat_map(|of| &of.inputs);
    let parsing = program.parser.states.iter().flat_map(|state| &state.ops);
    let parsing = parsing.filter_map(|op| match op {
        ParserOp::Do(op) => Some(op),
        _ => None,
    });
    let mut ops = program
        .actions
        .iter()
        .flat_map(|action| &action.ops)
        .chain(parsing);
    exprs.any(|expr| match expr.kind {
        ExprKind::Field(of) => of == field,
        ExprKind::Member(of, _) => is_whole(of),
        ExprKind::HeadersEqual(a, b) => is_whole(a) || is_whole(b),
        _ => false,
    }) || inputs.any(|input| match input {
        CalculationInput::Field(of) => *of == field,
        CalculationInput::Header(of) => *of == header,
        CalculationInput::Value(_) | CalculationInput::Payload(_) => false,
    }) || ops.any(|op| matches!(op, Op::CopyHeader(_, from) if is_whole(*from)))
}

/// The properties of a header instance that are needed at run time.
#[derive(Clone, Debug)]
pub(crate) struct HeaderInfo {
    /// First byte in the PHV.
    pub offset: usize,
    /// Bytes in the PHV.
    pub bytes: usize,
    pub fixed_bits: usize,
    pub variable: Option<Variable>,
    /// First member and number of members of the union that it belongs to.
    pub union: Option<(usize, usize)>,
    pub metadata: bool,
}

/// A variable field: first bit in the PHV, and greatest width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable {
    pub offset: usize,
    pub width: usize,
}

impl HeaderInfo {
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.bytes
    }
}

/// How a calculation hashes.
#[derive(Clone, Debug)]
pub(crate) enum HashKind {
    Fixed(Algorithm),
    /// With parameters that a controller may set: in the state.
    Custom,
    Random,
    RoundRobin,
}

/// Sizes of a context's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub phv: usize,
    pub valid: usize,
    pub headers: usize,
    pub stacks: usize,
    pub wide: usize,
    pub arguments: usize,
    pub gathered: usize,
    pub head: usize,
    pub out: usize,
}

/// A program that is ready to run. See the module's description.
#[derive(Debug)]
pub struct Engine {
    checked: Checked,
    pub(crate) code: Code,
    pub(crate) layouts: Vec<KeyLayout>,
    pub(crate) headers: Vec<HeaderInfo>,
    /// Valid bits of metadata, which are always set.
    pub(crate) always_valid: Vec<u64>,
    /// Metadata with a variable field: the compiler keeps variables of such a type there.
    pub(crate) variable_metadata: Vec<usize>,
    pub(crate) standard: Standard,
    /// Per table, where the colour of its direct meter goes.
    pub(crate) colours: Vec<Option<Field>>,
    pub(crate) errors: Errors,
    pub(crate) hashes: Vec<HashKind>,
    /// Headers in the order in which they leave.
    pub(crate) emits: Vec<usize>,
    pub(crate) parser_steps: u32,
    pub(crate) loop_turns: u32,
    /// Per table, whether times of last packets are kept.
    pub(crate) idle: Vec<bool>,
    /// Whether members of groups watch ports, whose state decides then.
    pub(crate) watches_ports: bool,
    sizes: Sizes,
}

impl Engine {
    /// Compiles a program.
    ///
    /// # Errors
    ///
    /// [`Error::TooDeep`], [`Error::TooLarge`], [`Error::UnknownExtern`], [`Error::Table`].
    pub fn new(checked: Checked) -> Result<Self, Error> {
        let program = checked.program();
        let layouts = program.tables.iter().map(layout).collect::<Result<Vec<_>, _>>()?;
        let code = compile::compile(program, &layouts)?;
        let headers = headers(program);
        let mut always_valid = vec![0; headers.len().div_ceil(64)];
        for (at, _) in headers.iter().enumerate().filter(|(_, header)| header.metadata) {
            always_valid[at / 64] |= 1 << (at % 64);
        }
        let emits = emits(program);
        let emitted: usize = emits.iter().map(|&header| headers[header].bytes).sum();
        let bounds = checked.bounds();
        let head = longest_head(bounds);
        let sizes = Sizes {
            phv: program.phv.bytes as usize,
            valid: always_valid.len(),
            headers: headers.len(),
            stacks: program.stacks.len() + program.union_stacks.len(),
            wide: code.wide_words,
            arguments: arguments(program),
            gathered: gathered(program, &headers),
            head,
            out: emitted + head,
        };
        let variable = |(_, header): &(usize, &HeaderInfo)| header.metadata && header.variable.is_some();
        let variable_metadata = headers.iter().enumerate().filter(variable).map(|(at, _)| at);
        Ok(Engine {
            variable_metadata: variable_metadata.collect(),
            standard: Standard::new(program),
            colours: colours(program),
            errors: Errors::new(program),
            hashes: hashes(program),
            parser_steps: bounds.parser_steps,
            loop_turns: bounds.loop_turns,
            idle: program.tables.iter().map(p4_ir::Table::has_idle_times).collect(),
            watches_ports: !program.watched_ports().is_empty(),
            layouts,
            code,
            headers,
            always_valid,
            emits,
            sizes,
            checked,
        })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        self.checked.program()
    }

    /// The program with its bounds.
    pub fn checked(&self) -> &Checked {
        &self.checked
    }

    /// Forgets the program's entries, when its only state has them in tables.
    pub fn forget_entries(&mut self) {
        self.checked.forget_entries();
    }

    /// The layout of a table's key.
    pub fn layout(&self, table: p4_ir::TableId) -> &KeyLayout {
        &self.layouts[table.index()]
    }

    pub(crate) fn sizes(&self) -> &Sizes {
        &self.sizes
    }
}

/// The kind of match in the terms of `p4-tables`.
pub fn match_kind(kind: p4_ir::MatchKind) -> MatchKind {
    match kind {
        p4_ir::MatchKind::Exact => MatchKind::Exact,
        p4_ir::MatchKind::Lpm => MatchKind::Lpm,
        p4_ir::MatchKind::Ternary => MatchKind::Ternary,
        p4_ir::MatchKind::Range => MatchKind::Range,
        p4_ir::MatchKind::Optional => MatchKind::Optional,
    }
}

fn layout(table: &p4_ir::Table) -> Result<KeyLayout, Error> {
    let fields = table.keys.iter().map(|key| KeyField {
        kind: match_kind(key.kind),
        width: u32::from(key.width),
    });
    Ok(KeyLayout::new(&fields.collect::<Vec<_>>())?)
}

fn headers(program: &Program) -> Vec<HeaderInfo> {
    let info = |header: &p4_ir::Header| {
        let ty = &program.header_types[header.ty.index()];
        let variable = ty.variable().map(|member| {
            let field = &program.fields[header.first_field.index() + usize::from(member)];
            Variable {
                offset: field.offset as usize,
                width: usize::from(field.width),
            }
        });
        HeaderInfo {
            offset: header.offset as usize,
            bytes: if header.metadata {
                0
            } else {
                ty.max_bits().div_ceil(8) as usize
            },
            fixed_bits: ty.fixed_bits() as usize,
            variable,
            union: None,
            metadata: header.metadata,
        }
    };
    let mut headers: Vec<HeaderInfo> = program.headers.iter().map(info).collect();
    for union in &program.unions {
        let members = program.union_types[union.ty.index()].members.len();
        let first = union.first.index();
        for header in &mut headers[first..first + members] {
            header.union = Some((first, members));
        }
    }
    headers
}

/// Bytes for the longest head of a packet: what a parser may read, and what passes may add to it.
fn longest_head(bounds: &Bounds) -> usize {
    let grown = bounds.header_bytes_grown as usize * usize::from(MAX_PASSES);
    let read = (bounds.header_bytes_read as usize).next_multiple_of(64);
    read.max(INITIAL_HEAD) + grown
}

fn emits(program: &Program) -> Vec<usize> {
    let union = |union: usize| {
        let union = &program.unions[union];
        let members = program.union_types[union.ty.index()].members.len();
        union.first.index()..union.first.index() + members
    };
    let one = |emit: &Emit| -> Vec<usize> {
        match emit {
            Emit::Header(header) => vec![header.index()],
            Emit::Stack(stack) => {
                let stack = &program.stacks[stack.index()];
                (stack.first.index()..stack.first.index() + usize::from(stack.size)).collect()
            }
            Emit::Union(id) => union(id.index()).collect(),
            Emit::UnionStack(stack) => {
                let stack = &program.union_stacks[stack.index()];
                let first = stack.first.index();
                (first..first + usize::from(stack.size)).flat_map(union).collect()
            }
        }
    };
    program.deparser.emits.iter().flat_map(one).collect()
}

fn colours(program: &Program) -> Vec<Option<Field>> {
    let field = |table: &p4_ir::Table| match table.meter {
        Some((_, Place::Field(field))) => Some(program.fields[field.index()]),
        _ => None,
    };
    program.tables.iter().map(field).collect()
}

/// Words of the longest list of arguments.
fn arguments(program: &Program) -> usize {
    let words = program
        .actions
        .iter()
        .map(|action| usize::from(compile::parameter_words(action).1));
    words.max().unwrap_or(0)
}

/// Bytes of the longest input of a hash, a digest or a select.
fn gathered(program: &Program, headers: &[HeaderInfo]) -> usize {
    let width = |expr: p4_ir::ExprId| match program.exprs[expr.index()].ty {
        p4_ir::Type::Bits(width) => usize::from(width),
        p4_ir::Type::Bool => 1,
    };
    let input = |input: &p4_ir::CalculationInput| match input {
        p4_ir::CalculationInput::Field(field) => usize::from(program.fields[field.index()].width),
        p4_ir::CalculationInput::Value(value) => width(*value),
        p4_ir::CalculationInput::Header(header) => headers[header.index()].bytes * 8,
        p4_ir::CalculationInput::Payload(_) => 0,
    };
    let calculations = program
        .calculations
        .iter()
        .map(|calculation| calculation.inputs.iter().map(input).sum());
    let digests = program
        .digests
        .iter()
        .map(|digest| digest.items.iter().map(|item| width(item.value)).sum());
    let selects = program
        .parser
        .states
        .iter()
        .map(|state| usize::from(state.select.width));
    let header = headers.iter().map(|header| header.bytes * 8);
    let bits: usize = calculations
        .chain(digests)
        .chain(selects)
        .chain(header)
        .max()
        .unwrap_or(0);
    bits.div_ceil(8) + 8
}

fn hashes(program: &Program) -> Vec<HashKind> {
    let calculations = program.calculations.iter();
    calculations
        .map(|calculation| hash_kind(calculation.algorithm))
        .collect()
}

fn hash_kind(algorithm: p4_ir::Algorithm) -> HashKind {
    use p4_ir::Algorithm as Ir;
    HashKind::Fixed(match algorithm {
        Ir::Crc16 => Algorithm::Crc(Crc::new(CrcParameters::CRC16)),
        Ir::Crc32 => Algorithm::Crc(Crc::new(CrcParameters::CRC32)),
        Ir::CrcCcitt => Algorithm::Crc(Crc::new(CrcParameters::CCITT)),
        Ir::Csum16 => Algorithm::Csum16,
        Ir::Xor16 => Algorithm::Xor(2),
        Ir::Identity => Algorithm::Identity,
        Ir::Xxh64 => Algorithm::Xxh64,
        Ir::Random => return HashKind::Random,
        Ir::RoundRobin => return HashKind::RoundRobin,
        Ir::Crc16Custom | Ir::Crc32Custom => return HashKind::Custom,
    })
}
