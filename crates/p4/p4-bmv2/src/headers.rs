//! Header types, instances, stacks, unions, standard metadata.
//!
//! BMv2 numbers instances as it likes. Here metadata comes first, then headers alone, then elements of stacks
//! and members of unions side by side.

use crate::error::{Members, Read, Within, unsupported, wrong};
use crate::json::Json;
use crate::load::Loader;
use crate::names::next;
use p4_ir::{
    FieldId, FieldType, Header, HeaderId, HeaderType, HeaderTypeId, Role, Stack, StackId, StandardMetadata,
    Union, UnionId, UnionStack, UnionStackId, UnionType, UnionTypeId,
};
use std::collections::{HashMap, HashSet};

impl<'a> Loader<'a> {
    /// Reads all that has to do with headers.
    pub(crate) fn headers(&mut self, root: &'a Json) -> Read<()> {
        for ty in root.list("header_types")? {
            let name = ty.string("name").within(|| "header_types".to_owned())?;
            self.header_type(ty, name)
                .within(|| format!("header_types {name:?}"))?;
        }
        for ty in root.list("header_union_types")? {
            let name = ty.string("name").within(|| "header_union_types".to_owned())?;
            self.union_type(ty, name)
                .within(|| format!("header_union_types {name:?}"))?;
        }
        self.instances(root)?;
        if !self.program.place() {
            return wrong("there are too many fields");
        }
        Ok(())
    }

    fn header_type(&mut self, ty: &'a Json, name: &str) -> Read<()> {
        let mut fields = Vec::new();
        let max_length = ty.get("max_length").number();
        for field in ty.list("fields")? {
            fields.push(field_type(field)?);
        }
        let fixed = fields.iter().map(|field| i64::from(field.width)).sum::<i64>();
        if let Some(variable) = fields.iter_mut().find(|field| field.variable) {
            let Some(bytes) = max_length else {
                return wrong("has a variable field but no \"max_length\"");
            };
            match u16::try_from(bytes.saturating_mul(8) - fixed) {
                Ok(width) => variable.width = width,
                Err(_) => return wrong(format!("\"max_length\" of {bytes} bytes does not fit its fields")),
            }
        }
        let id = next(HeaderTypeId::at(self.program.header_types.len()), "header type")?;
        self.header_types.add(name.to_owned(), id)?;
        for (at, field) in fields.iter().enumerate() {
            self.members.insert((id, field.name.clone()), at as u16);
        }
        if self.members.len() > p4_ir::limits::ELEMENTS * 4 {
            return wrong("there are too many fields");
        }
        if !ty.get("length_exp").is_null() {
            self.lengths.insert(id, ty.get("length_exp"));
        }
        self.program.header_types.push(HeaderType {
            name: name.to_owned(),
            fields,
        });
        Ok(())
    }

    fn union_type(&mut self, ty: &Json, name: &str) -> Read<()> {
        let mut members = Vec::new();
        for member in ty.list("headers")? {
            let parts = member.elements().unwrap_or_default();
            let (Some(name), Some(ty)) = (
                parts.first().and_then(Json::text),
                parts.get(1).and_then(Json::text),
            ) else {
                return wrong("a member is no pair of name and type");
            };
            members.push((name.to_owned(), self.header_types.get(ty)?));
        }
        let id = next(
            UnionTypeId::at(self.program.union_types.len()),
            "header union type",
        )?;
        self.union_types.add(name.to_owned(), id)?;
        self.program.union_types.push(UnionType {
            name: name.to_owned(),
            members,
        });
        Ok(())
    }

    fn instances(&mut self, root: &'a Json) -> Read<()> {
        let all = root.list("headers")?;
        let mut by_number = HashMap::new();
        for (at, header) in all.iter().enumerate() {
            let name = header.string("name").within(|| format!("headers[{at}]"))?;
            let number = header.size::<i64>("id").within(|| format!("headers {name:?}"))?;
            if by_number.insert(number, header).is_some() {
                return wrong(format!("there are two with number {number}"))
                    .within(|| format!("headers {name:?}"));
            }
        }
        let inside = self.inside(root)?;
        let alone = |header: &&Json| !inside.contains_key(&header.get("id").number().unwrap_or(-1));
        let metadata = |header: &&Json| header.get("metadata").bool() == Some(true);
        for header in all.iter().filter(|header| metadata(header) && alone(header)) {
            self.instance(header)?;
        }
        for header in all.iter().filter(|header| !metadata(header) && alone(header)) {
            self.instance(header)?;
        }
        self.stacks(root, &by_number)?;
        self.unions(root, &by_number)
    }

    /// The numbers of instances that belong to stacks and unions, and to which.
    fn inside(&self, root: &'a Json) -> Read<HashMap<i64, &'a str>> {
        let mut inside = HashMap::new();
        for kind in ["header_stacks", "header_unions"] {
            for group in root.list(kind)? {
                let name = group.string("name").within(|| kind.to_owned())?;
                for number in group.list("header_ids").within(|| format!("{kind} {name:?}"))? {
                    let twice = inside.insert(number.number().unwrap_or(-1), name).is_some();
                    if twice {
                        return wrong("an element belongs to something else, too")
                            .within(|| format!("{kind} {name:?}"));
                    }
                }
            }
        }
        Ok(inside)
    }

    fn instance(&mut self, header: &Json) -> Read<HeaderId> {
        let name = header.string("name")?;
        let mut add = || {
            let ty = self.header_types.get(header.string("header_type")?)?;
            let id = next(HeaderId::at(self.program.headers.len()), "header")?;
            self.header_names.add(name.to_owned(), id)?;
            let metadata = header.flag("metadata")?;
            let name = name.to_owned();
            self.program.headers.push(Header {
                name,
                ty,
                metadata,
                first_field: FieldId(0),
                offset: 0,
            });
            Ok(id)
        };
        add().within(|| format!("headers {name:?}"))
    }

    fn stacks(&mut self, root: &'a Json, by_number: &HashMap<i64, &'a Json>) -> Read<()> {
        for stack in root.list("header_stacks")? {
            let name = stack.string("name").within(|| "header_stacks".to_owned())?;
            let mut add = || {
                let ty = self.header_types.get(stack.string("header_type")?)?;
                let (first, size) = self.elements(stack, by_number)?;
                let id = next(StackId::at(self.program.stacks.len()), "header stack")?;
                self.stack_names.add(name.to_owned(), id)?;
                self.program.stacks.push(Stack {
                    name: name.to_owned(),
                    ty,
                    first,
                    size,
                });
                Ok(())
            };
            add().within(|| format!("header_stacks {name:?}"))?;
        }
        Ok(())
    }

    fn elements(&mut self, group: &Json, by_number: &HashMap<i64, &'a Json>) -> Read<(HeaderId, u16)> {
        let first = next(HeaderId::at(self.program.headers.len()), "header")?;
        let numbers = group.list("header_ids")?;
        for number in numbers {
            let Some(header) = number.number().and_then(|number| by_number.get(&number)) else {
                return wrong("\"header_ids\" has a number that no header has");
            };
            self.instance(header)?;
        }
        Ok((first, next(u16::try_from(numbers.len()).ok(), "element")?))
    }

    /// Adds a stack with its unions, which `take` finds by number.
    fn union_stack(
        &mut self,
        name: &str,
        stack: &'a Json,
        by_number: &HashMap<i64, &'a Json>,
        mut take: impl FnMut(i64) -> Option<&'a Json>,
    ) -> Read<()> {
        let ty = self.union_types.get(stack.string("union_type")?)?;
        let first = next(UnionId::at(self.program.unions.len()), "header union")?;
        let numbers = stack.list("header_union_ids")?;
        for number in numbers {
            let Some(union) = take(number.number().unwrap_or(-1)) else {
                return wrong("\"header_union_ids\" has a number that no union has, or that is taken");
            };
            self.union(union, by_number)?;
        }
        let size = next(u16::try_from(numbers.len()).ok(), "element")?;
        let id = next(
            UnionStackId::at(self.program.union_stacks.len()),
            "header union stack",
        )?;
        self.union_stack_names.add(name.to_owned(), id)?;
        self.program.union_stacks.push(UnionStack {
            name: name.to_owned(),
            ty,
            first,
            size,
        });
        Ok(())
    }

    fn unions(&mut self, root: &'a Json, by_number: &HashMap<i64, &'a Json>) -> Read<()> {
        let all = root.list("header_unions")?;
        let numbered = numbered(all)?;
        let stacks = root.list("header_union_stacks")?;
        let mut done = HashSet::new();
        for stack in stacks {
            let name = stack.string("name").within(|| "header_union_stacks".to_owned())?;
            let take = |number| numbered.get(&number).copied().filter(|_| done.insert(number));
            self.union_stack(name, stack, by_number, take)
                .within(|| format!("header_union_stacks {name:?}"))?;
        }
        for union in all
            .iter()
            .filter(|union| !done.contains(&union.get("id").number().unwrap_or(-1)))
        {
            let name = union.string("name")?;
            self.union(union, by_number)
                .within(|| format!("header_unions {name:?}"))?;
        }
        Ok(())
    }

    fn union(&mut self, union: &Json, by_number: &HashMap<i64, &'a Json>) -> Read<()> {
        let name = union.string("name")?;
        let ty = self.union_types.get(union.string("union_type")?)?;
        let (first, _) = self.elements(union, by_number)?;
        let id = next(UnionId::at(self.program.unions.len()), "header union")?;
        self.union_names.add(name.to_owned(), id)?;
        self.program.unions.push(Union {
            name: name.to_owned(),
            ty,
            first,
        });
        Ok(())
    }

    /// The fields that the architecture knows: by their alias, else by their own names.
    pub(crate) fn standard_metadata(&mut self, root: &Json) -> Read<()> {
        let mut aliases = HashMap::new();
        for alias in root.list("field_aliases")? {
            let parts = alias.elements().unwrap_or_default();
            let (Some(name), Some(field)) = (parts.first().and_then(Json::text), parts.get(1)) else {
                return wrong("an alias is no pair of name and field").within(|| "field_aliases".to_owned());
            };
            aliases.insert(name, field);
        }
        let mut roles = Vec::new();
        for role in Role::ALL {
            let field = role.name().split('.').next_back().unwrap_or_default();
            for header in ["standard_metadata", "intrinsic_metadata", "queueing_metadata"] {
                let found = match aliases.get(format!("{header}.{field}").as_str()) {
                    Some(alias) => self
                        .field(alias)
                        .within(|| format!("field_aliases \"{header}.{field}\""))
                        .map(Some)?,
                    None => self.field_named(header, field),
                };
                if let Some(found) = found {
                    roles.push((*role, found));
                    break;
                }
            }
        }
        self.program.standard = StandardMetadata { roles };
        Ok(())
    }

    /// A field by the names of its header and its own.
    pub(crate) fn field_named(&self, header: &str, field: &str) -> Option<FieldId> {
        let header = self.header_names.find(header)?;
        let ty = self.program.headers[header.index()].ty;
        let member = *self.members.get(&(ty, field.to_owned()))?;
        Some(self.program.field_of(header, member))
    }

    /// A field by a pair of names.
    pub(crate) fn field(&self, pair: &Json) -> Read<FieldId> {
        let parts = pair.elements().unwrap_or_default();
        let (Some(header), Some(field)) = (
            parts.first().and_then(Json::text),
            parts.get(1).and_then(Json::text),
        ) else {
            return wrong("a field is no pair of names");
        };
        let ty = self.program.headers[self.header_names.get(header)?.index()].ty;
        match self.field_named(header, field) {
            Some(found) => Ok(found),
            None if field.starts_with('$') => unsupported(format!("the hidden field {field:?}")),
            None => {
                let ty = &self.program.header_types[ty.index()].name;
                wrong(format!("header {header:?} of type {ty:?} has no field {field:?}"))
            }
        }
    }

    /// The position of a field in a type.
    pub(crate) fn member(&self, ty: HeaderTypeId, field: &str) -> Read<u16> {
        match self.members.get(&(ty, field.to_owned())) {
            Some(member) => Ok(*member),
            None => wrong(format!("there is no field {field:?}")),
        }
    }
}

/// A field of a header type. The width of a variable one is not known here, and 0.
fn field_type(field: &Json) -> Read<FieldType> {
    let parts = field.elements().unwrap_or_default();
    let (Some(name), Some(width)) = (parts.first().and_then(Json::text), parts.get(1)) else {
        return wrong("a field is no pair of name and width");
    };
    let variable = width.text() == Some("*");
    let bits = if variable {
        Some(0)
    } else {
        width.number().and_then(|width| u16::try_from(width).ok())
    };
    let Some(width) = bits else {
        return wrong(format!("the width of field {name:?} is no number of bits"));
    };
    Ok(FieldType {
        name: name.to_owned(),
        width,
        signed: parts.get(2).and_then(Json::bool).unwrap_or(false),
        variable,
    })
}

/// Header unions by their numbers in the file.
fn numbered(unions: &[Json]) -> Read<HashMap<i64, &Json>> {
    let mut found = HashMap::new();
    for union in unions {
        let name = union.string("name").within(|| "header_unions".to_owned())?;
        let place = || format!("header_unions {name:?}");
        let number = union.size::<i64>("id").within(place)?;
        if found.insert(number, union).is_some() {
            return wrong(format!("there are two with number {number}")).within(place);
        }
    }
    Ok(found)
}
