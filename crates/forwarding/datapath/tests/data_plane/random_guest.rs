//! Anything in any order, from one guest and its VMM: nothing panics or hangs, two bystanders lose nothing,
//! and all packets are accounted for.

use crate::support::frames::plain;
use crate::support::guest::{ALL, INDIRECT, LEAST, NEXT, RECEIVE, TRANSMIT, WRITE};
use crate::support::memory::{FILE_OFFSET, GUEST_BASE, Memory, USER_BASE, memfd};
use crate::support::session::{
    ADD_MEM_REG, GET_VRING_BASE, REM_MEM_REG, SET_FEATURES, SET_MEM_TABLE, SET_VRING_ADDR, SET_VRING_BASE,
    SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_KICK, SET_VRING_NUM, Session, state, words,
};
use crate::support::{Bystanders, Guest, Setup, Switch};
use control_protocol::data_plane::Request;
use flow::{Action, DropReason, Edit, PortId};
use proptest::prelude::*;
use rustix::fd::AsFd;
use std::fs::File;
use std::os::unix::net::UnixStream;
use wire::VnetHeader;

const SIZE: u16 = 32;

/// An address near something.
#[derive(Clone, Copy, Debug)]
enum Place {
    Data(u32),
    End(i32),
    Ring(u16),
    Anywhere(u64),
}

#[derive(Clone, Debug)]
enum Op {
    /// A proper packet, whatever the ring's state.
    Packet {
        len: u16,
    },
    /// The peer sends to the guest.
    Peer {
        len: u16,
        count: u8,
    },
    Post {
        chains: u8,
    },
    Descriptor {
        ring: u32,
        index: u16,
        place: Place,
        len: u32,
        flags: u16,
        next: u16,
    },
    Offer {
        ring: u32,
        head: u16,
    },
    Publish {
        ring: u32,
    },
    Index {
        ring: u32,
        by: u16,
    },
    Kick {
        ring: u32,
        times: u8,
    },
    Scribble {
        at: u16,
        byte: u8,
        len: u8,
    },
    Message {
        request: u32,
        payload: Vec<u8>,
        files: u8,
    },
    Ring {
        request: u32,
        index: u32,
        number: u32,
    },
    Address {
        index: u32,
        off: i16,
    },
    Bell {
        call: bool,
        index: u64,
        kind: u8,
    },
    Features {
        bits: u64,
    },
    Memory {
        offset: u16,
        size: u32,
    },
    AddRegion {
        number: u8,
    },
    RemoveRegion {
        number: u8,
    },
    Restart,
    Reconnect,
    HangUp,
    Truncate {
        len: u32,
    },
    RemovePort,
    Mtu {
        mtu: u16,
    },
    Pause,
}

/// Shown one a line, so that a report of a failure has room for all.
struct Ops(Vec<Op>);

impl std::fmt::Debug for Ops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|op| write!(f, "\n{op:?}"))
    }
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        6 => (0u32..200_000).prop_map(Place::Data),
        1 => (-3000i32..100).prop_map(Place::End),
        1 => any::<u16>().prop_map(Place::Ring),
        1 => any::<u64>().prop_map(Place::Anywhere),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let ring = || prop_oneof![Just(RECEIVE), Just(TRANSMIT)];
    let flags = prop_oneof![
        8 => prop::sample::select(vec![0, NEXT, WRITE, NEXT | WRITE, INDIRECT]),
        1 => any::<u16>(),
    ];
    let len = prop_oneof![6 => 0u32..3000, 1 => 60_000u32..70_000, 1 => any::<u32>()];
    let request = prop::sample::select(vec![
        SET_VRING_NUM,
        SET_VRING_BASE,
        GET_VRING_BASE,
        SET_VRING_ENABLE,
    ]);
    prop_oneof![
        8 => (14u16..3000).prop_map(|len| Op::Packet { len }),
        4 => (14u16..1500, 1u8..40).prop_map(|(len, count)| Op::Peer { len, count }),
        2 => (0u8..32).prop_map(|chains| Op::Post { chains }),
        12 => (ring(), 0..SIZE, place(), len, flags, 0..SIZE + 2)
            .prop_map(|(ring, index, place, len, flags, next)| Op::Descriptor { ring, index, place, len, flags, next }),
        8 => (ring(), 0..SIZE + 1).prop_map(|(ring, head)| Op::Offer { ring, head }),
        6 => ring().prop_map(|ring| Op::Publish { ring }),
        1 => (ring(), any::<u16>()).prop_map(|(ring, by)| Op::Index { ring, by }),
        4 => (ring(), 1u8..5).prop_map(|(ring, times)| Op::Kick { ring, times }),
        2 => (any::<u16>(), any::<u8>(), any::<u8>()).prop_map(|(at, byte, len)| Op::Scribble { at, byte, len }),
        1 => (0u32..46, prop::collection::vec(any::<u8>(), 0..80), 0u8..4)
            .prop_map(|(request, payload, files)| Op::Message { request, payload, files }),
        4 => (request, 0u32..3, prop_oneof![0u32..3, Just(32), any::<u32>()])
            .prop_map(|(request, index, number)| Op::Ring { request, index, number }),
        2 => (0u32..3, prop_oneof![3 => Just(0i16), 1 => any::<i16>()]).prop_map(|(index, off)| Op::Address { index, off }),
        2 => (any::<bool>(), 0u64..3, 0u8..6).prop_map(|(call, index, kind)| Op::Bell { call, index, kind }),
        1 => prop_oneof![Just(ALL), Just(LEAST), any::<u64>()].prop_map(|bits| Op::Features { bits }),
        1 => (any::<u16>(), prop_oneof![Just(0), any::<u32>()]).prop_map(|(offset, size)| Op::Memory { offset, size }),
        1 => (0u8..4).prop_map(|number| Op::AddRegion { number }),
        1 => (0u8..4).prop_map(|number| Op::RemoveRegion { number }),
        3 => Just(Op::Restart),
        2 => Just(Op::Reconnect),
        1 => Just(Op::HangUp),
        1 => (0u32..200_000).prop_map(|len| Op::Truncate { len }),
        1 => Just(Op::RemovePort),
        1 => (68u16..3000).prop_map(|mtu| Op::Mtu { mtu }),
        2 => Just(Op::Pause),
    ]
}

struct Chaos {
    switch: Switch,
    guest: Guest,
    peer: Guest,
    setup: Setup,
    other: File,
}

impl Chaos {
    fn actions(switch: &mut Switch) {
        let push = Action::Edit(Edit::PushVlan { tpid: 0x8100, tci: 3 });
        switch.flow(1, &[Action::Output(PortId(2)), push, Action::Output(PortId(1))]);
        switch.flow(2, &[Action::Output(PortId(1))]);
    }

    fn fresh(switch: &mut Switch, setup: &Setup) -> Guest {
        Guest::start(switch, 1, setup.clone())
    }

    fn address(&self, place: Place) -> u64 {
        match place {
            Place::Data(at) => Memory::guest(self.guest.data - 200_000 + at as usize),
            Place::End(by) => (GUEST_BASE + self.guest.memory.len as u64).wrapping_add_signed(by.into()),
            Place::Ring(at) => Memory::guest(at.into()),
            Place::Anywhere(at) => at,
        }
    }

    fn region(number: u8) -> [u64; 4] {
        let far = (u64::from(number) + 1) << 36;
        [GUEST_BASE + far, 0x8000, USER_BASE + far, 0]
    }

    fn packet(&mut self, len: u16) {
        let guest = &mut self.guest;
        let at = guest.data - 100_000;
        guest.memory.write(at, &[0; 12]);
        guest.memory.write(at + 12, &plain(1, 2, len.into(), 7));
        guest
            .transmit
            .descriptor(0, Memory::guest(at), 12 + u32::from(len), 0, 0);
        guest.transmit.offer(0);
        guest.transmit.publish();
        guest.transmit.kick();
    }

    fn apply(&mut self, op: Op) {
        let guest = &mut self.guest;
        match op {
            Op::Packet { len } => self.packet(len),
            Op::Peer { len, count } => {
                for number in 0..count {
                    self.peer.send(&plain(2, 1, len.into(), number));
                }
                while self.peer.try_receive().is_some() {}
            }
            Op::Post { chains } => guest.post(0..chains.into()),
            Op::Descriptor {
                ring,
                index,
                place,
                len,
                flags,
                next,
            } => {
                let address = self.address(place);
                self.guest.ring(ring).descriptor(index, address, len, flags, next);
            }
            Op::Offer { ring, head } => self.ring(ring).offer(head),
            Op::Publish { ring } => drop(self.ring(ring).publish()),
            Op::Index { ring, by } => {
                let ring = self.ring(ring);
                ring.next = ring.next.wrapping_add(by);
                ring.publish();
            }
            Op::Kick { ring, times } => (0..times).for_each(|_| self.ring(ring).kick()),
            Op::Scribble { at, byte, len } => guest
                .memory
                .write(0x1000 + usize::from(at) % 4096, &vec![byte; len.into()]),
            Op::Message {
                request,
                payload,
                files,
            } => {
                let fds = vec![self.other.as_fd(); files.into()];
                guest.session.tell(request, &payload, &fds);
            }
            Op::Ring {
                request,
                index,
                number,
            } => drop(guest.session.tell(request, &state(index, number), &[])),
            Op::Address { index, off } => {
                let mut payload = guest.address_payload(index.min(1));
                payload[..4].copy_from_slice(&index.to_le_bytes());
                payload[8] = payload[8].wrapping_add(off as u8);
                payload[17] = payload[17].wrapping_add((off >> 8) as u8);
                guest.session.tell(SET_VRING_ADDR, &payload, &[]);
            }
            Op::Bell { call, index, kind } => self.bell(call, index, kind),
            Op::Features { bits } => drop(guest.session.tell(SET_FEATURES, &words(&[bits]), &[])),
            Op::Memory { offset, size } => {
                let mut region = guest.region();
                region.3 = FILE_OFFSET.wrapping_add(u64::from(offset) & !0xfff);
                region.1 = if size == 0 {
                    region.1 - (region.3 - FILE_OFFSET)
                } else {
                    size.into()
                };
                let table = Session::memory_table(&[region]);
                guest
                    .session
                    .tell(SET_MEM_TABLE, &table, &[guest.memory.file.as_fd()]);
            }
            Op::AddRegion { number } => {
                let payload = [words(&[0]), words(&Self::region(number))].concat();
                guest.session.tell(ADD_MEM_REG, &payload, &[self.other.as_fd()]);
            }
            Op::RemoveRegion { number } => {
                let mut region = Self::region(number);
                if number == 3 {
                    region = [GUEST_BASE, guest.memory.len as u64, USER_BASE, FILE_OFFSET];
                }
                guest
                    .session
                    .tell(REM_MEM_REG, &[words(&[0]), words(&region)].concat(), &[]);
            }
            Op::Restart | Op::Reconnect => self.guest = Self::fresh(&mut self.switch, &self.setup),
            Op::HangUp => drop(guest.session.stream.shutdown(std::net::Shutdown::Both)),
            Op::Truncate { len } => {
                rustix::fs::ftruncate(&guest.memory.file, len.into()).unwrap();
                for ring in [&guest.receive, &guest.transmit] {
                    rustix::io::write(&ring.kick, &1u64.to_ne_bytes()).unwrap();
                }
                self.peer.send(&plain(2, 1, 1000, 0));
                // Its memory must not be touched by us any more.
                self.guest = Self::fresh(&mut self.switch, &self.setup);
            }
            Op::RemovePort => {
                self.switch.done(Request::PortDel { port: PortId(1) });
                self.switch.add(1);
                self.guest = Self::fresh(&mut self.switch, &self.setup);
            }
            Op::Mtu { mtu } => self.switch.done(Request::PortSet {
                port: PortId(1),
                mtu,
                miss_rate: 100_000,
            }),
            Op::Pause => std::thread::sleep(std::time::Duration::from_millis(3)),
        }
    }

    fn ring(&mut self, ring: u32) -> &mut crate::support::ring::Ring {
        if ring == RECEIVE {
            &mut self.guest.receive
        } else {
            &mut self.guest.transmit
        }
    }

    fn bell(&mut self, call: bool, index: u64, kind: u8) {
        let (pipe, _reader) = rustix::pipe::pipe().unwrap();
        let (socket, _peer) = UnixStream::pair().unwrap();
        let ring = self.guest.ring(index as u32 & 1);
        let fd = match kind {
            0 => self.other.as_fd(),
            1 => pipe.as_fd(),
            2 => socket.as_fd(),
            _ if call => ring.call.as_fd(),
            _ => ring.kick.as_fd(),
        };
        let request = if call { SET_VRING_CALL } else { SET_VRING_KICK };
        self.guest.session.tell(request, &words(&[index]), &[fd]);
    }
}

/// Whether a frame arrives as it was sent. What was under way before may still come.
fn arrives(guest: &mut Guest, frame: &[u8]) -> bool {
    let plain = |header| {
        VnetHeader {
            num_buffers: 0,
            ..header
        } == VnetHeader::default()
    };
    guest.wait_for(frame).is_some_and(plain)
}

/// Few by default; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(48)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn harms_nobody_else(
        ops in prop::collection::vec(op(), 1..120).prop_map(Ops),
        features in prop::sample::select(vec![ALL, LEAST]),
        posted in prop::sample::select(vec![0usize, 4, 32]),
    ) {
        let mut switch = Switch::with_ports(2);
        let bystanders = Bystanders::start(&mut switch);
        let peer = Guest::usual(&mut switch, 2);
        let setup = Setup { features, receive_size: SIZE, transmit_size: SIZE, posted, ..Setup::default() };
        let guest = Chaos::fresh(&mut switch, &setup);
        Chaos::actions(&mut switch);
        let mut chaos = Chaos { switch, guest, peer, setup, other: memfd(0x1_0000) };
        for op in ops.0 {
            chaos.apply(op);
        }
        bystanders.alive();
        // A driver that behaves is served as if nothing had been.
        chaos.switch.done(Request::PortSet { port: PortId(1), mtu: 1500, miss_rate: 100_000 });
        chaos.setup.posted = 32;
        chaos.guest = Chaos::fresh(&mut chaos.switch, &chaos.setup);
        let (guest, peer, switch) = (&mut chaos.guest, &mut chaos.peer, &mut chaos.switch);
        switch.join(1, 2);
        peer.all_sent();
        while peer.receive_within(std::time::Duration::from_millis(5)).is_some() {}
        while guest.receive_within(std::time::Duration::from_millis(5)).is_some() {}
        for seed in 0..3 {
            let frame = plain(1, 2, 700, seed);
            guest.send(&frame);
            assert!(arrives(peer, &frame), "frame {seed} there");
            peer.send(&frame);
            assert!(arrives(guest, &frame), "frame {seed} back");
        }
        bystanders.finish(&mut chaos.switch);
        prop_assert_eq!(chaos.switch.counters(2).egress_dropped.get(DropReason::ReceiverBroken), 0);
        chaos.switch.finish();
    }
}
