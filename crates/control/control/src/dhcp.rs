//! Messages of DHCP (RFC 2131), as far as leases are concerned.
//!
//! Nothing is trusted: lengths are checked, options are read once, and what is odd is no message.

use std::net::Ipv4Addr;

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

/// Types of messages that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A client asks for an address, or for another lease.
    Request,
    /// A server grants it.
    Ack,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub kind: Kind,
    /// The client's number of the conversation.
    pub transaction: u32,
    /// The client's hardware address.
    pub client: [u8; 6],
    /// The address that is granted.
    pub address: Ipv4Addr,
    /// Seconds; `None` for a lease without end.
    pub lease_s: Option<u32>,
}

/// Reads a frame that is known to be a datagram of IPv4 between the ports of DHCP.
pub(crate) fn parse(frame: &[u8]) -> Option<Message> {
    let message = payload(frame)?;
    let kind = match (message.first()?, message.get(236..240)? == COOKIE) {
        (1, true) => Kind::Request,
        (2, true) => Kind::Ack,
        _ => return None,
    };
    // Ethernet, with addresses of six bytes.
    if message.get(1..3)? != [1, 6] {
        return None;
    }
    let (found, lease) = options(message.get(240..)?);
    let expected = match kind {
        Kind::Request => 3,
        Kind::Ack => 5,
    };
    if found? != expected {
        return None;
    }
    let lease = lease.unwrap_or(USUAL_LEASE_S);
    Some(Message {
        kind,
        transaction: u32::from_be_bytes(array(message, 4)?),
        client: array(message, 28)?,
        address: Ipv4Addr::from(array::<4>(message, 16)?),
        lease_s: (lease != u32::MAX).then_some(lease.min(MAX_LEASE_S)),
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// What is in the datagram.
fn payload(frame: &[u8]) -> Option<&[u8]> {
    let mut at = 12;
    while TAGS.contains(&u16::from_be_bytes(array(frame, at)?)) {
        at += 4;
    }
    let packet = frame.get(at + 2..)?;
    let header = usize::from(packet.first()? & 0xf) * 4;
    let length = usize::from(u16::from_be_bytes(array(packet, 2)?));
    packet.get(header + 8..length.min(packet.len()))
}

/// Type of the message and time of the lease.
fn options(mut options: &[u8]) -> (Option<u8>, Option<u32>) {
    let (mut kind, mut lease) = (None, None);
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
            (MESSAGE_TYPE, [value]) => kind = Some(*value),
            (LEASE_TIME, value) => lease = array(value, 0).map(u32::from_be_bytes),
            _ => {}
        }
        options = rest;
    }
    (kind, lease)
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
            address,
            lease_s: Some(60),
        };
        assert_eq!(parse(&ack), Some(expected));
        let lease = |seconds| {
            parse(&frame(CLIENT, 7, Some((address, seconds))))
                .unwrap()
                .lease_s
        };
        assert_eq!((lease(u32::MAX), lease(u32::MAX - 1)), (None, Some(MAX_LEASE_S)));
        assert_eq!(
            parse(&frame(CLIENT, 8, None)).map(|it| it.kind),
            Some(Kind::Request)
        );
        // Every shorter frame, and every frame with a byte changed: no panic.
        for length in 0..ack.len() {
            let _ = parse(&ack[..length]);
        }
        assert_eq!(parse(&ack[..200]), None);
        for at in 0..ack.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = ack.clone();
                changed[at] = value;
                let _ = parse(&changed);
            }
        }
        let mut offer = ack.clone();
        let kind = offer.len() - 8;
        assert_eq!(offer[kind], 5);
        offer[kind] = 2;
        assert_eq!(parse(&offer), None, "an offer is no lease");
    }
}
