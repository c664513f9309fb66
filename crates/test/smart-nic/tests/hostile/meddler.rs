//! A guest that writes while the card works, and a card that lies to its driver.

use crate::world::{OUTSIDE, address, frame};
use accelerator::{Accelerator, Declined, Filter, Match, Queue};
use guest_memory::Messages;
use parking_lot::Mutex;
use smart_nic::{
    Control, Descriptor, Device, Driver, EVENTS, Event, Memory, PAGE, Page, Register, Sources, make,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TURNS: u64 = 20_000;
const HOSTILE: u32 = 2;

/// Sends one frame of the guest.
fn send(driver: &mut Driver, frame: &[u8]) -> Option<Declined> {
    let header = [0; 12];
    let mut messages = Messages::with_capacity(1);
    messages.push_bytes(&header);
    messages.push_bytes(frame);
    messages.end();
    driver.send(&mut messages).refused
}

/// Writes descriptors, frames and garbage until told to end, and once a turn numbers that mostly can be.
fn meddle(memory: &Memory, registers: &Mutex<Memory>, turn: &AtomicU64) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut before = 0;
    while before < TURNS {
        let ring = [Page::Transmit, Page::Receive][random.usize(..2)];
        let descriptor = Descriptor {
            buffer: random.u32(..40),
            offset: [0, 100, 4090][random.usize(..3)],
            len: [60, 1500, 4096][random.usize(..3)],
            is_continued: random.u8(..4) == 0,
        };
        let at = ring.offset() + random.u64(..256) * 16;
        let _ = memory.write(at, &descriptor.to_bytes());
        let source = [address(0), address(HOSTILE as usize)][random.usize(..2)];
        let page = u64::from(random.u32(4..12) * PAGE);
        let _ = memory.write(page, &frame(Match::Mac(OUTSIDE), source, 2, 0));
        let _ = memory.write(random.u64(..u64::from(13 * PAGE)), &random.u64(..).to_le_bytes());
        let now = turn.load(Ordering::Relaxed);
        if now == before {
            continue;
        }
        before = now;
        let registers = registers.lock();
        let tell = |register: Register, more: u32| {
            let word = registers.word(register.offset()).wrapping_add(more);
            let _ = registers.write(register.offset(), &word.to_le_bytes());
        };
        let lie = if random.u16(..) < 64 { 1000 } else { 0 };
        tell(Register::TransmitWritten, random.u32(..2) + lie);
        tell(Register::ReceiveWritten, random.u32(..3));
        let number = registers.word(Register::EventsRead.offset());
        let mut event = [0; 8];
        let is_read = memory.read(Page::Events.offset() + u64::from(number % EVENTS) * 8, &mut event);
        let is_there = is_read && Event::of_bytes(event, number).is_some();
        tell(Register::EventsRead, u32::from(is_there));
    }
}

#[test]
fn a_guest_that_writes_meanwhile_reaches_nothing_of_others() {
    let device = Arc::new(Mutex::new(Device::default()));
    let mut control = Control::new(&device);
    let open = |control: &mut Control, vi: u32, file: &rustix::fd::OwnedFd| {
        let what = address(vi as usize);
        let registers = control
            .open_for_guest(vi, file, Sources::Only(vec![what]), 1)
            .unwrap();
        control.program(&Filter { what, queue: vi }).unwrap();
        registers
    };
    let files: Vec<_> = (0..2).map(|_| make(13).unwrap()).collect();
    let [registers, interrupt] = open(&mut control, 0, &files[0]);
    let secret = Memory::map(&files[0]).unwrap();
    assert!(secret.write(u64::from(12 * PAGE), &[0xa5; PAGE as usize]));
    let mut driver = Driver::new(vec![files[0].try_clone().unwrap(), registers, interrupt], 1).unwrap();
    let registers = Mutex::new(Memory::map(&open(&mut control, HOSTILE, &files[1])[0]).unwrap());
    let memory = Memory::map(&files[1]).unwrap();
    let now = AtomicU64::new(0);
    let (mut sent, mut left, mut reopened) = (0, 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| meddle(&memory, &registers, &now));
        for turn in 0..TURNS {
            let own = frame(Match::Mac(OUTSIDE), address(0), 0, sent);
            sent += u64::from(send(&mut driver, &own).is_none());
            let comes = frame(address(0), Match::Mac(OUTSIDE), 0xc3, turn);
            let wire: Vec<Vec<u8>> = {
                let mut device = device.lock();
                device.receive(&comes);
                device.receive(&frame(address(HOSTILE as usize), Match::Mac(OUTSIDE), 7, turn));
                device.start_sends(4);
                device.finish(16);
                device.take_slow().for_each(drop);
                device.take_wire().collect()
            };
            for found in wire {
                let source = smart_nic::address_of(&found, true);
                if source == Some(address(0)) {
                    assert_eq!(found, frame(Match::Mac(OUTSIDE), address(0), 0, left));
                    left += 1;
                } else {
                    assert_eq!(source, Some(address(HOSTILE as usize)));
                }
            }
            let mut came = Vec::new();
            driver.take_all(|frame| came.push(frame.to_vec()));
            assert_eq!(came, [comes]);
            if device.lock().stopped(HOSTILE).is_some() {
                reopened += 1;
                control.close(HOSTILE);
                let opened = open(&mut control, HOSTILE, &files[1]);
                *registers.lock() = Memory::map(&opened[0]).unwrap();
            }
            now.store(turn + 1, Ordering::Relaxed);
        }
    });
    assert_eq!((sent, left), (TURNS, TURNS));
    let mut page = [0; PAGE as usize];
    assert!(secret.read(u64::from(12 * PAGE), &mut page));
    assert_eq!(page, [0xa5; PAGE as usize]);
    let counts = device.lock().counts();
    assert!(counts.refused > 0, "{counts:?}, opened again {reopened} times");
}

#[test]
fn a_queue_wakes_its_thread_and_gives_frames_that_fit() {
    use accelerator::{Arrivals, Arrived};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let device = Arc::new(Mutex::new(Device::default()));
    let mut control = Control::new(&device);
    let mut driver = Driver::new(control.open(0).unwrap(), 0).unwrap();
    let filter = Filter {
        what: address(0),
        queue: 0,
    };
    control.program(&filter).unwrap();
    let is_readable = |driver: &Driver| {
        let mut all = [PollFd::from_borrowed_fd(driver.descriptor(), PollFlags::IN)];
        poll(&mut all, Some(&Timespec::default())).unwrap() == 1
    };
    let comes = frame(address(0), Match::Mac(OUTSIDE), 7, 1);
    let mut room = [0; 80];
    assert_eq!(driver.receive([&mut room, &mut []]), Arrived::Nothing);
    assert!(!is_readable(&driver) && driver.oldest().is_none());
    (0..4).for_each(|_| device.lock().receive(&comes));
    device.lock().finish(4);
    assert!(is_readable(&driver));
    // The header, then the frame; in two pieces, in one, and in too few bytes.
    for front in [80, 12, 40] {
        room.fill(9);
        let (front, behind) = room.split_at_mut(front);
        assert_eq!(driver.oldest(), Some(72));
        assert_eq!(driver.receive([front, behind]), Arrived::Frame(72));
        assert_eq!(
            (&room[..12], &room[12..72], &room[72..]),
            (&[0; 12][..], &comes[..], &[9; 8][..])
        );
    }
    let (front, behind) = room.split_at_mut(11);
    assert_eq!(driver.receive([front, behind]), Arrived::Unusable);
    assert_eq!(driver.receive([&mut room, &mut []]), Arrived::Nothing);
}

#[test]
fn a_driver_outlives_a_card_that_lies() {
    let mut random = fastrand::Rng::with_seed(2);
    let mut broken = 0;
    for _ in 0..200 {
        let (file, registers, interrupt) = (make(13).unwrap(), make(1).unwrap(), make(1).unwrap());
        let memory = Memory::map(&file).unwrap();
        let mut driver = Driver::new(vec![file, registers, interrupt], 1).unwrap();
        let own = frame(Match::Mac(OUTSIDE), address(0), 0, 0);
        for _ in 0..40 {
            let at = Page::Events.offset() + random.u64(..8) * 8;
            let event = [
                random.u8(..6),
                random.u8(..3),
                random.u8(..),
                random.u8(..8),
                random.u8(..),
                0,
                0,
                random.u8(..2),
            ];
            assert!(memory.write(at, &event));
            driver.take_all(|frame| assert!(frame.len() <= smart_nic::LONGEST));
            let declined = send(&mut driver, &own);
            if driver.is_broken() {
                assert_eq!(declined, Some(Declined::Device));
            }
        }
        broken += u32::from(driver.is_broken());
    }
    assert!(broken > 100, "{broken} of 200 noticed a lie");
}
