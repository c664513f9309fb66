//! The capabilities of a data plane, which ovs-vswitchd finds out by its probes.
//!
//! A probe is a flow or a packet with the key or action in question. A key or action that is not among the
//! capabilities is refused with `EINVAL`, as by a kernel that does not know it; ovs-vswitchd then does
//! without, or acts in its place. Nothing is ever ignored: an action that is skipped in silence would forward
//! wrongly.
//!
//! Connections may be claimed ([`Capabilities::with_connections_claimed`]): ovn-controller installs flows
//! that track connections in any logical switch, whether packets meet them or not, and gives up where
//! ovs-vswitchd refuses one. Tracking then drops the packet ([`flow::DropReason::NotTracked`]). Refusing the
//! flow instead would let packets pass: ovs-vswitchd 3.1 keeps an installed flow whose new actions are
//! refused.

use ovs_netlink::Errno;
use ovs_netlink::action::{Action, Set};
use ovs_netlink::key::{ConnectionTuple, Key, Match, Network};
use ovs_netlink::vport::Kind;
use std::ops::RangeInclusive;

/// A set of numbers below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers(pub u64);

impl Numbers {
    /// The numbers in these ranges.
    pub const fn of(ranges: &[RangeInclusive<u32>]) -> Self {
        let mut bits = 0;
        let mut range = 0;
        while range < ranges.len() {
            let mut number = *ranges[range].start();
            while number <= *ranges[range].end() {
                bits |= 1 << number;
                number += 1;
            }
            range += 1;
        }
        Self(bits)
    }

    /// Whether it has this number.
    pub fn has(self, number: u32) -> bool {
        number < u64::BITS && self.0 & 1 << number != 0
    }
}

/// See the module. Numbers are those of `linux/openvswitch.h`, Linux 6.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `OVS_KEY_ATTR_*` that a packet can have besides Ethernet, VLAN tags, ARP, IP and what follows it.
    pub keys: Numbers,
    /// `OVS_ACTION_ATTR_*`.
    pub actions: Numbers,
    /// `OVS_KEY_ATTR_*` that a `set` or `set_masked` action may change.
    pub set: Numbers,
    /// `OVS_KEY_ATTR_*` that a probe, and no other flow, may ask for besides.
    pub claimed: Numbers,
    /// Whether packets may begin with their network header.
    pub layer_3: bool,
    /// VLAN tags that are looked at.
    pub vlan_tags: usize,
    /// MPLS labels that are looked at.
    pub mpls_labels: usize,
    /// Levels of actions within actions.
    pub nesting: usize,
    /// Tunnel ports, by `OVS_VPORT_TYPE_*`.
    pub tunnels: Numbers,
    /// Whether sockets for upcalls may be named per processor (`OVS_DP_F_DISPATCH_UPCALL_PER_CPU`); per port
    /// otherwise.
    pub upcalls_per_cpu: bool,
    /// Meters of a datapath.
    pub meters: u32,
    /// Limits of connections per zone.
    pub zone_limits: bool,
    /// Ports of a datapath.
    pub ports: usize,
}

impl Capabilities {
    /// What a kernel of 6.1 can do.
    pub const fn kernel() -> Self {
        Self {
            // Priority, mark, tunnel, dp_hash, recirc_id, MPLS, connections, NSH.
            keys: Numbers::of(&[2..=2, 15..=16, 19..=28]),
            actions: Numbers::of(&[1..=22]),
            // Priority, Ethernet, IP, TCP, UDP, mark, tunnel, SCTP, MPLS, NSH; ICMP and ARP only for
            // ovs-vswitchd's own data plane.
            set: Numbers::of(&[2..=2, 4..=4, 7..=10, 15..=17, 21..=21, 28..=28]),
            claimed: Numbers(0),
            layer_3: true,
            vlan_tags: 2,
            mpls_labels: 3,
            nesting: ovs_netlink::action::MAX_DEPTH,
            tunnels: Numbers::of(&[3..=5]),
            upcalls_per_cpu: true,
            meters: 200_000,
            zone_limits: true,
            ports: 65_535,
        }
    }

    /// What needs neither a second pass, nor connections, nor tunnels, nor labels: output, userspace, header
    /// changes, VLAN tags, sample, trunc, clone, check_pkt_len.
    pub const fn first() -> Self {
        Self {
            keys: Numbers::of(&[2..=2, 15..=15]),
            actions: Numbers::of(&[1..=6, 11..=11, 13..=13, 20..=21]),
            set: Numbers::of(&[2..=2, 4..=4, 7..=10, 15..=15, 17..=17]),
            layer_3: false,
            mpls_labels: 0,
            nesting: 8,
            tunnels: Numbers(0),
            meters: 0,
            zone_limits: false,
            ports: 4_000,
            ..Self::kernel()
        }
    }

    /// What our data plane can do: what [`Capabilities::first`] can, a second pass with a hash, MPLS labels,
    /// packets without an Ethernet header, network service headers, and meters.
    pub const fn ours() -> Self {
        Self {
            keys: Numbers::of(&[2..=2, 15..=15, 19..=21, 28..=28]),
            actions: Numbers::of(&[1..=11, 13..=15, 17..=22]),
            set: Numbers::of(&[2..=2, 4..=4, 7..=10, 15..=15, 17..=17, 21..=21, 28..=28]),
            layer_3: true,
            mpls_labels: 3,
            meters: crate::plane::MAX_METERS,
            ports: 4_000,
            ..Self::first()
        }
    }

    /// Claims that packets can be tracked: that keys may have a connection's state, zone, mark and labels.
    pub const fn with_connections_claimed(self) -> Self {
        Self {
            claimed: Numbers::of(&[22..=25]),
            actions: Numbers(self.actions.0 | Numbers::of(&[12..=12]).0),
            ..self
        }
    }

    /// Refuses a match that no look-up can make. A probe's is never looked up.
    pub fn check_match(&self, matches: &Match, probe: bool) -> Result<(), Errno> {
        let claimed = if probe { self.claimed } else { Numbers(0) };
        let keys = Numbers(self.keys.0 | claimed.0);
        // A field that is always zero may well be looked at.
        Self { keys, ..*self }.check_key(&matches.key)
    }

    fn check_key(&self, key: &Key) -> Result<(), Errno> {
        let metadata = &key.metadata;
        let connection = &metadata.connection;
        let fields = [
            (2, metadata.priority != 0),
            (15, metadata.mark != 0),
            (16, metadata.tunnel.is_some()),
            (19, metadata.dp_hash != 0),
            (20, metadata.recirc_id != 0),
            (21, matches!(key.network, Network::Mpls(_))),
            (22, connection.state != 0),
            (23, connection.zone != 0),
            (24, connection.mark != 0),
            (25, connection.labels != 0),
            (26, matches!(connection.original, Some(ConnectionTuple::V4(_)))),
            (27, matches!(connection.original, Some(ConnectionTuple::V6(_)))),
            (28, matches!(key.network, Network::Nsh(_))),
        ];
        let labels = match &key.network {
            Network::Mpls(labels) => labels.entries().len(),
            _ => 0,
        };
        let known = fields
            .iter()
            .all(|(number, there)| !there || self.keys.has(*number))
            && (self.layer_3 || key.ethernet.is_some())
            && key.vlans.iter().flatten().count() <= self.vlan_tags
            && labels <= self.mpls_labels;
        if known { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Refuses actions that cannot be carried out.
    pub fn check_actions(&self, actions: &[Action]) -> Result<(), Errno> {
        self.check_list(actions, 0)
    }

    fn check_list(&self, actions: &[Action], level: usize) -> Result<(), Errno> {
        if level > self.nesting {
            return Err(Errno::EOVERFLOW);
        }
        for action in actions {
            if !self.actions.has(number(action)) {
                return Err(Errno::EINVAL);
            }
            match action {
                Action::Set(set) if !self.set.has(field(set)) => return Err(Errno::EINVAL),
                Action::Sample { actions, .. } | Action::Clone(actions) => {
                    self.check_list(actions, level + 1)?
                }
                Action::CheckLength { longer, others, .. } => {
                    self.check_list(longer, level + 1)?;
                    self.check_list(others, level + 1)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses ports that cannot be made. The kernel says `EAFNOSUPPORT`, "Address family not supported by
    /// protocol"; ovs-vswitchd passes the text on to users, who are better told that the protocol is not
    /// supported.
    pub fn check_port(&self, kind: Kind) -> Result<(), Errno> {
        let known = matches!(kind, Kind::Netdev | Kind::Internal) || self.tunnels.has(kind as u32);
        if known {
            Ok(())
        } else {
            Err(Errno::EPROTONOSUPPORT)
        }
    }
}

/// `OVS_ACTION_ATTR_*`.
fn number(action: &Action) -> u32 {
    match action {
        Action::Output(_) => 1,
        Action::Userspace(_) => 2,
        Action::Set(set) => {
            if is_masked(set) {
                11
            } else {
                3
            }
        }
        Action::PushVlan { .. } => 4,
        Action::PopVlan => 5,
        Action::Sample { .. } => 6,
        Action::Recirculate(_) => 7,
        Action::Hash { .. } => 8,
        Action::PushMpls { .. } => 9,
        Action::PopMpls(_) => 10,
        Action::Conntrack(_) => 12,
        Action::Truncate(_) => 13,
        Action::PushEthernet(_) => 14,
        Action::PopEthernet => 15,
        Action::ClearConnection => 16,
        Action::PushNsh(_) => 17,
        Action::PopNsh => 18,
        Action::Meter(_) => 19,
        Action::Clone(_) => 20,
        Action::CheckLength { .. } => 21,
        Action::AddMpls { .. } => 22,
    }
}

fn is_masked(set: &Set) -> bool {
    match set {
        Set::Tunnel(_) => false,
        Set::Priority(change) | Set::Mark(change) | Set::Mpls(change) => change.mask.is_some(),
        Set::Ethernet(change) => change.mask.is_some(),
        Set::Ipv4(change) => change.mask.is_some(),
        Set::Ipv6(change) => change.mask.is_some(),
        Set::Tcp(change) | Set::Udp(change) | Set::Sctp(change) => change.mask.is_some(),
        Set::Icmp(change) | Set::Icmpv6(change) => change.mask.is_some(),
        Set::Arp(change) => change.mask.is_some(),
        Set::NeighbourDiscovery(change) => change.mask.is_some(),
        Set::Nsh(change) => change.mask.is_some(),
    }
}

/// `OVS_KEY_ATTR_*` of what is set.
fn field(set: &Set) -> u32 {
    match set {
        Set::Priority(_) => 2,
        Set::Ethernet(_) => 4,
        Set::Ipv4(_) => 7,
        Set::Ipv6(_) => 8,
        Set::Tcp(_) => 9,
        Set::Udp(_) => 10,
        Set::Icmp(_) => 11,
        Set::Icmpv6(_) => 12,
        Set::Arp(_) => 13,
        Set::NeighbourDiscovery(_) => 14,
        Set::Mark(_) => 15,
        Set::Tunnel(_) => 16,
        Set::Sctp(_) => 17,
        Set::Mpls(_) => 21,
        Set::Nsh(_) => 28,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovs_netlink::action::Change;
    use ovs_netlink::key::{Ethernet, Labels, Vlan};

    fn key() -> Key {
        Key {
            ethernet: Some(Ethernet::default()),
            ..Key::default()
        }
    }

    fn check(capabilities: Capabilities, key: Key) -> Result<(), Errno> {
        let mask = key.exact_mask();
        capabilities.check_match(&Match { key, mask }, false)
    }

    #[test]
    fn what_is_unknown_is_refused() {
        let mut second_pass = key();
        second_pass.metadata.recirc_id = 1;
        let mut connection = key();
        connection.metadata.connection.state = 1;
        for key in [second_pass, connection, Key::default()] {
            assert_eq!(check(Capabilities::kernel(), key.clone()), Ok(()));
            assert_eq!(check(Capabilities::first(), key), Err(Errno::EINVAL));
        }
        // All of these are looked at, and always zero.
        assert_eq!(check(Capabilities::first(), key()), Ok(()));
        let conntrack = [Action::Recirculate(1)];
        assert_eq!(Capabilities::kernel().check_actions(&conntrack), Ok(()));
        assert_eq!(
            Capabilities::first().check_actions(&conntrack),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn what_is_claimed_is_granted_to_probes_only() {
        let mut connection = key();
        connection.metadata.connection.state = 1;
        connection.metadata.connection.labels = 1;
        let mask = connection.exact_mask();
        let matches = Match {
            key: connection,
            mask,
        };
        let ours = Capabilities::ours();
        assert_eq!(ours.check_match(&matches, true), Err(Errno::EINVAL));
        let claiming = ours.with_connections_claimed();
        assert_eq!(claiming.check_match(&matches, true), Ok(()));
        assert_eq!(claiming.check_match(&matches, false), Err(Errno::EINVAL));
        let track = [Action::Conntrack(ovs_netlink::action::Conntrack::default())];
        assert_eq!(ours.check_actions(&track), Err(Errno::EINVAL));
        assert_eq!(claiming.check_actions(&track), Ok(()));
    }

    #[test]
    fn depth_is_bounded() {
        let first = Capabilities::first();
        let clones = |levels: usize| (0..levels).fold(Vec::new(), |inner, _| vec![Action::Clone(inner)]);
        assert_eq!(first.check_actions(&clones(first.nesting)), Ok(()));
        assert_eq!(
            first.check_actions(&clones(first.nesting + 1)),
            Err(Errno::EOVERFLOW)
        );
        let mut tagged = key();
        tagged.vlans = [Some(Vlan::default()); 2];
        assert_eq!(check(first, tagged.clone()), Ok(()));
        let one = Capabilities {
            vlan_tags: 1,
            ..first
        };
        assert_eq!(check(one, tagged), Err(Errno::EINVAL));
        let mut labels = key();
        labels.network = Network::Mpls(Labels::new(&[0; 3]).unwrap());
        assert_eq!(check(Capabilities::kernel(), labels.clone()), Ok(()));
        let two = Capabilities {
            mpls_labels: 2,
            ..Capabilities::kernel()
        };
        assert_eq!(check(two, labels), Err(Errno::EINVAL));
    }

    #[test]
    fn fields_that_cannot_be_set_are_refused() {
        let change = |mask| Action::Set(Set::Mark(Change { value: 1, mask }));
        let all = Capabilities::kernel();
        assert_eq!(all.check_actions(&[change(None)]), Ok(()));
        let unmasked = Capabilities {
            actions: Numbers::of(&[1..=10, 12..=22]),
            ..all
        };
        assert_eq!(unmasked.check_actions(&[change(None)]), Ok(()));
        assert_eq!(unmasked.check_actions(&[change(Some(1))]), Err(Errno::EINVAL));
        let icmp = Action::Set(Set::Icmp(Change {
            value: ovs_netlink::key::Icmp::default(),
            mask: None,
        }));
        assert_eq!(all.check_actions(&[icmp]), Err(Errno::EINVAL));
        assert_eq!(all.check_port(Kind::Vxlan), Ok(()));
        assert_eq!(
            Capabilities::first().check_port(Kind::Vxlan),
            Err(Errno::EPROTONOSUPPORT)
        );
    }
}
