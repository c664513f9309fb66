//! Places of fields in the packet header vector: computed here for front ends, and again by the checker.

use crate::header::{Field, Header, HeaderType, Membership, Misplaced, Phv};
use crate::ids::{FieldId, HeaderId, HeaderTypeId, StackId, UnionId, UnionStackId};
use crate::program::Program;

/// The result of [`Program::place`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PhvLayout {
    /// First field and first byte of each header instance.
    pub headers: Vec<(FieldId, u32)>,
    /// All fields.
    pub fields: Vec<Field>,
    /// Sizes.
    pub phv: Phv,
}

/// Lays instances out; `None` if a type does not exist, there are too many fields, or a number does not fit.
pub(crate) fn layout(types: &[HeaderType], instances: &[Header]) -> Option<PhvLayout> {
    let mut layout = PhvLayout {
        headers: Vec::with_capacity(instances.len()),
        fields: Vec::new(),
        phv: Phv::default(),
    };
    let mut byte = 0u32;
    for (number, instance) in instances.iter().enumerate() {
        let ty = types.get(instance.ty.index())?;
        let header = HeaderId::at(number)?;
        if layout.fields.len() + ty.fields.len() > crate::limits::ELEMENTS {
            return None;
        }
        if !instance.metadata
            && layout.phv.metadata_bytes == 0
            && instances[..number].iter().all(|h| h.metadata)
        {
            byte = byte.checked_next_multiple_of(8)?;
            layout.phv.metadata_bytes = byte;
        }
        if instance.metadata {
            byte = byte.checked_next_multiple_of(8)?;
        }
        layout.headers.push((FieldId::at(layout.fields.len())?, byte));
        byte = place_fields(ty, instance, header, byte, &mut layout.fields)?;
    }
    layout.phv.bytes = byte.checked_next_multiple_of(8)?;
    if instances.iter().all(|h| h.metadata) {
        layout.phv.metadata_bytes = layout.phv.bytes;
    }
    Some(layout)
}

/// Places the fields of an instance from a byte on; returns the byte behind them.
fn place_fields(
    ty: &HeaderType,
    instance: &Header,
    header: HeaderId,
    byte: u32,
    fields: &mut Vec<Field>,
) -> Option<u32> {
    let mut bit = byte.checked_mul(8)?;
    for (member, field) in ty.fields.iter().enumerate() {
        if instance.metadata {
            let cell = cell_bits(field.width);
            bit = bit
                .checked_next_multiple_of(cell.min(64))?
                .checked_add(cell - u32::from(field.width))?;
        }
        fields.push(Field {
            header,
            member: u16::try_from(member).ok()?,
            offset: bit,
            width: field.width,
            variable: field.variable,
        });
        bit = bit.checked_add(u32::from(field.width))?;
    }
    Some(bit.div_ceil(8))
}

/// The cell in which a field of metadata lies, in bits.
fn cell_bits(width: u16) -> u32 {
    match width {
        0..=8 => 8,
        9..=16 => 16,
        17..=32 => 32,
        _ => u32::from(width).next_multiple_of(64),
    }
}

impl Program {
    /// Computes [`Program::fields`], [`Program::phv`], and the first field and byte of each header instance,
    /// from the types. False if an instance has a type that does not exist, or if there are more fields or
    /// bytes than their numbers can count.
    pub fn place(&mut self) -> bool {
        let Some(layout) = layout(&self.header_types, &self.headers) else {
            return false;
        };
        for (header, (first_field, offset)) in self.headers.iter_mut().zip(&layout.headers) {
            header.first_field = *first_field;
            header.offset = *offset;
        }
        self.fields = layout.fields;
        self.phv = layout.phv;
        true
    }

    /// The type of a header instance.
    #[must_use]
    pub fn header_type(&self, header: HeaderId) -> &HeaderType {
        &self.header_types[self.headers[header.index()].ty.index()]
    }

    /// The field of a header instance at a position of its type.
    #[must_use]
    pub fn field_of(&self, header: HeaderId, member: u16) -> FieldId {
        FieldId(self.headers[header.index()].first_field.0 + u32::from(member))
    }

    /// Type of a field: its name and the field's other properties in the program.
    #[must_use]
    pub fn field_type(&self, field: FieldId) -> &crate::header::FieldType {
        let place = &self.fields[field.index()];
        &self.header_type(place.header).fields[usize::from(place.member)]
    }

    /// `header.field`, for users.
    #[must_use]
    pub fn field_name(&self, field: FieldId) -> String {
        let header = self.fields[field.index()].header;
        format!(
            "{}.{}",
            self.headers[header.index()].name,
            self.field_type(field).name
        )
    }

    /// For each header instance, the stack or union to which it belongs.
    ///
    /// # Errors
    /// An instance would belong to two, or a number is out of range.
    pub(crate) fn memberships(&self) -> Result<Vec<Membership>, Misplaced> {
        let mut of = vec![Membership::None; self.headers.len()];
        let mut claim = |at: usize, ty: HeaderTypeId, name: &str, membership: Membership| {
            let taken = of.get_mut(at).filter(|taken| **taken == Membership::None);
            let fits = self
                .headers
                .get(at)
                .is_some_and(|header| header.ty == ty && !header.metadata);
            let (Some(taken), true) = (taken, fits) else {
                return Err(Misplaced(name.to_owned()));
            };
            *taken = membership;
            Ok(())
        };
        for (number, stack) in self.stacks.iter().enumerate() {
            let id = StackId::at(number).ok_or_else(|| Misplaced(stack.name.clone()))?;
            for element in 0..stack.size {
                let at = stack.first.index() + usize::from(element);
                claim(at, stack.ty, &stack.name, Membership::Stack(id, element))?;
            }
        }
        let stack_of = self.stacks_of_unions()?;
        for (number, union) in self.unions.iter().enumerate() {
            let id = UnionId::at(number).ok_or_else(|| Misplaced(union.name.clone()))?;
            let ty = self
                .union_types
                .get(union.ty.index())
                .ok_or_else(|| Misplaced(union.name.clone()))?;
            for (member, (_, header_type)) in ty.members.iter().enumerate() {
                let membership = Membership::Union(id, member as u16, stack_of[number]);
                claim(
                    union.first.index() + member,
                    *header_type,
                    &union.name,
                    membership,
                )?;
            }
        }
        Ok(of)
    }

    /// The stack of each union that lies in one, and its place there.
    fn stacks_of_unions(&self) -> Result<Vec<Option<(UnionStackId, u16)>>, Misplaced> {
        let mut stack_of = vec![None; self.unions.len()];
        for (number, stack) in self.union_stacks.iter().enumerate() {
            let id = UnionStackId::at(number).ok_or_else(|| Misplaced(stack.name.clone()))?;
            for element in 0..stack.size {
                let at = stack.first.index() + usize::from(element);
                let fits = self.unions.get(at).is_some_and(|union| union.ty == stack.ty);
                let taken = stack_of.get_mut(at).filter(|taken| taken.is_none());
                let (Some(taken), true) = (taken, fits) else {
                    return Err(Misplaced(stack.name.clone()));
                };
                *taken = Some((id, element));
            }
        }
        Ok(stack_of)
    }
}
