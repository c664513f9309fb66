//! bpf(2), as far as it is needed: a map, programs, and links to tracepoints.

use crate::area::Area;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::{CStr, c_void};
use std::io;
use std::ptr::NonNull;

/// The kernel's description of itself, readable by all users.
pub(crate) const BTF: &str = "/sys/kernel/btf/vmlinux";

// Commands and constants of `include/uapi/linux/bpf.h`.
const MAP_CREATE: libc::c_int = 0;
const PROG_LOAD: libc::c_int = 5;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_TRACING: u32 = 26;
const TRACE_RAW_TP: u32 = 23;
const F_MMAPABLE: u32 = 1 << 10;

/// Bytes kept of the verifier's log about a program that it refuses.
const LOG_SIZE: usize = 64 * 1024;

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

/// # Safety
/// `T` is the beginning of `union bpf_attr` for this command, without uninitialised bytes, and the addresses
/// in it are valid for what the command does with them.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes at `attributes`; the caller vouches for the addresses
    // in them.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    match i32::try_from(result) {
        // SAFETY: the commands used here return a new descriptor, which nothing else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

const fn name(text: &[u8]) -> [u8; 16] {
    let mut name = [0; 16];
    let (short, _) = name.split_at_mut(text.len());
    short.copy_from_slice(text);
    name
}

/// A map that holds one [`Area`], zeroed, to be mapped.
pub(crate) fn create_map() -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        map_type: MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: u32::try_from(size_of::<Area>()).map_err(io::Error::other)?,
        max_entries: 1,
        map_flags: F_MMAPABLE,
        map_name: name(b"hs_vm_state"),
        ..MapCreate::default()
    };
    // SAFETY: the structure is laid out for the command, has no padding, and holds no addresses.
    unsafe { bpf(MAP_CREATE, &attributes) }
}

/// Loads a program for the tracepoint with this BTF number. A refusal comes with the verifier's last words.
pub(crate) fn load(program: &[u64], license: &CStr, tracepoint: u32) -> io::Result<OwnedFd> {
    let mut attributes = ProgLoad {
        prog_type: PROG_TYPE_TRACING,
        insn_cnt: u32::try_from(program.len()).map_err(io::Error::other)?,
        insns: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        prog_name: name(b"hs_vm_state"),
        expected_attach_type: TRACE_RAW_TP,
        attach_btf_id: tracepoint,
        ..ProgLoad::default()
    };
    // SAFETY: the structure is laid out for the command and has no padding; `insns` has `insn_cnt`
    // instructions of 8 bytes, `license` is a C string, and both outlive the call, which only reads them.
    let refused = match unsafe { bpf(PROG_LOAD, &attributes) } {
        Ok(fd) => return Ok(fd),
        Err(error) => error,
    };
    let mut log = vec![0u8; LOG_SIZE];
    attributes.log_level = 1;
    attributes.log_size = u32::try_from(log.len()).map_err(io::Error::other)?;
    attributes.log_buf = log.as_mut_ptr() as u64;
    // SAFETY: as above; and `log_buf` has `log_size` bytes, which nothing else refers to during the call.
    if let Ok(fd) = unsafe { bpf(PROG_LOAD, &attributes) } {
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

/// Attaches a loaded program; it stays attached until the link returned is closed everywhere.
pub(crate) fn attach(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attributes = RawTracepointOpen {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        ..RawTracepointOpen::default()
    };
    // SAFETY: the structure is laid out for the command and has no padding; no name is given, as the program
    // knows its tracepoint.
    unsafe { bpf(RAW_TRACEPOINT_OPEN, &attributes) }
}

/// The mapped area. It stays readable when all other processes have closed the map.
pub(crate) struct Mapping {
    area: NonNull<Area>,
}

// SAFETY: the area consists of atomics, and the mapping is changed only by `drop`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the area of a map made by [`create_map`]; any other descriptor is refused. Without `writable`,
    /// writing to it ends the process.
    pub fn new(map: BorrowedFd<'_>, writable: bool) -> io::Result<Mapping> {
        let write = if writable {
            ProtFlags::WRITE
        } else {
            ProtFlags::empty()
        };
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<Area>(),
                ProtFlags::READ | write,
                MapFlags::SHARED,
                map,
                0,
            )
        }?;
        let area = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Mapping { area })
    }
}

impl std::ops::Deref for Mapping {
    type Target = Area;

    fn deref(&self) -> &Area {
        // SAFETY: the mapping is as long as an `Area`, page-aligned, lives as long as `self`, and cannot
        // shrink, as BPF maps cannot. Any bytes are an `Area`, which consists of integers that are read and
        // written atomically, by the programs as well (aligned stores). Readers use plain loads, which
        // read-only pages allow.
        unsafe { self.area.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference outlives `self`. It fails only for other
        // addresses.
        let _ = unsafe { munmap(self.area.as_ptr().cast::<c_void>(), size_of::<Area>()) };
    }
}
