//! A back end that does wrong when a frame says so, for tests of what that means to others. It exists in
//! debug builds only, and there only if the environment variable [`VARIABLE`] is set.
//!
//! The frame has the EtherType for experiments, 0x88b5, and the name of a fault as its text. It must be the
//! last one of its batch, so a test sends it until the fault shows.

use super::{BackEnd, Inbound, Left, Sent, Takes};
use nic_packet::{Offloads, VNET_HEADER_LEN};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use virtqueue::driver::{Messages, SharedMemory, Span};

/// The environment variable that lets devices misbehave.
const VARIABLE: &str = "HYPERSWITCH_MISBEHAVE";

const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const ETHERTYPE_AT: usize = VNET_HEADER_LEN + 12;
const NAME_LEN: usize = 8;

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Never returns from the call.
    Loops,
    /// Ends the process in the middle of a batch.
    Dies,
    /// Hands the data plane a frame that ends far behind its memory.
    LiesAboutLength,
    /// Overwrites the rings.
    CorruptsRings,
    /// Has frames without end.
    Floods,
}

impl Fault {
    fn of_name(name: &[u8]) -> Option<Fault> {
        let all = [
            (&b"loop"[..], Fault::Loops),
            (b"die", Fault::Dies),
            (b"lie", Fault::LiesAboutLength),
            (b"corrupt", Fault::CorruptsRings),
            (b"flood", Fault::Floods),
        ];
        let found = all.into_iter().find(|(text, _)| name.starts_with(text));
        found.map(|(_, fault)| fault)
    }
}

/// The back end itself, or in its place one that misbehaves on demand.
pub fn wrap(back_end: Box<dyn BackEnd>) -> Box<dyn BackEnd> {
    if std::env::var_os(VARIABLE).is_none() {
        return back_end;
    }
    Box::new(Misbehaving {
        inner: back_end,
        flood: None,
    })
}

#[derive(Debug)]
struct Misbehaving {
    inner: Box<dyn BackEnd>,
    /// The frame of which there is no end.
    flood: Option<Vec<u8>>,
}

impl Misbehaving {
    fn obey(&mut self, fault: Fault, frame: Span, batch: &mut Inbound<'_>) {
        match fault {
            Fault::Loops => loop {
                std::hint::spin_loop();
            },
            Fault::Dies => std::process::abort(),
            Fault::LiesAboutLength => {
                let len = 1 << 30;
                batch.put(Span { len, ..frame });
            }
            Fault::CorruptsRings => batch.memory().write(0, &[0xff; 16 << 10]),
            Fault::Floods => {
                let mut bytes = vec![0; frame.len];
                batch.memory().read(frame.offset, &mut bytes);
                self.flood = Some(bytes);
            }
        }
    }
}

/// The fault that a frame asks for.
fn wanted(memory: &SharedMemory, frame: Span) -> Option<Fault> {
    let mut bytes = [0; ETHERTYPE_AT + ETHERTYPE.len() + NAME_LEN];
    if frame.len < bytes.len() {
        return None;
    }
    memory.read(frame.offset, &mut bytes);
    let (kind, name) = bytes[ETHERTYPE_AT..].split_at(ETHERTYPE.len());
    Fault::of_name(name).filter(|_| kind == ETHERTYPE)
}

impl BackEnd for Misbehaving {
    fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        self.inner.set_offloads(offloads)
    }

    fn takes(&self) -> Takes {
        self.inner.takes()
    }

    fn header_len(&self) -> usize {
        self.inner.header_len()
    }

    fn receive(&mut self, batch: &mut Inbound<'_>) -> io::Result<Left> {
        if let Some(frame) = &self.flood {
            while let Some(offset) = batch.place() {
                batch.memory().write(offset, frame);
                let len = frame.len();
                batch.put(Span { offset, len });
            }
            return Ok(Left::Perhaps);
        }
        let left = self.inner.receive(batch)?;
        let frame = batch.last.filter(|frame| frame.len <= super::RECEIVE_ROOM);
        if let Some((fault, frame)) = frame.and_then(|frame| Some((wanted(batch.memory(), frame)?, frame))) {
            self.obey(fault, frame, batch);
        }
        Ok(left)
    }

    fn send(&mut self, memory: &SharedMemory, frames: &Messages, first: usize) -> io::Result<Sent> {
        self.inner.send(memory, frames, first)
    }

    fn trouble(&self) -> String {
        self.inner.trouble()
    }
}

impl AsFd for Misbehaving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
