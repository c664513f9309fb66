//! The process `p4runtime`: the supervisor's channel in the main thread, the service in one thread, all
//! clients in another. It ends when any of them does, and is started again.

use crate::control::ControlLink;
use crate::core_thread;
use crate::server::{self, Tls};
use crate::service::Service;
use control_protocol::supervisor::{FromChild, Role, ToChild};
use control_protocol::{Channel, ChannelError};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Sender};
use std::thread;
use tokio::sync::mpsc::channel;

/// Requests and messages of streams that wait for the service.
const JOBS: usize = 64;

/// What the process needs.
#[derive(Debug)]
pub struct Options {
    /// Where clients connect.
    pub listener: TcpListener,
    /// How they and the server prove who they are.
    pub tls: Option<Tls>,
}

/// Why the process ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The supervisor's channel is broken.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// A thread has ended.
    #[error("the thread {0} has ended")]
    Thread(&'static str),
}

/// Runs until the supervisor says so or is gone.
///
/// # Errors
/// A resource that it needs cannot be had, or a thread has ended.
pub fn run(supervisor: Channel, options: Options) -> Result<(), Error> {
    let (to_link, sockets) = mpsc::channel();
    let (jobs, queue) = channel(JOBS);
    let own = jobs.downgrade();
    let service = spawn("service", move || {
        core_thread::run(Service::new(ControlLink::new(sockets)), queue, &own);
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if let Ok(address) = options.listener.local_addr() {
        log::info!("listening for clients of P4Runtime on {address}");
    }
    let clients = spawn("clients", move || {
        let served = runtime.block_on(server::serve(options.listener, options.tls, jobs));
        if let Err(error) = served {
            log::error!("clients are not served: {error}");
        }
    })?;
    loop {
        wait(&supervisor, &service, &clients)?;
        loop {
            match supervisor.try_recv::<ToChild>() {
                Ok((ToChild::Shutdown, _)) | Err(ChannelError::Closed) => return Ok(()),
                Ok((message, fds)) => on_message(&supervisor, message, fds, &to_link)?,
                Err(ChannelError::WouldBlock) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn on_message(
    supervisor: &Channel,
    message: ToChild,
    mut fds: Vec<OwnedFd>,
    to_link: &Sender<UnixStream>,
) -> Result<(), Error> {
    match (message, fds.pop()) {
        (ToChild::Peer(Role::Control), Some(fd)) => {
            to_link
                .send(UnixStream::from(fd))
                .map_err(|_| Error::Thread("service"))?;
        }
        (ToChild::Ping(number), _) => supervisor.send(&FromChild::Pong(number), &[])?,
        // Whatever else the supervisor tells is for other processes.
        _ => {}
    }
    Ok(())
}

/// Starts a thread. The stream that is returned is hung up when the thread has ended, in whichever way.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<UnixStream> {
    let (watched, held) = UnixStream::pair()?;
    thread::Builder::new().name(name.into()).spawn(move || {
        let _held = held;
        work();
    })?;
    Ok(watched)
}

/// Waits for a message of the supervisor.
fn wait(supervisor: &Channel, service: &UnixStream, clients: &UnixStream) -> Result<(), Error> {
    let mut fds = [
        PollFd::new(supervisor, PollFlags::IN),
        PollFd::new(service, PollFlags::IN),
        PollFd::new(clients, PollFlags::IN),
    ];
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(Error::Io(error.into())),
    }
    let [_, service, clients] = fds.map(|fd| !fd.revents().is_empty());
    match (service, clients) {
        (true, _) => Err(Error::Thread("service")),
        (_, true) => Err(Error::Thread("clients")),
        _ => Ok(()),
    }
}
