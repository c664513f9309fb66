//! Arithmetic: the widths of results, and how far operands can be cut.

use super::{Form, Num, constant, form};
use crate::error::{Read, Within, wrong};
use crate::json::Json;
use crate::load::Loader;
use crate::number::Number;
use p4_ir::{Binary, Bits, ExprId, ExprKind, Unary, limits};

impl Loader<'_> {
    /// A number without loss: arithmetic.
    pub(super) fn arithmetic(&mut self, op: &str, left: &Json, right: &Json) -> Read<Num> {
        match op {
            "&" => return self.and(left, right),
            "two_comp_mod" => {
                let width = self.constant_width(right)?;
                let id = self.low(left, width)?;
                return Ok(Num {
                    id,
                    width,
                    signed: true,
                });
            }
            "usat_cast" | "sat_cast" => return self.saturate(op == "sat_cast", left, right),
            "~" => {
                let a = self.exact(right)?;
                let width = a.width + u16::from(!a.signed);
                let a = self.cast(a, width)?;
                let id = self.unary(Unary::Complement, a, width.into())?;
                return Ok(Num {
                    id,
                    width,
                    signed: true,
                });
            }
            _ => {}
        }
        let a = if left.is_null() && matches!(op, "+" | "-") {
            self.number(&Number::parse("0x0")?)?
        } else {
            self.exact(left)?
        };
        let b = self.exact(right)?;
        let both = a.signed || b.signed;
        let (op, width, signed) = match op {
            "+" => (
                Binary::Add,
                u32::from(a.width.max(b.width)) + 1 + u32::from(a.signed != b.signed),
                both,
            ),
            "-" => (
                Binary::Sub,
                u32::from(a.width.max(b.width)) + 1 + u32::from(a.signed != b.signed),
                true,
            ),
            "*" => (
                Binary::Mul,
                u32::from(a.width) + u32::from(b.width) + u32::from(a.signed != b.signed),
                both,
            ),
            "|" | "^" => {
                let (a, b, width, signed) = self.alike(a, b)?;
                let id = self.binary(if op == "|" { Binary::Or } else { Binary::Xor }, a, b, width)?;
                return Ok(Num { id, width, signed });
            }
            "/" | "%" => return self.divide(op == "/", a, b),
            "<<" => return self.shift_left(a, b),
            _ => {
                let op = if a.signed {
                    Binary::ShiftRightSigned
                } else {
                    Binary::ShiftRight
                };
                let id = self.binary(op, a.id, b.id, a.width)?;
                return Ok(Num { id, ..a });
            }
        };
        let Some(width) = u16::try_from(width)
            .ok()
            .filter(|width| u32::from(*width) <= limits::WIDTH)
        else {
            return wrong(format!(
                "a value of {width} bits, where {} are the most",
                limits::WIDTH
            ));
        };
        let (a, b) = (self.cast(a, width)?, self.cast(b, width)?);
        let id = self.binary(op, a, b, width)?;
        Ok(Num { id, width, signed })
    }

    fn divide(&mut self, quotient: bool, a: Num, b: Num) -> Read<Num> {
        let (mut x, mut y, mut width, signed) = self.alike(a, b)?;
        if signed {
            // The smallest number by -1 has one bit more.
            width += 1;
            let wide = |id| Num {
                id,
                width: width - 1,
                signed: true,
            };
            (x, y) = (self.cast(wide(x), width)?, self.cast(wide(y), width)?);
        }
        let op = match (quotient, signed) {
            (true, false) => Binary::Div,
            (false, false) => Binary::Mod,
            (true, true) => Binary::DivSigned,
            (false, true) => Binary::ModSigned,
        };
        let id = self.binary(op, x, y, width)?;
        Ok(Num { id, width, signed })
    }

    fn shift_left(&mut self, a: Num, b: Num) -> Read<Num> {
        let most = match self.program.exprs[b.id.index()].kind {
            ExprKind::Constant(bits) if !b.signed => bits,
            _ if b.width <= 16 => (1 << b.width) - 1,
            _ => u64::MAX,
        };
        let width = most.saturating_add(a.width.into());
        if width > u64::from(limits::WIDTH) {
            return wrong("a shift to the left whose result, nowhere cut, could be too wide");
        }
        let width = width as u16;
        let wide = self.cast(a, width)?;
        let id = self.binary(Binary::ShiftLeft, wide, b.id, width)?;
        Ok(Num {
            id,
            width,
            signed: a.signed,
        })
    }

    /// A conjunction is as wide as the narrower operand that is not negative.
    fn and(&mut self, left: &Json, right: &Json) -> Read<Num> {
        for (mask, other) in [(right, left), (left, right)] {
            if let Some(mask) = constant(mask)?.filter(|mask| !mask.negative) {
                let width = mask.bits().max(1);
                let id = self.masked(other, &mask, width)?;
                return Ok(Num {
                    id,
                    width,
                    signed: false,
                });
            }
        }
        let (a, b) = (self.exact(left)?, self.exact(right)?);
        let width = match (a.signed, b.signed) {
            (false, false) => a.width.min(b.width),
            (false, true) => a.width,
            (true, false) => b.width,
            (true, true) => a.width.max(b.width),
        };
        let (x, y) = (self.cast(a, width)?, self.cast(b, width)?);
        let id = self.binary(Binary::And, x, y, width)?;
        Ok(Num {
            id,
            width,
            signed: a.signed && b.signed,
        })
    }

    /// Low bits of a number under a mask.
    fn masked(&mut self, other: &Json, mask: &Number, width: u16) -> Read<ExprId> {
        let other = self.low(other, width)?;
        let mask = mask.low(width);
        if mask == Bits::ones(width) {
            return Ok(other);
        }
        let mask = self.constant(&mask)?;
        self.binary(Binary::And, other, mask, width)
    }

    fn constant_width(&self, json: &Json) -> Read<u16> {
        match constant(json)?.map(|width| width.to_u64()).transpose()? {
            Some(width @ 1..) if width <= u64::from(limits::WIDTH) => Ok(width as u16),
            _ => wrong("the width is no constant, or none that could be"),
        }
    }

    fn saturate(&mut self, signed: bool, left: &Json, right: &Json) -> Read<Num> {
        let width = self.constant_width(right)?;
        let a = self.exact(left)?;
        let op = match (a.signed, signed) {
            (false, false) => Unary::SaturateUnsigned,
            (true, false) => Unary::SaturateSignedToUnsigned,
            (true, true) => Unary::SaturateSigned,
            (false, true) => Unary::SaturateUnsignedToSigned,
        };
        // The operator wants a width that is not smaller than its result's.
        let wide = self.cast(a, a.width.max(width))?;
        let id = self.unary(op, wide, width.into())?;
        Ok(Num { id, width, signed })
    }

    /// The low bits of a number.
    pub(crate) fn low(&mut self, json: &Json, width: u16) -> Read<ExprId> {
        let Form::Op(op, json) = form(json)? else {
            let num = self.exact(json)?;
            return self.cast(num, width);
        };
        let (left, right) = (json.get("left"), json.get("right"));
        self.deeper(|loader| {
            let plain = match op {
                "+" => Binary::Add,
                "-" => Binary::Sub,
                "*" => Binary::Mul,
                "|" => Binary::Or,
                "^" => Binary::Xor,
                "&" => {
                    for (mask, other) in [(right, left), (left, right)] {
                        if let Some(mask) = constant(mask)?.filter(|mask| !mask.negative) {
                            // Beyond the mask all is zero: compute no more than it lets through.
                            let narrow = mask.bits().min(width).max(1);
                            let id = loader.masked(other, &mask, narrow)?;
                            return loader.cast(
                                Num {
                                    id,
                                    width: narrow,
                                    signed: false,
                                },
                                width,
                            );
                        }
                    }
                    Binary::And
                }
                "~" => {
                    let a = loader.low(right, width)?;
                    return loader.unary(Unary::Complement, a, width.into());
                }
                "<<" => {
                    let a = loader.low(left, width)?;
                    let b = loader.exact(right)?;
                    return loader.binary(Binary::ShiftLeft, a, b.id, width);
                }
                "?" => {
                    let condition = loader.condition(json.get("cond"))?;
                    let (a, b) = (loader.low(left, width)?, loader.low(right, width)?);
                    return loader.bits(ExprKind::Mux(condition, a, b), width.into());
                }
                "two_comp_mod" => {
                    let of = loader.constant_width(right)?;
                    if width <= of {
                        return loader.low(left, width);
                    }
                    let id = loader.low(left, of)?;
                    return loader.cast(
                        Num {
                            id,
                            width: of,
                            signed: true,
                        },
                        width,
                    );
                }
                _ => {
                    let num = loader.exact(json)?;
                    return loader.cast(num, width);
                }
            };
            let unary = left.is_null() && matches!(op, "+" | "-");
            let b = loader.low(right, width)?;
            if unary {
                return if op == "+" {
                    Ok(b)
                } else {
                    loader.unary(Unary::Negate, b, width.into())
                };
            }
            let a = loader.low(left, width)?;
            loader.binary(plain, a, b, width)
        })
        .within(|| format!("operator {op:?}"))
    }
}
