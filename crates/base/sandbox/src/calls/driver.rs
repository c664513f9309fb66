//! System calls of the broker of the driver domain besides the common ones: TAPs (`/dev/net/tun` and its
//! requests), packet sockets, netlink to configure interfaces, network namespaces to do so in, and links that
//! attach a program which the supervisor has loaded.

use super::Check::{Bits, OneOf};
use super::Rule::{Always, Errno, If};
use super::{Calls, bits, request};

/// Flags that make or change files, of which none may be set.
const EXISTING: u32 = bits(libc::O_CREAT | libc::O_TRUNC | O_TMPFILE);
/// The bit of its own; `libc::O_TMPFILE` includes O_DIRECTORY.
const O_TMPFILE: libc::c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// The request for the network namespace of a TAP's device (`linux/if_tun.h`).
const TUNGETDEVNETNS: u32 = 0x54e3;

// Commands of `linux/bpf.h`.
const BPF_MAP_UPDATE_ELEM: u32 = 2;
const BPF_LINK_CREATE: u32 = 28;
const BPF_LINK_DETACH: u32 = 34;

/// The request for the speed of a device, and for other settings (`linux/sockios.h`).
const SIOCETHTOOL: u32 = 0x8946;

/// Calls of every architecture.
pub(crate) const CALLS: Calls = &[
    (libc::SYS_readlinkat, Errno(libc::EACCES)), // of the standard library in a panic
    (libc::SYS_openat, If(&[Bits(2, EXISTING, 0)])),
    (libc::SYS_statx, Errno(libc::ENOSYS)), // the standard library falls back to fstat()
    (
        libc::SYS_ioctl,
        If(&[OneOf(
            1,
            &[
                request(libc::TUNSETIFF),
                request(libc::TUNSETIFINDEX),
                request(libc::TUNSETPERSIST),
                request(libc::TUNGETIFF),
                request(libc::TUNSETVNETHDRSZ),
                request(libc::TUNSETVNETLE),
                TUNGETDEVNETNS,
                SIOCETHTOOL,
            ],
        )]),
    ),
    (
        libc::SYS_socket,
        If(&[
            OneOf(0, &[bits(libc::AF_NETLINK)]),
            OneOf(2, &[bits(libc::NETLINK_ROUTE)]),
        ]),
    ),
    (
        libc::SYS_socket,
        If(&[OneOf(0, &[bits(libc::AF_PACKET), bits(libc::AF_XDP)])]),
    ),
    (libc::SYS_bind, Always), // of sockets of these kinds only: no path, no port
    (
        libc::SYS_setsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_PACKET)]),
            OneOf(
                2,
                &[
                    bits(libc::PACKET_ADD_MEMBERSHIP),
                    bits(libc::PACKET_AUXDATA),
                    bits(libc::PACKET_VNET_HDR),
                    bits(libc::PACKET_IGNORE_OUTGOING),
                    bits(libc::PACKET_VNET_HDR_SZ),
                    bits(libc::PACKET_VERSION),
                    bits(libc::PACKET_COPY_THRESH),
                    bits(libc::PACKET_RX_RING),
                    bits(libc::PACKET_FANOUT),
                    bits(libc::PACKET_FANOUT_DATA),
                ],
            ),
        ]),
    ),
    (
        libc::SYS_setsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_SOCKET)]),
            OneOf(
                2,
                &[
                    bits(libc::SO_RCVBUFFORCE),
                    bits(libc::SO_SNDBUFFORCE),
                    // Of a program that came with a message, or one that lets nothing pass.
                    bits(libc::SO_ATTACH_BPF),
                    bits(libc::SO_ATTACH_FILTER),
                ],
            ),
        ]),
    ),
    // Memory and rings of AF_XDP sockets.
    (libc::SYS_memfd_create, Always),
    (libc::SYS_fcntl, If(&[OneOf(1, &[bits(libc::F_ADD_SEALS)])])),
    (
        libc::SYS_setsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_XDP)]),
            OneOf(
                2,
                &[
                    bits(libc::XDP_UMEM_REG),
                    bits(libc::XDP_UMEM_FILL_RING),
                    bits(libc::XDP_UMEM_COMPLETION_RING),
                    bits(libc::XDP_RX_RING),
                    bits(libc::XDP_TX_RING),
                ],
            ),
        ]),
    ),
    (
        libc::SYS_getsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_XDP)]),
            OneOf(2, &[bits(libc::XDP_OPTIONS), bits(libc::XDP_STATISTICS)]),
        ]),
    ),
    // Frames that found no room, and the group of a socket.
    (
        libc::SYS_getsockopt,
        If(&[
            OneOf(1, &[bits(libc::SOL_PACKET)]),
            OneOf(2, &[bits(libc::PACKET_STATISTICS), bits(libc::PACKET_FANOUT)]),
        ]),
    ),
    // No maps and no programs: of these there are only those that came with a message. Into the map go
    // sockets.
    (
        libc::SYS_bpf,
        If(&[OneOf(0, &[BPF_MAP_UPDATE_ELEM, BPF_LINK_CREATE, BPF_LINK_DETACH])]),
    ),
    (libc::SYS_setns, If(&[OneOf(1, &[bits(libc::CLONE_NEWNET)])])),
];

/// Older calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
pub(crate) const LEGACY: Calls = &[(libc::SYS_open, If(&[Bits(1, EXISTING, 0)]))];

/// Older calls that newer architectures do not have.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const LEGACY: Calls = &[];
