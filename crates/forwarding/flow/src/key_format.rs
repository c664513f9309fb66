//! Keys as text: `in_port=3,eth_dst=52:54:00:00:00:01,eth_type=0x0800`. Fields that are not in the mask are
//! left out; a partly masked field is written `value/mask`.

use crate::field::{FIELDS, Field};
use crate::key::{FlowKey, FlowMask};
use std::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

const IPV6: u16 = 0x86dd;

/// A key as seen through a mask.
pub struct Masked<'a> {
    key: &'a FlowKey,
    mask: &'a FlowMask,
}

impl FlowKey {
    /// The fields of the key that `mask` compares, as text.
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
        let eth_type = self.key.eth_type();
        let fields = FIELDS
            .iter()
            .filter(|field| !field.is_in_context() && field.applies_to(eth_type));
        for field in fields {
            let value = field.get(&self.key.words);
            let mask = field.get(&self.mask.0.words);
            if mask == 0 || (skip_zero && value == 0) {
                continue;
            }
            write!(f, "{separator}{}=", field.name)?;
            let ones = write_value(f, field, value, eth_type)?;
            if mask & ones != ones {
                write!(f, "/{:#x}", mask & ones)?;
            }
            separator = ",";
        }
        if separator.is_empty() {
            f.write_str("any")
        } else {
            Ok(())
        }
    }
}

/// Returns the bits of the field that packets of this Ethernet type have.
fn write_value(
    f: &mut fmt::Formatter<'_>,
    field: &Field,
    value: u128,
    eth_type: u16,
) -> Result<u128, fmt::Error> {
    match (field.name, field.bits) {
        (_, 128) if eth_type != IPV6 => {
            write!(f, "{}", Ipv4Addr::from(value as u32))?;
            return Ok(u128::from(u32::MAX));
        }
        (_, 128) => write!(f, "{}", Ipv6Addr::from(value))?,
        (_, 48) => {
            for (position, byte) in value.to_be_bytes()[10..].iter().enumerate() {
                if position > 0 {
                    f.write_char(':')?;
                }
                write!(f, "{byte:02x}")?;
            }
        }
        ("eth_type" | "vlan_tpid" | "inner_tpid" | "vlan_tci" | "inner_tci" | "tcp_flags", _) => {
            write!(f, "{value:#06x}")?;
        }
        _ => write!(f, "{value}")?,
    }
    Ok(field.ones())
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
