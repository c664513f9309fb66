//! Writes keys and masks, in the order in which the kernel does (`__ovs_nla_put_key`).

use super::{Key, Mask, Match, Network, Nsh, Transport, Vlan, attr, ether};
use crate::attribute::Writer;
use crate::layout::Layout;

impl Key {
    /// Writes the attributes of the key, without the one that holds them. Metadata are written even if they
    /// are zero.
    pub fn write(&self, writer: &mut Writer) {
        self.write_as(writer, false);
    }

    fn write_as(&self, writer: &mut Writer, mask: bool) {
        self.metadata.write(writer);
        if let Some(ethernet) = &self.ethernet {
            writer.layout(attr::ETHERNET, ethernet);
        }
        self.write_tags(writer, &self.vlans, mask);
    }

    fn write_tags(&self, writer: &mut Writer, tags: &[Option<Vlan>], mask: bool) {
        let Some((Some(tag), inner)) = tags.split_first() else {
            return self.write_headers(writer, mask);
        };
        writer.be16(attr::ETHERTYPE, tag.tpid);
        writer.be16(attr::VLAN, tag.tci);
        writer.nested(attr::ENCAP, |writer| {
            // Behind a tag that the packet ends in, there are no attributes.
            if tag.tci != 0 {
                self.write_tags(writer, inner, mask);
            }
        });
    }

    fn write_headers(&self, writer: &mut Writer, mask: bool) {
        if mask || self.eth_type != ether::LENGTH {
            writer.be16(attr::ETHERTYPE, self.eth_type);
        }
        match &self.network {
            Network::None => {}
            Network::Ipv4(header) => writer.layout(attr::IPV4, header),
            Network::Ipv6(header) => writer.layout(attr::IPV6, header),
            Network::Arp(header) => writer.layout(attr::ARP, header),
            Network::Mpls(labels) if labels.entries().is_empty() => {}
            Network::Mpls(labels) => {
                let bytes: Vec<u8> = labels.entries().iter().flat_map(Layout::to_bytes).collect();
                writer.attribute(attr::MPLS, &bytes);
            }
            // If the whole header is a wildcard, the Ethernet type may be one too; the header must not appear
            // in the mask then.
            Network::Nsh(header) if mask && *header == Nsh::default() => {}
            Network::Nsh(header) => writer.nested(attr::NSH, |writer| header.write(writer, mask)),
        }
        match &self.transport {
            Transport::None => {}
            Transport::Tcp { ports, flags } => {
                writer.layout(attr::TCP, ports);
                writer.be16(attr::TCP_FLAGS, *flags);
            }
            Transport::Udp(ports) => writer.layout(attr::UDP, ports),
            Transport::Sctp(ports) => writer.layout(attr::SCTP, ports),
            Transport::Icmp(header) => writer.layout(attr::ICMP, header),
            Transport::Icmpv6 { icmp, neighbour } => {
                writer.layout(attr::ICMPV6, icmp);
                if let Some(neighbour) = neighbour {
                    writer.layout(attr::ND, neighbour);
                }
            }
        }
    }
}

impl Mask {
    /// Writes the attributes of the mask, without the one that holds them.
    pub fn write(&self, writer: &mut Writer) {
        self.0.write_as(writer, true);
    }
}

impl Match {
    /// Writes the key as attribute `key` and the mask as attribute `mask`.
    pub fn write(&self, writer: &mut Writer, key: u16, mask: u16) {
        writer.nested(key, |writer| self.key.write(writer));
        writer.nested(mask, |writer| self.mask.write(writer));
    }
}
