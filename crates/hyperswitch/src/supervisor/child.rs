//! One supervised process: its life, its channel, and its status for users.

use super::backoff::Backoff;
use super::relay;
use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, ProcessStatus, Role, ToChild};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::time::Timespec;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a process may take to end once it was killed. A process in uninterruptible sleep (state D) may never end.
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
    /// Whether kills have an effect. Only tests have processes on which they do not.
    mortal: bool,
}

#[derive(Debug)]
struct Running {
    process: Child,
    channel: Channel,
    since: Instant,
    killed: Option<Instant>,
    /// The child's report about its isolation; until then its messages are read.
    missing: Option<Vec<String>>,
    /// It has sent its report, or a message that is not allowed: further messages are not read.
    has_spoken: bool,
    /// When its messages are read again, after it has had another process replaced.
    paused_until: Option<Instant>,
}

/// A message of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing.
    Nothing,
    /// Its report about its isolation, for users.
    News,
    /// The process of that role violates the protocol.
    Replace(Role),
}

/// Time between two processes that the control process has replaced. Restarts have a back-off besides.
const REPLACE_PAUSE: Duration = Duration::from_secs(1);

impl Supervised {
    /// Not started yet.
    pub fn new(role: Role) -> Self {
        Supervised {
            role,
            running: None,
            restart_at: None,
            backoff: Backoff::new(),
            restarts: 0,
            last_exit: None,
            lost: Vec::new(),
            log: None,
            mortal: true,
        }
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

    /// When it needs attention: to be started, or to be given up if it has not ended.
    pub fn due(&self) -> Option<Instant> {
        let running = self.running.as_ref();
        let killed = running.and_then(|running| running.killed);
        let paused = running.and_then(|running| running.paused_until);
        self.restart_at
            .or(killed.map(|killed| killed + KILL_TIMEOUT))
            .or(paused)
    }

    /// Its channel, as long as its messages are read.
    pub fn listened_to(&self) -> Option<BorrowedFd<'_>> {
        let running = self.running.as_ref()?;
        let listened =
            !running.has_spoken && running.paused_until.is_none_or(|until| until <= Instant::now());
        listened.then(|| running.channel.as_fd())
    }

    /// Its channel, to be watched for messages if they are read, and for a hang-up in any case; not once it was killed.
    pub fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let running = self.running.as_ref().filter(|running| running.killed.is_none())?;
        let words = self.listened_to().map_or(PollFlags::empty(), |_| PollFlags::IN);
        Some((running.channel.as_fd(), words))
    }

    /// Kills it if it has hung up. Usually it has ended and this changes nothing; but a process whose last thread the kernel holds
    /// neither works nor ends, and would never be replaced.
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

    /// Reads a message, if there is one.
    pub fn on_message(&mut self) -> Event {
        if self.listened_to().is_none() {
            return Event::Nothing;
        }
        let Some(running) = &mut self.running else {
            return Event::Nothing;
        };
        running.paused_until = None;
        match running.channel.try_recv::<FromChild>() {
            Ok((FromChild::Isolated(missing), _)) if running.missing.is_none() => {
                running.missing = Some(bounded(missing));
                // Only the control process has further messages.
                running.has_spoken = self.role != Role::Control;
            }
            Ok((FromChild::Replace(role), _)) if self.role == Role::Control && role != self.role => {
                running.paused_until = Some(Instant::now() + REPLACE_PAUSE);
                return Event::Replace(role);
            }
            Err(control_protocol::ChannelError::WouldBlock) => return Event::Nothing,
            // Its end is noticed elsewhere; malformed messages are not answered.
            said => {
                log::debug!("{}: {said:?}", self.role);
                running.has_spoken = true;
            }
        }
        Event::News
    }

    /// For users.
    pub fn status(&self) -> ProcessStatus {
        ProcessStatus {
            role: self.role,
            pid: self.running.as_ref().map(|running| running.process.id()),
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
            missing: self.running.as_ref().and_then(|running| running.missing.clone()),
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
            since: now,
            killed: None,
            missing: None,
            has_spoken: false,
            paused_until: None,
        });
        Ok(())
    }

    /// Could not be started: to be tried again.
    pub fn failed_to_start(&mut self, error: &anyhow::Error, now: Instant) {
        let wait = self.backoff.wait(std::time::Duration::ZERO);
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
                let wait = self.backoff.wait(now.saturating_duration_since(running.since));
                self.give_up();
                self.restart_at = Some(now + wait);
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
        let wait = self.backoff.wait(now.saturating_duration_since(running.since));
        let end = describe(status);
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

    /// Stops waiting for a process that was killed and does not end. It ends when the kernel lets go of it; until then it
    /// keeps what it has open.
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

    /// Whether it has ended after being asked to; it is not started again.
    pub fn has_finished(&mut self) -> bool {
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
