//! Fields that are set, beside a twin that knows nothing of differences: the parser says what must be there,
//! and all checksums are computed anew.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use flow::{FieldId, PortId, SetField};
use proptest::prelude::*;
use wire::{L3, L4, Layers, NEEDS_CSUM, Offload, Parsed, VnetHeader, finish_checksum, parse, set_field};

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tcp,
    Udp,
    Icmp,
    Sctp,
    Solicitation,
    Arp,
    Mpls,
    Nsh,
    Raw,
}

const KINDS: [Kind; 9] = [
    Kind::Tcp,
    Kind::Udp,
    Kind::Icmp,
    Kind::Sctp,
    Kind::Solicitation,
    Kind::Arp,
    Kind::Mpls,
    Kind::Nsh,
    Kind::Raw,
];

fn solicitation() -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend([0xfd; 16]);
    message.extend([1, 1, 2, 0, 0, 0, 0, 1, 2, 1, 2, 0, 0, 0, 0, 2]);
    message
}

fn frame(kind: Kind, v6: bool, tags: usize, routing: Option<u8>, payload: &[u8]) -> Vec<u8> {
    let (protocol, body) = match kind {
        Kind::Tcp => (6, tcp(0x10, &[], payload)),
        Kind::Udp => (17, udp(payload)),
        Kind::Icmp if v6 => (58, [&[128, 0, 0, 0, 0, 1, 0, 1], payload].concat()),
        Kind::Icmp => (1, [&[8, 0, 0, 0, 0, 1, 0, 1], payload].concat()),
        Kind::Sctp => (132, [&[3, 232, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0], payload].concat()),
        Kind::Solicitation => (58, solicitation()),
        _ => (253, payload.to_vec()),
    };
    let (ethertype, packet) = match (kind, v6) {
        (Kind::Arp, _) => {
            let addresses = [2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
            (0x0806, [&[0, 1, 8, 0, 6, 4, 0, 1][..], &addresses].concat())
        }
        (Kind::Mpls, _) => (0x8847, [&[0, 1, 0x41, 64, 9][..], payload].concat()),
        (Kind::Nsh, _) => {
            let contexts = (0..16).collect::<Vec<u8>>();
            (
                0x894f,
                [&[0x0f, 0xc6, 1, 3, 0, 0, 1, 255][..], &contexts, payload].concat(),
            )
        }
        (Kind::Solicitation, _) => (0x86dd, ipv6(protocol, &[], &body)),
        (_, true) => match routing {
            Some(left) => {
                let header = [&[protocol, 2, 2, left, 0, 0, 0, 0][..], &[9; 16]].concat();
                (0x86dd, ipv6(43, &header, &body))
            }
            None => (0x86dd, ipv6(protocol, &[], &body)),
        },
        (_, false) => (0x0800, ipv4(protocol, 0, &[], &body)),
    };
    let mut frame = ethernet(&[(0x8100, 5), (0x88a8, 7)][..tags], ethertype, &packet);
    recompute(&mut frame, kind == Kind::Udp && v6);
    frame
}

fn parsed(frame: &[u8]) -> Parsed {
    parse(head(frame), frame.len(), PortId(1))
}

/// The pseudo header, of the last destination.
fn pseudo_header(frame: &[u8], layers: &Layers, protocol: u8) -> Vec<u8> {
    let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
    let mut pseudo = match layers.l3_kind {
        L3::Ipv4 => frame[l3 + 12..l3 + 20].to_vec(),
        _ => frame[l3 + 8..l3 + 40].to_vec(),
    };
    // A routing header with a segment left has the last one at its end.
    if layers.routed && frame[l3 + 43] > 0 {
        pseudo.truncate(16);
        pseudo.extend(&frame[l4 - 16..l4]);
    }
    pseudo.extend([0, protocol]);
    pseudo.extend(u16::try_from(frame.len() - l4).unwrap().to_be_bytes());
    pseudo
}

/// Where the transport checksum is, and what of the frame's outside counts to it.
fn checksum_place(frame: &[u8], layers: &Layers) -> Option<(usize, Vec<u8>)> {
    Some(match layers.l4_kind {
        L4::Tcp => (16, pseudo_header(frame, layers, 6)),
        L4::Udp => (6, pseudo_header(frame, layers, 17)),
        L4::Icmp => (2, Vec::new()),
        L4::Icmpv6 => (2, pseudo_header(frame, layers, 58)),
        L4::Sctp | L4::Other => return None,
    })
}

/// CRC32c bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 }
        })
    })
}

/// Computes all checksums anew.
fn recompute(frame: &mut [u8], udp_too: bool) {
    let Parsed { layers, .. } = parsed(frame);
    let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
    if layers.l3_kind == L3::Ipv4 {
        frame[l3 + 10..l3 + 12].fill(0);
        let sum = !ones_complement_sum(&frame[l3..l3 + 20]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    if layers.l4_kind == L4::Sctp {
        frame[l4 + 8..l4 + 12].fill(0);
        let crc = crc32c(&frame[l4..]);
        frame[l4 + 8..l4 + 12].copy_from_slice(&crc.to_le_bytes());
    }
    let Some((offset, pseudo)) = checksum_place(frame, &layers) else {
        return;
    };
    let at = l4 + offset;
    if layers.l4_kind == L4::Udp && !udp_too && frame[at..at + 2] == [0, 0] {
        return;
    }
    frame[at..at + 2].fill(0);
    let sum = !ones_complement_sum(&[&pseudo[..], &frame[l4..]].concat());
    let sum = if sum == 0 && layers.l4_kind == L4::Udp {
        0xffff
    } else {
        sum
    };
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

fn set(frame: &mut [u8], layers: &Layers, offload: &Offload, set: &SetField) -> bool {
    let len = frame.len();
    set_field(&mut frame[..len.min(128)], layers, offload, len, set).is_ok()
}

/// Whether packets of this kind have the field.
fn has(kind: Kind, v6: bool, field: FieldId) -> bool {
    use FieldId::*;
    let v6 = v6 || kind == Kind::Solicitation;
    let is_ip = !matches!(kind, Kind::Arp | Kind::Mpls | Kind::Nsh);
    match field {
        EthDst | EthSrc => true,
        IpTos | IpTtl => is_ip,
        Ipv6Label => is_ip && v6,
        IpSrc | IpDst => is_ip || kind == Kind::Arp,
        IpProto => kind == Kind::Arp,
        TpSrc | TpDst => !matches!(kind, Kind::Arp | Kind::Mpls | Kind::Nsh | Kind::Raw),
        NdSll | NdTll => matches!(kind, Kind::Arp | Kind::Solicitation),
        NdTarget => kind == Kind::Solicitation,
        MplsLse => kind == Kind::Mpls,
        NshFlags | NshTtl | NshPathHdr | NshC1 | NshC2 | NshC3 | NshC4 => kind == Kind::Nsh,
        _ => false,
    }
}

/// Fields that can be set, with what of them is in a packet of that kind.
fn changes() -> impl Strategy<Value = (usize, u128, u128)> {
    let mask = prop_oneof![3 => Just(u128::MAX), 1 => any::<u128>()];
    let value = prop_oneof![3 => any::<u128>(), 1 => Just(0), 1 => Just(u128::MAX)];
    (0..FieldId::ALL.len(), value, mask)
}

fn change((field, value, mask): (usize, u128, u128), kind: Kind, v6: bool) -> SetField {
    let field = FieldId::ALL[field];
    let bits = match field {
        FieldId::IpSrc | FieldId::IpDst if kind == Kind::Arp || !(v6 || kind == Kind::Solicitation) => 32,
        FieldId::TpSrc | FieldId::TpDst if kind == Kind::Icmp => 8,
        // The bottom of the stack stays.
        FieldId::MplsLse => 8,
        _ => field.field().bits,
    };
    let mask = mask & u128::MAX >> (128 - bits);
    SetField {
        field,
        value: value & mask,
        mask,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_set_field_reads_as_set_and_checksums_are_as_if_computed_anew(
        kind in prop::sample::select(&KINDS[..]), v6: bool, tags in 0usize..3, routing in prop::option::of(0u8..2),
        payload in prop::collection::vec(any::<u8>(), 0..200), changes in prop::collection::vec(changes(), 1..6),
        open: bool, without: bool,
    ) {
        let mut frame = frame(kind, v6, tags, routing, &payload);
        let Parsed { layers, .. } = parsed(&frame);
        let mut offload = Offload::NONE;
        let place = checksum_place(&frame, &layers);
        if let (L4::Udp, true, false, Some((offset, _))) = (layers.l4_kind, without, open, &place) {
            frame[usize::from(layers.l4) + offset..][..2].fill(0);
        }
        if let (Some((offset, pseudo)), true) = (&place, open) {
            let at = usize::from(layers.l4) + offset;
            frame[at..at + 2].copy_from_slice(&ones_complement_sum(pseudo).to_be_bytes());
            let header = VnetHeader {
                flags: NEEDS_CSUM,
                csum_start: layers.l4,
                csum_offset: *offset as u16,
                ..VnetHeader::default()
            };
            offload = Offload::check(&header, &layers, head(&frame), frame.len()).unwrap();
        }
        for chosen in changes {
            let chosen = change(chosen, kind, v6);
            if !chosen.is_valid() || kind == Kind::Solicitation && matches!(chosen.field, FieldId::TpSrc | FieldId::TpDst) {
                continue;
            }
            let mut key = parsed(&frame).key;
            let before = frame.clone();
            let done = set(&mut frame, &layers, &offload, &chosen);
            if chosen.field.field().is_metadata() {
                prop_assert!(done && frame == before);
                continue;
            }
            prop_assert_eq!(done, has(kind, v6, chosen.field), "{:?}", chosen);
            if done {
                chosen.field.field().set(&mut key.words, chosen.value, chosen.mask);
            } else {
                prop_assert_eq!(&frame, &before);
            }
            let after = parsed(&frame).key;
            if kind == Kind::Icmp && matches!(chosen.field, FieldId::TpSrc | FieldId::TpDst) && v6 {
                // The packet may have become neighbour discovery, which has fields and an end of its own.
                prop_assert_eq!((after.tp_src(), after.tp_dst()), (key.tp_src(), key.tp_dst()));
                break;
            }
            prop_assert_eq!(after, key, "{:?}", chosen);
        }
        let mut expected = frame.clone();
        recompute(&mut expected, open);
        if open && let Some((offset, _)) = place {
            let rest = frame.split_off(frame.len().min(128));
            let l4 = layers.l4.into();
            prop_assert!(finish_checksum(&mut frame, l4, offset, &wire::Sum::of(&rest)));
            frame.extend(rest);
            // Completing writes no zero, whatever the protocol is.
            let at = usize::from(layers.l4) + offset;
            if expected[at..at + 2] == [0, 0] {
                expected[at..at + 2].fill(0xff);
            }
        }
        prop_assert_eq!(frame, expected);
    }

    /// A wrong checksum does not become right.
    #[test]
    fn what_was_wrong_stays_wrong(error in 1u16..0xffff, address: u32, port: u16) {
        let mut frame = frame(Kind::Tcp, false, 0, None, b"payload");
        for at in [24, 50] {
            let field = u16::from_be_bytes([frame[at], frame[at + 1]]) ^ error;
            frame[at..at + 2].copy_from_slice(&field.to_be_bytes());
        }
        let Parsed { layers, .. } = parsed(&frame);
        for field in [SetField::whole(FieldId::IpSrc, address.into()), SetField::whole(FieldId::TpDst, port.into())] {
            prop_assert!(set(&mut frame, &layers, &Offload::NONE, &field));
        }
        let mut right = frame.clone();
        recompute(&mut right, false);
        for at in [24, 50] {
            prop_assert_ne!(&right[at..at + 2], &frame[at..at + 2]);
        }
    }
}

#[test]
fn fragments_of_sctp_keep_their_ports() {
    let mut frame = ethernet(&[], 0x0800, &ipv4(132, 0x2000, &[], &[0; 40]));
    let Parsed { layers, .. } = parsed(&frame);
    assert_eq!(layers.l4_kind, L4::Sctp);
    let before = frame.clone();
    assert!(!set(
        &mut frame,
        &layers,
        &Offload::NONE,
        &SetField::whole(FieldId::TpSrc, 7)
    ));
    assert_eq!(frame, before);
}
