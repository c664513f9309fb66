//! Guests that poll, in this process: frames of any kind through any vhost-user switch, under control to the
//! byte.
//!
//! [testpmd](crate::testpmd) is a driver of another project, but it determines the frames. Here the benchmark
//! does: how many flows, whether the guest touches the payload, how many frames arrive at a time, how fast.
//! The guest is memory shared with the switch and one or more ports in it, each a receive and a transmit ring
//! with a driver ([`virtqueue::driver`]); calls are off, and kicks are given when the switch wants them, as a
//! DPDK guest does.
//!
//! What the guest does is a program that the caller's thread runs: [`circulate`](PollingGuest::circulate)
//! frames between two ports, or [`send`](PollingGuest::send) and [`receive`](PollingGuest::receive). Threads
//! are pinned by the caller.

mod circulate;
mod frame;

pub use circulate::{Circulation, Traffic};
pub use frame::{Frame, HEADER_LEN, udp_ports};

use anyhow::{Context, Result, ensure};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use vhost_driver::{Bells, Connection, GUEST_BASE, feature};
pub use virtqueue::driver::Pages;
use virtqueue::driver::{Access, DriverQueue, Layout, SharedMemory, Span};

/// Entries of each ring by default.
const RING: u16 = 256;

/// How a guest is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Entries of each ring, a power of two up to 1024.
    pub ring: u16,
    /// The pages of its memory; huge pages must have been reserved, 2 MiB for every 512 buffers of 4 KiB.
    pub pages: Pages,
    /// Whether it takes frames that are spread over several buffers (`mrg_rxbuf`).
    pub merges: bool,
}

impl Default for Build {
    fn default() -> Build {
        Build {
            ring: RING,
            pages: Pages::Small,
            merges: true,
        }
    }
}

const FEATURES: u64 = feature::VERSION_1
    | feature::NET_MRG_RXBUF
    | feature::NET_CSUM
    | feature::NET_GUEST_CSUM
    | feature::NET_HOST_TSO4
    | feature::NET_GUEST_TSO4;

/// Where a guest that has lost its switch asks the next one to go on with its rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoOn {
    /// At the used index, as QEMU.
    Used,
    /// At the available index, as Cloud Hypervisor.
    Available,
    /// At 0, as DPDK's virtio-user.
    Zero,
}

/// A port of the guest.
struct Port {
    /// Of the receive and the transmit ring.
    layouts: [Layout; 2],
    receive: DriverQueue,
    receive_bell: Bells,
    transmit: DriverQueue,
    transmit_bell: Bells,
    /// Holds the device.
    _connection: Connection,
}

impl Port {
    /// Returns buffers that the switch has sent to the stack of free buffers.
    fn reclaim(&mut self, free: &mut Vec<usize>) -> Result<()> {
        while let Some(used) = self.transmit.take()? {
            free.push(used.buffer.offset);
        }
        Ok(())
    }

    fn publish_transmit(&mut self) {
        if self.transmit.publish() {
            self.transmit_bell.kick.ring();
        }
    }

    fn publish_receive(&mut self) {
        if self.receive.publish() {
            self.receive_bell.kick.ring();
        }
    }
}

/// A guest that polls.
pub struct PollingGuest {
    memory: Arc<SharedMemory>,
    ports: Vec<Port>,
    /// Offsets of buffers in no ring.
    free: Vec<usize>,
    buffer_len: usize,
    build: Build,
}

impl PollingGuest {
    /// Connects one port to each socket on which the switch listens. `largest` is the size of the largest
    /// frame in bytes; each frame lies in one buffer.
    pub fn connect<P: AsRef<Path>>(sockets: &[P], largest: usize) -> Result<PollingGuest> {
        PollingGuest::connect_as(Build::default(), sockets, largest)
    }

    /// Connects a guest that is made like that.
    pub fn connect_as<P: AsRef<Path>>(build: Build, sockets: &[P], largest: usize) -> Result<PollingGuest> {
        let connect = |socket: &P| {
            let socket = socket.as_ref();
            UnixStream::connect(socket).with_context(|| format!("polling guest at {}", socket.display()))
        };
        let streams = sockets.iter().map(connect).collect::<Result<_>>()?;
        PollingGuest::over(build, streams, largest)
    }

    /// A guest over connections that are there already, as where the switch connects.
    pub fn over(build: Build, streams: Vec<UnixStream>, largest: usize) -> Result<PollingGuest> {
        // An odd number of cache lines: buffers a power of two apart would begin in the same few sets of the
        // cache. DPDK's pools spread theirs as well.
        let buffer_len = (HEADER_LEN + largest).next_multiple_of(128) + 64;
        let mut layouts = Vec::new();
        let mut end = 0;
        for _ in &streams {
            let receive = Layout::new(end, build.ring);
            let transmit = Layout::new(receive.end, build.ring);
            end = transmit.end;
            layouts.push((receive, transmit));
        }
        let buffers = 2 * usize::from(build.ring) * streams.len();
        let start = end.next_multiple_of(4096);
        let memory = Arc::new(SharedMemory::of(
            build.pages,
            "polling-guest",
            start + buffers * buffer_len,
        )?);
        let mut guest = PollingGuest {
            memory,
            ports: Vec::new(),
            free: (0..buffers)
                .rev()
                .map(|number| start + number * buffer_len)
                .collect(),
            buffer_len,
            build,
        };
        for (number, (stream, (receive, transmit))) in streams.into_iter().zip(layouts).enumerate() {
            let port = guest
                .connect_port(stream, receive, transmit)
                .with_context(|| format!("port {number} of a polling guest"))?;
            guest.ports.push(port);
        }
        Ok(guest)
    }

    fn connect_port(&mut self, stream: UnixStream, receive: Layout, transmit: Layout) -> Result<Port> {
        let unwanted = if self.build.merges {
            0
        } else {
            feature::NET_MRG_RXBUF
        };
        let connection = Connection::negotiate(stream, FEATURES & !unwanted)?;
        let merges = connection.features() & feature::NET_MRG_RXBUF != 0;
        ensure!(
            merges == self.build.merges,
            "the switch and the guest do not agree about mergeable buffers"
        );
        connection.share(&self.memory)?;
        let mut port = Port {
            layouts: [receive, transmit],
            receive: DriverQueue::new(self.memory.clone(), receive, GUEST_BASE, false),
            receive_bell: Bells::new()?,
            transmit: DriverQueue::new(self.memory.clone(), transmit, GUEST_BASE, false),
            transmit_bell: Bells::new()?,
            _connection: connection,
        };
        while port.receive.room() > 0 {
            let buffer = self.free_buffer()?;
            port.receive.add(buffer, Access::Writable);
        }
        let _ = port.receive.publish();
        port._connection
            .start([(&receive, &port.receive_bell), (&transmit, &port.transmit_bell)])?;
        port.receive_bell.kick.ring();
        Ok(port)
    }

    /// Connects a port whose switch has gone to the one that listens now, with its rings as they are.
    pub fn reconnect(&mut self, port: usize, socket: &Path, go_on: GoOn) -> Result<()> {
        let stream = UnixStream::connect(socket)?;
        let features = self.ports[port]._connection.features();
        let mut connection = Connection::negotiate(stream, features)?;
        ensure!(connection.features() == features, "other features");
        connection.share(&self.memory)?;
        let port = &mut self.ports[port];
        let bases = [&port.receive, &port.transmit].map(|queue| {
            let [available, used] = queue.indices();
            match go_on {
                GoOn::Used => used,
                GoOn::Available => available,
                GoOn::Zero => 0,
            }
        });
        let [receive, transmit] = &port.layouts;
        let queues = [(receive, &port.receive_bell), (transmit, &port.transmit_bell)];
        connection.start_at(queues, bases)?;
        port._connection = connection;
        Ok(())
    }

    /// Chains of the transmit ring of `port` that have not come back.
    pub fn outstanding(&mut self, port: usize) -> Result<u16> {
        self.ports[port].reclaim(&mut self.free)?;
        Ok(self.ports[port].transmit.outstanding())
    }

    fn free_buffer(&mut self) -> Result<Span> {
        let offset = self
            .free
            .pop()
            .context("there are as many buffers as descriptors")?;
        Ok(Span {
            offset,
            len: self.buffer_len,
        })
    }

    /// Puts a frame into the transmit ring of `port`. Returns whether there was room; [`flush`](Self::flush)
    /// makes it visible.
    pub fn send(&mut self, port: usize, frame: &Frame) -> Result<bool> {
        if self.ports[port].transmit.room() == 0 {
            self.ports[port].reclaim(&mut self.free)?;
        }
        if self.ports[port].transmit.room() == 0 {
            return Ok(false);
        }
        let mut buffer = self.free_buffer()?;
        ensure!(frame.bytes().len() <= buffer.len, "the frame is too long");
        buffer.len = frame.bytes().len();
        self.memory.write(buffer.offset, frame.bytes());
        self.ports[port].transmit.add(buffer, Access::Readable);
        Ok(true)
    }

    /// Makes frames visible to the switch, and kicks it if it asked for that.
    pub fn flush(&mut self, port: usize) {
        self.ports[port].publish_transmit();
    }

    /// Takes what has arrived at `port`, shows each frame (without the virtio-net header) to `look`, and
    /// returns how many there were, at most `limit`.
    pub fn receive(&mut self, port: usize, limit: usize, mut look: impl FnMut(&[u8])) -> Result<usize> {
        let mut copy = vec![0; self.buffer_len];
        let mut count = 0;
        while count < limit
            && let Some(used) = self.ports[port].receive.take()?
        {
            let bytes = &mut copy[..used.written];
            self.memory.read(used.buffer.offset, bytes);
            look(bytes.get(HEADER_LEN..).unwrap_or_default());
            self.ports[port].receive.add(used.buffer, Access::Writable);
            count += 1;
        }
        self.ports[port].publish_receive();
        Ok(count)
    }
}
