//! An assembler for eBPF, as far as the programs here need it (RFC 9669).
//!
//! Instructions are appended one by one; jumps name labels, which are placed before or after. The assembler
//! does not repeat the checks of the kernel's verifier.

/// A register: `R0` holds results, `R1` to `R5` arguments (lost in calls), `R6` to `R9` survive calls, `R10`
/// is the end of the stack and cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[rustfmt::skip]
pub enum Reg { R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 }

/// Size of a load or store, with its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 4 bytes.
    Word = 0x00,
    /// 2 bytes.
    Half = 0x08,
    /// One byte.
    Byte = 0x10,
    /// 8 bytes.
    Double = 0x18,
}

/// An arithmetic operation on 64 bits, with its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Op {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    Or = 0x40,
    And = 0x50,
    LeftShift = 0x60,
    RightShift = 0x70,
    Xor = 0xa0,
    Move = 0xb0,
}

/// When to jump, with its code; comparisons are of 64 bits, unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum If {
    /// Both are equal.
    Equal = 0x10,
    /// Above the other one.
    Above = 0x20,
    /// Equal to the other one, or above it.
    NotBelow = 0x30,
    /// Both differ.
    NotEqual = 0x50,
    /// Some of the bits are set.
    AnyOf = 0x40,
}

/// The value that the kernel puts in place of a 64-bit constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// The number itself.
    Number(u64),
    /// Address of a byte in the value of an array map of one entry.
    MapValue {
        /// Descriptor of the map.
        map: i32,
        /// Where the byte is.
        offset: u32,
    },
}

/// A place to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// A program being written.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<u64>,
    /// Where labels are, once placed.
    labels: Vec<Option<usize>>,
    /// Jumps that need an offset: the instruction, and its label.
    jumps: Vec<(usize, Label)>,
}

const LD_IMM64: u8 = 0x18;
const LDX_MEM: u8 = 0x61;
const STX_MEM: u8 = 0x63;
const ALU64: u8 = 0x07;
const JMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const ATOMIC_DOUBLE: u8 = 0xdb;
/// Compares with `R0`, exchanges if equal, and returns the value before in `R0`.
const COMPARE_EXCHANGE: i32 = 0xf1;
/// The second operand is a register.
const FROM_REGISTER: u8 = 0x08;

/// One instruction (RFC 9669, 3.1): code, registers, offset, constant.
fn encode(code: u8, to: u8, from: u8, offset: i16, constant: i32) -> u64 {
    u64::from(code)
        | u64::from(to) << 8
        | u64::from(from) << 12
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(constant.cast_unsigned()) << 32
}

fn offset16(offset: usize) -> i16 {
    i16::try_from(offset).expect("offsets into structures are checked to be small")
}

impl Assembler {
    fn push(&mut self, code: u8, to: Reg, from: u8, offset: i16, constant: i32) {
        self.code.push(encode(code, to as u8, from, offset, constant));
    }

    /// `to = *(from + offset)`.
    pub fn load(&mut self, size: Size, to: Reg, from: Reg, offset: usize) {
        self.push(LDX_MEM | size as u8, to, from as u8, offset16(offset), 0);
    }

    /// `*(to + offset) = from`.
    pub fn store(&mut self, size: Size, to: Reg, offset: usize, from: Reg) {
        self.push(STX_MEM | size as u8, to, from as u8, offset16(offset), 0);
    }

    /// `*(to + offset) += from`, of 8 bytes, atomically.
    pub fn add_atomically(&mut self, to: Reg, offset: usize, from: Reg) {
        self.push(ATOMIC_DOUBLE, to, from as u8, offset16(offset), 0);
    }

    /// `*(to + offset) = from` if it was `R0`, of 8 bytes, atomically; `R0` is what it was.
    pub fn compare_exchange(&mut self, to: Reg, offset: usize, from: Reg) {
        self.push(ATOMIC_DOUBLE, to, from as u8, offset16(offset), COMPARE_EXCHANGE);
    }

    /// `to = to op constant`.
    pub fn constant(&mut self, op: Op, to: Reg, constant: i32) {
        self.push(ALU64 | op as u8, to, 0, 0, constant);
    }

    /// `to = to op from`.
    pub fn register(&mut self, op: Op, to: Reg, from: Reg) {
        self.push(ALU64 | op as u8 | FROM_REGISTER, to, from as u8, 0, 0);
    }

    /// `to = constant`, of 64 bits.
    pub fn wide(&mut self, to: Reg, constant: Constant) {
        let (kind, low, high) = match constant {
            Constant::Number(number) => (0, number as u32, (number >> 32) as u32),
            Constant::MapValue { map, offset } => (2, map.cast_unsigned(), offset),
        };
        self.push(LD_IMM64, to, kind, 0, low.cast_signed());
        self.code.push(encode(0, 0, 0, 0, high.cast_signed()));
    }

    /// Calls a helper of the kernel.
    pub fn call(&mut self, helper: i32) {
        self.push(CALL, Reg::R0, 0, 0, helper);
    }

    /// A label that is placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label here.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// Jumps if `a` compares so with `constant`.
    pub fn jump_if(&mut self, when: If, a: Reg, constant: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JMP | when as u8, a, 0, 0, constant);
    }

    /// Jumps if `a` compares so with `b`.
    pub fn jump_if_register(&mut self, when: If, a: Reg, b: Reg, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JMP | when as u8 | FROM_REGISTER, a, b as u8, 0, 0);
    }

    /// Jumps.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JMP, Reg::R0, 0, 0, 0);
    }

    /// Ends the program with the result 0.
    pub fn exit(&mut self) {
        self.constant(Op::Move, Reg::R0, 0);
        self.exit_with_result();
    }

    /// Ends the program with the result in `R0`.
    pub fn exit_with_result(&mut self) {
        self.push(EXIT, Reg::R0, 0, 0, 0);
    }

    /// The instructions, all labels resolved.
    ///
    /// # Panics
    ///
    /// A label is not placed, or too far from a jump to it.
    #[must_use]
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("every label is placed");
            // Counted from the instruction after the jump.
            let distance = target.cast_signed() - at.cast_signed() - 1;
            let distance = i16::try_from(distance).expect("programs are short");
            self.code[at] |= u64::from(distance.cast_unsigned()) << 16;
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against what `llvm-objdump` and RFC 9669 say of these instructions.
    #[test]
    fn instructions_have_their_encodings() {
        let mut program = Assembler::default();
        program.load(Size::Double, Reg::R1, Reg::R6, 8);
        program.load(Size::Word, Reg::R2, Reg::R1, 0x4c);
        program.store(Size::Double, Reg::R3, 8, Reg::R5);
        program.constant(Op::LeftShift, Reg::R5, 32);
        program.register(Op::Or, Reg::R5, Reg::R7);
        program.wide(Reg::R4, Constant::Number(0x1122_3344_5566_7788));
        program.wide(Reg::R4, Constant::MapValue { map: 9, offset: 64 });
        program.call(8);
        program.exit();
        let bytes: Vec<[u8; 8]> = program.finish().into_iter().map(u64::to_le_bytes).collect();
        assert_eq!(
            bytes,
            [
                [0x79, 0x61, 8, 0, 0, 0, 0, 0],
                [0x61, 0x12, 0x4c, 0, 0, 0, 0, 0],
                [0x7b, 0x53, 8, 0, 0, 0, 0, 0],
                [0x67, 0x05, 0, 0, 32, 0, 0, 0],
                [0x4f, 0x75, 0, 0, 0, 0, 0, 0],
                [0x18, 0x04, 0, 0, 0x88, 0x77, 0x66, 0x55],
                [0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11],
                [0x18, 0x24, 0, 0, 9, 0, 0, 0],
                [0, 0, 0, 0, 64, 0, 0, 0],
                [0x85, 0, 0, 0, 8, 0, 0, 0],
                [0xb7, 0, 0, 0, 0, 0, 0, 0],
                [0x95, 0, 0, 0, 0, 0, 0, 0],
            ]
        );
    }

    #[test]
    fn jumps_reach_their_labels_in_both_directions() {
        let mut program = Assembler::default();
        let (back, forth) = (program.label(), program.label());
        program.place(back);
        program.jump_if(If::Equal, Reg::R2, 5, forth);
        program.jump_if_register(If::NotEqual, Reg::R2, Reg::R3, back);
        program.jump(forth);
        program.exit();
        program.place(forth);
        program.exit();
        let code = program.finish();
        let bytes: Vec<[u8; 8]> = code[..3].iter().map(|word| word.to_le_bytes()).collect();
        assert_eq!(bytes[0], [0x15, 0x02, 4, 0, 5, 0, 0, 0]);
        assert_eq!(bytes[1], [0x5d, 0x32, 0xfe, 0xff, 0, 0, 0, 0]);
        assert_eq!(bytes[2], [0x05, 0, 2, 0, 0, 0, 0, 0]);
    }
}
