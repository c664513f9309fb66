//! Actions: BMv2's primitives.

use crate::error::{Members, Read, Within, unsupported, wrong};
use crate::expr::{Value, constant, is_condition};
use crate::json::Json;
use crate::load::Loader;
use crate::names::next;
use p4_ir::{
    Action, ActionId, Binary, ExprKind, ExternFunction, ExternFunctionId, FieldListId, HeaderRef, Identity,
    Op, Parameter, Place, Type,
};

impl<'a> Loader<'a> {
    /// Reads all actions.
    pub(crate) fn actions(&mut self, root: &'a Json) -> Read<()> {
        for (at, action) in root.list("actions")?.iter().enumerate() {
            let name = action.string("name").within(|| format!("actions[{at}]"))?;
            self.action(action, name).within(|| format!("actions {name:?}"))?;
        }
        Ok(())
    }

    fn action(&mut self, action: &Json, name: &str) -> Read<()> {
        let mut parameters = Vec::new();
        for (at, parameter) in action.list("runtime_data")?.iter().enumerate() {
            let name = parameter
                .string("name")
                .within(|| format!("runtime_data[{at}]"))?;
            let width = parameter
                .size("bitwidth")
                .within(|| format!("runtime_data {name:?}"))?;
            parameters.push(Parameter {
                name: name.to_owned(),
                id: at as u32 + 1,
                width,
            });
        }
        self.parameters = parameters;
        let ops = self.primitives(action.list("primitives")?);
        let parameters = std::mem::take(&mut self.parameters);
        let id = next(ActionId::at(self.program.actions.len()), "action")?;
        self.actions.add(action.size("id")?, id)?;
        let identity = identity(name);
        self.program.actions.push(Action {
            identity,
            parameters,
            ops: ops?,
        });
        Ok(())
    }

    /// Some primitives become several operations, some none; jumps go to primitives, so their goals are
    /// translated last.
    fn primitives(&mut self, primitives: &[Json]) -> Read<Vec<Op>> {
        let mut ops = Vec::new();
        let mut starts = Vec::with_capacity(primitives.len() + 1);
        let mut jumps = Vec::new();
        for (at, primitive) in primitives.iter().enumerate() {
            starts.push(ops.len());
            let op = primitive.string("op").within(|| format!("primitives[{at}]"))?;
            let mut one = || match op {
                "_jump" | "_jump_if_zero" => {
                    let parameters = primitive.list("parameters")?;
                    let goal = parameters.last().map(constant).transpose()?.flatten();
                    let Some(goal) = goal else {
                        return wrong("the goal is no constant");
                    };
                    jumps.push((ops.len(), goal.to_u64()?));
                    Ok(vec![match (op, parameters) {
                        ("_jump", [_]) => Op::Jump(0),
                        ("_jump_if_zero", [condition, _]) => Op::JumpUnless(self.condition(condition)?, 0),
                        _ => return wrong("has another number of parameters"),
                    }])
                }
                _ => self.primitive(op, primitive),
            };
            ops.extend(one().within(|| format!("primitives[{at}] {op:?}"))?);
        }
        starts.push(ops.len());
        for (at, goal) in jumps {
            let start = usize::try_from(goal).ok().and_then(|goal| starts.get(goal));
            let Some(start) = start.and_then(|start| u16::try_from(*start).ok()) else {
                return wrong(format!("a jump to primitive {goal}, which does not exist"));
            };
            match &mut ops[at] {
                Op::Jump(to) | Op::JumpUnless(_, to) => *to = start,
                _ => {}
            }
        }
        Ok(ops)
    }

    /// One primitive.
    pub(crate) fn primitive(&mut self, op: &str, primitive: &Json) -> Read<Vec<Op>> {
        let parameters = primitive.list("parameters")?;
        let one = |op: Op| Ok(vec![op]);
        match (op, parameters) {
            ("assign" | "modify_field" | "assign_VL", [to, from]) => self.assign(to, from),
            ("no_op", []) => Ok(Vec::new()),
            ("add_to_field" | "subtract_from_field", [to, value]) => {
                let to = self.place(to)?;
                let op = if op == "add_to_field" {
                    Binary::Add
                } else {
                    Binary::Sub
                };
                let own = self.own(to)?;
                self.combine(to, own, value, op).and_then(one)
            }
            (
                "add" | "subtract" | "bit_xor" | "bit_or" | "bit_and" | "shift_left" | "shift_right",
                [to, a, b],
            ) => self.three(op, to, a, b).and_then(one),
            ("add_header" | "add_header_fast", [header]) => {
                let header = self.header(header)?;
                // Metadata is always valid.
                Ok(self.unless_metadata(header, Op::SetValid(header)))
            }
            ("remove_header", [header]) => {
                let header = self.header(header)?;
                Ok(self.unless_metadata(header, Op::SetInvalid(header)))
            }
            ("assign_header" | "copy_header", [to, from]) => {
                one(Op::CopyHeader(self.header(to)?, self.header(from)?))
            }
            ("assign_union", [to, from]) => match (self.value(to)?, self.value(from)?) {
                (Value::Union(p4_ir::UnionRef::Union(to)), Value::Union(p4_ir::UnionRef::Union(from))) => {
                    one(Op::CopyUnion(to, from))
                }
                (Value::Union(_), Value::Union(_)) => {
                    unsupported("a copy of a union by a number known at run time")
                }
                _ => wrong("are no unions"),
            },
            ("assign_header_stack" | "assign_union_stack", [to, from]) => {
                match (self.value(to)?, self.value(from)?) {
                    (Value::Stack(to), Value::Stack(from)) => one(Op::CopyStack(to, from)),
                    (Value::UnionStack(to), Value::UnionStack(from)) => one(Op::CopyUnionStack(to, from)),
                    _ => wrong("are no stacks"),
                }
            }
            ("push" | "pop", [stack, count]) => {
                let Some(count) = constant(count)? else {
                    return unsupported("a number that is no constant");
                };
                let count = count.to_u64()?.min(u64::from(u16::MAX)) as u16;
                match (self.value(stack)?, op) {
                    (Value::Stack(stack), "push") => one(Op::Push(stack, count)),
                    (Value::Stack(stack), _) => one(Op::Pop(stack, count)),
                    (Value::UnionStack(stack), "push") => one(Op::PushUnion(stack, count)),
                    (Value::UnionStack(stack), _) => one(Op::PopUnion(stack, count)),
                    _ => wrong("is no stack"),
                }
            }
            ("drop", []) | ("mark_to_drop", [] | [_]) => one(Op::MarkToDrop),
            ("exit", []) => one(Op::Exit),
            ("assert" | "assume", [condition]) => one(Op::Assert(self.condition(condition)?)),
            ("truncate", [bytes]) => one(Op::Truncate(self.unsigned(bytes)?)),
            _ => self.stateful(op, parameters),
        }
    }

    /// Primitives that use externs.
    fn stateful(&mut self, op: &str, parameters: &[Json]) -> Read<Vec<Op>> {
        let op = match (op, parameters) {
            ("count", [counter, index]) => {
                Op::Count(self.counters.get(named(counter)?)?, self.unsigned(index)?)
            }
            ("execute_meter", [meter, index, result]) => Op::Meter {
                meter: self.meters.get(named(meter)?)?,
                index: self.unsigned(index)?,
                result: self.place(result)?,
                colour: None,
            },
            ("register_read", [to, register, index]) => return self.register_read(to, register, index),
            ("register_write", [register, index, value]) => {
                let register = self.registers.get(named(register)?)?;
                let width = self.program.registers[register.index()].width;
                Op::RegisterWrite(register, self.unsigned(index)?, self.low(value, width)?)
            }
            ("modify_field_with_hash_based_offset", [to, base, calculation, max]) => Op::Hash {
                result: self.place(to)?,
                base: self.small(base)?,
                calculation: self.calculations.get(named(calculation)?)?,
                max: Some(self.small(max)?),
            },
            ("modify_field_rng_uniform", [to, low, high]) => {
                let to = self.place(to)?;
                let width = self.width(to);
                Op::Random(to, self.low(low, width)?, self.low(high, width)?)
            }
            ("generate_digest", [_, list]) => match constant(list)? {
                Some(list) => Op::Digest(self.digests.get(&list.to_u64()?)?),
                None => return unsupported("a learn list that is no constant"),
            },
            ("clone_ingress_pkt_to_egress", [session, list]) => {
                Op::CloneIngress(self.unsigned(session)?, self.field_list(list)?)
            }
            ("clone_egress_pkt_to_egress", [session, list]) => {
                Op::CloneEgress(self.unsigned(session)?, self.field_list(list)?)
            }
            ("clone_ingress_pkt_to_egress", [session]) => Op::CloneIngress(self.unsigned(session)?, None),
            ("clone_egress_pkt_to_egress", [session]) => Op::CloneEgress(self.unsigned(session)?, None),
            ("resubmit", [list]) => Op::Resubmit(self.field_list(list)?),
            ("recirculate", [list]) => Op::Recirculate(self.field_list(list)?),
            ("resubmit", []) => Op::Resubmit(None),
            ("recirculate", []) => Op::Recirculate(None),
            ("log_msg", [text]) => Op::Log(named(text)?.to_owned(), Vec::new()),
            ("log_msg", [text, values]) => {
                let text = named(text)?.to_owned();
                let mut arguments = Vec::new();
                for value in values.list("value")? {
                    arguments.push(match self.value(value)? {
                        Value::Num(num) => num.id,
                        Value::Bool(id) => id,
                        _ => return wrong("an argument is no number"),
                    });
                }
                Op::Log(text, arguments)
            }
            ("extern_func", [result, argument]) => return self.extern_function(op, result, argument),
            _ => return unsupported(format!("with {} parameters, this primitive", parameters.len())),
        };
        Ok(vec![op])
    }

    fn assign(&mut self, to: &Json, from: &Json) -> Read<Vec<Op>> {
        if validity(to).is_some() {
            return self.assign_validity(to, from);
        }
        let to = self.place(to)?;
        if self.is_variable(to) {
            return Ok(vec![Op::CopyVariable(to, self.place(from)?)]);
        }
        let width = self.width(to);
        if is_condition(from) {
            // A truth value into a field: one bit.
            let id = self.condition(from)?;
            let bit = self.node(ExprKind::Unary(p4_ir::Unary::ToBits, id), Type::Bits(1))?;
            return Ok(vec![Op::Assign(
                to,
                self.cast(
                    crate::expr::Num {
                        id: bit,
                        width: 1,
                        signed: false,
                    },
                    width,
                )?,
            )]);
        }
        Ok(vec![Op::Assign(to, self.low(from, width)?)])
    }

    /// Old compilers made a header valid in the parser by writing its hidden field.
    fn assign_validity(&mut self, to: &Json, from: &Json) -> Read<Vec<Op>> {
        let header = HeaderRef::Header(self.header_names.get(validity(to).unwrap_or_default())?);
        let Some(valid) = constant(from)? else {
            return unsupported("a validity that is no constant");
        };
        let op = if valid.to_u64()? & 1 == 1 {
            Op::SetValid(header)
        } else {
            Op::SetInvalid(header)
        };
        Ok(self.unless_metadata(header, op))
    }

    /// The value of a place.
    fn own(&mut self, place: Place) -> Read<p4_ir::ExprId> {
        let width = Type::Bits(self.width(place));
        match place {
            Place::Field(field) => self.node(ExprKind::Field(field), width),
            Place::Member(header, member) => self.node(ExprKind::Member(header, member), width),
        }
    }

    fn combine(&mut self, to: Place, a: p4_ir::ExprId, b: &Json, op: Binary) -> Read<Op> {
        let width = self.width(to);
        let b = self.low(b, width)?;
        Ok(Op::Assign(
            to,
            self.node(ExprKind::Binary(op, a, b), Type::Bits(width))?,
        ))
    }

    /// P4_14's operators with a result and two operands.
    fn three(&mut self, op: &str, to: &Json, a: &Json, b: &Json) -> Read<Op> {
        let to = self.place(to)?;
        let width = self.width(to);
        if op == "shift_right" {
            let (a, b) = (self.exact(a)?, self.exact(b)?);
            let op = if a.signed {
                Binary::ShiftRightSigned
            } else {
                Binary::ShiftRight
            };
            let id = self.node(ExprKind::Binary(op, a.id, b.id), Type::Bits(a.width))?;
            return Ok(Op::Assign(to, self.cast(crate::expr::Num { id, ..a }, width)?));
        }
        let a = self.low(a, width)?;
        if op == "shift_left" {
            let b = self.exact(b)?;
            let id = self.node(ExprKind::Binary(Binary::ShiftLeft, a, b.id), Type::Bits(width))?;
            return Ok(Op::Assign(to, id));
        }
        let op = match op {
            "add" => Binary::Add,
            "subtract" => Binary::Sub,
            "bit_xor" => Binary::Xor,
            "bit_or" => Binary::Or,
            _ => Binary::And,
        };
        self.combine(to, a, b, op)
    }

    /// Reads a cell; if the field has another width, the value is cut or filled up as BMv2 does.
    fn register_read(&mut self, to: &Json, register: &Json, index: &Json) -> Read<Vec<Op>> {
        let to = self.place(to)?;
        let register = self.registers.get(named(register)?)?;
        let cell = &self.program.registers[register.index()];
        if cell.width != self.width(to) {
            return unsupported(format!(
                "a read from cells of {} bits into a field of {}",
                cell.width,
                self.width(to)
            ));
        }
        Ok(vec![Op::RegisterRead(to, register, self.unsigned(index)?)])
    }

    fn extern_function(&mut self, name: &str, result: &Json, argument: &Json) -> Read<Vec<Op>> {
        let result = self.place(result)?;
        let width = self.width(result);
        let argument = self.low(argument, width)?;
        let function = ExternFunction {
            name: name.to_owned(),
            result: width,
            arguments: vec![width],
        };
        let known = self
            .program
            .extern_functions
            .iter()
            .position(|other| *other == function);
        let at = known.unwrap_or(self.program.extern_functions.len());
        if known.is_none() {
            self.program.extern_functions.push(function);
        }
        let id = next(ExternFunctionId::at(at), "extern function")?;
        Ok(vec![Op::Extern(id, result, vec![argument])])
    }

    /// A header.
    pub(crate) fn header(&mut self, json: &Json) -> Read<HeaderRef> {
        match self.value(json)? {
            Value::Header(header) => Ok(header),
            _ => wrong("is no header"),
        }
    }

    fn unless_metadata(&self, header: HeaderRef, op: Op) -> Vec<Op> {
        match header {
            HeaderRef::Header(id) if self.program.headers[id.index()].metadata => Vec::new(),
            _ => vec![op],
        }
    }

    /// A field list by its number; 0 without such a list is none.
    fn field_list(&mut self, json: &Json) -> Read<Option<FieldListId>> {
        let Some(number) = constant(json)? else {
            return unsupported("a field list that is no constant");
        };
        match number.to_u64()? {
            0 => Ok(self.field_lists.find(&0)),
            number => self.field_lists.get(&number).map(Some),
        }
    }
}

/// The name of the header whose hidden field of validity this is.
fn validity(json: &Json) -> Option<&str> {
    match json.get("value").elements()? {
        [Json::Text(header), Json::Text(field)] if field == "$valid$" => Some(header),
        _ => None,
    }
}

/// The name in a reference.
pub(crate) fn named(json: &Json) -> Read<&str> {
    json.string("value")
}

/// Names of something without P4Info: the last part is the alias.
pub(crate) fn identity(name: &str) -> Identity {
    let alias = name.rsplit('.').next().unwrap_or(name);
    Identity {
        name: name.to_owned(),
        alias: alias.to_owned(),
        id: None,
    }
}
