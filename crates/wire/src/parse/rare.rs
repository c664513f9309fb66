//! Headers that few packets have: MPLS, network service header, neighbour discovery.

use super::{Parser, ipv6_address, mac};
use crate::layers::L3;
use flow::FlowKey;

impl Parser<'_> {
    /// Up to three label stack entries, to the bottom of the stack.
    pub(super) fn mpls(&mut self, l3: usize) {
        const BOTTOM: u32 = 0x100;
        let set = [
            FlowKey::set_mpls_lse,
            FlowKey::set_mpls_lse1,
            FlowKey::set_mpls_lse2,
        ];
        for (number, set) in set.into_iter().enumerate() {
            let Some(&bytes) = self.take(l3 + 4 * number) else {
                return;
            };
            let entry = u32::from_be_bytes(bytes);
            self.parsed.layers.l3_kind = L3::Mpls;
            set(&mut self.parsed.key, entry);
            if entry & BOTTOM != 0 {
                return;
            }
        }
    }

    /// Base header, service path, and the context headers of metadata type 1 (RFC 8300 2.2 to 2.4).
    pub(super) fn nsh(&mut self, l3: usize) {
        const CONTEXTS: u8 = 1;
        const OPTIONS: u8 = 2;
        let Some(&header) = self.take::<8>(l3) else { return };
        let first = u16::from_be_bytes([header[0], header[1]]);
        let len = usize::from(first & 0x3f) * 4;
        let kind = header[2] & 0xf;
        let fits = match kind {
            CONTEXTS => len == 24,
            OPTIONS => len >= 8,
            _ => false,
        };
        let version = first >> 14;
        if version != 0 || !fits || l3 + len > self.head.len() {
            return;
        }
        self.parsed.layers.l3_kind = L3::Nsh;
        let contexts = self.take::<24>(l3).filter(|_| kind == CONTEXTS).copied();
        let word = |at: usize, bytes: &[u8]| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let key = &mut self.parsed.key;
        key.set_nsh_flags((first >> 12 & 3) as u8);
        key.set_nsh_ttl((first >> 6 & 0x3f) as u8);
        key.set_nsh_mdtype(kind);
        key.set_nsh_np(header[3]);
        key.set_nsh_path_hdr(word(4, &header));
        if let Some(header) = contexts {
            key.set_nsh_c1(word(8, &header));
            key.set_nsh_c2(word(12, &header));
            key.set_nsh_c3(word(16, &header));
            key.set_nsh_c4(word(20, &header));
        }
    }

    /// Target and link-layer address options (RFC 4861 4.3, 4.4, 4.6.1).
    pub(super) fn neighbour_discovery(&mut self, l4: usize) {
        let Some(options) = link_options(self.head, l4) else {
            return;
        };
        let [source_link, target_link] = options.map(|at| at.map_or(0, |at| mac(&self.head[at..at + 6])));
        let target = ipv6_address(&self.head[l4 + 8..l4 + 24]);
        self.parsed.key.set_nd_target(target);
        self.parsed.key.set_nd_sll(source_link);
        self.parsed.key.set_nd_tll(target_link);
    }
}

/// Places in what [`link_options`] returns.
pub(crate) const SOURCE_LINK: usize = 0;
pub(crate) const TARGET_LINK: usize = 1;

/// Where a neighbour solicitation or advertisement at `l4` has its link-layer addresses; `None` if it is none, or does not lie
/// in the head. An option that is there twice makes the message void.
pub(crate) fn link_options(head: &[u8], l4: usize) -> Option<[Option<usize>; 2]> {
    const NEIGHBOUR_SOLICITATION: u8 = 135;
    const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    const FIXED: usize = 24;
    let &[kind, code, ..] = head.get(l4..)?.first_chunk::<FIXED>()?;
    if code != 0 || !matches!(kind, NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT) {
        return None;
    }
    let mut links = [None; 2];
    let mut at = l4 + FIXED;
    while let Some(&[kind, units]) = head.get(at..).and_then(|rest| rest.first_chunk()) {
        let len = usize::from(units) * 8;
        if len == 0 || at + len > head.len() {
            break;
        }
        let place = match kind {
            1 if len == 8 => Some(SOURCE_LINK),
            2 if len == 8 => Some(TARGET_LINK),
            _ => None,
        };
        if let Some(place) = place {
            // An address of zeros does not count, as in the kernel.
            if links[place].is_some_and(|at| head[at..at + 6] != [0; 6]) {
                return None;
            }
            links[place] = Some(at + 2);
        }
        at += len;
    }
    Some(links)
}
