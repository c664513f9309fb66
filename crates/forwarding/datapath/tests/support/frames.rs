//! Frames to send, and what must be true of those received. Checksums are computed the slow way.

use wire::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VnetHeader};

pub fn mac(port: u32) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8]
}

/// A frame of `len` bytes from one port's address to another's, of a type nobody knows, with a recognisable
/// rest.
pub fn plain(from: u32, to: u32, len: usize, seed: u8) -> Vec<u8> {
    let mut frame = [&mac(to)[..], &mac(from)[..], &[0x88, 0xb5]].concat();
    let rest = (frame.len()..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8);
    frame.extend(rest);
    frame
}

/// One's complement sum of bytes.
pub fn sum(bytes: &[u8], start: u32) -> u32 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// A TCP segment over IPv4 or IPv6.
#[derive(Clone, Debug)]
pub struct Tcp {
    pub v6: bool,
    pub vlan: Option<u16>,
    pub sequence: u32,
    pub payload: usize,
    pub flags: u8,
}

impl Tcp {
    pub fn new(v6: bool, payload: usize) -> Tcp {
        Tcp {
            v6,
            vlan: None,
            sequence: 0xffff_f000,
            payload,
            flags: 0x18,
        }
    }

    pub fn l3(&self) -> usize {
        14 + if self.vlan.is_some() { 4 } else { 0 }
    }

    pub fn l4(&self) -> usize {
        self.l3() + if self.v6 { 40 } else { 20 }
    }

    /// All headers, with twelve bytes of TCP options.
    pub fn headers(&self) -> usize {
        self.l4() + 32
    }

    /// The frame; with `complete` its TCP checksum is right, else it holds the pseudo header's sum.
    pub fn frame(&self, from: u32, to: u32, complete: bool) -> Vec<u8> {
        let mut frame = [&mac(to)[..], &mac(from)[..]].concat();
        if let Some(tci) = self.vlan {
            frame.extend([0x81, 0]);
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        let l4_len = 32 + self.payload;
        let addresses = if self.v6 {
            let short = u16::try_from(l4_len).unwrap_or(0);
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(short.to_be_bytes());
            frame.extend([6, 64]);
            [[0xfd; 15].as_slice(), &[from as u8], &[0xfd; 15], &[to as u8]].concat()
        } else {
            let mut ip = vec![0x45, 0];
            ip.extend(u16::try_from(20 + l4_len).unwrap().to_be_bytes());
            ip.extend([0x12, 0x34, 0x40, 0, 64, 6, 0, 0]);
            let addresses = vec![10, 0, 0, from as u8, 10, 0, 0, to as u8];
            ip.extend(&addresses);
            let checksum = !(sum(&ip, 0) as u16);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend(&ip[..12]);
            addresses
        };
        frame.extend(&addresses);
        frame.extend([0x30, 0x39, 0, 80]);
        frame.extend(self.sequence.to_be_bytes());
        frame.extend([0, 0, 0, 1, 0x80, self.flags, 1, 0]);
        let pseudo = sum(&addresses, 6 + l4_len as u32);
        let pseudo = (pseudo & 0xffff) + (pseudo >> 16);
        frame.extend((pseudo as u16).to_be_bytes());
        frame.extend([0, 0, 1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(frame.len(), self.headers());
        frame.extend((0..self.payload).map(|at| (at as u8).wrapping_mul(7) ^ (at >> 8) as u8));
        if complete {
            complete_checksum(&mut frame, self.l4(), 16);
        }
        frame
    }

    /// A header that asks for the checksum, and for segmentation if `gso_size` is not 0.
    pub fn header(&self, gso_size: u16) -> VnetHeader {
        let kind = if self.v6 { GSO_TCPV6 } else { GSO_TCPV4 };
        VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: if gso_size > 0 { kind } else { 0 },
            hdr_len: if gso_size > 0 { self.headers() as u16 } else { 0 },
            gso_size,
            csum_start: self.l4() as u16,
            csum_offset: 16,
            num_buffers: 0,
        }
    }
}

/// What a device does with a partial checksum.
pub fn complete_checksum(frame: &mut [u8], start: usize, offset: usize) {
    let checksum = !(sum(&frame[start..], 0) as u16);
    frame[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// The naive segmentation: each segment built from nothing.
pub fn segments(tcp: &Tcp, from: u32, to: u32, mss: usize) -> Vec<Vec<u8>> {
    let whole = tcp.frame(from, to, false);
    let payload = &whole[tcp.headers()..];
    let count = payload.len().div_ceil(mss);
    payload
        .chunks(mss)
        .enumerate()
        .map(|(number, chunk)| {
            let mut part = tcp.clone();
            part.payload = chunk.len();
            part.sequence = tcp.sequence.wrapping_add((number * mss) as u32);
            if number + 1 < count {
                part.flags &= !0x09;
            }
            let mut frame = part.frame(from, to, false);
            frame[tcp.headers()..].copy_from_slice(chunk);
            if !tcp.v6 {
                let l3 = tcp.l3();
                let id = 0x1234 + number as u16;
                frame[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
                frame[l3 + 10..l3 + 12].fill(0);
                let checksum = !(sum(&frame[l3..l3 + 20], 0) as u16);
                frame[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            complete_checksum(&mut frame, tcp.l4(), 16);
            frame
        })
        .collect()
}

/// With a VLAN tag behind the addresses.
pub fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    let mut bytes = frame[..12].to_vec();
    bytes.extend([0x81, 0]);
    bytes.extend(tci.to_be_bytes());
    bytes.extend(&frame[12..]);
    bytes
}
