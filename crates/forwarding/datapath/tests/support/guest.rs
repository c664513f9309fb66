//! A guest: a VMM's vhost-user session and a driver with both rings, in memory of its own.
//!
//! The driver here is correct; to break the rules, tests write descriptors and indices themselves through
//! [`Ring`]. Notifications are honoured to the letter in both directions: kicks are sent only when asked for,
//! and a buffer that was used without the call that was asked for is a failure.

use super::TIMEOUT;
use super::control::Controller;
use super::memory::{FILE_OFFSET, GUEST_BASE, Memory, USER_BASE};
use super::ring::Ring;
pub use super::ring::{INDIRECT, NEXT, WRITE};
use super::session::{
    GET_FEATURES, GET_PROTOCOL_FEATURES, PROTOCOL, RegionSpec, SET_FEATURES, SET_OWNER,
    SET_PROTOCOL_FEATURES, SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_KICK,
    SET_VRING_NUM, Said, Session, state, words,
};
use control_protocol::data_plane::PortState;
use rustix::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vnic::features as f;
use wire::VnetHeader;

/// What Linux accepts.
pub const ALL: u64 = f::OFFERED & !f::NET_MAC;
/// No offload, no merging, no event index: the least a driver can do.
pub const LEAST: u64 = f::VERSION_1 | f::VHOST_USER_PROTOCOL;

pub const RECEIVE: u32 = 0;
pub const TRANSMIT: u32 = 1;

/// Room for one packet to send: the largest frame with header, and some.
const PLACE: usize = 80 * 1024;
const PLACES: usize = 32;

/// How a guest is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub features: u64,
    pub receive_size: u16,
    pub transmit_size: u16,
    /// Descriptors of one receive chain.
    pub buffers: Vec<u32>,
    /// Receive chains posted at the start.
    pub posted: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            features: ALL,
            receive_size: 256,
            transmit_size: 256,
            buffers: vec![2048],
            posted: 256,
        }
    }
}

impl Setup {
    pub fn features(features: u64) -> Setup {
        Setup {
            features,
            ..Setup::default()
        }
    }
}

/// How a transmit chain is laid out.
#[derive(Clone, Debug)]
pub enum Layout {
    /// Header and frame in one descriptor.
    One,
    /// The header in its own.
    Apart,
    /// Descriptors of these lengths, the last one having the rest.
    Pieces(Vec<usize>),
    /// Pieces of these lengths, in an indirect table.
    Indirect(Vec<usize>),
}

#[derive(Debug)]
pub struct Guest {
    pub port: u32,
    pub setup: Setup,
    pub session: Session,
    pub memory: Arc<Memory>,
    pub receive: Ring,
    pub transmit: Ring,
    /// Where data may lie.
    pub data: usize,
    receive_data: usize,
    header_len: usize,
    /// Used buffers go back into the ring at once.
    pub repost: bool,
    free: Vec<u16>,
    places: Vec<usize>,
    /// Chains under way: head, descriptors, place.
    sent: Vec<(u16, Vec<u16>, usize)>,
    /// Buffers of a merged frame that have come so far.
    partial: Vec<u8>,
}

impl Guest {
    /// A guest whose driver runs.
    #[track_caller]
    pub fn start(switch: &mut Controller, port: u32, setup: Setup) -> Guest {
        let stream = switch.attach(port);
        let mut guest = Guest::new(port, stream, setup);
        guest.bring_up();
        switch.until_state(port, |state| *state == PortState::Running);
        guest
    }

    #[track_caller]
    pub fn usual(switch: &mut Controller, port: u32) -> Guest {
        Self::start(switch, port, Setup::default())
    }

    /// A guest that has said nothing yet.
    pub fn new(port: u32, stream: UnixStream, setup: Setup) -> Guest {
        let chain: u32 = setup.buffers.iter().sum();
        let receive_room = usize::from(setup.receive_size) * chain as usize;
        let len = (4 * 64 * 1024 + receive_room + (PLACES + 1) * PLACE).next_multiple_of(4096);
        let memory = Arc::new(Memory::new(len));
        let event_idx = setup.features & f::RING_EVENT_IDX != 0;
        let (receive, end) = Ring::new(&memory, 0x1000, setup.receive_size, event_idx);
        let (transmit, end) = Ring::new(&memory, end, setup.transmit_size, event_idx);
        let data = end + receive_room.next_multiple_of(4096);
        let mut guest = Guest {
            port,
            session: Session::new(stream),
            receive,
            transmit,
            data: data + PLACES * PLACE,
            receive_data: end,
            header_len: if setup.features & (f::VERSION_1 | f::NET_MRG_RXBUF) != 0 {
                12
            } else {
                10
            },
            repost: true,
            free: Vec::new(),
            places: Vec::new(),
            sent: Vec::new(),
            partial: Vec::new(),
            setup,
            memory,
        };
        guest.forget();
        guest
    }

    /// The driver starts afresh: nothing is under way.
    pub fn forget(&mut self) {
        self.receive.reset();
        self.transmit.reset();
        self.free = (0..self.transmit.size).rev().collect();
        self.places = (0..PLACES).map(|place| self.data - (place + 1) * PLACE).collect();
        self.sent.clear();
        self.partial.clear();
        self.receive.refuse_calls();
        self.transmit.refuse_calls();
    }

    /// Everything a VMM says until packets flow.
    #[track_caller]
    pub fn bring_up(&mut self) {
        self.negotiate();
        assert_eq!(self.set_memory(), Said::Yes);
        self.post_all();
        self.start_rings();
    }

    /// Connects again, as after a crash of the VMM.
    #[track_caller]
    pub fn reconnect(&mut self, switch: &mut Controller) {
        self.session = Session::new(switch.attach(self.port));
        self.forget();
        self.bring_up();
        switch.until_state(self.port, |state| *state == PortState::Running);
    }

    /// Connects again, as after a death of the data plane, which the driver does not notice. `base` says
    /// where each ring is to go on.
    #[track_caller]
    pub fn go_on(&mut self, switch: &mut Controller, base: impl Fn(&Ring) -> u16) {
        self.session = Session::new(switch.attach(self.port));
        self.negotiate();
        assert_eq!(self.set_memory(), Said::Yes);
        for index in [RECEIVE, TRANSMIT] {
            self.start_ring_at(index, base(self.ring(index)));
        }
        switch.until_state(self.port, |state| *state == PortState::Running);
    }

    #[track_caller]
    pub fn negotiate(&self) {
        assert!(self.session.tell(SET_OWNER, &[], &[]));
        let offered = self.session.get(GET_FEATURES).expect("features");
        assert_eq!(self.setup.features & !offered, 0, "of {offered:#x}");
        let protocol = self.session.get(GET_PROTOCOL_FEATURES).expect("features");
        assert_eq!(protocol & PROTOCOL, PROTOCOL);
        assert!(self.session.tell(SET_PROTOCOL_FEATURES, &words(&[PROTOCOL]), &[]));
        self.session
            .must(SET_FEATURES, &words(&[self.setup.features]), &[]);
    }

    pub fn region(&self) -> RegionSpec {
        RegionSpec(GUEST_BASE, self.memory.len as u64, USER_BASE, FILE_OFFSET)
    }

    pub fn set_memory(&self) -> Said {
        self.session.set_memory(&[self.region()], &[&self.memory.file])
    }

    pub fn ring(&self, index: u32) -> &Ring {
        if index == RECEIVE {
            &self.receive
        } else {
            &self.transmit
        }
    }

    pub fn address_payload(&self, index: u32) -> Vec<u8> {
        let ring = self.ring(index);
        let user = Memory::user;
        let mut payload = state(index, 0);
        payload.extend(words(&[
            user(ring.descriptors),
            user(ring.used),
            user(ring.available),
            0,
        ]));
        payload
    }

    #[track_caller]
    pub fn start_ring(&self, index: u32) {
        self.start_ring_at(index, self.ring(index).seen);
    }

    /// Starts a ring, and asks the device to go on at `base`.
    #[track_caller]
    pub fn start_ring_at(&self, index: u32, base: u16) {
        let (session, ring) = (&self.session, self.ring(index));
        session.must(SET_VRING_NUM, &state(index, ring.size.into()), &[]);
        session.must(SET_VRING_BASE, &state(index, base.into()), &[]);
        session.must(SET_VRING_ADDR, &self.address_payload(index), &[]);
        session.must(SET_VRING_KICK, &words(&[index.into()]), &[ring.kick.as_fd()]);
        session.must(SET_VRING_CALL, &words(&[index.into()]), &[ring.call.as_fd()]);
        if self.setup.features & f::VHOST_USER_PROTOCOL != 0 {
            session.must(SET_VRING_ENABLE, &state(index, 1), &[]);
        }
    }

    #[track_caller]
    pub fn start_rings(&self) {
        self.start_ring(RECEIVE);
        self.start_ring(TRANSMIT);
    }

    /// Stops both rings and starts afresh, as when a driver is unloaded and loaded again.
    #[track_caller]
    pub fn restart(&mut self, switch: &mut Controller) {
        self.session.stop(RECEIVE).expect("a base");
        self.session.stop(TRANSMIT).expect("a base");
        self.forget();
        self.post_all();
        self.start_rings();
        switch.until_state(self.port, |state| *state == PortState::Running);
    }

    // Receiving.

    fn chains(&self) -> usize {
        usize::from(self.setup.receive_size) / self.setup.buffers.len()
    }

    pub fn post_all(&mut self) {
        for chain in 0..self.chains().min(self.setup.posted) {
            self.offer_chain(chain);
        }
        self.receive.publish();
    }

    fn chain_len(&self) -> usize {
        self.setup.buffers.iter().sum::<u32>() as usize
    }

    /// Where the buffers of a receive chain lie, one behind the other.
    pub fn chain_address(&self, chain: usize) -> u64 {
        Memory::guest(self.receive_data + chain * self.chain_len())
    }

    fn offer_chain(&mut self, chain: usize) {
        let count = self.setup.buffers.len();
        let head = (chain * count) as u16;
        let mut at = self.receive_data + chain * self.chain_len();
        for (number, &len) in self.setup.buffers.iter().enumerate() {
            let index = head + number as u16;
            let more = if number + 1 < count { NEXT } else { 0 };
            self.receive
                .descriptor(index, Memory::guest(at), len, WRITE | more, index + 1);
            at += len as usize;
        }
        self.receive.offer(head);
    }

    /// Posts receive chains by number, and kicks if asked to.
    pub fn post(&mut self, chains: std::ops::Range<usize>) {
        chains.for_each(|chain| self.offer_chain(chain));
        self.receive.publish_and_kick();
    }

    fn take_chain(&mut self, head: u16, len: u32) -> Vec<u8> {
        let chain = usize::from(head) / self.setup.buffers.len();
        assert_eq!(usize::from(head) % self.setup.buffers.len(), 0, "not a head");
        assert!(len as usize <= self.chain_len(), "{len} bytes in a chain");
        let bytes = self
            .memory
            .read(self.receive_data + chain * self.chain_len(), len as usize);
        if self.repost {
            self.offer_chain(chain);
            self.receive.publish_and_kick();
        }
        bytes
    }

    /// A packet, if one is there.
    pub fn try_receive(&mut self) -> Option<(VnetHeader, Vec<u8>)> {
        let (head, len) = self.receive.take_used()?;
        let mut bytes = self.take_chain(head, len);
        let mut raw = [0; VnetHeader::LEN];
        raw[..self.header_len].copy_from_slice(&bytes[..self.header_len]);
        let header = VnetHeader::from_bytes(&raw);
        let merged = self.header_len == 12;
        for _ in 1..if merged { header.num_buffers } else { 1 } {
            // All buffers of a packet become visible together.
            let (head, len) = self.receive.take_used().expect("the other buffers of the packet");
            let part = self.take_chain(head, len);
            bytes.extend(part);
        }
        assert!(!merged || header.num_buffers > 0);
        bytes.drain(..self.header_len);
        Some((header, bytes))
    }

    pub fn receive_within(&mut self, timeout: Duration) -> Option<(VnetHeader, Vec<u8>)> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(packet) = self.try_receive() {
                self.receive.refuse_calls();
                return Some(packet);
            }
            let left = end.saturating_duration_since(Instant::now());
            self.receive.wait_for_call(left);
            if left.is_zero() {
                return None;
            }
        }
    }

    /// Waits for a frame, whatever else comes: its header.
    pub fn wait_for(&mut self, frame: &[u8]) -> Option<VnetHeader> {
        let end = Instant::now() + TIMEOUT;
        let received = || self.receive_within(end.saturating_duration_since(Instant::now()));
        let mut all = std::iter::from_fn(received);
        all.find_map(|(header, got)| (got == frame).then_some(header))
    }

    #[track_caller]
    pub fn receive(&mut self) -> (VnetHeader, Vec<u8>) {
        self.receive_within(TIMEOUT).expect("a packet")
    }

    #[track_caller]
    pub fn expect(&mut self, frame: &[u8]) -> VnetHeader {
        let (header, received) = self.receive();
        assert_eq!(received.len(), frame.len(), "length of the frame");
        if let Some(at) = (0..frame.len()).find(|&at| received[at] != frame[at]) {
            panic!(
                "byte {at} of {}: {:02x}, not {:02x}",
                frame.len(),
                received[at],
                frame[at]
            );
        }
        header
    }

    #[track_caller]
    pub fn expect_plain(&mut self, frame: &[u8]) {
        let header = self.expect(frame);
        let header = VnetHeader {
            num_buffers: 0,
            ..header
        };
        assert_eq!(header, VnetHeader::default());
    }

    #[track_caller]
    pub fn expect_nothing(&mut self) {
        assert_eq!(self.receive_within(Duration::from_millis(20)), None);
    }

    // Sending.

    /// Takes back chains the device is done with.
    pub fn reap(&mut self) {
        while let Some((head, _)) = self.transmit.take_used() {
            let position = self.sent.iter().position(|(sent, ..)| *sent == head);
            let (_, descriptors, place) = self.sent.swap_remove(position.expect("a chain that was sent"));
            self.free.extend(descriptors);
            self.places.push(place);
        }
    }

    /// Chains the device has not given back.
    pub fn outstanding(&mut self) -> usize {
        self.reap();
        self.sent.len()
    }

    #[track_caller]
    pub fn all_sent(&mut self) {
        let end = Instant::now() + TIMEOUT;
        while self.outstanding() > 0 {
            assert!(
                Instant::now() < end,
                "{} chains did not come back",
                self.sent.len()
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn pieces(layout: &Layout, header_len: usize, total: usize) -> Vec<usize> {
        let mut pieces = match layout {
            Layout::One => vec![],
            Layout::Apart => vec![header_len],
            Layout::Pieces(pieces) | Layout::Indirect(pieces) => pieces.clone(),
        };
        let sum: usize = pieces.iter().sum();
        assert!(sum < total);
        pieces.push(total - sum);
        pieces
    }

    /// Offers a packet, without showing it to the device.
    #[track_caller]
    pub fn offer_packet(&mut self, header: &VnetHeader, frame: &[u8], layout: &Layout) {
        let mut bytes = header.to_bytes()[..self.header_len].to_vec();
        bytes.extend(frame);
        let pieces = Self::pieces(layout, self.header_len, bytes.len());
        let indirect = matches!(layout, Layout::Indirect(_));
        let needed = if indirect { 1 } else { pieces.len() };
        let end = Instant::now() + TIMEOUT;
        while self.free.len() < needed || self.places.is_empty() {
            self.reap();
            self.transmit.publish_and_kick();
            assert!(Instant::now() < end, "the transmit ring does not move");
            std::thread::yield_now();
        }
        let place = self.places.pop().unwrap();
        let descriptors = self.free.split_off(self.free.len() - needed);
        // Pieces lie apart, so that they cannot be joined.
        let mut at = place + 4096;
        let mut table = Vec::new();
        let mut rest = bytes.as_slice();
        for (number, &len) in pieces.iter().enumerate() {
            let (piece, later) = rest.split_at(len);
            rest = later;
            self.memory.write(at, piece);
            let more = if number + 1 < pieces.len() { NEXT } else { 0 };
            if indirect {
                let next = number as u16 + 1;
                table.extend(Ring::descriptor_bytes(Memory::guest(at), len as u32, more, next));
            } else {
                let next = descriptors.get(number + 1).copied().unwrap_or(0);
                self.transmit
                    .descriptor(descriptors[number], Memory::guest(at), len as u32, more, next);
            }
            at += len + 16;
        }
        assert!(at <= place + PLACE && table.len() <= 4096);
        if indirect {
            self.memory.write(place, &table);
            self.transmit.descriptor(
                descriptors[0],
                Memory::guest(place),
                table.len() as u32,
                INDIRECT,
                0,
            );
        }
        self.transmit.offer(descriptors[0]);
        self.sent.push((descriptors[0], descriptors, place));
    }

    /// Sends one packet.
    #[track_caller]
    pub fn send_as(&mut self, header: &VnetHeader, frame: &[u8], layout: &Layout) {
        self.offer_packet(header, frame, layout);
        self.transmit.publish_and_kick();
    }

    #[track_caller]
    pub fn send(&mut self, frame: &[u8]) {
        self.send_as(&VnetHeader::default(), frame, &Layout::Apart);
    }

    /// Offers a chain of the test's own making with `head`, which the device is expected to give back.
    pub fn send_raw(&mut self, head: u16) {
        self.transmit.offer(head);
        self.transmit.publish_and_kick();
    }

    /// Waits until the device has given `head` back.
    #[track_caller]
    pub fn expect_back(&mut self, head: u16) {
        let end = Instant::now() + TIMEOUT;
        loop {
            match self.transmit.take_used() {
                Some((used, _)) => return assert_eq!(used, head),
                None => assert!(Instant::now() < end, "the chain did not come back"),
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
