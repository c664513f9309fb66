//! A go-between for vhost-user connections that hides feature bits from the guest.
//!
//! User Mode Linux hands every bit that a switch offers to its driver, also those that its own half of the
//! device does not serve (the control queue, packed rings), and then hangs. Our switch offers nothing that it
//! needs somebody else for; DPDK's vhost library leaves the choice to the VMM. So the answer to
//! `GET_FEATURES` loses those bits here, and everything else passes as it is, descriptors included: rings,
//! kicks and calls are between guest and switch, and no packet comes this way (vhost-user protocol of QEMU,
//! `docs/interop/vhost-user.rst`).

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use tempfile::TempDir;

/// Request, flags and size of the payload, 32 bits each.
const HEADER_LEN: usize = 12;
/// No message is longer.
const PAYLOAD_LIMIT: usize = 4096;
/// Descriptors per message at most: as many as memory regions (VHOST_USER_MAX_RAM_SLOTS is 8 without the
/// extension).
const DESCRIPTORS: usize = 8;
const GET_FEATURES: u32 = 1;

/// The bits that User Mode Linux cannot serve: control queue and what hangs on it (17 to 19, 21 to 23),
/// packed rings (34), in-order use (35).
const UNSERVED: u64 = 0b1110_1110 << 16 | 0b11 << 34;

/// A socket in front of a switch's, removed with its handle. Connections end with either side.
#[derive(Debug)]
pub struct MaskingProxy {
    directory: TempDir,
}

impl MaskingProxy {
    /// Listens in front of the socket `switch`.
    pub fn start(switch: &Path) -> Result<MaskingProxy> {
        let directory = tempfile::Builder::new().prefix("hs-mask-").tempdir()?;
        let proxy = MaskingProxy { directory };
        let listener = UnixListener::bind(proxy.socket()).context("cannot listen")?;
        let switch = switch.to_owned();
        thread::spawn(move || {
            for guest in listener.incoming().flatten() {
                if let Err(error) = join(guest, &switch) {
                    eprintln!("{}: {error:#}", switch.display());
                }
            }
        });
        Ok(proxy)
    }

    /// Where the guest connects.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("guest.sock")
    }
}

/// Starts passing messages between a guest and the switch.
fn join(guest: UnixStream, switch: &Path) -> Result<()> {
    let switch = UnixStream::connect(switch)?;
    let halves = [
        (guest.try_clone()?, switch.try_clone()?, 0),
        (switch, guest, UNSERVED),
    ];
    for (from, to, hidden) in halves {
        thread::spawn(move || {
            // The end of either side is the end of both.
            let _ = pass_all(&from, &to, hidden);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

fn pass_all(from: &UnixStream, to: &UnixStream, hidden: u64) -> Result<()> {
    while let Some((mut message, descriptors)) = read_message(from)? {
        hide(&mut message, hidden);
        write_message(to, &message, &descriptors)?;
    }
    Ok(())
}

/// Takes bits out of a `GET_FEATURES` message that has a payload, which only the answer does.
fn hide(message: &mut [u8], hidden: u64) {
    if message[..4] == GET_FEATURES.to_le_bytes()
        && let Some(payload) = message.get_mut(HEADER_LEN..HEADER_LEN + 8)
    {
        for (byte, mask) in payload.iter_mut().zip(hidden.to_le_bytes()) {
            *byte &= !mask;
        }
    }
}

/// The next message with its descriptors, which come with its first byte; `None` at the end.
fn read_message(mut from: &UnixStream) -> Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut message = vec![0; HEADER_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut buffers = [IoSliceMut::new(&mut message)];
        match recvmsg(from, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    if received == 0 {
        return Ok(None);
    }
    let mut descriptors = Vec::new();
    for content in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = content {
            descriptors.extend(rights);
        }
    }
    from.read_exact(&mut message[received..])?;
    let size = u32::from_le_bytes([message[8], message[9], message[10], message[11]]);
    let size = usize::try_from(size)?;
    anyhow::ensure!(size <= PAYLOAD_LIMIT, "a message of {size} bytes");
    message.resize(HEADER_LEN + size, 0);
    from.read_exact(&mut message[HEADER_LEN..])?;
    Ok(Some((message, descriptors)))
}

fn write_message(to: &UnixStream, message: &[u8], descriptors: &[OwnedFd]) -> Result<()> {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        anyhow::ensure!(
            control.push(SendAncillaryMessage::ScmRights(&descriptors)),
            "too many descriptors"
        );
    }
    // A stream takes a message of this size whole.
    sendmsg(to, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Seek, Write};

    fn message(request: u32, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).expect("short");
        [
            &request.to_le_bytes()[..],
            &5_u32.to_le_bytes(),
            &size.to_le_bytes(),
            payload,
        ]
        .concat()
    }

    #[test]
    fn only_the_answer_about_features_is_changed() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("switch.sock");
        let listener = UnixListener::bind(&path).expect("listens");
        let proxy = MaskingProxy::start(&path).expect("starts");
        let guest = UnixStream::connect(proxy.socket()).expect("connects");
        let (switch, _) = listener.accept().expect("accepts");

        // A message with a descriptor arrives as it was, with the same file.
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(b"memory").expect("writes");
        let table = message(5, &[7; 40]);
        write_message(&guest, &table, &[file.into()]).expect("sends");
        let (arrived, mut descriptors) = read_message(&switch).expect("reads").expect("not the end");
        assert_eq!(arrived, table);
        let mut file = File::from(descriptors.pop().expect("one descriptor"));
        file.rewind().expect("seeks");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("reads");
        assert_eq!(text, "memory");

        // Of the answers, only that about features loses bits.
        for (request, expected) in [(1, !UNSERVED), (15, u64::MAX)] {
            write_message(&switch, &message(request, &[0xff; 8]), &[]).expect("sends");
            let (arrived, _) = read_message(&guest).expect("reads").expect("not the end");
            assert_eq!(arrived, message(request, &expected.to_le_bytes()));
        }

        drop(switch);
        assert!(
            read_message(&guest).expect("reads").is_none(),
            "the end is passed on"
        );
    }

    #[test]
    fn the_bits_are_those_of_the_specification() {
        let bits: Vec<u32> = (0..64).filter(|bit| UNSERVED >> bit & 1 == 1).collect();
        assert_eq!(bits, [17, 18, 19, 21, 22, 23, 34, 35]);
    }
}
