//! A virtual interface, as the device sees it: rings and events in memory whose owner lies.
//!
//! Each word of the owner is read once. Descriptors are copied before they are looked at.

use crate::buffers::{Buffer, BufferTable};
use crate::filters::Sources;
use crate::layout::{DESCRIPTOR, Descriptor, EVENT, EVENTS, Event, MOST_PARTS, RING, Register};
use crate::memory::Memory;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

/// Why a VI does not work any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// More descriptors were written than a ring has.
    Descriptors,
    /// More events were read than there were.
    Events,
    /// The page of a ring was taken back.
    Ring,
}

/// Where rings and events are.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    /// Of descriptors of frames to be sent.
    pub transmit: Buffer,
    /// Of descriptors of room.
    pub receive: Buffer,
    /// Of events.
    pub events: Buffer,
}

/// How far the device is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    transmit_taken: u32,
    receive_taken: u32,
    events_written: u32,
    /// Events that transfers on their way will write.
    events_due: u32,
    events_read: u32,
}

/// Checks that tests can leave out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Omitted {
    /// Whether the event queue has room.
    pub event_room: bool,
    /// Whether a ring can have as many descriptors.
    pub ring_size: bool,
}

/// A VI.
#[derive(Debug)]
pub struct Interface {
    pub(crate) number: u32,
    /// Differs each time that the VI is opened.
    pub(crate) opened: u64,
    pub(crate) memory: Memory,
    pub(crate) registers: Memory,
    interrupt: OwnedFd,
    pub(crate) sources: Sources,
    pub(crate) omitted: Omitted,
    rings: Rings,
    progress: Progress,
    stopped: Option<Why>,
}

/// Descriptors of a frame to be sent.
#[derive(Debug)]
pub struct Fetched {
    /// Number of the last one.
    pub last: u32,
    /// All, in order.
    pub parts: Vec<Descriptor>,
    /// More descriptors belong to the frame than one may have.
    pub is_too_long: bool,
}

impl Interface {
    /// One that has done nothing.
    pub fn new(
        number: u32,
        opened: u64,
        ([memory, registers], interrupt): ([Memory; 2], OwnedFd),
        rings: Rings,
        sources: Sources,
    ) -> Interface {
        Interface {
            number,
            opened,
            memory,
            registers,
            interrupt,
            sources,
            omitted: Omitted::default(),
            rings,
            progress: Progress::default(),
            stopped: None,
        }
    }

    /// Why it does not work any more, if so.
    pub fn stopped(&self) -> Option<Why> {
        self.stopped
    }

    fn stop<T>(&mut self, why: Why) -> Option<T> {
        self.stopped.get_or_insert(why);
        None
    }

    fn register(&self, register: Register) -> u32 {
        let word = self.registers.word(register.offset());
        fence(Ordering::Acquire);
        word
    }

    /// Whether the queue has room for one event more, besides those that are due.
    fn has_event_room(&mut self) -> Option<bool> {
        let read = self.register(Register::EventsRead);
        let progress = &mut self.progress;
        let unread = progress.events_written.wrapping_sub(read);
        let before = progress.events_written.wrapping_sub(progress.events_read);
        if unread > before && !self.omitted.event_room {
            return self.stop(Why::Events);
        }
        progress.events_read = read;
        Some(unread + progress.events_due < EVENTS || self.omitted.event_room)
    }

    /// Descriptors that the driver has written and the device has not taken.
    fn waiting(&mut self, register: Register, taken: u32) -> Option<u32> {
        let waiting = self.register(register).wrapping_sub(taken);
        if waiting > RING && !self.omitted.ring_size {
            return self.stop(Why::Descriptors);
        }
        Some(waiting)
    }

    fn descriptor(&mut self, table: &BufferTable, ring: Buffer, number: u32) -> Option<Descriptor> {
        let mut bytes = [0; DESCRIPTOR as usize];
        let place = table.place(self.number, ring, number % RING * DESCRIPTOR, DESCRIPTOR);
        match place {
            Some(place) if self.memory.read(place.at, &mut bytes) => Some(Descriptor::of_bytes(bytes)),
            _ => self.stop(Why::Ring),
        }
    }

    /// Takes room for a frame; `None` if there is none, or the VI does not work.
    pub fn fetch_room(&mut self, table: &BufferTable) -> Option<(u32, Descriptor)> {
        let number = self.progress.receive_taken;
        if self.stopped.is_some() || self.waiting(Register::ReceiveWritten, number)? == 0 {
            return None;
        }
        self.has_event_room()?.then_some(())?;
        let room = self.descriptor(table, self.rings.receive, number)?;
        self.progress.receive_taken = number.wrapping_add(1);
        self.progress.events_due += 1;
        Some((number, room))
    }

    /// Takes the descriptors of a frame; `None` if it is not complete, or the VI does not work.
    pub fn fetch_frame(&mut self, table: &BufferTable) -> Option<Fetched> {
        let first = self.progress.transmit_taken;
        if self.stopped.is_some() {
            return None;
        }
        let waiting = self.waiting(Register::TransmitWritten, first)?;
        if waiting == 0 || !self.has_event_room()? {
            return None;
        }
        let mut parts = Vec::new();
        let mut number = first;
        loop {
            if number.wrapping_sub(first) == waiting {
                return None;
            }
            let part = self.descriptor(table, self.rings.transmit, number)?;
            parts.push(part);
            number = number.wrapping_add(1);
            if !part.is_continued || parts.len() == MOST_PARTS {
                break;
            }
        }
        self.progress.transmit_taken = number;
        self.progress.events_due += 1;
        Some(Fetched {
            last: number.wrapping_sub(1),
            is_too_long: parts.last().is_some_and(|part| part.is_continued),
            parts,
        })
    }

    /// Writes an event for which there was room.
    pub fn write_event(&mut self, table: &BufferTable, event: Event) {
        let number = self.progress.events_written;
        let place = table.place(self.number, self.rings.events, number % EVENTS * EVENT, EVENT);
        fence(Ordering::Release);
        match place {
            Some(place) if self.memory.write(place.at, &event.to_bytes(number)) => {}
            _ => self.stopped = self.stopped.or(Some(Why::Ring)),
        }
        self.progress.events_written = number.wrapping_add(1);
        self.progress.events_due = self.progress.events_due.saturating_sub(1);
        // The guest has the eventfd as well, and can fill it and change its flags: no write(2).
        let _ = eventfd::signal(self.interrupt.as_fd());
    }
}
