//! Redirected sockets: how they are opened, written, and read.

use crate::calls::real;
use crate::table::{self, Socket};
use crate::upcalls::Garbage;
use libc::{c_int, c_void, iovec, msghdr, sockaddr_nl, socklen_t, ssize_t};
use ovs_frame::{DATA, HEADER_LEN, Header, MARK, OPEN, OVERFLOW, REFUSED, REQUEST, UPCALLS, WELCOME};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long to wait before the glue is looked for again.
const RETRY: Duration = Duration::from_millis(100);
/// How often a waiting thread looks whether another one has read the answer.
const LOOK: Duration = Duration::from_millis(100);
/// How long the glue may take to open a socket, to change its groups, or to make room for a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often an answer that is due may be looked for in vain. One look takes up to twice [`LOOK`]: 30 s.
/// Looks are counted, so that time in which this process was itself stopped does not count.
const LOOKS: u32 = 150;
const NONSENSE: &str = "the glue process does not keep to the protocol";
const HANGS: &str = "no answer from the glue process for 30 s: it hangs";
/// Longer scatter and gather lists are refused. ovs-vswitchd's have up to 128 (`MAX_IOVS`).
const MAX_PARTS: usize = 256;

/// The glue process that this process has met; 0: none yet.
static GLUE: AtomicU64 = AtomicU64::new(0);

/// Makes a socket in place of a netlink socket. Waits until there is a glue process, since ovs-vswitchd looks
/// for the datapath only once in its life.
pub fn open(kind: c_int, protocol: c_int) -> c_int {
    let first = Header {
        kind: OPEN,
        number: protocol.cast_unsigned(),
    };
    let mut attempts = 0_u32;
    loop {
        match exchange(first, &[]) {
            Ok((socket, header, instance)) if header.kind == WELCOME => {
                check_instance(instance);
                return set_up(socket, header.number, kind);
            }
            Ok((_, header, _)) if header.kind == REFUSED => return fail(header.number.cast_signed()),
            Ok(_) => return fail(libc::EPROTO),
            Err(Errno::AGAIN) => end(HANGS),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                return fail(errno.raw_os_error());
            }
            Err(_) => {}
        }
        attempts = attempts.saturating_add(1);
        if attempts == 2 {
            say("waiting for the glue process");
        }
        std::thread::sleep(RETRY);
    }
}

/// A connection for requests of another protocol than netlink's, if the glue takes it.
pub fn open_for(protocol: u32) -> Option<OwnedFd> {
    let first = Header {
        kind: OPEN,
        number: protocol,
    };
    let (connection, header, _) = exchange(first, &[]).ok()?;
    (header.kind == WELCOME).then_some(connection)
}

/// Sends a request over such a connection and waits for the contents of its answer; the length that it has,
/// cut to the room.
pub fn call(connection: &OwnedFd, kind: u32, request: &[u8], answer: &mut [u8]) -> Option<usize> {
    let mut datagram = [0; HEADER_LEN + 64];
    datagram[..HEADER_LEN].copy_from_slice(&Header { kind, number: 0 }.to_bytes());
    datagram
        .get_mut(HEADER_LEN..HEADER_LEN + request.len())?
        .copy_from_slice(request);
    let sent = &datagram[..HEADER_LEN + request.len()];
    retry_on_intr(|| rustix::net::send(connection, sent, SendFlags::NOSIGNAL)).ok()?;
    let received = retry_on_intr(|| rustix::net::recv(connection, &mut datagram[..], RecvFlags::empty()));
    let (length, _) = received.ok()?;
    let (_, contents) = Header::split(&datagram[..length]).filter(|(header, _)| header.kind == DATA)?;
    let length = contents.len().min(answer.len());
    answer[..length].copy_from_slice(&contents[..length]);
    Some(length)
}

/// Changes what multicast groups a socket is in.
pub fn change_group(socket: &Socket, kind: u32, group: u32) -> c_int {
    let number = socket.port_id();
    match exchange(Header { kind, number }, &group.to_ne_bytes()) {
        Ok((_, header, _)) if header.kind == MARK => 0,
        Ok((_, header, _)) if header.kind == REFUSED => fail(header.number.cast_signed()),
        Ok(_) => fail(libc::EPROTO),
        Err(Errno::AGAIN) => end(HANGS),
        Err(errno) => fail(errno.raw_os_error()),
    }
}

/// Sends one netlink datagram. Its answer is waited for when it is read.
///
/// # Safety
/// `parts` must point to `count` elements that describe readable memory.
pub unsafe fn submit(fd: c_int, socket: &Socket, parts: *const iovec, count: usize, flags: c_int) -> ssize_t {
    let kind = REQUEST;
    let mut header = Header { kind, number: 0 }.to_bytes();
    // SAFETY: the caller promised `parts`.
    let Some(all) = (unsafe { with_header(&mut header, parts, count) }) else {
        return fail(libc::EMSGSIZE) as ssize_t;
    };
    let message = message(&all, count);
    let start = Instant::now();
    // SAFETY: the message describes the header and memory that the caller promised.
    let sent = unsafe { real::sendmsg(fd, &raw const message, flags | libc::MSG_NOSIGNAL) };
    if sent < 0 {
        // The socket's own timeout, [`TIMEOUT`]: the glue takes nothing out of it. A socket that shall not
        // wait fails at once.
        if last_errno() == libc::EAGAIN && start.elapsed() >= TIMEOUT {
            end(HANGS);
        }
        end_if_lost();
        return -1;
    }
    socket.sent();
    sent - HEADER_LEN.cast_signed()
}

/// Receives one netlink datagram. `EAGAIN` only if no answer is under way.
///
/// # Safety
/// `user` must be a message that `recvmsg` may fill in.
pub unsafe fn receive(fd: c_int, socket: &Socket, user: &mut msghdr, flags: c_int) -> ssize_t {
    if flags & libc::MSG_PEEK != 0 {
        return fail(libc::EOPNOTSUPP) as ssize_t;
    }
    let mut header = [0; HEADER_LEN];
    let count = user.msg_iovlen;
    // SAFETY: the caller promised the message, and so its parts.
    let Some(all) = (unsafe { with_header(&mut header, user.msg_iov, count) }) else {
        return fail(libc::EMSGSIZE) as ssize_t;
    };
    let parts = &all[1..=count];
    // SAFETY: the caller promised the parts.
    if let Some(length) = unsafe { socket.upcalls.next(parts) } {
        // SAFETY: the caller promised the message.
        return unsafe { hand_out(user, parts, length, flags) };
    }
    let may_wait = flags & libc::MSG_DONTWAIT == 0;
    loop {
        let mut message = message(&all, count);
        // SAFETY: the message describes the header and memory that the caller promised.
        let Some(received) = (unsafe { next_datagram(fd, socket, &mut message, flags) }) else {
            return -1;
        };
        // SAFETY: the kernel has written the header behind the compiler's back; it lives and is initialised.
        let header = unsafe { (&raw const header).read_volatile() };
        let (Some((header, _)), Some(length)) = (Header::split(&header), received.checked_sub(HEADER_LEN))
        else {
            end("the glue process is gone");
        };
        socket.answered(header.number);
        match header.kind {
            DATA | UPCALLS => {
                user.msg_flags = message.msg_flags;
                // SAFETY: the caller promised the message.
                unsafe { name(user) };
                // Who has no room for all wants none of them.
                let is_cut = message.msg_flags & libc::MSG_TRUNC != 0;
                if header.kind == DATA || is_cut {
                    return length.cast_signed();
                }
                // SAFETY: the parts are the caller's, and the kernel has filled them in.
                let first = unsafe { socket.upcalls.put(parts, length) };
                return first.unwrap_or_else(|Garbage| end(NONSENSE)).cast_signed();
            }
            OVERFLOW => return fail(libc::ENOBUFS) as ssize_t,
            MARK if may_wait || socket.waits() => {}
            MARK => return fail(libc::EAGAIN) as ssize_t,
            _ => end(NONSENSE),
        }
    }
}

/// Completes a message whose first `length` bytes, or as many as there is room for, are in its parts.
///
/// # Safety
/// `user` must be a message that `recvmsg` may fill in.
unsafe fn hand_out(user: &mut msghdr, parts: &[iovec], length: usize, flags: c_int) -> ssize_t {
    let room: usize = parts.iter().map(|part| part.iov_len).sum();
    user.msg_flags = if length > room { libc::MSG_TRUNC } else { 0 };
    // SAFETY: the caller promised the message.
    unsafe { name(user) };
    let is_whole_asked = flags & libc::MSG_TRUNC != 0;
    let told = if is_whole_asked { length } else { length.min(room) };
    told.cast_signed()
}

/// Takes a datagram from the socket, and waits for it if the caller may wait or an answer is due. `None`
/// where there is none; `errno` says why.
///
/// # Safety
/// `message` must describe writable memory.
unsafe fn next_datagram(fd: c_int, socket: &Socket, message: &mut msghdr, flags: c_int) -> Option<usize> {
    let may_wait = flags & libc::MSG_DONTWAIT == 0;
    let mut looks = 0;
    loop {
        let due = socket.waits();
        let wait = may_wait || due;
        let blocking = if wait { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: the caller promised the message.
        let received =
            unsafe { real::recvmsg(fd, &raw mut *message, flags & !libc::MSG_DONTWAIT | blocking) };
        if received >= 0 {
            return Some(received.cast_unsigned());
        }
        if !wait || last_errno() != libc::EAGAIN {
            end_if_lost();
            return None;
        }
        // The socket's own timeout: see what other threads have read. Or the user has made it non-blocking.
        wait_readable(fd);
        looks = if due { looks + 1 } else { 0 };
        if looks == LOOKS {
            end(HANGS);
        }
    }
}

/// Says that a message came from the kernel, with nothing beside it.
///
/// # Safety
/// `user` must be a message that `recvmsg` may fill in.
unsafe fn name(user: &mut msghdr) {
    user.msg_controllen = 0;
    if !user.msg_name.is_null() {
        // SAFETY: the caller promised that the name may be filled in.
        user.msg_namelen = unsafe { write_address(0, user.msg_name, user.msg_namelen) };
    }
}

/// Writes the address of a netlink socket, cut to the room that there is, and returns its full length.
///
/// # Safety
/// `to` must point to `room` writable bytes.
pub unsafe fn write_address(port_id: u32, to: *mut c_void, room: socklen_t) -> socklen_t {
    // SAFETY: `sockaddr_nl` is plain data for which zeros are valid.
    let mut address: sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port_id;
    let length = size_of::<sockaddr_nl>();
    let copied = length.min(room as usize);
    // SAFETY: the caller promised the room; the source has so many bytes, and is a local variable.
    unsafe { std::ptr::copy_nonoverlapping((&raw const address).cast(), to.cast::<u8>(), copied) };
    length as socklen_t
}

/// Sets `errno` and returns what functions return then.
pub fn fail(error: c_int) -> c_int {
    // SAFETY: the C library returns a valid pointer to the calling thread's variable.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Says why on standard error and aborts, so that the service manager starts the process again.
pub fn end(why: &str) -> ! {
    say(why);
    std::process::abort()
}

fn say(what: &str) {
    for part in ["hyperswitch ovs-shim: ", what, "\n"] {
        // SAFETY: pointer and length describe a live string. Whether it can be written does not matter.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
}

fn last_errno() -> c_int {
    // SAFETY: the C library returns a valid pointer to the calling thread's variable.
    unsafe { *libc::__errno_location() }
}

fn end_if_lost() {
    if matches!(last_errno(), libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) {
        end("the glue process is gone");
    }
}

/// The caller's parts behind the header; `None` if they are too many. To be used while both live.
unsafe fn with_header(
    header: &mut [u8; HEADER_LEN],
    parts: *const iovec,
    count: usize,
) -> Option<[iovec; MAX_PARTS + 1]> {
    let header = iovec {
        iov_base: header.as_mut_ptr().cast(),
        iov_len: HEADER_LEN,
    };
    let mut all = [header; MAX_PARTS + 1];
    for (index, to) in all[1..].get_mut(..count)?.iter_mut().enumerate() {
        // SAFETY: the caller promised `count` elements.
        *to = unsafe { *parts.add(index) };
    }
    Some(all)
}

/// A message of the header and `count` parts.
fn message(all: &[iovec; MAX_PARTS + 1], count: usize) -> msghdr {
    // SAFETY: `msghdr` is plain data for which zeros are valid.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = all.as_ptr().cast_mut();
    message.msg_iovlen = (count + 1) as _;
    message
}

fn wait_readable(fd: c_int) {
    // SAFETY: the descriptor is used during this call only, which is made for its user.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let look = Timespec::try_from(LOOK).ok();
    // Whatever comes of it, the caller looks again.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], look.as_ref());
}

/// Connects, says one thing, and waits for the answer: its header, and the first 8 bytes of its contents.
fn exchange(first: Header, contents: &[u8]) -> Result<(OwnedFd, Header, u64), Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, Some(TIMEOUT))?;
    }
    let path = std::env::var_os(ovs_frame::SOCKET_VARIABLE).filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| ovs_frame::DEFAULT_SOCKET.into());
    retry_on_intr(|| rustix::net::connect(&socket, &SocketAddrUnix::new(&path)?))?;
    let mut datagram = [0; HEADER_LEN + 8];
    datagram[..HEADER_LEN].copy_from_slice(&first.to_bytes());
    datagram[HEADER_LEN..][..contents.len()].copy_from_slice(contents);
    let datagram_length = HEADER_LEN + contents.len();
    // The glue may have refused, and said why, before.
    let _ = retry_on_intr(|| rustix::net::send(&socket, &datagram[..datagram_length], SendFlags::NOSIGNAL));
    let (length, _) = retry_on_intr(|| rustix::net::recv(&socket, &mut datagram[..], RecvFlags::empty()))?;
    let (header, rest) = Header::split(&datagram[..length]).ok_or(Errno::CONNRESET)?;
    let instance = rest.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    Ok((socket, header, instance))
}

/// A new glue process knows nothing of the sockets that the one before has named.
fn check_instance(instance: u64) {
    let before = GLUE.compare_exchange(0, instance, Ordering::AcqRel, Ordering::Acquire);
    if before.is_err_and(|before| before != instance) {
        end("the glue process was replaced");
    }
}

/// Gives a new socket what [`receive`] needs and the user asked for, and enters it into the table.
fn set_up(socket: OwnedFd, port_id: u32, kind: c_int) -> c_int {
    let timeout = sockopt::set_socket_timeout(socket.as_fd(), sockopt::Timeout::Recv, Some(LOOK));
    let blocking = rustix::io::ioctl_fionbio(&socket, kind & libc::SOCK_NONBLOCK != 0);
    if let Err(errno) = timeout.and(blocking) {
        return fail(errno.raw_os_error());
    }
    let fd = socket.into_raw_fd();
    if !table::add(fd, port_id) {
        // SAFETY: the descriptor is ours, and named nowhere else.
        unsafe { real::close(fd) };
        return fail(libc::EMFILE);
    }
    fd
}
