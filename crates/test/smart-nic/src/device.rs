//! The card: what guests can reach by their registers and memory, what the control driver sets, and the wire.

use crate::buffers::{Buffer, BufferTable, Place};
use crate::fault::Fault;
use crate::filters::{Filters, Sources, address_of};
use crate::interface::{Fetched, Interface, Rings, Why};
use crate::layout::{Event, EventKind, LONGEST, Page};
use crate::memory::{Memory, make};
use accelerator::{Filter, FilterId, Match};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{SealFlags, fcntl_get_seals};
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// VIs that there may be at once.
pub(crate) const INTERFACES: usize = 8;

/// Frames that wait for the wire or the slow path, each.
const WAITING: usize = 4096;

/// Shortest frame in bytes: two addresses and a type.
const SHORTEST: usize = 14;

/// What the card has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that a VI had no room for: descriptors or events.
    pub no_room: u64,
    /// Frames that were longer than any may be, or for whose way there was no room.
    pub lost: u64,
    /// Frames and descriptors that were refused by an event.
    pub refused: u64,
    /// Transfers that ended with their VI.
    pub cancelled: u64,
}

/// What moves when a transfer is finished.
#[derive(Debug)]
enum Load {
    Receive {
        room: Option<(Buffer, u32, u32)>,
        frame: Vec<u8>,
    },
    Send {
        parts: Vec<Option<(Buffer, u32, u32)>>,
        is_too_long: bool,
    },
}

#[derive(Debug)]
struct Transfer {
    vi: u32,
    opened: u64,
    /// Number of the last descriptor.
    descriptor: u32,
    load: Load,
}

/// A network card. Methods about VIs, buffers and filters are the control driver's.
#[derive(Debug)]
pub struct Device {
    buffers: BufferTable,
    filters: Filters,
    interfaces: BTreeMap<u32, Interface>,
    transfers: VecDeque<Transfer>,
    wire: VecDeque<Vec<u8>>,
    slow: VecDeque<Vec<u8>>,
    /// VI whose turn it is to send.
    turn: u32,
    opened: u64,
    counts: Counts,
    fault: Option<Fault>,
}

impl Default for Device {
    fn default() -> Device {
        Device::new(None)
    }
}

impl Device {
    /// A card without VIs.
    pub fn new(fault: Option<Fault>) -> Device {
        let mut buffers = BufferTable::new();
        buffers.omitted.owner = fault == Some(Fault::AnyOwner);
        buffers.omitted.registration = fault == Some(Fault::StaleBuffer);
        buffers.omitted.bounds = fault == Some(Fault::NoBounds);
        Device {
            buffers,
            filters: Filters::default(),
            interfaces: BTreeMap::new(),
            transfers: VecDeque::new(),
            wire: VecDeque::new(),
            slow: VecDeque::new(),
            turn: 0,
            opened: 0,
            counts: Counts::default(),
            fault,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Opens a VI whose rings lie in the first pages of a memory, with numbers for all pages but
    /// `unregistered` last ones. Returns its page of registers, and the eventfd of its interrupts.
    ///
    /// # Errors
    ///
    /// There is no room, or the memory is none.
    pub fn open(
        &mut self,
        vi: u32,
        memory: impl AsFd,
        sources: Sources,
        unregistered: u32,
    ) -> io::Result<[OwnedFd; 2]> {
        let is_new = !self.interfaces.contains_key(&vi) && self.interfaces.len() < INTERFACES;
        // Memory that its owner could cut would be missing when bytes move.
        if !fcntl_get_seals(&memory)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("memory must keep its size"));
        }
        let memory = Memory::map(memory)?;
        let pages = memory.pages().saturating_sub(unregistered);
        if !is_new || u64::from(pages) <= Page::Buffers as u64 {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let registers = make(1)?;
        let numbers: Option<Vec<u32>> = (0..pages)
            .map(|page| self.buffers.add(vi, Page::Transmit.offset() * u64::from(page)))
            .collect();
        let ring = |page: Page| self.buffers.find(vi, *numbers.as_ref()?.get(page as usize)?);
        let rings = (ring(Page::Transmit), ring(Page::Receive), ring(Page::Events));
        let (Some(numbers), (Some(transmit), Some(receive), Some(events))) = (&numbers, rings) else {
            self.buffers.remove_all(vi);
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        let told: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        // A memory with more pages than a page has words says no more numbers than fit.
        let told = &told[..told.len().min(Page::Transmit.offset() as usize)];
        let _ = memory.write(Page::Numbers.offset(), told);
        self.opened += 1;
        let rings = Rings {
            transmit,
            receive,
            events,
        };
        let interrupt = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let parts = ([memory, Memory::map(&registers)?], interrupt.try_clone()?);
        let mut interface = Interface::new(vi, self.opened, parts, rings, sources);
        interface.omitted.event_room = self.has(Fault::EventOverflow);
        interface.omitted.ring_size = self.has(Fault::AnyIndex);
        self.interfaces.insert(vi, interface);
        Ok([registers, interrupt])
    }

    /// Closes a VI: from now on its memory is touched no more, and its frames take the slow path.
    pub fn close(&mut self, vi: u32) {
        if self.has(Fault::AfterClose) {
            return;
        }
        self.interfaces.remove(&vi);
        self.buffers.remove_all(vi);
        if !self.has(Fault::FiltersStay) {
            self.filters.remove_all(vi);
        }
    }

    /// Gives a page of the memory of a VI's owner a number; `None` if there is no such page, or no number.
    pub fn register(&mut self, vi: u32, page: u32) -> Option<u32> {
        let interface = self.interfaces.get(&vi)?;
        let is_own = page < interface.memory.pages();
        is_own.then(|| self.buffers.add(vi, Page::Transmit.offset() * u64::from(page)))?
    }

    /// Takes a number of a VI back: from now on its page is not touched by it. False if it is not this VI's.
    pub fn unregister(&mut self, vi: u32, number: u32) -> bool {
        self.buffers.remove(vi, number)
    }

    /// Has frames given to a VI; `None` if there is no such VI, no room, or they are somebody's already.
    pub fn program(&mut self, filter: &Filter) -> Option<FilterId> {
        let is_open = self.interfaces.contains_key(&filter.queue);
        is_open.then(|| self.filters.add(filter))?
    }

    /// Has frames take the slow path again.
    pub fn remove(&mut self, filter: FilterId) {
        self.filters.remove(filter);
    }

    /// Why a VI does not work any more, if so.
    pub fn stopped(&self, vi: u32) -> Option<Why> {
        self.interfaces.get(&vi)?.stopped()
    }

    /// What was counted since the beginning.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Transfers that were begun and not finished.
    pub fn under_way(&self) -> usize {
        self.transfers.len()
    }

    /// A frame of the slow path leaves, past those that lie in rings.
    pub fn send_slow(&mut self, frame: &[u8]) {
        self.wire.push_back(frame.to_vec());
    }

    /// Takes the frames that have left by the wire.
    pub fn take_wire(&mut self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.wire.drain(..)
    }

    /// Takes the frames for the slow path.
    pub fn take_slow(&mut self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.slow.drain(..)
    }

    /// The VI that gets a frame for this address; `None` for the slow path.
    fn steer(&self, what: Match) -> Option<u32> {
        let what = match what {
            Match::Vlan(mac, _) if self.has(Fault::NoVlan) => Match::Mac(mac),
            what => what,
        };
        self.filters.queue_of(what)
    }

    /// A frame comes by the wire. Its transfer begins, or it goes to the slow path.
    pub fn receive(&mut self, frame: &[u8]) {
        if frame.len() > LONGEST {
            self.counts.lost += 1;
            return;
        }
        let vi = address_of(frame, false).and_then(|what| self.steer(what));
        let interface = vi.and_then(|vi| self.interfaces.get_mut(&vi));
        let Some(interface) = interface else {
            return self.give_to_slow_path(frame);
        };
        let Some((descriptor, room)) = interface.fetch_room(&self.buffers) else {
            if interface.stopped().is_some() {
                return self.give_to_slow_path(frame);
            }
            self.counts.no_room += 1;
            return;
        };
        let buffer = self.buffers.find(interface.number, room.buffer);
        self.transfers.push_back(Transfer {
            vi: interface.number,
            opened: interface.opened,
            descriptor,
            load: Load::Receive {
                room: buffer.map(|buffer| (buffer, room.offset, room.len)),
                frame: frame.to_vec(),
            },
        });
    }

    fn give_to_slow_path(&mut self, frame: &[u8]) {
        if self.slow.len() < WAITING {
            self.slow.push_back(frame.to_vec());
        } else {
            self.counts.lost += 1;
        }
    }

    /// Begins to send that many frames at most: one of each VI that has some, and again.
    pub fn start_sends(&mut self, most: usize) {
        let mut left = most;
        while left > 0 && self.wire.len() + self.transfers.len() < WAITING {
            if self.has(Fault::Unfair) {
                self.turn = 0;
            }
            let behind = self.interfaces.range(self.turn..).map(|(vi, _)| *vi);
            let before = self.interfaces.range(..self.turn).map(|(vi, _)| *vi);
            let order: Vec<u32> = behind.chain(before).collect();
            let Some(vi) = order.into_iter().find(|vi| self.start_send(*vi)) else {
                return;
            };
            self.turn = vi + 1;
            left -= 1;
        }
    }

    fn start_send(&mut self, vi: u32) -> bool {
        if self.has(Fault::SharedRegisters) {
            self.copy_registers(vi);
        }
        let Some(interface) = self.interfaces.get_mut(&vi) else {
            return false;
        };
        let Some(Fetched {
            last,
            parts,
            is_too_long,
        }) = interface.fetch_frame(&self.buffers)
        else {
            return false;
        };
        let found = parts.iter().map(|part| {
            let buffer = self.buffers.find(vi, part.buffer)?;
            Some((buffer, part.offset, part.len))
        });
        self.transfers.push_back(Transfer {
            vi,
            opened: interface.opened,
            descriptor: last,
            load: Load::Send {
                parts: found.collect(),
                is_too_long,
            },
        });
        true
    }

    /// The fault of one page of registers for all.
    fn copy_registers(&self, vi: u32) {
        let first = self.interfaces.values().next();
        if let (Some(first), Some(other)) = (first, self.interfaces.get(&vi)) {
            let mut words = [0; 12];
            let _ = first.registers.read(0, &mut words) && other.registers.write(0, &words);
        }
    }

    /// Finishes that many transfers at most, in the order in which they began.
    pub fn finish(&mut self, most: usize) {
        for _ in 0..most {
            let Some(transfer) = self.transfers.pop_front() else {
                return;
            };
            let interface = self.interfaces.get(&transfer.vi);
            let works = interface.is_some_and(|interface| {
                interface.opened == transfer.opened && interface.stopped().is_none()
            });
            if !works {
                self.counts.cancelled += 1;
                continue;
            }
            let (kind, len) = match &transfer.load {
                Load::Receive { room, frame } => self.deliver(transfer.vi, *room, frame),
                Load::Send { parts, is_too_long } => self.send(transfer.vi, parts, *is_too_long),
            };
            let is_refused = matches!(kind, EventKind::ReceiveRefused | EventKind::SendRefused);
            self.counts.refused += u64::from(is_refused);
            let descriptor = transfer.descriptor;
            let event = Event {
                kind,
                len,
                descriptor,
            };
            if let Some(interface) = self.interfaces.get_mut(&transfer.vi) {
                interface.write_event(&self.buffers, event);
            }
        }
    }

    /// The memory that a place is in.
    fn memory(&self, place: Place) -> Option<&Memory> {
        Some(&self.interfaces.get(&place.owner)?.memory)
    }

    fn deliver(&self, vi: u32, room: Option<(Buffer, u32, u32)>, frame: &[u8]) -> (EventKind, u16) {
        let write = || {
            let (buffer, offset, room) = room?;
            let len = u16::try_from(frame.len()).ok()?;
            let place = self.buffers.place(vi, buffer, offset, room)?;
            let fits = u32::from(len) <= room;
            (fits && self.memory(place)?.write(place.at, frame)).then_some(len)
        };
        write().map_or((EventKind::ReceiveRefused, 0), |len| (EventKind::Received, len))
    }

    fn send(&mut self, vi: u32, parts: &[Option<(Buffer, u32, u32)>], is_too_long: bool) -> (EventKind, u16) {
        let frame = self.gather(vi, parts).filter(|_| !is_too_long);
        match frame.filter(|frame| self.may_send(vi, frame)) {
            Some(frame) => {
                self.wire.push_back(frame);
                (EventKind::Sent, 0)
            }
            None => (EventKind::SendRefused, 0),
        }
    }

    fn gather(&self, vi: u32, parts: &[Option<(Buffer, u32, u32)>]) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        for part in parts {
            let (buffer, offset, len) = (*part)?;
            let place = self.buffers.place(vi, buffer, offset, len)?;
            let begin = frame.len();
            let end = begin + usize::try_from(len).ok()?;
            if end > LONGEST {
                return None;
            }
            frame.resize(end, 0);
            self.memory(place)?
                .read(place.at, &mut frame[begin..])
                .then_some(())?;
        }
        (frame.len() >= SHORTEST).then_some(frame)
    }

    /// Whether a VI may send this frame.
    fn may_send(&self, vi: u32, frame: &[u8]) -> bool {
        let Some(interface) = self.interfaces.get(&vi) else {
            return false;
        };
        let Sources::Only(own) = &interface.sources else {
            return true;
        };
        let source = address_of(frame, true);
        let is_own = source.is_some_and(|source| own.contains(&source)) || self.has(Fault::AnySource);
        let is_outside = address_of(frame, false).is_some_and(|what| !self.is_here(what));
        is_own && (is_outside || self.has(Fault::LocalDestination))
    }

    /// Whether frames for an address stay on this host, or go to several.
    fn is_here(&self, what: Match) -> bool {
        let (Match::Mac(mac) | Match::Vlan(mac, _)) = what else {
            return true;
        };
        let is_source = |interface: &Interface| match &interface.sources {
            Sources::Any => false,
            Sources::Only(own) => own.contains(&what),
        };
        let is_known = self.filters.queue_of(what).is_some() || self.interfaces.values().any(is_source);
        mac[0] & 1 != 0 || is_known
    }
}
