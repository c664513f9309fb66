//! What the data plane can do, as ovs-vswitchd finds out by its probes.
//!
//! A probe is a flow or a packet with the key or action in question. What is not among the capabilities is refused with
//! `EINVAL`, as by a kernel that does not know it; ovs-vswitchd then does without, or does it itself. Nothing is ever ignored:
//! an action that is skipped in silence would forward wrongly.

use ovs_netlink::Errno;
use ovs_netlink::attribute::{Attribute, attributes};
use std::ops::RangeInclusive;

/// A set of attribute numbers below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers(pub u64);

impl Numbers {
    /// The numbers in these ranges.
    pub const fn of(ranges: &[RangeInclusive<u16>]) -> Self {
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
    pub fn has(self, number: u16) -> bool {
        number < 64 && self.0 & 1 << number != 0
    }

    /// The set without these.
    pub const fn without(self, numbers: Numbers) -> Self {
        Self(self.0 & !numbers.0)
    }
}

/// See the module. Numbers are those of `linux/openvswitch.h`, Linux 6.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `OVS_KEY_ATTR_*` in keys and masks.
    pub keys: Numbers,
    /// `OVS_ACTION_ATTR_*`.
    pub actions: Numbers,
    /// `OVS_KEY_ATTR_*` that a `set` or `set_masked` action may change.
    pub set: Numbers,
    /// VLAN tags that are looked at.
    pub vlan_tags: usize,
    /// MPLS labels that are looked at.
    pub mpls_labels: usize,
    /// Levels of actions within actions.
    pub nesting: usize,
    /// Tunnel ports, by `OVS_VPORT_TYPE_*`.
    pub tunnels: Numbers,
    /// Whether sockets for upcalls may be named per processor (`OVS_DP_F_DISPATCH_UPCALL_PER_CPU`); per port otherwise.
    pub upcalls_per_cpu: bool,
    /// Meters of a datapath.
    pub meters: u32,
    /// Limits of connections per zone.
    pub zone_limits: bool,
    /// Ports of a datapath.
    pub ports: usize,
}

/// `OVS_KEY_ATTR_*` of which the glue knows more than the number.
mod key {
    pub const ENCAP: u16 = 1;
    pub const MPLS: u16 = 21;
}

/// `OVS_ACTION_ATTR_*` with something inside.
mod action {
    pub const SET: u16 = 3;
    pub const SAMPLE: u16 = 6;
    pub const HASH: u16 = 8;
    pub const SET_MASKED: u16 = 11;
    pub const CLONE: u16 = 20;
    pub const CHECK_PKT_LEN: u16 = 21;
    /// `OVS_SAMPLE_ATTR_ACTIONS`.
    pub const SAMPLE_ACTIONS: u16 = 2;
    /// `OVS_CHECK_PKT_LEN_ATTR_ACTIONS_IF_GREATER` and `_IF_LESS_EQUAL`.
    pub const LENGTH_ACTIONS: [u16; 2] = [2, 3];
}

/// `EOVERFLOW`: actions within actions are nested too deeply.
const TOO_DEEP: Errno = Errno(75);

/// What a kernel of 6.1 takes, without what only other kernels and other data planes know (numbers above).
const KERNEL: Capabilities = Capabilities {
    keys: Numbers::of(&[1..=28, 32..=32]),
    actions: Numbers::of(&[1..=22]),
    // Priority, Ethernet, IPv4, IPv6, TCP, UDP, SCTP, mark, tunnel, MPLS, NSH; ICMP and ARP are known to set by other data planes only.
    set: Numbers::of(&[2..=2, 4..=4, 7..=10, 15..=17, 21..=21, 28..=28]),
    vlan_tags: 2,
    mpls_labels: 3,
    nesting: 16,
    tunnels: Numbers::of(&[3..=5]),
    upcalls_per_cpu: true,
    meters: 200_000,
    zone_limits: true,
    ports: 65_535,
};

impl Capabilities {
    /// What a kernel of 6.1 can do.
    pub const fn kernel() -> Self {
        KERNEL
    }

    /// What needs neither a second pass, nor connections, nor tunnels, nor labels: output, userspace, header changes, VLAN
    /// tags, sample, clone, trunc, check_pkt_len.
    pub const fn first() -> Self {
        Self {
            // 16: tunnel, 19: dp_hash, 21 to 28: MPLS, connections, NSH, IPv6 extension headers: 32.
            keys: KERNEL.keys.without(Numbers::of(&[16..=16, 19..=19, 21..=32])),
            actions: Numbers::of(&[1..=6, 11..=11, 13..=13, 20..=21]),
            set: KERNEL.set.without(Numbers::of(&[16..=16, 21..=28])),
            nesting: 8,
            mpls_labels: 0,
            tunnels: Numbers(0),
            meters: 0,
            zone_limits: false,
            ports: 4_000,
            ..KERNEL
        }
    }

    /// Refuses a key or mask with what cannot be matched.
    pub fn check_key(&self, key: &[u8]) -> Result<(), Errno> {
        self.check_key_within(key, 0)
    }

    fn check_key_within(&self, key: &[u8], tags: usize) -> Result<(), Errno> {
        for attribute in attributes(key) {
            let Attribute { kind, value } = attribute.map_err(|error| error.errno())?;
            if !self.keys.has(kind) {
                return Err(Errno::EINVAL);
            }
            match kind {
                key::ENCAP if tags < self.vlan_tags => self.check_key_within(value, tags + 1)?,
                key::ENCAP => return Err(Errno::EINVAL),
                key::MPLS if value.len() > 4 * self.mpls_labels => return Err(Errno::EINVAL),
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses actions that cannot be carried out.
    pub fn check_actions(&self, actions: &[u8]) -> Result<(), Errno> {
        self.check_actions_within(actions, 0)
    }

    fn check_actions_within(&self, actions: &[u8], level: usize) -> Result<(), Errno> {
        if level > self.nesting {
            return Err(TOO_DEEP);
        }
        for attribute in attributes(actions) {
            let Attribute { kind, value } = attribute.map_err(|error| error.errno())?;
            if !self.actions.has(kind) {
                return Err(Errno::EINVAL);
            }
            match kind {
                action::CLONE => self.check_actions_within(value, level + 1)?,
                action::SAMPLE => self.check_inside(value, &[action::SAMPLE_ACTIONS], level)?,
                action::CHECK_PKT_LEN => self.check_inside(value, &action::LENGTH_ACTIONS, level)?,
                action::SET | action::SET_MASKED => {
                    let field = attributes(value).next().ok_or(Errno::EINVAL)?;
                    let field = field.map_err(|error| error.errno())?.kind;
                    if !self.set.has(field) {
                        return Err(Errno::EINVAL);
                    }
                }
                // `struct ovs_action_hash`: only the algorithm that all kernels have.
                action::HASH if value.first_chunk() != Some(&[0; 4]) => return Err(Errno::EINVAL),
                _ => {}
            }
        }
        Ok(())
    }

    fn check_inside(&self, bytes: &[u8], places: &[u16], level: usize) -> Result<(), Errno> {
        for attribute in attributes(bytes) {
            let Attribute { kind, value } = attribute.map_err(|error| error.errno())?;
            if places.contains(&kind) {
                self.check_actions_within(value, level + 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovs_netlink::attribute::Writer;

    fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        write(&mut writer);
        writer.finish().unwrap()
    }

    fn clones(levels: usize) -> Vec<u8> {
        (0..levels).fold(Vec::new(), |inner, _| {
            written(|writer| writer.attribute(action::CLONE, &inner))
        })
    }

    #[test]
    fn what_is_unknown_is_refused() {
        let all = Capabilities::kernel();
        for number in 0..64 {
            let bytes = written(|writer| writer.u32(number, 0));
            assert_eq!(
                all.check_key(&bytes).is_ok(),
                (2..=28).contains(&number) || number == 32,
                "{number}"
            );
        }
        let hash = |algorithm: u32| {
            written(|writer| writer.attribute(action::HASH, &[algorithm, 0].map(u32::to_ne_bytes).concat()))
        };
        assert_eq!(all.check_actions(&hash(0)), Ok(()));
        assert_eq!(all.check_actions(&hash(1)), Err(Errno::EINVAL));
    }

    #[test]
    fn depth_is_bounded() {
        let first = Capabilities::first();
        assert_eq!(first.check_actions(&clones(first.nesting)), Ok(()));
        assert_eq!(first.check_actions(&clones(first.nesting + 1)), Err(TOO_DEEP));
        let tag = |inner: &[u8]| written(|writer| writer.attribute(key::ENCAP, inner));
        assert_eq!(first.check_key(&tag(&tag(&[]))), Ok(()));
        assert_eq!(first.check_key(&tag(&tag(&tag(&[])))), Err(Errno::EINVAL));
        let labels = |count: usize| written(|writer| writer.attribute(key::MPLS, &vec![0; 4 * count]));
        assert_eq!(Capabilities::kernel().check_key(&labels(3)), Ok(()));
        assert_eq!(Capabilities::kernel().check_key(&labels(4)), Err(Errno::EINVAL));
        assert_eq!(first.check_key(&labels(1)), Err(Errno::EINVAL));
    }

    #[test]
    fn fields_that_cannot_be_set_are_refused() {
        let set = |field: u16| {
            let inner = written(|writer| writer.attribute(field, &[0; 24]));
            written(|writer| writer.attribute(action::SET_MASKED, &inner))
        };
        let all = Capabilities::kernel();
        assert_eq!(all.check_actions(&set(4)), Ok(()));
        // Options of neighbour discovery: else ovs-vswitchd would believe that they can be set.
        assert_eq!(all.check_actions(&set(30)), Err(Errno::EINVAL));
    }
}
