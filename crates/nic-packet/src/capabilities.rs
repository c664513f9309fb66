//! Giving privileges up (`capabilities(7)`).

use std::io;

/// `linux/capability.h`.
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Reduces the calling thread, and the threads it starts from now on, to what opening and configuring network
/// interfaces takes: CAP_NET_ADMIN, CAP_NET_RAW and, to enter network namespaces, CAP_SYS_ADMIN, as far as it
/// has them; and CAP_SYS_NICE if asked for, to raise its own threads. Nothing it executes can ever have more. To be called before other threads are started.
pub fn keep_network_capabilities(nice: bool) -> io::Result<()> {
    // SAFETY: PR_SET_NO_NEW_PRIVS takes no pointers; unused arguments must be zero.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let mut sets = [Sets::default(); 2];
    // SAFETY: version 3 reads one header and writes two sets, all of which are live and laid out as in C.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let nice = if nice { 1 << CAP_SYS_NICE } else { 0 };
    let keep = 1 << CAP_NET_ADMIN | 1 << CAP_NET_RAW | 1 << CAP_SYS_ADMIN | nice;
    let permitted = sets[0].permitted & keep;
    let kept = [
        Sets {
            effective: permitted,
            permitted,
            inheritable: 0,
        },
        Sets::default(),
    ];
    // SAFETY: as above; version 3 reads two sets.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, kept.as_ptr()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_network_capabilities_is_left() {
        // On a thread of its own, for capabilities belong to threads.
        let status = std::thread::spawn(|| {
            keep_network_capabilities(false).unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        let status = status.join().unwrap();
        let value = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
        };
        let keep = 1 << CAP_NET_ADMIN | 1 << CAP_NET_RAW | 1 << CAP_SYS_ADMIN;
        assert_eq!(value("CapEff:") & !keep, 0);
        assert_eq!(value("CapPrm:") & !keep, 0);
        assert_eq!(value("NoNewPrivs:"), 1);
    }
}
