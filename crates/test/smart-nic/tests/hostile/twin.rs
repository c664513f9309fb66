//! What the card must do, said naively: lists that are searched from the beginning, and memory that is a
//! vector of bytes. No code is shared with the card but the formats.

use accelerator::Match;
use smart_nic::{Descriptor, EVENTS, Event, EventKind, LONGEST, MOST_PARTS, PAGE, Page, RING, Sources};
use std::collections::VecDeque;
use std::ops::Range;

/// A page that a VI may name by a number; `serial` differs for each time that it was registered.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    pub number: u32,
    pub vi: usize,
    pub page: usize,
    pub serial: u64,
}

/// A VI.
#[derive(Clone, Debug, Default)]
pub struct Side {
    pub is_open: bool,
    pub is_stopped: bool,
    opened: u64,
    sources: Vec<Match>,
    /// Transmit ring, receive ring, event queue.
    rings: Vec<Right>,
    sent: u32,
    received: u32,
    events: u32,
    due: u32,
    read: u32,
}

enum Work {
    Receive(Option<Right>, Descriptor, Vec<u8>),
    Send(Vec<(Option<Right>, Descriptor)>),
}

struct Pending {
    vi: usize,
    opened: u64,
    descriptor: u32,
    work: Work,
}

/// Memory and registers of all guests, as they are at a moment.
pub struct Snapshot {
    pub memory: Vec<Vec<u8>>,
    pub registers: Vec<[u32; 3]>,
}

#[derive(Default)]
pub struct Twin {
    pub sides: Vec<Side>,
    pub rights: Vec<Right>,
    pub filters: Vec<(Match, usize)>,
    pending: VecDeque<Pending>,
    pub wire: Vec<Vec<u8>>,
    pub slow: Vec<Vec<u8>>,
    turn: usize,
    serials: u64,
}

fn which(frame: &[u8], at: usize) -> Option<Match> {
    if frame.len() < 14 {
        return None;
    }
    let mac = [0, 1, 2, 3, 4, 5].map(|byte| frame[at + byte]);
    match (frame[12], frame[13]) {
        (0x81, 0) if frame.len() < 16 => None,
        (0x81, 0) => Some(Match::Vlan(
            mac,
            u16::from(frame[14] & 15) << 8 | u16::from(frame[15]),
        )),
        (0x88, 0xa8) | (0x91 | 0x92, 0) => None,
        _ => Some(Match::Mac(mac)),
    }
}

impl Twin {
    pub fn new(guests: usize) -> Twin {
        Twin {
            sides: vec![Side::default(); guests],
            ..Twin::default()
        }
    }

    pub fn open(&mut self, vi: usize, numbers: &[u32], sources: &Sources) {
        numbers
            .iter()
            .zip(0..)
            .for_each(|(number, page)| self.register(vi, page, *number));
        self.serials += 1;
        let ring = |page: Page| {
            *self
                .rights
                .iter()
                .find(|right| right.vi == vi && right.page == page as usize)
                .unwrap()
        };
        self.sides[vi] = Side {
            is_open: true,
            opened: self.serials,
            rings: vec![ring(Page::Transmit), ring(Page::Receive), ring(Page::Events)],
            sources: match sources {
                Sources::Any => panic!("guests have addresses"),
                Sources::Only(own) => own.clone(),
            },
            ..Side::default()
        };
    }

    pub fn register(&mut self, vi: usize, page: usize, number: u32) {
        assert!(self.rights.iter().all(|right| right.number != number), "in use");
        self.serials += 1;
        let serial = self.serials;
        self.rights.push(Right {
            number,
            vi,
            page,
            serial,
        });
    }

    pub fn close(&mut self, vi: usize) {
        self.sides[vi].is_open = false;
        self.rights.retain(|right| right.vi != vi);
        self.filters.retain(|(_, owner)| *owner != vi);
    }

    fn find(&self, vi: usize, number: u32) -> Option<Right> {
        self.rights
            .iter()
            .find(|right| right.vi == vi && right.number == number)
            .copied()
    }

    /// The bytes of a registered page that a transfer may touch.
    fn bytes(&self, right: Option<Right>, offset: u32, len: u32) -> Option<Range<usize>> {
        let right = right?;
        let is_valid = self.rights.iter().any(|other| other.serial == right.serial);
        let (offset, len) = (offset as usize, len as usize);
        let begin = right.page * PAGE as usize + offset;
        (is_valid && offset + len <= PAGE as usize).then_some(begin..begin + len)
    }

    fn works(&self, vi: usize) -> bool {
        self.sides[vi].is_open && !self.sides[vi].is_stopped
    }

    fn stop(&mut self, vi: usize) -> bool {
        self.sides[vi].is_stopped = true;
        false
    }

    fn has_event_room(&mut self, now: &Snapshot, vi: usize) -> bool {
        let side = &mut self.sides[vi];
        let read = now.registers[vi][2];
        // The driver can have read no more than was written, and cannot take back what it has read.
        let newly = read.wrapping_sub(side.read);
        if newly > side.events.wrapping_sub(side.read) {
            return self.stop(vi);
        }
        side.read = read;
        side.events.wrapping_sub(read) + side.due < EVENTS
    }

    fn descriptor(&mut self, now: &Snapshot, vi: usize, ring: usize, number: u32) -> Option<Descriptor> {
        let right = self.sides[vi].rings[ring];
        let Some(bytes) = self.bytes(Some(right), number % RING * 16, 16) else {
            self.stop(vi);
            return None;
        };
        Some(Descriptor::of_bytes(now.memory[vi][bytes].try_into().unwrap()))
    }

    pub fn receive(&mut self, now: &Snapshot, frame: &[u8]) {
        if frame.len() > LONGEST {
            return;
        }
        let what = which(frame, 0);
        let owner = what.and_then(|what| self.filters.iter().find(|(other, _)| *other == what));
        match owner.map(|(_, vi)| *vi) {
            Some(vi) if self.works(vi) => {
                if !self.begin_receive(now, vi, frame) && self.sides[vi].is_stopped {
                    self.slow.push(frame.to_vec());
                }
            }
            _ => self.slow.push(frame.to_vec()),
        }
    }

    fn begin_receive(&mut self, now: &Snapshot, vi: usize, frame: &[u8]) -> bool {
        let number = self.sides[vi].received;
        let waiting = now.registers[vi][1].wrapping_sub(number);
        if waiting > RING {
            return self.stop(vi);
        }
        if waiting == 0 || !self.has_event_room(now, vi) {
            return false;
        }
        let Some(room) = self.descriptor(now, vi, 1, number) else {
            return false;
        };
        let right = self.find(vi, room.buffer);
        self.sides[vi].received = number.wrapping_add(1);
        self.push(vi, number, Work::Receive(right, room, frame.to_vec()));
        true
    }

    fn push(&mut self, vi: usize, descriptor: u32, work: Work) {
        self.sides[vi].due += 1;
        let opened = self.sides[vi].opened;
        self.pending.push_back(Pending {
            vi,
            opened,
            descriptor,
            work,
        });
    }

    pub fn start(&mut self, now: &Snapshot, most: usize) {
        for _ in 0..most {
            let guests = self.sides.len();
            let mut order = (0..guests)
                .map(|step| (self.turn + step) % guests)
                .collect::<Vec<_>>();
            order.retain(|vi| self.works(*vi));
            let Some(vi) = order.into_iter().find(|vi| self.begin_send(now, *vi)) else {
                return;
            };
            self.turn = vi + 1;
        }
    }

    fn begin_send(&mut self, now: &Snapshot, vi: usize) -> bool {
        let first = self.sides[vi].sent;
        let waiting = now.registers[vi][0].wrapping_sub(first);
        if waiting > RING {
            return self.stop(vi);
        }
        if waiting == 0 || !self.has_event_room(now, vi) {
            return false;
        }
        let mut parts = Vec::new();
        for number in 0..waiting.min(MOST_PARTS as u32) {
            let Some(part) = self.descriptor(now, vi, 0, first.wrapping_add(number)) else {
                return false;
            };
            parts.push((self.find(vi, part.buffer), part));
            if !part.is_continued || number + 1 == MOST_PARTS as u32 {
                self.sides[vi].sent = first.wrapping_add(number + 1);
                self.push(vi, first.wrapping_add(number), Work::Send(parts));
                return true;
            }
        }
        false
    }

    pub fn finish(&mut self, now: &mut Snapshot, most: usize) {
        for _ in 0..most {
            let Some(Pending {
                vi,
                opened,
                descriptor,
                work,
            }) = self.pending.pop_front()
            else {
                return;
            };
            if !self.works(vi) || self.sides[vi].opened != opened {
                continue;
            }
            let (kind, len) = match work {
                Work::Receive(right, room, frame) => {
                    let fits = frame.len() <= room.len as usize;
                    match self.bytes(right, room.offset, room.len).filter(|_| fits) {
                        Some(bytes) => {
                            now.memory[vi][bytes.start..bytes.start + frame.len()].copy_from_slice(&frame);
                            (EventKind::Received, frame.len() as u16)
                        }
                        None => (EventKind::ReceiveRefused, 0),
                    }
                }
                Work::Send(parts) => match self.frame(now, vi, &parts) {
                    Some(frame) => {
                        self.wire.push(frame);
                        (EventKind::Sent, 0)
                    }
                    None => (EventKind::SendRefused, 0),
                },
            };
            self.event(
                now,
                vi,
                Event {
                    kind,
                    len,
                    descriptor,
                },
            );
        }
    }

    fn event(&mut self, now: &mut Snapshot, vi: usize, event: Event) {
        let number = self.sides[vi].events;
        match self.bytes(Some(self.sides[vi].rings[2]), number % EVENTS * 8, 8) {
            Some(bytes) => now.memory[vi][bytes].copy_from_slice(&event.to_bytes(number)),
            None => self.sides[vi].is_stopped = true,
        }
        self.sides[vi].events = number.wrapping_add(1);
        self.sides[vi].due -= 1;
    }

    /// The frame that a VI sends, if it may.
    fn frame(&self, now: &Snapshot, vi: usize, parts: &[(Option<Right>, Descriptor)]) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        for (right, part) in parts {
            frame.extend(&now.memory[vi][self.bytes(*right, part.offset, part.len)?]);
        }
        let is_whole = !parts.last()?.1.is_continued && frame.len() <= LONGEST;
        let (source, destination) = (which(&frame, 6)?, which(&frame, 0)?);
        let is_group = frame[0] & 1 != 0;
        let is_filtered = self.filters.iter().any(|(what, _)| *what == destination);
        let is_guest = self
            .sides
            .iter()
            .any(|side| side.is_open && side.sources.contains(&destination));
        let is_own = self.sides[vi].sources.contains(&source);
        (is_whole && is_own && !is_group && !is_filtered && !is_guest).then_some(frame)
    }
}
