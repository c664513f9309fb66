//! Header fields of a key, as structs of `linux/openvswitch.h`. All numbers are in network order on the wire.

use crate::layout::{Mac, layouts};

layouts! {
    /// `struct ovs_key_ethernet`.
    Ethernet (12) {
        /// Source address.
        source: Mac,
        /// Destination address.
        destination: Mac,
    }

    /// A VLAN tag.
    Vlan (4) {
        /// Tag protocol identifier: 0x8100 or 0x88a8; all ones in a mask.
        tpid: u16,
        /// Priority, VLAN number, and 0x1000, which says that the tag is present. Zero: the packet ends in
        /// the tag.
        tci: u16,
    }

    /// `struct ovs_key_ipv4`.
    Ipv4 (12) {
        /// Source address.
        source: u32,
        /// Destination address.
        destination: u32,
        /// Transport protocol.
        protocol: u8,
        /// Type of service: DSCP and ECN.
        tos: u8,
        /// Time to live.
        ttl: u8,
        /// `enum ovs_frag_type`: 0 whole, 1 first fragment, 2 later fragment.
        fragment: u8,
    }

    /// `struct ovs_key_ipv6`.
    Ipv6 (40) {
        /// Source address.
        source: u128,
        /// Destination address.
        destination: u128,
        /// Flow label, 20 bits.
        label: u32,
        /// Transport protocol.
        protocol: u8,
        /// Traffic class: DSCP and ECN.
        traffic_class: u8,
        /// Hop limit.
        hop_limit: u8,
        /// As [`Ipv4::fragment`].
        fragment: u8,
    }

    /// `struct ovs_key_arp`.
    Arp (24) {
        /// Sender's IP address.
        source_ip: u32,
        /// Target's IP address.
        target_ip: u32,
        /// Operation; the kernel takes those below 256.
        operation: u16,
        /// Sender's Ethernet address.
        source_mac: Mac,
        /// Target's Ethernet address.
        target_mac: Mac,
    }

    /// `struct ovs_key_tcp`, `ovs_key_udp`, `ovs_key_sctp`.
    Ports (4) {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    }

    /// `struct ovs_key_icmp`, `ovs_key_icmpv6`.
    Icmp (2) {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    }

    /// `struct ovs_key_nd`: neighbour discovery.
    NeighbourDiscovery (28) {
        /// Address that is solicited or advertised.
        target: u128,
        /// Source link-layer address option; zero if it is absent.
        source_mac: Mac,
        /// Target link-layer address option; zero if it is absent.
        target_mac: Mac,
    }

    /// `struct ovs_key_ct_tuple_ipv4`: source and destination of a connection's first packet.
    Tuple4 (16) {
        /// Source address.
        source: u32,
        /// Destination address.
        destination: u32,
        /// Source port, or ICMP type.
        source_port: u16,
        /// Destination port, or ICMP code.
        destination_port: u16,
        /// Transport protocol.
        protocol: u8,
    }

    /// `struct ovs_key_ct_tuple_ipv6`.
    Tuple6 (40) {
        /// Source address.
        source: u128,
        /// Destination address.
        destination: u128,
        /// Source port, or ICMPv6 type.
        source_port: u16,
        /// Destination port, or ICMPv6 code.
        destination_port: u16,
        /// Transport protocol.
        protocol: u8,
    }
}
