//! The channel: what is sent late or never, and what is tolerated.

#![allow(clippy::unwrap_used)]

use control_protocol::supervisor::{FromChild, Role};
use control_protocol::{Channel, ChannelError, MAX_MESSAGE};
use controller::{Link, Lost};
use rustix::net::{SendFlags, send};
use std::os::fd::OwnedFd;

#[test]
fn a_few_messages_may_make_no_sense() {
    let (ours, theirs) = Channel::pair().unwrap();
    let mut link: Link<()> = Link::new(ours);
    let nonsense = || send(&theirs, &[0xff; 9], SendFlags::empty()).unwrap();
    for round in 1..=16 {
        nonsense();
        theirs.send(&round, &[]).unwrap();
        assert_eq!(
            link.receive::<u32>().map(|got| got.map(|(got, _)| got)),
            Ok(Some(round))
        );
    }
    assert!(matches!(link.receive::<u32>(), Ok(None)));
    nonsense();
    theirs.send(&7u32, &[]).unwrap();
    for _ in 0..3 {
        assert_eq!(
            link.receive::<u32>().err(),
            Some(Lost::Malformed),
            "and it stays like that"
        );
    }
}

#[test]
fn what_is_gathered_arrives_in_order() {
    let (ours, theirs) = Channel::pair().unwrap();
    let mut link: Link<u32> = Link::new(ours);
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    link.gather(true);
    for number in 0..3 {
        link.send(number, Vec::new());
    }
    link.send(3, vec![file()]);
    link.send(4, Vec::new());
    assert!(matches!(theirs.try_recv::<u32>(), Err(ChannelError::WouldBlock)));
    link.gather(false);
    for number in 0..5 {
        let (got, fds) = theirs.try_recv::<u32>().unwrap();
        assert_eq!((got, fds.len()), (number, usize::from(number == 3)));
    }
    // Not without end.
    link.gather(true);
    for number in 0..40 {
        link.send(number, Vec::new());
    }
    let arrived = std::iter::from_fn(|| theirs.try_recv::<u32>().ok());
    assert_eq!(arrived.count(), 32);
}

/// Messages behind one that is too long are sent all the same.
#[test]
fn a_message_that_is_too_long_is_dropped() {
    let (ours, theirs) = Channel::pair().unwrap();
    let mut link: Link<Vec<u8>> = Link::new(ours);
    link.gather(true);
    for len in [1, MAX_MESSAGE + 1, 2] {
        link.send(vec![0; len], Vec::new());
    }
    link.gather(false);
    for len in [1, 2] {
        assert_eq!(theirs.try_recv::<Vec<u8>>().unwrap().0.len(), len);
    }
}

#[test]
fn what_nobody_reads_is_kept_up_to_a_bound() {
    let (ours, theirs) = Channel::pair().unwrap();
    let mut link: Link<u32> = Link::new(ours);
    for number in 0..100_000 {
        link.send(number, Vec::new());
    }
    assert!(matches!(link.receive::<u32>(), Ok(None)), "that many are kept");
    for number in 100_000..1 << 19 {
        link.send(number, Vec::new());
    }
    assert_eq!(link.receive::<u32>().err(), Some(Lost::Unresponsive));
    let mut next = 0;
    while let Ok((number, _)) = theirs.try_recv::<u32>() {
        assert_eq!(number, next);
        next += 1;
        link.flush();
    }
    assert!((1 << 18..1 << 19).contains(&next), "{next} were kept");
}

/// However long the supervisor does not read, it is told of each peer once, and of everything else as often
/// as it was said.
#[test]
fn a_complaint_takes_the_place_of_the_same_one() {
    let (ours, theirs) = Channel::pair().unwrap();
    let mut link: Link<FromChild> = Link::new(ours);
    link.gather(true);
    for number in 0..10 {
        link.complain(FromChild::Owes(Role::DataPlane));
        link.complain(FromChild::Replace(Role::DataPlane));
        link.complain(FromChild::Owes(Role::Driver));
        link.complain(FromChild::Pong(number));
        if number == 4 {
            link.flush();
        }
    }
    link.gather(false);
    let said: Vec<_> = std::iter::from_fn(|| Some(theirs.try_recv::<FromChild>().ok()?.0)).collect();
    let pongs = said.iter().filter(|said| matches!(said, FromChild::Pong(_)));
    assert_eq!(pongs.count(), 10);
    for complaint in [
        FromChild::Owes(Role::DataPlane),
        FromChild::Replace(Role::DataPlane),
        FromChild::Owes(Role::Driver),
    ] {
        let count = said.iter().filter(|said| **said == complaint).count();
        assert_eq!(count, 2, "{complaint:?}: once each time that the supervisor read");
    }
}
