//! Packet sockets on existing interfaces (`packet(7)`).
//!
//! An uplink sees everything that arrives at its interface, whatever the destination address, and nothing
//! that the host itself sends. The host's own stack receives the same frames, unless the interface is
//! [hidden](crate::Hiding).
//!
//! Frames arrive in a ring ([`ReceiveRing`]); long ones, and all on a kernel without such rings, as messages
//! of the socket. The kernel takes the outer VLAN tag out of a received frame and reports it beside; in a
//! message's control data [`vlan_tag`] finds it, for the caller to put back.

use crate::fan_out;
use crate::netlink::{Change, Netlink};
use crate::receive_ring::{ReceiveRing, set};
use crate::vlan_tag::VlanTag;
use crate::{NicError, VNET_HEADER_LEN, check_name};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Room for the control messages of one frame.
pub const CONTROL_LEN: usize = 64;

/// Receive buffer asked for, in bytes: two full batches of the largest frames.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Send buffer asked for by a socket that only sends, in bytes, as the kernel counts them: some 40 of the
/// largest frames.
const SEND_BUFFER: usize = 2 << 20;

const AUXDATA_LEN: usize = 20;

/// A protocol that no frame has (`ETHERTYPE` 0xffff is reserved). Not every kernel lets a socket have none.
const RESERVED_PROTOCOL: libc::c_int = 0xffff;

/// A packet socket bound to one interface, non-blocking, promiscuous, with virtio-net headers. Frames are
/// read and written through [`PacketSocket`].
#[derive(Debug)]
pub struct Uplink {
    socket: OwnedFd,
    header_len: usize,
    /// Why there is no ring, if there is none.
    ring_refused: Option<String>,
}

/// The frames of an [`Uplink`], for a process that has its descriptor.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    header_len: usize,
    ring: Option<ReceiveRing>,
}

impl PacketSocket {
    /// Takes up the socket of an [`Uplink`], with its length of headers, and maps its ring if it has one.
    ///
    /// # Errors
    ///
    /// See [`ReceiveRing::map`].
    pub fn new(socket: OwnedFd, header_len: usize, has_ring: bool) -> io::Result<PacketSocket> {
        let ring = has_ring.then(|| ReceiveRing::map(socket.as_fd())).transpose()?;
        Ok(PacketSocket {
            socket,
            header_len,
            ring,
        })
    }

    /// The ring in which frames arrive. Without it each is a message of the socket.
    pub fn ring(&mut self) -> Option<&mut ReceiveRing> {
        self.ring.as_mut()
    }

    /// See [`Uplink::header_len`].
    pub fn header_len(&self) -> usize {
        self.header_len
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Uplink {
    /// Opens an interface, which must be up. `mtu` is set if given.
    pub fn open(name: &str, mtu: Option<u16>) -> Result<Uplink, NicError> {
        Uplink::open_for(name, mtu, libc::ETH_P_ALL)
    }

    /// As [`Self::open`], for no frame: the interface is promiscuous, and says what it is.
    pub fn open_deaf(name: &str, mtu: Option<u16>) -> Result<Uplink, NicError> {
        Uplink::open_for(name, mtu, RESERVED_PROTOCOL)
    }

    fn open_for(name: &str, mtu: Option<u16>, protocol: libc::c_int) -> Result<Uplink, NicError> {
        check_name(name)?;
        let mut netlink = Netlink::new()?;
        let link = netlink
            .link(name)?
            .ok_or_else(|| NicError::Missing(name.into()))?;
        if !link.is_up() {
            return Err(NicError::Down(name.into()));
        }
        if mtu.is_some() {
            netlink
                .change(
                    link.index,
                    Change {
                        mtu,
                        ..Change::default()
                    },
                )
                .map_err(|error| NicError::refused(format!("{name}: setting the MTU"), error))?;
        }
        // Protocol 0: no packets of other interfaces before the socket is bound.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|errno| NicError::refused("packet socket", errno))?;
        let index = i32::try_from(link.index).map_err(|_| NicError::Missing(name.into()))?;
        let refused = |(what, error): SetupError| NicError::refused(format!("{name}: {what}"), error);
        let header_len = set_up(&socket).map_err(refused)?;
        let ring = match protocol {
            RESERVED_PROTOCOL => Ok(()),
            _ => ReceiveRing::make(socket.as_fd()),
        };
        attach(&socket, index, protocol).map_err(refused)?;
        Ok(Uplink {
            socket,
            header_len,
            ring_refused: ring.err().map(|error| error.to_string()),
        })
    }

    /// Opens a socket that sends by an interface, which must be up, and receives nothing. Returns it with the
    /// length of the header in front of each frame in bytes.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_sender(name: &str) -> Result<(OwnedFd, u8), NicError> {
        check_name(name)?;
        let link = Netlink::new()?
            .link(name)?
            .ok_or_else(|| NicError::Missing(name.into()))?;
        if !link.is_up() {
            return Err(NicError::Down(name.into()));
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|errno| NicError::refused("packet socket", errno))?;
        let refused = |(what, error): SetupError| NicError::refused(format!("{name}: {what}"), error);
        let header_len = set_up(&socket).map_err(refused)?;
        // A smaller buffer only sends frames back to the slow path earlier.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER);
        let index = i32::try_from(link.index).map_err(|_| NicError::Missing(name.into()))?;
        // Protocol 0: nothing is received, and the kernel takes each frame's from its Ethernet header.
        bind(&socket, index, 0).map_err(|error| refused(("bind", error)))?;
        Ok((socket, u8::try_from(header_len).unwrap_or(0)))
    }

    /// One that another process has opened, as that one has described it.
    pub fn of_descriptor(socket: OwnedFd, header_len: usize, ring_refused: Option<String>) -> Uplink {
        Uplink {
            socket,
            header_len,
            ring_refused,
        }
    }

    /// Closes it. No frame arrives from now on, even if other processes have the socket open.
    pub fn close(self) {
        // The interface may be gone already, and the socket with it.
        let is_bound_away = bind(&self.socket, 0, RESERVED_PROTOCOL).is_ok();
        if !is_bound_away {
            // A socket of a group stays bound.
            let _ = fan_out::deafen(self.socket.as_fd());
        }
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    ///
    /// The process has no more room for descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Why frames do not arrive in a ring, if they do not.
    pub fn ring_refused(&self) -> Option<&String> {
        self.ring_refused.as_ref()
    }

    /// Length of the header in front of each frame of the socket in bytes: [`VNET_HEADER_LEN`], or two less
    /// on kernels before 6.4.
    pub fn header_len(&self) -> usize {
        self.header_len
    }
}

impl AsFd for Uplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(crate) type SetupError = (&'static str, io::Error);

/// Returns the length of the virtio-net header.
pub(crate) fn set_up(socket: &OwnedFd) -> Result<usize, SetupError> {
    let header_len = match option(socket, libc::PACKET_VNET_HDR_SZ, VNET_HEADER_LEN) {
        Ok(()) => VNET_HEADER_LEN,
        Err(_) => {
            option(socket, libc::PACKET_VNET_HDR, 1).map_err(|error| ("PACKET_VNET_HDR", error))?;
            VNET_HEADER_LEN - 2
        }
    };
    option(socket, libc::PACKET_AUXDATA, 1).map_err(|error| ("PACKET_AUXDATA", error))?;
    option(socket, libc::PACKET_IGNORE_OUTGOING, 1).map_err(|error| ("PACKET_IGNORE_OUTGOING", error))?;
    // A smaller buffer only drops earlier.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER);
    Ok(header_len)
}

/// From now on frames of that kind arrive.
fn attach(socket: &OwnedFd, index: i32, protocol: libc::c_int) -> Result<(), SetupError> {
    bind(socket, index, protocol).map_err(|error| ("bind", error))?;
    join_all(socket, index).map_err(|error| ("promiscuous mode", error))
}

/// Binds the socket to frames of a kind of an interface.
pub(crate) fn bind(socket: &OwnedFd, index: i32, protocol: libc::c_int) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` is plain data for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).expect("address families are small");
    address.sll_protocol = u16::try_from(protocol).expect("protocols have 16 bits").to_be();
    address.sll_ifindex = index;
    // SAFETY: the pointer and the length describe one live `sockaddr_ll`.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            socklen(size_of::<libc::sockaddr_ll>()),
        )
    };
    check(result)
}

/// Puts the interface into promiscuous mode for as long as the socket is open.
fn join_all(socket: &OwnedFd, index: i32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: u16::try_from(libc::PACKET_MR_PROMISC).expect("PACKET_MR_PROMISC is 1"),
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket.as_fd(), libc::PACKET_ADD_MEMBERSHIP, &membership)
}

fn option(socket: &OwnedFd, name: libc::c_int, value: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(value).expect("small constants");
    set(socket.as_fd(), name, &value)
}

fn socklen(size: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(size).expect("sizes of structures")
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Finds the VLAN tag in the control messages of a received frame (`struct tpacket_auxdata`).
pub fn vlan_tag(control: &[u8]) -> Option<VlanTag> {
    let mut rest = control;
    loop {
        let length = usize::from_ne_bytes(*rest.first_chunk()?);
        let level = i32::from_ne_bytes(*rest.get(size_of::<usize>()..)?.first_chunk()?);
        let kind = i32::from_ne_bytes(*rest.get(size_of::<usize>() + 4..)?.first_chunk()?);
        let data = rest.get(size_of::<usize>() + 8..length)?;
        if level == libc::SOL_PACKET && kind == libc::PACKET_AUXDATA && data.len() >= AUXDATA_LEN {
            let status = u32::from_ne_bytes(*data.first_chunk()?);
            let tci = u16::from_ne_bytes(*data[16..].first_chunk()?);
            let tpid = u16::from_ne_bytes(*data[18..].first_chunk()?);
            return VlanTag::reported(status, tci, tpid);
        }
        rest = rest.get(length.next_multiple_of(size_of::<usize>())..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn auxdata(status: u32, tci: u16, tpid: u16) -> Vec<u8> {
        let mut data = status.to_ne_bytes().to_vec();
        data.extend([0; 12]);
        data.extend(tci.to_ne_bytes());
        data.extend(tpid.to_ne_bytes());
        message(libc::SOL_PACKET, libc::PACKET_AUXDATA, &data)
    }

    #[test]
    fn the_tag_is_found_behind_other_messages() {
        let both = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        let mut control = message(libc::SOL_SOCKET, 29, &[0; 16]);
        control.extend(auxdata(both, 0x2064, 0x88a8));
        assert_eq!(
            vlan_tag(&control),
            Some(VlanTag {
                tpid: 0x88a8,
                tci: 0x2064
            })
        );
        let old = auxdata(libc::TP_STATUS_VLAN_VALID, 5, 0);
        assert_eq!(vlan_tag(&old), Some(VlanTag { tpid: 0x8100, tci: 5 }));
        assert_eq!(vlan_tag(&auxdata(0, 5, 0x8100)), None);
    }

    #[test]
    fn cut_off_control_messages_hold_no_tag() {
        let whole = auxdata(libc::TP_STATUS_VLAN_VALID, 5, 0);
        for length in 0..whole.len() - 4 {
            assert_eq!(vlan_tag(&whole[..length]), None);
        }
        assert_eq!(vlan_tag(&[0; 64]), None, "a zero length must not loop");
    }
}
