//! The few route netlink requests we need (`rtnetlink(7)`, `linux/if_link.h`, `linux/if_addr.h`).
//!
//! One socket, one request at a time, each acknowledged. The socket stays in the namespace it was made in.
//! Answers come from the kernel, but are parsed with the same checks as any other bytes.

use crate::NicError;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::IpAddr;

const HEADER_LEN: usize = 16;
const LINK_LEN: usize = 16;
const ADDRESS_LEN: usize = 8;

/// Words of `struct rtnl_link_stats64` (`linux/if_link.h`) that are read: up to `rx_missed_errors`.
pub const STATISTICS: usize = 15;

// `linux/if_link.h`: the attributes of the "tun" kind.
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const TUN_TYPE_TAP: u8 = 2;

// `linux/veth.h`, and `linux/if_link.h`: IPv6 of an interface.
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;

/// An interface as a link message describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub index: u32,
    pub flags: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Hardware address, if it is one of Ethernet.
    pub mac: Option<[u8; 6]>,
    pub alias: String,
    /// Driver kind, such as "veth"; empty for hardware.
    pub kind: String,
    pub tap: bool,
    pub multi_queue: bool,
    /// Open queues of a multi-queue TAP.
    pub queues: u32,
    /// Index of the device that it is a port of; 0 if of none.
    pub master: u32,
    /// Index of the device of the same namespace on which it lies, or of its peer.
    pub lower: Option<u32>,
    /// Whether the other end of its cable is there.
    pub carrier: bool,
    /// The first words of `struct rtnl_link_stats64`; zeros if they are missing.
    pub statistics: [u64; STATISTICS],
    /// In the notice that it has left: the namespace that it went to.
    pub moved_to: Option<i32>,
    /// In such a notice: its index there, if that is another one.
    pub new_index: Option<u32>,
}

impl Link {
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP.cast_unsigned() != 0
    }

    /// Whether it does without ARP.
    pub fn has_no_arp(&self) -> bool {
        self.flags & libc::IFF_NOARP.cast_unsigned() != 0
    }
}

/// Changes to an interface; `None` leaves a property as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change<'a> {
    pub mac: Option<[u8; 6]>,
    pub mtu: Option<u16>,
    pub alias: Option<&'a str>,
    /// Whether it is administratively up.
    pub up: Option<bool>,
    /// Whether it does without ARP.
    pub no_arp: Option<bool>,
    /// Makes it a port of the device with that index.
    pub master: Option<u32>,
}

/// Far end of a veth pair that is to be made; `None` leaves a property to the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    pub name: &'a str,
    pub namespace: BorrowedFd<'a>,
    pub mac: Option<[u8; 6]>,
    pub mtu: Option<u16>,
}

#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    serial: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace.
    pub fn new() -> Result<Netlink, NicError> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // NETLINK_ROUTE is 0.
        );
        Ok(Netlink {
            socket: socket.map_err(|errno| NicError::refused("netlink socket", errno))?,
            serial: 0,
            buffer: vec![0; 32 * 1024],
        })
    }

    /// Looks an interface up by name.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, NicError> {
        let mut body = link_body(0, 0);
        attribute(&mut body, libc::IFLA_IFNAME, &nul_terminated(name));
        match self.request(libc::RTM_GETLINK, 0, &body) {
            Ok(answer) => Ok(Some(parse_link(&answer))),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(NicError::refused(format!("looking for '{name}'"), error)),
        }
    }

    /// All interfaces of the namespace.
    pub fn links(&mut self) -> Result<Vec<Link>, NicError> {
        let mut links = Vec::new();
        let each = |body: &[u8]| links.push(parse_link(body));
        self.exchange(libc::RTM_GETLINK, libc::NLM_F_DUMP, &link_body(0, 0), each)
            .map_err(|error| NicError::refused("listing interfaces", error))?;
        Ok(links)
    }

    /// Addresses of an interface whose scope is wider than its link, with prefix lengths.
    pub fn addresses(&mut self, index: u32) -> Result<Vec<(IpAddr, u8)>, NicError> {
        let mut addresses = Vec::new();
        let each = |body: &[u8]| addresses.extend(parse_address(body, index));
        // `struct ifaddrmsg` of any family; the kernel lists all interfaces.
        self.exchange(libc::RTM_GETADDR, libc::NLM_F_DUMP, &[0; ADDRESS_LEN], each)
            .map_err(|error| NicError::refused("listing addresses", error))?;
        Ok(addresses)
    }

    /// Changes an interface.
    pub fn change(&mut self, index: u32, change: Change<'_>) -> io::Result<()> {
        let body = change_body(index, change);
        self.request(libc::RTM_SETLINK, 0, &body).map(drop)
    }

    /// Makes a bridge, which is down.
    pub fn add_bridge(&mut self, name: &str) -> io::Result<()> {
        let mut kind = Vec::new();
        attribute(&mut kind, libc::IFLA_INFO_KIND, b"bridge");
        let mut body = link_body(0, 0);
        attribute(&mut body, libc::IFLA_IFNAME, &nul_terminated(name));
        attribute(&mut body, libc::IFLA_LINKINFO, &kind);
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.request(libc::RTM_NEWLINK, flags, &body).map(drop)
    }

    /// Makes a veth pair, both ends down: one in the socket's namespace with this index, which is free.
    pub fn add_veth(&mut self, name: &str, index: u32, peer: Peer<'_>) -> io::Result<()> {
        let mut end = link_body(0, 0);
        attribute(&mut end, libc::IFLA_IFNAME, &nul_terminated(peer.name));
        let namespace = peer.namespace.as_raw_fd().cast_unsigned();
        attribute(&mut end, libc::IFLA_NET_NS_FD, &namespace.to_ne_bytes());
        if let Some(mac) = peer.mac {
            attribute(&mut end, libc::IFLA_ADDRESS, &mac);
        }
        if let Some(mtu) = peer.mtu {
            attribute(&mut end, libc::IFLA_MTU, &u32::from(mtu).to_ne_bytes());
        }
        let mut data = Vec::new();
        attribute(&mut data, VETH_INFO_PEER, &end);
        let mut kind = Vec::new();
        attribute(&mut kind, libc::IFLA_INFO_KIND, b"veth");
        attribute(&mut kind, libc::IFLA_INFO_DATA, &data);
        let mut body = link_body(index, 0);
        attribute(&mut body, libc::IFLA_IFNAME, &nul_terminated(name));
        attribute(&mut body, libc::IFLA_LINKINFO, &kind);
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.request(libc::RTM_NEWLINK, flags, &body).map(drop)
    }

    /// Has an interface get no IPv6 address by itself; no error where there is no IPv6.
    pub fn set_no_ipv6_address(&mut self, index: u32) -> io::Result<()> {
        let (mut ipv6, mut families) = (Vec::new(), Vec::new());
        attribute(&mut ipv6, IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]);
        let family = u16::try_from(libc::AF_INET6).expect("address families are small");
        attribute(&mut families, family, &ipv6);
        let mut body = link_body(index, 0);
        attribute(&mut body, libc::IFLA_AF_SPEC, &families);
        match self.request(libc::RTM_SETLINK, 0, &body) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Removes an interface that was made by software.
    pub fn delete(&mut self, index: u32) -> io::Result<()> {
        self.request(libc::RTM_DELLINK, 0, &link_body(index, 0)).map(drop)
    }

    /// Assigns an address; one that is there already stays. Usable at once: duplicate address detection is
    /// skipped, since a user has assigned the address on purpose.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.address(libc::RTM_NEWADDR, flags, index, address, prefix)
    }

    /// Removes an address; no error if there is none.
    pub fn delete_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        match self.address(libc::RTM_DELADDR, 0, index, address, prefix) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(()),
            result => result,
        }
    }

    fn address(&mut self, kind: u16, flags: i32, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let (family, no_dad) = match address {
            IpAddr::V4(_) => (libc::AF_INET, 0),
            IpAddr::V6(_) => (libc::AF_INET6, libc::IFA_F_NODAD),
        };
        let family = u8::try_from(family).expect("address families are small");
        let no_dad = u8::try_from(no_dad).expect("IFA_F_NODAD is 2");
        let mut body = vec![family, prefix, no_dad, libc::RT_SCOPE_UNIVERSE];
        body.extend(index.to_ne_bytes());
        match address {
            IpAddr::V4(address) => {
                attribute(&mut body, libc::IFA_LOCAL, &address.octets());
                attribute(&mut body, libc::IFA_ADDRESS, &address.octets());
                let host_bits = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
                if prefix < 31 {
                    let broadcast = (u32::from(address) | host_bits).to_be_bytes();
                    attribute(&mut body, libc::IFA_BROADCAST, &broadcast);
                }
            }
            IpAddr::V6(address) => attribute(&mut body, libc::IFA_ADDRESS, &address.octets()),
        }
        self.request(kind, flags, &body).map(drop)
    }

    /// Sends one request and returns the body of the answer, empty if there is only an acknowledgement.
    fn request(&mut self, kind: u16, flags: i32, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        self.exchange(kind, flags, body, |body| answer = body.to_vec())?;
        Ok(answer)
    }

    /// Sends one request and passes on the bodies of its answers, until it is acknowledged or, if it is for a
    /// list, ends.
    pub fn exchange(
        &mut self,
        kind: u16,
        flags: i32,
        body: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.serial += 1;
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK).expect("16-bit flags");
        let length = u32::try_from(HEADER_LEN + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut message = Vec::with_capacity(HEADER_LEN + body.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.serial.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        rustix::net::send(&self.socket, &message, SendFlags::empty())?;
        loop {
            let (received, _) = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())
            })?;
            if received == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            for (kind, serial, body) in messages(&self.buffer[..received]) {
                if serial != self.serial {
                    continue;
                }
                if !matches!(i32::from(kind), libc::NLMSG_ERROR | libc::NLMSG_DONE) {
                    each(body);
                    continue;
                }
                let code = body
                    .first_chunk()
                    .map_or(-libc::EBADMSG, |code| i32::from_ne_bytes(*code));
                return if code == 0 {
                    Ok(())
                } else {
                    Err(io::Error::from_raw_os_error(-code))
                };
            }
        }
    }
}

/// The messages of one datagram: type, serial number, body.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
        let message = bytes
            .get(..length)
            .filter(|message| message.len() >= HEADER_LEN)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let kind = u16::from_ne_bytes(*message[4..].first_chunk()?);
        let serial = u32::from_ne_bytes(*message[8..].first_chunk()?);
        Some((kind, serial, &message[HEADER_LEN..]))
    })
}

/// `struct ifinfomsg` that sets flags.
fn link_body(index: u32, flags: u32) -> Vec<u8> {
    link_body_with(index, flags, flags)
}

/// The body of a message about a link, with those flags that change.
fn link_body_with(index: u32, flags: u32, changed: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(changed.to_ne_bytes());
    body
}

pub fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("attributes we send are short");
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?) & !(1 << 15);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The body of a message about a link.
pub fn parse_link(body: &[u8]) -> Link {
    let word = |offset: usize| {
        body.get(offset..)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(0, |word| u32::from_ne_bytes(*word))
    };
    let mut link = Link {
        index: word(4),
        flags: word(8),
        ..Link::default()
    };
    for (kind, value) in attributes(body.get(LINK_LEN..).unwrap_or_default()) {
        match kind {
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_ADDRESS => link.mac = value.try_into().ok(),
            libc::IFLA_MTU => link.mtu = number(value).unwrap_or_default(),
            libc::IFLA_NEW_NETNSID => link.moved_to = number(value).map(u32::cast_signed),
            libc::IFLA_NEW_IFINDEX => link.new_index = number(value),
            libc::IFLA_MASTER => link.master = number(value).unwrap_or_default(),
            libc::IFLA_LINK => link.lower = number(value),
            libc::IFLA_LINK_NETNSID => link.lower = None,
            libc::IFLA_CARRIER => link.carrier = value.first() == Some(&1),
            libc::IFLA_STATS64 => {
                let words = value.chunks_exact(8).filter_map(|word| word.first_chunk());
                let words = words.map(|word| u64::from_ne_bytes(*word));
                link.statistics
                    .iter_mut()
                    .zip(words)
                    .for_each(|(to, word)| *to = word);
            }
            libc::IFLA_IFALIAS => link.alias = text(value),
            libc::IFLA_LINKINFO => parse_kind(&mut link, value),
            _ => {}
        }
    }
    link
}

/// The address that a message is about, if it is of that interface and used beyond its link.
fn parse_address(body: &[u8], index: u32) -> Option<(IpAddr, u8)> {
    let [_, prefix, _, scope] = *body.first_chunk()?;
    if address_index(body)? != index || scope >= libc::RT_SCOPE_LINK {
        return None;
    }
    let of_kind = |wanted| {
        let found = attributes(body.get(ADDRESS_LEN..)?).find(|(kind, _)| *kind == wanted);
        found.map(|(_, value)| value)
    };
    // The peer's address is the other one, where there is a peer.
    let value = of_kind(libc::IFA_LOCAL).or_else(|| of_kind(libc::IFA_ADDRESS))?;
    let ipv4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    let ipv6 = <[u8; 16]>::try_from(value).map(IpAddr::from);
    Some((ipv4.or(ipv6).ok()?, prefix))
}

/// The interface that a message about an address is about.
pub fn address_index(body: &[u8]) -> Option<u32> {
    body.get(4..)?
        .first_chunk()
        .map(|bytes| u32::from_ne_bytes(*bytes))
}

fn parse_kind(link: &mut Link, info: &[u8]) {
    for (kind, value) in attributes(info) {
        match kind {
            libc::IFLA_INFO_KIND => link.kind = text(value),
            libc::IFLA_INFO_DATA if link.kind == "tun" => {
                for (kind, value) in attributes(value) {
                    match kind {
                        IFLA_TUN_TYPE => link.tap = value.first() == Some(&TUN_TYPE_TAP),
                        IFLA_TUN_MULTI_QUEUE => link.multi_queue = value.first() == Some(&1),
                        IFLA_TUN_NUM_QUEUES => {
                            link.queues = value.first_chunk().map_or(0, |count| u32::from_ne_bytes(*count));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}

fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// The body of a message that changes an interface.
fn change_body(index: u32, change: Change<'_>) -> Vec<u8> {
    let (mut flags, mut changed) = (0, 0);
    for (wanted, flag) in [(change.up, libc::IFF_UP), (change.no_arp, libc::IFF_NOARP)] {
        let flag = flag.cast_unsigned();
        changed |= wanted.map_or(0, |_| flag);
        flags |= if wanted == Some(true) { flag } else { 0 };
    }
    let mut body = link_body_with(index, flags, changed);
    if let Some(mac) = change.mac {
        attribute(&mut body, libc::IFLA_ADDRESS, &mac);
    }
    if let Some(mtu) = change.mtu {
        attribute(&mut body, libc::IFLA_MTU, &u32::from(mtu).to_ne_bytes());
    }
    if let Some(alias) = change.alias {
        attribute(&mut body, libc::IFLA_IFALIAS, alias.as_bytes());
    }
    if let Some(master) = change.master {
        attribute(&mut body, libc::IFLA_MASTER, &master.to_ne_bytes());
    }
    body
}

fn nul_terminated(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let mut netlink = Netlink::new().unwrap();
        let link = netlink.link("lo").unwrap().unwrap();
        assert_eq!((link.index, link.tap, link.queues), (1, false, 0));
        assert!(netlink.links().unwrap().contains(&link));
        assert_eq!(netlink.link("no-such-thing").unwrap(), None);
    }

    /// Another author's library reads what the kernel is told.
    #[test]
    fn changes_are_encoded_as_others_decode_them() {
        use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader};
        use netlink_packet_route::RouteNetlinkMessage;
        use netlink_packet_route::link::{LinkAttribute, LinkFlags};

        let body = change_body(
            7,
            Change {
                mac: Some([2, 0, 0, 0, 0, 9]),
                mtu: Some(9000),
                alias: Some("someone"),
                up: Some(true),
                no_arp: Some(false),
                master: Some(3),
            },
        );
        let mut header = NetlinkHeader::default();
        header.message_type = libc::RTM_SETLINK;
        let RouteNetlinkMessage::SetLink(read) = RouteNetlinkMessage::deserialize(&header, &body).unwrap()
        else {
            panic!("another message");
        };
        assert_eq!((read.header.index, read.header.flags), (7, LinkFlags::Up));
        assert_eq!(read.header.change_mask, LinkFlags::Up | LinkFlags::Noarp);
        let expected = [
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 9]),
            LinkAttribute::Mtu(9000),
            LinkAttribute::IfAlias("someone".into()),
            LinkAttribute::Controller(3),
        ];
        assert_eq!(read.attributes, expected);
    }

    #[test]
    fn cut_off_answers_are_not_read_beyond_their_end() {
        let mut body = link_body(7, libc::IFF_UP.cast_unsigned());
        attribute(&mut body, libc::IFLA_IFALIAS, b"someone");
        let whole = parse_link(&body);
        assert_eq!(
            (whole.index, whole.is_up(), whole.alias.as_str()),
            (7, true, "someone")
        );
        for length in 0..body.len() {
            parse_link(&body[..length]);
            assert!(messages(&body[..length]).count() <= 1);
        }
        assert_eq!(attributes(&[0; 40]).count(), 0, "a zero length must not loop");
    }
}
