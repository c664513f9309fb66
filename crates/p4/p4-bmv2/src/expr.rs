//! Expressions.
//!
//! BMv2 computes with whole numbers without bounds and cuts only where a value is written; the compiler
//! writes masks (`& 0xff`) and `two_comp_mod` where P4 wraps around. The form that engines take has widths.
//! Two functions translate: [`Loader::exact`] gives bits in which nothing is lost, signed if the number can
//! be negative; [`Loader::low`] gives the low bits of a number, which is all that is wanted under a mask and
//! at an assignment, and lets most operators work at the width of their result. So `(a + b) & 0xff` becomes
//! one 8-bit addition.

mod arithmetic;

use crate::error::{Read, Within, unsupported, wrong};
use crate::json::Json;
use crate::load::Loader;
use crate::number::Number;
use p4_ir::{
    Binary, Bits, ConstantId, Expr, ExprId, ExprKind, FieldId, HeaderRef, HeaderTypeId, Place, StackId, Type,
    Unary, UnionRef, UnionStackId, limits,
};

/// Levels of one expression. More would not pass the checker.
const DEPTH: usize = limits::EXPRESSION_DEPTH as usize;

/// A number: bits, and whether the highest is a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Num {
    pub id: ExprId,
    pub width: u16,
    pub signed: bool,
}

/// Anything that an expression can be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    Num(Num),
    Bool(ExprId),
    Variable(Place),
    Header(HeaderRef),
    Union(UnionRef),
    Stack(StackId),
    UnionStack(UnionStackId),
}

/// An expression as it stands in the file, without its wrapping.
enum Form<'j> {
    Op(&'j str, &'j Json),
    Leaf(&'j str, &'j Json),
}

/// Takes off the wrappings: `{"type": "expression", "value": {...}}`, any number of times.
fn form(mut json: &Json) -> Read<Form<'_>> {
    for _ in 0..DEPTH {
        if let Some(op) = json.get("op").text() {
            return Ok(Form::Op(op, json));
        }
        match json.get("type").text() {
            Some("expression") => json = json.get("value"),
            Some(kind) => return Ok(Form::Leaf(kind, json.get("value"))),
            None => return wrong("no expression"),
        }
    }
    wrong("nested too deep")
}

impl<'a> Loader<'a> {
    /// A node, the one that is there if there is one.
    pub(crate) fn node(&mut self, kind: ExprKind, ty: Type) -> Read<ExprId> {
        let expr = Expr { kind, ty };
        if let Some(id) = self.known.get(&expr) {
            return Ok(*id);
        }
        let at = self.program.exprs.len();
        if at >= limits::EXPRESSIONS {
            return wrong("there are too many expressions");
        }
        let id = ExprId(at as u32);
        self.program.exprs.push(expr);
        self.known.insert(expr, id);
        Ok(id)
    }

    /// A node of bits.
    fn bits(&mut self, kind: ExprKind, width: u32) -> Read<ExprId> {
        match u16::try_from(width) {
            Ok(width @ 1..) if u32::from(width) <= limits::WIDTH => self.node(kind, Type::Bits(width)),
            _ => wrong(format!(
                "a value of {width} bits, where {} are the most",
                limits::WIDTH
            )),
        }
    }

    /// A constant.
    pub(crate) fn constant(&mut self, bits: &Bits) -> Read<ExprId> {
        let ty = Type::Bits(bits.width());
        if bits.width() <= 64 {
            return self.node(ExprKind::Constant(bits.to_u64().unwrap_or(0)), ty);
        }
        let id = match self.constants.get(bits) {
            Some(id) => *id,
            None => {
                let id = ConstantId(self.program.constants.len() as u32);
                self.program.constants.push(bits.clone());
                self.constants.insert(bits.clone(), id);
                id
            }
        };
        self.node(ExprKind::WideConstant(id), ty)
    }

    fn unary(&mut self, op: Unary, a: ExprId, width: u32) -> Read<ExprId> {
        self.bits(ExprKind::Unary(op, a), width)
    }

    fn binary(&mut self, op: Binary, a: ExprId, b: ExprId, width: u16) -> Read<ExprId> {
        self.bits(ExprKind::Binary(op, a, b), width.into())
    }

    fn compare(&mut self, op: Binary, a: ExprId, b: ExprId) -> Read<ExprId> {
        self.node(ExprKind::Binary(op, a, b), Type::Bool)
    }

    /// The low bits of a number.
    pub(crate) fn cast(&mut self, num: Num, width: u16) -> Read<ExprId> {
        if num.width == width {
            return Ok(num.id);
        }
        if let ExprKind::Constant(value) = self.program.exprs[num.id.index()].kind {
            let negative = num.signed && value >> (num.width - 1) & 1 == 1;
            let value = u128::from(value);
            let value = if negative {
                value | u128::MAX << num.width
            } else {
                value
            };
            if width <= 128 || !negative {
                return self.constant(&Bits::from_u128(width, value));
            }
        }
        let op = match (num.width < width, num.signed) {
            (false, _) => Unary::Truncate,
            (true, false) => Unary::ZeroExtend,
            (true, true) => Unary::SignExtend,
        };
        self.unary(op, num.id, width.into())
    }

    /// Two numbers in a form in which both can be compared or added bit by bit: the nodes, the width, signed
    /// or not.
    fn alike(&mut self, a: Num, b: Num) -> Read<(ExprId, ExprId, u16, bool)> {
        let signed = a.signed || b.signed;
        let needs = |num: Num| num.width + u16::from(signed && !num.signed);
        let width = needs(a).max(needs(b));
        Ok((self.cast(a, width)?, self.cast(b, width)?, width, signed))
    }

    /// Goes one level down.
    fn deeper<T>(&mut self, f: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        if self.depth >= DEPTH {
            return wrong("an expression is nested too deep");
        }
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        result
    }

    /// Any expression.
    pub(crate) fn value(&mut self, json: &Json) -> Read<Value> {
        self.deeper(|loader| match form(json)? {
            Form::Leaf(kind, value) => loader.leaf(kind, value).within(|| kind.to_owned()),
            Form::Op(op, json) => loader.operator(op, json).within(|| format!("operator {op:?}")),
        })
    }

    /// A number without loss.
    pub(crate) fn exact(&mut self, json: &Json) -> Read<Num> {
        match self.value(json)? {
            Value::Num(num) => Ok(num),
            _ => wrong("is no number"),
        }
    }

    /// A number that is taken as unsigned: a session, an index, a length.
    pub(crate) fn unsigned(&mut self, json: &Json) -> Read<ExprId> {
        self.exact(json).map(|num| num.id)
    }

    /// A number that is taken as unsigned, of at most 64 bits.
    pub(crate) fn small(&mut self, json: &Json) -> Read<ExprId> {
        let num = self.exact(json)?;
        if num.width > 64 {
            self.cast(num, 64)
        } else {
            Ok(num.id)
        }
    }

    /// A condition.
    pub(crate) fn condition(&mut self, json: &Json) -> Read<ExprId> {
        match self.value(json)? {
            Value::Bool(id) => Ok(id),
            Value::Num(num) => self.truth(num),
            _ => wrong("is neither true nor false"),
        }
    }

    fn truth(&mut self, num: Num) -> Read<ExprId> {
        if let ExprKind::Unary(Unary::ToBits, inner) = self.program.exprs[num.id.index()].kind {
            return Ok(inner);
        }
        self.node(ExprKind::Unary(Unary::ToBool, num.id), Type::Bool)
    }

    fn bit(&mut self, bool: ExprId) -> Read<Num> {
        let inner = match self.program.exprs[bool.index()].kind {
            ExprKind::Unary(Unary::ToBool, inner)
                if self.program.exprs[inner.index()].ty == Type::Bits(1) =>
            {
                inner
            }
            _ => self.node(ExprKind::Unary(Unary::ToBits, bool), Type::Bits(1))?,
        };
        Ok(Num {
            id: inner,
            width: 1,
            signed: false,
        })
    }

    fn number(&mut self, number: &Number) -> Read<Num> {
        let width = (number.bits() + u16::from(number.negative)).max(1);
        let id = self.constant(&number.low(width))?;
        Ok(Num {
            id,
            width,
            signed: number.negative,
        })
    }

    /// A reference or a constant.
    fn leaf(&mut self, kind: &str, value: &Json) -> Read<Value> {
        let text = || value.text().map_or_else(|| wrong("no name"), Ok);
        let num = |id, width, signed| Ok(Value::Num(Num { id, width, signed }));
        match kind {
            "hexstr" => self.number(&Number::parse(text()?)?).map(Value::Num),
            "bool" => match value.bool() {
                Some(value) => self.node(ExprKind::Bool(value), Type::Bool).map(Value::Bool),
                None => wrong("neither true nor false"),
            },
            "field" => match self.variable(value) {
                Some(place) => Ok(Value::Variable(place)),
                None => self.field_value(value).map(Value::Num),
            },
            "local" if self.ahead.is_some() => self.field_ahead(value).map(Value::Num),
            "local" | "runtime_data" => {
                let at = value.number().and_then(|at| u16::try_from(at).ok());
                let Some((at, width)) = at.and_then(|at| {
                    self.parameters
                        .get(usize::from(at))
                        .map(|parameter| (at, parameter.width))
                }) else {
                    return wrong("there is no such parameter");
                };
                let id = self.bits(ExprKind::Parameter(at), width.into())?;
                num(id, width, false)
            }
            "header" => self
                .header_names
                .get(text()?)
                .map(|id| Value::Header(HeaderRef::Header(id))),
            "header_stack" => match self.stack_names.find(text()?) {
                Some(id) => Ok(Value::Stack(id)),
                None => self.union_stack_names.get(text()?).map(Value::UnionStack),
            },
            "header_union" => self
                .union_names
                .get(text()?)
                .map(|id| Value::Union(UnionRef::Union(id))),
            "header_union_stack" => self.union_stack_names.get(text()?).map(Value::UnionStack),
            "stack_field" => {
                let (header, member) = self.stack_field(value)?;
                self.member_value(header, member).map(Value::Num)
            }
            "union_stack_field" => {
                let (header, member) = self.union_stack_field(value)?;
                self.member_value(header, member).map(Value::Num)
            }
            "lookahead" => {
                let parts = value.elements().unwrap_or_default();
                let part = |at: usize| {
                    parts
                        .get(at)
                        .and_then(Json::number)
                        .and_then(|n| u16::try_from(n).ok())
                };
                let (Some(offset), Some(width)) = (part(0), part(1)) else {
                    return wrong("no pair of numbers");
                };
                let id = self.bits(ExprKind::Lookahead { offset }, width.into())?;
                num(id, width, false)
            }
            "register" => unsupported("a register inside an expression"),
            _ => unsupported(format!("a value of type {kind:?}")),
        }
    }

    /// A field of the header that is to be extracted, by its position. Only fields before the variable one
    /// are in place.
    fn field_ahead(&mut self, value: &Json) -> Read<Num> {
        let at = value.number().and_then(|at| usize::try_from(at).ok());
        let fields = self
            .ahead
            .map_or(&[][..], |ty| &self.program.header_types[ty.index()].fields);
        let Some((at, field)) = at.and_then(|at| Some((at, fields.get(at)?))) else {
            return wrong("there is no such field");
        };
        if fields[..=at].iter().any(|field| field.variable) {
            return wrong("a length that depends on what follows it");
        }
        let (width, signed) = (field.width, field.signed);
        let bits = fields[..at]
            .iter()
            .map(|field| u32::from(field.width))
            .sum::<u32>();
        let Ok(offset) = u16::try_from(bits) else {
            return wrong("a field too far ahead");
        };
        let id = self.bits(ExprKind::Lookahead { offset }, width.into())?;
        Ok(Num { id, width, signed })
    }

    fn variable(&self, pair: &Json) -> Option<Place> {
        let field = self.field(pair).ok()?;
        self.program.fields[field.index()]
            .variable
            .then_some(Place::Field(field))
    }

    fn field_value(&mut self, pair: &Json) -> Read<Num> {
        let parts = pair.elements().unwrap_or_default();
        if let [Json::Text(header), Json::Text(field)] = parts
            && field == "$valid$"
        {
            if let Some(union) = self.union_names.find(header.as_str()) {
                let valid = self.node(ExprKind::UnionValid(UnionRef::Union(union)), Type::Bool)?;
                return self.bit(valid);
            }
            let header = HeaderRef::Header(self.header_names.get(header.as_str())?);
            let valid = self.node(ExprKind::Valid(header), Type::Bool)?;
            return self.bit(valid);
        }
        let field = self.field(pair)?;
        self.read(field)
    }

    /// A field as a number.
    pub(crate) fn read(&mut self, field: FieldId) -> Read<Num> {
        let width = self.program.fields[field.index()].width;
        let signed = self.program.field_type(field).signed;
        let id = self.bits(ExprKind::Field(field), width.into())?;
        Ok(Num { id, width, signed })
    }

    /// A field of the last element of a stack.
    pub(crate) fn stack_field(&self, value: &Json) -> Read<(HeaderRef, u16)> {
        match value.elements() {
            Some([Json::Text(stack), Json::Text(field)]) => {
                let id = self.stack_names.get(stack.as_str())?;
                let member = self.member(self.program.stacks[id.index()].ty, field)?;
                Ok((HeaderRef::Last(id), member))
            }
            _ => wrong("no pair of names"),
        }
    }

    fn union_stack_field(&self, value: &Json) -> Read<(HeaderRef, u16)> {
        match value.elements() {
            Some([Json::Text(stack), Json::Text(member), Json::Text(field)]) => {
                let (id, at, ty) = self.union_member(stack, member)?;
                Ok((HeaderRef::UnionLast(id, at), self.member(ty, field)?))
            }
            _ => wrong("no three names"),
        }
    }

    /// A member of the elements of a union stack.
    pub(crate) fn union_member(&self, stack: &str, member: &str) -> Read<(UnionStackId, u16, HeaderTypeId)> {
        let id = self.union_stack_names.get(stack)?;
        let members = &self.program.union_types[self.program.union_stacks[id.index()].ty.index()].members;
        match members.iter().position(|(name, _)| name == member) {
            Some(at) => Ok((id, at as u16, members[at].1)),
            None => wrong(format!("there is no member {member:?}")),
        }
    }

    fn member_value(&mut self, header: HeaderRef, member: u16) -> Read<Num> {
        let field = self.program.type_of(header).fields.get(usize::from(member));
        let Some((width, signed)) = field.map(|field| (field.width, field.signed)) else {
            return wrong(format!("there is no field {member}"));
        };
        let id = match header {
            HeaderRef::Header(header) => self.bits(
                ExprKind::Field(self.program.field_of(header, member)),
                width.into(),
            ),
            _ => self.bits(ExprKind::Member(header, member), width.into()),
        };
        Ok(Num {
            id: id?,
            width,
            signed,
        })
    }

    fn operator(&mut self, op: &str, json: &Json) -> Read<Value> {
        let (left, right) = (json.get("left"), json.get("right"));
        match op {
            "+" | "-" | "*" | "/" | "%" | "<<" | ">>" | "&" | "|" | "^" | "~" | "two_comp_mod"
            | "usat_cast" | "sat_cast" => self.arithmetic(op, left, right).map(Value::Num),
            "==" | "!=" => {
                let equal = self.equal(left, right)?;
                if op == "==" {
                    Ok(Value::Bool(equal))
                } else {
                    self.not(equal).map(Value::Bool)
                }
            }
            "<" | ">=" => self.less(left, right, Binary::Less, op == ">="),
            "<=" | ">" => self.less(left, right, Binary::LessEqual, op == ">"),
            "and" | "or" => {
                let (a, b) = (self.condition(left)?, self.condition(right)?);
                let op = if op == "and" {
                    Binary::AndAlso
                } else {
                    Binary::OrElse
                };
                self.compare(op, a, b).map(Value::Bool)
            }
            "not" => {
                let a = self.condition(right)?;
                self.not(a).map(Value::Bool)
            }
            "d2b" => {
                let num = self.exact(right)?;
                self.truth(num).map(Value::Bool)
            }
            "b2d" => {
                let bool = self.condition(right)?;
                self.bit(bool).map(Value::Num)
            }
            "?" => self.choice(json),
            "valid" => match self.value(right)? {
                Value::Header(header) => self.node(ExprKind::Valid(header), Type::Bool).map(Value::Bool),
                _ => wrong("is no header"),
            },
            "valid_union" => match self.value(right)? {
                Value::Union(union) => self
                    .node(ExprKind::UnionValid(union), Type::Bool)
                    .map(Value::Bool),
                _ => wrong("is no header union"),
            },
            "last_stack_index" | "size_stack" => match self.value(right)? {
                Value::Stack(stack) if op == "size_stack" => {
                    self.node(ExprKind::NextIndex(stack), Type::Bits(32))
                }
                Value::Stack(stack) => self.node(ExprKind::LastIndex(stack), Type::Bits(32)),
                _ => unsupported("the index of anything but a header stack"),
            }
            .map(|id| {
                Value::Num(Num {
                    id,
                    width: 32,
                    signed: false,
                })
            }),
            "dereference_header_stack" | "dereference_union_stack" => {
                let (stack, index) = (self.value(left)?, self.small(right)?);
                match stack {
                    Value::Stack(stack) => Ok(Value::Header(self.element(stack, index))),
                    Value::UnionStack(stack) => Ok(Value::Union(UnionRef::Element(stack, index))),
                    _ => wrong("is no stack"),
                }
            }
            "access_field" => {
                let (header, member) = self.accessed(left, right)?;
                self.member_value(header, member).map(Value::Num)
            }
            "access_union_header" => {
                let (union, member) = (
                    self.value(left)?,
                    right.number().and_then(|n| u16::try_from(n).ok()),
                );
                let (Value::Union(union), Some(member)) = (union, member) else {
                    return wrong("is no member of a union");
                };
                self.member_of(union, member).map(Value::Header)
            }
            _ => unsupported("this operator"),
        }
    }

    /// An element of a stack; one known now if its number is.
    fn element(&self, stack: StackId, index: ExprId) -> HeaderRef {
        let of = &self.program.stacks[stack.index()];
        match self.program.exprs[index.index()].kind {
            ExprKind::Constant(at) if at < u64::from(of.size) => {
                HeaderRef::Header(p4_ir::HeaderId(of.first.0 + at as u16))
            }
            _ => HeaderRef::Element(stack, index),
        }
    }

    fn member_of(&self, union: UnionRef, member: u16) -> Read<HeaderRef> {
        let ty = match union {
            UnionRef::Union(id) => self.program.unions[id.index()].ty,
            UnionRef::Element(stack, _) => self.program.union_stacks[stack.index()].ty,
        };
        if usize::from(member) >= self.program.union_types[ty.index()].members.len() {
            return wrong(format!("there is no member {member}"));
        }
        Ok(match union {
            UnionRef::Union(id) => {
                HeaderRef::Header(p4_ir::HeaderId(self.program.unions[id.index()].first.0 + member))
            }
            UnionRef::Element(stack, index) => HeaderRef::UnionElement(stack, index, member),
        })
    }

    fn accessed(&mut self, left: &Json, right: &Json) -> Read<(HeaderRef, u16)> {
        let member = right.number().and_then(|number| u16::try_from(number).ok());
        match (self.value(left)?, member) {
            (Value::Header(header), Some(member)) => Ok((header, member)),
            _ => wrong("is no field of a header"),
        }
    }

    fn not(&mut self, bool: ExprId) -> Read<ExprId> {
        let expr = self.program.exprs[bool.index()];
        match expr.kind {
            ExprKind::Unary(Unary::Not, inner) => Ok(inner),
            ExprKind::Binary(Binary::Equal, a, b) => self.compare(Binary::NotEqual, a, b),
            _ => self.node(ExprKind::Unary(Unary::Not, bool), Type::Bool),
        }
    }

    fn equal(&mut self, left: &Json, right: &Json) -> Read<ExprId> {
        let (a, b) = (self.value(left)?, self.value(right)?);
        match (a, b) {
            (Value::Num(a), Value::Num(b)) => {
                let (a, b, _, _) = self.alike(a, b)?;
                self.compare(Binary::Equal, a, b)
            }
            (Value::Bool(a), Value::Bool(b)) => self.compare(Binary::Equal, a, b),
            (Value::Header(a), Value::Header(b)) => self.node(ExprKind::HeadersEqual(a, b), Type::Bool),
            (Value::Variable(a), Value::Variable(b)) => self.node(ExprKind::VariablesEqual(a, b), Type::Bool),
            (Value::Union(a), Value::Union(b)) => self.node(ExprKind::UnionsEqual(a, b), Type::Bool),
            (Value::Stack(a), Value::Stack(b)) => self.node(ExprKind::StacksEqual(a, b), Type::Bool),
            _ => wrong("compares what cannot be compared"),
        }
    }

    fn less(&mut self, left: &Json, right: &Json, op: Binary, inverted: bool) -> Read<Value> {
        let (a, b) = (self.exact(left)?, self.exact(right)?);
        let (a, b, _, signed) = self.alike(a, b)?;
        // `a >= b` is not `a < b`; `a > b` is not `a <= b`.
        let op = match (op, signed) {
            (Binary::Less, true) => Binary::LessSigned,
            (Binary::LessEqual, true) => Binary::LessEqualSigned,
            (op, _) => op,
        };
        let less = self.compare(op, a, b)?;
        if inverted {
            self.not(less).map(Value::Bool)
        } else {
            Ok(Value::Bool(less))
        }
    }

    fn choice(&mut self, json: &Json) -> Read<Value> {
        let condition = self.condition(json.get("cond"))?;
        let (a, b) = (self.value(json.get("left"))?, self.value(json.get("right"))?);
        match (a, b) {
            (Value::Num(a), Value::Num(b)) => {
                let (a, b, width, signed) = self.alike(a, b)?;
                let id = self.bits(ExprKind::Mux(condition, a, b), width.into())?;
                Ok(Value::Num(Num { id, width, signed }))
            }
            (Value::Bool(a), Value::Bool(b)) => self
                .node(ExprKind::Mux(condition, a, b), Type::Bool)
                .map(Value::Bool),
            _ => unsupported("a choice between headers"),
        }
    }

    /// A place to write to.
    pub(crate) fn place(&mut self, json: &Json) -> Read<Place> {
        match form(json)? {
            Form::Leaf("field", pair) => self.field(pair).map(Place::Field),
            Form::Leaf("stack_field", pair) => self
                .stack_field(pair)
                .map(|(header, member)| place(self, header, member)),
            Form::Op("access_field", json) => {
                let (header, member) = self.accessed(json.get("left"), json.get("right"))?;
                if usize::from(member) >= self.program.type_of(header).fields.len() {
                    return wrong(format!("there is no field {member}"));
                }
                Ok(place(self, header, member))
            }
            _ => wrong("is nothing that can be written to"),
        }
    }

    /// Width of a place.
    pub(crate) fn width(&self, place: Place) -> u16 {
        match place {
            Place::Field(field) => self.program.fields[field.index()].width,
            Place::Member(header, member) => self.program.type_of(header).fields[usize::from(member)].width,
        }
    }

    /// Is a place a variable field?
    pub(crate) fn is_variable(&self, place: Place) -> bool {
        match place {
            Place::Field(field) => self.program.fields[field.index()].variable,
            Place::Member(header, member) => {
                self.program.type_of(header).fields[usize::from(member)].variable
            }
        }
    }
}

fn place(loader: &Loader, header: HeaderRef, member: u16) -> Place {
    match header {
        HeaderRef::Header(header) => Place::Field(loader.program.field_of(header, member)),
        _ => Place::Member(header, member),
    }
}

/// Is it true or false rather than a number?
pub(crate) fn is_condition(json: &Json) -> bool {
    match form(json) {
        Ok(Form::Leaf(kind, _)) => kind == "bool",
        Ok(Form::Op(op, _)) => matches!(
            op,
            "==" | "!=" | "<" | "<=" | ">" | ">=" | "and" | "or" | "not" | "d2b" | "valid" | "valid_union"
        ),
        Err(_) => false,
    }
}

/// A constant as it is written.
pub(crate) fn constant(json: &Json) -> Read<Option<Number>> {
    match form(json)? {
        Form::Leaf("hexstr", value) => match value.text() {
            Some(text) => Number::parse(text).map(Some),
            None => wrong("no number"),
        },
        _ => Ok(None),
    }
}
