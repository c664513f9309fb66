//! Frames of TCP by their parts, and what they are cut into, built from nothing.

use super::{ethernet, ipv4, ipv6, ones_complement_sum, tcp};
use proptest::prelude::*;

pub const FIN: u16 = 0x01;
pub const PSH: u16 = 0x08;
pub const ACK: u16 = 0x10;
pub const CWR: u16 = 0x80;

/// What to build a frame of.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub v6: bool,
    pub tags: Vec<(u16, u16)>,
    pub ip_options: usize,
    pub tcp_options: usize,
    pub flags: u16,
    pub payload: Vec<u8>,
}

impl Recipe {
    /// A complete frame with `payload`, the TCP checksum correct by its definition.
    pub fn frame(&self, number: u16, sent: u32, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut segment = tcp(flags, &vec![1; self.tcp_options], payload);
        let sequence = 0xffff_ff00u32.wrapping_add(sent);
        segment[4..8].copy_from_slice(&sequence.to_be_bytes());
        let length = u16::try_from(segment.len()).expect("fits IP").to_be_bytes();
        // Hop-by-hop options with PadN, multiples of 8.
        let mut extension = vec![0; self.ip_options / 8 * 8];
        if let [next, length, pad_n, pad_len, ..] = &mut extension[..] {
            (*next, *pad_n) = (6, 1);
            *length = (self.ip_options / 8 - 1) as u8;
            *pad_len = (self.ip_options / 8 * 8 - 4) as u8;
        }
        let next = if extension.is_empty() { 6 } else { 0 };
        let addresses = match self.v6 {
            true => ipv6(6, &[], &[])[8..40].to_vec(),
            false => ipv4(6, 0, &[], &[])[12..20].to_vec(),
        };
        let covered = [&addresses[..], &[0, 6], &length, &segment].concat();
        let checksum = !ones_complement_sum(&covered);
        let checksum = if checksum == 0 { 0xffff } else { checksum };
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        if self.v6 {
            return ethernet(&self.tags, 0x86dd, &ipv6(next, &extension, &segment));
        }
        let mut packet = ipv4(6, 0x4000, &vec![1; self.ip_options], &segment);
        let header_len = 20 + self.ip_options;
        let id = 0xfffeu16.wrapping_add(number).to_be_bytes();
        packet[4..6].copy_from_slice(&id);
        packet[10..12].fill(0);
        let checksum = !ones_complement_sum(&packet[..header_len]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        ethernet(&self.tags, 0x0800, &packet)
    }

    pub fn whole(&self) -> Vec<u8> {
        self.frame(0, 0, self.flags, &self.payload)
    }

    /// The twin: each segment built from nothing.
    pub fn naive_segments(&self, gso_size: usize) -> Vec<Vec<u8>> {
        let last = self.payload.len().div_ceil(gso_size) - 1;
        let pieces = self.payload.chunks(gso_size).enumerate();
        pieces
            .map(|(number, piece)| {
                let mut flags = self.flags;
                if number > 0 {
                    flags &= !CWR;
                }
                if number < last {
                    flags &= !(FIN | PSH);
                }
                self.frame(number as u16, (number * gso_size) as u32, flags, piece)
            })
            .collect()
    }
}

pub fn recipes() -> impl Strategy<Value = Recipe> {
    let tags = prop::collection::vec(prop::sample::select(vec![(0x8100, 10), (0x88a8, 20)]), 0..=1);
    let payload = prop::collection::vec(any::<u8>(), 2..3000);
    (any::<bool>(), tags, 0usize..3, 0usize..4, 0u16..0x1000, payload).prop_map(
        |(v6, tags, ip_options, tcp_options, flags, payload)| Recipe {
            v6,
            tags,
            ip_options: ip_options * 4,
            tcp_options: tcp_options * 4,
            flags,
            payload,
        },
    )
}

pub fn plain(v6: bool, flags: u16, payload: usize) -> Recipe {
    Recipe {
        v6,
        tags: Vec::new(),
        ip_options: 0,
        tcp_options: 0,
        flags,
        payload: vec![0x5a; payload],
    }
}
