//! Circulating frames: frames that arrive at one port are sent out of the other, for ever. This load measures
//! the switch alone: the guest never waits for anything but the switch.
//!
//! A guest that never looks at the payload forwards the buffer that it received ("io"). One that does
//! ("touch") reads every byte and writes every byte, from the receive buffer to a transmit buffer of its own:
//! then the switch meets payload in the sender's cache, and leaves it in the receiver's. With several flows
//! the guest writes the next flow's number into each frame it forwards, which costs four bytes written and is
//! the same for every switch.

use super::frame::{ETHERNET, FLOW, flow_bytes, mac};
use super::{Frame, HEADER_LEN, PollingGuest};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use virtqueue::driver::{Access, Used};

/// The frames that circulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of each frame without checksum, 60 to 1514, or more with `large`.
    pub size: usize,
    /// Number of flows, met in turn: one, or an even number, half of them in each direction.
    pub flows: u32,
    /// Whether the guest reads and writes all of the payload.
    pub touch: bool,
    /// Frames under way in each of the two directions, at most 128: they are what the switch can find at a
    /// time.
    pub under_way: u16,
    /// Whether these are TCP frames to be segmented by a later stage, of which there is one flow.
    pub large: bool,
    /// Whether frames go from port 0 to port 1 only, and each is written anew: for a switch that changes them
    /// on their way.
    pub one_way: bool,
}

impl Traffic {
    /// One flow of `size` bytes, 128 frames each way, payload not touched.
    pub const fn new(size: usize) -> Traffic {
        Traffic {
            size,
            flows: 1,
            touch: false,
            under_way: 128,
            large: false,
            one_way: false,
        }
    }

    fn frame(&self, from: u32, to: u32) -> Frame {
        if self.large {
            Frame::large_tcp(self.size, 1448, from, to)
        } else {
            Frame::udp(self.size, from, to)
        }
    }
}

/// The results.
#[derive(Clone, Copy, Debug)]
pub struct Circulation {
    /// Frames that the switch delivered.
    pub packets: u64,
    /// Frames that it lost.
    pub lost: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl Circulation {
    /// Frames per second.
    pub fn rate(&self) -> f64 {
        u32::try_from(self.packets).map_or(f64::INFINITY, f64::from) / self.elapsed.as_secs_f64()
    }
}

/// Tag of the only frame that is sent with one.
const VLAN: u16 = 10;
/// Frames taken from a ring at a time, as polling drivers do.
const BURST: usize = 32;
/// Frames circulate for so long before anything is measured, and longer until all flows have been sent, up to
/// the limit.
const WARM_UP: Duration = Duration::from_millis(50);
const WARM_UP_LIMIT: Duration = Duration::from_secs(2);
/// Frames that the switch took and that have not arrived this long after the last one are lost.
const LATE: Duration = Duration::from_millis(50);
/// Frames must have been taken by then.
const TIMEOUT: Duration = Duration::from_secs(5);

/// State of one run.
struct Run<'a> {
    guest: &'a mut PollingGuest,
    traffic: Traffic,
    /// How many frames were given a flow, by the port they are sent from.
    next: [u32; 2],
    scratch: Vec<u8>,
    /// What is sent if it is not what was received.
    fresh: Frame,
}

impl PollingGuest {
    /// Lets frames circulate between ports 0 and 1 for `time`, and takes them off the network again.
    /// `measured` is called once they do, and again at the end, for instance to read counters of the switch.
    pub fn circulate<T>(
        &mut self,
        traffic: &Traffic,
        time: Duration,
        mut measured: impl FnMut() -> Result<T>,
    ) -> Result<(Circulation, [T; 2])> {
        ensure!(
            self.ports.len() >= 2 && traffic.under_way <= self.build.ring / 2 && traffic.flows != 0,
            "cannot circulate"
        );
        let mut run = Run {
            guest: self,
            traffic: *traffic,
            next: [0; 2],
            scratch: vec![0; HEADER_LEN + traffic.size],
            fresh: traffic.frame(0, 1),
        };
        run.introduce()?;
        run.inject()?;
        run.warm_up()?;
        let before = measured()?;
        let (begin, mut packets) = (Instant::now(), 0);
        let mut elapsed = Duration::ZERO;
        while elapsed < time {
            // The clock is read rarely enough to cost nothing.
            for _ in 0..64 {
                packets += run.turn()?;
            }
            elapsed = begin.elapsed();
        }
        let after = measured()?;
        let lost = run.expected().saturating_sub(run.drain()?);
        let circulation = Circulation {
            packets,
            lost,
            elapsed,
        };
        Ok((circulation, [before, after]))
    }
}

impl Run<'_> {
    /// How many frames go round if none is lost.
    fn expected(&self) -> u64 {
        u64::from(self.traffic.under_way) * if self.traffic.one_way { 1 } else { 2 }
    }

    /// Of a frame that is sent from `port`.
    fn next_flow(&mut self, port: usize) -> u32 {
        let next = &mut self.next[port];
        *next = (*next + 1) % (self.traffic.flows / 2).max(1);
        *next
    }

    /// Sends a single frame each way until one has arrived: packets of a flow that is new wait for a
    /// decision, few may wait, and a switch that was just started may not have noticed its guests.
    fn introduce(&mut self) -> Result<()> {
        let begin = Instant::now();
        for (from, to) in [(0_u8, 1_u8), (1, 0)] {
            let frame = self.traffic.frame(from.into(), to.into());
            // A trunk takes no frame without a tag, other ports none with one.
            let mut frames = vec![frame];
            if self.traffic.one_way && from == 1 {
                frames.push(frames[0].tagged(VLAN));
            }
            let mut frames = frames.iter().cycle();
            let ours = mac(to.into());
            let mut arrived = false;
            while !arrived && let Some(frame) = frames.next() {
                ensure!(begin.elapsed() < TIMEOUT, "nothing gets through the switch");
                self.guest.send(from.into(), frame)?;
                self.guest.flush(from.into());
                let sent = Instant::now();
                while !arrived && sent.elapsed() < LATE {
                    let look = |frame: &[u8]| arrived |= frame.starts_with(&ours);
                    self.guest.receive(to.into(), BURST, look)?;
                }
            }
        }
        Ok(())
    }

    fn inject(&mut self) -> Result<()> {
        let senders: u8 = if self.traffic.one_way { 1 } else { 2 };
        for port in 0..senders {
            let mut frame = self.traffic.frame(u32::from(port), u32::from(1 - port));
            for _ in 0..self.traffic.under_way {
                if self.traffic.flows > 1 {
                    frame.set_flow(self.next_flow(port.into()));
                }
                ensure!(self.guest.send(port.into(), &frame)?, "a drained ring has room");
            }
            self.guest.flush(port.into());
        }
        Ok(())
    }

    /// Fills flow tables and caches, and wakes sleeping threads, before anything is measured.
    fn warm_up(&mut self) -> Result<()> {
        let (begin, mut packets) = (Instant::now(), 0);
        let enough = u64::from(self.traffic.flows);
        while begin.elapsed() < WARM_UP || (packets < enough && begin.elapsed() < WARM_UP_LIMIT) {
            packets += self.turn()?;
        }
        Ok(())
    }

    /// Forwards up to a burst from each port to the other. Returns how many frames there were.
    fn turn(&mut self) -> Result<u64> {
        let mut count = 0;
        for (from, to) in [(0, 1), (1, 0)] {
            self.guest.ports[to].reclaim(&mut self.guest.free)?;
            let mut burst = 0;
            while burst < BURST
                && let Some(used) = self.guest.ports[from].receive.take()?
            {
                if self.is_ours(from, &used) {
                    self.forward(from, to, &used)?;
                    count += 1;
                } else {
                    self.guest.ports[from].receive.add(used.buffer, Access::Writable);
                }
                burst += 1;
            }
            if burst > 0 {
                self.guest.ports[from].publish_receive();
                self.guest.ports[to].publish_transmit();
            }
        }
        Ok(count)
    }

    /// Whether a frame was sent to this port: a flooded frame is for another station.
    fn is_ours(&self, port: usize, used: &Used) -> bool {
        let mut destination = [0; 6];
        self.guest
            .memory
            .read(used.buffer.offset + ETHERNET, &mut destination);
        destination == mac(if port == 0 { 0 } else { 1 })
    }

    fn forward(&mut self, from: usize, to: usize, used: &Used) -> Result<()> {
        let fresh = self.guest.free_buffer()?;
        // What was received stays where it is and is sent from there, or is read there and written elsewhere.
        let (mut outgoing, again) = if self.traffic.one_way {
            self.guest.memory.write(fresh.offset, self.fresh.bytes());
            (fresh, used.buffer)
        } else if self.traffic.touch {
            let bytes = self
                .scratch
                .get_mut(..used.written)
                .context("the switch delivered a longer frame")?;
            self.guest.memory.read(used.buffer.offset, bytes);
            self.guest.memory.write(fresh.offset, bytes);
            (fresh, used.buffer)
        } else {
            (used.buffer, fresh)
        };
        if !self.traffic.large {
            self.guest.memory.write(outgoing.offset, &[0; HEADER_LEN]);
        }
        if self.traffic.flows > 1 {
            let flow = flow_bytes(self.next_flow(to));
            self.guest.memory.write(outgoing.offset + FLOW, &flow);
        }
        outgoing.len = if self.traffic.one_way {
            self.fresh.bytes().len()
        } else {
            used.written
        };
        let ports = &mut self.guest.ports;
        let sent = ports[to].transmit.add(outgoing, Access::Readable);
        let posted = ports[from].receive.add(again, Access::Writable);
        ensure!(
            sent.is_some() && posted.is_some(),
            "there are fewer frames than descriptors"
        );
        Ok(())
    }

    /// Takes everything off the network. Returns how many frames there were.
    fn drain(&mut self) -> Result<u64> {
        let (mut last, mut count) = (Instant::now(), 0);
        loop {
            let (mut arrived, mut held) = (0, 0);
            for port in 0..2_u8 {
                let ours = mac(port.into());
                let port = usize::from(port);
                self.guest.receive(port, BURST, |frame| {
                    arrived += u64::from(frame.starts_with(&ours));
                })?;
                self.guest.ports[port].reclaim(&mut self.guest.free)?;
                held += self.guest.ports[port].transmit.outstanding();
            }
            if arrived > 0 {
                last = Instant::now();
            }
            count += arrived;
            if held == 0 && (count >= self.expected() || last.elapsed() > LATE) {
                return Ok(count);
            }
            ensure!(last.elapsed() < TIMEOUT, "the switch keeps {held} frames");
        }
    }
}
