//! Random programs, which the checker accepts, and packets that get somewhere in them.
//!
//! What is left out needs a controller (clones, multicast, meters, profiles, value sets) or is not the same
//! twice (time, random numbers). Everything else appears in any combination: types decide what may stand
//! where, chance decides the rest.

mod plain;
mod rich;

use fastrand::Rng;
use p4_ir::{
    Action, ActionId, Algorithm, Apply, Architecture, Binary, Bits, Block, BlockId, Calculation,
    CalculationInput, Checksum, Control, DefaultEntry, Deparser, Emit, Entry, EntryAction, EntryTarget, Expr,
    ExprId, ExprKind, FieldId, FieldList, FieldListId, FieldType, Header, HeaderId, HeaderRef, HeaderType,
    HeaderTypeId, Identity, Implementation, Key, KeyMatch, MatchKind, Next, NextState, Op, Parameter,
    ParserOp, Pattern, Place, Program, Register, RegisterId, Role, Select, SelectCase, Stack, StackId, State,
    StateId, Table, TableAction, TableId, Type, Unary,
};

/// Headers that stand alone, besides metadata (two instances) and the stack.
const HEADERS: usize = 4;
const STANDARD: HeaderId = HeaderId(0);
const USER: HeaderId = HeaderId(1);
const FIRST: u16 = 2;
const STACK: StackId = StackId(0);

/// Standard metadata: name, width, role. `egress_spec` may be written.
const STANDARD_FIELDS: &[(&str, u16, Role)] = &[
    ("ingress_port", 9, Role::IngressPort),
    ("egress_spec", 9, Role::EgressSpec),
    ("egress_port", 9, Role::EgressPort),
    ("instance_type", 32, Role::InstanceType),
    ("packet_length", 32, Role::PacketLength),
    ("checksum_error", 1, Role::ChecksumError),
    ("parser_error", 32, Role::ParserError),
];

/// Errors of `core.p4`.
const ERRORS: &[&str] = &[
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
];

/// The elements that an expression may use.
#[derive(Clone, Copy)]
struct Scope<'a> {
    parser: bool,
    /// Widths of the action's parameters.
    parameters: &'a [u16],
}

const OUTSIDE: Scope<'static> = Scope {
    parser: false,
    parameters: &[],
};

struct Generator {
    random: Rng,
    program: Program,
    /// Unions, more stacks, variable fields and references found at run time too.
    rich: bool,
    /// Loops in actions and odd lengths too. Seeds below [`LATER_SEEDS`] give the programs that they gave
    /// before.
    later: bool,
    /// No stacks, wide values and variable fields, hardly any state; headers leave in the order in which they
    /// come.
    plain: bool,
    in_parser: bool,
}

/// From this seed on, programs may have loops in actions, and lengths of variable fields that are no whole
/// bytes.
pub const LATER_SEEDS: u64 = 1 << 32;

/// A random program.
pub fn program(seed: u64) -> Program {
    generate(seed, false, false)
}

/// A random program of which verdicts can often be kept. The first header begins with four bytes, a checksum
/// over the rest of the header, and four more bytes.
pub fn plain_program(seed: u64) -> Program {
    generate(seed, false, true)
}

/// A random program that also has unions, stacks of them, copies of stacks and of variable fields, and
/// references to headers that are found at run time.
pub fn rich_program(seed: u64) -> Program {
    generate(seed, true, false)
}

fn generate(seed: u64, rich: bool, plain: bool) -> Program {
    let mut generator = Generator {
        random: Rng::with_seed(seed),
        program: empty(seed),
        rich,
        later: seed >= LATER_SEEDS,
        plain,
        in_parser: false,
    };
    generator.types();
    generator.instances();
    generator.externs();
    generator.in_parser = true;
    generator.parser();
    generator.in_parser = false;
    generator.actions();
    generator.tables();
    generator.program.ingress = generator.control("ingress");
    generator.program.egress = generator.control("egress");
    generator.checksums();
    generator.deparser();
    generator.program
}

/// A random packet. Few values of each byte, so that selects and tables match now and then.
pub fn packet(random: &mut Rng) -> Vec<u8> {
    let len = random.usize(0..100);
    let few = random.bool();
    (0..len)
        .map(|_| if few { random.u8(0..4) } else { random.u8(..) })
        .collect()
}

fn empty(seed: u64) -> Program {
    Program {
        errors: ERRORS.iter().map(|name| (*name).to_owned()).zip(0..).collect(),
        ..Program::empty(format!("random {seed}"), Architecture::V1Model)
    }
}

fn identity(name: String) -> Identity {
    Identity {
        alias: name.clone(),
        name,
        id: None,
    }
}

fn index<T>(position: usize, at: impl Fn(usize) -> Option<T>) -> T {
    at(position).expect("programs are small")
}

fn short(number: usize) -> u16 {
    u16::try_from(number).expect("programs are small")
}

impl Generator {
    fn chance(&mut self, one_in: u32) -> bool {
        self.random.u32(..one_in) == 0
    }

    // Headers.

    /// Usual widths, odd ones, and ones of several words.
    fn width(&mut self) -> u16 {
        if self.plain {
            return plain::width(&mut self.random);
        }
        match self.random.u8(..10) {
            0..4 => [8, 16, 32, 48][self.random.usize(..4)],
            4..8 => self.random.u16(1..=40),
            8 => self.random.u16(60..=70),
            _ => self.random.u16(120..=200),
        }
    }

    fn field(name: String, width: u16) -> FieldType {
        FieldType {
            name,
            width,
            signed: false,
            variable: false,
        }
    }

    fn types(&mut self) {
        let standard = STANDARD_FIELDS.iter();
        self.program.header_types.push(HeaderType {
            name: "standard_metadata".into(),
            fields: standard
                .map(|(name, width, _)| Self::field((*name).into(), *width))
                .collect(),
        });
        let count = self.random.usize(2..8);
        let fields = (0..count)
            .map(|i| Self::field(format!("m{i}"), self.width()))
            .collect();
        self.program.header_types.push(HeaderType {
            name: "user".into(),
            fields,
        });
        // One per header, and one for the elements of the stack.
        for number in 0..=HEADERS {
            let ty = self.header_type(number);
            self.program.header_types.push(ty);
        }
    }

    /// Whole bytes; one type has a variable field.
    fn header_type(&mut self, number: usize) -> HeaderType {
        if self.plain && number == 0 {
            return plain::first_header();
        }
        let count = self.random.usize(1..5);
        let mut fields: Vec<FieldType> = (0..count)
            .map(|i| Self::field(format!("f{i}"), self.width()))
            .collect();
        let bits: u16 = fields.iter().map(|field| field.width).sum();
        if !bits.is_multiple_of(8) {
            fields.push(Self::field("rest".into(), 8 - bits % 8));
        }
        if number == HEADERS - 1 && !self.plain {
            let at = self.random.usize(..=fields.len());
            let variable = FieldType {
                variable: true,
                ..Self::field("variable".into(), 8 * self.random.u16(1..10))
            };
            fields.insert(at, variable);
        }
        HeaderType {
            name: format!("h{number}_t"),
            fields,
        }
    }

    fn instances(&mut self) {
        let size = self.random.u16(2..4);
        let mut instances = vec![
            ("standard_metadata".to_owned(), 0, true),
            ("user".to_owned(), 1, true),
        ];
        instances.extend((0..HEADERS).map(|i| (format!("h{i}"), 2 + i, false)));
        instances.extend((0..size).map(|i| (format!("s[{i}]"), 2 + HEADERS, false)));
        if self.rich {
            instances.extend(rich::instances(size));
        }
        self.program.headers = instances
            .into_iter()
            .map(|(name, ty, metadata)| Header {
                name,
                ty: index(ty, HeaderTypeId::at),
                metadata,
                first_field: FieldId::default(),
                offset: 0,
            })
            .collect();
        self.program.stacks = vec![Stack {
            name: "s".into(),
            ty: index(2 + HEADERS, HeaderTypeId::at),
            first: HeaderId(FIRST + short(HEADERS)),
            size,
        }];
        if self.rich {
            self.unions_and_stacks(size);
        }
        self.program.place();
        let roles = STANDARD_FIELDS.iter().zip(0..);
        self.program.standard.roles = roles.map(|((.., role), at)| (*role, FieldId(at))).collect();
    }

    fn externs(&mut self) {
        self.program.registers = (0..2)
            .map(|i| Register {
                identity: identity(format!("r{i}")),
                width: self.width(),
                size: self.random.u32(1..6),
            })
            .collect();
        let user = self.program.headers[USER.index()].first_field.0;
        let count = self.program.header_types[1].fields.len() as u32;
        self.program.field_lists = vec![FieldList {
            name: "kept".into(),
            number: 1,
            // With the port by which it came, which some targets forget.
            fields: std::iter::once(FieldId(0))
                .chain((user..user + count).map(FieldId))
                .collect(),
        }];
        let algorithms = [
            Algorithm::Crc16,
            Algorithm::Crc32,
            Algorithm::CrcCcitt,
            Algorithm::Csum16,
            Algorithm::Xor16,
            Algorithm::Identity,
        ];
        for algorithm in algorithms {
            let inputs = self.whole_bytes();
            self.program.calculations.push(Calculation {
                name: format!("{algorithm:?}"),
                algorithm,
                inputs,
            });
        }
    }

    /// Input of whole bytes, whatever is valid.
    fn whole_bytes(&mut self) -> Vec<CalculationInput> {
        if self.plain {
            return self.plain_inputs();
        }
        let mut inputs = Vec::new();
        for number in 0..HEADERS - 1 {
            if self.random.bool() {
                inputs.push(CalculationInput::Header(HeaderId(FIRST + short(number))));
            }
        }
        let wide = self.constant(64);
        inputs.push(CalculationInput::Value(wide));
        if self.random.bool() {
            let value = self.bits(16, 2, OUTSIDE);
            inputs.push(CalculationInput::Value(value));
        }
        inputs
    }

    // Expressions.

    fn push(&mut self, kind: ExprKind, ty: Type) -> ExprId {
        self.program.exprs.push(Expr { kind, ty });
        index(self.program.exprs.len() - 1, ExprId::at)
    }

    fn random_bits(&mut self, width: u16) -> Bits {
        let mut bytes = vec![0; usize::from(width).div_ceil(8)];
        match self.random.u8(..4) {
            0 => self.random.fill(&mut bytes),
            1 => bytes.fill(0xff),
            _ => {
                if let Some(last) = bytes.last_mut() {
                    *last = self.random.u8(..8);
                }
            }
        }
        Bits::from_bytes(width, &bytes)
    }

    fn constant(&mut self, width: u16) -> ExprId {
        let bits = self.random_bits(width);
        if width <= 64 {
            let number = bits.to_u64().expect("not wider");
            return self.push(ExprKind::Constant(number), Type::Bits(width));
        }
        self.program.constants.push(bits);
        let at = index(self.program.constants.len() - 1, p4_ir::ConstantId::at);
        self.push(ExprKind::WideConstant(at), Type::Bits(width))
    }

    /// Any field that is not variable.
    fn any_field(&mut self) -> FieldId {
        loop {
            let at = self.random.usize(..self.program.fields.len());
            if !self.program.fields[at].variable {
                return index(at, FieldId::at);
            }
        }
    }

    /// A value of that width.
    fn bits(&mut self, width: u16, depth: u32, scope: Scope) -> ExprId {
        if depth == 0 {
            return self.leaf(width, scope);
        }
        let ty = Type::Bits(width);
        match self.random.u8(..12) {
            0..3 => {
                let unary = [Unary::Complement, Unary::Negate][self.random.usize(..2)];
                let operand = self.bits(width, depth - 1, scope);
                self.push(ExprKind::Unary(unary, operand), ty)
            }
            3..8 => {
                let binary = self.arithmetic();
                let a = self.bits(width, depth - 1, scope);
                let b = self.bits(width, depth - 1, scope);
                self.push(ExprKind::Binary(binary, a, b), ty)
            }
            8 => {
                let shifts = [Binary::ShiftLeft, Binary::ShiftRight, Binary::ShiftRightSigned];
                let shift = shifts[self.random.usize(..3)];
                let a = self.bits(width, depth - 1, scope);
                let by = self.random.u16(3..9);
                let b = self.bits(by, depth - 1, scope);
                self.push(ExprKind::Binary(shift, a, b), ty)
            }
            9 if width >= 2 => {
                let high = self.random.u16(1..width);
                let a = self.bits(high, depth - 1, scope);
                let b = self.bits(width - high, depth - 1, scope);
                self.push(ExprKind::Binary(Binary::Concat, a, b), ty)
            }
            10 => {
                let condition = self.boolean(depth - 1, scope);
                let a = self.bits(width, depth - 1, scope);
                let b = self.bits(width, depth - 1, scope);
                self.push(ExprKind::Mux(condition, a, b), ty)
            }
            _ => self.leaf(width, scope),
        }
    }

    fn arithmetic(&mut self) -> Binary {
        let all = [
            Binary::Add,
            Binary::Sub,
            Binary::Mul,
            Binary::Div,
            Binary::Mod,
            Binary::DivSigned,
            Binary::ModSigned,
            Binary::And,
            Binary::Or,
            Binary::Xor,
        ];
        all[self.random.usize(..all.len())]
    }

    /// Something simple, brought to that width.
    fn leaf(&mut self, width: u16, scope: Scope) -> ExprId {
        let choice = match self.random.u8(..10) {
            4 | 5 if self.plain => 9,
            choice => choice,
        };
        let (id, own) = match choice {
            0..2 => return self.constant(width),
            2 if !scope.parameters.is_empty() => {
                let at = self.random.usize(..scope.parameters.len());
                let own = scope.parameters[at];
                (self.push(ExprKind::Parameter(short(at)), Type::Bits(own)), own)
            }
            3 => {
                let condition = self.valid();
                let operand = self.push(ExprKind::Unary(Unary::ToBits, condition), Type::Bits(1));
                (operand, 1)
            }
            4 => {
                let kind = [ExprKind::LastIndex(STACK), ExprKind::NextIndex(STACK)][self.random.usize(..2)];
                (self.push(kind, Type::Bits(32)), 32)
            }
            5 => {
                let header = self.element();
                let member = self
                    .random
                    .usize(..self.program.header_types[2 + HEADERS].fields.len());
                let own = self.program.header_types[2 + HEADERS].fields[member].width;
                let kind = ExprKind::Member(header, short(member));
                (self.push(kind, Type::Bits(own)), own)
            }
            6 if scope.parser => {
                let offset = self.random.u16(..20);
                let own = self.width();
                (self.push(ExprKind::Lookahead { offset }, Type::Bits(own)), own)
            }
            _ => {
                let field = self.any_field();
                let own = self.program.fields[field.index()].width;
                (self.push(ExprKind::Field(field), Type::Bits(own)), own)
            }
        };
        self.resize(id, own, width)
    }

    fn resize(&mut self, id: ExprId, from: u16, to: u16) -> ExprId {
        let ty = Type::Bits(to);
        let one_of = |random: &mut Rng, all: &[Unary]| all[random.usize(..all.len())];
        let unary = match from.cmp(&to) {
            std::cmp::Ordering::Equal => return id,
            std::cmp::Ordering::Less => one_of(&mut self.random, &[Unary::ZeroExtend, Unary::SignExtend]),
            std::cmp::Ordering::Greater => {
                if self.random.bool() {
                    let low = self.random.u16(..=from - to);
                    return self.push(ExprKind::Slice(id, low), ty);
                }
                one_of(
                    &mut self.random,
                    &[
                        Unary::Truncate,
                        Unary::SaturateUnsigned,
                        Unary::SaturateSigned,
                        Unary::SaturateSignedToUnsigned,
                        Unary::SaturateUnsignedToSigned,
                    ],
                )
            }
        };
        self.push(ExprKind::Unary(unary, id), ty)
    }

    /// An element of the stack, perhaps one that is not there.
    fn element(&mut self) -> HeaderRef {
        if self.rich
            && let Some(found) = self.found_at_run_time()
        {
            return found;
        }
        let at = self.push(ExprKind::Constant(self.random.clone().u64(..4)), Type::Bits(8));
        self.random.u8(..);
        HeaderRef::Element(STACK, at)
    }

    fn header(&mut self) -> HeaderRef {
        if self.rich && self.chance(3) {
            return self.rich_header();
        }
        if !self.plain && self.chance(4) {
            self.element()
        } else {
            HeaderRef::Header(HeaderId(FIRST + self.random.u16(..short(HEADERS))))
        }
    }

    fn valid(&mut self) -> ExprId {
        let header = self.header();
        self.push(ExprKind::Valid(header), Type::Bool)
    }

    fn boolean(&mut self, depth: u32, scope: Scope) -> ExprId {
        let depth = depth.saturating_sub(1);
        if self.rich && self.chance(6) {
            let kind = self.rich_comparison();
            return self.push(kind, Type::Bool);
        }
        let kind = match self.random.u8(..10) {
            0 => return self.valid(),
            1 => ExprKind::Bool(self.random.bool()),
            2 => {
                let operand = self.boolean_below(depth, scope);
                ExprKind::Unary(Unary::Not, operand)
            }
            3 | 4 => {
                let binary = [Binary::AndAlso, Binary::OrElse][self.random.usize(..2)];
                let a = self.boolean_below(depth, scope);
                let b = self.boolean_below(depth, scope);
                ExprKind::Binary(binary, a, b)
            }
            5 => {
                let width = self.width();
                let operand = self.bits(width, depth, scope);
                ExprKind::Unary(Unary::ToBool, operand)
            }
            6 if !self.plain => {
                let first = self.program.stacks[0].first;
                let (a, b) = (HeaderRef::Header(first), self.element());
                ExprKind::HeadersEqual(a, b)
            }
            _ => self.comparison(depth, scope),
        };
        self.push(kind, Type::Bool)
    }

    fn comparison(&mut self, depth: u32, scope: Scope) -> ExprKind {
        let all = [
            Binary::Equal,
            Binary::NotEqual,
            Binary::Less,
            Binary::LessEqual,
            Binary::LessSigned,
            Binary::LessEqualSigned,
        ];
        let binary = all[self.random.usize(..all.len())];
        let width = self.width();
        let a = self.bits(width, depth, scope);
        let b = self.bits(width, depth, scope);
        ExprKind::Binary(binary, a, b)
    }

    fn boolean_below(&mut self, depth: u32, scope: Scope) -> ExprId {
        if depth == 0 {
            self.valid()
        } else {
            self.boolean(depth, scope)
        }
    }

    // Actions.

    /// A field that may be written: user metadata, the egress specification, headers.
    fn place(&mut self) -> (Place, u16) {
        if !self.plain && self.chance(8) {
            let header = self.element();
            let member = self
                .random
                .usize(..self.program.header_types[2 + HEADERS].fields.len());
            let width = self.program.header_types[2 + HEADERS].fields[member].width;
            return (Place::Member(header, short(member)), width);
        }
        loop {
            let field = self.any_field();
            let description = self.program.fields[field.index()];
            if description.header != STANDARD || field == FieldId(1) {
                return (Place::Field(field), description.width);
            }
        }
    }

    fn op(&mut self, scope: Scope) -> Op {
        if self.rich && self.chance(4) {
            return self.rich_op();
        }
        let choice = match self.random.u8(..20) {
            0..=6 if self.plain && !self.chance(30) => 19,
            2..=4 if self.plain => 19,
            choice => choice,
        };
        match choice {
            0 => Op::SetValid(self.header()),
            1 => Op::SetInvalid(self.header()),
            2 => {
                let (to, from) = (self.element(), self.element());
                Op::CopyHeader(to, from)
            }
            3 => Op::Push(STACK, self.random.u16(1..3)),
            4 => Op::Pop(STACK, self.random.u16(1..3)),
            5 | 6 => {
                let at = self.random.usize(..self.program.registers.len());
                let register = index(at, RegisterId::at);
                let cell = self.bits(4, 1, scope);
                let width = self.program.registers[at].width;
                if self.random.bool() {
                    let value = self.bits(width, 2, scope);
                    return Op::RegisterWrite(register, cell, value);
                }
                match self.place_of(width) {
                    Some(place) => Op::RegisterRead(place, register, cell),
                    None => Op::RegisterWrite(register, cell, self.constant(width)),
                }
            }
            7 if !scope.parser => self.hash(scope),
            8 if !scope.parser && self.chance(6) => match self.random.u8(..5) {
                0 => Op::Resubmit(Some(FieldListId(0))),
                1 => Op::Recirculate(Some(FieldListId(0))),
                2 => Op::MarkToDrop,
                3 => Op::Truncate(self.constant(6)),
                _ => Op::Exit,
            },
            _ => {
                let (place, width) = self.place();
                let value = self.bits(width, 3, scope);
                Op::Assign(place, value)
            }
        }
    }

    fn hash(&mut self, scope: Scope) -> Op {
        let (result, _) = self.place();
        let calculation = self.random.usize(..self.program.calculations.len());
        let base = self.bits(32, 1, scope);
        let max = self.random.bool().then(|| self.bits(16, 1, scope));
        Op::Hash {
            calculation: index(calculation, p4_ir::CalculationId::at),
            result,
            base,
            max,
        }
    }

    fn place_of(&mut self, width: u16) -> Option<Place> {
        (0..20)
            .map(|_| self.place())
            .find(|(_, found)| *found == width)
            .map(|(place, _)| place)
    }

    fn actions(&mut self) {
        for number in 0..self.random.usize(3..8) {
            // Some without parameters, for bare statements.
            let count = if number == 0 { 0 } else { self.random.usize(..3) };
            let widths: Vec<u16> = (0..count).map(|_| self.width()).collect();
            let scope = Scope {
                parser: false,
                parameters: &widths,
            };
            let ops = self.action_ops(scope);
            let parameters = widths.iter().zip(1..);
            self.program.actions.push(Action {
                identity: identity(format!("a{number}")),
                parameters: parameters
                    .map(|(width, id)| Parameter {
                        name: format!("p{id}"),
                        id,
                        width: *width,
                    })
                    .collect(),
                ops,
            });
        }
        // Wherever it goes, let it usually go somewhere else than to be dropped.
        let port = self.push(ExprKind::Constant(3), Type::Bits(9));
        self.program.actions.push(Action {
            identity: identity("out".into()),
            parameters: Vec::new(),
            ops: vec![Op::Assign(Place::Field(FieldId(1)), port)],
        });
    }

    fn action_ops(&mut self, scope: Scope) -> Vec<Op> {
        let len = self.random.usize(1..7);
        let mut ops = Vec::new();
        for at in 0..len {
            ops.push(if self.chance(8) {
                let back = self.later && self.chance(3);
                let lowest = if back { 0 } else { at + 1 };
                let to = short(self.random.usize(lowest..=len));
                if self.random.bool() {
                    Op::Jump(to)
                } else {
                    let condition = self.boolean(2, scope);
                    Op::JumpUnless(condition, to)
                }
            } else {
                self.op(scope)
            });
        }
        ops
    }

    // Tables and controls.

    fn tables(&mut self) {
        for number in 0..self.random.usize(1..5) {
            let table = self.table(number);
            self.program.tables.push(table);
        }
    }

    /// Keys of which one is of the kind that gives the table its own; others are exact, or what may stand
    /// beside it.
    fn keys(&mut self, kind: MatchKind) -> Vec<Key> {
        let count = self.random.usize(1..4);
        let special = self.random.usize(..count);
        let key = |at| {
            let kind = match kind {
                _ if at == special => kind,
                MatchKind::Ternary | MatchKind::Range if self.random.bool() => MatchKind::Ternary,
                _ => MatchKind::Exact,
            };
            let width = if self.random.bool() { 8 } else { self.width() };
            Key {
                name: format!("k{at}"),
                id: u32::from(short(at)) + 1,
                kind,
                value: self.bits(width, 1, OUTSIDE),
                width,
            }
        };
        (0..count).map(key).collect()
    }

    fn table_actions(&mut self) -> Vec<TableAction> {
        let used = self.random.usize(1..4).min(self.program.actions.len());
        let first = self.random.usize(..=self.program.actions.len() - used);
        let action = |at| TableAction {
            action: index(at, ActionId::at),
            default_only: false,
            table_only: false,
        };
        (first..first + used).map(action).collect()
    }

    fn table(&mut self, number: usize) -> Table {
        let kinds = [
            MatchKind::Exact,
            MatchKind::Lpm,
            MatchKind::Ternary,
            MatchKind::Range,
            MatchKind::Optional,
        ];
        let kind = kinds[self.random.usize(..kinds.len())];
        let keys = self.keys(kind);
        let table_kind = if keys.iter().any(|key| key.kind == MatchKind::Ternary) && kind != MatchKind::Range
        {
            MatchKind::Ternary
        } else {
            kind
        };
        let actions = self.table_actions();
        let default = (!self.chance(4)).then(|| DefaultEntry {
            entry: self.entry_action(&actions),
            constant_action: true,
            constant_arguments: true,
            rates: None,
        });
        Table {
            identity: identity(format!("t{number}")),
            entries: self.entries(&keys, table_kind, &actions),
            keys,
            kind: table_kind,
            size: 64,
            actions,
            default,
            constant: true,
            implementation: Implementation::Direct,
            counter: None,
            meter: None,
            idle_timeout: false,
            hidden: false,
        }
    }

    fn entry_action(&mut self, actions: &[TableAction]) -> EntryAction {
        let action = actions[self.random.usize(..actions.len())].action;
        let parameters: Vec<u16> = self.program.actions[action.index()]
            .parameters
            .iter()
            .map(|parameter| parameter.width)
            .collect();
        EntryAction {
            action,
            arguments: parameters
                .into_iter()
                .map(|width| self.random_bits(width))
                .collect(),
        }
    }

    /// Without two that could not be distinguished.
    fn entries(&mut self, keys: &[Key], kind: MatchKind, actions: &[TableAction]) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        let with_priorities = !matches!(kind, MatchKind::Exact | MatchKind::Lpm);
        for number in 0..self.random.u32(..12) {
            let keys: Vec<KeyMatch> = keys.iter().map(|key| self.key_match(key)).collect();
            if entries.iter().any(|entry| entry.keys == keys) {
                continue;
            }
            entries.push(Entry {
                keys,
                target: EntryTarget::Action(self.entry_action(actions)),
                rates: None,
                idle_timeout_ns: 0,
                priority: if with_priorities { number + 1 } else { 0 },
            });
        }
        entries
    }

    fn key_match(&mut self, key: &Key) -> KeyMatch {
        let width = key.width;
        let value = self.random_bits(width);
        let masked = |value: &Bits, mask: &Bits| {
            let bytes: Vec<u8> = value
                .bytes()
                .iter()
                .zip(mask.bytes())
                .map(|(value, mask)| value & mask)
                .collect();
            Bits::from_bytes(width, &bytes)
        };
        match key.kind {
            MatchKind::Exact => KeyMatch::Exact(value),
            MatchKind::Lpm => {
                let length = self.random.u16(..=width);
                KeyMatch::Lpm(masked(&value, &Bits::prefix(width, length)), length)
            }
            MatchKind::Ternary => {
                let mask = self.random_bits(width);
                KeyMatch::Ternary(masked(&value, &mask), mask)
            }
            MatchKind::Range => {
                let other = self.random_bits(width);
                if value.bytes() <= other.bytes() {
                    KeyMatch::Range(value, other)
                } else {
                    KeyMatch::Range(other, value)
                }
            }
            MatchKind::Optional => KeyMatch::Optional(self.random.bool().then_some(value)),
        }
    }

    fn control(&mut self, name: &str) -> Control {
        let count = self.random.usize(1..7);
        let blocks = (0..count)
            .map(|at| {
                // The first block of ingress sends the packet somewhere.
                if at == 0 && name == "ingress" {
                    let out = index(self.program.actions.len() - 1, ActionId::at);
                    return Block::Run(out, self.next(at, count));
                }
                match self.random.u8(..4) {
                    0 => Block::If {
                        name: format!("if{at}"),
                        condition: self.boolean(3, OUTSIDE),
                        then: self.next(at, count),
                        otherwise: self.next(at, count),
                    },
                    1 => Block::Run(ActionId(0), self.next(at, count)),
                    _ => self.apply(at, count),
                }
            })
            .collect();
        Control {
            name: name.into(),
            blocks,
        }
    }

    fn next(&mut self, at: usize, count: usize) -> Next {
        if at + 1 == count || self.chance(8) {
            Next::End
        } else if self.random.bool() {
            Next::Block(index(at + 1, BlockId::at))
        } else {
            Next::Block(index(self.random.usize(at + 1..count), BlockId::at))
        }
    }

    fn apply(&mut self, at: usize, count: usize) -> Block {
        let table = self.random.usize(..self.program.tables.len());
        let actions = self.program.tables[table].actions.len();
        let apply = match self.random.u8(..3) {
            0 => Apply::Always(self.next(at, count)),
            1 => Apply::ByHit {
                hit: self.next(at, count),
                miss: self.next(at, count),
            },
            _ => Apply::ByAction(
                (0..actions).map(|_| self.next(at, count)).collect(),
                self.next(at, count),
            ),
        };
        Block::Apply(index(table, TableId::at), apply)
    }

    // Parser, checksums, deparser.

    fn parser(&mut self) {
        let scope = Scope {
            parser: true,
            parameters: &[],
        };
        // A state per header, and one for the stack that may come back to itself.
        let count = if self.plain { HEADERS } else { HEADERS + 1 };
        for number in 0..count {
            let mut ops = vec![self.extract(number)];
            for _ in 0..self.random.usize(..3) {
                let choice = match self.random.u8(..8) {
                    0 if self.plain => 7,
                    choice => choice,
                };
                let op = match choice {
                    2 if self.rich => self.rich_parser_op(),
                    0 => {
                        let bits = self.push(ExprKind::Constant(8), Type::Bits(8));
                        ParserOp::Advance(bits)
                    }
                    1 => {
                        let condition = self.boolean(2, scope);
                        let error = self.push(ExprKind::Constant(6), Type::Bits(32));
                        ParserOp::Verify(condition, error)
                    }
                    _ => {
                        let (place, width) = self.place();
                        let value = self.bits(width, 2, scope);
                        ParserOp::Do(Op::Assign(place, value))
                    }
                };
                ops.push(op);
            }
            let select = self.select(number, count, scope);
            self.program.parser.states.push(State {
                name: format!("state{number}"),
                ops,
                select,
            });
        }
    }

    fn extract(&mut self, number: usize) -> ParserOp {
        if self.rich && number > 0 && self.chance(3) {
            return ParserOp::Extract(self.rich_extract());
        }
        if number == HEADERS {
            return ParserOp::Extract(HeaderRef::Next(STACK));
        }
        let header = HeaderRef::Header(HeaderId(FIRST + short(number)));
        if number != HEADERS - 1 || self.plain {
            return ParserOp::Extract(header);
        }
        // Whole bytes but for some, now and then more than there is room for.
        let odd = if self.later && self.chance(8) { 3 } else { 0 };
        let bits = 8 * self.random.u64(..11) + odd;
        let bits = self.push(ExprKind::Constant(bits), Type::Bits(32));
        ParserOp::ExtractVariable(header, bits)
    }

    fn select(&mut self, number: usize, count: usize, scope: Scope) -> Select {
        let mut keys = Vec::new();
        let mut width = 0;
        for _ in 0..self.random.usize(..3) {
            let own = if self.random.bool() { 8 } else { self.width() };
            keys.push(self.bits(own, 1, scope));
            width += own;
        }
        let cases = if keys.is_empty() {
            0
        } else {
            self.random.usize(..4)
        };
        let cases = (0..cases)
            .map(|_| {
                let mask = self.random_bits(width);
                let value = self.random_bits(width);
                let bytes: Vec<u8> = value
                    .bytes()
                    .iter()
                    .zip(mask.bytes())
                    .map(|(value, mask)| value & mask)
                    .collect();
                SelectCase {
                    pattern: Pattern::Masked {
                        value: Bits::from_bytes(width, &bytes),
                        mask,
                    },
                    next: self.next_state(number, count),
                }
            })
            .collect();
        Select {
            keys,
            width,
            cases,
            default: self.next_state(number, count),
        }
    }

    fn next_state(&mut self, number: usize, count: usize) -> NextState {
        match self.random.u8(..8) {
            0 => NextState::Accept,
            1 if self.chance(3) => NextState::Reject,
            2 if number == HEADERS => NextState::State(index(number, StateId::at)),
            _ if number + 1 < count => {
                NextState::State(index(self.random.usize(number + 1..count), StateId::at))
            }
            _ => NextState::Accept,
        }
    }

    fn checksums(&mut self) {
        if self.plain {
            return self.plain_checksums();
        }
        let fields = (0..self.program.fields.len()).filter_map(FieldId::at);
        let sixteen: Vec<FieldId> = fields
            .filter(|field| {
                let field = &self.program.fields[field.index()];
                field.width == 16 && !field.variable && field.header.0 >= FIRST
            })
            .collect();
        for number in 0..self.random.usize(..3) {
            let Some(target) = sixteen.get(number) else {
                return;
            };
            let payload = self.chance(3).then_some(CalculationInput::Payload(None));
            let mut inputs = self.whole_bytes();
            inputs.extend(payload);
            self.program.calculations.push(Calculation {
                name: format!("sum{number}"),
                algorithm: Algorithm::Csum16,
                inputs,
            });
            let calculation = index(self.program.calculations.len() - 1, p4_ir::CalculationId::at);
            let condition = self.random.bool().then(|| self.boolean(2, OUTSIDE));
            let verify = self.random.bool();
            self.program.checksums.push(Checksum {
                name: format!("checksum{number}"),
                calculation,
                target: Place::Field(*target),
                condition,
                verify,
                update: !verify,
            });
        }
    }

    fn deparser(&mut self) {
        let mut emits: Vec<Emit> = (0..short(HEADERS))
            .map(|number| Emit::Header(HeaderId(FIRST + number)))
            .collect();
        emits.push(Emit::Stack(STACK));
        if self.rich {
            emits.extend(rich::emits());
        }
        if !self.plain {
            self.random.shuffle(&mut emits);
        }
        self.program.deparser = Deparser { emits };
    }
}
