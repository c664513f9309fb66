//! Frames of all kinds that are parsed, at random.

use super::{ethernet, ipv4, ipv6, tcp, udp};
use proptest::prelude::*;

/// Extension headers of these types and lengths in 8-byte units, and the type of the first.
pub fn chain(headers: &[(u8, u8)], last: u8) -> (u8, Vec<u8>) {
    let mut bytes = Vec::new();
    for (position, (kind, units)) in headers.iter().enumerate() {
        let next = headers.get(position + 1).map_or(last, |header| header.0);
        let (len, total) = match kind {
            44 => (0, 8),
            51 => (units * 2, usize::from(*units) * 8 + 8),
            _ => (*units, usize::from(*units) * 8 + 8),
        };
        let start = bytes.len();
        bytes.extend([next, len]);
        bytes.resize(start + total, 0);
    }
    (headers.first().map_or(last, |header| header.0), bytes)
}

/// Sound frames of all kinds, most with a few bytes changed.
pub fn plausible_frames() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop::collection::vec(prop::sample::select(vec![(0x8100, 10), (0x88a8, 0x2014)]), 0..4);
    let protocol = prop::sample::select(vec![1u8, 6, 17, 47, 58, 132]);
    let transport = (protocol, 0usize..11, 0usize..80).prop_map(|(protocol, options, len)| {
        let payload = vec![1; len];
        let bytes = match protocol {
            6 => tcp(0x10, &vec![1; options * 4], &payload),
            17 => udp(&payload),
            58 => neighbour_discovery(&payload, options),
            _ => payload,
        };
        (protocol, bytes)
    });
    let fragment = prop_oneof![4 => Just(0u16), 1 => Just(0x2000), 1 => any::<u16>()];
    let v4 = (transport.clone(), fragment, 0usize..11).prop_map(|((protocol, bytes), fragment, options)| {
        (0x0800, ipv4(protocol, fragment, &vec![1; options * 4], &bytes))
    });
    let extension = (prop::sample::select(vec![0u8, 43, 44, 51, 60]), 0u8..10);
    let v6 = (transport, prop::collection::vec(extension, 0..6)).prop_map(|((protocol, bytes), headers)| {
        let (first, extensions) = chain(&headers, protocol);
        (0x86dd, ipv6(first, &extensions, &bytes))
    });
    let arp = prop::collection::vec(any::<u8>(), 20..40).prop_map(|mut rest| {
        rest[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
        (0x0806, rest)
    });
    let labels = prop::collection::vec(any::<[u8; 4]>(), 0..6).prop_map(|labels| (0x8847, labels.concat()));
    let nsh = (0u8..64, 0u8..4, prop::collection::vec(any::<u8>(), 0..260))
        .prop_map(|(units, kind, rest)| (0x894f, [&[0, units, kind, 3], &rest[..]].concat()));
    let noise = (any::<u16>(), prop::collection::vec(any::<u8>(), 0..60));
    let packet = prop_oneof![4 => v4, 4 => v6, 1 => arp, 1 => labels, 1 => nsh, 1 => noise];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    // A length in the type's place, with a control field that is sometimes wrong.
    let snap = prop_oneof![4 => Just(None), 1 => prop::sample::select(vec![Some(3), Some(0)])];
    let padding = prop_oneof![2 => Just(0usize), 1 => 0usize..50];
    let all = (tags, snap, packet, padding, changes);
    all.prop_map(|(tags, snap, (ethertype, packet), padding, changes)| {
        let mut frame = match snap {
            None => ethernet(&tags, ethertype, &packet),
            Some(control) => {
                let [high, low] = u16::to_be_bytes(ethertype);
                let behind = [&[0xaa, 0xaa, control, 0, 0, 0, high, low], &packet[..]].concat();
                ethernet(&tags, 46, &behind)
            }
        };
        frame.resize(frame.len() + padding, 0x5a);
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame
    })
}

/// A solicitation or advertisement with some options, most of 8 bytes.
fn neighbour_discovery(payload: &[u8], options: usize) -> Vec<u8> {
    let kind = 135 + (payload.len() % 2) as u8;
    let mut message = [&[kind, 0, 0, 0, 0, 0, 0, 0], &[9; 16][..]].concat();
    for number in 0..options {
        let (kind, units) = [(14, 1), (1, 1), (9, 3), (2, 1), (1, 2)][(number + payload.len()) % 5];
        let start = message.len();
        message.extend([kind, units]);
        message.resize(start + usize::from(units) * 8, number as u8);
    }
    message
}
