//! Headers, stacks, unions, their layout, names, counts.

use super::{At, CheckError, CheckResult, Problem, get, other, within};
use crate::bits::Bits;
use crate::header::{HeaderType, Membership, Role};
use crate::ids::FieldId;
use crate::layout::layout;
use crate::limits;
use crate::program::Program;

/// Checks all elements without behaviour. Returns, for each header instance, the stack or union to which it
/// belongs.
pub(super) fn check(program: &Program) -> Result<Vec<Membership>, CheckError> {
    counts(program).at(|| "program".to_owned())?;
    for ty in &program.header_types {
        header_type(ty).at(|| format!("header type {:?}", ty.name))?;
    }
    headers(program)?;
    for stack in &program.stacks {
        elements(&stack.name, stack.size).at(|| format!("stack {:?}", stack.name))?;
    }
    for stack in &program.union_stacks {
        elements(&stack.name, stack.size).at(|| format!("union stack {:?}", stack.name))?;
    }
    let memberships = program
        .memberships()
        .or_else(|misplaced| other(misplaced.to_string()))
        .at(|| "stacks and unions".to_owned())?;
    placed(program).at(|| "layout".to_owned())?;
    for (role, field) in &program.standard.roles {
        self::role(program, *role, *field).at(|| format!("standard metadata {:?}", role.name()))?;
    }
    for constant in &program.constants {
        wide_constant(constant).at(|| "constants".to_owned())?;
    }
    Ok(memberships)
}

fn headers(program: &Program) -> Result<(), CheckError> {
    let mut headers_began = false;
    for header in &program.headers {
        let place = || format!("header {:?}", header.name);
        name(&header.name).at(place)?;
        get(&program.header_types, header.ty.index(), "header type").at(place)?;
        headers_began |= !header.metadata;
        if header.metadata && headers_began {
            return other("metadata stands behind headers").at(place);
        }
    }
    Ok(())
}

/// Checks name and size of a stack.
fn elements(stack: &str, size: u16) -> CheckResult {
    if size == 0 {
        return other("has no elements");
    }
    name(stack)
}

/// Checks the field that holds a part of the standard metadata.
fn role(program: &Program, role: Role, field: FieldId) -> CheckResult {
    let field = get(&program.fields, field.index(), "field")?;
    if !program.headers[field.header.index()].metadata {
        return other("is no metadata");
    }
    if field.width > 64 {
        return other("is wider than 64 bits");
    }
    let roles = program.standard.roles.iter();
    if roles.filter(|(other, _)| *other == role).count() > 1 {
        return other("is there twice");
    }
    Ok(())
}

fn wide_constant(constant: &Bits) -> CheckResult {
    within("bits", constant.width(), limits::WIDTH)?;
    if constant.width() <= 64 || !constant.is_canonical() {
        return other("a wide constant is not in its normal form");
    }
    Ok(())
}

fn counts(p: &Program) -> CheckResult {
    name(&p.name)?;
    let states = p.parser.states.len();
    for (what, count) in [
        ("header types", p.header_types.len()),
        ("headers", p.headers.len()),
        ("fields", p.fields.len()),
        ("stacks", p.stacks.len()),
        ("union types", p.union_types.len()),
        ("unions", p.unions.len()),
        ("union stacks", p.union_stacks.len()),
        ("roles", p.standard.roles.len()),
        ("errors", p.errors.len()),
        ("constants", p.constants.len()),
        ("parser states", states),
        ("value sets", p.value_sets.len()),
        ("blocks of ingress", p.ingress.blocks.len()),
        ("blocks of egress", p.egress.blocks.len()),
        ("emits", p.deparser.emits.len()),
        ("checksums", p.checksums.len()),
        ("actions", p.actions.len()),
        ("tables", p.tables.len()),
        ("action profiles", p.profiles.len()),
        ("counters", p.counters.len()),
        ("meters", p.meters.len()),
        ("registers", p.registers.len()),
        ("calculations", p.calculations.len()),
        ("digests", p.digests.len()),
        ("field lists", p.field_lists.len()),
        ("extern functions", p.extern_functions.len()),
        ("controller headers", p.controller_headers.len()),
    ] {
        within(what, count, limits::ELEMENTS)?;
    }
    within("nodes of expressions", p.exprs.len(), limits::EXPRESSIONS)
}

/// Checks that a name is short enough.
pub(super) fn name(name: &str) -> CheckResult {
    within("bytes of a name", name.len(), limits::NAME)
}

fn header_type(ty: &HeaderType) -> CheckResult {
    name(&ty.name)?;
    within("fields", ty.fields.len(), limits::ELEMENTS)?;
    for field in &ty.fields {
        name(&field.name)?;
        within("bits of a field", field.width, limits::WIDTH)?;
        if field.width == 0 {
            return other(format!("field {:?} has no bits", field.name));
        }
    }
    if ty.fields.iter().filter(|field| field.variable).count() > 1 {
        return other("has more than one variable field");
    }
    Ok(())
}

fn placed(program: &Program) -> CheckResult {
    let Some(layout) = layout(&program.header_types, &program.headers) else {
        return other("is larger than numbers are");
    };
    within(
        "bytes of the packet header vector",
        layout.phv.bytes,
        limits::PHV_BYTES,
    )?;
    let headers = program
        .headers
        .iter()
        .map(|header| (header.first_field, header.offset));
    if layout.phv != program.phv
        || layout.fields != program.fields
        || !headers.eq(layout.headers.iter().copied())
    {
        return Err(Problem::Other(
            "is not the one that follows from the types".to_owned(),
        ));
    }
    Ok(())
}
