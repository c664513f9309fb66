//! What users send that is longer than a request may be: a memfd that nobody can change any more, and so
//! cannot hold up the control process while it reads.

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

/// The bytes of a sealed memfd, from its beginning, where the user left it. `None` if there is not exactly
/// one descriptor, it is not sealed, or it has more than `most` bytes.
pub fn read(fds: Vec<OwnedFd>, most: u64) -> Option<Vec<u8>> {
    let [fd] = <[OwnedFd; 1]>::try_from(fds).ok()?;
    let seals = fcntl_get_seals(&fd).ok()?;
    if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK) {
        return None;
    }
    let len = u64::try_from(fstat(&fd).ok()?.st_size).ok()?;
    let len = usize::try_from(Some(len).filter(|len| *len <= most)?).ok()?;
    let mut bytes = vec![0; len];
    File::from(fd).read_exact(&mut bytes).ok()?;
    Some(bytes)
}
