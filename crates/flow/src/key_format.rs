//! Keys as text: `in_port=3,eth_dst=52:54:00:00:00:01,eth_type=0x0800`. Fields that are not in the mask are
//! left out; a partly masked field is written `value/mask`.

use crate::key::{FIELDS, Field, FlowKey, FlowMask};
use std::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A key as seen through a mask.
pub struct Masked<'a> {
    key: &'a FlowKey,
    mask: &'a FlowMask,
}

impl FlowKey {
    /// For printing what of the key matters under `mask`.
    pub fn display<'a>(&'a self, mask: &'a FlowMask) -> Masked<'a> {
        Masked { key: self, mask }
    }
}

impl fmt::Display for FlowKey {
    /// All fields that are not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Masked {
            key: self,
            mask: &FlowMask::EXACT,
        };
        shown.write(f, true)
    }
}

impl fmt::Display for Masked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl Masked<'_> {
    fn write(&self, f: &mut fmt::Formatter<'_>, skip_zero: bool) -> fmt::Result {
        let mut separator = "";
        for field in FIELDS {
            let value = extract(field, self.key);
            let mask = extract(field, &self.mask.0);
            if mask == 0 || (skip_zero && value == 0) {
                continue;
            }
            write!(f, "{separator}{}=", field.name)?;
            write_value(f, field, value)?;
            if !self.mask.is_exact(field) {
                write!(f, "/{mask:#x}")?;
            }
            separator = ",";
        }
        let ipv4 = self.key.eth_type() != 0x86dd;
        for (name, value, mask) in [
            ("ip_src", self.key.ip_src(), self.mask.0.ip_src()),
            ("ip_dst", self.key.ip_dst(), self.mask.0.ip_dst()),
            ("nd_target", self.key.nd_target(), self.mask.0.nd_target()),
        ] {
            if mask == 0 || (skip_zero && value == 0) {
                continue;
            }
            write!(f, "{separator}{name}=")?;
            separator = ",";
            if ipv4 {
                write!(f, "{}", Ipv4Addr::from(value as u32))?;
            } else {
                write!(f, "{}", Ipv6Addr::from(value))?;
            }
            let all = if ipv4 { u128::from(u32::MAX) } else { u128::MAX };
            if mask & all != all {
                write!(f, "/{:#x}", mask & all)?;
            }
        }
        if separator.is_empty() {
            f.write_str("any")
        } else {
            Ok(())
        }
    }
}

fn extract(field: &Field, key: &FlowKey) -> u64 {
    (key.words[field.word] >> field.shift) & (u64::MAX >> (64 - field.bits))
}

fn write_value(f: &mut fmt::Formatter<'_>, field: &Field, value: u64) -> fmt::Result {
    match (field.name, field.bits) {
        (_, 48) => {
            for (position, byte) in value.to_be_bytes()[2..].iter().enumerate() {
                if position > 0 {
                    f.write_char(':')?;
                }
                write!(f, "{byte:02x}")?;
            }
            Ok(())
        }
        ("eth_type" | "vlan_tpid" | "inner_tpid" | "vlan_tci" | "inner_tci" | "tcp_flags", _) => {
            write!(f, "{value:#06x}")
        }
        _ => write!(f, "{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_the_mask_covers() {
        let mut key = FlowKey::default();
        key.set_in_port(3);
        key.set_eth_dst(0x5254_0000_0001);
        key.set_vlan_tci(0x100a);
        let mut mask = FlowMask::ANY;
        mask.0.set_in_port(u32::MAX);
        mask.0.set_eth_dst(0xffff_ffff_ffff);
        mask.0.set_vlan_tci(0x1fff);
        assert_eq!(
            key.display(&mask).to_string(),
            "in_port=3,eth_dst=52:54:00:00:00:01,vlan_tci=0x100a/0x1fff"
        );
        assert_eq!(key.display(&FlowMask::ANY).to_string(), "any");
    }

    #[test]
    fn an_ipv4_address_is_32_bits() {
        let mut key = FlowKey::default();
        key.set_eth_type(0x0800);
        key.set_ip_src(0x0a00_0001);
        assert_eq!(key.to_string(), "eth_type=0x0800,ip_src=10.0.0.1");
        let mut mask = FlowMask::ANY;
        mask.0.set_ip_src(0xffff_ff00);
        assert_eq!(key.display(&mask).to_string(), "ip_src=10.0.0.1/0xffffff00");
        mask.0.set_ip_src(0xffff_ffff);
        assert_eq!(key.display(&mask).to_string(), "ip_src=10.0.0.1");
    }
}
