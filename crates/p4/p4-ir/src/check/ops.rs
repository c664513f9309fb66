//! Operations and actions.

use super::expr::Scope;
use super::structure::name;
use super::{At, CheckError, CheckResult, Checker, get, other, within};
use crate::action::{Action, Op};
use crate::expr::{HeaderRef, Place, Type};
use crate::ids::{
    CounterId, ExprId, ExternFunctionId, FieldListId, HeaderTypeId, MeterId, RegisterId, StackId, UnionId,
    UnionStackId,
};
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
        match *op {
            Op::Assign(place, value) => {
                let width = self.place(place, false, scope)?;
                self.wants("the value", value, width, scope)
            }
            Op::CopyVariable(to, from) => {
                let sizes = (self.place(to, true, scope)?, self.place(from, true, scope)?);
                same(sizes, "copies between variable fields of different size")
            }
            Op::SetValid(header) | Op::SetInvalid(header) => self.no_metadata(header, scope).map(|_| ()),
            Op::CopyHeader(to, from) => {
                let ty = |header| Ok((self.header_used(header, scope)?, self.is_metadata(header)));
                same((ty(to)?, ty(from)?), "copies between headers of different types")
            }
            Op::CopyUnion(to, from) => {
                let ty = |id: UnionId| get(&p.unions, id.index(), "union").map(|union| union.ty);
                same((ty(to)?, ty(from)?), "copies between unions of different types")
            }
            Op::CopyStack(to, from) => {
                let ty = |id: StackId| get(&p.stacks, id.index(), "stack").map(|s| (s.ty, s.size));
                same((ty(to)?, ty(from)?), "copies between stacks of different types")
            }
            Op::CopyUnionStack(to, from) => {
                let stack = |id: UnionStackId| get(&p.union_stacks, id.index(), "union stack");
                let ty = |id| stack(id).map(|s| (s.ty, s.size));
                same(
                    (ty(to)?, ty(from)?),
                    "copies between union stacks of different types",
                )
            }
            Op::Push(stack, _) | Op::Pop(stack, _) => get(&p.stacks, stack.index(), "stack").map(|_| ()),
            Op::PushUnion(stack, _) | Op::PopUnion(stack, _) => {
                get(&p.union_stacks, stack.index(), "union stack").map(|_| ())
            }
            Op::Jump(_) | Op::MarkToDrop | Op::Exit => Ok(()),
            Op::JumpUnless(condition, _) | Op::Assert(condition) => {
                self.bool("the condition", condition, scope)
            }
            Op::Count(counter, index) => self.count(counter, index, scope),
            Op::Meter {
                meter,
                index,
                result,
                colour,
            } => self.measure(meter, index, (result, colour), scope),
            Op::RegisterRead(place, register, index) => self.read_register(place, register, index, scope),
            Op::RegisterWrite(register, index, value) => self.write_register(register, index, value, scope),
            Op::Hash {
                calculation,
                result,
                base,
                max,
            } => {
                get(&p.calculations, calculation.index(), "calculation")?;
                self.hash(result, base, max, scope)
            }
            Op::Random(place, low, high) => self.random(place, low, high, scope),
            Op::Digest(digest) => get(&p.digests, digest.index(), "digest").map(|_| ()),
            Op::CloneIngress(session, list) | Op::CloneEgress(session, list) => {
                self.bits("the session", session, scope)?;
                self.field_list(list)
            }
            Op::Resubmit(list) | Op::Recirculate(list) => self.field_list(list),
            Op::Truncate(bytes) => self.bits("the length", bytes, scope).map(|_| ()),
            Op::Log(ref text, ref arguments) => self.log(text, arguments, scope),
            Op::Extern(function, place, ref arguments) => self.call(function, place, arguments, scope),
        }
    }

    fn count(&self, counter: CounterId, index: ExprId, scope: Scope) -> CheckResult {
        let counter = get(&self.program.counters, counter.index(), "counter")?;
        if counter.table.is_some() {
            return other("counts by number in a direct counter");
        }
        self.bits("the index", index, scope).map(|_| ())
    }

    fn measure(
        &self,
        meter: MeterId,
        index: ExprId,
        (result, colour): (Place, Option<ExprId>),
        scope: Scope,
    ) -> CheckResult {
        let meter = get(&self.program.meters, meter.index(), "meter")?;
        if meter.table.is_some() {
            return other("measures by number in a direct meter");
        }
        self.bits("the index", index, scope)?;
        self.place(result, false, scope)?;
        colour.map_or(Ok(()), |colour| {
            self.bits("the colour", colour, scope).map(|_| ())
        })
    }

    fn read_register(&self, place: Place, register: RegisterId, index: ExprId, scope: Scope) -> CheckResult {
        let register = get(&self.program.registers, register.index(), "register")?;
        self.bits("the index", index, scope)?;
        if self.place(place, false, scope)? == register.width {
            return Ok(());
        }
        let name = &register.identity.name;
        other(format!("register {name:?} has cells of another width"))
    }

    fn write_register(
        &self,
        register: RegisterId,
        index: ExprId,
        value: ExprId,
        scope: Scope,
    ) -> CheckResult {
        let register = get(&self.program.registers, register.index(), "register")?;
        self.bits("the index", index, scope)?;
        self.wants("the value", value, register.width, scope)
    }

    fn hash(&self, result: Place, base: ExprId, max: Option<ExprId>, scope: Scope) -> CheckResult {
        self.place(result, false, scope)?;
        within("bits of the base", self.bits("the base", base, scope)?, 64u16)?;
        max.map_or(Ok(()), |max| {
            within("bits of the number", self.bits("the number", max, scope)?, 64u16)
        })
    }

    fn random(&self, place: Place, low: ExprId, high: ExprId, scope: Scope) -> CheckResult {
        let width = self.place(place, false, scope)?;
        within("bits of a random number", width, 64u16)?;
        self.wants("the lowest", low, width, scope)?;
        self.wants("the highest", high, width, scope)
    }

    fn log(&self, text: &str, arguments: &[ExprId], scope: Scope) -> CheckResult {
        within("bytes of a text", text.len(), limits::NAME)?;
        within("arguments", arguments.len(), limits::KEYS)?;
        arguments
            .iter()
            .try_for_each(|argument| self.used(*argument, scope).map(|_| ()))
    }

    fn call(
        &self,
        function: ExternFunctionId,
        place: Place,
        arguments: &[ExprId],
        scope: Scope,
    ) -> CheckResult {
        let function = get(
            &self.program.extern_functions,
            function.index(),
            "extern function",
        )?;
        if self.place(place, false, scope)? != function.result || arguments.len() != function.arguments.len()
        {
            return other(format!("does not call {:?} as that is", function.name));
        }
        arguments
            .iter()
            .zip(&function.arguments)
            .try_for_each(|(argument, width)| self.wants("an argument", *argument, *width, scope))
    }

    /// Checks that an expression is bits of this width.
    pub(super) fn wants(&self, what: &'static str, id: ExprId, width: u16, scope: Scope) -> CheckResult {
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
    pub(super) fn plain(&self, id: ExprId) -> CheckResult<Type> {
        self.used(id, Scope::Control)
    }
}

/// Checks that both are the same; `problem` says what is wrong otherwise.
fn same<T: PartialEq>((one, another): (T, T), problem: &str) -> CheckResult {
    if one == another { Ok(()) } else { other(problem) }
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
