//! Counters, and contexts of packets.

use flow::{Context, DropCounts, DropReason, PortCounters};

#[test]
fn drops_are_counted_by_reason() {
    let mut counts = DropCounts::default();
    assert_eq!((counts.total(), counts.iter().count()), (0, 0));
    counts.add(DropReason::Metered, 2);
    counts.add(DropReason::PortDown, 5);
    counts.add(DropReason::Metered, 3);
    assert_eq!(counts.get(DropReason::Metered), 5);
    assert_eq!(counts.get(DropReason::Policy), 0);
    assert_eq!(counts.total(), 10);
    let listed = [(DropReason::Metered, 5), (DropReason::PortDown, 5)];
    assert_eq!(counts.iter().collect::<Vec<_>>(), listed);
    assert_eq!(format!("{counts:?}"), r#"{"meter": 5, "port-down": 5}"#);
    let bytes = postcard::to_stdvec(&counts).unwrap();
    assert_eq!(postcard::from_bytes(&bytes), Ok(counts));
    assert_eq!(DropReason::NoAction.to_string(), "no-action");
}

/// Each term of the conservation law, with a weight of its own.
#[test]
fn packets_in_flight_are_those_that_came_and_did_not_go() {
    let mut dropped = DropCounts::default();
    dropped.add(DropReason::Policy, 3000);
    let counters = PortCounters {
        received: 1,
        injected: 20,
        copies: 300,
        delivered: 10,
        dropped,
        upcalls: 200,
        ..PortCounters::default()
    };
    assert_eq!(counters.in_flight(), 321 - 3210);
    assert_eq!(PortCounters::default().in_flight(), 0);
}

#[test]
fn contexts_are_masked_bit_by_bit() {
    let mut context = Context::NONE;
    assert!(context.is_none());
    context.set_ct_nw_proto(0b1100);
    context.set_tun_dst(u128::MAX);
    assert!(!context.is_none());
    let mut mask = Context::NONE;
    mask.set_ct_nw_proto(0b0110);
    mask.set_skb_priority(u32::MAX);
    let masked = context.masked(&mask);
    assert_eq!((masked.ct_nw_proto(), masked.tun_dst()), (0b0100, 0));
    assert_eq!(masked.skb_priority(), 0);
}
