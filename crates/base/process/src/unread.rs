//! What the peer of a Unix socket has not read yet.

use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// Bytes that the kernel holds of messages which were sent through a Unix socket and not received yet, its
/// own records about them included (`SIOCOUTQ`).
///
/// # Errors
///
/// The descriptor is no such socket.
pub fn unread(socket: impl AsFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the call writes one integer to where the pointer leads.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn what_was_read_is_not_counted() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        assert_eq!(unread(&ours).unwrap(), 0);
        ours.send(&[1; 3000]).unwrap();
        ours.send(&[2; 3000]).unwrap();
        let both = unread(&ours).unwrap();
        assert!(both >= 6000, "{both}");
        theirs.recv(&mut [0; 3000]).unwrap();
        let one = unread(&ours).unwrap();
        assert!(one >= 3000 && one < both, "{one}");
        theirs.recv(&mut [0; 3000]).unwrap();
        assert_eq!(unread(&ours).unwrap(), 0);
        assert!(unread(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
