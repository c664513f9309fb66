//! Distinguishes eventfds that a VMM passed from other files, and signals them without waiting. Unsafe code
//! lives here.
//!
//! A VMM passes descriptors and says that they are eventfds. Two questions must not be answered by the usual
//! calls:
//!
//! * *Whether it is an eventfd.* `fstat`, `poll` and `epoll_ctl` call the file's own operations. If the file
//!   lies on a FUSE mount, the VMM's own daemon may not answer, and the thread hangs beyond the reach of
//!   SIGKILL.
//! * *Signalling it.* `write` waits while the counter is full. The flag `O_NONBLOCK` prevents that, but
//!   belongs to the open file and so to the VMM as well, which can clear it between any check and the write.
//!
//! The kernel has one interface that takes an eventfd and nothing else, and never waits for it: the
//! completion notice of asynchronous I/O (io_submit(2), `IOCB_FLAG_RESFD`). It compares the file's kind
//! itself, and signals as drivers do, where a full counter stays full. So a signal is an operation without
//! effect whose completion is announced there; and the question of the kind is an operation that the kernel
//! refuses *after* it has looked at the eventfd, so that the error says whether the eventfd or the operation
//! was refused.
//!
//! One context serves the process. It is made by [`prepare`] or on first use; where the kernel provides none
//! (`CONFIG_AIO` is off, `fs.aio-max-nr` is used up), [`is_eventfd`] and [`signal`] return an error, and
//! callers have to use the usual calls. All functions may be called from any thread.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Operations whose completions may wait to be noted. No thread waits for them: room is made when it runs
/// out.
const EVENTS: u32 = 256;

/// Of `struct iocb`: the field `aio_resfd` is valid.
const IOCB_FLAG_RESFD: u32 = 1;
/// Read at an offset.
const IOCB_CMD_PREAD: u16 = 0;
/// A flag of reads that no kernel knows.
const UNKNOWN_FLAG: i32 = 1 << 30;

/// Rounds of making room before a signal is given up: other threads may use what one has made.
const ROUNDS: usize = 8;

/// The beginning of the memory that the kernel maps for a context (`struct aio_ring` of fs/aio.c, which user
/// space may read).
#[repr(C)]
struct CompletionRing {
    id: u32,
    entries: u32,
    /// First completion that was not noted; user space moves it.
    head: AtomicU32,
    /// Where the kernel puts the next one.
    tail: AtomicU32,
}

/// An asynchronous I/O context of this process. It has no descriptor, so that threads with tables of their
/// own can use it as well.
struct Context {
    id: libc::c_ulong,
}

static CONTEXT: OnceLock<Result<Context, Errno>> = OnceLock::new();

/// Makes the context, if there is none yet. To be called early: contexts are counted for the whole system.
///
/// # Errors
/// The system provided none, now or at the first call.
pub fn prepare() -> Result<(), Errno> {
    context().map(drop)
}

/// Whether a descriptor is an eventfd, found out without asking the file.
///
/// # Errors
/// The system has no means to find out: see [`prepare`].
pub fn is_eventfd(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    context()?.is_eventfd(fd)
}

/// Adds 1 to an eventfd's counter and wakes its waiters. Never waits, whatever its flags are; a counter that
/// is full stays so.
///
/// # Errors
/// `INVAL`: it is no eventfd. Others: this system cannot, see [`prepare`], or has no memory.
pub fn signal(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    context()?.signal(fd)
}

fn context() -> Result<&'static Context, Errno> {
    CONTEXT.get_or_init(Context::new).as_ref().map_err(|error| *error)
}

impl Context {
    fn new() -> Result<Context, Errno> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: io_setup writes the context's number to `id`, which is writable and 0 as it must be.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, EVENTS, &raw mut id) };
        check(result)?;
        let context = Context { id };
        context.try_out()?;
        Ok(context)
    }

    /// Kernels differ in the operations that they accept: checks that this one behaves as described above.
    fn try_out(&self) -> Result<(), Errno> {
        use rustix::event::{EventfdFlags, eventfd};
        use rustix::fd::AsFd;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
        self.signal(bell.as_fd())?;
        let counted = rustix::io::read(&bell, &mut [0u8; 8]).is_ok();
        if counted && self.is_eventfd(bell.as_fd())? && !self.is_eventfd(epoll.as_fd())? {
            Ok(())
        } else {
            Err(Errno::NOSYS)
        }
    }

    fn is_eventfd(&self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        match self.submit(fd, UNKNOWN_FLAG) {
            // The flag was refused, so the descriptor was not.
            Err(Errno::OPNOTSUPP) => Ok(true),
            Err(Errno::INVAL) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => Err(Errno::NOSYS),
        }
    }

    fn signal(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.submit(fd, 0)
    }

    /// Reads nothing from `bell`, which an eventfd refuses at once, with completion announced at `bell`. The
    /// kernel looks whether it is an eventfd before it reads.
    fn submit(&self, bell: BorrowedFd<'_>, flags: i32) -> Result<(), Errno> {
        // SAFETY: `iocb` is plain data for which zero is valid.
        let mut operation: libc::iocb = unsafe { std::mem::zeroed() };
        operation.aio_lio_opcode = IOCB_CMD_PREAD;
        operation.aio_rw_flags = flags;
        operation.aio_fildes = bell.as_raw_fd().cast_unsigned();
        operation.aio_flags = IOCB_FLAG_RESFD;
        operation.aio_resfd = bell.as_raw_fd().cast_unsigned();
        let mut operations = [&raw mut operation];
        let mut result = Err(Errno::AGAIN);
        for _ in 0..ROUNDS {
            // SAFETY: the context is alive as long as the process; `operations` names one valid `iocb`, which
            // the kernel reads, and of which it writes one field, before it returns. The operation has no
            // buffer (0 bytes at null), completes before io_submit returns since the file never waits for a
            // read of no bytes, and so nothing outlives this call.
            let submitted = unsafe {
                libc::syscall(
                    libc::SYS_io_submit,
                    self.id,
                    1 as libc::c_long,
                    operations.as_mut_ptr(),
                )
            };
            result = check(submitted);
            if result != Err(Errno::AGAIN) {
                break;
            }
            self.make_room();
        }
        result
    }

    /// Takes note of all completions. Threads may do so at the same time: one that is late sets an older
    /// place, and the next that finds no room moves it on.
    #[cold]
    fn make_room(&self) {
        let ring = std::ptr::with_exposed_provenance::<CompletionRing>(self.id as usize);
        // SAFETY: a context's number is the address at which the kernel mapped its completions for this
        // process, readable and writable and page-aligned, for as long as the context lives. Both fields are
        // only accessed as atomics here; the kernel's accesses are single stores and loads.
        let (head, tail) = unsafe { (&(*ring).head, &(*ring).tail) };
        head.store(tail.load(Ordering::Acquire), Ordering::Release);
    }
}

fn check(result: libc::c_long) -> Result<(), Errno> {
    if result < 0 {
        let error = std::io::Error::last_os_error();
        Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
