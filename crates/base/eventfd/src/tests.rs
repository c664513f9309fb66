#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

fn value(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(fd, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

#[test]
fn only_eventfds_are_eventfds() {
    for flags in [
        EventfdFlags::empty(),
        EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE,
    ] {
        let bell = eventfd(3, flags).unwrap();
        assert_eq!(is_eventfd(bell.as_fd()), Ok(true));
        assert_eq!(
            value(&bell),
            if flags.contains(EventfdFlags::SEMAPHORE) {
                1
            } else {
                3
            },
            "asking signals nothing"
        );
    }
    let (pipe, other) = rustix::pipe::pipe().unwrap();
    let socket = OwnedFd::from(UnixStream::pair().unwrap().0);
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let timer = rustix::time::timerfd_create(
        rustix::time::TimerfdClockId::Monotonic,
        rustix::time::TimerfdFlags::CLOEXEC,
    )
    .unwrap();
    for other in [pipe, other, socket, file, null, memory, poll, timer] {
        assert_eq!(is_eventfd(other.as_fd()), Ok(false), "{other:?}");
        assert_eq!(signal(other.as_fd()), Err(Errno::INVAL), "{other:?}");
    }
}

#[test]
fn signals_are_counted_from_all_threads() {
    const EACH: u64 = 20_000;
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..EACH).for_each(|_| signal(bell.as_fd()).unwrap()));
        }
    });
    assert_eq!(value(&bell), 4 * EACH);
}

/// A write would wait here for ever.
#[test]
fn a_full_counter_is_not_waited_for() {
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    for _ in 0..3 {
        signal(bell.as_fd()).unwrap();
    }
    assert!(value(&bell) >= u64::MAX - 1);
}

/// The cost of a signal beside that of a write; prints it and asserts nothing.
#[test]
#[ignore = "a measurement"]
fn cost() {
    const ROUNDS: u32 = 1_000_000;
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    for _ in 0..3 {
        let start = std::time::Instant::now();
        (0..ROUNDS).for_each(|_| assert!(rustix::io::write(&bell, &1u64.to_ne_bytes()).is_ok()));
        let write = start.elapsed() / ROUNDS;
        let start = std::time::Instant::now();
        (0..ROUNDS).for_each(|_| signal(bell.as_fd()).unwrap());
        println!("write {write:?}, signal {:?}", start.elapsed() / ROUNDS);
    }
}
