//! The naive evaluator: applies a program to a packet literally as its description says, without regard to
//! speed.
//!
//! Every field is a number without bounds, every packet a vector of bits, every look-up a walk over all
//! entries, and expressions are evaluated by recursion. It shares nothing with an engine but the program, and
//! was written from the documentation of [`p4_ir`]. It knows the part of the architecture that needs no
//! controller: entries of the program, no multicast groups, no clone sessions.

mod expression;
mod hash;
mod operation;
mod parse;
mod table;
mod value;

use num_bigint::BigUint;
use p4_ir::{
    Apply, Block, CalculationId, CalculationInput, Checked, Checksum, Control, Emit, FieldId, FieldListId,
    HeaderId, Next, Program, Role,
};
pub use value::Value;

/// The port that means "drop".
const DROP: u32 = 511;

/// A packet that left.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent {
    /// By this port.
    pub port: u32,
    /// What it was.
    pub bytes: Vec<u8>,
}

/// A program and its state.
#[derive(Debug)]
pub struct Evaluator<'p> {
    program: &'p Program,
    passes: u8,
    parser_steps: u32,
    loop_turns: u32,
    /// Cells of each register.
    registers: Vec<Vec<BigUint>>,
}

/// One pass of one packet.
#[derive(Debug, Clone)]
struct Packet {
    input: Vec<u8>,
    /// Bits taken by the parser.
    cursor: usize,
    /// By field. Of a variable field, only the bits it has.
    fields: Vec<Value>,
    /// By header.
    valid: Vec<bool>,
    /// Next element, by stack.
    next: Vec<u16>,
    /// Next element, by stack of unions.
    next_union: Vec<u16>,
    /// Arguments of the action that runs.
    arguments: Vec<Value>,
    /// Jumps back that actions have made in the control that runs.
    turns: u32,
    resubmit: Option<Option<FieldListId>>,
    recirculate: Option<Option<FieldListId>>,
    truncate: Option<usize>,
}

/// Why evaluation stopped short.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stop {
    /// The parser ended with this error.
    Parser(u32),
    /// `exit`.
    Exit,
    /// Too many turns of loops.
    Loops,
}

impl<'p> Evaluator<'p> {
    /// Registers are zero.
    pub fn new(checked: &'p Checked) -> Evaluator<'p> {
        let program = checked.program();
        let registers = program
            .registers
            .iter()
            .map(|register| vec![BigUint::ZERO; register.size as usize])
            .collect();
        Evaluator {
            program,
            passes: checked.bounds().passes,
            parser_steps: checked.bounds().parser_steps,
            loop_turns: checked.bounds().loop_turns,
            registers,
        }
    }

    /// Everything that leaves when this packet comes in by `port`.
    pub fn run(&mut self, port: u32, bytes: &[u8]) -> Vec<Sent> {
        let mut metadata = Vec::new();
        let (mut bytes, mut kind) = (bytes.to_vec(), 0u32);
        for _ in 0..self.passes {
            match self.pass(port, &bytes, kind, &metadata) {
                End::Gone(sent) => return sent,
                End::Again(again, new_kind, kept) => (bytes, kind, metadata) = (again, new_kind, kept),
            }
        }
        Vec::new()
    }

    /// Parses a packet, and verifies its checksums.
    fn receive(&mut self, packet: &mut Packet, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("short");
        self.set(packet, Role::PacketLength, length);
        if let Err(Stop::Parser(error)) = self.parse(packet) {
            self.set(packet, Role::ParserError, error);
        }
        self.verify(packet);
    }

    fn pass(&mut self, port: u32, bytes: &[u8], kind: u32, kept: &[(FieldId, Value)]) -> End {
        let mut packet = self.fresh(bytes);
        for (field, value) in kept {
            packet.fields[field.index()] = value.clone();
        }
        self.set(&mut packet, Role::IngressPort, port);
        self.set(&mut packet, Role::InstanceType, kind);
        self.receive(&mut packet, bytes);
        if !self.control(&self.program.ingress, &mut packet) {
            return End::Gone(Vec::new());
        }
        if let Some(list) = packet.resubmit {
            let kept = self.kept(&packet, list);
            return End::Again(bytes.to_vec(), 6, kept);
        }
        let egress_port = self.get(&packet, Role::EgressSpec);
        if egress_port == DROP {
            return End::Gone(Vec::new());
        }
        self.set(&mut packet, Role::EgressPort, egress_port);
        self.set(&mut packet, Role::EgressSpec, 0);
        // Egress does not learn that the packet was resubmitted or recirculated.
        self.set(&mut packet, Role::InstanceType, 0);
        if !self.control(&self.program.egress, &mut packet) {
            return End::Gone(Vec::new());
        }
        if self.get(&packet, Role::EgressSpec) == DROP {
            return End::Gone(Vec::new());
        }
        self.update(&mut packet);
        let mut out = self.deparse(&packet);
        if let Some(len) = packet.truncate {
            out.truncate(len);
        }
        if let Some(list) = packet.recirculate {
            let kept = self.kept(&packet, list);
            return End::Again(out, 4, kept);
        }
        End::Gone(vec![Sent {
            port: egress_port,
            bytes: out,
        }])
    }

    fn fresh(&self, bytes: &[u8]) -> Packet {
        let program = self.program;
        let fields = program.fields.iter();
        Packet {
            input: bytes.to_vec(),
            cursor: 0,
            fields: fields
                .map(|field| Value::new(0u8, if field.variable { 0 } else { field.width.into() }))
                .collect(),
            valid: program.headers.iter().map(|header| header.metadata).collect(),
            next: vec![0; program.stacks.len()],
            next_union: vec![0; program.union_stacks.len()],
            arguments: Vec::new(),
            turns: 0,
            resubmit: None,
            recirculate: None,
            truncate: None,
        }
    }

    fn set(&self, packet: &mut Packet, role: Role, number: u32) {
        if let Some(field) = self.program.standard.get(role) {
            let width = u32::from(self.program.fields[field.index()].width);
            packet.fields[field.index()] = Value::new(number, width);
        }
    }

    /// Zero if the program does not have that field.
    fn get(&self, packet: &Packet, role: Role) -> u32 {
        let field = self.program.standard.get(role);
        field.map_or(0, |field| {
            u32::try_from(&packet.fields[field.index()].number).expect("standard fields are short")
        })
    }

    fn kept(&self, packet: &Packet, list: Option<FieldListId>) -> Vec<(FieldId, Value)> {
        let fields = list.map(|list| &self.program.field_lists[list.index()].fields);
        fields
            .into_iter()
            .flatten()
            .map(|field| (*field, packet.fields[field.index()].clone()))
            .collect()
    }

    /// False if a loop ended it.
    fn control(&mut self, control: &'p Control, packet: &mut Packet) -> bool {
        packet.turns = 0;
        let mut next = if control.blocks.is_empty() {
            Next::End
        } else {
            Next::Block(p4_ir::BlockId(0))
        };
        while let Next::Block(block) = next {
            match self.block(&control.blocks[block.index()], packet) {
                Ok(chosen) => next = chosen,
                Err(stop) => return stop != Stop::Loops,
            }
        }
        true
    }

    fn block(&mut self, block: &'p Block, packet: &mut Packet) -> Result<Next, Stop> {
        Ok(match block {
            Block::If {
                condition,
                then,
                otherwise,
                ..
            } => {
                if self.evaluate(packet, *condition)?.is_true() {
                    *then
                } else {
                    *otherwise
                }
            }
            Block::Run(action, next) => {
                self.act(packet, *action, Vec::new())?;
                *next
            }
            Block::Apply(table, apply) => {
                let (hit, ran) = self.apply(packet, *table)?;
                match apply {
                    Apply::Always(next) => *next,
                    Apply::ByHit { hit: found, miss } => {
                        if hit {
                            *found
                        } else {
                            *miss
                        }
                    }
                    Apply::ByAction(ways, none) => ran.map_or(*none, |position| ways[position]),
                }
            }
        })
    }

    fn header_bits(&self, packet: &Packet, header: HeaderId) -> Vec<bool> {
        let first = self.program.headers[header.index()].first_field.index();
        let ty = self.program.headers[header.index()].ty;
        let count = self.program.header_types[ty.index()].fields.len();
        packet.fields[first..first + count]
            .iter()
            .flat_map(Value::bits)
            .collect()
    }

    /// Headers in the order in which they are emitted.
    fn emitted(&self) -> Vec<HeaderId> {
        let program = self.program;
        let side_by_side = |first: HeaderId, count: usize| {
            (0..count).map(move |i| HeaderId::at(first.index() + i).expect("in range"))
        };
        let union = |id: p4_ir::UnionId| {
            let union = &program.unions[id.index()];
            side_by_side(union.first, program.union_types[union.ty.index()].members.len())
        };
        let mut all = Vec::new();
        for emit in &program.deparser.emits {
            match *emit {
                Emit::Header(header) => all.push(header),
                Emit::Stack(stack) => {
                    let stack = &program.stacks[stack.index()];
                    all.extend(side_by_side(stack.first, stack.size.into()));
                }
                Emit::Union(id) => all.extend(union(id)),
                Emit::UnionStack(stack) => {
                    let stack = &program.union_stacks[stack.index()];
                    for i in 0..usize::from(stack.size) {
                        all.extend(union(
                            p4_ir::UnionId::at(stack.first.index() + i).expect("in range"),
                        ));
                    }
                }
            }
        }
        all.retain(|header| !program.headers[header.index()].metadata);
        all
    }

    fn rest<'a>(&self, packet: &'a Packet) -> &'a [u8] {
        &packet.input[packet.cursor.div_ceil(8).min(packet.input.len())..]
    }

    fn deparse(&self, packet: &Packet) -> Vec<u8> {
        let headers = self
            .emitted()
            .into_iter()
            .filter(|header| packet.valid[header.index()]);
        let bits: Vec<bool> = headers
            .flat_map(|header| self.header_bits(packet, header))
            .collect();
        let mut out = to_bytes(&bits);
        out.extend(self.rest(packet));
        out
    }

    // Checksums.

    fn verify(&mut self, packet: &mut Packet) {
        for checksum in self.program.checksums.iter().filter(|checksum| checksum.verify) {
            if let Some(sum) = self.checksum(packet, checksum) {
                let there = self.read_place(packet, checksum.target);
                if there.is_ok_and(|there| there.number != sum) {
                    self.set(packet, Role::ChecksumError, 1);
                }
            }
        }
    }

    fn update(&mut self, packet: &mut Packet) {
        for checksum in self.program.checksums.iter().filter(|checksum| checksum.update) {
            if let Some(sum) = self.checksum(packet, checksum) {
                let _ = self.write_place(packet, checksum.target, sum);
            }
        }
    }

    /// The right checksum, if it is to be computed.
    fn checksum(&mut self, packet: &mut Packet, checksum: &Checksum) -> Option<BigUint> {
        if let Some(condition) = checksum.condition
            && !self
                .evaluate(packet, condition)
                .is_ok_and(|value| value.is_true())
        {
            return None;
        }
        if !self.place_is_valid(packet, checksum.target) {
            return None;
        }
        self.calculate(packet, checksum.calculation)
    }

    fn calculate(&mut self, packet: &mut Packet, calculation: CalculationId) -> Option<BigUint> {
        let calculation = &self.program.calculations[calculation.index()];
        let mut bits = Vec::new();
        for input in &calculation.inputs {
            match *input {
                CalculationInput::Field(field) => {
                    let header = self.program.fields[field.index()].header;
                    if packet.valid[header.index()] {
                        bits.extend(packet.fields[field.index()].bits());
                    }
                }
                CalculationInput::Value(value) => bits.extend(self.evaluate(packet, value).ok()?.bits()),
                CalculationInput::Header(header) => {
                    if packet.valid[header.index()] {
                        bits.extend(self.header_bits(packet, header));
                    }
                }
                CalculationInput::Payload(after) => {
                    let mut headers = self.emitted();
                    if let Some(at) = after.and_then(|after| headers.iter().position(|h| *h == after)) {
                        headers.drain(..=at);
                    }
                    headers.retain(|header| packet.valid[header.index()]);
                    for header in headers {
                        bits.extend(self.header_bits(packet, header));
                    }
                    bits.extend(
                        self.rest(packet)
                            .iter()
                            .flat_map(|byte| Value::new(*byte, 8).bits()),
                    );
                }
            }
        }
        hash::hash(calculation.algorithm, &to_bytes(&bits))
    }
}

/// The outcome of a pass.
enum End {
    /// All that left.
    Gone(Vec<Sent>),
    /// Another pass: the packet, how it came to be, the metadata it keeps.
    Again(Vec<u8>, u32, Vec<(FieldId, Value)>),
}

/// The last byte is filled with zeros.
fn to_bytes(bits: &[bool]) -> Vec<u8> {
    bits.chunks(8)
        .map(|chunk| {
            let byte = chunk.iter().fold(0u8, |byte, &bit| byte << 1 | u8::from(bit));
            byte << (8 - chunk.len())
        })
        .collect()
}
