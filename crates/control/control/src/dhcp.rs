//! Messages of DHCP for IPv4 (RFC 2131) and IPv6 (RFC 8415), as far as leases are concerned.
//!
//! A message of DHCPv6 does not tell the client's MAC address: it is the one that the frame comes from or
//! goes to. Nothing is trusted: lengths are checked, options are read once, and what is odd is no message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest lease that counts, in seconds.
const MAX_LEASE_S: u32 = 30 * 86_400;

/// Lease of a server that names none.
const USUAL_LEASE_S: u32 = 3600;

const TAGS: [u16; 2] = [0x8100, 0x88a8];
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const PAD: u8 = 0;
const END: u8 = 255;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const REQUESTED_ADDRESS: u8 = 50;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
/// Options of DHCPv6: an association of addresses that are not temporary, and an address in it.
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;

/// Addresses of a message that count.
const MOST_ADDRESSES: usize = 8;

/// Types of messages that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A client asks for an address, or for another lease.
    Request,
    /// A server grants it.
    Ack,
    /// A client gives its address up, or finds that another host has it.
    Release,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub kind: Kind,
    /// The client's number of the conversation.
    pub transaction: u32,
    /// The client's hardware address.
    pub client: [u8; 6],
    /// The addresses that are granted or given up, with seconds; `None` for a lease without end.
    pub addresses: Vec<(IpAddr, Option<u32>)>,
}

/// Reads a frame that is known to be a datagram between the ports of DHCP.
pub(crate) fn parse(frame: &[u8]) -> Option<Message> {
    let mut at = 12;
    while TAGS.contains(&u16::from_be_bytes(array(frame, at)?)) {
        at += 4;
    }
    let packet = frame.get(at + 2..)?;
    match u16::from_be_bytes(array(frame, at)?) {
        IPV4 => parse_v4(packet),
        IPV6 => parse_v6(frame, packet),
        _ => None,
    }
}

fn lease(seconds: u32) -> Option<u32> {
    (seconds != u32::MAX).then_some(seconds.min(MAX_LEASE_S))
}

fn parse_v4(packet: &[u8]) -> Option<Message> {
    let header = usize::from(packet.first()? & 0xf) * 4;
    let length = usize::from(u16::from_be_bytes(array(packet, 2)?));
    let message = packet.get(header + 8..length.min(packet.len()))?;
    if message.get(236..240)? != COOKIE {
        return None;
    }
    // Ethernet, with addresses of six bytes.
    if message.get(1..3)? != [1, 6] {
        return None;
    }
    let options = options(message.get(240..)?);
    let address_at = |at| Some(Ipv4Addr::from(array::<4>(message, at)?));
    let (kind, address) = match (message.first()?, options.kind?) {
        (1, 3) => (Kind::Request, None),
        (2, 5) => (Kind::Ack, address_at(16)),
        (1, 4) => (Kind::Release, options.requested),
        (1, 7) => (Kind::Release, address_at(12)),
        _ => return None,
    };
    let seconds = options.lease_s.unwrap_or(USUAL_LEASE_S);
    Some(Message {
        kind,
        transaction: u32::from_be_bytes(array(message, 4)?),
        client: array(message, 28)?,
        addresses: address
            .map(|address| (address.into(), lease(seconds)))
            .into_iter()
            .collect(),
    })
}

/// A datagram without extension headers.
fn parse_v6(frame: &[u8], packet: &[u8]) -> Option<Message> {
    if packet.get(6) != Some(&UDP) {
        return None;
    }
    let length = usize::from(u16::from_be_bytes(array(packet, 4)?));
    let message = packet.get(48..(40 + length).min(packet.len()))?;
    let [kind, transaction @ ..] = array::<4>(message, 0)?;
    let [high, middle, low] = transaction;
    let kind = match kind {
        // A solicitation may be answered by a lease at once.
        1 | 3 | 5 | 6 => Kind::Request,
        7 => Kind::Ack,
        8 | 9 => Kind::Release,
        _ => return None,
    };
    Some(Message {
        kind,
        transaction: u32::from_be_bytes([0, high, middle, low]),
        client: array(frame, if kind == Kind::Ack { 0 } else { 6 })?,
        addresses: addresses(message.get(4..)?, kind == Kind::Ack),
    })
}

/// The addresses in options of DHCPv6; where they are granted, only those whose time is not over.
fn addresses(options: &[u8], are_granted: bool) -> Vec<(IpAddr, Option<u32>)> {
    let associations = wide_options(options).filter(|(code, _)| *code == IA_NA);
    let inner = associations.filter_map(|(_, value)| Some(wide_options(value.get(12..)?)));
    let found = inner.flatten().filter(|(code, _)| *code == IA_ADDRESS);
    let found = found.filter_map(|(_, value)| {
        let address = Ipv6Addr::from(array::<16>(value, 0)?);
        let seconds = u32::from_be_bytes(array(value, 20)?);
        (seconds > 0 || !are_granted).then_some((address.into(), lease(seconds)))
    });
    found.take(MOST_ADDRESSES).collect()
}

/// Options with codes and lengths of two bytes each, up to one that is cut.
fn wide_options(mut options: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [code, length] = [0, 2].map(|at| array(options, at).map(u16::from_be_bytes));
        let (value, rest) = options.get(4..)?.split_at_checked(length?.into())?;
        options = rest;
        Some((code?, value))
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// What options of DHCPv4 say.
#[derive(Default)]
struct Options {
    kind: Option<u8>,
    lease_s: Option<u32>,
    requested: Option<Ipv4Addr>,
}

fn options(mut options: &[u8]) -> Options {
    let mut found = Options::default();
    while let Some((&code, rest)) = options.split_first() {
        if code == PAD {
            options = rest;
            continue;
        }
        let Some((&length, rest)) = rest.split_first().filter(|_| code != END) else {
            break;
        };
        let Some((value, rest)) = rest.split_at_checked(length.into()) else {
            break;
        };
        match (code, value) {
            (MESSAGE_TYPE, [value]) => found.kind = Some(*value),
            (LEASE_TIME, value) => found.lease_s = array(value, 0).map(u32::from_be_bytes),
            (REQUESTED_ADDRESS, value) => found.requested = array::<4>(value, 0).map(Ipv4Addr::from),
            _ => {}
        }
        options = rest;
    }
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame with a message, which is a request without an address.
    pub(crate) fn frame(client: [u8; 6], transaction: u32, granted: Option<(Ipv4Addr, u32)>) -> Vec<u8> {
        let mut message = vec![if granted.is_some() { 2 } else { 1 }, 1, 6, 0];
        message.extend(transaction.to_be_bytes());
        message.resize(16, 0);
        message.extend(
            granted
                .map_or(Ipv4Addr::UNSPECIFIED, |(address, _)| address)
                .octets(),
        );
        message.resize(28, 0);
        message.extend(client);
        message.resize(236, 0);
        message.extend(COOKIE);
        message.extend([PAD, MESSAGE_TYPE, 1, if granted.is_some() { 5 } else { 3 }]);
        if let Some((_, lease)) = granted {
            message.extend([LEASE_TIME, 4]);
            message.extend(lease.to_be_bytes());
        }
        message.push(END);
        let length = |more: usize| u16::try_from(message.len() + more).unwrap().to_be_bytes();
        let mut frame = vec![0xff; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend(length(28));
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([0; 8]);
        frame.extend([0, 67, 0, 68]);
        frame.extend(length(8));
        frame.extend([0, 0]);
        frame.extend(message);
        frame
    }

    const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn messages_are_read_and_damaged_ones_are_none() {
        let address = Ipv4Addr::new(10, 0, 0, 9);
        let ack = frame(CLIENT, 7, Some((address, 60)));
        let expected = Message {
            kind: Kind::Ack,
            transaction: 7,
            client: CLIENT,
            addresses: vec![(address.into(), Some(60))],
        };
        assert_eq!(parse(&ack), Some(expected));
        let lease = |seconds| {
            let message = parse(&frame(CLIENT, 7, Some((address, seconds)))).unwrap();
            message.addresses[0].1
        };
        assert_eq!((lease(u32::MAX), lease(u32::MAX - 1)), (None, Some(MAX_LEASE_S)));
        assert_eq!(
            parse(&frame(CLIENT, 8, None)).map(|it| it.kind),
            Some(Kind::Request)
        );
        damage(&ack);
        assert_eq!(parse(&ack[..200]), None);
        let mut offer = ack.clone();
        let kind = offer.len() - 8;
        assert_eq!(offer[kind], 5);
        offer[kind] = 2;
        assert_eq!(parse(&offer), None, "an offer is no lease");
        let mut release = frame(CLIENT, 7, None);
        let kind = release.len() - 2;
        release[kind] = 7;
        release[42 + 12..42 + 16].copy_from_slice(&[10, 0, 0, 9]);
        let found = parse(&release).unwrap();
        assert_eq!(
            (found.kind, found.addresses[0].0),
            (Kind::Release, address.into())
        );
    }

    /// Reads every shorter frame, and every frame with a byte changed: none is a panic.
    fn damage(frame: &[u8]) {
        for length in 0..frame.len() {
            let _ = parse(&frame[..length]);
        }
        for at in 0..frame.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = frame.to_vec();
                changed[at] = value;
                let _ = parse(&changed);
            }
        }
    }

    /// A message of DHCPv6 with addresses and their times.
    fn frame_v6(kind: u8, transaction: u32, addresses: &[(Ipv6Addr, u32)]) -> Vec<u8> {
        let option = |code: u16, value: &[u8]| {
            let length = u16::try_from(value.len()).unwrap();
            [&code.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
        };
        let mut association = vec![0; 12];
        for (address, seconds) in addresses {
            let value = [&address.octets()[..], &[0; 4], &seconds.to_be_bytes()].concat();
            association.extend(option(IA_ADDRESS, &value));
        }
        let mut message = vec![kind];
        message.extend(&transaction.to_be_bytes()[1..]);
        message.extend(option(1, &[9; 10]));
        message.extend(option(IA_NA, &association));
        let server = [2, 0, 0, 0, 0, 7];
        let macs = if kind == 7 {
            [CLIENT, server]
        } else {
            [server, CLIENT]
        };
        let mut frame = macs.concat();
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(u16::try_from(message.len() + 8).unwrap().to_be_bytes());
        frame.extend([UDP, 64]);
        frame.resize(14 + 40 + 8, 0);
        frame.extend(message);
        frame
    }

    #[test]
    fn messages_of_dhcpv6_are_read_and_damaged_ones_are_none() {
        let [one, two]: [Ipv6Addr; 2] = ["fd00::9", "fd00::a"].map(|address| address.parse().unwrap());
        let reply = frame_v6(7, 0x12_3456, &[(one, 60), (two, 0)]);
        let expected = Message {
            kind: Kind::Ack,
            transaction: 0x12_3456,
            client: CLIENT,
            addresses: vec![(one.into(), Some(60))],
        };
        assert_eq!(parse(&reply), Some(expected));
        damage(&reply);
        for (kind, wanted) in [
            (1, Some(Kind::Request)),
            (3, Some(Kind::Request)),
            (8, Some(Kind::Release)),
        ] {
            let found = parse(&frame_v6(kind, 7, &[(one, 0)]));
            assert_eq!(found.as_ref().map(|it| it.kind), wanted);
            assert_eq!(
                found.map(|it| (it.client, it.addresses[0].0)),
                Some((CLIENT, one.into()))
            );
        }
        assert_eq!(
            parse(&frame_v6(2, 7, &[(one, 60)])),
            None,
            "an advertisement is no lease"
        );
        let many = vec![(one, 60); 100];
        assert_eq!(
            parse(&frame_v6(7, 7, &many)).unwrap().addresses.len(),
            MOST_ADDRESSES
        );
    }
}
