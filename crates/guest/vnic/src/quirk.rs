//! Messages that real front ends send and the `vhost` crate refuses.
//!
//! * User Mode Linux sends SET_MEM_TABLE with room for two regions whatever their number (`virtio_uml.c`,
//!   `vhost_user_set_mem_table`), where the crate wants the exact size.
//! * QEMU enables rings (SET_VRING_ENABLE) before it has sent SET_FEATURES, having only seen that protocol
//!   features are offered, where the crate wants them accepted.
//! * QEMU says the MTU that it gives its guest (NET_SET_MTU), which the crate does not know.
//!
//! A message of this kind is recognised by a look at the socket before the crate reads it, and taken from
//! there. The formats are the vhost-user specification's, "Front-end message types".

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::VhostUserMemoryRegion;

const SET_MEM_TABLE: u32 = 5;
const SET_VRING_ENABLE: u32 = 18;
const NET_SET_MTU: u32 = 20;
const HEADER: usize = 12;
/// Two 32-bit words: a ring state, or a memory table's beginning.
const WORDS: usize = 8;
const REGION: usize = 32;
/// The specification's limit, which is also the number of descriptors a message can carry.
const MAX_REGIONS: usize = 8;
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// A message that was taken from the socket.
pub(crate) struct Taken {
    pub message: Message,
    code: u32,
    need_reply: bool,
}

/// A message that is read here instead of by the `vhost` crate.
pub(crate) enum Message {
    MemoryTable {
        regions: Vec<VhostUserMemoryRegion>,
        files: Vec<File>,
    },
    EnableRing {
        index: u32,
        enable: bool,
    },
    SetMtu(u64),
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Waits for the next message, and takes it if it is one of those above. `early` is whether protocol features
/// have not been accepted yet.
pub(crate) fn take(stream: &mut UnixStream, early: bool) -> std::io::Result<Option<Taken>> {
    let mut start = [0u8; HEADER + WORDS];
    let (seen, _) = rustix::io::retry_on_intr(|| recv(&*stream, &mut start, RecvFlags::PEEK))?;
    if seen < start.len() {
        return Ok(None);
    }
    let (code, size) = (word(&start, 0), word(&start, 8) as usize);
    let regions = word(&start, HEADER) as usize;
    let long_table = code == SET_MEM_TABLE
        && (1..=MAX_REGIONS).contains(&regions)
        && size > WORDS + REGION * regions
        && size <= WORDS + REGION * MAX_REGIONS;
    let early_enable = code == SET_VRING_ENABLE && size == WORDS && early;
    let mtu = code == NET_SET_MTU && size == WORDS;
    if !long_table && !early_enable && !mtu {
        return Ok(None);
    }
    let files = skip_header(stream)?;
    let mut body = vec![0u8; size];
    stream.read_exact(&mut body)?;
    let message = if mtu {
        Message::SetMtu(long(&body, 0))
    } else if early_enable {
        Message::EnableRing {
            index: word(&body, 0),
            enable: word(&body, 4) != 0,
        }
    } else if files.len() == regions {
        Message::MemoryTable {
            regions: (0..regions).map(|index| region(&body, index)).collect(),
            files,
        }
    } else {
        return Err(Errno::PROTO.into());
    };
    Ok(Some(Taken {
        message,
        code,
        need_reply: word(&start, 4) & NEED_REPLY != 0,
    }))
}

fn region(body: &[u8], index: usize) -> VhostUserMemoryRegion {
    let at = WORDS + REGION * index;
    VhostUserMemoryRegion::new(
        long(body, at),
        long(body, at + 8),
        long(body, at + 16),
        long(body, at + 24),
    )
}

/// Reads a message's header, which is there; returns the descriptors attached to it.
fn skip_header(stream: &UnixStream) -> std::io::Result<Vec<File>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REGIONS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut header = [0u8; HEADER];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut control, flags)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights.map(File::from));
        }
    }
    if received.bytes == HEADER {
        Ok(files)
    } else {
        Err(Errno::PROTO.into())
    }
}

/// Replies whether a message was accepted, if the front end asked for a reply. (A front end that sets the
/// flag has negotiated REPLY_ACK.)
pub(crate) fn acknowledge(
    stream: &mut UnixStream,
    code: u32,
    need_reply: bool,
    ok: bool,
) -> std::io::Result<()> {
    if !need_reply {
        return Ok(());
    }
    let mut reply = Vec::with_capacity(HEADER + WORDS);
    for word in [code, VERSION | REPLY, WORDS as u32] {
        reply.extend_from_slice(&word.to_ne_bytes());
    }
    reply.extend_from_slice(&u64::from(!ok).to_ne_bytes());
    stream.write_all(&reply)
}

impl Taken {
    /// The message, and how to [`acknowledge`] it.
    pub(crate) fn split(self) -> (Message, u32, bool) {
        (self.message, self.code, self.need_reply)
    }
}
