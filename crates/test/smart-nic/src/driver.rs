//! A driver that keeps to the rules: [`Queue`] and [`Arrivals`] over a VI.
//!
//! Each page with buffers has two: those of the first half of the pages are for frames that leave, the others
//! lie in the receive ring. The device is not trusted either: an event that cannot be ends the queue.

use crate::layout::{BUFFER, DESCRIPTOR, Descriptor, EVENT, EVENTS, Event, EventKind};
use crate::layout::{LONGEST, PAGE, Page, RING, Register};
use crate::memory::Memory;
use accelerator::{Arrivals, Arrived, Declined, Full, Queue, Sent};
use guest_memory::Messages;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{Ordering, fence};

/// Bytes of the virtio-net header in front of each frame.
const HEADER: usize = 12;

/// A buffer, and where its bytes lie.
#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u32,
    offset: u32,
    at: u64,
}

/// A queue over a VI.
#[derive(Debug)]
pub struct Driver {
    memory: Memory,
    registers: Memory,
    interrupt: OwnedFd,
    free: Vec<Slot>,
    /// Buffers of the rings, by number of their descriptor modulo the ring's size.
    transmit: Vec<Option<Slot>>,
    receive: Vec<Option<Slot>>,
    transmit_written: u32,
    receive_written: u32,
    events_read: u32,
    is_broken: bool,
    /// A message.
    scratch: Vec<u8>,
}

impl Driver {
    /// Takes a VI that was just opened: the memory with its rings, its page of registers, and the eventfd by
    /// which the card interrupts. Pages that have no number are left alone.
    ///
    /// # Errors
    ///
    /// The descriptors are something else.
    pub fn new(descriptors: Vec<OwnedFd>, unregistered: u32) -> io::Result<Driver> {
        let [memory, registers, interrupt] = <[OwnedFd; 3]>::try_from(descriptors)
            .map_err(|_| io::Error::other("a VI has memory, registers and an interrupt"))?;
        let (memory, registers) = (Memory::map(memory)?, Memory::map(registers)?);
        let pages = memory.pages().saturating_sub(unregistered);
        let slots: Vec<Slot> = (Page::Buffers as u32..pages)
            .flat_map(|page| [(page, 0), (page, BUFFER)])
            .map(|(page, offset)| Slot {
                number: memory.word(Page::Numbers.offset() + u64::from(page) * 4),
                offset,
                at: u64::from(page) * u64::from(PAGE) + u64::from(offset),
            })
            .collect();
        let (free, room) = slots.split_at(slots.len() / 2);
        let mut driver = Driver {
            memory,
            registers,
            interrupt,
            free: free.iter().copied().take(RING as usize).collect(),
            transmit: vec![None; RING as usize],
            receive: vec![None; RING as usize],
            transmit_written: 0,
            receive_written: 0,
            events_read: 0,
            is_broken: false,
            scratch: vec![0; HEADER + LONGEST],
        };
        room.iter()
            .take(RING as usize)
            .for_each(|slot| driver.post(*slot));
        driver.tell(Register::ReceiveWritten, driver.receive_written);
        Ok(driver)
    }

    /// Whether an event could not be, so that the queue is not used any more.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Frames that were put into the transmit ring, and of which no event was read. Until there are none, a
    /// frame that takes another way can overtake them.
    pub fn under_way(&self) -> usize {
        self.transmit.iter().flatten().count()
    }

    fn tell(&self, register: Register, number: u32) {
        fence(Ordering::Release);
        let _ = self.registers.write(register.offset(), &number.to_le_bytes());
    }

    fn describe(&self, ring: Page, number: u32, slot: Slot, len: u32) {
        let descriptor = Descriptor {
            buffer: slot.number,
            offset: slot.offset,
            len,
            is_continued: false,
        };
        let at = ring.offset() + u64::from(number % RING * DESCRIPTOR);
        let _ = self.memory.write(at, &descriptor.to_bytes());
    }

    fn post(&mut self, slot: Slot) {
        let number = self.receive_written;
        self.describe(Page::Receive, number, slot, BUFFER);
        self.receive[(number % RING) as usize] = Some(slot);
        self.receive_written = number.wrapping_add(1);
    }

    /// The buffer and the length of the oldest frame that has come. Buffers of frames that have left, and of
    /// descriptors that were refused, are taken back on the way.
    fn front(&mut self) -> Option<(Slot, usize)> {
        loop {
            let event = self.next_event()?;
            let ring = match event.kind {
                EventKind::Received | EventKind::ReceiveRefused => &self.receive,
                EventKind::Sent | EventKind::SendRefused => &self.transmit,
            };
            let slot = ring[(event.descriptor % RING) as usize];
            let len = usize::from(event.len);
            let Some(slot) = slot.filter(|_| len <= LONGEST) else {
                self.is_broken = true;
                return None;
            };
            match event.kind {
                EventKind::Received => return Some((slot, len)),
                EventKind::ReceiveRefused => self.release(event.descriptor, slot),
                EventKind::Sent | EventKind::SendRefused => {
                    self.transmit[(event.descriptor % RING) as usize] = None;
                    self.free.push(slot);
                    self.end_event();
                }
            }
        }
    }

    /// Gives a buffer of the receive ring back, and ends the event about it.
    fn release(&mut self, descriptor: u32, slot: Slot) {
        self.receive[(descriptor % RING) as usize] = None;
        self.post(slot);
        self.tell(Register::ReceiveWritten, self.receive_written);
        self.end_event();
    }

    fn end_event(&mut self) {
        self.events_read = self.events_read.wrapping_add(1);
        self.tell(Register::EventsRead, self.events_read);
    }

    /// Gives the buffer of the oldest frame back.
    fn release_front(&mut self) {
        if let (Some((slot, _)), Some(event)) = (self.front(), self.next_event()) {
            self.release(event.descriptor, slot);
        }
    }

    /// Takes all frames that have come, and buffers of those that have left. Returns how many have come.
    pub fn take_all(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let mut frames = 0;
        while let Some((slot, len)) = self.front() {
            if self.memory.read(slot.at, &mut self.scratch[..len]) {
                each(&self.scratch[..len]);
                frames += 1;
            }
            self.release_front();
        }
        frames
    }

    fn next_event(&self) -> Option<Event> {
        let mut bytes = [0; EVENT as usize];
        let at = Page::Events.offset() + u64::from(self.events_read % EVENTS * EVENT);
        let is_read = !self.is_broken && self.memory.read(at, &mut bytes);
        fence(Ordering::Acquire);
        Event::of_bytes(bytes, self.events_read).filter(|_| is_read)
    }

    /// Puts a message into the transmit ring.
    fn put(&mut self, messages: &Messages<'_>, number: usize) -> Result<(), Declined> {
        let Some(len) = messages.copy(number, &mut self.scratch) else {
            return Err(Declined::TooLong);
        };
        let frame = self.scratch.get(HEADER..len).ok_or(Declined::Frame)?;
        // Flags and the kind of segmentation: the card can do neither.
        if self.scratch[..2] != [0, 0] {
            return Err(Declined::Frame);
        }
        let slot = self.free.pop().ok_or(Declined::Full(Full::Device))?;
        let _ = self.memory.write(slot.at, frame);
        let written = self.transmit_written;
        self.describe(Page::Transmit, written, slot, (len - HEADER) as u32);
        self.transmit[(written % RING) as usize] = Some(slot);
        self.transmit_written = written.wrapping_add(1);
        Ok(())
    }
}

impl Arrivals for Driver {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }

    fn oldest(&mut self) -> Option<usize> {
        self.front().map(|(_, len)| HEADER + len)
    }

    fn receive(&mut self, [front, behind]: [&mut [u8]; 2]) -> Arrived {
        let Some((slot, len)) = self.front() else {
            return Arrived::Nothing;
        };
        let first = len.min(front.len().saturating_sub(HEADER));
        let fits = front.len() >= HEADER && len - first <= behind.len();
        let is_read = fits && {
            let (header, front) = front.split_at_mut(HEADER);
            header.fill(0);
            let rest = &mut behind[..len - first];
            self.memory.read(slot.at, &mut front[..first]) && self.memory.read(slot.at + first as u64, rest)
        };
        self.release_front();
        if is_read {
            Arrived::Frame(HEADER + len)
        } else {
            Arrived::Unusable
        }
    }
}

impl Queue for Driver {
    fn header_len(&self) -> usize {
        HEADER
    }

    fn send(&mut self, messages: &mut Messages<'_>) -> Sent {
        let mut sent = Sent::default();
        while sent.taken < messages.len() {
            let put = if self.is_broken {
                Err(Declined::Device)
            } else {
                self.put(messages, sent.taken)
            };
            match put {
                Ok(()) => sent.taken += 1,
                Err(declined) => {
                    sent.refused = Some(declined);
                    break;
                }
            }
        }
        self.tell(Register::TransmitWritten, self.transmit_written);
        sent
    }
}
