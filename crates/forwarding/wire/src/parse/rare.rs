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

    /// Base header, service path, and the context headers of metadata type 1 (RFC 8300 2.2 to 2.4). Of an
    /// unknown metadata type only the contexts are unknown, too.
    pub(super) fn nsh(&mut self, l3: usize) {
        const CONTEXTS: u8 = 1;
        const OPTIONS: u8 = 2;
        let Some(&header) = self.take::<8>(l3) else { return };
        let first = u16::from_be_bytes([header[0], header[1]]);
        let len = usize::from(first & 0x3f) * 4;
        let kind = header[2];
        let fits = match kind {
            CONTEXTS => len == 24,
            OPTIONS => len >= 8,
            _ => true,
        };
        let version = first >> 14;
        if version != 0 || !fits || l3 + len > self.end {
            return;
        }
        let mut contexts = [0; 24];
        if kind == CONTEXTS {
            match self.take::<24>(l3) {
                Some(header) => contexts = *header,
                None => return,
            }
        }
        let word = |at: usize, bytes: &[u8]| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        self.parsed.layers.l3_kind = L3::Nsh;
        let key = &mut self.parsed.key;
        key.set_nsh_flags((first >> 12 & 3) as u8);
        key.set_nsh_ttl((first >> 6 & 0x3f) as u8);
        key.set_nsh_mdtype(kind);
        key.set_nsh_np(header[3]);
        key.set_nsh_path_hdr(word(4, &header));
        key.set_nsh_c1(word(8, &contexts));
        key.set_nsh_c2(word(12, &contexts));
        key.set_nsh_c3(word(16, &contexts));
        key.set_nsh_c4(word(20, &contexts));
    }

    /// Target and link-layer address options (RFC 4861 4.3, 4.4, 4.6.1).
    pub(super) fn neighbour_discovery(&mut self, l4: usize) {
        let links = match link_options(self.head, l4, self.end) {
            Links::At(links) => links,
            Links::None => return,
            Links::Unseen => return self.parsed.unseen = self.layer,
        };
        let [source_link, target_link] = links.map(|at| at.map_or(0, |at| mac(&self.head[at..at + 6])));
        let target = ipv6_address(&self.head[l4 + 8..l4 + 24]);
        self.parsed.key.set_nd_target(target);
        self.parsed.key.set_nd_sll(source_link);
        self.parsed.key.set_nd_tll(target_link);
    }
}

/// Places in what [`link_options`] returns.
pub(crate) const SOURCE_LINK: usize = 0;
pub(crate) const TARGET_LINK: usize = 1;

/// What [`link_options`] found.
pub(crate) enum Links {
    /// Where the addresses lie, of a neighbour solicitation or advertisement that is in the head.
    At([Option<usize>; 2]),
    /// The message is no such one, or is void, as an option that is there twice makes it.
    None,
    /// The message reaches behind the head.
    Unseen,
}

/// Looks for the link-layer addresses of a neighbour discovery message at `l4`, in an IP packet that ends at
/// `end`.
pub(crate) fn link_options(head: &[u8], l4: usize, end: usize) -> Links {
    const NEIGHBOUR_SOLICITATION: u8 = 135;
    const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    const FIXED: usize = 24;
    let Some(&[kind, code]) = head.get(l4..).and_then(|rest| rest.first_chunk()) else {
        return Links::None;
    };
    let is_one = code == 0 && matches!(kind, NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT);
    if !is_one || l4 + FIXED > end {
        return Links::None;
    }
    if l4 + FIXED > head.len() {
        return Links::Unseen;
    }
    let mut links = [None; 2];
    let mut at = l4 + FIXED;
    while at + 8 <= end {
        let Some(&[kind, units]) = head.get(at..).and_then(|rest| rest.first_chunk()) else {
            return Links::Unseen;
        };
        let len = usize::from(units) * 8;
        if len == 0 || at + len > end {
            break;
        }
        let place = match kind {
            1 if len == 8 => Some(SOURCE_LINK),
            2 if len == 8 => Some(TARGET_LINK),
            _ => None,
        };
        if let Some(place) = place {
            if at + len > head.len() {
                return Links::Unseen;
            }
            // An address of zeros does not count, as in the kernel.
            if links[place].is_some_and(|at| head[at..at + 6] != [0; 6]) {
                return Links::None;
            }
            links[place] = Some(at + 2);
        }
        at += len;
    }
    Links::At(links)
}
