//! The front end's side of vhost-user, message by message and without any checks, so that everything can be
//! said in any order.

use super::TIMEOUT;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_LOG_BASE: u32 = 6;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const GET_QUEUE_NUM: u32 = 17;
pub const SET_VRING_ENABLE: u32 = 18;
pub const NET_SET_MTU: u32 = 20;
pub const GET_CONFIG: u32 = 24;
pub const SET_CONFIG: u32 = 25;
pub const RESET_DEVICE: u32 = 34;
pub const GET_MAX_MEM_SLOTS: u32 = 36;
pub const ADD_MEM_REG: u32 = 37;
pub const REM_MEM_REG: u32 = 38;

pub const MQ: u64 = 1;
pub const REPLY_ACK: u64 = 1 << 3;
pub const CONFIG: u64 = 1 << 9;
pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
pub const PROTOCOL: u64 = MQ | REPLY_ACK | CONFIG | 1 << 13 | CONFIGURE_MEM_SLOTS;

const VERSION: u32 = 1;
const NEED_REPLY: u32 = 8;

/// What became of a message that wants a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Yes,
    No,
    /// The connection was closed instead.
    Closed,
}

/// One memory region of a message: guest address, size, front-end address, offset in the file.
#[derive(Clone, Copy, Debug)]
pub struct RegionSpec(pub u64, pub u64, pub u64, pub u64);

impl RegionSpec {
    fn words(&self) -> [u64; 4] {
        [self.0, self.1, self.2, self.3]
    }
}

#[derive(Debug)]
pub struct Session {
    pub stream: UnixStream,
}

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The payload of messages about a ring: index and number.
pub fn state(index: u32, number: u32) -> Vec<u8> {
    [index.to_le_bytes(), number.to_le_bytes()].concat()
}

impl Session {
    pub fn new(stream: UnixStream) -> Session {
        // A gate that was found costly twice, if only by a machine that took its core, pauses for up to 13 s.
        stream.set_read_timeout(Some(3 * TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        Session { stream }
    }

    /// Sends bytes as they are; false if the other side has closed.
    pub fn raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(128))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = sendmsg(
            &self.stream,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        sent.is_ok_and(|sent| sent == bytes.len())
    }

    pub fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).unwrap();
        let mut bytes = [request, flags, len].map(u32::to_le_bytes).concat();
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Sends a message and does not wait.
    pub fn tell(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.raw(&Self::message(request, VERSION, payload), fds)
    }

    /// The payload of the next message from the back end; `None` when it has closed.
    pub fn reply(&self) -> Option<Vec<u8>> {
        let mut header = [0; 12];
        let read = |bytes: &mut [u8]| match (&self.stream).read_exact(bytes) {
            Ok(()) => Some(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no reply in time"),
            Err(_) => None,
        };
        read(&mut header)?;
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        assert!(len <= 4096, "a reply of {len} bytes");
        let mut payload = vec![0; len];
        read(&mut payload)?;
        Some(payload)
    }

    fn number(payload: Option<Vec<u8>>) -> Option<u64> {
        Some(u64::from_le_bytes(payload?.get(..8)?.try_into().unwrap()))
    }

    /// Asks for a number.
    pub fn get(&self, request: u32) -> Option<u64> {
        self.tell(request, &[], &[]);
        Self::number(self.reply())
    }

    /// Sends a message and waits for the acknowledgement (which `REPLY_ACK` gives).
    pub fn say(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Said {
        self.raw(&Self::message(request, VERSION | NEED_REPLY, payload), fds);
        match Self::number(self.reply()) {
            Some(0) => Said::Yes,
            Some(_) => Said::No,
            None => Said::Closed,
        }
    }

    #[track_caller]
    pub fn must(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        assert_eq!(self.say(request, payload, fds), Said::Yes, "request {request}");
    }

    pub fn memory_table(regions: &[RegionSpec]) -> Vec<u8> {
        let mut payload = state(u32::try_from(regions.len()).unwrap(), 0);
        regions
            .iter()
            .for_each(|region| payload.extend(words(&region.words())));
        payload
    }

    pub fn set_memory(&self, regions: &[RegionSpec], files: &[impl AsFd]) -> Said {
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        self.say(SET_MEM_TABLE, &Self::memory_table(regions), &fds)
    }

    pub fn add_region(&self, region: RegionSpec, file: impl AsFd) -> Said {
        let payload = [words(&[0]), words(&region.words())].concat();
        self.say(ADD_MEM_REG, &payload, &[file.as_fd()])
    }

    pub fn remove_region(&self, region: RegionSpec) -> Said {
        let payload = [words(&[0]), words(&region.words())].concat();
        self.say(REM_MEM_REG, &payload, &[])
    }

    /// Stops a ring; its base, `None` if the connection was closed over it.
    pub fn stop(&self, index: u32) -> Option<u32> {
        self.tell(GET_VRING_BASE, &state(index, 0), &[]);
        let payload = self.reply()?;
        Some(u32::from_le_bytes(payload.get(4..8)?.try_into().unwrap()))
    }
}
