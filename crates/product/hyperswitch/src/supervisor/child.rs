//! One supervised process: its life, its channel, and its status for users.

use super::backoff::Backoff;
use super::hang::{Sight, Watch};
use super::relay;
use super::threads::{self, Thread};
use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, ProcessStatus, Role, ToChild};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::time::Timespec;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a process may take to end once it was killed. A process in uninterruptible sleep (state D) may
/// never end.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a log line of an ended child may take to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Processes that did not end, of which we keep track.
const MAX_LOST: usize = 16;

/// Bounds of a child's report about its isolation: sentences, and characters of each.
const MAX_MISSING: (usize, usize) = (16, 200);

/// A role and the process that has it now.
///
/// | state | `running` | `restart_at` |
/// |---|---|---|
/// | not started yet, or ended on request | none | none |
/// | running, or killed and not gone yet | some | none |
/// | waiting to be started again | none | some |
#[derive(Debug)]
pub struct Supervised {
    role: Role,
    running: Option<Running>,
    restart_at: Option<Instant>,
    backoff: Backoff,
    restarts: u32,
    last_exit: Option<String>,
    /// Killed, not gone in time, and given up.
    lost: Vec<Child>,
    /// Reads the log of the process that was started last.
    log: Option<JoinHandle<()>>,
    /// Whether it is replaced when it hangs.
    is_watched: bool,
    /// What it serves, for users.
    serves: Option<String>,
    /// Whether nobody needs the process any more; then no further one is started.
    is_retired: bool,
    /// Whether kills have an effect. Only tests have processes on which they do not.
    mortal: bool,
}

#[derive(Debug)]
struct Running {
    process: Child,
    channel: Channel,
    /// When it was started, in milliseconds since 1970-01-01 UTC.
    started_ms: u64,
    killed: Option<Instant>,
    /// Why we killed it, if it hung.
    hung: Option<String>,
    /// What was wrong with it as users know it.
    told: Option<String>,
    /// The child's report about its isolation. It can answer from then on.
    missing: Option<Vec<String>>,
    watch: Watch,
    /// Messages for which we had not asked, since the last pause.
    unasked: u32,
    /// When its messages are read again, after too many of these.
    paused_until: Option<Instant>,
    /// Processes that it wants to be replaced, and when the next one may be.
    victims: BTreeSet<Role>,
    next_victim: Instant,
}

impl Running {
    fn sight(&self) -> Process {
        Process(self.process.id())
    }
}

/// A process as it is seen from outside.
struct Process(u32);

impl Sight for Process {
    fn stopped_by(&self) -> Option<i32> {
        let pid = Pid::from_raw(i32::try_from(self.0).ok()?)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), options).ok()??.stopping_signal()
    }

    fn is_traced(&self) -> bool {
        threads::is_traced(self.0)
    }

    fn thread(&self, tid: Option<u32>) -> Option<Thread> {
        threads::thread(self.0, tid.unwrap_or(self.0))
    }

    fn threads(&self) -> BTreeMap<u32, Thread> {
        threads::all(self.0)
    }
}

/// A message of a child.
#[derive(Debug)]
pub enum Event {
    /// Nothing that others must know.
    Nothing,
    /// The child has reported its isolation, for users.
    News,
    /// The process of that role owes it an answer.
    Owes(Role),
    /// The broker says what is to be kept for its successor, or which forwarders there are to be.
    Broker(Box<FromChild>, Vec<OwnedFd>),
}

/// Whether a process may have another one replaced: controllers their peers, the control process `ovs`, too,
/// the broker its forwarders.
fn may_replace(role: Role, victim: Role) -> bool {
    match role {
        Role::Control => victim != Role::Control,
        Role::Ovs => matches!(victim, Role::DataPlane | Role::Driver),
        Role::Driver => matches!(victim, Role::Forwarder(_)),
        Role::DataPlane | Role::Forwarder(_) | Role::View | Role::P4Runtime => false,
    }
}

/// Time between two processes that a controller has replaced. Restarts have a back-off besides. `ovs` serves
/// one switch, and may disturb others less often.
fn replace_pause(role: Role) -> Duration {
    match role {
        Role::Ovs => Duration::from_secs(10),
        _ => Duration::from_secs(1),
    }
}

/// Messages for which we had not asked that are read before there is a pause, and its length. The broker has
/// several for each interface.
const MESSAGES: u32 = 16;
const BROKER_MESSAGES: u32 = 1024;
const MESSAGE_PAUSE: Duration = Duration::from_millis(200);

impl Supervised {
    /// Not started yet.
    pub fn new(role: Role) -> Self {
        Supervised {
            role,
            running: None,
            restart_at: None,
            backoff: Backoff::new(match role {
                Role::Forwarder(_) => Duration::ZERO,
                _ => super::backoff::FIRST,
            }),
            restarts: 0,
            last_exit: None,
            lost: Vec::new(),
            log: None,
            is_watched: true,
            serves: None,
            is_retired: false,
            mortal: true,
        }
    }

    /// From now on it is not replaced because it hangs.
    pub fn tolerate_hangs(&mut self) {
        self.is_watched = false;
    }

    /// Notes that the process is needed, and what it serves, for users. True if that is new.
    pub fn serve(&mut self, what: String) -> bool {
        self.is_retired = false;
        let what = bounded(vec![what]).pop();
        let is_new = self.serves != what;
        self.serves = what;
        is_new
    }

    /// Ends the process for good, since nobody needs it any more.
    pub fn retire(&mut self) {
        self.is_retired = true;
        self.restart_at = None;
        self.kill();
    }

    /// Whether the process was retired and has ended.
    pub fn is_done(&self) -> bool {
        self.is_retired && self.running.is_none()
    }

    /// Which one.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether there is a process.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// When it is to be started again.
    pub fn restart_at(&self) -> Option<Instant> {
        self.restart_at
    }

    /// When it needs attention: to be started, looked at, listened to, or given up if it has not ended.
    pub fn due(&self) -> Option<Instant> {
        let Some(running) = &self.running else {
            return self.restart_at;
        };
        if let Some(killed) = running.killed {
            return Some(killed + KILL_TIMEOUT);
        }
        let victim = (!running.victims.is_empty()).then_some(running.next_victim);
        [running.paused_until, victim, running.watch.due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Channel to the child, to be watched for messages if they are read, and for a hang-up in any case; not
    /// once it was killed.
    pub fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let running = self.running.as_ref().filter(|running| running.killed.is_none())?;
        let paused = running.paused_until.is_some_and(|until| until > Instant::now());
        let words = if paused { PollFlags::empty() } else { PollFlags::IN };
        Some((running.channel.as_fd(), words))
    }

    /// Kills it if it has hung up. Usually it has ended and this changes nothing; but a process whose last
    /// thread the kernel holds neither works nor ends, and would never be replaced.
    pub fn notice_hang_up(&mut self) {
        let Some((channel, _)) = self.watched() else {
            return;
        };
        let mut fds = [PollFd::from_borrowed_fd(channel, PollFlags::empty())];
        let now = Timespec::default();
        if poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP) {
            self.kill();
        }
    }

    /// Reads a message, if there is one. After too many for which we had not asked there is none for a while.
    pub fn on_message(&mut self, now: Instant) -> Option<Event> {
        let role = self.role;
        let running = self.running.as_mut().filter(|running| running.killed.is_none())?;
        if running.paused_until.is_some_and(|until| until > now) {
            return None;
        }
        running.paused_until = None;
        let received = running.channel.try_recv::<FromChild>();
        let is_empty = matches!(received, Err(control_protocol::ChannelError::WouldBlock));
        running.watch.set_unread(!is_empty);
        let said = match received {
            Ok((FromChild::Isolated(missing), _)) if running.missing.is_none() => {
                running.missing = Some(bounded(missing));
                return Some(Event::News);
            }
            Ok((FromChild::Pong(ping), _))
                if running.watch.answered(ping, &Process(running.process.id())) =>
            {
                return Some(Event::Nothing);
            }
            Err(control_protocol::ChannelError::WouldBlock) => {
                if running.watch.is_to_be_asked() {
                    self.ping(now);
                }
                return None;
            }
            said => said,
        };
        running.unasked += 1;
        let most = if role == Role::Driver {
            BROKER_MESSAGES
        } else {
            MESSAGES
        };
        if running.unasked >= most {
            running.unasked = 0;
            running.paused_until = Some(now + MESSAGE_PAUSE);
        }
        match said {
            Ok((FromChild::Replace(victim), _)) if may_replace(role, victim) => {
                running.victims.insert(victim);
            }
            Ok((FromChild::Owes(debtor), _)) if debtor != role => return Some(Event::Owes(debtor)),
            Ok((FromChild::Stuck(report), _)) if self.is_watched => {
                let sight = running.sight();
                let hangs = running.watch.on_stuck(report, &sight, now);
                self.replace_hung(hangs);
            }
            Ok((
                message @ (FromChild::Forwarders(_)
                | FromChild::Keep(_)
                | FromChild::Forget(_)
                | FromChild::Recall(_)),
                fds,
            )) if role == Role::Driver => return Some(Event::Broker(Box::new(message), fds)),
            // Its end is noticed elsewhere; messages that are malformed or not allowed are not answered.
            said => log::debug!("{role}: {said:?}"),
        }
        Some(Event::Nothing)
    }

    /// Another process of that role was started: what was said was about the one before.
    pub fn forget_victim(&mut self, role: Role) {
        if let Some(running) = &mut self.running {
            running.victims.remove(&role);
        }
    }

    /// A process that it wants to be replaced now.
    pub fn take_victim(&mut self, now: Instant) -> Option<Role> {
        let running = self
            .running
            .as_mut()
            .filter(|running| running.next_victim <= now)?;
        let victim = running.victims.pop_first()?;
        running.next_victim = now + replace_pause(self.role);
        Some(victim)
    }

    /// Has it show that it works; it has some time to do so.
    pub fn ping(&mut self, now: Instant) {
        let Some(running) = self.running.as_mut().filter(|running| running.missing.is_some()) else {
            return;
        };
        let sight = running.sight();
        if let Some(ping) = running.watch.ping(&sight, now) {
            self.send(&ToChild::Ping(ping), &[]);
        }
    }

    /// Has it show that it works, unless it has slept since it did so last.
    pub fn ping_if_it_has_run(&mut self, now: Instant) {
        let running = self.running.as_ref();
        if running.is_some_and(|running| running.watch.has_run(&running.sight())) {
            self.ping(now);
        }
    }

    /// Whether it still has to show that it works.
    pub fn is_unsure(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.killed.is_some() || running.watch.is_unsure())
    }

    /// Looks at it, if it was stopped or owes an answer, and kills it if it hangs. True if the status for
    /// users has changed.
    pub fn look(&mut self, now: Instant) -> bool {
        let Some(running) = self.running.as_mut().filter(|running| running.killed.is_none()) else {
            return false;
        };
        let sight = running.sight();
        let hangs = running.watch.look(&sight, now).filter(|_| self.is_watched);
        // Trouble also ends between two looks, by an answer.
        let trouble = running.watch.trouble().cloned();
        let changed = trouble != running.told;
        running.told = trouble;
        self.replace_hung(hangs);
        changed
    }

    fn replace_hung(&mut self, hangs: Option<String>) {
        if let (Some(running), Some(reason)) = (&mut self.running, hangs) {
            log::error!("{} {reason}; killing it", self.role);
            running.hung = Some(reason);
            self.kill();
        }
    }

    /// For users.
    pub fn status(&self) -> ProcessStatus {
        ProcessStatus {
            role: self.role,
            pid: self.running.as_ref().map(|running| running.process.id()),
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
            missing: self.running.as_ref().and_then(|running| running.missing.clone()),
            trouble: self
                .running
                .as_ref()
                .and_then(|running| running.watch.trouble().cloned()),
            serves: self.serves.clone(),
            started_ms: self.running.as_ref().map(|running| running.started_ms),
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When no channel or no process can be made.
    pub fn start(&mut self, mut command: Command, now: Instant) -> anyhow::Result<()> {
        if self.restart_at.take().is_some() {
            self.restarts += 1;
        }
        let (ours, theirs) = Channel::pair()?;
        let mut process = process::spawn(&mut command, theirs.as_fd())?;
        self.log = process
            .stderr
            .take()
            .and_then(|pipe| relay::start(self.role, pipe));
        log::info!("{} started as process {}", self.role, process.id());
        self.running = Some(Running {
            process,
            channel: ours,
            started_ms: milliseconds(SystemTime::now()),
            killed: None,
            hung: None,
            told: None,
            missing: None,
            watch: Watch::new(self.role),
            unasked: 0,
            paused_until: None,
            victims: BTreeSet::new(),
            next_victim: now,
        });
        Ok(())
    }

    /// Could not be started: to be tried again.
    pub fn failed_to_start(&mut self, error: &anyhow::Error, now: Instant) {
        let wait = self.backoff.wait(now);
        log::error!(
            "{} cannot be started, next try in {} ms: {error:#}",
            self.role,
            wait.as_millis()
        );
        self.last_exit = Some(format!("could not be started: {error:#}"));
        self.restart_at = Some(now + wait);
    }

    /// Notices if it has ended, or was killed and does not end. True if so; it is then to be started again.
    pub fn reap(&mut self, now: Instant) -> bool {
        // How an earlier process ended is of no interest.
        self.lost
            .retain_mut(|process| matches!(process.try_wait(), Ok(None)));
        let Some(running) = &mut self.running else {
            return false;
        };
        let status = match running.process.try_wait() {
            Ok(None) if running.killed.is_some_and(|killed| now >= killed + KILL_TIMEOUT) => {
                let wait = self.backoff.wait(now);
                self.give_up();
                self.restart_at = (!self.is_retired).then_some(now + wait);
                return true;
            }
            Ok(None) => return false,
            Ok(Some(status)) => status,
            // It is our child and was not waited for: this cannot fail. If it does, the process is unusable.
            Err(error) => {
                log::error!("{}: {error}", self.role);
                return false;
            }
        };
        if self.is_retired {
            log::info!("{} is not needed any more, and has ended", self.role);
            self.running = None;
            return true;
        }
        let wait = self.backoff.wait(now);
        let end = running.hung.take().unwrap_or_else(|| describe(status));
        log::error!(
            "{} {end}; starting it again in {} ms",
            self.role,
            wait.as_millis()
        );
        self.last_exit = Some(end);
        self.running = None;
        self.restart_at = Some(now + wait);
        true
    }

    /// Sends it a message. A child that does not take it has stopped reading its channel, or is ending: it is
    /// killed, so that its successor starts from a known state.
    pub fn send(&mut self, message: &ToChild, fds: &[BorrowedFd<'_>]) {
        let Some(running) = &mut self.running else { return };
        match running.channel.try_send(message, fds) {
            Ok(()) => {}
            // It has ended or is about to; SIGCHLD follows.
            Err(control_protocol::ChannelError::Closed) => {}
            Err(error) => {
                log::error!("{} does not listen ({error}); killing it", self.role);
                self.kill();
            }
        }
    }

    /// Ends it without asking it to end.
    pub fn kill(&mut self) {
        if let Some(running) = &mut self.running {
            running.killed.get_or_insert_with(Instant::now);
            if self.mortal {
                // Fails only for a process that has ended already.
                let _ = running.process.kill();
            }
        }
    }

    /// Stops waiting for a process that was killed and does not end. It ends when the kernel lets go of it;
    /// until then it keeps what it has open.
    fn give_up(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        log::error!(
            "{} (process {}) was killed and does not end: the kernel holds it. Going on without it",
            self.role,
            running.process.id()
        );
        self.last_exit = Some("was killed and did not end".into());
        if self.lost.len() < MAX_LOST {
            self.lost.push(running.process);
        }
    }

    /// Waits a little for the log of a process that has ended.
    pub fn flush(&mut self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let unfinished = |log: &JoinHandle<()>| !log.is_finished();
        while self.running.is_none() && self.log.as_ref().is_some_and(unfinished) && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// From now on kills have no effect, as if the kernel held the process.
    #[cfg(test)]
    pub fn make_immortal(&mut self, immortal: bool) {
        self.mortal = !immortal;
    }

    /// Processes that were given up and have not ended yet.
    #[cfg(test)]
    pub fn lost(&mut self) -> &mut [Child] {
        &mut self.lost
    }

    /// Takes its end after it was asked to end; false if it runs still. It is not started again.
    pub fn reap_for_good(&mut self) -> bool {
        self.restart_at = None;
        let Some(running) = &mut self.running else {
            return true;
        };
        match running.process.try_wait() {
            Ok(None) => false,
            Ok(Some(status)) => {
                log::info!("{} {}", self.role, describe(status));
                self.running = None;
                true
            }
            Err(_) => true,
        }
    }

    /// Kills it and waits for it to be gone, at most [`KILL_TIMEOUT`].
    pub fn end(&mut self) {
        self.kill();
        let deadline = Instant::now() + KILL_TIMEOUT;
        while let Some(running) = &mut self.running {
            match running.process.try_wait() {
                Ok(None) if Instant::now() >= deadline => self.give_up(),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Ok(Some(_)) | Err(_) => self.running = None,
            }
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.end();
    }
}

/// A child's sentences, within bounds and without control characters.
fn bounded(sentences: Vec<String>) -> Vec<String> {
    let (most, length) = MAX_MISSING;
    let clean = |text: String| -> String {
        let characters = text.chars().filter(|c| !c.is_control());
        characters.take(length).collect()
    };
    sentences.into_iter().take(most).map(clean).collect()
}

fn milliseconds(moment: SystemTime) -> u64 {
    let since_epoch = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// How a process ended, for users.
fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(signal)) if signal == SIGSYS => format!(
            "was killed by SIGSYS: it made a system call it may not make ({}=report shows which)",
            crate::children::SECCOMP_VARIABLE
        ),
        (_, Some(signal)) => format!("was killed by signal {signal}"),
        (Some(code), _) => format!("exited with status {code}"),
        _ => "ended".into(),
    }
}

/// Number of the signal that ends a process at a forbidden system call.
const SIGSYS: i32 = rustix::process::Signal::SYS.as_raw();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_described() {
        assert_eq!(describe(ExitStatus::from_raw(9)), "was killed by signal 9");
        assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "exited with status 3");
        assert!(describe(ExitStatus::from_raw(SIGSYS)).contains("killed by SIGSYS"));
    }

    #[test]
    fn what_a_child_says_is_bounded() {
        let flood = vec!["\x1b[2J".repeat(1000); 1000];
        let kept = bounded(flood);
        assert_eq!(kept.len(), MAX_MISSING.0);
        assert!(kept.iter().all(|text| text.chars().count() == MAX_MISSING.1));
        assert!(!kept.concat().contains('\x1b'));
    }
}
