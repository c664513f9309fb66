//! Operations and actions.

use super::Compiler;
use crate::code::{ExternOp, HeaderOp, Op, Slow, WideOp};
use p4_ir::{Action, CalculationId, CounterId, ExprId, HeaderId, HeaderRef, MeterId, Place, RegisterId};

impl Compiler<'_> {
    pub(super) fn action(&mut self, action: &p4_ir::Action) {
        self.parameters = parameter_words(action).0;
        self.in_parser = false;
        let labels: Vec<_> = (0..=action.ops.len()).map(|_| self.label()).collect();
        for (number, (op, &label)) in action.ops.iter().zip(&labels).enumerate() {
            self.bind(label);
            match op {
                p4_ir::Op::Jump(to) => {
                    if op.jumps_back_from(number) {
                        self.emit(Op::Turn);
                    }
                    self.jump(labels[usize::from(*to)]);
                }
                p4_ir::Op::JumpUnless(condition, to) if op.jumps_back_from(number) => {
                    let (turn, further) = (self.label(), self.label());
                    self.branch(*condition, further, turn);
                    self.bind(turn);
                    self.emit(Op::Turn);
                    self.jump(labels[usize::from(*to)]);
                    self.bind(further);
                }
                p4_ir::Op::JumpUnless(condition, to) => {
                    let further = self.label();
                    self.branch(*condition, further, labels[usize::from(*to)]);
                    self.bind(further);
                }
                _ => self.operation(op),
            }
        }
        self.bind(labels[action.ops.len()]);
        self.emit(Op::Return);
        self.parameters.clear();
    }

    /// An operation other than a jump.
    pub(super) fn operation(&mut self, op: &p4_ir::Op) {
        use p4_ir::Op as Ir;
        let top = self.wide_top;
        match *op {
            Ir::Assign(place, value) => self.assign(place, value),
            Ir::CopyVariable(to, from) => self.copy_variable(to, from),
            Ir::SetValid(header) => self.set_valid(header, true),
            Ir::SetInvalid(header) => self.set_valid(header, false),
            Ir::CopyHeader(to, from) => self.copy_header(to, from),
            Ir::CopyUnion(to, from) => self.slow(HeaderOp::CopyUnion { to, from }),
            Ir::CopyStack(to, from) => self.slow(HeaderOp::CopyStack { to, from }),
            Ir::CopyUnionStack(to, from) => self.slow(HeaderOp::CopyUnionStack { to, from }),
            Ir::Push(stack, count) => self.slow(HeaderOp::Push { stack, count }),
            Ir::Pop(stack, count) => self.slow(HeaderOp::Pop { stack, count }),
            Ir::PushUnion(stack, count) => self.slow(HeaderOp::PushUnion { stack, count }),
            Ir::PopUnion(stack, count) => self.slow(HeaderOp::PopUnion { stack, count }),
            Ir::Jump(_) | Ir::JumpUnless(..) => {}
            Ir::MarkToDrop => self.emit(Op::MarkToDrop),
            Ir::Exit => self.emit(Op::Exit),
            Ir::Count(counter, index) => self.count(counter, index),
            Ir::Meter {
                meter,
                index,
                result,
                colour,
            } => self.measure(meter, index, (result, colour)),
            Ir::RegisterRead(place, register, index) => self.read_register(place, register, index),
            Ir::RegisterWrite(register, index, value) => self.write_register(register, index, value),
            Ir::Hash {
                calculation,
                result,
                base,
                max,
            } => self.hash(calculation, result, (base, max)),
            Ir::Random(place, low, high) => self.random(place, low, high),
            Ir::Digest(digest) => self.slow(ExternOp::Digest { digest }),
            Ir::CloneIngress(session, list) => {
                self.number(session, 0);
                self.slow(ExternOp::CloneIngress { session: 0, list });
            }
            Ir::CloneEgress(session, list) => {
                self.number(session, 0);
                self.slow(ExternOp::CloneEgress { session: 0, list });
            }
            Ir::Resubmit(list) => self.slow(ExternOp::Resubmit { list }),
            Ir::Recirculate(list) => self.slow(ExternOp::Recirculate { list }),
            Ir::Truncate(length) => {
                self.number(length, 0);
                self.slow(Slow::Truncate { length: 0 });
            }
            Ir::Assert(condition) => {
                self.value(condition, 0);
                self.slow(Slow::Assert { a: 0 });
            }
            Ir::Log(ref text, ref arguments) => self.log(text, arguments),
            Ir::Extern(_, place, ref arguments) => self.call(place, arguments),
        }
        self.wide_top = top;
    }

    fn copy_header(&mut self, to: HeaderRef, from: HeaderRef) {
        self.header_ref(to, 0, true);
        self.header_ref(from, 1, true);
        self.slow(HeaderOp::CopyHeader { to: 0, from: 1 });
    }

    fn count(&mut self, counter: CounterId, index: ExprId) {
        self.number(index, 0);
        self.slow(ExternOp::Count {
            counter: counter.0,
            index: 0,
        });
    }

    /// The colour before, if the meter heeds it, goes in register 1, and the colour comes in register 0.
    fn measure(&mut self, meter: MeterId, index: ExprId, (result, colour): (Place, Option<ExprId>)) {
        self.number(index, 0);
        let colour = colour.map(|colour| {
            self.number(colour, 1);
            1
        });
        self.slow(ExternOp::Meter {
            meter,
            index: 0,
            colour,
            to: 0,
        });
        self.store_place(result, 0, 2, 1);
    }

    fn read_register(&mut self, place: Place, register: RegisterId, index: ExprId) {
        self.number(index, 0);
        let width = u32::from(self.program.registers[register.index()].width);
        if width > 64 {
            let to = self.take(width);
            self.wide_op(WideOp::RegisterRead {
                to,
                register,
                index: 0,
            });
            self.store_wide(place, to, 0);
        } else {
            self.slow(ExternOp::RegisterRead {
                to: 0,
                register,
                index: 0,
            });
            self.store_place(place, 0, width, 1);
        }
    }

    fn write_register(&mut self, register: RegisterId, index: ExprId, value: ExprId) {
        self.number(index, 0);
        if self.is_wide(value) {
            let from = self.wide(value, 1);
            self.wide_op(WideOp::RegisterWrite {
                from,
                register,
                index: 0,
            });
        } else {
            self.value(value, 1);
            self.slow(ExternOp::RegisterWrite {
                from: 1,
                register,
                index: 0,
            });
        }
    }

    /// Brings the hash of a calculation's input into the range that begins at `base` and has `max` values.
    fn hash(&mut self, calculation: CalculationId, result: Place, (base, max): (ExprId, Option<ExprId>)) {
        self.calculate(calculation);
        self.low_bits(base, 1);
        let max = max.map(|max| {
            self.number(max, 2);
            2
        });
        let width = self.place_width(result).min(64);
        self.slow(Slow::Scale {
            to: 0,
            base: 1,
            max,
            width: width as u8,
        });
        self.store_place(result, 0, width, 1);
    }

    fn random(&mut self, place: Place, low: ExprId, high: ExprId) {
        self.number(low, 0);
        self.number(high, 1);
        self.slow(ExternOp::Random {
            to: 0,
            low: 0,
            high: 1,
        });
        self.store_place(place, 0, 64, 1);
    }

    /// Calls the only function that the target has, which copies its argument: see `crate::externs`.
    fn call(&mut self, place: Place, arguments: &[ExprId]) {
        if let Some(&argument) = arguments.first() {
            self.low_bits(argument, 0);
            let width = self.width(argument).min(64);
            self.store_place(place, 0, width, 1);
        }
    }

    fn log(&mut self, text: &str, arguments: &[ExprId]) {
        let registers = (0..arguments.len())
            .map(|at| {
                self.number(arguments[at], at);
                self.reg(at)
            })
            .collect();
        self.slow(Slow::Log {
            text: text.into(),
            arguments: registers,
        });
    }

    /// The low 64 bits of a value of any width.
    fn low_bits(&mut self, expr: ExprId, to: usize) {
        if !self.is_wide(expr) {
            return self.value(expr, to);
        }
        let top = self.wide_top;
        let a = self.wide(expr, to);
        let to = self.reg(to);
        self.wide_op(WideOp::SliceTo {
            to,
            width: 64,
            a,
            low: 0,
        });
        self.wide_top = top;
    }

    fn copy_variable(&mut self, to: Place, from: Place) {
        let reference = |place: Place, this: &Self| match place {
            Place::Field(field) => {
                let field = this.field(field);
                (HeaderRef::Header(field.header), field.member)
            }
            Place::Member(header, member) => (header, member),
        };
        let ((to, to_member), (from, from_member)) = (reference(to, self), reference(from, self));
        self.header_ref(to, 0, true);
        self.header_ref(from, 1, true);
        self.slow(HeaderOp::CopyVariable {
            to: 0,
            to_member,
            from: 1,
            from_member,
        });
    }

    fn set_valid(&mut self, header: HeaderRef, valid: bool) {
        match self.fixed_header(header) {
            Some(header) if valid && self.is_plain(header) => self.emit(Op::SetValid { header }),
            Some(header) if !valid => self.emit(Op::SetInvalid { header }),
            _ => {
                self.header_ref(header, 0, true);
                self.slow(match valid {
                    true => HeaderOp::SetValidRef { header: 0 },
                    false => HeaderOp::SetInvalidRef { header: 0 },
                });
            }
        }
    }

    /// A header in no union and without a variable field.
    pub(super) fn is_plain(&self, header: HeaderId) -> bool {
        let ty = &self.program.header_types[self.program.headers[header.index()].ty.index()];
        let in_union = self.program.unions.iter().any(|union| {
            let members = self.program.union_types[union.ty.index()].members.len();
            (union.first.index()..union.first.index() + members).contains(&header.index())
        });
        ty.variable().is_none() && !in_union
    }
}

/// First argument word of each parameter, and how many words there are.
pub(crate) fn parameter_words(action: &Action) -> (Vec<u16>, u16) {
    let mut words = 0;
    let starts = action.parameters.iter().map(|parameter| {
        let start = words;
        words += parameter.width.div_ceil(64);
        start
    });
    (starts.collect(), words)
}
