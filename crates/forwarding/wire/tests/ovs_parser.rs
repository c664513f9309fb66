//! Our parser beside ovs-vswitchd's own, which `ovs-ofctl parse-pcap` runs: the same fields in each frame,
//! however the frame contradicts itself. ovs-vswitchd decides by what its parser finds, and the decision is
//! for all frames that have the same key here.
//!
//! Left out where Open vSwitch is not installed, unless `HYPERSWITCH_OVS=require`.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::frames::plausible_frames;
use flow::{FlowKey, PortId, VLAN_PRESENT};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use wire::parse;

const FRAMES: usize = 20_000;

/// Frames shorter than two tags and a type are padded by the glue before ovs-vswitchd gets them.
const SHORTEST: usize = 22;

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        let len = (frame.len() as u32).to_le_bytes();
        file.extend([[0; 4], [0; 4], len, len].concat());
        file.extend(frame);
    }
    file
}

/// The key that a line of `ovs-ofctl` tells of, without tags' protocol identifiers, which it does not tell.
fn key_of(line: &str) -> FlowKey {
    let mut key = FlowKey::default();
    let kind = line.split(',').next().unwrap_or_default();
    let (eth_type, protocol) = match kind {
        "ip" => (0x0800, 0),
        "icmp" => (0x0800, 1),
        "tcp" => (0x0800, 6),
        "udp" => (0x0800, 17),
        "sctp" => (0x0800, 132),
        "ipv6" => (0x86dd, 0),
        "tcp6" => (0x86dd, 6),
        "udp6" => (0x86dd, 17),
        "icmp6" => (0x86dd, 58),
        "sctp6" => (0x86dd, 132),
        "arp" => (0x0806, 0),
        "rarp" => (0x8035, 0),
        "mpls" => (0x8847, 0),
        "mplsm" => (0x8848, 0),
        _ => (0, 0),
    };
    key.set_eth_type(eth_type);
    key.set_ip_proto(protocol);
    // Of other protocols there is nothing to match, whatever is shown.
    let has_ports = protocol != 0;
    for (name, value) in line.split(',').filter_map(|pair| pair.split_once('=')) {
        set(&mut key, name, value, has_ports);
    }
    key
}

fn set(key: &mut FlowKey, name: &str, value: &str, has_ports: bool) {
    let number = || match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
        None => value.parse().unwrap(),
    };
    let mac = || u64::from_str_radix(&value.replace(':', ""), 16).unwrap();
    let ipv4 = || u128::from(u32::from(value.parse::<Ipv4Addr>().unwrap()));
    let ipv6 = || u128::from(value.parse::<Ipv6Addr>().unwrap());
    let lse = key.mpls_lse();
    match name {
        "dl_vlan" => key.set_vlan_tci(key.vlan_tci() | VLAN_PRESENT | number() as u16),
        "dl_vlan_pcp" => key.set_vlan_tci(key.vlan_tci() | (number() << 13) as u16),
        "dl_vlan1" => key.set_inner_tci(key.inner_tci() | VLAN_PRESENT | number() as u16),
        "dl_vlan_pcp1" => key.set_inner_tci(key.inner_tci() | (number() << 13) as u16),
        "vlan_tci" | "vlan_tci1" => assert_eq!(number(), 0),
        "dl_src" => key.set_eth_src(mac()),
        "dl_dst" => key.set_eth_dst(mac()),
        // An 802.3 frame.
        "dl_type" if value == "0x05ff" => {}
        "dl_type" => key.set_eth_type(number() as u16),
        "nw_src" | "arp_spa" => key.set_ip_src(ipv4()),
        "nw_dst" | "arp_tpa" => key.set_ip_dst(ipv4()),
        "ipv6_src" => key.set_ip_src(ipv6()),
        "ipv6_dst" => key.set_ip_dst(ipv6()),
        "ipv6_label" => key.set_ipv6_label(number()),
        "nw_proto" | "arp_op" => key.set_ip_proto(number() as u8),
        "nw_tos" | "nw_ecn" => key.set_ip_tos(key.ip_tos() | number() as u8),
        "nw_ttl" => key.set_ip_ttl(number() as u8),
        "nw_frag" => key.set_ip_frag(
            ["no", "first", "later"]
                .iter()
                .position(|kind| *kind == value)
                .unwrap() as u8,
        ),
        "tp_src" | "icmp_type" if has_ports => key.set_tp_src(number() as u16),
        "tp_dst" | "icmp_code" if has_ports => key.set_tp_dst(number() as u16),
        "tcp_flags" => key.set_tcp_flags(tcp_flags(value)),
        "nd_target" => key.set_nd_target(ipv6()),
        "nd_sll" | "arp_sha" => key.set_nd_sll(mac()),
        "nd_tll" | "arp_tha" => key.set_nd_tll(mac()),
        "mpls_label" => key.set_mpls_lse(lse | number() << 12),
        "mpls_tc" => key.set_mpls_lse(lse | number() << 9),
        "mpls_bos" => key.set_mpls_lse(lse | number() << 8),
        "mpls_ttl" => key.set_mpls_lse(lse | number()),
        "mpls_lse1" => key.set_mpls_lse1(number()),
        "mpls_lse2" => key.set_mpls_lse2(number()),
        "nsh_flags" => key.set_nsh_flags(number() as u8),
        "nsh_ttl" => key.set_nsh_ttl(number() as u8),
        "nsh_mdtype" => key.set_nsh_mdtype(number() as u8),
        "nsh_np" => key.set_nsh_np(number() as u8),
        "nsh_spi" => key.set_nsh_path_hdr(key.nsh_path_hdr() | number() << 8),
        "nsh_si" => key.set_nsh_path_hdr(key.nsh_path_hdr() | number()),
        "nsh_c1" => key.set_nsh_c1(number()),
        "nsh_c2" => key.set_nsh_c2(number()),
        "nsh_c3" => key.set_nsh_c3(number()),
        "nsh_c4" => key.set_nsh_c4(number()),
        "in_port" | "tp_src" | "tp_dst" | "icmp_type" | "icmp_code" => {}
        other => panic!("a field that nobody knows: {other}"),
    }
}

fn tcp_flags(value: &str) -> u16 {
    const NAMES: [&str; 12] = [
        "fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]",
    ];
    let bit = |name: &str| NAMES.iter().position(|known| *known == name);
    value.split('|').filter_map(bit).map(|bit| 1 << bit).sum()
}

#[test]
fn ovs_vswitchd_sees_the_same_in_each_frame() {
    let required = std::env::var("HYPERSWITCH_OVS").is_ok_and(|value| value == "require");
    if Command::new("ovs-ofctl").arg("--version").output().is_err() {
        assert!(!required, "there is no ovs-ofctl");
        return;
    }
    let mut runner = TestRunner::deterministic();
    let mut frame = || {
        let mut frame = plausible_frames().new_tree(&mut runner).unwrap().current();
        frame.resize(frame.len().max(SHORTEST), 0);
        frame
    };
    let frames: Vec<_> = (0..FRAMES).map(|_| frame()).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pcap(&frames)).unwrap();
    let output = Command::new("ovs-ofctl")
        .arg("parse-pcap")
        .arg(file.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), frames.len());
    for (line, frame) in text.lines().zip(&frames) {
        let mut key = parse(frame, frame.len(), PortId(0)).key;
        key.set_vlan_tpid(0);
        key.set_inner_tpid(0);
        let expected = key_of(line);
        assert_eq!(key, expected, "{key}\n{expected}\n{line}\n{frame:02x?}");
    }
}
