//! Operations and actions.

use super::expr::Scope;
use super::structure::name;
use super::{At, CheckError, CheckResult, Checker, get, other, within};
use crate::action::{Action, Op};
use crate::expr::{HeaderRef, Type};
use crate::ids::{FieldListId, HeaderTypeId};
use crate::limits;

impl Checker<'_> {
    /// Checks all actions.
    pub(super) fn actions(&self) -> Result<(), CheckError> {
        for action in &self.program.actions {
            let place = || format!("action {:?}", action.identity.name);
            self.signature(action).at(place)?;
            let scope = Scope::Action(&action.parameters);
            for (number, op) in action.ops.iter().enumerate() {
                self.op(op, scope)
                    .and_then(|()| jump(op, action.ops.len()))
                    .at(|| format!("action {:?}, operation {number}", action.identity.name))?;
            }
        }
        Ok(())
    }

    fn signature(&self, action: &Action) -> CheckResult {
        name(&action.identity.name)?;
        within("operations", action.ops.len(), limits::OPS_OF_ACTION)?;
        within("parameters", action.parameters.len(), limits::PARAMETERS)?;
        for parameter in &action.parameters {
            name(&parameter.name)?;
            within("bits of a parameter", parameter.width, limits::WIDTH)?;
            if parameter.width == 0 {
                return other(format!("parameter {:?} has no bits", parameter.name));
            }
        }
        Ok(())
    }

    /// Checks one operation, except for the targets of jumps.
    pub(super) fn op(&self, op: &Op, scope: Scope) -> CheckResult {
        let p = self.program;
        match op {
            Op::Assign(place, value) => {
                let width = self.place(*place, false, scope)?;
                self.wants("the value", *value, width, scope)
            }
            Op::CopyVariable(to, from) => {
                if self.place(*to, true, scope)? != self.place(*from, true, scope)? {
                    return other("copies between variable fields of different size");
                }
                Ok(())
            }
            Op::SetValid(header) | Op::SetInvalid(header) => self.no_metadata(*header, scope).map(|_| ()),
            Op::CopyHeader(to, from) => {
                if self.header_used(*to, scope)? != self.header_used(*from, scope)?
                    || self.is_metadata(*to) != self.is_metadata(*from)
                {
                    return other("copies between headers of different types");
                }
                Ok(())
            }
            Op::CopyUnion(to, from) => {
                let ty = |id: crate::ids::UnionId| get(&p.unions, id.index(), "union").map(|union| union.ty);
                if ty(*to)? == ty(*from)? {
                    Ok(())
                } else {
                    other("copies between unions of different types")
                }
            }
            Op::CopyStack(to, from) => {
                let ty =
                    |id: crate::ids::StackId| get(&p.stacks, id.index(), "stack").map(|s| (s.ty, s.size));
                if ty(*to)? == ty(*from)? {
                    Ok(())
                } else {
                    other("copies between stacks of different types")
                }
            }
            Op::CopyUnionStack(to, from) => {
                let ty = |id: crate::ids::UnionStackId| {
                    get(&p.union_stacks, id.index(), "union stack").map(|s| (s.ty, s.size))
                };
                if ty(*to)? == ty(*from)? {
                    Ok(())
                } else {
                    other("copies between union stacks of different types")
                }
            }
            Op::Push(stack, _) | Op::Pop(stack, _) => get(&p.stacks, stack.index(), "stack").map(|_| ()),
            Op::PushUnion(stack, _) | Op::PopUnion(stack, _) => {
                get(&p.union_stacks, stack.index(), "union stack").map(|_| ())
            }
            Op::Jump(_) | Op::MarkToDrop | Op::Exit => Ok(()),
            Op::JumpUnless(condition, _) | Op::Assert(condition) => {
                self.bool("the condition", *condition, scope)
            }
            _ => self.extern_op(op, scope),
        }
    }

    fn extern_op(&self, op: &Op, scope: Scope) -> CheckResult {
        let p = self.program;
        match op {
            Op::Count(counter, index) => {
                let counter = get(&p.counters, counter.index(), "counter")?;
                if counter.table.is_some() {
                    return other("counts by number in a direct counter");
                }
                self.bits("the index", *index, scope).map(|_| ())
            }
            Op::Meter {
                meter,
                index,
                result,
                colour,
            } => {
                let meter = get(&p.meters, meter.index(), "meter")?;
                if meter.table.is_some() {
                    return other("measures by number in a direct meter");
                }
                self.bits("the index", *index, scope)?;
                self.place(*result, false, scope)?;
                colour.map_or(Ok(()), |colour| {
                    self.bits("the colour", colour, scope).map(|_| ())
                })
            }
            Op::RegisterRead(place, register, index) => {
                let register = get(&p.registers, register.index(), "register")?;
                self.bits("the index", *index, scope)?;
                if self.place(*place, false, scope)? != register.width {
                    return other(format!(
                        "register {:?} has cells of another width",
                        register.identity.name
                    ));
                }
                Ok(())
            }
            Op::RegisterWrite(register, index, value) => {
                let register = get(&p.registers, register.index(), "register")?;
                self.bits("the index", *index, scope)?;
                self.wants("the value", *value, register.width, scope)
            }
            Op::Hash {
                calculation,
                result,
                base,
                max,
            } => {
                get(&p.calculations, calculation.index(), "calculation")?;
                self.place(*result, false, scope)?;
                within("bits of the base", self.bits("the base", *base, scope)?, 64u16)?;
                max.map_or(Ok(()), |max| {
                    within("bits of the number", self.bits("the number", max, scope)?, 64u16)
                })
            }
            Op::Random(place, low, high) => {
                let width = self.place(*place, false, scope)?;
                within("bits of a random number", width, 64u16)?;
                self.wants("the lowest", *low, width, scope)?;
                self.wants("the highest", *high, width, scope)
            }
            Op::Digest(digest) => get(&p.digests, digest.index(), "digest").map(|_| ()),
            Op::CloneIngress(session, list) | Op::CloneEgress(session, list) => {
                self.bits("the session", *session, scope)?;
                self.field_list(*list)
            }
            Op::Resubmit(list) | Op::Recirculate(list) => self.field_list(*list),
            Op::Truncate(bytes) => self.bits("the length", *bytes, scope).map(|_| ()),
            Op::Log(text, arguments) => {
                within("bytes of a text", text.len(), limits::NAME)?;
                within("arguments", arguments.len(), limits::KEYS)?;
                arguments
                    .iter()
                    .try_for_each(|argument| self.used(*argument, scope).map(|_| ()))
            }
            Op::Extern(function, place, arguments) => {
                let function = get(&p.extern_functions, function.index(), "extern function")?;
                if self.place(*place, false, scope)? != function.result
                    || arguments.len() != function.arguments.len()
                {
                    return other(format!("does not call {:?} as that is", function.name));
                }
                arguments
                    .iter()
                    .zip(&function.arguments)
                    .try_for_each(|(argument, width)| self.wants("an argument", *argument, *width, scope))
            }
            // [`Self::op`] has checked all other operations.
            _ => Ok(()),
        }
    }

    /// Checks that an expression is bits of this width.
    pub(super) fn wants(
        &self,
        what: &'static str,
        id: crate::ids::ExprId,
        width: u16,
        scope: Scope,
    ) -> CheckResult {
        let found = self.bits(what, id, scope)?;
        if found == width {
            return Ok(());
        }
        let (found, wanted) = (format!("{found} bits"), format!("{width} bits"));
        Err(super::Problem::Type { what, found, wanted })
    }

    fn field_list(&self, list: Option<FieldListId>) -> CheckResult {
        list.map_or(Ok(()), |list| {
            get(&self.program.field_lists, list.index(), "field list").map(|_| ())
        })
    }

    fn is_metadata(&self, header: HeaderRef) -> bool {
        matches!(header, HeaderRef::Header(id) if self.program.headers[id.index()].metadata)
    }

    /// Checks that a header is not metadata.
    pub(super) fn no_metadata(&self, header: HeaderRef, scope: Scope) -> CheckResult<HeaderTypeId> {
        let ty = self.header_used(header, scope)?;
        if self.is_metadata(header) {
            other("wants a header, not metadata")
        } else {
            Ok(ty)
        }
    }

    /// Checks an input of a calculation or digest.
    pub(super) fn plain(&self, id: crate::ids::ExprId) -> CheckResult<Type> {
        self.used(id, Scope::Control)
    }
}

/// Checks that a jump does not go beyond the end.
fn jump(op: &Op, len: usize) -> CheckResult {
    match op {
        Op::Jump(to) | Op::JumpUnless(_, to) if usize::from(*to) > len => {
            other(format!("jumps to operation {to} of {len}"))
        }
        _ => Ok(()),
    }
}
