//! A VMM and a guest that break every rule they can think of, on another switch of the same data plane:
//! random descriptors, indices that jump, rings switched on and off, messages without sense, memory that is
//! too large, connections that come and go.

use super::Harm;
use anyhow::Result;
use fastrand::Rng;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::Switch;
use vhost_driver::{Bells, Connection, GUEST_BASE, feature};
use virtqueue::driver::{Layout, SharedMemory};

/// Bytes of its memory, rings included.
const MEMORY: usize = 1 << 20;
const RING: u16 = 256;

const FEATURES: u64 = feature::VERSION_1
    | feature::NET_MRG_RXBUF
    | feature::NET_CSUM
    | feature::NET_HOST_TSO4
    | feature::NET_GUEST_TSO4;

/// Time between two attacks: the test is about the cost of each to the switch, not about processor time.
const REST: Duration = Duration::from_millis(2);

/// vhost-user's SET_VRING_ENABLE (QEMU, `docs/interop/vhost-user.rst`).
const SET_VRING_ENABLE: u32 = 18;

/// Connects to the port later.
pub(super) fn arrive(switch: &Switch, port: &'static str, random: Rng) -> Result<Harm> {
    let socket = switch.socket(port);
    Ok(Box::new(move |stop| {
        do_harm(&socket, random, stop);
        Ok(())
    }))
}

/// Connects, does harm until it is thrown out, and comes again.
fn do_harm(socket: &Path, mut random: Rng, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if random.u8(..8) == 0 {
            talk_nonsense(socket, &mut random);
        } else if let Ok(mut device) = Device::connect(socket) {
            while !stop.load(Ordering::Relaxed) && device.misdeed(&mut random) && random.u16(..500) != 0 {
                thread::sleep(REST);
            }
        }
        thread::sleep(20 * REST);
    }
}

/// Bytes that are no message, or one that never ends.
fn talk_nonsense(socket: &Path, random: &mut Rng) {
    let Ok(mut stream) = UnixStream::connect(socket) else {
        return;
    };
    let mut bytes = [0; 200];
    random.fill(&mut bytes);
    let len = random.usize(1..bytes.len());
    // It may be thrown out before it has spoken.
    drop(stream.write_all(&bytes[..len]));
    thread::sleep(REST);
}

/// A device whose rings have been started properly: from there on, harm reaches the workers.
struct Device {
    /// The connection once more, for messages of the attacker's own.
    stream: UnixStream,
    memory: SharedMemory,
    rings: [Layout; 2],
    bells: [Bells; 2],
    _connection: Connection,
}

impl Device {
    fn connect(socket: &Path) -> Result<Device> {
        let stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let mut connection = Connection::negotiate(stream.try_clone()?, FEATURES)?;
        let memory = SharedMemory::new("attacker", MEMORY)?;
        connection.share(&memory)?;
        let receive = Layout::new(0, RING);
        let rings = [receive, Layout::new(receive.end, RING)];
        let bells = [Bells::new()?, Bells::new()?];
        connection.start([(&rings[0], &bells[0]), (&rings[1], &bells[1])])?;
        stream.set_nonblocking(true)?;
        Ok(Device {
            stream,
            memory,
            rings,
            bells,
            _connection: connection,
        })
    }

    /// False when the connection is gone.
    fn misdeed(&mut self, random: &mut Rng) -> bool {
        let side = random.usize(..2);
        match random.u8(..8) {
            0 => return self.toggle(side, random.bool()),
            1 => self.jump(side, random.u16(..)),
            2 => self.scribble(random),
            _ => self.offer(side, random),
        }
        self.bells[side].kick.ring();
        self.drop_answers()
    }

    /// Drops what the switch has answered; false if it has closed the connection.
    fn drop_answers(&mut self) -> bool {
        let mut answers = [0; 512];
        match self.stream.read(&mut answers) {
            Ok(read) => read > 0,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }

    /// Switches a ring on or off.
    fn toggle(&mut self, side: usize, on: bool) -> bool {
        let words = [SET_VRING_ENABLE, 1, 8, u32::from(side != 0), u32::from(on)];
        let message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.stream.write_all(&message).is_ok()
    }

    fn jump(&self, side: usize, to: u16) {
        let index = self.memory.atomic_u16(self.rings[side].available + 2);
        index.store(to, Ordering::Release);
    }

    /// Anything anywhere in rings and data.
    fn scribble(&self, random: &mut Rng) {
        let mut bytes = [0; 256];
        random.fill(&mut bytes);
        self.memory.write(random.usize(..MEMORY - bytes.len()), &bytes);
    }

    /// A few chains of descriptors which are nearly right.
    fn offer(&self, side: usize, random: &mut Rng) {
        let ring = &self.rings[side];
        let index = self.memory.atomic_u16(ring.available + 2);
        let mut next = index.load(Ordering::Relaxed);
        for _ in 0..random.u16(1..64) {
            let head = random.u16(..RING);
            let mut descriptor = [0; 16];
            let address = GUEST_BASE + random.u64(..MEMORY as u64);
            descriptor[..8].copy_from_slice(&address.to_le_bytes());
            descriptor[8..12].copy_from_slice(&random.u32(..3000).to_le_bytes());
            // NEXT, WRITE and INDIRECT in all combinations.
            descriptor[12..14].copy_from_slice(&random.u16(..8).to_le_bytes());
            descriptor[14..].copy_from_slice(&random.u16(..RING).to_le_bytes());
            let slot = usize::from(next % RING);
            self.memory
                .write(ring.descriptors + 16 * usize::from(head), &descriptor);
            self.memory
                .write(ring.available + 4 + 2 * slot, &head.to_le_bytes());
            next = next.wrapping_add(1);
        }
        index.store(next, Ordering::Release);
    }
}
