//! Queues of devices, by which packets to a port leave straight from their senders' memory, and others come.
//!
//! A controller hands the data plane a socket that is bound to the device of a port, which a forwarder serves
//! besides. How packets change between both is crate `vnic`'s (`receive/device_queue.rs`). What goes by the
//! queue has passed the same decision as what goes through the forwarder.
//!
//! Only a process that was started for it may send by a queue: the others may not make the system call.

use crate::port::Port;
use crate::refusal::Refusal;
use crate::requests::Serving;
use crate::state::Queues;
use accelerator::{Arrivals, PacketArrivals, PacketQueue, Queue};
use control_protocol::data_plane::{Connection, DeviceQueueState};
use flow::PortId;
use rustix::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use vnic::{Host, QueueCounts, WhySlow};

impl Serving<'_> {
    /// What has left by a port's queue, if it has one.
    pub fn queue_of(&self, port: &Port) -> Option<DeviceQueueState> {
        let counts = port.queue_counts()?;
        let arrivals = port.arrivals_state();
        Some(DeviceQueueState {
            arrivals,
            ..queue_state(&counts)
        })
    }

    /// Has packets to a port leave by a queue, and come by one, or no longer. Lengths of headers are those of
    /// the two sockets.
    pub fn set_queue(
        &self,
        id: PortId,
        (header_len, receives): (Option<u8>, Option<u8>),
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let port = self.port(id)?;
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(Refusal::NoDescriptor("a queue"));
        let queue = header_len.map(|header_len| {
            if self.engine.datapath.queues != Queues::Allowed {
                return Err(Refusal::NoQueues);
            }
            let queue =
                PacketQueue::new(next()?, header_len).filter(|_| port.connection() == Connection::Driver);
            let queue: Box<dyn Queue> = Box::new(queue.ok_or(Refusal::Queue(id))?);
            Ok(queue)
        });
        let queue = queue.transpose()?;
        let arrivals = receives.filter(|_| queue.is_some()).map(|header_len| {
            let arrivals = PacketArrivals::new(next()?, header_len).map_err(|_| Refusal::Queue(id))?;
            let arrivals: Box<dyn Arrivals> = Box::new(arrivals);
            Ok::<_, Refusal>(arrivals)
        });
        port.set_arrivals(arrivals.transpose()?)
            .map_err(|_| Refusal::Queue(id))?;
        port.set_queue(queue);
        port.schedule();
        Ok(())
    }
}

/// What a queue has counted.
fn queue_state(counts: &QueueCounts) -> DeviceQueueState {
    DeviceQueueState {
        obstacle: obstacle(counts.why_slow()).map(String::from),
        packets: counts.packets.load(Relaxed),
        bytes: counts.bytes.load(Relaxed),
        calls: counts.calls.load(Relaxed),
        armed: counts.armed.load(Relaxed),
        full: counts.full.load(Relaxed),
        left: counts.left.load(Relaxed),
        overdue: counts.overdue.load(Relaxed),
        longest_wait_us: counts.longest_wait_us.load(Relaxed),
        arrivals: None,
    }
}

/// Why packets go through the forwarder, for users.
fn obstacle(why: WhySlow) -> Option<&'static str> {
    match why {
        WhySlow::Fast => None,
        WhySlow::Unused => Some("no packet has left since the queue was opened"),
        WhySlow::Arming => Some("the forwarder has still to send what it has"),
        WhySlow::Overdue => Some("the forwarder did not send in 10 ms what it had"),
        WhySlow::SocketFull => Some("the socket had no room"),
        WhySlow::DeviceFull => Some("the device had no room"),
        WhySlow::Device => Some("the device does not work"),
        WhySlow::Offload => Some("a packet needed an offload that the device lacks"),
        WhySlow::NoForwarder => Some("the forwarder was not connected"),
    }
}
