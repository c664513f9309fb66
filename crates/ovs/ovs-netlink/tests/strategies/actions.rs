//! Random actions.

use ovs_netlink::action::*;
use ovs_netlink::key::{MAX_NSH_CONTEXT, NO_PORT, NshContext, NshHeader, TAG_PRESENT, ether};
use ovs_netlink::layout::Layout;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::keys::{nsh_key, tunnel};
use super::{both, layout, name, number};

fn change<T: Layout + std::fmt::Debug>() -> impl Strategy<Value = Change<T>> {
    (layout::<T>(), option::of(layout::<T>())).prop_map(|(value, mask)| Change {
        value: mask.as_ref().map_or(value, |mask| both(&value, mask)),
        mask,
    })
}

fn set() -> BoxedStrategy<Set> {
    let nsh = (change(), change::<u128>()).prop_map(|(base, context)| {
        let mask = base.mask.map(|base| ovs_netlink::key::Nsh {
            base,
            context: context.mask.unwrap_or(0),
        });
        let value = match mask {
            None => nsh_key(base.value, context.value),
            Some(mask) => ovs_netlink::key::Nsh {
                base: base.value,
                context: context.value & mask.context,
            },
        };
        Set::Nsh(Change { value, mask })
    });
    prop_oneof![
        change().prop_map(Set::Priority),
        change().prop_map(Set::Mark),
        tunnel().prop_map(Set::Tunnel),
        change().prop_map(Set::Ethernet),
        change().prop_map(Set::Ipv4),
        change().prop_map(Set::Ipv6),
        change().prop_map(Set::Tcp),
        change().prop_map(Set::Udp),
        change().prop_map(Set::Sctp),
        change().prop_map(Set::Icmp),
        change().prop_map(Set::Icmpv6),
        change().prop_map(Set::Arp),
        change().prop_map(Set::NeighbourDiscovery),
        change().prop_map(Set::Mpls),
        nsh,
    ]
    .boxed()
}

fn conntrack() -> BoxedStrategy<Conntrack> {
    let addresses = prop_oneof![
        any::<(u32, u32)>().prop_map(|(min, max)| NatAddresses::V4(min, max)),
        any::<(u128, u128)>().prop_map(|(min, max)| NatAddresses::V6(min, max)),
        any::<u32>().prop_map(|only| NatAddresses::V4(only, only)),
    ];
    let kind = prop_oneof![Just(NatKind::Source), Just(NatKind::Destination)];
    let range = (
        option::of(addresses),
        option::of(any::<(u16, u16)>()),
        any::<[bool; 3]>(),
    );
    let nat = (kind, range).prop_map(
        |(kind, (addresses, ports, [persistent, hash, random]))| Nat::New {
            kind,
            range: NatRange {
                addresses,
                ports,
                persistent,
                hash,
                random,
            },
        },
    );
    let commit = prop_oneof![Just(Commit::No), Just(Commit::Yes), Just(Commit::Force)];
    let changes = (
        option::of((number(), 1u32..)),
        option::of((any::<u128>(), 1u128..)),
        option::of(nat),
    );
    let rest = (
        any::<u16>(),
        option::of(name()),
        option::of(number()),
        option::of(name()),
        any::<bool>(),
    );
    (commit, changes, rest)
        .prop_map(
            |(commit, (mark, labels, nat), (zone, helper, events, timeout, existing))| {
                let kept = commit != Commit::No;
                Conntrack {
                    commit,
                    zone,
                    mark: mark.filter(|_| kept),
                    labels: labels.filter(|_| kept),
                    helper,
                    nat: nat.filter(|_| kept).or(existing.then_some(Nat::Existing)),
                    events,
                    timeout,
                }
            },
        )
        .boxed()
}

fn userspace() -> BoxedStrategy<Userspace> {
    let userdata = option::of(vec(any::<u8>(), 0..100));
    (1u32.., userdata, option::of(number()), any::<bool>())
        .prop_map(|(pid, userdata, egress_tunnel_port, actions)| Userspace {
            pid,
            userdata,
            egress_tunnel_port,
            actions,
        })
        .boxed()
}

/// Actions that suit any packet.
fn simple() -> BoxedStrategy<Action> {
    prop_oneof![
        (0..NO_PORT).prop_map(Action::Output),
        userspace().prop_map(Action::Userspace),
        number().prop_map(Action::Recirculate),
        number().prop_map(|basis| Action::Hash { basis }),
        (LEAST_LENGTH..).prop_map(Action::Truncate),
        Just(Action::ClearConnection),
        number().prop_map(Action::Meter),
        tunnel().prop_map(|tunnel| Action::Set(Set::Tunnel(tunnel))),
    ]
    .boxed()
}

fn single() -> BoxedStrategy<Action> {
    let mpls = || prop_oneof![Just(ether::MPLS), Just(ether::MPLS_MULTICAST)];
    let tpid = prop_oneof![Just(ether::VLAN), Just(ether::SERVICE_VLAN)];
    let context = prop_oneof![
        any::<u128>().prop_map(NshContext::Fixed),
        vec(any::<u8>(), 1..=MAX_NSH_CONTEXT).prop_map(NshContext::Variable),
    ];
    let nsh =
        (any::<[u8; 3]>(), any::<u32>(), context).prop_map(|([flags, ttl, next_protocol], path, context)| {
            Action::PushNsh(NshHeader {
                flags,
                ttl,
                next_protocol,
                path,
                context,
            })
        });
    prop_oneof![
        5 => simple(),
        5 => set().prop_map(Action::Set),
        2 => conntrack().prop_map(Action::Conntrack),
        1 => (tpid, any::<u16>()).prop_map(|(tpid, tci)| Action::PushVlan { tpid, tci: tci | TAG_PRESENT }),
        1 => Just(Action::PopVlan),
        1 => (number(), mpls()).prop_map(|(entry, eth_type)| Action::PushMpls { entry, eth_type }),
        1 => any::<u16>().prop_map(Action::PopMpls),
        1 => (number(), mpls(), any::<bool>())
            .prop_map(|(entry, eth_type, layer_3)| Action::AddMpls { entry, eth_type, layer_3 }),
        1 => layout().prop_map(Action::PushEthernet),
        1 => Just(Action::PopEthernet),
        1 => nsh,
        1 => Just(Action::PopNsh),
    ]
    .boxed()
}

fn lists(leaf: BoxedStrategy<Action>) -> impl Strategy<Value = Vec<Action>> {
    let action = leaf.prop_recursive(4, 16, 3, |inner| {
        let list = || vec(inner.clone(), 0..3);
        prop_oneof![
            list().prop_map(Action::Clone),
            (number(), list()).prop_map(|(probability, actions)| Action::Sample { probability, actions }),
            (1u16.., list(), list()).prop_map(|(length, longer, others)| Action::CheckLength {
                length,
                longer,
                others
            }),
        ]
    });
    vec(action, 0..5)
}

pub fn actions() -> BoxedStrategy<Vec<Action>> {
    lists(single().boxed()).boxed()
}

pub fn simple_actions() -> BoxedStrategy<Vec<Action>> {
    lists(simple().boxed()).boxed()
}
