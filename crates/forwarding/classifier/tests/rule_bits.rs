//! What caches compare of the bits that rule lists note.

#![allow(clippy::unwrap_used, reason = "tests")]

use classifier::{Hint, MegaflowTable, MicroflowCache, PortFlows, Rules, Shape, Train, Walker};
use flow::{
    Action, Context, ControllerId, ExactKey, Filter, Filters, Flow, FlowId, FlowKey, FlowMask, ListId,
    PortId, SwitchId,
};
use rule_list::{Addresses, Builder, IpPrefix, Match, Range, Rule, Transport, Verdict};
use std::net::Ipv4Addr;
use std::sync::Arc;

const LIST: ListId = ListId(1);
const SOURCE: u32 = 0x0a00_0001;

/// UDP from that source to that port.
fn key(source: u32, port: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(1);
    key.set_eth_dst(2);
    key.set_eth_type(0x0800);
    key.set_ip_proto(17);
    key.set_ip_src(source.into());
    key.set_tp_src(7);
    key.set_tp_dst(port);
    key
}

/// Allows UDP from a source to any port, or to one.
fn list(source: u32, port: Option<u16>) -> Rule {
    let address = Ipv4Addr::from_bits(source).into();
    let transport = port.map(|port| Transport::Ports {
        source: Range::ALL,
        destination: Range::one(port),
    });
    let matches = Match {
        eth_type: Some(0x0800),
        ip_src: Some(Addresses::Prefix(IpPrefix { address, len: 32 })),
        ip_proto: Some(17),
        transport,
        ..Match::default()
    };
    Rule {
        number: 1,
        priority: 1,
        matches,
        verdict: Verdict::Allow,
        trial: false,
        log: false,
    }
}

/// A switch whose first port sends all to its second one, and what a thread has.
struct Setup {
    table: MegaflowTable,
    flows: PortFlows,
    cache: MicroflowCache,
    walker: Walker,
}

/// How a packet was dealt with.
#[derive(Debug, PartialEq)]
enum Dealt {
    AtOnce(bool),
    Further(bool),
    Walked(bool),
}
use Dealt::{AtOnce, Further, Walked};

impl Setup {
    /// `apart` says that the flow looks at the ports of TCP and UDP.
    fn new(rule: Rule, apart: bool) -> Setup {
        assert_eq!(LIST.controller(), ControllerId(0));
        let rules = Arc::<Rules>::default();
        let mut builder = Builder::new(Verdict::Drop);
        builder.add(rule).unwrap();
        let (list, _) = builder.compile().finish().unwrap();
        rules.put(LIST, list, 0, None).unwrap().finish();
        let mut table = MegaflowTable::with_rules(1000, 10, rules.clone());
        let mut mask = FlowMask::ANY;
        mask.0.set_in_port(u32::MAX);
        mask.0.set_eth_dst(u64::MAX);
        if apart {
            mask.0.set_tp_src(u16::MAX);
            mask.0.set_tp_dst(u16::MAX);
        }
        for port in 0..10 {
            let key = key(SOURCE, port);
            let actions = vec![Action::Output(PortId(2))];
            table
                .insert(Flow::new(FlowId(port.into()), SwitchId(1), key, mask, actions))
                .unwrap();
        }
        Setup {
            flows: table.port(PortId(1)),
            table,
            cache: MicroflowCache::new(4096),
            walker: Walker::default(),
        }
    }

    fn filter(&mut self, port: u32, ingress: bool, egress: bool) {
        let filters = |is_there| {
            let mut filters = [Filter::Absent; 4];
            filters[2] = if is_there {
                Filter::Rules(LIST)
            } else {
                Filter::Absent
            };
            filters
        };
        let filters = Filters {
            ingress: filters(ingress),
            egress: filters(egress),
        };
        self.table.set_filters(PortId(port), filters);
    }

    /// Has a packet dealt with: whether it was delivered.
    fn send(&mut self, key: &FlowKey) -> Dealt {
        let exact = ExactKey::of(key);
        let mask = self.flows.mask_union(&exact);
        let (hash, train) = (self.cache.hash(&exact, mask), Train::default());
        let is_delivered = |shape: &Shape| *shape == Shape::Plain(PortId(2));
        if let Some(decision) = self.cache.hit(hash, &exact, mask, &train) {
            return AtOnce(is_delivered(&decision.shape));
        }
        if let Some(mask) = self.cache.further(hash, &exact, mask, self.flows.is_promoted())
            && let Some((_, decision)) = self.cache.hit_behind(&exact, mask, &train)
        {
            return Further(is_delivered(&decision.shape));
        }
        let reading = self.flows.read();
        let walked = reading.walk(Hint::default(), key, &Context::NONE, &mut self.walker);
        let decision = walked.decision().expect("a composed walk");
        let mask = self.flows.mask_union(&exact);
        self.cache.remember(&exact, mask, decision, 0);
        Walked(is_delivered(&decision.shape))
    }

    /// Whether packets are told apart that differ in this.
    fn tells_apart(&self, change: impl Fn(&mut FlowKey)) -> bool {
        let mut other = key(SOURCE, 1);
        change(&mut other);
        let [one, other] = [key(SOURCE, 1), other].map(|key| ExactKey::of(&key));
        !one.is_equal_in(&other, self.flows.mask_union(&one))
    }
}

#[test]
fn lists_about_sender_and_kind_need_no_further_look() {
    let mut all = Setup::new(list(SOURCE, None), false);
    all.filter(1, true, false);
    all.filter(2, false, true);
    assert_eq!(all.send(&key(SOURCE, 1)), Walked(true));
    assert_eq!(all.send(&key(SOURCE, 1)), AtOnce(true));
    assert_eq!(all.send(&key(SOURCE, 2)), AtOnce(true), "ports are not compared");
    assert_eq!(all.send(&key(SOURCE + 1, 1)), Walked(false));
    assert_eq!(all.send(&key(SOURCE + 1, 1)), AtOnce(false));
    assert_eq!(all.send(&key(SOURCE, 1)), AtOnce(true));
}

#[test]
fn sources_are_compared_as_long_as_the_port_has_ingress_lists() {
    let mut all = Setup::new(list(SOURCE, None), false);
    let source = |key: &mut FlowKey| key.set_ip_src(9);
    let protocol = |key: &mut FlowKey| key.set_ip_proto(6);
    all.filter(2, false, true);
    all.send(&key(SOURCE, 1));
    assert!(
        all.tells_apart(protocol) && !all.tells_apart(source),
        "many send to a list"
    );
    all.filter(1, true, false);
    assert!(!all.tells_apart(source), "it may be about something else");
    all.send(&key(SOURCE, 1));
    assert!(all.tells_apart(source));
    // Whatever flows come and go.
    all.table.flush();
    assert!(all.tells_apart(source));
    all.filter(1, false, false);
    assert!(!all.tells_apart(source) && all.tells_apart(protocol));
    all.filter(2, false, false);
    assert!(!all.tells_apart(protocol));
}

/// The union has all that flows compare then, and no more.
#[test]
fn where_connections_are_told_apart_what_lists_note_is_compared_still() {
    let mut all = Setup::new(list(SOURCE, None), true);
    all.filter(2, false, true);
    assert_eq!(all.send(&key(SOURCE, 1)), Walked(true));
    assert_eq!(all.send(&key(SOURCE + 1, 1)), Walked(false));
    assert_eq!(all.send(&key(SOURCE, 1)), Further(true));
    assert_eq!(all.send(&key(SOURCE + 1, 1)), Further(false));
}

#[test]
fn lists_about_connections_have_them_told_apart_by_a_further_look() {
    let mut all = Setup::new(list(SOURCE, Some(1)), false);
    all.filter(1, true, false);
    assert_eq!(all.send(&key(SOURCE, 1)), Walked(true));
    assert_eq!(all.send(&key(SOURCE, 2)), Walked(false));
    assert_eq!(all.send(&key(SOURCE, 1)), Further(true));
    assert_eq!(all.send(&key(SOURCE, 2)), Further(false));
    assert!(!all.tells_apart(|key| key.set_tp_dst(2)));
}

/// Where most packets would have a further look.
#[test]
fn promoted_bits_of_lists_are_compared_at_the_first_look() {
    let mut all = Setup::new(list(SOURCE, Some(1)), false);
    all.filter(1, true, false);
    let apart = |key: &mut FlowKey| key.set_tp_dst(2);
    let known = |all: &mut Setup| {
        assert_eq!(all.send(&key(SOURCE, 1)), Walked(true));
        assert_eq!(all.send(&key(SOURCE, 2)), Walked(false));
        assert_eq!(all.send(&key(SOURCE, 1)), Further(true));
    };
    known(&mut all);
    all.flows.promote();
    assert_eq!(all.send(&key(SOURCE, 1)), Further(true), "nothing is noted yet");
    assert_eq!(all.send(&key(SOURCE, 3)), Walked(false));
    assert!(all.tells_apart(apart));
    for (port, passes) in [(1, true), (2, false)] {
        assert_eq!(all.send(&key(SOURCE, port)), Walked(passes), "once again");
        assert_eq!(all.send(&key(SOURCE, port)), AtOnce(passes));
    }
    assert!(!all.tells_apart(|key| key.set_tp_src(9)), "no list notes that");
    // Without the list, and with it again.
    all.filter(1, false, false);
    assert!(!all.tells_apart(apart));
    all.filter(1, true, false);
    known(&mut all);
}

/// The list is another port's.
#[test]
fn promoted_bits_go_with_the_last_list_that_packets_come_to() {
    let mut all = Setup::new(list(SOURCE, Some(1)), false);
    let apart = |key: &mut FlowKey| key.set_tp_dst(2);
    all.filter(2, false, true);
    all.filter(3, false, true);
    all.flows.promote();
    all.send(&key(SOURCE, 1));
    assert_eq!(all.send(&key(SOURCE, 1)), AtOnce(true));
    all.filter(2, false, false);
    assert!(all.tells_apart(apart), "packets may come to the other one");
    all.filter(3, false, false);
    assert!(!all.tells_apart(apart));
    all.send(&key(SOURCE, 2));
    assert_eq!(all.send(&key(SOURCE, 1)), AtOnce(true));
    all.filter(2, false, true);
    all.send(&key(SOURCE, 1));
    all.send(&key(SOURCE, 2));
    assert_eq!(all.send(&key(SOURCE, 1)), Further(true), "promoted no longer");
}
