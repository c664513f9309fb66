//! Frames in and out of all queues of a device, for the process that moves them.
//!
//! A flow's frames arrive in one queue, so it is enough that each queue is read in order. Batches begin at
//! another queue each, so that a flooded one leaves room for others. Frames leave by queue 0, in the order of
//! the data plane.

use crate::area::Area;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::{Layout, disorder};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt;
use std::io;

/// The sockets of a device, with memory and rings. Used by one thread.
#[derive(Debug)]
pub struct XdpQueues {
    queues: Vec<Queue>,
    sender: Sender,
    layout: Layout,
    /// Readable when a queue is; `None` if there is one queue only.
    poller: Option<OwnedFd>,
    /// The queue with which the next batch begins.
    first: usize,
    /// Queues of this batch that were found to be empty.
    empty: usize,
}

#[derive(Debug)]
struct Queue {
    socket: OwnedFd,
    area: Area,
    receiver: Receiver,
}

impl XdpQueues {
    /// Takes up the sockets of a device, in the order of its queues, and their memory.
    ///
    /// # Errors
    ///
    /// The process has no room for them, an earlier one has left the rings in disorder, or sockets are
    /// missing.
    pub fn new(sockets: Vec<OwnedFd>, memory: BorrowedFd<'_>, layout: Layout) -> io::Result<XdpQueues> {
        let first = sockets.first().ok_or_else(|| disorder("sockets"))?;
        let offsets = sockopt::xdp_mmap_offsets(first)?;
        let sender = Sender::new(first.as_fd(), &offsets, layout)?;
        let take_up = |(socket, number): (OwnedFd, u32)| {
            let offsets = sockopt::xdp_mmap_offsets(&socket)?;
            let receiver = Receiver::new(socket.as_fd(), &offsets, layout)?;
            let area = Area::map(memory, layout, number)?;
            Ok(Queue {
                socket,
                area,
                receiver,
            })
        };
        let queues: io::Result<Vec<Queue>> =
            sockets.into_iter().zip(0..layout.queues()).map(take_up).collect();
        let queues = queues?;
        if queues.len() != layout.queues() as usize {
            return Err(disorder("sockets"));
        }
        let poller = (queues.len() > 1).then(|| poller_of(&queues)).transpose()?;
        Ok(XdpQueues {
            queues,
            sender,
            layout,
            poller,
            first: 0,
            empty: 0,
        })
    }

    /// Longest frame in bytes.
    pub fn longest(&self) -> usize {
        self.layout.longest() as usize
    }

    /// A frame that arrived, which stays until [`Self::release`]. `None`: all queues are empty.
    ///
    /// # Errors
    ///
    /// The rings are in disorder.
    pub fn front(&mut self) -> io::Result<Option<&mut [u8]>> {
        let all = self.queues.len();
        while self.empty < all {
            let at = (self.first + self.empty) % all;
            if self.queues[at].receiver.is_empty() {
                self.empty += 1;
                continue;
            }
            let Queue { area, receiver, .. } = &mut self.queues[at];
            return receiver.front(area);
        }
        Ok(None)
    }

    /// Gives the chunks of the frame that [`Self::front`] has found back, once [`Self::end_batch`] is called.
    pub fn release(&mut self) {
        let at = (self.first + self.empty) % self.queues.len();
        self.queues[at].receiver.release();
    }

    /// Shows the kernel what was released, and has the next batch begin at the next queue.
    pub fn end_batch(&mut self) {
        for queue in &mut self.queues {
            queue.receiver.publish();
            queue.receiver.wake_driver(queue.socket.as_fd());
        }
        self.first = (self.first + 1) % self.queues.len();
        self.empty = 0;
    }

    /// Collects chunks of frames that were sent.
    ///
    /// # Errors
    ///
    /// The rings are in disorder, or the kernel does not send.
    pub fn collect(&mut self) -> io::Result<()> {
        self.sender.collect()
    }

    /// Puts a frame of this length, of at most [`Self::longest`], into memory, each part filled by `fill` in
    /// the order of the frame; sent by [`Self::flush`]. False as long as there is no room.
    pub fn put(&mut self, len: usize, fill: impl FnMut(&mut [u8])) -> bool {
        self.sender.put(&mut self.queues[0].area, len, fill)
    }

    /// Has the kernel send what was put. False if some of it waits for room in the device, and this is to be
    /// called again.
    ///
    /// # Errors
    ///
    /// The device does not work any more.
    pub fn flush(&mut self) -> io::Result<bool> {
        self.sender.flush(self.queues[0].socket.as_fd())
    }
}

/// An epoll instance that is readable when one of the queues is.
fn poller_of(queues: &[Queue]) -> io::Result<OwnedFd> {
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for queue in queues {
        epoll::add(&poller, &queue.socket, EventData::new_u64(0), EventFlags::IN)?;
    }
    Ok(poller)
}

impl AsFd for XdpQueues {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.poller {
            Some(poller) => poller.as_fd(),
            None => self.queues[0].socket.as_fd(),
        }
    }
}
