//! AF_XDP sockets on devices, as the process with privileges opens them.

use crate::area::Area;
use crate::{AREA, HEADROOM, LINK_HEADERS, Layout};
use ebpf::XdpMode;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::fmt;
use std::io;
use std::time::Duration;

/// Places of devices in the map of sockets, a power of two.
const SLOTS: u32 = 4096;

/// How often a queue is asked for that has a socket still, and the time between: the processes that had the
/// device before are closing it.
const TRIES: (u32, Duration) = (100, Duration::from_millis(20));

/// Why a device has no AF_XDP socket; a text for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

fn refused(what: &str, error: impl fmt::Display) -> Refused {
    Refused(format!("{what}: {error}"))
}

/// The program that hands frames to sockets, and its map of sockets. One for all devices.
#[derive(Debug)]
pub struct Steering {
    program: OwnedFd,
    map: OwnedFd,
}

impl Steering {
    /// Loads the program. Takes CAP_BPF and CAP_NET_ADMIN.
    ///
    /// # Errors
    ///
    /// The process may not, or the kernel has no such programs or maps.
    pub fn load() -> io::Result<Steering> {
        let map = ebpf::create_socket_map("hs_sockets", SLOTS)?;
        let program = ebpf::steering_program(map.as_fd(), SLOTS);
        let program = ebpf::load(&program, c"Apache-2.0", "hs_steer", ebpf::Purpose::Driver)?;
        Ok(Steering { program, map })
    }

    /// One that another process has loaded, by its [descriptors](Self::descriptors).
    pub fn of_descriptors([program, map]: [OwnedFd; 2]) -> Steering {
        Steering { program, map }
    }

    /// Program and map.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.program.as_fd(), self.map.as_fd()]
    }
}

/// A device of the calling thread's network namespace.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Name of the interface.
    pub name: &'a str,
    /// Index of the interface.
    pub index: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Queues in which frames arrive.
    pub queues: u32,
    /// VLAN tags are taken out of frames, and passed beside.
    pub takes_tags_out: bool,
}

/// An AF_XDP socket on a device. No frame is read or written here.
#[derive(Debug)]
pub struct XdpDevice {
    socket: OwnedFd,
    memory: OwnedFd,
    /// Attaches the program, as long as one of its descriptors is open.
    link: OwnedFd,
    layout: Layout,
    generic: Option<String>,
    is_zero_copy: bool,
}

impl XdpDevice {
    /// Opens a socket on a device, and has its frames handed to the socket. Takes CAP_NET_RAW and
    /// CAP_NET_ADMIN. Waits for 2 s at most for others to close the device.
    ///
    /// # Errors
    ///
    /// The device, its driver or the kernel cannot: the text says what to do.
    pub fn open(target: Target<'_>, steering: &Steering) -> Result<XdpDevice, Refused> {
        let layout = layout_for(target)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
            .map_err(|error| refused("the kernel makes no AF_XDP socket", error))?;
        let memory = Area::make().map_err(|error| refused("no memory for frames", error))?;
        register(&socket, &memory, layout)?;
        let (link, generic) = attach(target, steering)?;
        bind_to(&socket, target.index, generic.is_some())?;
        ebpf::insert_socket(steering.map.as_fd(), target.index % SLOTS, socket.as_fd())
            .map_err(|error| refused("another device has its place in the map of sockets", error))?;
        let options = sockopt::xdp_options(&socket);
        let is_zero_copy = options.is_ok_and(|all| all.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        Ok(XdpDevice {
            socket,
            memory,
            link,
            layout,
            generic,
            is_zero_copy,
        })
    }

    /// One that another process has opened, by its [descriptors](Self::descriptors) and what it said.
    pub fn of_descriptors(
        [socket, memory, link]: [OwnedFd; 3],
        layout: Layout,
        generic: Option<String>,
        is_zero_copy: bool,
    ) -> XdpDevice {
        XdpDevice {
            socket,
            memory,
            link,
            layout,
            generic,
            is_zero_copy,
        }
    }

    /// Socket, memory of frames, link of the program. Who moves frames needs the first two.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.socket.as_fd(), self.memory.as_fd(), self.link.as_fd()]
    }

    /// How the memory is divided.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Why the program runs behind the driver instead of in it, if it does.
    pub fn generic(&self) -> Option<&String> {
        self.generic.as_ref()
    }

    /// Whether the device itself reads and writes the memory of frames.
    pub fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Takes the program away at once, even if other processes have its link: no frame arrives from now on.
    pub fn close(self) {
        // The device may be gone already, and the program with it.
        let _ = ebpf::detach(self.link.as_fd());
    }

    /// Frames that arrived since the socket was opened and that the kernel has dropped: no room, or too long.
    pub fn lost(socket: BorrowedFd<'_>) -> u64 {
        let statistics = sockopt::xdp_statistics(socket);
        statistics.map_or(0, |all| {
            all.rx_dropped.saturating_add(all.rx_ring_full.unwrap_or(0))
        })
    }
}

/// How the memory for a device is divided, if AF_XDP fits the device.
fn layout_for(target: Target<'_>) -> Result<Layout, Refused> {
    let Target {
        name, mtu, queues, ..
    } = target;
    if queues > 1 {
        return Err(Refused(format!(
            "it has {queues} queues, and one is served: `ethtool -L {name} combined 1`"
        )));
    }
    if target.takes_tags_out {
        return Err(Refused(format!(
            "its driver takes VLAN tags out of frames: `ethtool -K {name} rxvlan off`"
        )));
    }
    Layout::of_mtu(mtu).ok_or_else(|| {
        let most = 4096 - HEADROOM - LINK_HEADERS;
        let what = format!("its MTU of {mtu} is more than the {most} that AF_XDP takes");
        Refused(format!("{what}: `ip link set {name} mtu {most}`"))
    })
}

/// Gives a socket its memory and its rings.
fn register(socket: &OwnedFd, memory: &OwnedFd, layout: Layout) -> Result<(), Refused> {
    let mapped = Area::map(memory.as_fd()).map_err(|error| refused("no memory for frames", error))?;
    let region = XdpUmemReg {
        addr: mapped.address(),
        len: AREA as u64,
        chunk_size: layout.chunk(),
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    let (received, transmitted) = (layout.received(), layout.transmitted());
    sockopt::set_xdp_umem_reg(socket, region).map_err(|errno| match errno {
        Errno::NOBUFS => Refused(format!(
            "{} KiB more of locked memory are not allowed: raise `LimitMEMLOCK` of the service",
            AREA / 1024
        )),
        errno => refused("the kernel does not take the memory for frames", errno),
    })?;
    sockopt::set_xdp_umem_fill_ring_size(socket, received)
        .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(socket, transmitted))
        .and_then(|()| sockopt::set_xdp_rx_ring_size(socket, received))
        .and_then(|()| sockopt::set_xdp_tx_ring_size(socket, transmitted))
        .map_err(|errno| refused("the kernel makes no rings", errno))
}

/// Attaches the program, in the driver if that can, and says why not.
fn attach(target: Target<'_>, steering: &Steering) -> Result<(OwnedFd, Option<String>), Refused> {
    let Target { name, index, mtu, .. } = target;
    let attach = |mode| ebpf::attach_to_driver(steering.program.as_fd(), index, mode);
    let errno = |error: &io::Error| error.raw_os_error().map(Errno::from_raw_os_error);
    let error = match attach(XdpMode::Native) {
        Ok(link) => return Ok((link, None)),
        Err(error) => error,
    };
    let why = match errno(&error) {
        Some(Errno::OPNOTSUPP) => "its driver has no XDP".into(),
        Some(Errno::BUSY | Errno::EXIST) => return Err(taken(name)),
        Some(Errno::RANGE | Errno::INVAL) => {
            return Err(Refused(format!(
                "its driver takes no XDP program with an MTU of {mtu}, or with that of its peer: set both to 1500"
            )));
        }
        _ => return Err(refused("its driver takes no XDP program", error)),
    };
    match attach(XdpMode::Generic) {
        Ok(link) => Ok((link, Some(why))),
        Err(error) => match errno(&error) {
            Some(Errno::BUSY | Errno::EXIST) => Err(taken(name)),
            _ => Err(refused("the kernel takes no XDP program for it", error)),
        },
    }
}

fn taken(name: &str) -> Refused {
    Refused(format!(
        "it has an XDP program of somebody else (`bpftool net`): `ip link set {name} xdp off` ends that"
    ))
}

/// Binds a socket to the queue of a device, which may have another one that is about to be closed.
fn bind_to(socket: &OwnedFd, index: u32, is_generic: bool) -> Result<(), Refused> {
    // Without a flag for it the kernel copies if the driver has no zero copy.
    let copy = if is_generic {
        SocketAddrXdpFlags::XDP_COPY
    } else {
        SocketAddrXdpFlags::empty()
    };
    let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | copy, index, 0);
    for _ in 0..TRIES.0 {
        match bind(socket, &address) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => std::thread::sleep(TRIES.1),
            Err(errno) => return Err(refused("an AF_XDP socket cannot be bound to it", errno)),
        }
    }
    Err(Refused("another AF_XDP socket has its queue".into()))
}
