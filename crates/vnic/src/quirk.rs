//! One message that a real front end sends and the `vhost` crate refuses.
//!
//! User Mode Linux sends SET_MEM_TABLE with room for two regions whatever their number (`virtio_uml.c`,
//! `vhost_user_set_mem_table`), where the crate wants the exact size. Such a message is recognised by a look at
//! the socket before the crate reads it, and taken from there. The format is the vhost-user specification's,
//! "Front-end message types", "Multiple memory regions description".

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::VhostUserMemoryRegion;

const SET_MEM_TABLE: u32 = 5;
const HEADER: usize = 12;
const TABLE_HEAD: usize = 8;
const REGION: usize = 32;
/// The specification's limit, which is also the number of descriptors a message can carry.
const MAX_REGIONS: usize = 8;
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// A memory table that was taken from the socket.
pub(crate) struct LongTable {
    pub regions: Vec<VhostUserMemoryRegion>,
    pub files: Vec<File>,
    need_reply: bool,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Waits for the next message. If it is a memory table with room left over, takes it.
pub(crate) fn take_long_table(stream: &mut UnixStream) -> std::io::Result<Option<LongTable>> {
    let mut start = [0u8; HEADER + TABLE_HEAD];
    let (seen, _) = rustix::io::retry_on_intr(|| recv(&*stream, &mut start, RecvFlags::PEEK))?;
    let (code, size) = (word(&start, 0), word(&start, 8) as usize);
    let regions = word(&start, HEADER) as usize;
    let recognised = seen == start.len()
        && code == SET_MEM_TABLE
        && (1..=MAX_REGIONS).contains(&regions)
        && size > TABLE_HEAD + REGION * regions
        && size <= TABLE_HEAD + REGION * MAX_REGIONS;
    if !recognised {
        return Ok(None);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REGIONS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let mut header = [0u8; HEADER];
    let received = recvmsg(&*stream, &mut [IoSliceMut::new(&mut header)], &mut control, flags)?;
    if received.bytes != HEADER {
        return Err(Errno::PROTO.into());
    }
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights.map(File::from));
        }
    }
    let mut body = vec![0u8; size];
    stream.read_exact(&mut body)?;
    if files.len() != regions {
        return Err(Errno::PROTO.into());
    }
    let regions = (0..regions).map(|index| {
        let at = TABLE_HEAD + REGION * index;
        VhostUserMemoryRegion::new(
            long(&body, at),
            long(&body, at + 8),
            long(&body, at + 16),
            long(&body, at + 24),
        )
    });
    Ok(Some(LongTable {
        regions: regions.collect(),
        files,
        need_reply: word(&header, 4) & NEED_REPLY != 0,
    }))
}

/// Tells the front end how its table was received, if it wants to know. (Whoever sets the flag has negotiated
/// REPLY_ACK.)
pub(crate) fn acknowledge(stream: &mut UnixStream, need_reply: bool, ok: bool) -> std::io::Result<()> {
    if !need_reply {
        return Ok(());
    }
    let mut reply = Vec::with_capacity(HEADER + 8);
    for word in [SET_MEM_TABLE, VERSION | REPLY, 8] {
        reply.extend_from_slice(&word.to_ne_bytes());
    }
    reply.extend_from_slice(&u64::from(!ok).to_ne_bytes());
    stream.write_all(&reply)
}

impl LongTable {
    /// What to pass to [`acknowledge`].
    pub(crate) fn need_reply(&self) -> bool {
        self.need_reply
    }
}
