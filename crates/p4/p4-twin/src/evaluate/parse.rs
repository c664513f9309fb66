//! The parser.

use super::{Evaluator, Packet, Stop, Value};
use num_bigint::BigUint;
use p4_ir::{HeaderId, NextState, ParserOp, Pattern, Select};

/// Errors of `core.p4`, by number.
const NO_MATCH: u32 = 2;
const HEADER_TOO_SHORT: u32 = 4;
const PARSER_TIMEOUT: u32 = 5;
const PARSER_INVALID_ARGUMENT: u32 = 6;

impl<'p> Evaluator<'p> {
    pub(super) fn parse(&mut self, packet: &mut Packet) -> Result<(), Stop> {
        let parser = &self.program.parser;
        if parser.states.is_empty() {
            return Ok(());
        }
        let mut next = NextState::State(parser.start);
        let mut steps = 0;
        loop {
            let state = match next {
                NextState::Accept => return Ok(()),
                NextState::Reject => return Err(Stop::Parser(NO_MATCH)),
                NextState::State(state) => &parser.states[state.index()],
            };
            if steps == self.parser_steps {
                return Err(Stop::Parser(PARSER_TIMEOUT));
            }
            steps += 1;
            for op in &state.ops {
                self.parser_op(packet, op)?;
            }
            next = self.select(packet, &state.select)?;
        }
    }

    fn parser_op(&mut self, packet: &mut Packet, op: &ParserOp) -> Result<(), Stop> {
        match op {
            ParserOp::Extract(header) => {
                if let Some(found) = self.find(packet, *header)? {
                    self.extract(packet, found, 0)?;
                    self.advance_stack(packet, *header);
                }
            }
            ParserOp::ExtractVariable(header, bits) => {
                let found = self.find(packet, *header)?;
                let bits = self.evaluate(packet, *bits)?.saturating_usize();
                if let Some(found) = found {
                    let room = self.variable_room(found);
                    if !bits.is_multiple_of(8) {
                        return Err(Stop::Parser(PARSER_INVALID_ARGUMENT));
                    }
                    if bits > room {
                        // Fails by itself if the packet is shorter.
                        let fixed = self.program.type_of(*header).fixed_bits() as usize;
                        self.input_bits(packet, packet.cursor, fixed + bits.min(1 << 24))?;
                        return Err(Stop::Parser(HEADER_TOO_SHORT));
                    }
                    self.extract(packet, found, bits)?;
                    self.advance_stack(packet, *header);
                }
            }
            ParserOp::Advance(bits) => {
                let bits = self.evaluate(packet, *bits)?.saturating_usize();
                self.input_bits(packet, packet.cursor, bits.min(1 << 24))?;
                packet.cursor += bits;
            }
            ParserOp::Verify(condition, error) => {
                if !self.evaluate(packet, *condition)?.is_true() {
                    let error = self.evaluate(packet, *error)?.number;
                    return Err(Stop::Parser(u32::try_from(error).unwrap_or(u32::MAX)));
                }
            }
            ParserOp::Do(op) => self.operate(packet, op)?,
        }
        Ok(())
    }

    fn variable_room(&self, header: HeaderId) -> usize {
        let fields = &self.program.fields[self.fields_of(header)];
        let variable = fields.iter().find(|field| field.variable);
        variable.map_or(0, |field| field.width.into())
    }

    fn extract(&mut self, packet: &mut Packet, header: HeaderId, variable: usize) -> Result<(), Stop> {
        let ty = self.program.headers[header.index()].ty;
        let fixed = self.program.header_types[ty.index()].fixed_bits() as usize;
        let bits = self.input_bits(packet, packet.cursor, fixed + variable)?;
        packet.cursor += bits.len();
        self.fill(packet, header, &bits, variable);
        Ok(())
    }

    fn select(&mut self, packet: &mut Packet, select: &Select) -> Result<NextState, Stop> {
        let mut keys = Vec::new();
        for key in &select.keys {
            keys.extend(self.evaluate(packet, *key)?.bits());
        }
        let key = Value::from_bits(&keys).number;
        let fits = |pattern: &Pattern| match pattern {
            Pattern::Masked { value, mask } => {
                let mask = BigUint::from_bytes_be(mask.bytes());
                &key & mask == BigUint::from_bytes_be(value.bytes())
            }
            // It was never filled.
            Pattern::ValueSet(_) => false,
        };
        let case = select.cases.iter().find(|case| fits(&case.pattern));
        Ok(case.map_or(select.default, |case| case.next))
    }
}
