//! Exact keys of usual packets, made of header bytes here, and what of them is compared under masks.

use flow::{ExactKey, FIELDS, FieldId, FlowKey, FlowMask};

/// The exact key of a TCP or UDP packet in IPv4 with these fields: its header bytes as they lie in memory.
fn usual(key: &FlowKey) -> ExactKey {
    let mut header = [0; 16];
    header[..6].copy_from_slice(&key.eth_dst().to_be_bytes()[2..]);
    header[6..12].copy_from_slice(&key.eth_src().to_be_bytes()[2..]);
    header[12..14].copy_from_slice(&key.eth_type().to_be_bytes());
    // Version and header length are in no flow key.
    header[14] = 0x45;
    header[15] = key.ip_tos();
    let (words, _) = header.as_chunks();
    let [first, second] = [words[0], words[1]].map(u64::from_ne_bytes);
    let (source, destination) = (key.tp_src().to_be_bytes(), key.tp_dst().to_be_bytes());
    let transport = u32::from_ne_bytes([source[0], source[1], destination[0], destination[1]]);
    let mut addresses = [0; 8];
    addresses[..4].copy_from_slice(&(key.ip_src() as u32).to_be_bytes());
    addresses[4..].copy_from_slice(&(key.ip_dst() as u32).to_be_bytes());
    let mut ip = FlowKey::default();
    ip.set_ip_proto(key.ip_proto());
    ip.set_ip_ttl(key.ip_ttl());
    ip.set_tcp_flags(key.tcp_flags());
    let mut exact = ExactKey::default();
    exact.set_short(
        u64::from(key.in_port()) | u64::from(transport) << 32,
        [first, second],
        ip.words[4],
        u64::from_ne_bytes(addresses),
    );
    exact
}

/// Fields that a usual packet has, with their widths there.
const USUAL: [(FieldId, u32); 12] = [
    (FieldId::InPort, 32),
    (FieldId::EthDst, 48),
    (FieldId::EthType, 16),
    (FieldId::EthSrc, 48),
    (FieldId::IpProto, 8),
    (FieldId::IpTos, 8),
    (FieldId::IpTtl, 8),
    (FieldId::TcpFlags, 12),
    (FieldId::IpSrc, 32),
    (FieldId::IpDst, 32),
    (FieldId::TpSrc, 16),
    (FieldId::TpDst, 16),
];

/// A key with one bit set.
fn bit(field: FieldId, bit: u32) -> FlowKey {
    let mut key = FlowKey::default();
    field.field().set(&mut key.words, 1 << bit, u128::MAX);
    key
}

fn packet() -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(0x0102_0304);
    key.set_eth_dst(0x1112_1314_1516);
    key.set_eth_type(0x0800);
    key.set_eth_src(0x2122_2324_2526);
    key.set_ip_proto(6);
    key.set_ip_tos(0x31);
    key.set_ip_ttl(0x41);
    key.set_tcp_flags(0x512);
    key.set_ip_src(0x5152_5354);
    key.set_ip_dst(0x6162_6364);
    key.set_tp_src(0x7172);
    key.set_tp_dst(0x8182);
    key
}

#[test]
fn flow_keys_of_both_forms_come_back() {
    let key = packet();
    let (short, long) = (usual(&key), ExactKey::of(&key));
    assert!(short.is_short() && !long.is_short());
    assert_eq!(short.flow_key(), Some(key));
    assert_eq!(long.flow_key(), Some(key));
    assert_eq!((short.tcp_flags(), long.tcp_flags()), (0x512, 0x512));
    for (field, width) in USUAL {
        for number in 0..width {
            let key = bit(field, number);
            assert_eq!(usual(&key).flow_key(), Some(key), "bit {number} of {field:?}");
        }
    }
    assert!(ExactKey::NONE.is_none() && ExactKey::NONE.flow_key().is_none());
}

/// A bit of a packet makes a difference if the mask has it, and no other bit does.
#[test]
fn each_bit_of_a_mask_compares_its_own_bit() {
    let bits: Vec<_> = USUAL
        .into_iter()
        .flat_map(|(field, width)| (0..width).map(move |number| (field, bit(field, number))))
        .collect();
    for ((field, one), other) in bits.iter().zip(bits.iter().cycle().skip(1)) {
        for short in [true, false] {
            let make = |key: &FlowKey| if short { usual(key) } else { ExactKey::of(key) };
            let of = |mask: &FlowMask| match short {
                true => ExactKey::short_mask(mask),
                false => ExactKey::long_mask(mask),
            };
            let mask = of(&FlowMask(*one));
            let none = make(&FlowKey::default());
            assert!(!none.is_equal_in(&make(one), |word| mask[word]), "{field:?}");
            // The input port is compared whatever the mask says.
            if other.1.in_port() == 0 {
                assert!(none.is_equal_in(&make(&other.1), |word| mask[word]), "{field:?}");
            }
        }
    }
}

#[test]
fn ports_and_forms_are_told_apart_under_any_mask() {
    for (number, mask) in [(0, FlowMask::ANY), (31, FlowMask::ANY), (7, FlowMask::EXACT)] {
        let (short, long) = (ExactKey::short_mask(&mask), ExactKey::long_mask(&mask));
        let (here, there) = (FlowKey::default(), bit(FieldId::InPort, number));
        assert!(!usual(&here).is_equal_in(&usual(&there), |word| short[word]));
        assert!(!ExactKey::of(&here).is_equal_in(&ExactKey::of(&there), |word| long[word]));
        assert!(!usual(&here).is_equal_in(&ExactKey::of(&here), |word| short[word]));
        assert!(!ExactKey::of(&here).is_equal_in(&usual(&here), |word| long[word]));
        for key in [usual(&here), ExactKey::of(&here)] {
            assert!(!ExactKey::NONE.is_equal_in(&key, |word| long[word]));
            let own = if key.is_short() { short } else { long };
            assert!(!key.is_equal_in(&ExactKey::NONE, |word| own[word]));
        }
    }
}

#[test]
fn what_no_flow_key_has_makes_no_difference() {
    let one = usual(&packet());
    let mut other = one;
    // Version and header length, in memory the seventh byte of the second word of the Ethernet header.
    let mut bytes = other.words[2].to_ne_bytes();
    bytes[6] ^= 0x10;
    other.words[2] = u64::from_ne_bytes(bytes);
    // Words that a short key does not have.
    other.words[ExactKey::SHORT_WORDS..].fill(u64::MAX);
    let mask = ExactKey::short_mask(&FlowMask::EXACT);
    assert!(one.is_equal_in(&other, |word| mask[word]));
    assert_eq!(one.flow_key(), other.flow_key());
    let masked = other.masked(|word| mask[word]);
    assert_eq!(masked.words, one.masked(|word| mask[word]).words);
    assert_eq!(masked.words[ExactKey::SHORT_WORDS..], [0; 4]);
    assert_eq!(masked.flow_key(), Some(packet()));
}

#[test]
fn long_keys_are_compared_and_masked_in_all_words() {
    let key = FlowKey::default();
    for field in FIELDS
        .iter()
        .filter(|field| field.word < ExactKey::WORDS && field.bits < 128)
    {
        let mut other = key;
        field.set(&mut other.words, 1, u128::MAX);
        let (one, other) = (ExactKey::of(&key), ExactKey::of(&other));
        assert_ne!(one, other, "{}", field.name);
        assert_eq!(other, other);
        assert_eq!(other.masked(|_| u64::MAX), other);
        assert_eq!(other.masked(|_| 0).words, [0; ExactKey::WORDS]);
    }
}
