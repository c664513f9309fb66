//! Random requests and replies.

use ovs_netlink::flow::{Flow, Omit, Ufid};
use ovs_netlink::packet::{Execute, Reason, Upcall};
use ovs_netlink::{Reply, Request, control, ct_limit, datapath, flow, meter, vport};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::actions::{actions, simple_actions};
use super::keys::{flow as matching, key, metadata, tunnel};
use super::{name, number};

/// Messages borrow packets and userdata.
fn bytes() -> impl Strategy<Value = &'static [u8]> {
    static NOISE: [u8; 2000] = [0xa5; 2000];
    (14usize..2000).prop_map(|length| &NOISE[..length])
}

fn pids() -> BoxedStrategy<Vec<u32>> {
    vec(any::<u32>(), 1..10).boxed()
}

fn settings() -> BoxedStrategy<datapath::Settings> {
    (option::of(number()), option::of(number()), option::of(pids()))
        .prop_map(|(features, masks_cache_size, per_cpu_pids)| datapath::Settings {
            features,
            masks_cache_size,
            per_cpu_pids,
        })
        .boxed()
}

fn datapath_request() -> BoxedStrategy<datapath::Request> {
    let which = || {
        (any::<u32>(), option::of(name()), option::of(number())).prop_map(|(datapath, name, upcall_pid)| {
            datapath::Which {
                datapath,
                name,
                upcall_pid,
            }
        })
    };
    prop_oneof![
        (name(), number(), option::of(number()), settings()).prop_map(
            |(name, upcall_pid, ifindex, settings)| {
                datapath::Request::New {
                    name,
                    upcall_pid,
                    ifindex,
                    settings,
                }
            }
        ),
        which().prop_map(datapath::Request::Delete),
        which().prop_map(datapath::Request::Get),
        (which(), settings()).prop_map(|(which, settings)| datapath::Request::Set(which, settings)),
        Just(datapath::Request::Dump),
    ]
    .boxed()
}

fn kind() -> BoxedStrategy<vport::Kind> {
    use vport::Kind;
    prop_oneof![
        Just(Kind::Netdev),
        Just(Kind::Internal),
        Just(Kind::Gre),
        Just(Kind::Vxlan),
        Just(Kind::Geneve)
    ]
    .boxed()
}

fn options() -> BoxedStrategy<Option<vport::Options>> {
    let options = (option::of(any::<u16>()), any::<bool>());
    option::of(options.prop_map(|(port, group_policy)| vport::Options { port, group_policy })).boxed()
}

fn vport_request() -> BoxedStrategy<vport::Request> {
    let which = || {
        let names = prop_oneof![
            (name().prop_map(Some), option::of(0u32..0xffff)),
            (Just(None), (0u32..0xffff).prop_map(Some)),
        ];
        (any::<u32>(), names).prop_map(|(datapath, (name, port))| vport::Which { datapath, name, port })
    };
    let new = (
        any::<u32>(),
        name(),
        kind(),
        option::of(0u32..0xffff),
        pids(),
        options(),
        option::of(number()),
    );
    prop_oneof![
        new.prop_map(
            |(datapath, name, kind, port, upcall_pids, options, ifindex)| vport::Request::New {
                datapath,
                name,
                kind,
                port,
                upcall_pids,
                options,
                ifindex,
            }
        ),
        which().prop_map(vport::Request::Delete),
        which().prop_map(vport::Request::Get),
        (which(), option::of(kind()), option::of(pids()), options()).prop_map(
            |(which, kind, upcall_pids, options)| vport::Request::Set {
                which,
                kind,
                upcall_pids,
                options,
            }
        ),
        any::<u32>().prop_map(|datapath| vport::Request::Dump { datapath }),
    ]
    .boxed()
}

fn ufid() -> BoxedStrategy<Ufid> {
    vec(any::<u8>(), 1..=16)
        .prop_map(|bytes| Ufid::new(&bytes).unwrap())
        .boxed()
}

fn omit() -> BoxedStrategy<Omit> {
    any::<[bool; 3]>()
        .prop_map(|[key, mask, actions]| Omit { key, mask, actions })
        .boxed()
}

fn flow_request() -> BoxedStrategy<flow::Request> {
    let which = || {
        prop_oneof![
            (ufid(), option::of(key())).prop_map(|(ufid, key)| flow::Which::Ufid(ufid, key.map(Box::new))),
            key().prop_map(|key| flow::Which::Key(Box::new(key))),
        ]
    };
    let with_flow = (
        matching().prop_map(Some),
        option::of(simple_actions()),
        option::of(ufid()),
    );
    let without = (Just(None), Just(None), ufid().prop_map(Some));
    prop_oneof![
        (
            matching(),
            simple_actions(),
            option::of(ufid()),
            omit(),
            any::<bool>()
        )
            .prop_map(|(flow, actions, ufid, omit, probe)| flow::Request::New {
                flow: Box::new(flow),
                actions,
                ufid,
                omit,
                probe,
            }),
        (prop_oneof![with_flow, without], omit(), any::<[bool; 2]>()).prop_map(
            |((flow, actions, ufid), omit, [clear, probe])| flow::Request::Set {
                flow: flow.map(Box::new),
                actions,
                ufid,
                clear,
                omit,
                probe,
            }
        ),
        (which(), omit(), any::<bool>()).prop_map(|(which, omit, probe)| flow::Request::Get {
            which,
            omit,
            probe
        }),
        (which(), omit(), any::<bool>()).prop_map(|(which, omit, probe)| flow::Request::Delete {
            which,
            omit,
            probe
        }),
        Just(flow::Request::Flush),
        omit().prop_map(|omit| flow::Request::Dump { omit }),
    ]
    .boxed()
}

fn execute() -> BoxedStrategy<Execute<'static>> {
    let rest = (
        any::<bool>(),
        option::of(any::<u16>()),
        option::of(any::<u64>()),
        option::of(number()),
    );
    (
        number(),
        bytes(),
        metadata(),
        option::of(0x600u16..),
        actions(),
        rest,
    )
        .prop_map(
            |(datapath, packet, metadata, eth_type, actions, (probe, mru, hash, upcall_pid))| Execute {
                datapath,
                packet,
                metadata,
                eth_type,
                actions,
                probe,
                mru,
                hash,
                upcall_pid,
            },
        )
        .boxed()
}

fn limits() -> BoxedStrategy<Vec<ct_limit::ZoneLimit>> {
    let zone = prop_oneof![
        Just(ct_limit::Zone::Default),
        any::<u16>().prop_map(ct_limit::Zone::Zone)
    ];
    let limit = (zone, number(), number());
    vec(
        limit.prop_map(|(zone, limit, count)| ct_limit::ZoneLimit { zone, limit, count }),
        0..5,
    )
    .boxed()
}

fn meter_request() -> BoxedStrategy<meter::Request> {
    let band = (1u32.., number()).prop_map(|(rate, burst)| meter::Band { rate, burst });
    prop_oneof![
        Just(meter::Request::Features),
        number().prop_map(meter::Request::Delete),
        number().prop_map(meter::Request::Get),
        (
            number(),
            any::<[bool; 2]>(),
            option::of(stats()),
            vec(band, 0..=meter::MAX_BANDS)
        )
            .prop_map(|(id, [kilobits, clear], stats, bands)| meter::Request::Set {
                id,
                kilobits,
                clear,
                stats,
                bands,
            }),
    ]
    .boxed()
}

pub fn request() -> BoxedStrategy<Request<'static>> {
    prop_oneof![
        name().prop_map(|name| Request::Control(control::Request::ByName(name))),
        any::<u16>().prop_map(|number| Request::Control(control::Request::ByNumber(number))),
        datapath_request().prop_map(Request::Datapath),
        vport_request().prop_map(Request::Vport),
        (number(), flow_request()).prop_map(|(datapath, request)| Request::Flow(datapath, request)),
        execute().prop_map(|execute| Request::Execute(Box::new(execute))),
        (number(), meter_request()).prop_map(|(datapath, request)| Request::Meter(datapath, request)),
        limits().prop_map(|limits| Request::CtLimit(ct_limit::Request::Set(limits))),
        limits().prop_map(|limits| Request::CtLimit(ct_limit::Request::Delete(limits))),
        option::of(limits()).prop_map(|limits| Request::CtLimit(ct_limit::Request::Get(limits))),
    ]
    .boxed()
}

fn command() -> BoxedStrategy<datapath::Command> {
    use datapath::Command;
    prop_oneof![
        Just(Command::New),
        Just(Command::Delete),
        Just(Command::Get),
        Just(Command::Set)
    ]
    .boxed()
}

fn stats() -> BoxedStrategy<flow::Stats> {
    any::<[u64; 2]>()
        .prop_map(|[packets, bytes]| flow::Stats { packets, bytes })
        .boxed()
}

fn flow_reply() -> BoxedStrategy<Flow> {
    let known = prop_oneof![
        Just((None, None)),
        key().prop_map(|key| (Some(Box::new(key)), None)),
        matching().prop_map(|flow| (Some(Box::new(flow.key)), Some(Box::new(flow.mask)))),
    ];
    let counts = (
        option::of(stats()),
        option::of(any::<u8>()),
        option::of(any::<u64>()),
    );
    (
        command(),
        option::of(ufid()),
        known,
        option::of(actions()),
        counts,
    )
        .prop_map(
            |(command, ufid, (key, mask), actions, (stats, tcp_flags, used))| Flow {
                command,
                ufid,
                key,
                mask,
                actions,
                stats,
                tcp_flags,
                used,
            },
        )
        .boxed()
}

fn upcall() -> BoxedStrategy<Upcall<'static>> {
    let reason = prop_oneof![Just(Reason::Miss), Just(Reason::Action)];
    let rest = (
        option::of(any::<u16>()),
        option::of(number()),
        option::of(any::<u64>()),
    );
    (
        reason,
        bytes(),
        key(),
        option::of(bytes()),
        option::of(tunnel()),
        option::of(actions()),
        rest,
    )
        .prop_map(
            |(reason, packet, key, userdata, egress_tunnel, actions, (mru, length, hash))| Upcall {
                reason,
                packet,
                key: Box::new(key),
                userdata,
                egress_tunnel,
                actions,
                mru,
                length,
                hash,
            },
        )
        .boxed()
}

fn datapath_reply() -> BoxedStrategy<datapath::Datapath> {
    let stats = any::<[u64; 4]>().prop_map(|[hit, missed, lost, flows]| datapath::Stats {
        hit,
        missed,
        lost,
        flows,
    });
    let masks =
        (any::<[u64; 2]>(), number()).prop_map(|([mask_hit, cache_hit], masks)| datapath::MegaflowStats {
            mask_hit,
            masks,
            cache_hit,
        });
    (
        command(),
        number(),
        name(),
        option::of(stats),
        option::of(masks),
        settings(),
    )
        .prop_map(
            |(command, datapath, name, stats, megaflow_stats, settings)| datapath::Datapath {
                command,
                datapath,
                name,
                stats,
                megaflow_stats,
                settings,
            },
        )
        .boxed()
}

fn vport_reply() -> BoxedStrategy<vport::Vport> {
    let stats = any::<[u64; 4]>().prop_map(|[rx_packets, tx_packets, rx_bytes, tx_bytes]| vport::Stats {
        rx_packets,
        tx_packets,
        rx_bytes,
        tx_bytes,
        rx_dropped: 7,
        ..vport::Stats::default()
    });
    let rest = (option::of(stats), option::of(number()), option::of(any::<i32>()));
    (
        command(),
        number(),
        0u32..0xffff,
        kind(),
        name(),
        options(),
        pids(),
        rest,
    )
        .prop_map(
            |(command, datapath, port, kind, name, options, upcall_pids, (stats, ifindex, netns_id))| {
                vport::Vport {
                    command,
                    datapath,
                    port,
                    kind,
                    name,
                    options,
                    upcall_pids,
                    stats,
                    ifindex,
                    netns_id,
                }
            },
        )
        .boxed()
}

fn meter_reply() -> BoxedStrategy<meter::Reply> {
    use meter::{Command, Reply};
    let command = prop_oneof![Just(Command::Set), Just(Command::Delete), Just(Command::Get)];
    let bands = vec(stats(), 0..=meter::MAX_BANDS);
    prop_oneof![
        (number(), number()).prop_map(|(max_meters, max_bands)| Reply::Features {
            max_meters,
            max_bands
        }),
        (
            command,
            number(),
            option::of(stats()),
            option::of(any::<u64>()),
            bands
        )
            .prop_map(|(command, id, stats, used, bands)| Reply::Meter {
                command,
                id,
                stats,
                used,
                bands,
            }),
    ]
    .boxed()
}

pub fn reply() -> BoxedStrategy<Reply<'static>> {
    use ct_limit::Command;
    let description = (
        any::<u16>(),
        name(),
        [number(), number(), number()],
        vec((name(), number()), 0..4),
    )
        .prop_map(
            |(number, name, [version, header_size, max_attribute], groups)| control::Description {
                number,
                name,
                version,
                header_size,
                max_attribute,
                groups,
            },
        );
    let command = prop_oneof![Just(Command::Set), Just(Command::Delete), Just(Command::Get)];
    let limits =
        (command, option::of(limits())).prop_map(|(command, limits)| ct_limit::Reply { command, limits });
    prop_oneof![
        description.prop_map(Reply::Control),
        datapath_reply().prop_map(Reply::Datapath),
        vport_reply().prop_map(Reply::Vport),
        (number(), flow_reply()).prop_map(|(datapath, flow)| Reply::Flow(datapath, flow)),
        (number(), upcall()).prop_map(|(datapath, upcall)| Reply::Upcall(datapath, upcall)),
        (number(), meter_reply()).prop_map(|(datapath, reply)| Reply::Meter(datapath, reply)),
        limits.prop_map(Reply::CtLimit),
    ]
    .boxed()
}
