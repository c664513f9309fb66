//! An interpreter for the instructions that the assembler writes (RFC 9669), stricter than a processor: like
//! the kernel's verifier, it panics where a program reads a register that holds nothing, jumps backwards, or
//! touches memory that it may not.

use super::{GET_CURRENT_PID_TGID, GET_SMP_PROCESSOR_ID, KTIME_GET_NS};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Address of the map's value. Nothing else in a test has an address from here on.
const MAP: u64 = 1 << 40;

/// The memory and helpers that a program can reach.
pub(crate) struct Machine {
    /// The file that holds the map's value, and its length.
    pub map: (File, u64),
    /// The kernel's structures: address, and size and content of the field there. Programs may only read
    /// them.
    pub kernel: HashMap<u64, (u64, u64)>,
    /// Results of the helpers.
    pub core: u64,
    /// The time that `bpf_ktime_get_ns` returns.
    pub now_ns: u64,
    /// Numbers of the process and the thread.
    pub current: u64,
}

impl Machine {
    fn in_map(&self, address: u64, size: u64) -> Option<u64> {
        let at = address.checked_sub(MAP)?;
        assert!(at + size <= self.map.1, "{size} bytes at {at} are beyond the map");
        assert_eq!(at % size, 0, "{size} bytes at {at} are not aligned");
        Some(at)
    }

    fn load(&self, address: u64, size: u64) -> u64 {
        let Some(at) = self.in_map(address, size) else {
            let field = self.kernel.get(&address);
            let (expected, content) = field.unwrap_or_else(|| panic!("nothing is at {address:#x}"));
            assert_eq!(size, *expected, "size of the field at {address:#x}");
            return *content;
        };
        let mut bytes = [0; 8];
        let range = ..usize::try_from(size).unwrap();
        self.map.0.read_exact_at(&mut bytes[range], at).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn store(&self, address: u64, size: u64, value: u64) {
        let at = self
            .in_map(address, size)
            .expect("a program writes to the map only");
        let range = ..usize::try_from(size).unwrap();
        self.map.0.write_all_at(&value.to_le_bytes()[range], at).unwrap();
    }

    /// Runs a program with its context at this address, to its end.
    pub fn run(&self, program: &[u64], context: u64) {
        let mut registers = Registers([None; 10]);
        registers.set(1, context);
        let mut at = 0;
        while let Some(next) = self.step(program, at, &mut registers) {
            assert!(next > at, "the jump at {at} is backwards");
            at = next;
        }
        assert_eq!(registers.get(0), 0, "result");
    }

    /// Executes one instruction. Returns where the next one is; nothing at the end.
    fn step(&self, program: &[u64], at: usize, registers: &mut Registers) -> Option<usize> {
        let Instruction {
            code,
            to,
            from,
            offset,
            constant,
        } = Instruction::of(program[at]);
        let operand = |registers: &Registers| match code & 0x08 {
            0 => i64::from(constant).cast_unsigned(),
            _ => registers.get(from),
        };
        let place = |base: u64| base.wrapping_add_signed(i64::from(offset));
        let mut next = at + 1;
        match code {
            0x95 => return None,
            0x85 => registers.after_call(match constant {
                KTIME_GET_NS => self.now_ns,
                GET_SMP_PROCESSOR_ID => self.core,
                GET_CURRENT_PID_TGID => self.current,
                other => panic!("helper {other}"),
            }),
            0x18 => {
                registers.set(to, wide(program[at], program[at + 1]));
                next += 1;
            }
            0x61 | 0x71 | 0x79 => {
                registers.set(to, self.load(place(registers.get(from)), size(code)));
            }
            0x63 | 0x73 | 0x7b => {
                self.store(place(registers.get(to)), size(code), registers.get(from));
            }
            _ if code & 0x07 == 0x07 => {
                let value = operand(registers);
                registers.set(to, arithmetic(code & 0xf0, || registers.get(to), value));
            }
            0x05 => next = next.strict_add_signed(offset.into()),
            _ if code & 0x07 == 0x05 => {
                if compare(code & 0xf0, registers.get(to), operand(registers)) {
                    next = next.strict_add_signed(offset.into());
                }
            }
            _ => panic!("code {code:#x} at {at}"),
        }
        Some(next)
    }
}

struct Instruction {
    code: u8,
    to: usize,
    from: usize,
    offset: i16,
    constant: i32,
}

impl Instruction {
    fn of(word: u64) -> Instruction {
        let [code, registers, low, high, constant @ ..] = word.to_le_bytes();
        Instruction {
            code,
            to: usize::from(registers & 0xf),
            from: usize::from(registers >> 4),
            offset: i16::from_le_bytes([low, high]),
            constant: i32::from_le_bytes(constant),
        }
    }
}

/// Contents of the registers; nothing in those that were not written, or that a call has overwritten.
struct Registers([Option<u64>; 10]);

impl Registers {
    fn get(&self, number: usize) -> u64 {
        self.0[number].unwrap_or_else(|| panic!("R{number} is read before it is written"))
    }

    fn set(&mut self, number: usize, value: u64) {
        self.0[number] = Some(value);
    }

    fn after_call(&mut self, result: u64) {
        self.0[..6].fill(None);
        self.set(0, result);
    }
}

/// The constant of an instruction of two words.
fn wide(first: u64, second: u64) -> u64 {
    let (first, second) = (Instruction::of(first), Instruction::of(second));
    let high = u64::from(second.constant.cast_unsigned());
    match first.from {
        0 => high << 32 | u64::from(first.constant.cast_unsigned()),
        2 => MAP + high,
        other => panic!("a constant of kind {other}"),
    }
}

fn size(code: u8) -> u64 {
    match code & 0x18 {
        0x00 => 4,
        0x10 => 1,
        0x18 => 8,
        other => panic!("size {other:#x}"),
    }
}

/// What `a op b` is; a move does not read `a`.
fn arithmetic(code: u8, a: impl Fn() -> u64, b: u64) -> u64 {
    match code {
        0x00 => a().wrapping_add(b),
        0x10 => a().wrapping_sub(b),
        0x40 => a() | b,
        0x50 => a() & b,
        0x60 => a() << (b & 63),
        0x70 => a() >> (b & 63),
        0xb0 => b,
        other => panic!("operation {other:#x}"),
    }
}

fn compare(code: u8, a: u64, b: u64) -> bool {
    match code {
        0x10 => a == b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        0x50 => a != b,
        other => panic!("comparison {other:#x}"),
    }
}
