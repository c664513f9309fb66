//! Sockets beside an uplink's: the frames of a device are divided between the uplink's socket and a *queue*,
//! by destination address.
//!
//! Both sockets are in one fan-out group of the kernel (`packet(7)`, PACKET_FANOUT). A program chooses for
//! each frame: the queue if the frame has no VLAN tag and the table has its destination for this device,
//! otherwise the uplink's socket. So a frame reaches exactly one of them, at one moment, in the order in
//! which frames arrive.
//!
//! | what ends | who gets the frames for addresses in the table |
//! |---|---|
//! | an entry of the table | the uplink's socket, from then on |
//! | the queue, with its process | the uplink's socket: the group has no second member |
//! | the uplink's socket | the queue, until the device is opened again, which takes its entries out before |
//!
//! The program is the queue's filter as well: a group of which the queue is the only member gives it frames
//! that are not for it.
//!
//! The table is memory that the broker has mapped, so that it needs no bpf(2). Entries lie in sets of
//! [`WAYS`], found by a hash of device and address. A wrong entry costs time and never isolation, as frames
//! are decided about afterwards.

use crate::netlink::Netlink;
use crate::receive_ring::{ReceiveRing, set, set_at};
use crate::uplink::{SetupError, bind, set_up};
use crate::{NicError, check_name};
use ebpf::assembler::{Assembler, Constant, If, Op, Reg, Size};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Entries of a set.
const WAYS: usize = 4;
/// Sets, a power of two.
const SETS: usize = 2048;
/// Multiplier of the hash: the golden ratio's fraction.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits of a product that are not of the set's number.
const SHIFT: u32 = u64::BITS - SETS.ilog2();

// Constants of `linux/if_packet.h` and `linux/bpf.h`.
const FANOUT_EBPF: libc::c_int = 7;
const FANOUT_UNIQUE_ID: libc::c_int = 0x2000;
const FANOUT_IGNORE_OUTGOING: libc::c_int = 0x4000;
const SKB_LOAD_BYTES_RELATIVE: i32 = 68;

// Offsets in `struct __sk_buff`.
const VLAN_PRESENT: usize = 20;
const IFINDEX: usize = 40;

/// The first kernel whose groups do not see what the host itself sends, with a margin.
const FIRST_KERNEL: (u32, u32) = (6, 2);

type Table = [AtomicU64; SETS * WAYS];

/// The program that divides frames, and its table. One for all devices.
#[derive(Debug)]
pub struct FanOut {
    program: OwnedFd,
    map: OwnedFd,
    table: Mapping,
}

impl FanOut {
    /// Loads the program. Takes CAP_BPF and CAP_NET_ADMIN.
    ///
    /// # Errors
    ///
    /// The process may not, or the kernel is older than 6.2.
    pub fn load() -> io::Result<FanOut> {
        let release = rustix::system::uname();
        if version(&release.release().to_string_lossy()) < FIRST_KERNEL {
            return Err(io::Error::other("the kernel is older than 6.2"));
        }
        let map = ebpf::create_mappable("hs_fan_out", size_of::<Table>())?;
        let code = program(map.as_fd());
        let program = ebpf::load(&code, c"Apache-2.0", "hs_fan_out", ebpf::Purpose::Socket)?;
        FanOut::of_descriptors([program, map])
    }

    /// One that another process has loaded, by its [descriptors](Self::descriptors).
    ///
    /// # Errors
    ///
    /// There is no room in the address space.
    pub fn of_descriptors([program, map]: [OwnedFd; 2]) -> io::Result<FanOut> {
        let table = Mapping::new(map.as_fd())?;
        Ok(FanOut { program, map, table })
    }

    /// Program and table.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.program.as_fd(), self.map.as_fd()]
    }

    /// Has untagged frames of a device that are for that address go to its queue, if it has one.
    ///
    /// # Errors
    ///
    /// There is no room for the address, or it is one of a group.
    pub fn add(&self, device: u32, mac: [u8; 6]) -> io::Result<()> {
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let key = key(device, mac);
        let set = self.set(key);
        let has_it = || set.iter().any(|entry| entry.load(Relaxed) == key);
        let add = |entry: &AtomicU64| entry.compare_exchange(0, key, Relaxed, Relaxed).is_ok();
        if has_it() || set.iter().any(add) {
            return Ok(());
        }
        Err(io::Error::other("the table of filters is full"))
    }

    /// Has frames go to the uplink's socket again. No error if they do.
    pub fn remove(&self, device: u32, mac: [u8; 6]) {
        let key = key(device, mac);
        take_out(self.set(key), |entry| entry == key);
    }

    /// Removes all filters of a device.
    pub fn clear(&self, device: u32) {
        let of_device = key(device, [0; 6]);
        let mask = key(u32::MAX, [0; 6]);
        take_out(self.table.entries(), |entry| entry & mask == of_device);
    }

    /// Opens a queue of an interface, beside the socket by which its uplink is open. Filters of the device
    /// are removed before. Returns the queue's socket, and the length of the virtio-net header in front of
    /// each frame that is a message of the socket, in bytes.
    ///
    /// # Errors
    ///
    /// There is none of this name, or the kernel refused.
    pub fn open_queue(&self, name: &str, uplink: BorrowedFd<'_>) -> Result<(OwnedFd, u8), NicError> {
        check_name(name)?;
        let link = Netlink::new()?
            .link(name)?
            .ok_or_else(|| NicError::Missing(name.into()))?;
        self.clear(link.index);
        let refused = |(what, error): SetupError| NicError::refused(format!("{name}: {what}"), error);
        let group = self.group_of(uplink).map_err(refused)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|errno| NicError::refused("packet socket", errno))?;
        let header_len = set_up(&socket).map_err(refused)?;
        let program = self.program.as_raw_fd();
        set_at(libc::SOL_SOCKET, socket.as_fd(), libc::SO_ATTACH_BPF, &program)
            .map_err(|error| refused(("SO_ATTACH_BPF", error)))?;
        ReceiveRing::make(socket.as_fd()).map_err(|error| refused(("a receive ring", error)))?;
        let index = i32::try_from(link.index).map_err(|_| NicError::Missing(name.into()))?;
        bind(&socket, index, libc::ETH_P_ALL).map_err(|error| refused(("bind", error)))?;
        let join = group | (FANOUT_EBPF | FANOUT_IGNORE_OUTGOING) << 16;
        set(socket.as_fd(), libc::PACKET_FANOUT, &join)
            .map_err(|error| refused(("joining the uplink's group", error)))?;
        Ok((socket, u8::try_from(header_len).unwrap_or(0)))
    }

    /// The number of the group that an uplink's socket is in, from now on if it was in none.
    fn group_of(&self, uplink: BorrowedFd<'_>) -> Result<libc::c_int, SetupError> {
        let group = group(uplink).map_err(|error| ("PACKET_FANOUT", error))?;
        if group != 0 {
            return Ok(group & 0xffff);
        }
        let made = (FANOUT_EBPF | FANOUT_UNIQUE_ID | FANOUT_IGNORE_OUTGOING) << 16;
        set(uplink, libc::PACKET_FANOUT, &made).map_err(|error| ("a group of sockets", error))?;
        let program = self.program.as_raw_fd();
        set(uplink, libc::PACKET_FANOUT_DATA, &program).map_err(|error| ("a group's program", error))?;
        let group = self::group(uplink).map_err(|error| ("PACKET_FANOUT", error))?;
        Ok(group & 0xffff)
    }

    fn set(&self, key: u64) -> &[AtomicU64] {
        let first = WAYS * (key.wrapping_mul(GOLDEN) >> SHIFT) as usize;
        self.table.entries().get(first..first + WAYS).unwrap_or_default()
    }
}

/// Has a socket receive nothing any more.
pub(crate) fn deafen(socket: BorrowedFd<'_>) -> io::Result<()> {
    // `ret #0`.
    let mut filter = [libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: filter.as_mut_ptr(),
    };
    set_at(libc::SOL_SOCKET, socket, libc::SO_ATTACH_FILTER, &program)
}

fn take_out(entries: &[AtomicU64], is_meant: impl Fn(u64) -> bool) {
    for entry in entries {
        let found = entry.load(Relaxed);
        if found != 0 && is_meant(found) {
            // Another thread may have taken it out, and put another one in.
            let _ = entry.compare_exchange(found, 0, Relaxed, Relaxed);
        }
    }
}

/// An entry, as the program makes it: the address, and 16 bits of the device's number.
fn key(device: u32, mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    let [low, high] = (device as u16).to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, low, high])
}

/// Major and minor number of a kernel's release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0);
    (next(), next())
}

/// The group of a packet socket, 0 for none: its number in the lower half, what it is in the upper one.
fn group(socket: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    let mut group: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: pointers and length describe one live integer, and its length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_FANOUT,
            (&raw mut group).cast(),
            &raw mut len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(group)
}

/// The program: all ones for a frame that is the queue's, and 0 for another one. In a group of two these are
/// the numbers 1 and 0 of its sockets, in a group of one the number 0; as a filter, they take all of a frame
/// or nothing.
fn program(map: BorrowedFd<'_>) -> Vec<u64> {
    let mut code = Assembler::default();
    let (none, found) = (code.label(), code.label());
    code.register(Op::Move, Reg::R6, Reg::R1);
    code.load(Size::Word, Reg::R2, Reg::R6, VLAN_PRESENT);
    code.jump_if(If::NotEqual, Reg::R2, 0, none);
    // The key is made on the stack.
    code.register(Op::Move, Reg::R7, Reg::R10);
    code.constant(Op::Add, Reg::R7, -8);
    code.constant(Op::Move, Reg::R0, 0);
    code.store(Size::Double, Reg::R7, 0, Reg::R0);
    code.register(Op::Move, Reg::R1, Reg::R6);
    code.constant(Op::Move, Reg::R2, 0);
    code.register(Op::Move, Reg::R3, Reg::R7);
    code.constant(Op::Move, Reg::R4, 6);
    // From the Ethernet header on (BPF_HDR_START_MAC), wherever the packet begins here.
    code.constant(Op::Move, Reg::R5, 0);
    code.call(SKB_LOAD_BYTES_RELATIVE);
    code.jump_if(If::NotEqual, Reg::R0, 0, none);
    code.load(Size::Word, Reg::R2, Reg::R6, IFINDEX);
    code.store(Size::Half, Reg::R7, 6, Reg::R2);
    code.load(Size::Double, Reg::R8, Reg::R7, 0);
    code.wide(Reg::R3, Constant::Number(GOLDEN));
    code.register(Op::Move, Reg::R9, Reg::R8);
    code.register(Op::Multiply, Reg::R9, Reg::R3);
    code.constant(Op::RightShift, Reg::R9, SHIFT.cast_signed());
    code.constant(Op::LeftShift, Reg::R9, (WAYS * 8).ilog2().cast_signed());
    let (map, offset) = (map.as_raw_fd(), 0);
    code.wide(Reg::R4, Constant::MapValue { map, offset });
    code.register(Op::Add, Reg::R4, Reg::R9);
    for way in 0..WAYS {
        code.load(Size::Double, Reg::R3, Reg::R4, 8 * way);
        code.jump_if_register(If::Equal, Reg::R3, Reg::R8, found);
    }
    code.place(none);
    code.exit();
    code.place(found);
    code.constant(Op::Move, Reg::R0, -1);
    code.exit_with_result();
    code.finish()
}

/// The table, mapped.
#[derive(Debug)]
struct Mapping(NonNull<Table>);

// SAFETY: the mapping is owned by this value, stays where it is until it is dropped, and is used through
// atomics alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(map: BorrowedFd<'_>) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<Table>(),
                protection,
                MapFlags::SHARED,
                map,
                0,
            )
        }?;
        let table = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Mapping(table))
    }

    fn entries(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is as long as a `Table`, page-aligned, lives as long as `self`, and cannot
        // shrink, as BPF maps cannot.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Table>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_kernels_are_compared_by_their_numbers() {
        assert_eq!(version("6.18.44-fc-v657"), (6, 18));
        assert_eq!(version("6.2"), (6, 2));
        assert_eq!(version("7"), (7, 0));
        assert_eq!(version("odd"), (0, 0));
        assert!(version("6.10.1") > FIRST_KERNEL && version("6.1.99") < FIRST_KERNEL);
    }
}
