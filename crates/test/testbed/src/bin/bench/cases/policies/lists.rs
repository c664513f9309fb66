//! The rule lists that are measured.
//!
//! Rules are those of a firewall: networks of 16 to 32 bits, UDP, one port or a range. They are about
//! ports from 30,000 on, and connections are to lower ones, so that a look-up has to tell a connection
//! apart from all rules and none of these decides about it. The last rule lets members of a set pass.

use flow::ListId;
use rule_list::{Addresses, IpPrefix, Match, Member, Range, Rule, SetId, Transport, Verdict};
use std::net::Ipv4Addr;

/// The list, and the set that it names.
pub const LIST: ListId = ListId(1);
pub const SET: SetId = SetId(1);
/// Number of the rule that lets members pass.
const ALLOWING: u32 = u32::MAX;
const UDP: u8 = 17;
/// Bits of addresses below 10.0.0.0/8.
const BITS: u32 = 24;

/// A station whose address is one of the set's: each number another one, spread over 10.0.0.0/8.
pub fn station(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1) & ((1 << BITS) - 1)
}

/// The member for a station.
pub fn member(station: u32) -> Member {
    network(station, 32)
}

/// A member that is the network of a station.
pub fn network(station: u32, len: u8) -> Member {
    Member::Address(prefix(station, len))
}

fn prefix(station: u32, len: u8) -> IpPrefix {
    let bits = (10 << BITS | station) & u32::MAX << (32 - len);
    let address = Ipv4Addr::from_bits(bits).into();
    IpPrefix { address, len }
}

/// One of many rules about networks and ports, each of which drops.
pub fn rule(number: u32) -> Rule {
    let mut random = fastrand::Rng::with_seed(number.into());
    let mut some = || {
        Some(Addresses::Prefix(prefix(
            random.u32(..1 << BITS),
            random.u8(16..=32),
        )))
    };
    let (ip_src, ip_dst) = (some(), some());
    let first = random.u16(30_000..60_000);
    let last = first + if random.bool() { 0 } else { random.u16(..5000) };
    let matches = Match {
        ip_src: ip_src.filter(|_| number.is_multiple_of(2)),
        ip_dst,
        ip_proto: Some(UDP),
        transport: Some(Transport::Ports {
            source: Range::ALL,
            destination: Range { first, last },
        }),
        ..Match::default()
    };
    Rule {
        number,
        priority: 1,
        matches,
        verdict: Verdict::Drop,
        trial: false,
        log: false,
    }
}

/// The last rule.
pub fn allowing() -> Rule {
    Rule {
        number: ALLOWING,
        priority: 0,
        matches: Match {
            ip_src: Some(Addresses::Set(SET)),
            ..Match::default()
        },
        verdict: Verdict::Allow,
        trial: false,
        log: false,
    }
}
