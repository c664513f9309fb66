//! Frames between an interface and the data plane, a batch at a time.
//!
//! Each batch ends with one publication and at most one kick. Transmit buffers that the data plane returned
//! are collected at the beginning of the next batch; only when they run out do we ask to be called, once half
//! of the frames under way are back. Until then the interface is not read, and its own queue (of a TAP:
//! `txqueuelen`) buffers or drops frames.

use super::back_end::{BackEnd, Full, Inbound, Left, Sent};
use super::session::{Session, SessionError};
use nic_packet::VNET_HEADER_LEN;
use std::io;
use std::time::Instant;
use virtqueue::driver::{Access, MAX_SPANS, Span, Used};
use wire::VnetHeader;

/// Offset of `num_buffers` in the virtio-net header.
const NUM_BUFFERS: usize = 10;

/// Frames counted since the interface was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Interface to data plane.
    pub from_interface: u64,
    /// Came from the interface but could not be forwarded.
    pub unusable: u64,
    /// Times that reading stopped because the data plane held all buffers.
    pub stalls: u64,
    /// Data plane to interface.
    pub to_interface: u64,
    /// The kernel did not take them, or there was no interface.
    pub refused: u64,
    /// Times that a queue of the kernel had no room.
    pub full: u64,
    /// Bytes of both directions, headers for the data plane included.
    pub bytes: u64,
}

/// The side that has failed.
#[derive(Debug, thiserror::Error)]
pub enum End {
    #[error("{0}")]
    Interface(io::Error),
    #[error("{0}")]
    Session(#[from] SessionError),
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A batch was full; there may be more.
    More,
    /// All done.
    Idle,
    /// Transmit buffers have run out; a call was asked for.
    Blocked,
    /// Frames wait for room in a queue of the kernel.
    Full(Full),
}

/// Interface to data plane: up to one batch.
pub fn transmit(
    back_end: &mut dyn BackEnd,
    session: &mut Session,
    counters: &mut Counters,
) -> Result<Progress, End> {
    collect(session)?;
    let mut batch = Inbound::new(session);
    let received = back_end.receive(&mut batch);
    counters.from_interface += batch.frames as u64;
    counters.unusable += batch.unusable as u64;
    counters.bytes += batch.bytes() as u64;
    let progress = match received.map_err(End::Interface)? {
        Left::Nothing => Progress::Idle,
        Left::Perhaps if batch.is_out_of_buffers() => Progress::Blocked,
        Left::Perhaps => Progress::More,
    };
    if session.transmit.publish() {
        session.transmit_bell.kick.ring();
    }
    if progress == Progress::Blocked {
        return wait_for_buffers(session, counters);
    }
    Ok(progress)
}

/// Batches of frames that a device can have at most: a full ring of its socket.
const LONGEST_QUEUE: u32 = 1024;

/// A mark that the ring is to get once all frames are in it that the device had when it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct DueMark {
    number: u16,
    /// Batches after which the ring gets the mark although frames go on coming.
    left: u32,
}

impl DueMark {
    pub fn new(number: u16) -> DueMark {
        DueMark {
            number,
            left: LONGEST_QUEUE,
        }
    }

    /// Puts the mark into the ring if that is due after a batch; returns the mark if not, or if the ring has
    /// no room.
    pub fn put(mut self, progress: Progress, session: &mut Session) -> Option<DueMark> {
        self.left = self.left.saturating_sub(1);
        let is_due = progress == Progress::Idle || self.left == 0;
        let at = session
            .area
            .reserve()
            .filter(|_| is_due && session.transmit.room() > 0);
        let Some(offset) = at else { return Some(self) };
        let header = VnetHeader::mark(self.number).to_bytes();
        session.memory.write(offset, &header);
        let mark = Span {
            offset,
            len: header.len(),
        };
        if let Some(id) = session.transmit.add(mark, Access::Readable) {
            session.area.commit(id);
        }
        if session.transmit.publish() {
            session.transmit_bell.kick.ring();
        }
        None
    }
}

/// Asks to be called, unless buffers came back meanwhile.
fn wait_for_buffers(session: &mut Session, counters: &mut Counters) -> Result<Progress, End> {
    let half = session.transmit.outstanding() / 2;
    if session
        .transmit
        .enable_notifications(half)
        .map_err(SessionError::from)?
    {
        return Ok(Progress::More);
    }
    counters.stalls += 1;
    Ok(Progress::Blocked)
}

/// Takes returned transmit buffers back.
fn collect(session: &mut Session) -> Result<(), SessionError> {
    while let Some(used) = session.transmit.take()? {
        session.area.complete(used.id);
    }
    Ok(())
}

/// Data plane to interface: up to one batch. Without an interface frames are thrown away. When it returns
/// [`Progress::Idle`], the data plane will call if that `is_wanted`. While a queue of the kernel is full,
/// frames keep their buffers, so that those behind them wait in the data plane.
pub fn receive(
    back_end: Option<&mut (dyn BackEnd + 'static)>,
    session: &mut Session,
    counters: &mut Counters,
    is_wanted: bool,
) -> Result<Progress, End> {
    let header_len = back_end
        .as_ref()
        .map_or(VNET_HEADER_LEN, |back_end| back_end.header_len());
    let mut progress = Progress::More;
    while !session.outbound.is_waiting() && session.outbound.has_room() {
        let Some(first) = session.receive.take().map_err(SessionError::from)? else {
            progress = Progress::Idle;
            break;
        };
        let (buffers, count) = gather(session, first)?;
        counters.bytes += session.outbound.add(&buffers[..count], header_len) as u64;
    }
    let outbound = &mut session.outbound;
    let result = match back_end {
        Some(back_end) => back_end.send(&session.memory, outbound.frames(), outbound.next()),
        None => Ok(Sent::default()),
    };
    if let Ok(sent) = &result {
        counters.to_interface += sent.taken as u64;
        counters.refused += outbound.note(sent, Instant::now()) as u64;
        if let Some(full) = sent.full.filter(|_| !outbound.is_done()) {
            counters.full += 1;
            return Ok(Progress::Full(full));
        }
    }
    counters.refused += outbound.left() as u64;
    for used in session.outbound.end() {
        session
            .receive
            .add(used.buffer, Access::Writable)
            .expect("its descriptor was just freed");
    }
    if session.receive.publish() {
        session.receive_bell.kick.ring();
    }
    if let Some(full) = result.map_err(End::Interface)?.full {
        // Frames that were taken are not sent yet.
        counters.full += 1;
        return Ok(Progress::Full(full));
    }
    if progress == Progress::Idle
        && is_wanted
        && session
            .receive
            .enable_notifications(1)
            .map_err(SessionError::from)?
    {
        progress = Progress::More;
    }
    Ok(progress)
}

/// The buffers of one frame, of which `first` was taken.
fn gather(session: &mut Session, first: Used) -> Result<([Used; MAX_SPANS], usize), SessionError> {
    let mut buffers = [first; MAX_SPANS];
    if !session.merged || first.written < VNET_HEADER_LEN {
        return Ok((buffers, 1));
    }
    let mut bytes = [0; 2];
    session.memory.read(first.buffer.offset + NUM_BUFFERS, &mut bytes);
    let announced = u16::from_le_bytes(bytes);
    let count = usize::from(announced);
    if count == 0 || count > MAX_SPANS {
        return Err(SessionError::Merged(announced, 1));
    }
    for (returned, buffer) in buffers.iter_mut().enumerate().take(count).skip(1) {
        // The device makes all buffers of a frame visible at once (VIRTIO 1.2, 5.1.6.4).
        *buffer = session
            .receive
            .take()?
            .ok_or(SessionError::Merged(announced, returned))?;
    }
    Ok((buffers, count))
}
