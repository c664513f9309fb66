//! The program (`BPF_PROG_TYPE_SCHED_CLS` at tcx ingress).
//!
//! One program is at all devices. An odd index is a TAP's: what a forwarder writes there goes into the
//! container. At an end, a frame of a live entry goes into the other container, and every other one to the
//! TAP. The program never lets a frame go on to the network stack, and never drops one itself.
//!
//! Frames go into a container as a pair sends them (`bpf_redirect`). The shorter way, `bpf_redirect_peer`,
//! makes the container's stack believe that each frame is for its own address, or that none is, depending on
//! the kernel: a container that forwards packets would forward those that were flooded or mirrored to it.
//!
//! Frames with VLAN tags have no entry. A frame that is to be segmented has the length of its segments, if it
//! is TCP behind a plain header of IP; others go to the TAP.

use crate::layout::{ARMED, Area, BUCKET_BITS, CORES, Entry, FACTOR, FIRST, Grace, LIVE, PORTS, SETS, WAYS};
use ebpf::assembler::{Assembler, Constant, If, Label, Op, Reg, Size};
use std::mem::offset_of;

// Fields of `struct __sk_buff` (`linux/bpf.h`).
const LEN: usize = 0;
const VLAN_PRESENT: usize = 20;
const IFINDEX: usize = 40;
const DATA: usize = 76;
const DATA_END: usize = 80;
const GSO_SIZE: usize = 176;

// Helpers of the kernel (`linux/bpf.h`).
const GET_SMP_PROCESSOR_ID: i32 = 8;
const REDIRECT: i32 = 23;

// Types of Ethernet frames, as a little-endian processor reads them.
const VLAN: i32 = 0x0081;
const SERVICE_VLAN: i32 = 0xa888;
const IPV4: i32 = 0x0008;
const IPV6: i32 = 0xdd86;
const TCP: i32 = 6;
/// Version 4, five words of header.
const PLAIN_IPV4: i32 = 0x45;

/// Registers of the whole program: the packet's context, the index of its device, the core's counters.
const CONTEXT: Reg = Reg::R6;
const DEVICE: Reg = Reg::R7;
const CORE: Reg = Reg::R8;

/// Where frames go that have no entry: to the TAP, before and after the core was counted.
#[derive(Clone, Copy)]
struct Slow {
    uncounted: Label,
    counted: Label,
}

/// Instructions of the program, which reads the table in this map. Takes Linux 5.12, and 6.6 to attach it.
pub fn program(map: i32) -> Vec<u64> {
    let mut code = Assembler::default();
    let slow = Slow {
        uncounted: code.label(),
        counted: code.label(),
    };
    let live = code.label();
    code.register(Op::Move, CONTEXT, Reg::R1);
    code.load(Size::Word, DEVICE, CONTEXT, IFINDEX);
    code.jump_if(If::AnyOf, DEVICE, 1, slow.uncounted);
    begin(&mut code, map, slow);
    key(&mut code, slow);
    find(&mut code, map, live, slow);
    code.place(live);
    send(&mut code, slow);
    code.place(slow.counted);
    count(&mut code, CORE, offset_of!(Grace, decided));
    code.place(slow.uncounted);
    // From the pair's end to the TAP, and from the TAP by the pair's end into the container.
    code.register(Op::Move, Reg::R1, DEVICE);
    code.constant(Op::Xor, Reg::R1, 1);
    redirect(&mut code);
    code.finish()
}

/// Sends the frame by the device with the index in R1, and ends.
fn redirect(code: &mut Assembler) {
    code.constant(Op::Move, Reg::R2, 0);
    code.call(REDIRECT);
    code.exit_with_result();
}

/// Adds one; loses R2.
fn count(code: &mut Assembler, to: Reg, offset: usize) {
    code.constant(Op::Move, Reg::R2, 1);
    code.add_atomically(to, offset, Reg::R2);
}

/// Counts the program on its core: a full fence before anything of the table is read.
fn begin(code: &mut Assembler, map: i32, slow: Slow) {
    code.call(GET_SMP_PROCESSOR_ID);
    code.jump_if(If::NotBelow, Reg::R0, CORES as i32, slow.uncounted);
    code.constant(
        Op::LeftShift,
        Reg::R0,
        size_of::<Grace>().trailing_zeros().cast_signed(),
    );
    let offset = offset_of!(Area, grace) as u32;
    code.wide(CORE, Constant::MapValue { map, offset });
    code.register(Op::Add, CORE, Reg::R0);
    let offset = offset_of!(Area, set) as u32;
    code.wide(Reg::R5, Constant::MapValue { map, offset });
    code.load(Size::Double, Reg::R5, Reg::R5, 0);
    code.constant(Op::And, Reg::R5, SETS as i32 - 1);
    let size = size_of::<[Grace; CORES]>();
    code.constant(Op::LeftShift, Reg::R5, size.trailing_zeros().cast_signed());
    code.register(Op::Add, CORE, Reg::R5);
    count(code, CORE, offset_of!(Grace, begun));
}

/// Goes on if so many bytes of the frame lie from R2 to R3; otherwise the frame is a slow one. Loses the
/// register.
fn has_bytes(code: &mut Assembler, (lost, bytes): (Reg, i32), slow: Slow) {
    code.register(Op::Move, lost, Reg::R2);
    code.constant(Op::Add, lost, bytes);
    code.jump_if_register(If::Above, lost, Reg::R3, slow.counted);
}

/// Makes the key, in R9 and R4.
fn key(code: &mut Assembler, slow: Slow) {
    code.load(Size::Word, Reg::R5, CONTEXT, VLAN_PRESENT);
    code.jump_if(If::NotEqual, Reg::R5, 0, slow.counted);
    code.load(Size::Word, Reg::R2, CONTEXT, DATA);
    code.load(Size::Word, Reg::R3, CONTEXT, DATA_END);
    has_bytes(code, (Reg::R4, 14), slow);
    code.load(Size::Half, Reg::R5, Reg::R2, 12);
    code.jump_if(If::Equal, Reg::R5, VLAN, slow.counted);
    code.jump_if(If::Equal, Reg::R5, SERVICE_VLAN, slow.counted);
    code.load(Size::Double, Reg::R9, Reg::R2, 0);
    code.load(Size::Word, Reg::R4, Reg::R2, 8);
    code.register(Op::Move, Reg::R5, DEVICE);
    code.constant(Op::LeftShift, Reg::R5, 32);
    code.register(Op::Or, Reg::R4, Reg::R5);
}

/// Finds the bucket of the key: its address in R1. Loses R0 and R5.
fn bucket(code: &mut Assembler, map: i32) {
    let offset = offset_of!(Area, seed) as u32;
    code.wide(Reg::R5, Constant::MapValue { map, offset });
    code.load(Size::Double, Reg::R5, Reg::R5, 0);
    code.wide(Reg::R1, Constant::Number(FACTOR));
    code.register(Op::Move, Reg::R0, Reg::R9);
    code.register(Op::Xor, Reg::R0, Reg::R5);
    code.register(Op::Multiply, Reg::R0, Reg::R1);
    code.register(Op::Move, Reg::R5, Reg::R0);
    code.constant(Op::RightShift, Reg::R5, 32);
    code.register(Op::Xor, Reg::R0, Reg::R5);
    code.register(Op::Xor, Reg::R0, Reg::R4);
    code.register(Op::Multiply, Reg::R0, Reg::R1);
    code.constant(Op::RightShift, Reg::R0, 64 - BUCKET_BITS.cast_signed());
    let size = WAYS * size_of::<Entry>();
    code.constant(Op::LeftShift, Reg::R0, size.trailing_zeros().cast_signed());
    let offset = offset_of!(Area, entries) as u32;
    code.wide(Reg::R1, Constant::MapValue { map, offset });
    code.register(Op::Add, Reg::R1, Reg::R0);
}

/// Finds the entry of the key: its address in R1. An entry that is armed counts the frame.
fn find(code: &mut Assembler, map: i32, live: Label, slow: Slow) {
    bucket(code, map);
    let found = code.label();
    for _ in 0..WAYS {
        let next = code.label();
        // The state first: the words are whole once it is not 0.
        code.load(Size::Double, Reg::R5, Reg::R1, offset_of!(Entry, state));
        code.jump_if(If::Equal, Reg::R5, 0, next);
        code.load(Size::Double, Reg::R0, Reg::R1, offset_of!(Entry, first));
        code.jump_if_register(If::NotEqual, Reg::R0, Reg::R9, next);
        code.load(Size::Double, Reg::R0, Reg::R1, offset_of!(Entry, second));
        code.jump_if_register(If::Equal, Reg::R0, Reg::R4, found);
        code.place(next);
        code.constant(Op::Add, Reg::R1, size_of::<Entry>() as i32);
    }
    code.jump(slow.counted);
    code.place(found);
    code.jump_if(If::Equal, Reg::R5, LIVE as i32, live);
    // Armed. If another core was faster, the gap ends as well; one that has become live meanwhile is used.
    code.register(Op::Move, Reg::R0, Reg::R5);
    code.constant(Op::Add, Reg::R5, ARMED as i32);
    code.compare_exchange(Reg::R1, offset_of!(Entry, state), Reg::R5);
    code.jump_if(If::NotEqual, Reg::R0, LIVE as i32, slow.counted);
}

/// Sends a frame that is not too long by the entry at R1, and ends.
fn send(code: &mut Assembler, slow: Slow) {
    let fits = code.label();
    code.load(Size::Word, Reg::R5, Reg::R1, offset_of!(Entry, longest));
    code.load(Size::Word, Reg::R4, CONTEXT, LEN);
    code.load(Size::Word, Reg::R0, CONTEXT, GSO_SIZE);
    let whole = code.label();
    code.jump_if(If::Equal, Reg::R0, 0, whole);
    segment_len(code, slow);
    code.jump_if_register(If::Above, Reg::R0, Reg::R5, slow.counted);
    code.jump(fits);
    code.place(whole);
    code.jump_if_register(If::Above, Reg::R4, Reg::R5, slow.counted);
    code.place(fits);
    deliver(code);
}

/// Counts a frame of the length in R4, sends it by the entry at R1, and ends.
fn deliver(code: &mut Assembler) {
    count(code, Reg::R1, offset_of!(Entry, packets));
    code.add_atomically(Reg::R1, offset_of!(Entry, bytes), Reg::R4);
    code.load(Size::Word, Reg::R1, Reg::R1, offset_of!(Entry, to));
    code.constant(Op::And, Reg::R1, PORTS as i32 - 1);
    code.constant(Op::LeftShift, Reg::R1, 1);
    code.constant(Op::Add, Reg::R1, FIRST as i32);
    // Loses R2 alone.
    count(code, CORE, offset_of!(Grace, decided));
    redirect(code);
}

/// Length of the longest segment of a frame that is to be segmented, its headers included, in R0. Loses R2,
/// R3 and R9.
fn segment_len(code: &mut Assembler, slow: Slow) {
    let (ipv4, of_tcp) = (code.label(), code.label());
    code.load(Size::Word, Reg::R2, CONTEXT, DATA);
    code.load(Size::Word, Reg::R3, CONTEXT, DATA_END);
    has_bytes(code, (Reg::R9, 47), slow);
    code.load(Size::Half, Reg::R0, Reg::R2, 12);
    code.jump_if(If::Equal, Reg::R0, IPV4, ipv4);
    code.jump_if(If::NotEqual, Reg::R0, IPV6, slow.counted);
    code.load(Size::Byte, Reg::R0, Reg::R2, 20);
    code.jump_if(If::NotEqual, Reg::R0, TCP, slow.counted);
    has_bytes(code, (Reg::R9, 67), slow);
    code.load(Size::Byte, Reg::R0, Reg::R2, 66);
    code.constant(Op::Move, Reg::R9, 54);
    code.jump(of_tcp);
    code.place(ipv4);
    code.load(Size::Byte, Reg::R0, Reg::R2, 14);
    code.jump_if(If::NotEqual, Reg::R0, PLAIN_IPV4, slow.counted);
    code.load(Size::Byte, Reg::R0, Reg::R2, 23);
    code.jump_if(If::NotEqual, Reg::R0, TCP, slow.counted);
    code.load(Size::Byte, Reg::R0, Reg::R2, 46);
    code.constant(Op::Move, Reg::R9, 34);
    code.place(of_tcp);
    with_headers(code);
}

/// Adds up the length of a segment in R0, from the byte there that has the words of TCP's header, the length
/// of the headers before in R9, and the payload. Loses R3.
fn with_headers(code: &mut Assembler) {
    code.constant(Op::RightShift, Reg::R0, 4);
    code.constant(Op::LeftShift, Reg::R0, 2);
    code.register(Op::Add, Reg::R0, Reg::R9);
    code.load(Size::Word, Reg::R3, CONTEXT, GSO_SIZE);
    code.register(Op::Add, Reg::R0, Reg::R3);
}
