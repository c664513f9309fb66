//! What is known of all packets of a kind at one point of their walk.
//!
//! The composer walks with a stand-in instead of a packet. Bits that flows look at are the same in all
//! packets of the kind, so the stand-in's key has them. Header changes set bits, move tags and hide what
//! stands behind a third tag, all of which is followed in the key. Bits that may differ between packets of
//! the kind are *unknown*: a look-up that compares such a bit finds nothing that holds for the kind.
//!
//! Safe direction of error: an unknown bit too many, or a doubt whether all packets come so far, costs a walk
//! for each packet, and no packet goes astray.

use flow::{
    Context, Edit, FieldId, FlowKey, FlowMask, Layer, SetField, Unseen, VLAN_PRESENT, is_mpls, is_vlan,
};

/// Bytes by which the head may grow in a composed walk. There is more room in front of a head, so that each
/// push succeeds.
const MAX_GROWN: i16 = 32;
/// Bytes of a VLAN tag.
const TAG: i16 = 4;

/// Stands for all packets of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StandIn {
    pub key: FlowKey,
    pub context: Context,
    /// Bits of the key that may differ between packets of the kind.
    unknown: FlowMask,
    /// Whether all packets of the kind come here, and have grown alike.
    pub is_certain: bool,
    /// Bytes by which packets have grown since they came from their port; negative if they have shrunk.
    pub grown: i16,
    /// Whether packets have been changed, apart from metadata.
    pub was_changed: bool,
}

impl StandIn {
    /// For packets as they come from their port.
    pub fn new(key: &FlowKey, context: &Context) -> StandIn {
        StandIn {
            key: *key,
            context: *context,
            unknown: FlowMask::ANY,
            is_certain: true,
            grown: 0,
            was_changed: false,
        }
    }

    /// Whether a look-up by these bits finds the same flow for all packets of the kind.
    pub fn agrees_in(&self, bits: &FlowMask) -> bool {
        self.is_certain && !self.unknown.meets(bits)
    }

    /// Follows a change of the packets.
    pub fn edit(&mut self, edit: &Edit) {
        let is_metadata = match edit {
            Edit::Set(set) => set.field.field().is_metadata(),
            edit => matches!(edit, Edit::Class(_)),
        };
        self.was_changed |= !is_metadata;
        match edit {
            Edit::Set(set) => self.set(set),
            Edit::PushVlan { tpid, tci } => self.push_vlan(*tpid, *tci),
            Edit::PopVlan => self.pop_vlan(),
            // A packet of another type has no label, and stays as it is.
            Edit::PopMpls(_) => self.is_certain &= self.knows_type() && !is_mpls(self.key.eth_type()),
            // Frames of IEEE 802.3 may have the same key as others, and are dropped here.
            Edit::PushMpls { .. } | Edit::Encapsulate(_) => self.is_certain = false,
            Edit::Class(_) => {}
        }
    }

    fn set(&mut self, set: &SetField) {
        let field = set.field.field();
        if field.is_in_context() {
            field.set(&mut self.context.words, set.value, set.mask);
            return;
        }
        self.is_certain &= field.is_metadata() || self.surely_has(set);
        field.set(&mut self.key.words, set.value, set.mask);
        field.set(&mut self.unknown.0.words, 0, set.mask);
    }

    fn push_vlan(&mut self, tpid: u16, tci: u16) {
        if self.grown + TAG > MAX_GROWN {
            self.is_certain = false;
            return;
        }
        self.grown += TAG;
        let has_two = self.unknown.0.inner_tci() == 0 && self.key.inner_tci() != 0;
        if has_two {
            // The inner one becomes the third, which lies where the key has the Ethernet type.
            self.key.set_eth_type(self.key.inner_tpid());
            self.unknown.0.set_eth_type(0);
            self.forget_layers();
        }
        for bits in [&mut self.key, &mut self.unknown.0] {
            bits.set_inner_tpid(bits.vlan_tpid());
            bits.set_inner_tci(bits.vlan_tci());
        }
        self.key.set_vlan_tpid(tpid);
        self.key.set_vlan_tci(tci | VLAN_PRESENT);
        self.unknown.0.set_vlan_tpid(0);
        self.unknown.0.set_vlan_tci(0);
    }

    fn pop_vlan(&mut self) {
        let unknown = &self.unknown.0;
        let (has_one, has_two) = (self.key.vlan_tci() != 0, self.key.inner_tci() != 0);
        // A frame that ends with its tag keeps it.
        let ends_with_tag = !has_two && self.key.eth_type() == 0;
        if unknown.vlan_tci() != 0 || unknown.inner_tci() != 0 || has_one && ends_with_tag {
            self.is_certain = false;
            return;
        }
        if !has_one {
            return;
        }
        self.grown -= TAG;
        self.key.set_vlan_tpid(self.key.inner_tpid());
        self.key.set_vlan_tci(self.key.inner_tci());
        self.key.set_inner_tpid(0);
        self.key.set_inner_tci(0);
        if has_two && is_vlan(self.key.eth_type()) {
            // A third one comes to light, with what it hid.
            self.unknown = self.unknown.union(Unseen::Network.bits());
            self.unknown.0.set_eth_type(u16::MAX);
            self.unknown.0.set_inner_tpid(u16::MAX);
            self.unknown.0.set_inner_tci(u16::MAX);
        }
    }

    /// Clears all fields behind the Ethernet type.
    fn forget_layers(&mut self) {
        let behind = Unseen::Network.bits();
        for (word, behind) in behind.0.words.iter().enumerate() {
            self.key.words[word] &= !behind;
            self.unknown.0.words[word] &= !behind;
        }
    }

    fn knows_type(&self) -> bool {
        self.unknown.0.eth_type() == 0
    }

    /// Puts in the hash of the packets.
    pub fn set_hash(&mut self, hash: u32) {
        self.key.set_dp_hash(hash);
        let unknown = if self.knows_type() { 0 } else { u32::MAX };
        self.unknown.0.set_dp_hash(unknown);
    }

    /// Whether all packets of the kind have the field whose bits are set. In doubt the answer is no, and the
    /// packet is walked. What is read here is in the kind's bits by [`flow::Program::looks_at`].
    fn surely_has(&self, set: &SetField) -> bool {
        const IPV6: u16 = 0x86dd;
        const IPV4: u16 = 0x0800;
        const TCP: u8 = 6;
        const UDP: u8 = 17;
        let key = &self.key;
        let is_ip = self.knows_type() && matches!(key.eth_type(), IPV4 | IPV6) && key.ip_proto() != 0;
        let fits = key.eth_type() == IPV6 || set.mask >> 32 == 0;
        match set.field.field().layer {
            // A frame that ends with its tag may not have all of it.
            Layer::Link if set.field == FieldId::VlanTci => {
                let known = self.unknown.0.vlan_tci() | self.unknown.0.inner_tci();
                let is_followed = key.inner_tci() != 0 || self.knows_type() && key.eth_type() != 0;
                known & VLAN_PRESENT == 0 && key.vlan_tci() != 0 && is_followed
            }
            Layer::Link => true,
            Layer::Network => match set.field {
                FieldId::IpTos | FieldId::IpTtl => is_ip,
                FieldId::IpSrc | FieldId::IpDst => is_ip && fits,
                FieldId::Ipv6Label => is_ip && key.eth_type() == IPV6,
                _ => false,
            },
            // Both ports zero are no sign, but one would have to be set to zero for that to matter.
            Layer::Transport => {
                let other = if set.field == FieldId::TpSrc {
                    key.tp_dst()
                } else {
                    key.tp_src()
                };
                is_ip && matches!(key.ip_proto(), TCP | UDP) && other != 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What all packets of a kind have can be set in a decision; where some may lack it, each of them walks.
    #[test]
    fn a_field_is_surely_there_if_the_key_says_so() {
        let key = |eth_type, protocol, from, to| {
            let mut key = FlowKey::default();
            key.set_eth_type(eth_type);
            key.set_ip_proto(protocol);
            key.set_tp_src(from);
            key.set_tp_dst(to);
            key
        };
        let keys = [
            key(0x0806, 1, 0, 0),
            key(0x0800, 0, 0, 0),
            key(0x0800, 1, 8, 8),
            key(0x0800, 6, 1, 0),
            key(0x0800, 17, 0, 1),
            key(0x86dd, 17, 1, 1),
        ];
        let ip = [false, false, true, true, true, true];
        let ipv6 = [false, false, false, false, false, true];
        for (field, mask, expected) in [
            (FieldId::EthDst, 1, [true; 6]),
            (FieldId::IpTos, 1, ip),
            (FieldId::IpTtl, 1, ip),
            (FieldId::IpSrc, 1, ip),
            (FieldId::IpDst, u32::MAX.into(), ip),
            (FieldId::IpDst, u128::MAX, ipv6),
            (FieldId::Ipv6Label, 1, ipv6),
            (FieldId::IpProto, 1, [false; 6]),
            (FieldId::TpSrc, 1, [false, false, false, false, true, true]),
            (FieldId::TpDst, 1, [false, false, false, true, false, true]),
        ] {
            let value = 1;
            let set = SetField { field, value, mask };
            let has = |key| StandIn::new(&key, &Context::NONE).surely_has(&set);
            assert_eq!(keys.map(has), expected, "{field:?}");
        }
    }
}
