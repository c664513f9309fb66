//! Headers that lie behind the first 128 bytes: decided about by what they are, and delivered as they were
//! then.
//!
//! The control process of these tests does as ovs-vswitchd: it parses the whole frame that comes with a miss,
//! decides by one field, and installs the decision under the key that came with the miss.

use crate::support::control::SWITCH;
use crate::support::memory::Memory;
use crate::support::{Guest, Layout, Setup, Switch, TIMEOUT};
use control_protocol::data_plane::{Request, Upcall};
use flow::{Action, DropReason, Edit, FieldId, Flow, FlowId, FlowMask, PortId};
use std::time::Instant;
use wire::{GSO_TCPV6, NEEDS_CSUM, VnetHeader, parse};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const ICMPV6: u8 = 58;
const IPV6: u16 = 0x86dd;
const MPLS: u16 = 0x8847;

/// A packet behind extension headers.
#[derive(Clone, Debug)]
struct Packet {
    traffic_class: u8,
    label: u8,
    ttl: u8,
    hosts: [u8; 2],
    /// Offset and flags of a fragment header, if there is one.
    fragment: Option<u16>,
    protocol: u8,
    payload: Vec<u8>,
}

/// What lies before it.
#[derive(Clone, Copy, Debug)]
enum Front {
    /// Destination options of that many bytes more than 8.
    Options(usize),
    /// Destination options of 8 bytes in this number, hop-by-hop options, a routing header and an
    /// authentication header.
    Chain(usize),
    /// An MPLS label that is removed on the way, two tags, and options.
    Label(usize),
}

impl Packet {
    fn new(protocol: u8, payload: &[u8]) -> Packet {
        Packet {
            traffic_class: 0,
            label: 0,
            ttl: 64,
            hosts: [1, 2],
            fragment: None,
            protocol,
            payload: payload.to_vec(),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Packet)) -> Packet {
        change(&mut self);
        self
    }

    fn frame(&self, front: Front) -> Vec<u8> {
        let mut headers: Vec<(u8, Vec<u8>)> = match front {
            Front::Options(len) | Front::Label(len) => vec![(60, vec![0; 8 + len])],
            Front::Chain(count) => [(0, 8), (43, 24), (51, 12)]
                .into_iter()
                .chain(std::iter::repeat_n((60, 8), count))
                .map(|(kind, len)| (kind, vec![0; len]))
                .collect(),
        };
        for (kind, header) in &mut headers {
            header[1] = (if *kind == 51 {
                header.len() / 4 - 2
            } else {
                header.len() / 8 - 1
            }) as u8;
        }
        if let Some(fragment) = self.fragment {
            let [high, low] = fragment.to_be_bytes();
            headers.push((44, vec![0, 0, high, low, 0, 0, 0, 9]));
        }
        let kinds: Vec<u8> = headers
            .iter()
            .map(|(kind, _)| *kind)
            .chain([self.protocol])
            .collect();
        for ((_, header), next) in headers.iter_mut().zip(&kinds[1..]) {
            header[0] = *next;
        }
        let mut packet = vec![
            0x60 | self.traffic_class >> 4,
            self.traffic_class << 4,
            0,
            self.label,
        ];
        let headers: Vec<u8> = headers.into_iter().flat_map(|(_, header)| header).collect();
        packet.extend((headers.len() as u16 + self.payload.len() as u16).to_be_bytes());
        packet.extend([kinds[0], self.ttl]);
        for host in self.hosts {
            packet.extend([[0xfd; 15].as_slice(), &[host]].concat());
        }
        packet.extend(headers);
        packet.extend(&self.payload);
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        match front {
            Front::Label(_) => {
                frame.extend([0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]);
                frame.extend(MPLS.to_be_bytes());
                frame.extend([0, 1, 1, 64]);
            }
            Front::Options(_) | Front::Chain(_) => frame.extend(IPV6.to_be_bytes()),
        }
        frame.extend(packet);
        frame
    }
}

impl Front {
    /// What the receiver gets.
    fn received(self, mut frame: Vec<u8>) -> Vec<u8> {
        if let Front::Label(_) = self {
            frame.splice(20..26, IPV6.to_be_bytes());
        }
        frame
    }
}

fn tcp(to: u8, flags: u8) -> Vec<u8> {
    let mut segment = vec![
        3, 0xe8, 0, to, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0,
    ];
    segment.extend(vec![0x5a; 60]);
    segment
}

fn ports(from: u8, to: u8) -> Vec<u8> {
    [&[0, from, 0, to, 0, 16, 0, 0][..], &[0; 8]].concat()
}

/// A neighbour solicitation with both addresses, behind another option.
fn solicitation(target: u8, source_link: u8, target_link: u8) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend([[0xfd; 15].as_slice(), &[target]].concat());
    message.extend([14, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    message.extend([1, 1, 2, 0, 0, 0, 0, source_link, 2, 1, 2, 0, 0, 0, 0, target_link]);
    message
}

/// Packets of which the field has another value in the second; none if no packet has the field behind
/// extension headers.
fn pairs(field: FieldId) -> Vec<[Packet; 2]> {
    let of = |protocol, payloads: [Vec<u8>; 2]| payloads.map(|payload| Packet::new(protocol, &payload));
    let changed = |change: fn(&mut Packet)| {
        let packet = Packet::new(TCP, &tcp(80, 0x10));
        vec![[packet.clone(), packet.with(change)]]
    };
    match field {
        FieldId::IpProto => vec![[Packet::new(TCP, &tcp(80, 0x10)), Packet::new(UDP, &ports(1, 80))]],
        FieldId::IpTos => changed(|packet| packet.traffic_class = 0xb8),
        FieldId::IpTtl => changed(|packet| packet.ttl = 1),
        FieldId::Ipv6Label => changed(|packet| packet.label = 9),
        FieldId::IpSrc => changed(|packet| packet.hosts[0] = 9),
        FieldId::IpDst => changed(|packet| packet.hosts[1] = 9),
        FieldId::IpFrag => [Some(1), Some(0x100)]
            .into_iter()
            .flat_map(|fragment| {
                let packet = Packet::new(UDP, &ports(1, 2));
                vec![[packet.clone(), packet.with(|packet| packet.fragment = fragment)]]
            })
            .collect(),
        FieldId::TcpFlags => vec![of(TCP, [tcp(80, 0x10), tcp(80, 0x02)])],
        FieldId::TpDst => vec![
            of(TCP, [tcp(80, 0x10), tcp(22, 0x10)]),
            of(UDP, [ports(1, 80), ports(1, 22)]),
            of(SCTP, [ports(1, 80), ports(1, 22)]),
            of(
                ICMPV6,
                [vec![128, 0, 0, 0, 0, 1, 0, 1], vec![128, 7, 0, 0, 0, 1, 0, 1]],
            ),
        ],
        FieldId::TpSrc => vec![
            of(UDP, [ports(1, 80), ports(2, 80)]),
            of(
                ICMPV6,
                [vec![128, 0, 0, 0, 0, 1, 0, 1], vec![135, 0, 0, 0, 0, 1, 0, 1]],
            ),
        ],
        FieldId::NdTarget => vec![of(ICMPV6, [solicitation(1, 1, 1), solicitation(9, 1, 1)])],
        FieldId::NdSll => vec![of(ICMPV6, [solicitation(1, 1, 1), solicitation(1, 9, 1)])],
        FieldId::NdTll => vec![of(ICMPV6, [solicitation(1, 1, 1), solicitation(1, 1, 9)])],
        // Before extension headers, or instead of IPv6, or not in the packet.
        _ if field.field().is_metadata() || field.field().is_in_context() => Vec::new(),
        FieldId::EthDst
        | FieldId::EthSrc
        | FieldId::EthType
        | FieldId::VlanTci
        | FieldId::VlanTpid
        | FieldId::InnerTci
        | FieldId::InnerTpid
        | FieldId::MplsLse
        | FieldId::MplsLse1
        | FieldId::MplsLse2
        | FieldId::NshFlags
        | FieldId::NshTtl
        | FieldId::NshMdtype
        | FieldId::NshNp
        | FieldId::NshPathHdr
        | FieldId::NshC1
        | FieldId::NshC2
        | FieldId::NshC3
        | FieldId::NshC4 => Vec::new(),
        other => panic!("no packets for {other:?}"),
    }
}

fn value(field: FieldId, frame: &[u8]) -> u128 {
    field.field().get(&parse(frame, frame.len(), PortId(1)).key.words)
}

/// A control process that forbids a value of a field.
struct Controller {
    switch: Switch,
    guest: Guest,
    sent: u64,
    handled: u64,
    flows: u128,
}

impl Controller {
    fn decide(&mut self, upcall: Upcall, field: FieldId, forbidden: u128) {
        self.handled += 1;
        let decision = if value(field, &upcall.packet.frame) == forbidden {
            Action::Drop(DropReason::Policy)
        } else {
            Action::Output(PortId(2))
        };
        let mut mask = FlowMask::ANY;
        mask.0.set_in_port(u32::MAX);
        mask.0.set_recirc_id(u32::MAX);
        mask.0.set_eth_type(u16::MAX);
        let layer = field.field().layer;
        // What the field needs to be there.
        if matches!(layer, flow::Layer::Transport | flow::Layer::NeighbourDiscovery) {
            mask.0.set_ip_proto(u8::MAX);
        }
        if layer == flow::Layer::NeighbourDiscovery {
            mask.0.set_tp_src(u16::MAX);
        }
        field.field().set(&mut mask.0.words, u128::MAX, u128::MAX);
        self.put(upcall.key, mask, vec![decision.clone()]);
        self.switch.execute(upcall, &[decision]);
    }

    fn put(&mut self, key: flow::FlowKey, mask: FlowMask, actions: Vec<Action>) {
        self.flows += 1;
        let id = FlowId(self.flows);
        self.switch.put(Flow::new(id, SWITCH, key, mask, actions));
    }

    /// Sends a frame, and decides about it if it has no flow.
    fn send(&mut self, frame: &[u8], field: FieldId, forbidden: u128) {
        self.guest.send(frame);
        self.sent += 1;
        let end = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < end, "a packet is lost");
            let counters = self.switch.counters(1);
            let accounted = counters.delivered + counters.dropped.total() + counters.upcalls;
            if counters.upcalls > self.handled {
                let upcall = self.switch.upcall();
                self.decide(upcall, field, forbidden);
            } else if counters.received == self.sent
                && accounted == counters.received + counters.injected + counters.copies
            {
                return;
            }
        }
    }

    /// Removes all flows but the one that removes labels.
    fn begin(&mut self) {
        self.switch.done(Request::FlowFlush { switch: SWITCH });
        let (mut key, mut mask) = (flow::FlowKey::default(), FlowMask::ANY);
        key.set_in_port(1);
        key.set_eth_type(MPLS);
        mask.0.set_in_port(u32::MAX);
        mask.0.set_eth_type(u16::MAX);
        self.put(
            key,
            mask,
            vec![Action::Edit(Edit::PopMpls(IPV6)), Action::Recirc(1)],
        );
    }
}

#[test]
fn no_field_is_hidden_by_headers_before_it() {
    let mut switch = Switch::with_ports(2);
    let guest = Guest::usual(&mut switch, 1);
    let mut receiver = Guest::usual(&mut switch, 2);
    let mut controller = Controller {
        switch,
        guest,
        sent: 0,
        handled: 0,
        flows: 0,
    };
    // From wholly inside the head to wholly behind it, by 8 bytes and by 4.
    let fronts = (0..=12).flat_map(|step| {
        [
            Front::Options(8 * step),
            Front::Chain(step),
            Front::Label(8 * step),
        ]
    });
    let fronts: Vec<_> = fronts.chain([Front::Options(600), Front::Chain(60)]).collect();
    for &field in FieldId::ALL {
        for pair in pairs(field) {
            for &front in &fronts {
                let [good, bad] = pair.each_ref().map(|packet| packet.frame(front));
                let received = front.received(good.clone());
                let forbidden = value(field, &front.received(bad.clone()));
                assert_ne!(value(field, &received), forbidden, "{field:?} {front:?}");
                for order in [[true, false, false, true], [false, true, true, false]] {
                    controller.begin();
                    for is_good in order {
                        controller.send(if is_good { &good } else { &bad }, field, forbidden);
                        if is_good {
                            let got = receiver.receive().1;
                            assert_eq!(got, received, "{field:?} {front:?} {order:?}");
                        }
                    }
                }
            }
        }
    }
    let counters = controller.switch.counters(2);
    assert_eq!(
        counters.transmitted,
        controller.sent / 2,
        "the forbidden half stayed away"
    );
    controller.switch.finish();
}

/// A flow for all TCP to port 80 from the first guest, and none for the rest.
fn allow_80(switch: &mut Switch, actions: &[Action]) {
    let (mut key, mut mask) = (flow::FlowKey::default(), FlowMask::ANY);
    key.set_in_port(1);
    key.set_eth_type(IPV6);
    key.set_ip_proto(TCP);
    key.set_tp_dst(80);
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_type(u16::MAX);
    mask.0.set_ip_proto(u8::MAX);
    mask.0.set_tp_dst(u16::MAX);
    switch.put(Flow::new(FlowId(80), SWITCH, key, mask, actions.to_vec()));
}

fn deep(to: u8) -> Vec<u8> {
    Packet::new(TCP, &tcp(to, 0x10)).frame(Front::Options(120))
}

#[test]
fn what_was_decided_about_is_what_arrives() {
    for actions in [
        vec![Action::Output(PortId(2))],
        vec![
            Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 7 }),
            Action::Output(PortId(2)),
        ],
        vec![
            Action::Output(PortId(2)),
            Action::Edit(Edit::PopVlan),
            Action::Output(PortId(2)),
        ],
    ] {
        let mut switch = Switch::with_ports(2);
        let mut a = Guest::usual(&mut switch, 1);
        let setup = Setup {
            posted: 0,
            ..Setup::default()
        };
        let mut b = Guest::start(&mut switch, 2, setup);
        allow_80(&mut switch, &actions);
        let outputs = actions
            .iter()
            .filter(|action| matches!(action, Action::Output(_)))
            .count();
        let (allowed, forbidden) = (deep(80), deep(22));
        let at = a.data;
        a.memory.write(at, &[&[0; 12], &allowed[..]].concat());
        a.transmit
            .descriptor(0, Memory::guest(at), 12 + allowed.len() as u32, 0, 0);
        a.send_raw(0);
        switch.until(1, "the packet was decided about", |counters| {
            counters.received == 1 && counters.copied_bytes > 128
        });
        // The receiver has no buffer yet; the sender changes its mind.
        a.memory.write(at, &[&[0; 12], &forbidden[..]].concat());
        b.post(0..2);
        for _ in 0..outputs {
            let (_, mut frame) = b.receive();
            if frame.len() > allowed.len() {
                frame.drain(12..16);
            }
            assert_eq!(frame, allowed);
        }
        a.expect_back(0);
        switch.finish();
    }
}

#[test]
fn headers_without_end_are_dropped_where_they_matter() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    let endless = Packet::new(TCP, &tcp(80, 0x10)).frame(Front::Chain(520));
    // Not known, and no flow: the control process could not tell either.
    a.send(&endless);
    switch.until_dropped(1, DropReason::DeepHeaders, 1);
    allow_80(&mut switch, &[Action::Output(PortId(2))]);
    a.send(&endless);
    switch.until_dropped(1, DropReason::DeepHeaders, 2);
    a.send(&deep(80));
    b.expect_plain(&deep(80));
    // Nobody looks at them.
    switch.done(Request::PortSet {
        port: PortId(2),
        mtu: 9000,
        miss_rate: 1000,
    });
    switch.done(Request::FlowFlush { switch: SWITCH });
    switch.flow(1, &[Action::Output(PortId(2))]);
    a.send(&endless);
    b.expect_plain(&endless);
    assert_eq!(switch.upcall_within(std::time::Duration::from_millis(10)), None);
    switch.finish();
}

#[test]
fn frames_to_be_segmented_go_on_with_deep_headers() {
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let setup = Setup {
        buffers: vec![16 * 1024],
        ..Setup::default()
    };
    let mut b = Guest::start(&mut switch, 2, setup);
    allow_80(&mut switch, &[Action::Output(PortId(2))]);
    let mut segment = tcp(80, 0x10);
    segment.resize(5000, 0x77);
    let frame = Packet::new(TCP, &segment).frame(Front::Options(120));
    let l4 = 14 + 40 + 128;
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV6,
        hdr_len: l4 + 20,
        gso_size: 1000,
        csum_start: l4,
        csum_offset: 16,
        num_buffers: 0,
    };
    a.send_as(&header, &frame, &Layout::Apart);
    let got = b.expect(&frame);
    assert_eq!((got.gso_size, got.csum_start, got.hdr_len), (1000, l4, l4 + 20));
    switch.finish();
}

#[test]
fn copies_of_deep_headers_have_a_rate() {
    const SENT: u64 = 60_000;
    let mut switch = Switch::with_ports(2);
    let mut a = Guest::usual(&mut switch, 1);
    let mut b = Guest::usual(&mut switch, 2);
    allow_80(&mut switch, &[Action::Output(PortId(2))]);
    let (start, frame) = (Instant::now(), deep(80));
    for _ in 0..SENT {
        a.offer_packet(&VnetHeader::default(), &frame, &Layout::Apart);
        while b.try_receive().is_some() {}
    }
    a.transmit.publish_and_kick();
    a.all_sent();
    let seconds = start.elapsed().as_secs_f64();
    while b.receive_within(std::time::Duration::from_millis(50)).is_some() {}
    let counters = switch.counters(1);
    let refused = counters.dropped.get(DropReason::DeepHeaders);
    let passed = SENT - refused;
    assert!(passed >= 20_000, "{passed} of {SENT}");
    assert!(
        passed as f64 <= 20_000.0 * (1.1 + seconds),
        "{passed} in {seconds} s"
    );
    switch.finish();
}
