//! Two guests with a TCP stack each, on two cards with a wire between. Each guest drives a virtual interface
//! of its own, and has a slow path: a forwarder, whose frames come and go by the card's other side.
//!
//! Ways change all the time in both directions. No byte is lost, and no segment arrives before one that was
//! sent earlier: there is never a hole, so nobody waits for a retransmission.

#![allow(clippy::unwrap_used)]

use accelerator::{Accelerator, Arrivals, Filter, FilterId, Match, Queue, State, Way};
use fastrand::Rng;
use guest_memory::Messages;
use parking_lot::Mutex;
use smart_nic::{Control, Device, Driver, Sources, make};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, EthernetFrame, IpAddress, IpCidr, Ipv4Packet, TcpPacket, TcpSeqNumber};
use std::collections::VecDeque;
use std::sync::Arc;

/// Changes of way that each guest has, in each direction.
const CHANGES: u64 = 100;
/// Time of a step in microseconds.
const STEP_US: u64 = 200;
/// Steps after which the stream has to be through.
const MOST_STEPS: u64 = 400_000;
/// Frames of the stack that wait to leave.
const WAITING: usize = 64;
const BUFFER: usize = 32 << 10;

/// What a guest's stack sees: a card that takes both ways.
struct Card {
    device: Arc<Mutex<Device>>,
    control: Control,
    driver: Driver,
    address: [u8; 6],
    filter: Option<FilterId>,
    incoming: Way,
    outgoing: Way,
    /// Of the forwarder: its socket, and frames that it has published.
    socket: VecDeque<Vec<u8>>,
    ring: VecDeque<Vec<u8>>,
    published: u64,
    taken: u64,
    is_asked: bool,
    /// Frames for the forwarder to send.
    out_ring: VecDeque<Vec<u8>>,
    given: u64,
    sent: u64,
    received: VecDeque<Vec<u8>>,
    waiting: VecDeque<Vec<u8>>,
    /// The end of the segments that have arrived.
    end: Option<TcpSeqNumber>,
    holes: u64,
    fast_frames: u64,
    now_us: u64,
}

impl Card {
    fn new(address: [u8; 6]) -> Card {
        let device = Arc::new(Mutex::new(Device::default()));
        let mut control = Control::new(&device);
        let memory = make(132).unwrap();
        let sources = Sources::Only(vec![Match::Mac(address)]);
        let [registers, interrupt] = control.open_for_guest(1, &memory, sources, 0).unwrap();
        Card {
            driver: Driver::new(vec![memory, registers, interrupt], 0).unwrap(),
            device,
            control,
            address,
            filter: None,
            incoming: Way::default(),
            outgoing: Way::default(),
            socket: VecDeque::new(),
            ring: VecDeque::new(),
            published: 0,
            taken: 0,
            is_asked: false,
            out_ring: VecDeque::new(),
            given: 0,
            sent: 0,
            received: VecDeque::new(),
            waiting: VecDeque::new(),
            end: None,
            holes: 0,
            fast_frames: 0,
            now_us: 0,
        }
    }

    fn changes(&self) -> u64 {
        self.incoming.counts().left.min(self.outgoing.counts().left)
    }

    /// The control driver attaches or detaches, now and then.
    fn change(&mut self, random: &mut Rng) {
        if random.u8(..) < 20 && self.incoming.attach() {
            let (what, queue) = (Match::Mac(self.address), 1);
            self.filter = Some(self.control.program(&Filter { what, queue }).unwrap());
        }
        if random.u8(..) < 8 {
            self.incoming.detach();
            self.ask();
        }
        if random.u8(..) < 20 && self.outgoing.attach() && self.outgoing.ask_for_mark(self.now_us) {
            self.outgoing.on_mark(self.given);
        }
        if random.u8(..) < 8 {
            self.outgoing.on_removed(self.now_us);
        }
    }

    fn ask(&mut self) {
        self.is_asked |= self.incoming.ask_for_mark(self.now_us);
    }

    /// Frames come by the wire; what the card has to send leaves by it.
    fn step(&mut self, wire: &mut VecDeque<Vec<u8>>, random: &mut Rng) -> Vec<Vec<u8>> {
        self.now_us += STEP_US;
        {
            let mut device = self.device.lock();
            for frame in wire.drain(..) {
                device.receive(&frame);
            }
            device.start_sends(random.usize(..20));
            // The end of a poll: what passed a filter is in the queue when later frames take the slow path.
            device.finish(usize::MAX);
            self.socket.extend(device.take_slow());
        }
        self.forward(random);
        self.take_arrived(random.usize(..40));
        self.send();
        self.device.lock().take_wire().collect()
    }

    /// The forwarder moves frames, as many as it gets to.
    fn forward(&mut self, random: &mut Rng) {
        let count = if self.is_asked {
            usize::MAX
        } else {
            random.usize(..20)
        };
        let count = count.min(self.socket.len());
        self.ring.extend(self.socket.drain(..count));
        self.published += count as u64;
        if std::mem::take(&mut self.is_asked) {
            self.incoming.on_mark(self.published);
        }
        let count = random.usize(..20).min(self.out_ring.len());
        let mut device = self.device.lock();
        for frame in self.out_ring.drain(..count) {
            device.send_slow(&frame);
            self.sent += 1;
        }
    }

    /// A turn: the ring's length, the queue, and then as much of the ring.
    fn take_arrived(&mut self, most: usize) {
        let known = self.ring.len();
        if self.driver.oldest().is_some() {
            self.ask();
        }
        let is_late = self.incoming.state() == State::Slow;
        if self.incoming.serves_queue(self.taken, self.now_us) || is_late {
            let received = &mut self.received;
            let came = self.driver.take_all(|frame| received.push_back(frame.to_vec()));
            self.fast_frames += came as u64;
        }
        for frame in self.ring.drain(..known.min(most)) {
            self.taken += 1;
            self.received.push_back(frame);
        }
        if most >= known {
            self.incoming.on_drained(self.now_us);
        }
        if let Some(filter) = self.filter.filter(|_| self.incoming.may_remove()) {
            self.control.remove(filter).unwrap();
            self.filter = None;
            self.incoming.on_removed(self.now_us);
        }
    }

    /// The guest's frames take the way whose turn it is; those for groups the slow one.
    fn send(&mut self) {
        if self.outgoing.state() == State::Leaving && self.driver.under_way() == 0 {
            self.outgoing.on_sent();
        }
        if self.outgoing.is_overdue(self.now_us) {
            self.outgoing.give_up();
        }
        while let Some(frame) = self.waiting.front() {
            let is_group = frame[0] & 1 != 0;
            let is_fast = self.outgoing.state() == State::Fast
                || self.outgoing.state() == State::Arming
                    && self.outgoing.serves_queue(self.sent, self.now_us);
            if is_fast && !is_group {
                let header = [0; 12];
                let mut messages = Messages::with_capacity(1);
                messages.push_bytes(&header);
                messages.push_bytes(frame);
                messages.end();
                if self.driver.send(&mut messages).taken == 0 {
                    self.outgoing.on_removed(self.now_us);
                    return;
                }
                self.waiting.pop_front();
            } else if self.outgoing.state() == State::Slow || is_group {
                self.given += 1;
                self.out_ring.extend(self.waiting.pop_front());
            } else {
                return;
            }
        }
    }

    /// Notes a segment that arrives behind a hole.
    fn look_at(&mut self, frame: &[u8]) {
        let ethernet = EthernetFrame::new_checked(frame).unwrap();
        let Ok(ip) = Ipv4Packet::new_checked(ethernet.payload()) else {
            return;
        };
        let Ok(segment) = TcpPacket::new_checked(ip.payload()) else {
            return;
        };
        let begin = segment.seq_number();
        let end = begin + segment.segment_len();
        let before = *self.end.get_or_insert(begin);
        self.holes += u64::from(begin > before);
        if end > before {
            self.end = Some(end);
        }
    }
}

struct Received(Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

struct Room<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut frame = vec![0; len];
        let result = fill(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl phy::Device for Card {
    type RxToken<'a> = Received;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Room<'_>)> {
        let frame = self.received.pop_front()?;
        self.look_at(&frame);
        Some((Received(frame), Room(&mut self.waiting)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        (self.waiting.len() < WAITING).then_some(Room(&mut self.waiting))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// A guest with one connection, by which bytes go in both directions.
struct Guest {
    card: Card,
    stack: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    written: u64,
    read: u64,
}

/// The byte of a stream at a place, which shows if bytes are missing.
fn byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

impl Guest {
    fn new(number: u8) -> Guest {
        let address = [2, 0, 0, 0, 0, number];
        let mut card = Card::new(address);
        let config = Config::new(EthernetAddress(address).into());
        let mut stack = Interface::new(config, &mut card, Instant::ZERO);
        let own = IpCidr::new(IpAddress::v4(10, 0, 0, number), 24);
        stack.update_ip_addrs(|all| all.push(own).unwrap());
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(tcp::Socket::new(buffer(), buffer()));
        let (written, read) = (0, 0);
        Guest {
            card,
            stack,
            sockets,
            handle,
            written,
            read,
        }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// The application writes and reads what there is.
    fn work(&mut self, is_over: bool) {
        let now = Instant::from_micros(i64::try_from(self.card.now_us).unwrap());
        self.stack.poll(now, &mut self.card, &mut self.sockets);
        let (mut written, mut read) = (self.written, self.read);
        let socket = self.socket();
        while socket.can_send() && !is_over {
            let fill = |room: &mut [u8]| {
                room.iter_mut().zip(written..).for_each(|(to, at)| *to = byte(at));
                (room.len(), room.len() as u64)
            };
            written += socket.send(fill).unwrap();
        }
        while socket.can_recv() {
            let check = |came: &mut [u8]| {
                let is_right = came.iter().zip(read..).all(|(found, at)| *found == byte(at));
                assert!(is_right, "bytes behind {read}");
                (came.len(), came.len() as u64)
            };
            read += socket.recv(check).unwrap();
        }
        (self.written, self.read) = (written, read);
    }
}

#[test]
fn tcp_is_whole_and_in_order_while_ways_change() {
    let mut random = Rng::with_seed(4);
    let mut guests = [Guest::new(1), Guest::new(2)];
    guests[1].socket().listen(7).unwrap();
    {
        let Guest {
            stack,
            sockets,
            handle,
            ..
        } = &mut guests[0];
        let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
        let server = (IpAddress::v4(10, 0, 0, 2), 7);
        socket.connect(stack.context(), server, 49_152).unwrap();
    }
    let mut wires: [VecDeque<Vec<u8>>; 2] = Default::default();
    for _ in 0..MOST_STEPS {
        let is_over = guests.iter().all(|guest| guest.card.changes() >= CHANGES);
        for at in 0..2 {
            let guest = &mut guests[at];
            guest.card.change(&mut random);
            let left = guest.card.step(&mut wires[at], &mut random);
            wires[1 - at].extend(left);
            guest.work(is_over);
        }
        let is_through = guests[0].read == guests[1].written && guests[1].read == guests[0].written;
        if is_over && is_through {
            break;
        }
    }
    let [one, other] = &guests;
    assert_eq!((one.read, other.read), (other.written, one.written));
    for guest in &guests {
        let card = &guest.card;
        assert!(
            card.changes() >= CHANGES && card.fast_frames > 1000,
            "{} changes",
            card.changes()
        );
        let overdue = card.incoming.counts().overdue;
        assert!(
            card.holes <= overdue,
            "{} holes, {overdue} times overdue",
            card.holes
        );
        let counts = card.device.lock().counts();
        assert_eq!((counts.no_room, counts.lost, counts.refused), (0, 0, 0));
    }
}
