//! Checksums that are verified and updated, and what hashes and checksums are calculated over.

use super::Compiler;
use crate::code::{Op, Slow, WideOp};
use p4_ir::{CalculationId, CalculationInput, ExprId, Field, HeaderId, Place};

impl Compiler<'_> {
    /// The checksums that are verified, or updated, as one routine.
    pub(super) fn checksums(&mut self, verify: bool) {
        for checksum in &self.program.checksums {
            if !(if verify { checksum.verify } else { checksum.update }) {
                continue;
            }
            let (go, end) = (self.label(), self.label());
            if let Some(header) = self.fixed(checksum.target).map(|field| self.field(field).header)
                && !self.is_metadata(header)
            {
                self.emit(Op::JumpUnlessValid { header, pc: end.0 });
            }
            if let Some(condition) = checksum.condition {
                self.branch(condition, go, end);
            }
            self.bind(go);
            self.calculate(checksum.calculation);
            if verify {
                self.load_place(checksum.target, 1);
                self.emit(Op::Equal { to: 0, a: 0, b: 1 });
                self.emit(Op::JumpIf { a: 0, pc: end.0 });
                self.slow(Slow::ChecksumError);
            } else {
                self.store_place(checksum.target, 0, 64, 1);
            }
            self.bind(end);
        }
        self.emit(Op::End);
    }

    fn load_place(&mut self, place: Place, to: usize) {
        match (self.fixed(place), place) {
            (Some(field), _) => self.load(field, to),
            (None, Place::Member(header, member)) => {
                self.header_ref(header, to, false);
                let to = self.reg(to);
                self.slow(Slow::LoadMember {
                    to,
                    header: to,
                    member,
                });
            }
            (None, Place::Field(_)) => {}
        }
    }

    /// The hash of a calculation's input, into register 0.
    pub(super) fn calculate(&mut self, id: CalculationId) {
        self.emit(Op::Gather);
        let program = self.program;
        let mut fields = Fields::default();
        for input in &program.calculations[id.index()].inputs {
            if let CalculationInput::Field(field) = *input {
                let field = self.field(field);
                if !field.variable {
                    if !fields.push(&field) {
                        self.gather_fields(std::mem::take(&mut fields));
                        fields.push(&field);
                    }
                    continue;
                }
            }
            self.gather_fields(std::mem::take(&mut fields));
            match *input {
                CalculationInput::Field(field) => {
                    let Field { header, offset, .. } = self.field(field);
                    self.slow(Slow::GatherVariable { header, bit: offset });
                }
                CalculationInput::Value(value) => self.gather_value(value),
                CalculationInput::Header(header) => self.slow(Slow::GatherHeader { header }),
                CalculationInput::Payload(after) => self.slow(Slow::GatherPayload { after }),
            }
        }
        self.gather_fields(fields);
        self.emit(Op::Hash {
            to: 0,
            calculation: id.0,
        });
    }

    fn gather_fields(&mut self, fields: Fields) {
        let Some(header) = fields.header else { return };
        let end = self.label();
        if !self.is_metadata(header) {
            self.emit(Op::JumpUnlessValid { header, pc: end.0 });
        }
        for (bit, width) in fields.runs {
            self.emit(Op::GatherField {
                bit,
                width: width as u16,
            });
        }
        self.bind(end);
    }

    pub(super) fn gather_value(&mut self, value: ExprId) {
        if self.is_wide(value) {
            let top = self.wide_top;
            let a = self.wide(value, 0);
            self.wide_op(WideOp::Gather { a });
            self.wide_top = top;
        } else {
            self.value(value, 0);
            let width = self.width(value) as u8;
            self.emit(Op::GatherValue { from: 0, width });
        }
    }
}

/// Fields of one header that follow each other in a calculation; adjacent ones are gathered as one run of
/// bits.
#[derive(Default)]
struct Fields {
    header: Option<HeaderId>,
    runs: Vec<(u32, u32)>,
}

impl Fields {
    /// False if the field belongs to another header.
    fn push(&mut self, field: &Field) -> bool {
        if self.header.is_some_and(|header| header != field.header) {
            return false;
        }
        self.header = Some(field.header);
        let width = u32::from(field.width);
        match self.runs.last_mut() {
            Some((bit, length)) if *bit + *length == field.offset && *length + width <= 0xFFFF => {
                *length += width
            }
            _ => self.runs.push((field.offset, width)),
        }
        true
    }
}
