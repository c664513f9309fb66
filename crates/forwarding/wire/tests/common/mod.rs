//! Frames built byte by byte, and the checksum by its definition.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod frames;
pub mod tcp_recipe;

/// 52:54:00:00:00:02 from 52:54:00:00:00:01.
pub const ADDRESSES: [u8; 12] = [0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1];

/// RFC 1071, one byte at a time.
pub fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for (position, byte) in bytes.iter().enumerate() {
        sum += u32::from(*byte) << if position % 2 == 0 { 8 } else { 0 };
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Ethernet addresses, then `tags` of (TPID, TCI), then the type and what follows.
pub fn ethernet(tags: &[(u16, u16)], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = ADDRESSES.to_vec();
    for (tpid, tci) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

/// 10.0.0.1 to 10.0.0.2, TOS 0x2e, TTL 63, identification 0xfffe, with `options` (a multiple of 4 bytes).
pub fn ipv4(protocol: u8, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header_len = 20 + options.len();
    let total = u16::try_from(header_len + payload.len()).expect("fits IP");
    let mut packet = vec![0x40 | (header_len / 4) as u8, 0x2e];
    packet.extend(total.to_be_bytes());
    packet.extend([0xff, 0xfe]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([63, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(options);
    let checksum = !ones_complement_sum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// fd00::1 to fd00::2, traffic class 0xb8, label 0x12345, hop limit 64; `extensions` as bytes, the first of
/// type `next`.
pub fn ipv6(next: u8, extensions: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x6b, 0x81, 0x23, 0x45];
    packet.extend(
        u16::try_from(extensions.len() + payload.len())
            .expect("fits IP")
            .to_be_bytes(),
    );
    packet.extend([next, 64]);
    for host in [1, 2] {
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    packet.extend(extensions);
    packet.extend(payload);
    packet
}

/// Port 1000 to 80, sequence number 0xffff_ff00, the checksum field zero.
pub fn tcp(flags: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header_len = 20 + options.len();
    let mut segment = vec![0x03, 0xe8, 0, 80, 0xff, 0xff, 0xff, 0, 0, 0, 0, 7];
    segment.extend((((header_len / 4) as u16) << 12 | flags).to_be_bytes());
    segment.extend([0x10, 0, 0, 0, 0, 0]);
    segment.extend(options);
    segment.extend(payload);
    segment
}

/// Port 1000 to 53, the checksum field zero.
pub fn udp(payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0x03, 0xe8, 0, 53];
    datagram.extend(u16::try_from(8 + payload.len()).expect("fits IP").to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

/// The first 128 bytes.
pub fn head(frame: &[u8]) -> &[u8] {
    &frame[..frame.len().min(128)]
}
