//! A judge that reads a frame byte by byte, in the words of the guards' description.

use crate::frames::{LINK_LOCAL, OWN, OWN_IP, OWN_IP6, VRRP, VRRP_IP};
use configuration::Guard;
use std::collections::BTreeSet;

fn number(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn short(bytes: &[u8], at: usize) -> u16 {
    number(&bytes[at..at + 2]) as u16
}

fn is_pair(mac: u64, address: u32) -> bool {
    mac == OWN && address == OWN_IP || mac == VRRP && address == VRRP_IP
}

fn is_pair6(mac: u64, address: u128) -> bool {
    mac == OWN && address == OWN_IP6 || (mac == OWN || mac == VRRP) && address >> 118 == LINK_LOCAL >> 118
}

/// Whether the frame passes the guards.
pub fn passes(frame: &[u8], guards: &BTreeSet<Guard>) -> bool {
    let has = |guard| guards.contains(&guard);
    let looks_inside = has(Guard::Spoof) || has(Guard::Dhcp) || has(Guard::Router);
    if has(Guard::Bpdu) && number(&frame[..6]) == 0x0180_c200_0000 {
        return false;
    }
    let src = number(&frame[6..12]) as u64;
    let mut at = 12;
    while matches!(short(frame, at), 0x8100 | 0x88a8) {
        at += 4;
    }
    if at > 20 && looks_inside {
        return false;
    }
    if at > 20 {
        return true;
    }
    let mut kind = short(frame, at);
    at += 2;
    if kind < 1536 {
        if frame[at..at + 6] != [0xaa, 0xaa, 3, 0, 0, 0] {
            return !looks_inside;
        }
        kind = short(frame, at + 6);
        at += 8;
    }
    let packet = &frame[at..];
    let is_ours = src == OWN || src == VRRP;
    match kind {
        0x0806 | 0x8035 if has(Guard::Spoof) => arp(packet, kind, src),
        0x0800 => ipv4(packet, src, guards),
        0x86dd => ipv6(packet, src, guards),
        _ => is_ours || !has(Guard::Spoof),
    }
}

fn arp(packet: &[u8], kind: u16, src: u64) -> bool {
    let (operation, sender, address) = (
        short(packet, 6),
        number(&packet[8..14]) as u64,
        number(&packet[14..18]) as u32,
    );
    let is_own = (src == OWN || src == VRRP) && sender == src;
    is_own && (kind == 0x8035 || is_pair(src, address) || address == 0 && operation == 1)
}

fn ipv4(packet: &[u8], src: u64, guards: &BTreeSet<Guard>) -> bool {
    let has = |guard| guards.contains(&guard);
    let (protocol, is_later) = (packet[9], short(packet, 6) & 0x1fff != 0);
    let (from, to) = (short(packet, 20), short(packet, 22));
    let address = number(&packet[12..16]) as u32;
    if is_later && (has(Guard::Dhcp) && protocol == 17 || has(Guard::Router) && protocol == 1) {
        return false;
    }
    let is_server = protocol == 17 && !is_later && (from == 67 || to == 68);
    let is_router = protocol == 1 && !is_later && matches!(packet[20], 5 | 9);
    if has(Guard::Dhcp) && is_server || has(Guard::Router) && is_router {
        return false;
    }
    let is_client = protocol == 17 && !is_later && from == 68 && to == 67 && address == 0;
    !has(Guard::Spoof) || is_pair(src, address) || (src == OWN || src == VRRP) && is_client
}

fn ipv6(packet: &[u8], src: u64, guards: &BTreeSet<Guard>) -> bool {
    let has = |guard| guards.contains(&guard);
    if guards.iter().all(|guard| *guard == Guard::Bpdu) {
        return true;
    }
    let address = number(&packet[8..24]);
    let (mut next, mut at) = (packet[6], 40);
    loop {
        match next {
            0 | 43 | 60 => {
                let len = 8 + 8 * usize::from(packet[at + 1]);
                next = packet[at];
                at += len;
                if at > packet.len() {
                    return false;
                }
            }
            44 => {
                if short(packet, at + 2) & 0xfff8 != 0 {
                    return false;
                }
                next = packet[at];
                at += 8;
            }
            _ => break,
        }
    }
    let upper = &packet[at..];
    match next {
        17 if has(Guard::Dhcp) && (short(upper, 0) == 547 || short(upper, 2) == 546) => return false,
        58 if has(Guard::Router) && matches!(upper[0], 134 | 137) => return false,
        17 | 58 => {}
        _ => return false,
    }
    if !has(Guard::Spoof) {
        return true;
    }
    if src != OWN && src != VRRP {
        return false;
    }
    if next == 58 && matches!(upper[0], 135 | 136) {
        return discovery(upper, address, src);
    }
    is_pair6(src, address) || address == 0 && next == 58 && matches!(upper[0], 131 | 132 | 133 | 143)
}

fn discovery(message: &[u8], address: u128, src: u64) -> bool {
    let target = number(&message[8..24]);
    let option = |kind| (message.get(24) == Some(&kind)).then(|| number(&message[26..32]) as u64);
    let (source_link, target_link) = (option(1), option(2));
    if message[0] == 136 {
        return is_pair6(src, address) && is_pair6(src, target) && target_link.is_none_or(|link| link == src);
    }
    let asks = is_pair6(src, address) && source_link.is_none_or(|link| link == src);
    asks || address == 0 && is_pair6(src, target) && source_link.is_none()
}
