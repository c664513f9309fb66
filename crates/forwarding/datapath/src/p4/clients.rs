//! Clients of a P4 switch: packets to them and from them, by a socket of the process that serves them.
//!
//! The program has a port for them. What it sends there is written to the socket by the thread that forwards,
//! which waits neither for the socket nor for another thread; what clients send is run by the channel thread,
//! as if it had come by that port.
//!
//! | behaviour | bound |
//! |---|---|
//! | the program sends everything to its clients | [`PACKETS_IN`] a second leave; further ones are dropped, and counted |
//! | the program sends digests without end | [`DIGESTS`] a second leave; further ones are lost, and counted |
//! | the process does not read | what its socket holds; further ones are dropped, and counted |
//! | clients flood | [`PACKETS_OUT`] a turn of the channel thread, within the P4 switch's share of time |
//! | receivers of clients' packets are slow | a share of the slots for packets that do not come from rings |
//! | a message is malformed, or no frame | it is counted as lost |
//! | the socket is closed | the P4 switch goes on without clients; packets for them are dropped |

use super::exit::MIN_FRAME;
use super::{Bound, P4Key, P4Refused, P4Switch, P4Table};
use crate::injection::Injection;
use crate::port::Port;
use crate::state::Ports;
use control_protocol::p4::{FromP4, P4_PORTS, ToP4};
use control_protocol::{Channel, ChannelError};
use flow::DropReason;
use lock_free::{SharedBucket, Unique};
use p4_ir::DigestId;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vnic::{MAX_FRAME, Packet};
use wire::VnetHeader;

/// Packets that a P4 switch sends to its clients per second, and at once.
const PACKETS_IN: u32 = 10_000;
const PACKETS_IN_AT_ONCE: u32 = 1_000;

/// Digests that a P4 switch sends to its clients per second, and at once.
const DIGESTS: u32 = 10_000;
const DIGESTS_AT_ONCE: u32 = 1_000;

/// Packets of clients in one turn of the channel thread.
const PACKETS_OUT: usize = 16;

const NS_PER_MS: u64 = 1_000_000;

/// Time after which packets are looked at again that could not run.
const PAUSE: Duration = Duration::from_millis(1);

/// See the module's description.
pub(crate) struct Clients {
    /// Number of their port.
    pub cpu_port: Option<u16>,
    channel: Channel,
    rate: SharedBucket,
    digest_rate: SharedBucket,
    /// Packets of clients could not run yet: the socket is looked at again without being polled.
    waits: AtomicBool,
    /// The socket has been closed.
    is_closed: AtomicBool,
}

impl Clients {
    pub fn new(cpu_port: Option<u16>, channel: Channel) -> Clients {
        Clients {
            cpu_port,
            channel,
            rate: SharedBucket::new(PACKETS_IN_AT_ONCE, PACKETS_IN),
            digest_rate: SharedBucket::new(DIGESTS_AT_ONCE, DIGESTS),
            waits: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether packets have come that could not run.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    pub fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Whether a message can be received that `poll` does not see.
    pub fn has_received(&self) -> bool {
        self.channel.has_received()
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Sends a packet of the program. `header` says which checksum is still open.
    pub fn send_in(&self, mut frame: Vec<u8>, header: &VnetHeader, now_ms: u64) -> Result<(), DropReason> {
        if self.is_closed() {
            return Err(DropReason::NoSuchPort);
        }
        if !self.rate.take(now_ms * NS_PER_MS) {
            return Err(DropReason::QueueFull);
        }
        if header.flags & wire::NEEDS_CSUM != 0 {
            let (start, offset) = (header.csum_start.into(), header.csum_offset.into());
            if start > frame.len() || !wire::finish_checksum(&mut frame, start, offset, &wire::Sum::new()) {
                return Err(DropReason::BadOffload);
            }
        }
        match self.channel.try_send(&FromP4::PacketIn(frame), &[]) {
            Ok(()) => Ok(()),
            Err(ChannelError::WouldBlock) => Err(DropReason::QueueFull),
            Err(_) => Err(DropReason::NoSuchPort),
        }
    }

    /// Sends a digest of a lineage; whether it has left.
    pub fn send_digest(&self, (lineage, digest): (u64, DigestId), values: &[u8], now_ms: u64) -> bool {
        if self.is_closed() || !self.digest_rate.take(now_ms * NS_PER_MS) {
            return false;
        }
        let message = FromP4::Digest {
            lineage,
            digest: digest.0,
            values: values.to_vec(),
        };
        self.channel.try_send(&message, &[]).is_ok()
    }

    /// The next message of clients.
    fn receive(&self) -> Option<Received> {
        match self.channel.try_recv() {
            Ok((ToP4::PacketOut(frame), _)) => {
                let fits = (MIN_FRAME..=MAX_FRAME as usize).contains(&frame.len());
                Some(Received::Packet(Some(frame).filter(|_| fits)))
            }
            Ok((ToP4::Lost { packets, digests }, _)) => Some(Received::Lost { packets, digests }),
            Err(ChannelError::Malformed(_)) => Some(Received::Packet(None)),
            Err(ChannelError::WouldBlock) => None,
            Err(_) => {
                self.is_closed.store(true, Ordering::Relaxed);
                None
            }
        }
    }
}

/// A message of clients.
enum Received {
    /// A packet; `None` if it is no frame.
    Packet(Option<Vec<u8>>),
    /// What was lost on the way to them.
    Lost { packets: u64, digests: u64 },
}

/// A P4 switch whose clients may have sent packets.
pub(super) struct FromClients<'a> {
    /// The clients' port, as the one by which packets come.
    pub bound: Bound<'a>,
    pub switch: &'a P4Switch,
    pub clients: &'a Clients,
    /// A port that is bound, whose switch has the receivers.
    pub port: &'a Port,
}

impl FromClients<'_> {
    /// Receives packets, as many as may run in a turn and at most `most`.
    pub fn receive(&self, most: usize, slots: &mut Injection, packets: &mut Vec<Unique<Packet>>) {
        let (counts, id) = (&self.switch.counts, self.port.id());
        for _ in 0..most.min(PACKETS_OUT) {
            let Some(received) = self.clients.receive() else {
                return;
            };
            let frame = match received {
                Received::Packet(frame) => frame,
                Received::Lost { packets, digests } => {
                    counts.add_lost(packets, digests);
                    continue;
                }
            };
            let made = frame.and_then(|frame| {
                let mut packet = slots.take(id)?;
                packet.fill(id, counts.of_clients.clone(), frame);
                packet.header = VnetHeader::default().to_bytes();
                packet.parse_flow_key().ok().map(|_| packet)
            });
            counts.add_packet_out(made.is_some());
            packets.extend(made);
        }
    }
}

impl P4Table {
    /// Joins a P4 switch with its clients.
    ///
    /// # Errors
    ///
    /// There is no such P4 switch, or no port of it can have that number.
    pub fn connect(&mut self, key: P4Key, clients: Arc<Clients>) -> Result<(), P4Refused> {
        if let Some(port) = clients.cpu_port.filter(|port| *port >= P4_PORTS) {
            return Err(P4Refused::NoPlace(port));
        }
        if !self.switches.contains_key(&key) {
            return Err(P4Refused::NoSwitch(key.1));
        }
        self.clients.insert(key, clients);
        Ok(())
    }

    /// Parts a P4 switch from its clients.
    pub fn part(&mut self, key: P4Key) {
        self.clients.remove(&key);
    }

    /// Whether the clients of a P4 switch have gone.
    pub fn has_closed_clients(&self, key: P4Key) -> bool {
        self.clients.get(&key).is_some_and(|clients| clients.is_closed())
    }

    /// Clients of all P4 switches.
    pub fn clients(&self) -> impl Iterator<Item = (P4Key, &Arc<Clients>)> {
        self.clients.iter().map(|(key, clients)| (*key, clients))
    }

    /// Time until packets of clients are looked at that `poll` does not see.
    pub fn next_turn_of_clients(&self) -> Option<Duration> {
        let time = |clients: &Arc<Clients>| match (clients.waits(), clients.has_received()) {
            (true, _) => Some(PAUSE),
            (false, true) => Some(Duration::ZERO),
            (false, false) => None,
        };
        self.clients.values().filter_map(time).min()
    }

    /// A P4 switch with its clients' port as the one by which packets come, and a port that is bound to it.
    pub(super) fn of_clients<'a>(&'a self, key: P4Key, ports: &'a Ports) -> Option<FromClients<'a>> {
        let (switch, clients) = (self.switches.get(&key)?, self.clients.get(&key)?);
        let places = self.ports.range((key, 0)..=(key, u16::MAX));
        let port = places.filter_map(|(_, port)| ports.get(*port)).next()?;
        let bound = Bound {
            is_stage: false,
            table: self,
            key,
            port: clients.cpu_port?,
            switch: Some(&**switch),
            clients: Some(clients),
        };
        Some(FromClients {
            bound,
            switch,
            clients,
            port,
        })
    }

    /// Takes messages of clients whose P4 switch has no port, and counts them as lost.
    pub(super) fn discard_of_clients(&self, key: P4Key) {
        let Some(clients) = self.clients.get(&key) else {
            return;
        };
        for _ in 0..PACKETS_OUT {
            let Some(received) = clients.receive() else {
                return;
            };
            match (self.switches.get(&key), received) {
                (Some(switch), Received::Packet(_)) => switch.counts.add_packet_out(false),
                (Some(switch), Received::Lost { packets, digests }) => {
                    switch.counts.add_lost(packets, digests)
                }
                (None, _) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets that reach a client which reads, of many at a time, and digests.
    fn sent(clients: &Clients, peer: &Channel, now_ms: u64) -> [usize; 2] {
        let received = || peer.try_recv::<FromP4>().is_ok();
        let packet = || clients.send_in(vec![0; MIN_FRAME], &VnetHeader::default(), now_ms);
        let packets = (0..3000).filter(|_| match packet() {
            Ok(()) => received(),
            Err(reason) => reason != DropReason::QueueFull,
        });
        let packets = packets.count();
        let digest = || clients.send_digest((0, DigestId(0)), &[7], now_ms);
        let digests = (0..3000).filter(|_| digest() && received());
        [packets, digests.count()]
    }

    #[test]
    fn packets_and_digests_to_clients_have_a_burst_and_a_rate() {
        let (ours, peer) = Channel::pair().unwrap();
        let clients = Clients::new(Some(1), ours);
        assert_eq!(sent(&clients, &peer, 5), [1000, 1000]);
        assert_eq!(sent(&clients, &peer, 5), [0, 0]);
        let later = (6..=25).map(|now_ms| sent(&clients, &peer, now_ms));
        let [packets, digests] = later.fold([0, 0], |sum, [packets, digests]| {
            [sum[0] + packets, sum[1] + digests]
        });
        assert_eq!([packets, digests], [200, 200], "ten in a millisecond");
        assert_eq!(sent(&clients, &peer, 1_000_000), [1000, 1000], "no more is saved");
    }
}
