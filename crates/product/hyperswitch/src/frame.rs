//! Frames made up for `trace`: complete and with right checksums, so that they are treated as a guest's would
//! be.

use crate::cli::{IpPair, Proto, TraceArgs};
use anyhow::{Result, bail};
use std::net::IpAddr;
use wire::Sum;

/// Payload of made-up packets: recognisable in a dump, and enough for a frame of 60 bytes.
const PAYLOAD: &[u8] = b"hyperswitch trace packet..";

/// An experimental Ethernet type (IEEE 802-2014, 9.2.4), for frames without IP.
const EXPERIMENTAL: u16 = 0x88b5;

/// The frame that the command line describes.
///
/// # Errors
/// When addresses are missing.
pub fn build(args: &TraceArgs) -> Result<Vec<u8>> {
    let (Some(dst), Some(src)) = (args.dst, args.src) else {
        bail!("--src and --dst are needed")
    };
    let mut frame = Vec::new();
    frame.extend(dst.0);
    frame.extend(src.bytes());
    if let Some(vlan) = args.vlan {
        frame.extend(0x8100u16.to_be_bytes());
        frame.extend(vlan.get().to_be_bytes());
    }
    let (ether_type, payload) = match args.ip {
        None => (EXPERIMENTAL, PAYLOAD.to_vec()),
        Some(pair) => (if pair.src.is_ipv4() { 0x0800 } else { 0x86dd }, ip(pair, args)),
    };
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame.resize(frame.len().max(60), 0);
    Ok(frame)
}

fn ip(pair: IpPair, args: &TraceArgs) -> Vec<u8> {
    let addresses: Vec<u8> = [pair.src, pair.dst]
        .iter()
        .flat_map(|address| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        })
        .collect();
    let (protocol, body) = match args.proto {
        // "Use for experimentation and testing" (RFC 3692).
        None => (253, PAYLOAD.to_vec()),
        Some(proto) => transport(proto, &addresses, args),
    };
    let mut packet;
    if pair.src.is_ipv4() {
        packet = vec![0x45, 0];
        packet.extend(length(20 + body.len()));
        packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        packet.extend(addresses);
        let checksum = Sum::of(&packet).complement();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        packet = vec![0x60, 0, 0, 0];
        packet.extend(length(body.len()));
        packet.extend([protocol, 64]);
        packet.extend(addresses);
    }
    packet.extend(body);
    packet
}

/// Protocol number and transport packet, with checksum.
fn transport(proto: Proto, addresses: &[u8], args: &TraceArgs) -> (u8, Vec<u8>) {
    let ipv6 = addresses.len() == 32;
    let mut packet = [args.sport.to_be_bytes(), args.dport.to_be_bytes()].concat();
    let (number, checksum_at) = match proto {
        Proto::Tcp => {
            // A SYN: sequence number 1, header of 20 bytes, a full window.
            packet.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
            (6, 16)
        }
        Proto::Udp => {
            packet.extend(length(8 + PAYLOAD.len()));
            packet.extend([0, 0]);
            packet.extend(PAYLOAD);
            (17, 6)
        }
        Proto::Icmp => {
            // An echo request, number 1.
            packet = vec![if ipv6 { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 1];
            packet.extend(PAYLOAD);
            (if ipv6 { 58 } else { 1 }, 2)
        }
    };
    // ICMP for IPv4 has no pseudo header (RFC 792).
    let mut sum = if number == 1 {
        Sum::default()
    } else {
        wire::pseudo(addresses, number, packet.len())
    };
    sum.add(&packet);
    packet[checksum_at..checksum_at + 2].copy_from_slice(&sum.l4_checksum().to_be_bytes());
    (number, packet)
}

fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes)
        .expect("made-up packets are short")
        .to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, UserVerb, Verb};
    use clap::Parser;

    fn frame(args: &str) -> Vec<u8> {
        let args = format!("hyperswitch trace --in-port p --src 52:54:00:00:00:01 {args}");
        let Verb::User(UserVerb::Trace(args)) = Cli::try_parse_from(args.split(' ')).unwrap().verb else {
            panic!("not a trace")
        };
        build(&args).unwrap()
    }

    fn key(frame: &[u8]) -> String {
        let head = &frame[..frame.len().min(128)];
        wire::parse(head, frame.len(), flow::PortId(0)).key.to_string()
    }

    #[test]
    fn the_parser_sees_what_was_asked_for() {
        let tcp = frame("--dst 52:54:00:00:00:02 --vlan 10 --ip 10.0.0.1,10.0.0.2 --proto tcp --dport 443");
        let expected = "eth_dst=52:54:00:00:00:02,eth_type=0x0800,eth_src=52:54:00:00:00:01,vlan_tci=0x100a,\
            vlan_tpid=0x8100,ip_proto=6,ip_ttl=64,tcp_flags=0x0002,tp_src=40000,tp_dst=443,\
            ip_src=10.0.0.1,ip_dst=10.0.0.2";
        assert_eq!(key(&tcp), expected);
        let icmp = key(&frame(
            "--dst 33:33:00:00:00:01 --ip fd00::1,ff02::1 --proto icmp",
        ));
        assert!(
            icmp.contains("ip_proto=58") && icmp.contains("ip_dst=ff02::1"),
            "{icmp}"
        );
        let plain = key(&frame("--dst ff:ff:ff:ff:ff:ff"));
        assert!(plain.contains("eth_type=0x88b5"), "{plain}");
    }

    /// Twin: RFC 1071 word by word over pseudo header and packet.
    #[test]
    fn checksums_are_right() {
        fn sum(bytes: &[u8]) -> u16 {
            let mut sum: u32 = bytes
                .chunks(2)
                .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
                .sum();
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            sum as u16
        }
        for proto in ["tcp", "udp", "icmp"] {
            let v4 = frame(&format!(
                "--dst 52:54:00:00:00:02 --ip 10.0.0.1,10.9.0.2 --proto {proto}"
            ));
            assert_eq!(sum(&v4[14..34]), 0xffff, "{proto}");
            let end = 14 + usize::from(u16::from_be_bytes([v4[16], v4[17]]));
            let body = &v4[34..end];
            let pseudo = [&v4[26..34], &[0, v4[23]], &(body.len() as u16).to_be_bytes()].concat();
            let covered = if proto == "icmp" {
                body.to_vec()
            } else {
                [&pseudo, body].concat()
            };
            assert_eq!(sum(&covered), 0xffff, "{proto}");
            let v6 = frame(&format!(
                "--dst 52:54:00:00:00:02 --ip fd00::1,fd00::2 --proto {proto}"
            ));
            let body = &v6[54..54 + usize::from(u16::from_be_bytes([v6[18], v6[19]]))];
            let pseudo = [
                &v6[22..54],
                &(body.len() as u32).to_be_bytes(),
                &[0, 0, 0, v6[20]],
            ]
            .concat();
            assert_eq!(sum(&[&pseudo, body].concat()), 0xffff, "{proto} over IPv6");
        }
    }
}
