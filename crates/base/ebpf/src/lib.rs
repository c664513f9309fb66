//! bpf(2), as far as the product needs it: array maps, maps of sockets, programs for tracepoints and for what
//! arrives at a device, and links, which attach a program for as long as one of their descriptors is open.
//!
//! | module | contents |
//! |---|---|
//! | `assembler` | instructions with labels: nothing but Rust is needed to build the product |
//! | `xdp` | programs in the driver of a device, and maps of the sockets to which they hand frames |
//!
//! Maps and programs take CAP_BPF, which the supervisor alone has. Who is given a program may attach it to a
//! device with CAP_NET_ADMIN.
//!
//! Allowed `unsafe`: bpf(2).

pub mod assembler;
mod xdp;

pub use xdp::{SocketPlaces, XdpMode, attach_to_driver, create_socket_map, insert_socket, steering_program};

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ffi::CStr;
use std::io;

// Commands and constants of `include/uapi/linux/bpf.h`.
const MAP_CREATE: libc::c_int = 0;
const PROG_LOAD: libc::c_int = 5;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;
const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
const PROG_TYPE_SCHED_CLS: u32 = 3;
const PROG_TYPE_XDP: u32 = 6;
const XDP_HAS_FRAGS: u32 = 1 << 5;
const PROG_TYPE_TRACING: u32 = 26;
const TRACE_RAW_TP: u32 = 23;
const TCX_INGRESS: u32 = 46;
const F_BEFORE: u32 = 1 << 3;
const F_MMAPABLE: u32 = 1 << 10;

/// Bytes kept of the verifier's log about a program that it refuses.
const LOG_SIZE: usize = 64 * 1024;

/// Longest name of a map or program, in bytes.
const NAME_LEN: usize = 15;

/// First fields of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

/// First fields of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
}

/// First fields of `union bpf_attr` for `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
#[derive(Default)]
struct RawTracepointOpen {
    name: u64,
    prog_fd: u32,
    padding: u32,
}

/// First fields of `union bpf_attr` for `BPF_LINK_CREATE` to a device.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// First fields of `union bpf_attr` for `BPF_LINK_DETACH`.
#[repr(C)]
struct LinkDetach {
    link_fd: u32,
}

/// # Safety
/// `T` is the beginning of `union bpf_attr` for this command, without uninitialised bytes, and the addresses
/// in it are valid for what the command does with them.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes at `attributes`; the caller vouches for the addresses
    // in them.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// # Safety
/// As [`bpf`], for a command that returns a new descriptor.
unsafe fn make<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for command and attributes.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    let bytes = text.bytes().take(NAME_LEN);
    name.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    name
}

/// A map that holds one value of `len` bytes, zeroed, to be mapped. Of the name 15 bytes count.
///
/// # Errors
///
/// The process may not, or the kernel has no memory.
pub fn create_mappable(label: &str, len: usize) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        map_type: MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: u32::try_from(len).map_err(io::Error::other)?,
        max_entries: 1,
        map_flags: F_MMAPABLE,
        map_name: name(label),
        ..MapCreate::default()
    };
    // SAFETY: the structure is laid out for the command, has no padding, and holds no addresses.
    unsafe { make(MAP_CREATE, &attributes) }
}

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The tracepoint with this BTF number.
    Tracepoint(u32),
    /// What arrives at a device: the program decides before the host's stack sees it.
    Ingress,
    /// What arrives at a socket: the program says how many bytes of it the socket gets, or which socket of a
    /// group does.
    Socket,
    /// What arrives at a device: the program decides in its driver, before there is a packet.
    Driver {
        /// Frames may lie in several buffers, which takes Linux 5.18. The program may read the first one.
        in_parts: bool,
    },
}

/// Loads a program under a name, of which 15 bytes count.
///
/// # Errors
///
/// The process may not, or the verifier refuses the program; its last words come with the error.
pub fn load(program: &[u64], license: &CStr, label: &str, purpose: Purpose) -> io::Result<OwnedFd> {
    let mut attributes = ProgLoad {
        insn_cnt: u32::try_from(program.len()).map_err(io::Error::other)?,
        insns: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        prog_name: name(label),
        ..ProgLoad::default()
    };
    match purpose {
        Purpose::Tracepoint(number) => {
            attributes.prog_type = PROG_TYPE_TRACING;
            attributes.expected_attach_type = TRACE_RAW_TP;
            attributes.attach_btf_id = number;
        }
        Purpose::Ingress => attributes.prog_type = PROG_TYPE_SCHED_CLS,
        Purpose::Socket => attributes.prog_type = PROG_TYPE_SOCKET_FILTER,
        Purpose::Driver { in_parts } => {
            attributes.prog_type = PROG_TYPE_XDP;
            attributes.prog_flags = if in_parts { XDP_HAS_FRAGS } else { 0 };
        }
    }
    // SAFETY: the structure is laid out for the command and has no padding; `insns` has `insn_cnt`
    // instructions of 8 bytes, `license` is a C string, and both outlive the call, which only reads them.
    let refused = match unsafe { make(PROG_LOAD, &attributes) } {
        Ok(fd) => return Ok(fd),
        Err(error) => error,
    };
    let mut log = vec![0u8; LOG_SIZE];
    attributes.log_level = 1;
    attributes.log_size = u32::try_from(log.len()).map_err(io::Error::other)?;
    attributes.log_buf = log.as_mut_ptr() as u64;
    // SAFETY: as above; and `log_buf` has `log_size` bytes, which nothing else refers to during the call.
    if let Ok(fd) = unsafe { make(PROG_LOAD, &attributes) } {
        return Ok(fd);
    }
    let log = String::from_utf8_lossy(&log);
    let lines = log.trim_end_matches('\0').trim_end().lines().rev();
    let reason = lines
        .filter(|line| !line.starts_with("processed "))
        .take(2)
        .collect::<Vec<_>>();
    Err(io::Error::new(refused.kind(), format!("{refused} {reason:?}")))
}

/// Attaches a program to its tracepoint, until the link returned is closed everywhere.
///
/// # Errors
///
/// The process may not, or the descriptor is no such program.
pub fn attach_to_tracepoint(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attributes = RawTracepointOpen {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        ..RawTracepointOpen::default()
    };
    // SAFETY: the structure is laid out for the command and has no padding; no name is given, as the program
    // knows its tracepoint.
    unsafe { make(RAW_TRACEPOINT_OPEN, &attributes) }
}

/// Attaches a program to what arrives at a device of the calling thread's network namespace, before all
/// others that are there, until the link returned is closed everywhere, detached, or the device is gone.
///
/// # Errors
///
/// The kernel is older than 6.6 (EINVAL), the process may not, there is no such device, or the descriptor is
/// no such program.
pub fn attach_to_ingress(program: BorrowedFd<'_>, device: u32) -> io::Result<OwnedFd> {
    let attributes = LinkCreate {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_ifindex: device,
        attach_type: TCX_INGRESS,
        flags: F_BEFORE,
    };
    // SAFETY: the structure is laid out for the command, has no padding, and holds no addresses.
    unsafe { make(LINK_CREATE, &attributes) }
}

/// Ends what a link does at once, even if other processes have its descriptor.
///
/// # Errors
///
/// The descriptor is no link that can be detached.
pub fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let attributes = LinkDetach {
        link_fd: link.as_raw_fd().cast_unsigned(),
    };
    // SAFETY: the structure is laid out for the command, has no padding, and holds no addresses.
    unsafe { bpf(LINK_DETACH, &attributes) }.map(drop)
}
