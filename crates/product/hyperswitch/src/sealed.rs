//! Memory for a running instance, which is sent along with a request.

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;

/// Bytes that nobody can change any more.
///
/// # Errors
/// There is no memory for them.
pub fn sealed(bytes: &[u8]) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("hyperswitch", flags).context("no memfd")?);
    file.write_all(bytes).context("it does not fit into memory")?;
    file.rewind().context("a memfd has no beginning")?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).context("a memfd cannot be sealed")?;
    Ok(file.into())
}
