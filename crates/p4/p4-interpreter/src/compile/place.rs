//! Loads and stores of fields.

use super::Compiler;
use crate::code::{NO_HEADER, Op, Size, Slow, Wide, WideOp};
use p4_ir::{ExprId, ExprKind, Field, FieldId, HeaderId, Place};

/// How a field of up to 64 bits is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Whole bytes, the first one's number.
    Whole(Size, u32),
    /// Bits of the window that begins with the byte: behind `skip` others.
    Bits { at: u32, skip: u32 },
    /// Spans nine bytes.
    Split { bit: u32 },
}

fn size_of(bits: u32) -> Option<Size> {
    match bits {
        8 => Some(Size::One),
        16 => Some(Size::Two),
        32 => Some(Size::Four),
        64 => Some(Size::Eight),
        _ => None,
    }
}

/// The cell of a metadata field: the field ends where it ends, and bits before the field are zero.
fn cell(field: &Field) -> (Size, u32) {
    let (size, bytes) = match field.width {
        ..=8 => (Size::One, 1),
        9..=16 => (Size::Two, 2),
        17..=32 => (Size::Four, 4),
        _ => (Size::Eight, 8),
    };
    (size, (field.offset + u32::from(field.width)) / 8 - bytes)
}

fn access_of_bits(bit: u32, width: u32) -> Access {
    let (at, skip) = (bit / 8, bit % 8);
    match size_of(width) {
        Some(size) if skip == 0 => Access::Whole(size, at),
        _ if skip + width <= 64 => Access::Bits { at, skip },
        _ => Access::Split { bit },
    }
}

impl Compiler<'_> {
    pub(super) fn field(&self, field: FieldId) -> Field {
        self.program.fields[field.index()]
    }

    pub(super) fn is_metadata(&self, header: HeaderId) -> bool {
        self.program.headers[header.index()].metadata
    }

    /// The field of a header by its position in the type.
    pub(super) fn member(&self, header: HeaderId, member: u16) -> FieldId {
        FieldId(self.program.headers[header.index()].first_field.0 + u32::from(member))
    }

    fn access(&self, field: &Field) -> Access {
        if self.is_metadata(field.header) {
            let (size, at) = cell(field);
            return Access::Whole(size, at);
        }
        access_of_bits(field.offset, u32::from(field.width))
    }

    /// Loads a field of up to 64 bits.
    pub(super) fn load(&mut self, field: FieldId, to: usize) {
        let field = self.field(field);
        let access = self.access(&field);
        self.load_access(access, u32::from(field.width), to);
    }

    /// Loads some bits (up to 64) of a field: from its bit `low` on, counted from the lowest.
    pub(super) fn load_part(&mut self, field: FieldId, low: u32, width: u32, to: usize) {
        let field = self.field(field);
        let bit = field.offset + u32::from(field.width) - low - width;
        self.load_access(access_of_bits(bit, width), width, to);
    }

    fn load_access(&mut self, access: Access, width: u32, to: usize) {
        let to = self.reg(to);
        self.emit(match access {
            Access::Whole(Size::One, at) => Op::Load8 { to, at },
            Access::Whole(Size::Two, at) => Op::Load16 { to, at },
            Access::Whole(Size::Four, at) => Op::Load32 { to, at },
            Access::Whole(Size::Eight, at) => Op::Load64 { to, at },
            Access::Bits { at, skip } => Op::LoadBits {
                to,
                left: skip as u8,
                right: (64 - width) as u8,
                at,
            },
            Access::Split { bit } => Op::LoadSplit {
                to,
                width: width as u8,
                bit,
            },
        });
    }

    fn store(&mut self, field: &Field, from: usize) {
        let from = self.reg(from);
        let width = u32::from(field.width);
        let access = self.access(field);
        self.emit(match access {
            Access::Whole(Size::One, at) => Op::Store8 { from, at },
            Access::Whole(Size::Two, at) => Op::Store16 { from, at },
            Access::Whole(Size::Four, at) => Op::Store32 { from, at },
            Access::Whole(Size::Eight, at) => Op::Store64 { from, at },
            Access::Bits { at, skip } => Op::StoreBits {
                from,
                shift: (64 - skip - width) as u8,
                width: width as u8,
                at,
            },
            Access::Split { bit } => Op::StoreSplit {
                from,
                width: width as u8,
                bit,
            },
        });
    }

    /// Runs the code that the closure emits only if the header is valid: fields of invalid headers stay zero.
    fn guarded(&mut self, header: HeaderId, body: impl FnOnce(&mut Self)) {
        if self.is_metadata(header) {
            return body(self);
        }
        let end = self.label();
        self.emit(Op::JumpUnlessValid { header, pc: end.0 });
        body(self);
        self.bind(end);
    }

    pub(super) fn assign(&mut self, place: Place, value: ExprId) {
        match self.fixed(place) {
            Some(field) => self.assign_field(field, value),
            None => self.assign_member(place, value),
        }
    }

    fn assign_field(&mut self, id: FieldId, value: ExprId) {
        let field = self.field(id);
        if field.width > 64 {
            let top = self.wide_top;
            let from = self.wide(value, 0);
            self.guarded(field.header, |this| {
                this.wide_op(WideOp::Store {
                    from,
                    bit: field.offset,
                })
            });
            self.wide_top = top;
            return;
        }
        let access = self.access(&field);
        if let (Access::Whole(size, at), Some(op)) = (access, self.short_way(access, value)) {
            debug_assert!(
                matches!(op, Op::Set { size: s, at: a, .. } | Op::Move { size: s, at: a, .. } if s == size && a == at)
            );
            return self.guarded(field.header, |this| this.emit(op));
        }
        self.value(value, 0);
        self.guarded(field.header, |this| this.store(&field, 0));
    }

    /// One operation for "constant to field" and "field to field", where both are whole bytes.
    fn short_way(&self, to: Access, value: ExprId) -> Option<Op> {
        let Access::Whole(size, at) = to else { return None };
        match self.expr(value).kind {
            ExprKind::Constant(value) => Some(Op::Set { size, at, value }),
            ExprKind::Field(from) => {
                let from = self.field(from);
                match self.access(&from) {
                    Access::Whole(other, from) if from != at && other == size => {
                        Some(Op::Move { size, from, at })
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn assign_member(&mut self, place: Place, value: ExprId) {
        let Place::Member(header, member) = place else {
            return;
        };
        // The value first: of two errors that end the parser, its own counts.
        if self.is_wide(value) {
            let top = self.wide_top;
            let from = self.wide(value, 0);
            self.header_ref(header, 0, true);
            self.wide_op(WideOp::StoreMember {
                from,
                header: 0,
                member,
            });
            self.wide_top = top;
        } else {
            self.value(value, 0);
            self.header_ref(header, 1, true);
            self.slow(Slow::StoreMember {
                from: 0,
                header: 1,
                member,
            });
        }
    }

    /// The field at a place, unless it is found at run time.
    pub(super) fn fixed(&self, place: Place) -> Option<FieldId> {
        match place {
            Place::Field(field) => Some(field),
            Place::Member(header, member) => self
                .fixed_header(header)
                .map(|header| self.member(header, member)),
        }
    }

    pub(super) fn place_width(&self, place: Place) -> u32 {
        let field = match place {
            Place::Field(field) => self.field(field),
            Place::Member(header, member) => self.field(self.member(self.any_header(header), member)),
        };
        u32::from(field.width)
    }

    /// Stores a register of `width` bits to a place of any width: cut to its low bits, or extended with
    /// zeros. Uses the registers from `free` on.
    pub(super) fn store_place(&mut self, place: Place, from: usize, width: u32, free: usize) {
        let wanted = self.place_width(place);
        let register = self.reg(from);
        if wanted < width {
            self.emit(Op::Slice {
                to: register,
                a: register,
                low: 0,
                width: wanted as u8,
            });
        }
        if wanted > 64 {
            let top = self.wide_top;
            let to = self.take(wanted);
            self.wide_op(WideOp::From { to, a: register });
            self.store_wide(place, to, free);
            self.wide_top = top;
            return;
        }
        match (self.fixed(place), place) {
            (Some(id), _) => {
                let field = self.field(id);
                self.guarded(field.header, |this| this.store(&field, from));
            }
            (None, Place::Member(header, member)) => {
                self.header_ref(header, free, true);
                let header = self.reg(free);
                self.slow(Slow::StoreMember {
                    from: register,
                    header,
                    member,
                });
            }
            (None, Place::Field(_)) => {}
        }
    }

    /// Stores a wide value to a place of its width.
    pub(super) fn store_wide(&mut self, place: Place, from: Wide, free: usize) {
        match (self.fixed(place), place) {
            (Some(id), _) => {
                let field = self.field(id);
                self.guarded(field.header, |this| {
                    this.wide_op(WideOp::Store {
                        from,
                        bit: field.offset,
                    })
                });
            }
            (None, Place::Member(header, member)) => {
                self.header_ref(header, free, true);
                let header = self.reg(free);
                self.wide_op(WideOp::StoreMember { from, header, member });
            }
            (None, Place::Field(_)) => {}
        }
    }

    /// Puts a header's number into a register.
    pub(super) fn header_number(&mut self, header: Option<HeaderId>, to: usize) {
        let to = self.reg(to);
        let value = header.map_or(NO_HEADER, |header| u64::from(header.0));
        self.emit(Op::Const { to, value });
    }
}
