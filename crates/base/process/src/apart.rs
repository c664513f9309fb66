//! Threads that share this process's memory, but not its descriptors.
//!
//! Closing a descriptor that came from outside can take for ever, as it runs code of the file. A thread that
//! may have to do so gets a table of its own. So the process's other descriptors never depend on it: they are
//! closed when the process ends, even while this thread cannot end.
//!
//! A new table is a copy, in which the thread closes the descriptors that are not its own. Copying the
//! process's full table would take long, and the last reference to a file from outside might happen to be in
//! the copy. So one thread, the *keeper*, is started early, keeps a nearly empty table, and starts all
//! others. Descriptors reach it as they reach other processes, by a socket; the job for them through memory.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

/// Memory for a thread's calls.
const STACK: usize = 128 * 1024;

/// Most descriptors that a thread is started with.
const MAX_KEEP: usize = 8;

type Body = Box<dyn FnOnce(Vec<OwnedFd>) + Send>;

/// A thread to be started; its descriptors come through the socket in the same order.
struct Job {
    name: String,
    body: Body,
    result: Sender<io::Result<()>>,
}

/// The way to the keeper.
struct Keeper {
    socket: OwnedFd,
    jobs: Sender<Job>,
}

static KEEPER: Mutex<Option<Keeper>> = Mutex::new(None);

/// Starts the keeper, if there is none. To be called early: while the process has few descriptors, and none
/// of others.
///
/// # Errors
/// No thread or socket, or the kernel refuses the table.
pub fn prepare_apart() -> io::Result<()> {
    let mut keeper = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
    if keeper.is_none() {
        *keeper = Some(Keeper::start()?);
    }
    Ok(())
}

/// Starts a thread with a table of its own that has the standard descriptors and `keep`, which are closed
/// here. No other thread waits for it.
///
/// In it, descriptors that `body` has captured, or finds in statics, mean nothing: it must use those that it
/// is given.
///
/// # Errors
/// No thread, or the kernel refuses the table.
pub fn spawn_apart<const N: usize>(
    name: String,
    keep: [OwnedFd; N],
    body: impl FnOnce([OwnedFd; N]) + Send + 'static,
) -> io::Result<()> {
    const { assert!(N <= MAX_KEEP) };
    prepare_apart()?;
    // The thread begins when no other one has these descriptors, so that it is the last one to close them.
    let (alone, is_alone) = channel::<()>();
    let body: Body = Box::new(move |kept| {
        let _ = is_alone.recv();
        if let Ok(kept) = kept.try_into() {
            body(kept);
        }
    });
    let (result, started) = channel();
    {
        let mut keeper = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = match &*keeper {
            Some(keeper) => keeper.pass(Job { name, body, result }, &keep),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        if passed.is_err() {
            // It may have the job without the descriptors. It ends, and the next one begins with neither.
            *keeper = None;
        }
        passed?;
    }
    // The keeper has closed its own before it answers.
    let started = started.recv();
    drop(keep);
    drop(alone);
    started.unwrap_or_else(|_| Err(io::ErrorKind::NotConnected.into()))
}

impl Keeper {
    fn start() -> io::Result<Keeper> {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (jobs, waiting) = channel();
        start_alone("keeper".into(), vec![theirs], move |sockets| {
            if let Some(socket) = sockets.first() {
                keep(socket, &waiting);
            }
        })?;
        Ok(Keeper { socket, jobs })
    }

    /// Sends a job, and then its descriptors.
    fn pass(&self, job: Job, fds: &[OwnedFd]) -> io::Result<()> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_KEEP))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        self.jobs.send(job).map_err(|_| io::ErrorKind::NotConnected)?;
        sendmsg(
            &self.socket,
            &[IoSlice::new(&[0])],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }
}

/// The keeper's loop.
fn keep(socket: &OwnedFd, jobs: &Receiver<Job>) {
    for job in jobs {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_KEEP))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(
                socket,
                &mut [IoSliceMut::new(&mut byte)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
        });
        let mut kept = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                kept.extend(rights);
            }
        }
        let started = match received {
            Ok(_) => start_alone(job.name, kept, job.body),
            Err(error) => Err(error.into()),
        };
        // The caller may have given up waiting.
        let _ = job.result.send(started);
    }
}

/// Starts a thread with its own copy of the calling thread's table, in which it leaves only the standard
/// descriptors and `kept`; those are closed here.
fn start_alone(
    name: String,
    kept: Vec<OwnedFd>,
    body: impl FnOnce(Vec<OwnedFd>) + Send + 'static,
) -> io::Result<()> {
    let numbers: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    let (ready, result) = channel();
    std::thread::Builder::new()
        .name(name)
        .stack_size(STACK)
        .spawn(move || {
            let left = leave_table(&numbers);
            let alone = left.is_ok();
            // The caller may close its own from now on.
            let _ = ready.send(left);
            drop(ready);
            if alone {
                // SAFETY: this thread's table has these numbers, copied when it was made, and nothing in this
                // thread owns them: `kept` owns those of the caller's table.
                let own = |number: &RawFd| unsafe { OwnedFd::from_raw_fd(*number) };
                body(numbers.iter().map(own).collect());
            }
        })?;
    let left = result
        .recv()
        .unwrap_or_else(|_| Err(io::ErrorKind::NotConnected.into()));
    drop(kept);
    left
}

/// Gives the calling thread its own table, without descriptors but the standard ones and `kept`.
fn leave_table(kept: &[RawFd]) -> io::Result<()> {
    // SAFETY: no descriptor of this table is owned by anything in this thread, which has just begun: what it
    // closes below stays open in the table that all other threads go on to use.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    let mut first = libc::STDERR_FILENO + 1;
    for number in kept {
        close_from(first, number - 1)?;
        first = first.max(number + 1);
    }
    close_from(first, RawFd::MAX)
}

fn close_from(first: RawFd, last: RawFd) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: as above, nothing uses these numbers in this table.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
