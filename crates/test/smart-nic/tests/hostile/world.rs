//! Two guests that keep to the rules beside two that do not, at one card, with the twin.
//!
//! What the card does to memory, wire and slow path has to be what the twin says, byte for byte. Besides,
//! without the twin: frames of the innocents have numbers, and none may lack; frames for them and pages of
//! them that are not registered have bytes that nobody else may see.

use crate::twin::{Snapshot, Twin};
use accelerator::{Accelerator, Filter, FilterId, Match, Queue};
use guest_memory::Messages;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use smart_nic::{Control, Descriptor, Device, Driver, Fault, Memory, PAGE, Page, RING, Register, Sources};
use std::collections::VecDeque;
use std::sync::Arc;

/// Guests 0 and 1 keep to the rules.
pub const INNOCENT: usize = 2;
pub const GUESTS: usize = 4;
const PAGES: u32 = 13;
/// Last pages that the card gets no numbers for.
const UNREGISTERED: u32 = 1;
/// Frames that an innocent's receive ring has room for, and its transmit ring.
const ROOM: usize = 8;

/// Byte in pages of innocents that are not registered, and in frames for innocents.
const SECRET: u8 = 0xa5;
const FOR_INNOCENT: u8 = 0xc3;
/// Bytes of a secret in a row that show it.
const SHOWN: usize = 12;

pub const OUTSIDE: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// Address of a guest; the last one has that of the first, in a VLAN.
pub fn address(guest: usize) -> Match {
    match guest {
        3 => Match::Vlan([2, 0, 0, 0, 0, 0], 5),
        guest => Match::Mac([2, 0, 0, 0, 0, guest as u8]),
    }
}

/// A frame of 60 bytes, with a byte for what lies behind the header, and a number.
pub fn frame(destination: Match, source: Match, fill: u8, number: u64) -> Vec<u8> {
    let mac = |what| match what {
        Match::Mac(mac) | Match::Vlan(mac, _) => mac,
        _ => panic!("no such frames"),
    };
    let mut frame = [mac(destination), mac(source)].concat();
    if let (Match::Vlan(_, vlan), _) | (_, Match::Vlan(_, vlan)) = (destination, source) {
        frame.extend([0x81, 0, 0, vlan as u8]);
    }
    frame.extend([8, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(60, fill);
    frame
}

/// A guest of either kind.
struct Guest {
    file: OwnedFd,
    memory: Memory,
    registers: Memory,
    /// Raised by the card; a hostile guest can write to it as well.
    interrupt: Option<OwnedFd>,
    numbers: Vec<u32>,
    filter: Option<FilterId>,
    driver: Option<Driver>,
    /// How far a hostile guest believes to be.
    written: [u32; 2],
}

pub struct World {
    pub device: Arc<Mutex<Device>>,
    control: Control,
    guests: Vec<Guest>,
    pub twin: Twin,
    /// Frames that an innocent is due, and that it has sent.
    due: [VecDeque<Vec<u8>>; INNOCENT],
    sent: [VecDeque<Vec<u8>>; INNOCENT],
    next: u64,
}

/// What was wrong, if something was.
pub type Checked = Result<(), String>;

pub fn require(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

fn shows(bytes: &[u8], secret: u8) -> bool {
    let mut runs = bytes.split(|byte| *byte != secret);
    runs.any(|run| run.len() >= SHOWN)
}

impl World {
    pub fn new(fault: Option<Fault>) -> World {
        let device = Arc::new(Mutex::new(Device::new(fault)));
        let mut world = World {
            control: Control::new(&device),
            device,
            guests: Vec::new(),
            twin: Twin::new(GUESTS),
            due: Default::default(),
            sent: Default::default(),
            next: 0,
        };
        for guest in 0..GUESTS {
            let file = smart_nic::make(PAGES).unwrap();
            let memory = Memory::map(&file).unwrap();
            let registers = smart_nic::make(1).unwrap();
            world.guests.push(Guest {
                interrupt: None,
                registers: Memory::map(&registers).unwrap(),
                file,
                memory,
                numbers: Vec::new(),
                filter: None,
                driver: None,
                written: [0; 2],
            });
            if guest < INNOCENT {
                let at = u64::from((PAGES - UNREGISTERED) * PAGE);
                assert!(world.guests[guest].memory.write(at, &[SECRET; PAGE as usize]));
            }
            world.open(guest).unwrap();
            world.set_filter(guest, true);
        }
        world
    }

    /// Opens a guest's VI, in memory that it has made ready.
    fn open(&mut self, guest: usize) -> Checked {
        let sources = Sources::Only(vec![address(guest)]);
        let own = &mut self.guests[guest];
        let opened = self
            .control
            .open_for_guest(guest as u32, &own.file, sources.clone(), UNREGISTERED);
        let [registers, interrupt] =
            opened.map_err(|error| format!("a VI that was closed is not opened: {error}"))?;
        let number = |page: u32| own.memory.word(Page::Numbers.offset() + u64::from(page) * 4);
        own.numbers = (0..PAGES - UNREGISTERED).map(number).collect();
        own.registers = Memory::map(&registers).unwrap();
        own.interrupt = Some(interrupt.try_clone().unwrap());
        own.written = [0; 2];
        self.twin.open(guest, &own.numbers, &sources);
        if guest < INNOCENT {
            let memory = own.file.try_clone().unwrap();
            own.driver = Some(
                Driver::new(
                    vec![memory, registers, interrupt.try_clone().unwrap()],
                    UNREGISTERED,
                )
                .unwrap(),
            );
        }
        Ok(())
    }

    /// The control driver closes a hostile guest's VI and opens it again.
    pub fn reopen(&mut self, guest: usize) -> Checked {
        self.control.close(guest as u32);
        self.twin.close(guest);
        self.guests[guest].filter = None;
        self.observe(|_| {}, |_, _| {})?;
        self.open(guest)
    }

    pub fn set_filter(&mut self, guest: usize, is_wanted: bool) {
        let what = address(guest);
        if let Some(filter) = self.guests[guest].filter.take() {
            self.control.remove(filter).unwrap();
            self.twin.filters.retain(|(_, owner)| *owner != guest);
        }
        if is_wanted {
            let queue = guest as u32;
            let programmed = self.control.program(&Filter { what, queue });
            self.guests[guest].filter = Some(programmed.unwrap());
            self.twin.filters.push((what, guest));
        }
    }

    /// The control driver gives a page of a guest's own a number.
    pub fn register(&mut self, guest: usize, page: u32) {
        let number = self.device.lock().register(guest as u32, page);
        if let Some(number) = number {
            self.twin.register(guest, page as usize, number);
            self.guests[guest].numbers.push(number);
        }
    }

    /// The control driver takes a number of a guest's back, whoever has it.
    pub fn unregister(&mut self, guest: usize, which: usize) {
        let numbers = &mut self.guests[guest].numbers;
        if numbers.is_empty() {
            return;
        }
        let number = numbers.swap_remove(which % numbers.len());
        let is_own = self.device.lock().unregister(guest as u32, number);
        assert!(is_own);
        self.twin.rights.retain(|right| right.number != number);
    }

    fn snapshot(&self) -> Snapshot {
        let registers = [
            Register::TransmitWritten,
            Register::ReceiveWritten,
            Register::EventsRead,
        ];
        let memory = |guest: &Guest| {
            let mut bytes = vec![0; (PAGES * PAGE) as usize];
            assert!(guest.memory.read(0, &mut bytes));
            bytes
        };
        let words = |guest: &Guest| registers.map(|register| guest.registers.word(register.offset()));
        Snapshot {
            memory: self.guests.iter().map(memory).collect(),
            registers: self.guests.iter().map(words).collect(),
        }
    }

    /// Has card and twin do something, and compares all that can be seen of it.
    pub fn observe(
        &mut self,
        card: impl FnOnce(&mut Device),
        twin: impl FnOnce(&mut Twin, &mut Snapshot),
    ) -> Checked {
        let mut expected = self.snapshot();
        let (wire, slow): (Vec<_>, Vec<_>) = {
            let mut device = self.device.lock();
            card(&mut device);
            let wire = device.take_wire().collect();
            let slow = device.take_slow().collect();
            (wire, slow)
        };
        twin(&mut self.twin, &mut expected);
        let after = self.snapshot();
        for (guest, (found, expected)) in after.memory.iter().zip(&expected.memory).enumerate() {
            require(found == expected, || {
                let at = found.iter().zip(expected).position(|(one, other)| one != other);
                format!("byte {at:?} of guest {guest}")
            })?;
        }
        require(after.registers == expected.registers, || "registers".into())?;
        require(wire == std::mem::take(&mut self.twin.wire), || {
            format!("sent: {wire:?}")
        })?;
        require(slow == std::mem::take(&mut self.twin.slow), || "slow path".into())?;
        self.audit(&after, &wire)
    }

    /// What holds whatever the twin says.
    fn audit(&mut self, after: &Snapshot, wire: &[Vec<u8>]) -> Checked {
        for frame in wire {
            require(!shows(frame, SECRET), || {
                format!("a secret page leaves: {frame:?}")
            })?;
            let source = smart_nic::address_of(frame, true);
            let sender = (0..GUESTS).find(|guest| source == Some(address(*guest)));
            let Some(sender) = sender else {
                return Err(format!("forged: {frame:?}"));
            };
            if sender < INNOCENT {
                let own = self.sent[sender].pop_front();
                require(own.as_ref() == Some(frame), || format!("{frame:?}, not {own:?}"))?;
            }
        }
        let secret = (PAGES - UNREGISTERED) as usize * PAGE as usize;
        let mut pages = after.memory[..INNOCENT].iter().map(|memory| &memory[secret..]);
        let is_whole = pages.all(|page| page == [SECRET; PAGE as usize]);
        require(is_whole, || "a page that is not registered was written".into())
    }

    /// Frames come by the wire for a guest, or for an address of nobody.
    pub fn arrive(&mut self, destination: Match, count: usize) -> Checked {
        for _ in 0..count {
            self.next += 1;
            let innocent = (0..INNOCENT).find(|guest| address(*guest) == destination);
            let fill = innocent.map_or(7, |_| FOR_INNOCENT);
            let frame = frame(destination, Match::Mac(OUTSIDE), fill, self.next);
            if let Some(innocent) = innocent
                && self.due[innocent].len() < ROOM
            {
                self.due[innocent].push_back(frame.clone());
            }
            self.observe(
                |device| device.receive(&frame),
                |twin, now| twin.receive(now, &frame),
            )?;
        }
        Ok(())
    }

    pub fn start(&mut self, most: usize) -> Checked {
        self.observe(
            |device| device.start_sends(most),
            |twin, now| twin.start(now, most),
        )
    }

    pub fn finish(&mut self, most: usize) -> Checked {
        self.observe(|device| device.finish(most), |twin, now| twin.finish(now, most))
    }

    /// An innocent sends frames, as many as its ring has room for.
    pub fn send(&mut self, guest: usize, count: usize) {
        let count = count.min(ROOM - self.sent[guest].len());
        let first = self.next + 1;
        self.next += count as u64;
        let frames: Vec<Vec<u8>> = (first..=self.next)
            .map(|number| frame(Match::Mac(OUTSIDE), address(guest), guest as u8, number))
            .collect();
        let header = [0; 12];
        let mut messages = Messages::with_capacity(count);
        for frame in &frames {
            messages.push_bytes(&header);
            messages.push_bytes(frame);
            messages.end();
        }
        let driver = self.guests[guest].driver.as_mut().unwrap();
        let sent = driver.send(&mut messages);
        self.sent[guest].extend(frames[..sent.taken].iter().cloned());
    }

    /// An innocent takes what has come: the frames that it is due, in order.
    pub fn collect(&mut self, guest: usize) -> Checked {
        let mut found = Vec::new();
        let driver = self.guests[guest].driver.as_mut().unwrap();
        driver.take_all(|frame| found.push(frame.to_vec()));
        require(!driver.is_broken(), || "an event that cannot be".into())?;
        for frame in found {
            let due = self.due[guest].pop_front();
            require(due.as_ref() == Some(&frame), || format!("{frame:?}, not {due:?}"))?;
        }
        Ok(())
    }

    /// Everything that is on its way arrives, and nothing of the innocents lacks.
    pub fn settle(&mut self) -> Checked {
        for _ in 0..4 {
            self.start(4096)?;
            self.finish(4096)?;
            (0..INNOCENT).try_for_each(|guest| self.collect(guest))?;
        }
        let now = self.snapshot();
        for guest in INNOCENT..GUESTS {
            let is_seen = shows(&now.memory[guest], FOR_INNOCENT);
            require(!is_seen, || format!("frames for innocents reached guest {guest}"))?;
        }
        require(self.due == <[VecDeque<_>; INNOCENT]>::default(), || {
            "frames lack".into()
        })?;
        require(self.sent == <[VecDeque<_>; INNOCENT]>::default(), || {
            "frames were not sent".into()
        })
    }

    /// A hostile guest writes to its memory, wherever it likes.
    pub fn scribble(&mut self, guest: usize, at: u64, bytes: &[u8]) {
        let _ = self.guests[guest].memory.write(at, bytes);
    }

    /// A hostile guest writes to its page of registers, wherever it likes.
    pub fn ring(&mut self, guest: usize, at: u64, word: u32) {
        let _ = self.guests[guest].registers.write(at, &word.to_le_bytes());
    }

    /// A hostile guest has read that many events more, or says so.
    pub fn read_events(&mut self, guest: usize, more: u32) {
        let at = Register::EventsRead.offset();
        let before = self.guests[guest].registers.word(at);
        self.ring(guest, at, before.wrapping_add(more));
    }

    /// A number that a hostile guest knows, or one that it guesses.
    pub fn number(&self, guest: usize, which: usize) -> u32 {
        let known = &self.guests[guest].numbers;
        known.get(which).copied().unwrap_or(which as u32)
    }

    /// The eventfd of a guest's interrupts.
    pub fn interrupt(&self, guest: usize) -> &OwnedFd {
        self.guests[guest].interrupt.as_ref().unwrap()
    }

    /// Frames of an innocent that have not left.
    pub fn unsent(&self, guest: usize) -> usize {
        self.sent[guest].len()
    }

    /// A hostile guest writes a frame to the begin of a page.
    pub fn write_frame(&mut self, guest: usize, page: u32, frame: &[u8]) {
        self.scribble(guest, u64::from(page * PAGE), frame);
    }

    /// A hostile guest puts descriptors into one of its rings, and tells the card.
    pub fn post(&mut self, guest: usize, ring: Page, descriptors: &[Descriptor]) {
        let (which, register) = match ring {
            Page::Transmit => (0, Register::TransmitWritten),
            _ => (1, Register::ReceiveWritten),
        };
        for descriptor in descriptors {
            let number = self.guests[guest].written[which];
            let at = ring.offset() + u64::from(number % RING) * 16;
            self.scribble(guest, at, &descriptor.to_bytes());
            self.guests[guest].written[which] = number.wrapping_add(1);
        }
        self.ring(guest, register.offset(), self.guests[guest].written[which]);
    }
}
