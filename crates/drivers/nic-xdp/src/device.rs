//! AF_XDP sockets on devices, as the process with privileges opens them.

use crate::area::Area;
use crate::{Layout, MAX_QUEUES};
use ebpf::{Purpose, SocketPlaces, XdpMode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

/// Places in the map of sockets.
const PLACES: SocketPlaces = SocketPlaces {
    devices: 2048,
    queues: MAX_QUEUES,
};

/// How long queues are asked for that have a socket still, and the time between: the processes that had the
/// device before are closing it.
const PATIENCE: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(20);

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
        let map = ebpf::create_socket_map("hs_sockets", PLACES.entries())?;
        let program = ebpf::steering_program(map.as_fd(), PLACES);
        let load = |in_parts| {
            let purpose = Purpose::Driver { in_parts };
            ebpf::load(&program, c"Apache-2.0", "hs_steer", purpose)
        };
        // Drivers refuse the second one for frames that are longer than a buffer of theirs.
        let program = load(true).or_else(|_| load(false))?;
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

/// AF_XDP sockets on a device, one for each of its queues. No frame is read or written here.
#[derive(Debug)]
pub struct XdpDevice {
    sockets: Vec<OwnedFd>,
    memory: OwnedFd,
    /// Attaches the program, as long as one of its descriptors is open.
    link: OwnedFd,
    layout: Layout,
    generic: Option<String>,
    is_zero_copy: bool,
}

impl XdpDevice {
    /// Opens a socket on each queue of a device, and has its frames handed to the sockets. Takes CAP_NET_RAW
    /// and CAP_NET_ADMIN. Waits for 2 s at most for others to close the device.
    ///
    /// # Errors
    ///
    /// The device, its driver or the kernel cannot: the text says what to do.
    pub fn open(target: Target<'_>, steering: &Steering) -> Result<XdpDevice, Refused> {
        let layout = layout_for(target)?;
        let memory = Area::make(layout).map_err(|error| refused("no memory for frames", error))?;
        let sockets: Result<Vec<_>, _> = (0..layout.queues())
            .map(|queue| register(&memory, layout, queue))
            .collect();
        let sockets = sockets?;
        let (link, generic) = attach(target, steering)?;
        let deadline = Instant::now() + PATIENCE;
        for (socket, queue) in sockets.iter().zip(0..) {
            bind_to(socket, target, queue, layout, generic.is_some(), deadline)?;
            let place = PLACES.of(target.index, queue);
            ebpf::insert_socket(steering.map.as_fd(), place, socket.as_fd())
                .map_err(|error| refused("another device has its place in the map of sockets", error))?;
        }
        let is_zero_copy = sockets.iter().all(|socket| {
            let options = sockopt::xdp_options(socket);
            options.is_ok_and(|all| all.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
        });
        Ok(XdpDevice {
            sockets,
            memory,
            link,
            layout,
            generic,
            is_zero_copy,
        })
    }

    /// One that another process has opened, by its [descriptors](Self::descriptors) and what it said; `None`
    /// if their number is another one.
    pub fn of_descriptors(
        descriptors: Vec<OwnedFd>,
        layout: Layout,
        generic: Option<String>,
        is_zero_copy: bool,
    ) -> Option<XdpDevice> {
        let mut sockets = descriptors;
        let link = sockets.pop()?;
        let memory = sockets.pop()?;
        (sockets.len() == layout.queues() as usize).then_some(XdpDevice {
            sockets,
            memory,
            link,
            layout,
            generic,
            is_zero_copy,
        })
    }

    /// A socket for each queue, memory of frames, link of the program. Who moves frames needs all but the
    /// last.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets
            .iter()
            .chain([&self.memory, &self.link])
            .map(AsFd::as_fd)
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
    let Some(most) = Layout::new(4096, true, queues.max(1)) else {
        return Err(Refused(format!(
            "it has {queues} queues, and {MAX_QUEUES} are served at most: `ethtool -L {name} combined {MAX_QUEUES}`"
        )));
    };
    if target.takes_tags_out {
        return Err(Refused(format!(
            "its driver takes VLAN tags out of frames: `ethtool -K {name} rxvlan off`"
        )));
    }
    Layout::of_device(mtu, most.queues()).ok_or_else(|| {
        let most = most.largest_mtu();
        let what = format!("its MTU of {mtu} is more than the {most} that AF_XDP takes");
        Refused(format!("{what}: `ip link set {name} mtu {most}`"))
    })
}

/// Makes the socket of a queue, with its slice of the memory and its rings.
fn register(memory: &OwnedFd, layout: Layout, queue: u32) -> Result<OwnedFd, Refused> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
        .map_err(|error| refused("the kernel makes no AF_XDP socket", error))?;
    let mapped = Area::map(memory.as_fd(), layout, queue);
    let mapped = mapped.map_err(|error| refused("no memory for frames", error))?;
    let region = XdpUmemReg {
        addr: mapped.address(),
        len: mapped.len() as u64,
        chunk_size: layout.chunk(),
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    let (received, transmitted) = (layout.received(), layout.transmitted());
    sockopt::set_xdp_umem_reg(&socket, region).map_err(|errno| match errno {
        Errno::NOBUFS => Refused(format!(
            "{} KiB more of locked memory are not allowed: raise `LimitMEMLOCK` of the service",
            layout.bytes() / 1024
        )),
        errno => refused("the kernel does not take the memory for frames", errno),
    })?;
    sockopt::set_xdp_umem_fill_ring_size(&socket, received)
        .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(&socket, transmitted))
        .and_then(|()| sockopt::set_xdp_rx_ring_size(&socket, received))
        .and_then(|()| match queue {
            0 => sockopt::set_xdp_tx_ring_size(&socket, transmitted),
            _ => Ok(()),
        })
        .map_err(|errno| refused("the kernel makes no rings", errno))?;
    Ok(socket)
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

/// Binds a socket to a queue of a device, which may have another one that is about to be closed.
fn bind_to(
    socket: &OwnedFd,
    target: Target<'_>,
    queue: u32,
    layout: Layout,
    is_generic: bool,
    deadline: Instant,
) -> Result<(), Refused> {
    // Without a flag for it the kernel copies if the driver has no zero copy.
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    flags.set(SocketAddrXdpFlags::XDP_COPY, is_generic);
    flags.set(SocketAddrXdpFlags::XDP_USE_SG, layout.in_parts());
    let address = SocketAddrXdp::new(flags, target.index, queue);
    loop {
        match bind(socket, &address) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(BETWEEN),
            Err(Errno::BUSY) => {
                return Err(Refused("another AF_XDP socket has its queue".into()));
            }
            Err(Errno::INVAL) if layout.in_parts() => return Err(no_parts(target)),
            Err(errno) => return Err(refused("an AF_XDP socket cannot be bound to it", errno)),
        }
    }
}

/// The kernel knows no frames in several chunks.
fn no_parts(
    Target {
        name, mtu, queues, ..
    }: Target<'_>,
) -> Refused {
    let most = Layout::new(4096, false, queues.max(1)).map_or(1500, Layout::largest_mtu);
    Refused(format!(
        "its MTU of {mtu} is more than the {most} that AF_XDP takes before Linux 6.6: `ip link set {name} mtu {most}`"
    ))
}
