//! The process `ovs`: the glue, its data plane, and the database, in one thread.
//!
//! The process listens for ovs-vswitchd only once the data plane has told its ports, so that what an earlier
//! process left there is found again under the same numbers.

use crate::Capabilities;
use crate::datapath::Datapath;
use crate::glue::Glue;
use crate::ovsdb::Database;
use crate::placeholder::Placeholders;
use crate::plane::{Options as PlaneOptions, Plane};
use crate::server::{Limits, ServerError};
use crate::switch::Switch;
use crate::tap::TapPlaceholders;
use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, Role, ToChild};
use controller::Link;
use nic_packet::Owner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Misses per second of a port. ovs-vswitchd has limits of its own, on flows.
const MISS_RATE: u32 = 50_000;
/// After that time, ports and devices that an earlier process left and ovs-vswitchd did not ask for again are
/// removed.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// How long no port must have come before those that came are attached, and how long they wait at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Between attempts to connect to the database.
const RETRY: Duration = Duration::from_secs(1);

/// How long the database, and the driver domain, may each take to list their contents before ovs-vswitchd is
/// served.
const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// Where things are.
#[derive(Clone, Debug)]
pub struct Options {
    /// ovs-vswitchd's socket.
    pub socket: PathBuf,
    /// A directory that is ours alone, for the sockets of virtual machines.
    pub directory: PathBuf,
    /// Where the socket of ovs-vswitchd's database may be: the first of these whose directory is there
    /// counts.
    pub databases: Vec<PathBuf>,
    /// See [`Capabilities::claimed`].
    pub claim_connections: bool,
    /// Whose the devices are that are made.
    pub owner: Owner,
}

/// Why the process ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Placeholders cannot be made.
    #[error("placeholders: {0}")]
    Placeholders(String),
    /// The glue's socket cannot be listened on.
    #[error("{0}")]
    Server(#[from] ServerError),
}

/// Runs until the supervisor says so or is gone.
///
/// # Errors
///
/// A resource that it needs cannot be had.
pub fn run(supervisor: Channel, options: &Options) -> Result<(), Error> {
    let mut plane = Plane::new(PlaneOptions {
        miss_rate: MISS_RATE,
        directory: options.directory.clone(),
        plugs: BTreeMap::new(),
    })?;
    let mut database = Database::new(options.databases.clone());
    let mut supervisor = Link::new(supervisor);
    let is_ready = exchange_until(&mut supervisor, &mut plane, None, Plane::is_ready)?;
    let until = Instant::now() + FIRST_ANSWER;
    if !is_ready || !exchange_until(&mut supervisor, &mut plane, Some(until), Plane::knows_devices)? {
        return Ok(());
    }
    ask_first(&mut database);
    if let Some(plugs) = database.changed_plugs() {
        plane.set_policies(database.policies());
        plane.plug_all(&plugs);
    }
    if let Some(limits) = database.changed_limits() {
        plane.limit_all(limits);
    }
    let mut placeholders = TapPlaceholders::new(options.owner.clone())
        .map_err(|error| Error::Placeholders(error.to_string()))?;
    placeholders.know_lent(plane.lent());
    let capabilities = if options.claim_connections {
        Capabilities::ours().with_connections_claimed()
    } else {
        Capabilities::ours()
    };
    let switch = Switch::new(plane, placeholders, capabilities);
    let glue = Glue::listen(&options.socket, instance(), Limits::default(), switch)?;
    glue.wake_for(supervisor.fd())?;
    log::info!("listening for ovs-vswitchd on {}", options.socket.display());
    Process {
        supervisor,
        glue,
        database,
        is_watched: false,
        next_try: Instant::now(),
        clean_at: Some(Instant::now() + ABANDONED_AFTER),
        attaching: None,
    }
    .serve()
}

struct Process {
    supervisor: Link<FromChild>,
    glue: Glue<Plane, TapPlaceholders>,
    database: Database,
    /// The glue wakes for the database.
    is_watched: bool,
    next_try: Instant,
    clean_at: Option<Instant>,
    /// Ports that wait to be attached.
    attaching: Option<Attaching>,
}

/// New ports of a transaction are attached together, once no more come: ovs-vswitchd's main thread waits for
/// each of them, and neither driver domain nor data plane is to take the processor from it.
#[derive(Clone, Copy)]
struct Attaching {
    /// The number of the last one ([`Plane::held`]).
    held: u64,
    /// `None`: the database was asked.
    due: Option<Instant>,
    /// Due then, whatever comes.
    latest: Instant,
}

impl Process {
    fn serve(&mut self) -> Result<(), Error> {
        let mut more = false;
        loop {
            self.follow_database(self.glue.is_other_ready())?;
            self.release_ports();
            let timeout = if more {
                Some(Duration::ZERO)
            } else {
                self.timeout()
            };
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            more = self.glue.turn(timeout.as_ref())?;
            let is_other_ready = self.glue.is_other_ready();
            let plane = &mut self.glue.switch.datapath;
            complain(&mut self.supervisor, plane);
            if is_other_ready && !obey(&mut self.supervisor, plane)? {
                return Ok(());
            }
            if self.clean_at.is_some_and(|due| due <= Instant::now()) {
                self.clean_at = None;
                self.glue.switch.datapath.remove_abandoned();
                self.glue.switch.placeholders.remove_abandoned();
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let retry = self.database.socket().is_none().then_some(self.next_try);
        let due = [
            retry,
            self.clean_at,
            self.attaching.and_then(|attaching| attaching.due),
        ];
        let left = due
            .into_iter()
            .flatten()
            .map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.chain(self.glue.switch.datapath.time_left()).min()?;
        Some(left + Duration::from_millis(1))
    }

    /// Lets internal ports speak for the host of which the database does not say that they are virtual
    /// machines'.
    fn release_ports(&mut self) {
        let plane = &mut self.glue.switch.datapath;
        let Some(held) = plane.held() else {
            self.attaching = None;
            return;
        };
        let now = Instant::now();
        let attaching = self.attaching.get_or_insert(Attaching {
            held: 0,
            due: None,
            latest: now + PAUSE.1,
        });
        if attaching.held != held {
            attaching.held = held;
            attaching.due = Some(attaching.latest.min(now + PAUSE.0));
        }
        if attaching.due.is_some_and(|due| due > now) {
            return;
        }
        attaching.due = None;
        // Without a database there is nobody to say so.
        let is_there = self.database.socket().is_some() || self.database.connect().is_ok();
        if !is_there || self.database.ask_for_all(held).is_err() {
            self.is_watched = false;
            return plane.release(held);
        }
        plane.release(self.database.told());
    }

    fn follow_database(&mut self, is_ready: bool) -> Result<(), Error> {
        if self.next_try <= Instant::now() {
            self.next_try = Instant::now() + RETRY;
            if self.database.has_moved() {
                self.database.disconnect();
                self.is_watched = false;
            }
            if self.database.socket().is_none()
                && let Err(error) = self.database.connect()
            {
                log::debug!("ovs-vswitchd's database: {error}");
            }
        }
        let Some(socket) = self.database.socket() else {
            return Ok(());
        };
        if !self.is_watched {
            self.glue.wake_for(socket)?;
            self.is_watched = true;
        } else if !is_ready {
            return Ok(());
        }
        if let Err(error) = self.database.read() {
            log::warn!("ovs-vswitchd's database: {error}");
            // Its descriptor was closed, and is not waited for any more.
            self.is_watched = false;
            return Ok(());
        }
        if let Some(plugs) = self.database.changed_plugs() {
            // No guest connects to a port without its policy.
            self.glue.switch.datapath.set_policies(self.database.policies());
            self.glue.switch.datapath.plug_all(&plugs);
        }
        if let Some(limits) = self.database.changed_limits() {
            self.glue.switch.datapath.limit_all(limits);
        }
        Ok(())
    }
}

/// Reads the database, if there is one, so that ports have their settings at once.
fn ask_first(database: &mut Database) {
    let until = Instant::now() + FIRST_ANSWER;
    if database.connect().is_err() {
        return;
    }
    while let Some(socket) = database.socket()
        && !database.is_known()
    {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok().filter(|_| !left.is_zero());
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        let Some(timeout) = timeout else { return };
        if poll(&mut fds, Some(&timeout)).is_err() || database.read().is_err() {
            return;
        }
    }
}

/// Tells the supervisor of peers that do not do what they owe.
fn complain(supervisor: &mut Link<FromChild>, plane: &mut Plane) {
    std::iter::from_fn(|| plane.complaint()).for_each(|complaint| supervisor.complain(complaint));
    supervisor.flush();
}

/// Obeys the supervisor; false at the end.
fn obey(supervisor: &mut Link<FromChild>, plane: &mut Plane) -> Result<bool, Error> {
    // Without the supervisor nothing goes on.
    let Ok(said) = supervisor.receive() else {
        return Ok(false);
    };
    let Some((said, fds)) = said else {
        return Ok(true);
    };
    let channel = fds.into_iter().next().map(Channel::from);
    match (said, channel) {
        (ToChild::Peer(Role::DataPlane), Some(channel)) => plane.connect(channel)?,
        (ToChild::Peer(Role::Driver), Some(channel)) => plane.connect_driver(channel)?,
        (ToChild::Ping(ping), _) => supervisor.send(FromChild::Pong(ping), Vec::new()),
        (ToChild::Shutdown, _) => return Ok(false),
        _ => {}
    }
    Ok(true)
}

/// Serves data plane, driver domain and supervisor until the plane knows something, or until that time; false
/// when this process is to end.
fn exchange_until(
    supervisor: &mut Link<FromChild>,
    plane: &mut Plane,
    until: Option<Instant>,
    is_known: fn(&Plane) -> bool,
) -> Result<bool, Error> {
    while !is_known(plane) && until.is_none_or(|until| Instant::now() < until) {
        wait(supervisor, plane, until)?;
        if !obey(supervisor, plane)? {
            return Ok(false);
        }
        plane.exchange();
        complain(supervisor, plane);
    }
    Ok(true)
}

fn wait(supervisor: &Link<FromChild>, plane: &Plane, until: Option<Instant>) -> Result<(), Error> {
    let mut fds = vec![PollFd::from_borrowed_fd(supervisor.fd(), supervisor.interest())];
    fds.extend(
        plane
            .changes()
            .map(|changes| PollFd::from_borrowed_fd(changes, PollFlags::IN)),
    );
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.into_iter().chain(plane.time_left()).min();
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref())).map_err(std::io::Error::from)?;
    Ok(())
}

/// Another number for each process.
fn instance() -> u64 {
    u64::try_from(process::monotonic().as_nanos())
        .unwrap_or(u64::MAX)
        .max(1)
}
