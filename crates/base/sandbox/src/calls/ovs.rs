//! System calls of the process that answers Open vSwitch besides the common ones: Unix sockets of
//! ovs-vswitchd, its database and virtual machines; placeholders, which are TAPs (`/dev/net/tun` and its
//! requests) that netlink configures and watches. Landlock (`landlock.rs`) limits which files.

use super::Calls;
use super::Check::OneOf;
use super::Rule::{Always, If};
use super::{bits, request};

/// The mode of our sockets.
const SOCKET_MODES: super::Check = OneOf(1, &[0o600]);

/// Calls of every architecture.
pub(crate) const CALLS: Calls = &[
    (libc::SYS_socket, If(&[OneOf(0, &[bits(libc::AF_UNIX)])])),
    (
        libc::SYS_socket,
        If(&[
            OneOf(0, &[bits(libc::AF_NETLINK)]),
            OneOf(2, &[bits(libc::NETLINK_ROUTE)]),
        ]),
    ),
    (libc::SYS_socketpair, If(&[OneOf(0, &[bits(libc::AF_UNIX)])])),
    (libc::SYS_bind, Always), // of sockets of these kinds only
    (libc::SYS_listen, Always),
    (libc::SYS_connect, Always),
    (libc::SYS_accept4, Always),
    (libc::SYS_sendmmsg, Always), // many upcalls or answers at a time
    (libc::SYS_geteuid, Always),  // whose connections are taken
    (libc::SYS_fchmod, If(&[SOCKET_MODES])),
    (
        libc::SYS_ioctl,
        If(&[OneOf(
            1,
            &[
                request(libc::TUNSETIFF),
                request(libc::TUNSETPERSIST),
                request(libc::TUNSETCARRIER),
                request(libc::TUNSETVNETHDRSZ),
                request(libc::TUNSETVNETLE),
                request(libc::TIOCOUTQ), // upcalls that were not read
            ],
        )]),
    ),
    (
        libc::SYS_setsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_SOCKET)]),
            OneOf(
                2,
                &[
                    bits(libc::SO_SNDBUF),
                    bits(libc::SO_SNDBUFFORCE),
                    bits(libc::SO_RCVBUFFORCE),
                ],
            ),
        ]),
    ),
    (
        libc::SYS_setsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_NETLINK)]),
            OneOf(2, &[bits(libc::NETLINK_ADD_MEMBERSHIP)]),
        ]),
    ),
    (libc::SYS_openat, Always),
    (libc::SYS_newfstatat, Always),
    (libc::SYS_statx, Always),
    (libc::SYS_readlinkat, Always), // links on the way to a socket
    (libc::SYS_getegid, Always),    // whose directories are ours
    (libc::SYS_unlinkat, If(&[OneOf(2, &[0])])),
];

/// Older calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
pub(crate) const LEGACY: Calls = &[
    (libc::SYS_open, Always),
    (libc::SYS_stat, Always),
    (libc::SYS_lstat, Always),
    (libc::SYS_unlink, Always),
];

/// Older calls that newer architectures do not have.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const LEGACY: Calls = &[];
