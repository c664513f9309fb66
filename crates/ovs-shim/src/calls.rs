//! The functions of the C library that this library puts itself in front of.
//!
//! Each asks whether the descriptor concerns this library, and calls the C library's function if not.

use crate::table::{self, Kind};
use crate::{glue, probe};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Defines functions that call the C library's of the same name.
macro_rules! real {
    ($($name:ident(fd: c_int $(, $argument:ident: $kind:ty)*) -> $result:ty;)*) => {
        /// The C library's functions. Each has the contract of its manual page.
        pub mod real {
            use super::*;
            $(pub unsafe fn $name(fd: c_int $(, $argument: $kind)*) -> $result {
                static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                let address = find(&ADDRESS, concat!(stringify!($name), "\0"));
                // SAFETY: the C library's function of this name has this signature (its manual page). Variadic ones
                // take integers and pointers as others do, on the processors and systems this is built for.
                let function: unsafe extern "C" fn(c_int $(, $kind)*) -> $result = unsafe { std::mem::transmute(address) };
                // SAFETY: the caller keeps the contract.
                unsafe { function(fd $(, $argument)*) }
            })*
        }
    };
}

/// Defines functions under the C library's names. If the descriptor concerns us, the function after `=>` is asked first;
/// `None` says that the C library's is to be called.
macro_rules! intercepted {
    ($($name:ident(fd: c_int $(, $argument:ident: $kind:ty)*) -> $result:ty => $first:ident;)*) => {
        real! { $($name(fd: c_int $(, $argument: $kind)*) -> $result;)*
            socket(fd: c_int, kind: c_int, protocol: c_int) -> c_int;
            close(fd: c_int) -> c_int;
            dup(fd: c_int) -> c_int;
            dup2(fd: c_int, to: c_int) -> c_int;
            dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
            fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
            fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
        }
        $(#[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(fd: c_int $(, $argument: $kind)*) -> $result {
            if let Some(kind) = table::find(fd)
                // SAFETY: the caller keeps the contract of the C library's function.
                && let Some(result) = unsafe { $first(kind, fd $(, $argument)*) }
            {
                return result;
            }
            // SAFETY: as above.
            unsafe { real::$name(fd $(, $argument)*) }
        })*
    };
}

intercepted! {
    bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int => first_bind;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int => first_connect;
    getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int => first_getsockname;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int => first_setsockopt;
    send(fd: c_int, data: *const c_void, length: size_t, flags: c_int) -> ssize_t => first_send;
    sendto(fd: c_int, data: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t) -> ssize_t => first_sendto;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t => first_sendmsg;
    recv(fd: c_int, data: *mut c_void, length: size_t, flags: c_int) -> ssize_t => first_recv;
    recvfrom(fd: c_int, data: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t) -> ssize_t => first_recvfrom;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t => first_recvmsg;
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

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let netlink = domain == libc::AF_NETLINK;
    if netlink && matches!(protocol, libc::NETLINK_GENERIC | libc::NETLINK_NETFILTER) {
        return glue::open(kind, protocol);
    }
    // SAFETY: plain integers.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if netlink && protocol == libc::NETLINK_ROUTE && fd >= 0 {
        table::add_route(fd);
    } else {
        table::forget(fd);
    }
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn close(fd: c_int) -> c_int {
    table::forget(fd);
    // SAFETY: closing is up to the caller, who owns the descriptor.
    unsafe { real::close(fd) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: plain integers.
    copied(fd, unsafe { real::dup(fd) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: what is replaced is up to the caller.
    copied(fd, unsafe { real::dup2(fd, to) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: what is replaced is up to the caller.
    copied(fd, unsafe { real::dup3(fd, to, flags) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller keeps the contract.
    duplicated(fd, command, unsafe { real::fcntl(fd, command, argument) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller keeps the contract.
    duplicated(fd, command, unsafe { real::fcntl64(fd, command, argument) })
}

fn duplicated(fd: c_int, command: c_int, result: c_int) -> c_int {
    let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if duplicates { copied(fd, result) } else { result }
}

fn copied(fd: c_int, copy: c_int) -> c_int {
    if copy >= 0 {
        table::copy(fd, copy);
    }
    copy
}

/// A redirected socket has its address already. Groups are joined one by one.
unsafe fn first_bind(kind: Kind, _: c_int, address: *const sockaddr, length: socklen_t) -> Option<c_int> {
    let Kind::Glue(socket) = kind else { return None };
    // SAFETY: the caller promised `length` bytes.
    Some(match unsafe { netlink_address(address, length) } {
        Some(wanted) if wanted.nl_groups != 0 => glue::fail(libc::EOPNOTSUPP),
        Some(wanted) if wanted.nl_pid == 0 || wanted.nl_pid == socket.port_id() => 0,
        _ => glue::fail(libc::EINVAL),
    })
}

/// A redirected socket is connected to the one peer that there is.
unsafe fn first_connect(kind: Kind, _: c_int, address: *const sockaddr, length: socklen_t) -> Option<c_int> {
    let Kind::Glue(_) = kind else { return None };
    // SAFETY: the caller promised `length` bytes.
    Some(match unsafe { netlink_address(address, length) } {
        Some(wanted) if wanted.nl_pid == 0 => 0,
        _ => glue::fail(libc::EINVAL),
    })
}

/// The netlink port id that the glue has assigned.
unsafe fn first_getsockname(
    kind: Kind,
    _: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> Option<c_int> {
    let Kind::Glue(socket) = kind else { return None };
    // SAFETY: the caller promised a length, and room for so many bytes.
    unsafe { *length = glue::write_address(socket.port_id(), address.cast(), *length) };
    Some(0)
}

/// Multicast groups go to the glue. Netlink's other options are accepted: they change nothing here.
unsafe fn first_setsockopt(
    kind: Kind,
    _: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Option<c_int> {
    let Kind::Glue(socket) = kind else { return None };
    if level != libc::SOL_NETLINK {
        return None;
    }
    if (length as usize) < size_of::<u32>() {
        return Some(glue::fail(libc::EINVAL));
    }
    // SAFETY: the caller promised `length` bytes, which are enough.
    let group = unsafe { value.cast::<u32>().read_unaligned() };
    Some(match name {
        libc::NETLINK_ADD_MEMBERSHIP => glue::change_group(socket, ovs_frame::JOIN, group),
        libc::NETLINK_DROP_MEMBERSHIP => glue::change_group(socket, ovs_frame::LEAVE, group),
        _ => 0,
    })
}

unsafe fn first_send(
    kind: Kind,
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    let part = part(data, length);
    // SAFETY: the caller promised the data.
    unsafe { first_parts(kind, fd, &raw const part, 1, flags) }
}

/// The address does not matter: there is one peer.
unsafe fn first_sendto(
    kind: Kind,
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
    _: *const sockaddr,
    _: socklen_t,
) -> Option<ssize_t> {
    // SAFETY: the caller promised the data.
    unsafe { first_send(kind, fd, data, length, flags) }
}

unsafe fn first_sendmsg(kind: Kind, fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    // SAFETY: the caller promised a message and what it points to.
    unsafe {
        first_parts(
            kind,
            fd,
            (*message).msg_iov,
            (*message).msg_iovlen as usize,
            flags,
        )
    }
}

/// Sends a datagram to the glue, or what stands for the probe to the kernel.
unsafe fn first_parts(
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
    if count != 1 {
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

unsafe fn first_recv(
    kind: Kind,
    fd: c_int,
    data: *mut c_void,
    length: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    // SAFETY: the caller promised the room; no address is wanted.
    unsafe { first_recvfrom(kind, fd, data, length, flags, null_mut(), null_mut()) }
}

unsafe fn first_recvfrom(
    kind: Kind,
    fd: c_int,
    data: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> Option<ssize_t> {
    let mut part = part(data, length);
    // SAFETY: `msghdr` is plain data for which zeros are valid; the caller promised data and address.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        if !from.is_null() {
            (message.msg_name, message.msg_namelen) = (from.cast(), *from_length);
        }
        let received = first_recvmsg(kind, fd, &raw mut message, flags)?;
        if received >= 0 && !from.is_null() {
            *from_length = message.msg_namelen;
        }
        Some(received)
    }
}

unsafe fn first_recvmsg(kind: Kind, fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    let Kind::Glue(socket) = kind else { return None };
    // SAFETY: the caller promised a message and what it points to.
    Some(unsafe { glue::receive(fd, socket, &mut *message, flags) })
}

fn part(data: *const c_void, length: size_t) -> iovec {
    iovec {
        iov_base: data.cast_mut(),
        iov_len: length,
    }
}

/// The address, if it is one of a netlink socket. `address` must point to `length` readable bytes.
unsafe fn netlink_address(address: *const sockaddr, length: socklen_t) -> Option<sockaddr_nl> {
    if address.is_null() || (length as usize) < size_of::<sockaddr_nl>() {
        return None;
    }
    // SAFETY: there are enough bytes, of plain data for which all values are valid.
    let address = unsafe { address.cast::<sockaddr_nl>().read_unaligned() };
    (c_int::from(address.nl_family) == libc::AF_NETLINK).then_some(address)
}
