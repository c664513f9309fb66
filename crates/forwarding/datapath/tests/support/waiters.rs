//! Waiters of a descriptor, which make it costly for whoever signals it: the kernel asks each of them whether
//! it wants the event.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{BorrowedFd, OwnedFd};

/// Waiters for an event that never comes, until this is dropped.
#[derive(Debug)]
pub struct Waiters {
    _epolls: Vec<OwnedFd>,
    _same: Vec<OwnedFd>,
}

impl Waiters {
    /// As many as make a signal take some 20 ms in a long attack, or a thousand.
    pub fn many(fd: BorrowedFd<'_>) -> Waiters {
        let (epolls, each) = if super::is_long() { (500, 800) } else { (20, 50) };
        Waiters::of(fd, epolls, each)
    }

    /// So many waiters in each of so many epoll instances. An instance takes a file once for each descriptor
    /// of it.
    pub fn of(fd: BorrowedFd<'_>, epolls: usize, each: usize) -> Waiters {
        let same: Vec<OwnedFd> = (0..each).map(|_| fd.try_clone_to_owned().unwrap()).collect();
        let epolls = (0..epolls).map(|_| {
            let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
            for fd in &same {
                epoll::add(
                    &epoll,
                    fd,
                    EventData::new_u64(0),
                    EventFlags::PRI | EventFlags::ET,
                )
                .unwrap();
            }
            epoll
        });
        Waiters {
            _epolls: epolls.collect(),
            _same: same,
        }
    }
}
