//! Programs that decide in the driver of a device, and maps of the sockets to which they hand frames
//! (`Documentation/bpf/map_xskmap.rst`).

use super::{LINK_CREATE, LinkCreate, MAP_CREATE, MapCreate, bpf, make, name};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::io;

// Constants of `include/uapi/linux/bpf.h` and `if_link.h`.
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_TYPE_XSKMAP: u32 = 17;
const ATTACH_XDP: u32 = 37;
const NOEXIST: u64 = 1;
const FLAGS_SKB_MODE: u32 = 1 << 1;
const FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_PASS: u64 = 2;
const REDIRECT_MAP: u64 = 51;

/// Attributes of `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
struct MapUpdate {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Where a program decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, which must be able to.
    Native,
    /// Where the kernel has made a packet; every device can.
    Generic,
}

/// A map of AF_XDP sockets, with numbers below `entries`. Of the name 15 bytes count.
///
/// # Errors
///
/// The process may not, or the kernel is older than 4.18 or has no AF_XDP.
pub fn create_socket_map(label: &str, entries: u32) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        map_type: MAP_TYPE_XSKMAP,
        key_size: 4,
        value_size: 4,
        max_entries: entries,
        map_name: name(label),
        ..MapCreate::default()
    };
    // SAFETY: the structure is laid out for the command, has no padding, and holds no addresses.
    unsafe { make(MAP_CREATE, &attributes) }
}

/// Places of a map of sockets: one for each queue of each device. Devices whose numbers are equal modulo
/// `devices` share places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketPlaces {
    /// Devices that have places, a power of two.
    pub devices: u32,
    /// Queues of a device that have places, a power of two.
    pub queues: u32,
}

impl SocketPlaces {
    /// Number of all places.
    pub fn entries(self) -> u32 {
        self.devices * self.queues
    }

    /// The place of a queue, which is less than `queues`.
    pub fn of(self, device: u32, queue: u32) -> u32 {
        (device & (self.devices - 1)) * self.queues + queue
    }
}

/// Instructions of a program that hands each frame to the socket in `map` for the device and the queue in
/// which the frame arrived. Without such a socket the frame goes on to the kernel's stack. To be loaded for
/// [`Purpose::Driver`](super::Purpose::Driver); takes Linux 5.3.
pub fn steering_program(map: BorrowedFd<'_>, places: SocketPlaces) -> [u64; 12] {
    let instruction = |code: u64, registers: u64, offset: u64, immediate: u64| {
        code | registers << 8 | offset << 16 | immediate << 32
    };
    let map = u64::from(map.as_raw_fd().cast_unsigned());
    [
        // r0 = XDP_PASS
        instruction(0xb7, 0x00, 0, XDP_PASS),
        // r2 = *(u32 *)(r1 + offsetof(struct xdp_md, rx_queue_index))
        instruction(0x61, 0x12, 16, 0),
        // if r2 >= queues, go to the end
        instruction(0x35, 0x02, 8, u64::from(places.queues)),
        // r3 = *(u32 *)(r1 + offsetof(struct xdp_md, ingress_ifindex))
        instruction(0x61, 0x13, 12, 0),
        // r3 &= devices - 1
        instruction(0x57, 0x03, 0, u64::from(places.devices - 1)),
        // r3 *= queues
        instruction(0x27, 0x03, 0, u64::from(places.queues)),
        // r2 += r3
        instruction(0x0f, 0x32, 0, 0),
        // r1 = map, which takes two instructions
        instruction(0x18, 0x11, 0, map),
        0,
        // r3 = XDP_PASS
        instruction(0xb7, 0x03, 0, XDP_PASS),
        // r0 = bpf_redirect_map(r1, r2, r3)
        instruction(0x85, 0, 0, REDIRECT_MAP),
        // return r0
        instruction(0x95, 0, 0, 0),
    ]
}

/// Puts an AF_XDP socket into a map, where it stays until it is closed.
///
/// # Errors
///
/// The number has a socket already (EEXIST), or is too large (E2BIG); the socket is not bound (EOPNOTSUPP).
pub fn insert_socket(map: BorrowedFd<'_>, number: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd();
    let attributes = MapUpdate {
        map_fd: map.as_raw_fd().cast_unsigned(),
        padding: 0,
        key: (&raw const number) as u64,
        value: (&raw const value) as u64,
        flags: NOEXIST,
    };
    // SAFETY: the structure is laid out for the command and has no padding; key and value are of the map's
    // sizes and outlive the call, which only reads them.
    unsafe { bpf(MAP_UPDATE_ELEM, &attributes) }.map(drop)
}

/// Attaches a program to a device of the calling thread's network namespace, until the link returned is
/// closed everywhere, [detached](super::detach), or the device is gone.
///
/// # Errors
///
/// The device has another program (EBUSY, EEXIST), its driver has no such mode (EOPNOTSUPP) or not with its
/// MTU, or that of its peer (ERANGE, EINVAL); the kernel is older than 5.9 (EINVAL), the process may not.
pub fn attach_to_driver(program: BorrowedFd<'_>, device: u32, mode: XdpMode) -> io::Result<OwnedFd> {
    let attributes = LinkCreate {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_ifindex: device,
        attach_type: ATTACH_XDP,
        flags: match mode {
            XdpMode::Native => FLAGS_DRV_MODE,
            XdpMode::Generic => FLAGS_SKB_MODE,
        },
    };
    // SAFETY: the structure is laid out for the command, has no padding, and holds no addresses.
    unsafe { make(LINK_CREATE, &attributes) }
}
