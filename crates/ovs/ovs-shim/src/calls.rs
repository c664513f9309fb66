//! The functions of the C library that this library puts itself in front of.
//!
//! Each asks whether the descriptor concerns this library, and calls the C library's function if not.

use crate::table::{self, Kind};
use crate::{database, glue, probe, queues};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The bits of a socket's kind that are no flags (`SOCK_TYPE_MASK` of the kernel).
const SOCKET_KINDS: c_int = 0xf;

/// Defines functions under the C library's names, and the C library's own in the module `real`. If the
/// descriptor concerns us, the body is asked first; `None` says that the C library's is to be called. All
/// bodies are `unsafe`: the caller keeps the contract of the C library's function.
macro_rules! functions {
    ($(#[$mode:ident] $name:ident($fd:ident: c_int $(, $argument:ident: $kind:ty)*) -> $result:ty |$concerned:ident| $body:block)*) => {
        /// The C library's functions. Each has the contract of its manual page.
        pub mod real {
            use super::*;
            $(pub unsafe fn $name($fd: c_int $(, $argument: $kind)*) -> $result {
                static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                let address = find(&ADDRESS, concat!(stringify!($name), "\0"));
                // SAFETY: the C library's function of this name has this signature (its manual page).
                // Variadic ones take integers and pointers as others do, on the processors and systems this
                // is built for.
                let function: unsafe extern "C" fn(c_int $(, $kind)*) -> $result = unsafe { std::mem::transmute(address) };
                // SAFETY: the caller keeps the contract.
                unsafe { function($fd $(, $argument)*) }
            })*
        }
        $(#[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name($fd: c_int $(, $argument: $kind)*) -> $result {
            functions!(@$mode $concerned = $fd, {
                // SAFETY: the caller keeps the contract of the C library's function.
                unsafe { real::$name($fd $(, $argument)*) }
            }, $body)
        })*
    };
    // Asked if the descriptor concerns us.
    (@ask $concerned:ident = $fd:ident, $real:block, $body:block) => {
        if let Some($concerned) = table::find($fd) && let Some(result) = $body { result } else { $real }
    };
    // Asked in any case, with what calls the C library's function.
    (@always $call:ident = $fd:ident, $real:block, $body:block) => {{
        let $call = || $real;
        $body
    }};
}

functions! {
    #[always]
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int |call| {
        let netlink = domain == libc::AF_NETLINK;
        if netlink && matches!(protocol, libc::NETLINK_GENERIC | libc::NETLINK_NETFILTER) {
            return glue::open(kind, protocol);
        }
        let socket = call();
        let is_stream = domain == libc::AF_UNIX && kind & SOCKET_KINDS == libc::SOCK_STREAM;
        if netlink && protocol == libc::NETLINK_ROUTE && socket >= 0 {
            table::add_route(socket);
        } else if is_stream && socket >= 0 {
            table::add_stream(socket);
        } else {
            table::forget(socket);
        }
        socket
    }

    #[always]
    close(fd: c_int) -> c_int |call| {
        table::forget(fd);
        call()
    }

    // A redirected socket is connected to the one peer that there is. It needs no `bind`: the kernel refuses
    // one.
    #[ask]
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int |kind| { kind.socket().map(|_| 0) }

    // The netlink port id that the glue has assigned.
    #[ask]
    getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int |kind| {
        kind.socket().map(|socket| {
            // SAFETY: the caller promised a length, and room for so many bytes.
            unsafe { *length = glue::write_address(socket.port_id(), address.cast(), *length) };
            0
        })
    }

    // Multicast groups go to the glue. Netlink's other options are accepted: they change nothing here.
    #[ask]
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int |kind| {
        kind.socket().filter(|_| level == libc::SOL_NETLINK).map(|socket| {
            if (length as usize) < size_of::<u32>() {
                return glue::fail(libc::EINVAL);
            }
            // SAFETY: the caller promised `length` bytes, which are enough.
            let group = unsafe { value.cast::<u32>().read_unaligned() };
            match name {
                libc::NETLINK_ADD_MEMBERSHIP => glue::change_group(socket, ovs_frame::JOIN, group),
                libc::NETLINK_DROP_MEMBERSHIP => glue::change_group(socket, ovs_frame::LEAVE, group),
                _ => 0,
            }
        })
    }

    #[ask]
    send(fd: c_int, data: *const c_void, length: size_t, flags: c_int) -> ssize_t |kind| {
        // SAFETY: the caller promised the data.
        unsafe { send_parts(kind, fd, &part(data, length), 1, flags) }
    }

    #[ask]
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t |kind| {
        // SAFETY: the caller promised a message and what it points to.
        unsafe { send_parts(kind, fd, (*message).msg_iov, (*message).msg_iovlen, flags) }
    }

    #[ask]
    recv(fd: c_int, data: *mut c_void, length: size_t, flags: c_int) -> ssize_t |kind| {
        let mut part = part(data, length);
        match kind {
            // SAFETY: the caller promised the room.
            Kind::Glue(socket) => Some(unsafe { glue::receive(fd, socket, &mut message(&mut part), flags) }),
            // ovs-vswitchd's own connection to the database is read without flags (`fd_recv`).
            Kind::Stream(socket) if flags == 0 && length > 0 => {
                // SAFETY: the caller promised the room; whatever was in it, bytes are plain data.
                let room = unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), length) };
                // SAFETY: pointer and length describe a slice.
                let read = |part: &mut [u8]| unsafe { real::recv(fd, part.as_mut_ptr().cast(), part.len(), 0) };
                Some(database::receive(&socket.stream, room, read, || table::forget(fd)))
            }
            Kind::Stream(_) | Kind::Route => None,
        }
    }

    #[ask]
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t |kind| {
        match kind {
            // SAFETY: the caller promised a message and what it points to.
            Kind::Glue(socket) => Some(unsafe { glue::receive(fd, socket, &mut *message, flags) }),
            Kind::Route => {
                // SAFETY: the caller keeps the contract.
                let received = unsafe { real::recvmsg(fd, message, flags) };
                if received > 0 {
                    // SAFETY: the caller promised a message and its parts, which the kernel has filled in;
                    // with `MSG_TRUNC` it may have said more bytes than there is room for, and no part is
                    // used beyond its length.
                    unsafe { queues::replace((*message).msg_iov, (*message).msg_iovlen, received.cast_unsigned()) };
                }
                Some(received)
            }
            Kind::Stream(_) => None,
        }
    }
}

/// Looks a function of the C library up, once. `name` ends with a zero byte.
fn find(address: &AtomicPtr<c_void>, name: &'static str) -> *mut c_void {
    let known = address.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is a string that ends with a zero byte, as the macro wrote it.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
    if found.is_null() {
        glue::end("the C library lacks a function");
    }
    address.store(found, Ordering::Relaxed);
    found
}

/// Sends a datagram to the glue, or what stands for the probe to the kernel. The caller promises parts and
/// what they describe.
unsafe fn send_parts(
    kind: Kind,
    fd: c_int,
    parts: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<ssize_t> {
    if let Kind::Glue(socket) = kind {
        // SAFETY: the caller promised the parts.
        return Some(unsafe { glue::submit(fd, socket, parts, count, flags) });
    }
    if count != 1 || matches!(kind, Kind::Stream(_)) {
        return None;
    }
    // SAFETY: the caller promised one part, and what it describes. An empty one may have any address.
    let datagram = unsafe {
        let iovec { iov_base, iov_len } = *parts;
        let start = if iov_len == 0 {
            std::ptr::dangling()
        } else {
            iov_base.cast::<u8>()
        };
        std::slice::from_raw_parts(start, iov_len)
    };
    let instead = probe::replacement(datagram)?;
    // SAFETY: pointer and length describe a local variable.
    let sent = unsafe { real::send(fd, instead.as_ptr().cast(), instead.len(), flags) };
    Some(if sent < 0 {
        sent
    } else {
        datagram.len().cast_signed()
    })
}

fn part(data: *const c_void, length: size_t) -> iovec {
    iovec {
        iov_base: data.cast_mut(),
        iov_len: length,
    }
}

/// A message of one part, to be used while that lives.
fn message(part: &mut iovec) -> msghdr {
    // SAFETY: `msghdr` is plain data for which zeros are valid.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (part, 1);
    message
}
