//! An attack on each promise of the card by guest 2, sometimes with guest 3. Beside what is said here, the
//! world compares everything with the twin, and sees to the innocents.

use crate::world::{Checked, OUTSIDE, World, address, frame, require};
use accelerator::Match;
use smart_nic::{Counts, Descriptor, EVENTS, MOST_PARTS, PAGE, Page, RING, Register, Why};

const GUEST: usize = 2;
/// The guest's first page with a buffer.
const OWN: u32 = Page::Buffers as u32;
/// More numbers than all guests have.
const NUMBERS: u32 = 80;

type Attack = fn(&mut World) -> Checked;

macro_rules! attacks {
    ($($name:ident),* $(,)?) => {
        /// All attacks, by name.
        pub const ALL: &[(&str, Attack)] = &[$((stringify!($name), $name)),*];

        mod none_succeeds {
            $(#[test]
            fn $name() {
                let mut world = crate::World::new(None);
                let done = super::$name(&mut world).and_then(|()| world.settle());
                assert_eq!(done, Ok(()));
            })*
        }
    };
}

attacks!(
    buffers_of_others,
    bytes_beyond_a_page,
    a_buffer_that_is_given_away_meanwhile,
    a_vi_that_is_closed_meanwhile,
    pages_of_others_are_not_registered,
    memory_that_could_vanish,
    a_ring_whose_page_is_taken_back,
    frames_of_other_guests,
    forged_sources,
    local_and_group_destinations,
    event_queues_that_overflow,
    interrupts_that_would_wait,
    indices_that_lie,
    registers_of_others,
    frames_without_an_end,
    floods_that_would_starve_others,
);

fn descriptor(buffer: u32, offset: u32, len: u32) -> Descriptor {
    Descriptor {
        buffer,
        offset,
        len,
        is_continued: false,
    }
}

fn own_frame() -> Vec<u8> {
    frame(Match::Mac(OUTSIDE), address(GUEST), 2, 0)
}

fn counts(world: &World) -> Counts {
    world.device.lock().counts()
}

/// Has the card do all that it is asked for.
fn carry_out(world: &mut World) -> Checked {
    world.start(4096)?;
    world.finish(4096)
}

/// Sends by each descriptor, and receives into each; all have to be refused.
fn use_each(world: &mut World, descriptors: &[Descriptor]) -> Checked {
    world.write_frame(GUEST, OWN, &own_frame());
    world.post(GUEST, Page::Transmit, descriptors);
    world.post(GUEST, Page::Receive, descriptors);
    world.arrive(address(GUEST), descriptors.len())?;
    carry_out(world)?;
    let refused = counts(world).refused;
    require(refused == 2 * descriptors.len() as u64, || {
        format!("{refused} of 2 * {}", descriptors.len())
    })
}

fn buffers_of_others(world: &mut World) -> Checked {
    let own: Vec<u32> = (0..NUMBERS)
        .map(|which| world.number(GUEST, which as usize))
        .collect();
    let own = &own[..12];
    let others: Vec<u32> = (0..NUMBERS)
        .chain([u32::MAX, 2047, 2048])
        .filter(|number| !own.contains(number))
        .collect();
    let all: Vec<Descriptor> = others.iter().map(|number| descriptor(*number, 0, 60)).collect();
    use_each(world, &all)
}

fn bytes_beyond_a_page(world: &mut World) -> Checked {
    let number = world.number(GUEST, 11);
    let all = [
        (PAGE, 60),
        (PAGE - 59, 60),
        (1, PAGE),
        (0, PAGE + 1),
        (u32::MAX, 1),
        (u32::MAX, 61),
        (u32::MAX - 58, 60),
        (60, u32::MAX),
        (60, u32::MAX - 59),
        (u32::MAX, u32::MAX),
    ]
    .map(|(offset, len)| descriptor(number, offset, len));
    use_each(world, &all)
}

/// Numbers are taken back between descriptor and bytes, and given to the next one who asks: guest 3, or the
/// same guest for another page.
fn a_buffer_that_is_given_away_meanwhile(world: &mut World) -> Checked {
    for next in [3, GUEST] {
        let which = Page::Buffers as usize;
        let number = world.number(GUEST, which);
        world.write_frame(next, OWN + 1, &own_frame());
        let before = counts(world).refused;
        world.post(GUEST, Page::Transmit, &[descriptor(number, 0, 60)]);
        world.post(GUEST, Page::Receive, &[descriptor(number, 128, 60)]);
        world.arrive(address(GUEST), 1)?;
        world.start(1)?;
        world.unregister(GUEST, which);
        world.register(next, OWN + 1);
        world.finish(2)?;
        let refused = counts(world).refused - before;
        require(refused == 2, || format!("{refused} of 2, for guest {next}"))?;
    }
    Ok(())
}

/// The VI is closed between descriptor and bytes. Neither it nor its successor gets anything of before.
fn a_vi_that_is_closed_meanwhile(world: &mut World) -> Checked {
    let number = world.number(GUEST, OWN as usize);
    world.write_frame(GUEST, OWN, &own_frame());
    world.post(GUEST, Page::Transmit, &[descriptor(number, 0, 60); 3]);
    world.post(GUEST, Page::Receive, &[descriptor(number, 128, 60); 3]);
    world.arrive(address(GUEST), 2)?;
    world.start(2)?;
    world.reopen(GUEST)?;
    carry_out(world)?;
    require(counts(world).cancelled == 4, || format!("{:?}", counts(world)))?;
    // Frames take the slow path until the control driver sets a filter again.
    world.arrive(address(GUEST), 1)?;
    world.set_filter(GUEST, true);
    world.arrive(address(GUEST), 1)?;
    require(counts(world).no_room == 1, || "no buffer is posted".into())
}

fn pages_of_others_are_not_registered(world: &mut World) -> Checked {
    let mut device = world.device.lock();
    for page in [13, 14, u32::MAX] {
        let number = device.register(GUEST as u32, page);
        require(number.is_none(), || format!("page {page}"))?;
    }
    let others = (0..NUMBERS)
        .filter(|number| device.unregister(7, *number))
        .count();
    require(others == 0, || {
        format!("{others} numbers of others were taken back")
    })?;
    // One guest's share of the table is all that it gets.
    let more = (0..4096).filter(|_| device.register(3, 4).is_some()).count();
    require(more < 256, || format!("{more} numbers for one guest"))?;
    device.close(3);
    let file = smart_nic::make(13).map_err(|error| error.to_string())?;
    let again = device.open(6, &file, smart_nic::Sources::Only(Vec::new()), 0);
    require(again.is_ok(), || "no numbers for another guest".into())?;
    device.close(6);
    drop(device);
    world.reopen(3)
}

fn memory_that_could_vanish(world: &mut World) -> Checked {
    let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 13 * u64::from(PAGE)).unwrap();
    let mut device = world.device.lock();
    let nobody = smart_nic::Sources::Only(Vec::new());
    let opened = device.open(6, &file, nobody.clone(), 0);
    require(opened.is_err(), || "memory that its owner can cut".into())?;
    for pages in [1, Page::Buffers as u32] {
        let opened = device.open(6, smart_nic::make(pages).unwrap(), nobody.clone(), 0);
        require(opened.is_err(), || format!("{pages} pages, none with a buffer"))?;
    }
    Ok(())
}

fn a_ring_whose_page_is_taken_back(world: &mut World) -> Checked {
    for ring in [Page::Transmit, Page::Receive, Page::Events] {
        let number = world.number(GUEST, OWN as usize);
        world.write_frame(GUEST, OWN, &own_frame());
        world.post(GUEST, Page::Transmit, &[descriptor(number, 0, 60); 3]);
        world.post(GUEST, Page::Receive, &[descriptor(number, 128, 60); 3]);
        world.unregister(GUEST, ring as usize);
        world.start(3)?;
        world.arrive(address(GUEST), 2)?;
        world.finish(8)?;
        let stopped = world.device.lock().stopped(GUEST as u32);
        require(stopped == Some(Why::Ring), || format!("{ring:?}: {stopped:?}"))?;
        world.reopen(GUEST)?;
        world.set_filter(GUEST, true);
    }
    Ok(())
}

/// Frames for others, for groups and for tags that are nobody's do not come to the guest, which has room.
fn frames_of_other_guests(world: &mut World) -> Checked {
    let number = world.number(GUEST, OWN as usize);
    world.post(GUEST, Page::Receive, &[descriptor(number, 0, 2048); 64]);
    world.post(
        3,
        Page::Receive,
        &[descriptor(world.number(3, OWN as usize), 0, 2048); 64],
    );
    let Match::Mac(mac) = address(GUEST) else {
        return Err("guest 2 has no VLAN".into());
    };
    let others = [
        address(0),
        address(1),
        Match::Mac([0xff; 6]),
        Match::Vlan(mac, 7),
        Match::Vlan(mac, 0),
    ];
    for what in others {
        world.arrive(what, 3)?;
    }
    world.finish(64)?;
    let mut own = own_frame();
    own.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0, 0, 5]);
    own[..6].copy_from_slice(&mac);
    world.observe(|device| device.receive(&own), |twin, now| twin.receive(now, &own))?;
    for len in [0, 6, 13, 14, 15, 1519, 9000] {
        let odd = vec![2; len];
        world.observe(|device| device.receive(&odd), |twin, now| twin.receive(now, &odd))?;
    }
    require(counts(world).no_room == 0, || "frames were for the guest".into())
}

fn forged_sources(world: &mut World) -> Checked {
    let number = world.number(GUEST, OWN as usize);
    let sources = [
        address(0),
        address(1),
        address(3),
        Match::Mac(OUTSIDE),
        Match::Mac([0xff; 6]),
        Match::Mac([0; 6]),
        Match::Vlan([2, 0, 0, 0, 0, 2], 5),
    ];
    let outside = Match::Mac([2, 0, 0, 0, 9, 8]);
    for source in sources {
        world.write_frame(GUEST, OWN, &frame(outside, source, 2, 0));
        world.post(GUEST, Page::Transmit, &[descriptor(number, 0, 60)]);
        carry_out(world)?;
    }
    // An own address that the other half of the frame changes, as descriptors may meet within a header.
    let mut forged = own_frame();
    forged[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    world.write_frame(GUEST, OWN, &forged);
    let mut parts = [descriptor(number, 0, 9), descriptor(number, 9, 51)];
    parts[0].is_continued = true;
    world.post(GUEST, Page::Transmit, &parts);
    carry_out(world)?;
    // Too short for an address, or longer than any frame.
    let lengths = [0, 1, 13, 1519, 2048];
    world.post(
        GUEST,
        Page::Transmit,
        &lengths.map(|len| descriptor(number, 0, len)),
    );
    carry_out(world)?;
    let refused = counts(world).refused;
    require(refused == 13, || format!("{refused} of 13"))?;
    world.write_frame(GUEST, OWN, &own_frame());
    world.post(GUEST, Page::Transmit, &[descriptor(number, 0, 60)]);
    carry_out(world)?;
    require(counts(world).refused == 13, || "an own frame is refused".into())
}

fn local_and_group_destinations(world: &mut World) -> Checked {
    let number = world.number(GUEST, OWN as usize);
    world.set_filter(3, false);
    let stations = [
        address(0),
        address(1),
        address(2),
        address(3),
        Match::Mac([0xff; 6]),
    ];
    for station in stations {
        let mut local = own_frame();
        if let Match::Mac(mac) | Match::Vlan(mac, _) = station {
            local[..6].copy_from_slice(&mac);
        }
        world.write_frame(GUEST, OWN, &local);
        world.post(GUEST, Page::Transmit, &[descriptor(number, 0, 60)]);
        carry_out(world)?;
    }
    let refused = counts(world).refused;
    require(refused == 5, || format!("{refused} of 5"))
}

/// The guest reads no events. What it has is not written over, and what it has no room for is its own loss.
fn event_queues_that_overflow(world: &mut World) -> Checked {
    let number = world.number(GUEST, OWN as usize);
    world.write_frame(GUEST, OWN, &own_frame());
    for _ in 0..2 {
        world.post(
            GUEST,
            Page::Receive,
            &[descriptor(number, 512, 2048); RING as usize],
        );
        for _ in 0..RING / 32 {
            world.arrive(address(GUEST), 32)?;
            world.arrive(address(0), 2)?;
            world.finish(34)?;
            world.collect(0)?;
        }
    }
    require(counts(world).no_room == 0, || "there was room".into())?;
    world.post(GUEST, Page::Receive, &[descriptor(number, 512, 2048); 8]);
    world.post(GUEST, Page::Transmit, &[descriptor(number, 0, 60); 8]);
    world.arrive(address(GUEST), 8)?;
    carry_out(world)?;
    require(counts(world).no_room == 8, || format!("{:?}", counts(world)))?;
    world.read_events(GUEST, EVENTS);
    world.arrive(address(GUEST), 8)?;
    carry_out(world)?;
    require(counts(world).no_room == 8, || "there is room again".into())
}

/// The guest fills the counter of its eventfd, and has writes to it wait: the card goes on.
fn interrupts_that_would_wait(world: &mut World) -> Checked {
    let eventfd = world.interrupt(GUEST);
    rustix::io::write(eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(eventfd, rustix::fs::OFlags::empty()).unwrap();
    world.post(
        GUEST,
        Page::Receive,
        &[descriptor(world.number(GUEST, OWN as usize), 0, 2048); 3],
    );
    world.arrive(address(GUEST), 3)?;
    world.arrive(address(0), 1)?;
    carry_out(world)?;
    require(counts(world).refused == 0, || "frames were refused".into())
}

/// Numbers of descriptors and events that cannot be end the VI, and nothing else; its frames take the slow
/// path.
fn indices_that_lie(world: &mut World) -> Checked {
    let lies = [
        (Register::TransmitWritten, RING + 1, Why::Descriptors),
        (Register::TransmitWritten, u32::MAX, Why::Descriptors),
        (Register::ReceiveWritten, RING + 1, Why::Descriptors),
        (Register::ReceiveWritten, 1 << 31, Why::Descriptors),
        (Register::EventsRead, 1, Why::Events),
        (Register::EventsRead, u32::MAX, Why::Events),
    ];
    for (register, word, why) in lies {
        world.post(
            GUEST,
            Page::Receive,
            &[descriptor(world.number(GUEST, OWN as usize), 0, 2048)],
        );
        world.ring(GUEST, register.offset(), word);
        world.start(64)?;
        world.arrive(address(GUEST), 2)?;
        let stopped = world.device.lock().stopped(GUEST as u32);
        require(stopped == Some(why), || {
            format!("{register:?}, {word}: {stopped:?}")
        })?;
        world.reopen(GUEST)?;
        world.set_filter(GUEST, true);
    }
    Ok(())
}

/// A page of registers leads to one VI, whatever is written where.
fn registers_of_others(world: &mut World) -> Checked {
    for at in (12..u64::from(PAGE)).step_by(4) {
        world.ring(GUEST, at, 200);
    }
    world.send(0, 3);
    world.arrive(address(1), 3)?;
    world.ring(GUEST, u64::from(PAGE) - 2, u32::MAX);
    world.ring(GUEST, u64::from(PAGE), u32::MAX);
    carry_out(world)?;
    world.post(GUEST, Page::Transmit, &[descriptor(0, 0, 60)]);
    carry_out(world)?;
    let stopped = (0..4).find_map(|vi| world.device.lock().stopped(vi));
    require(stopped.is_none(), || format!("{stopped:?}"))
}

/// A frame that never ends holds up nobody else, and one of too many parts is refused.
fn frames_without_an_end(world: &mut World) -> Checked {
    let number = world.number(GUEST, OWN as usize);
    let mut part = descriptor(number, 0, 60);
    part.is_continued = true;
    world.write_frame(GUEST, OWN, &own_frame());
    world.post(GUEST, Page::Transmit, &[part; MOST_PARTS - 1]);
    world.send(1, 4);
    carry_out(world)?;
    require(world.unsent(1) == 0, || "an innocent waits".into())?;
    world.post(GUEST, Page::Transmit, &vec![part; RING as usize - MOST_PARTS]);
    carry_out(world)?;
    let (refused, whole) = (counts(world).refused, (RING as usize - 1) / MOST_PARTS);
    require(refused == whole as u64, || format!("{refused} of {whole}"))
}

/// Two guests have full rings all the time. A frame of an innocent leaves in the next round, and frames for
/// the innocents come, as many as have room.
fn floods_that_would_starve_others(world: &mut World) -> Checked {
    let number = world.number(GUEST, OWN as usize);
    for guest in [GUEST, 3] {
        world.write_frame(guest, OWN, &frame(Match::Mac(OUTSIDE), address(guest), 2, 0));
        let number = world.number(guest, OWN as usize);
        world.post(guest, Page::Transmit, &[descriptor(number, 0, 60); RING as usize]);
    }
    for round in 0..40 {
        world.post(GUEST, Page::Receive, &[descriptor(number, 512, 2048); 4]);
        world.arrive(address(GUEST), 8)?;
        world.send(round % 2, 1);
        world.arrive(address(round % 2), 1)?;
        world.start(4)?;
        world.finish(4096)?;
        require(world.unsent(round % 2) == 0, || format!("round {round}"))?;
        world.collect(round % 2)?;
    }
    require(counts(world).no_room == 160, || format!("{:?}", counts(world)))
}
