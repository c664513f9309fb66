//! One supervised process: its life, its channel, and what users are told of it.

use super::backoff::Backoff;
use control_protocol::Channel;
use control_protocol::supervisor::{ProcessStatus, Role, ToChild};
use rustix::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

/// A role and whoever plays it now.
///
/// | state | `running` | `restart_at` |
/// |---|---|---|
/// | not started yet, or ended on request | none | none |
/// | running | some | none |
/// | waiting to be started again | none | some |
#[derive(Debug)]
pub struct Supervised {
    role: Role,
    running: Option<Running>,
    restart_at: Option<Instant>,
    backoff: Backoff,
    restarts: u32,
    last_exit: Option<String>,
}

#[derive(Debug)]
struct Running {
    process: Child,
    channel: Channel,
    since: Instant,
}

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

    /// For users.
    pub fn status(&self) -> ProcessStatus {
        ProcessStatus {
            role: self.role,
            pid: self.running.as_ref().map(|running| running.process.id()),
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When there is no channel or no process to be had.
    pub fn start(&mut self, mut command: Command, now: Instant) -> anyhow::Result<()> {
        if self.restart_at.take().is_some() {
            self.restarts += 1;
        }
        let (ours, theirs) = Channel::pair()?;
        let process = sandbox::spawn(&mut command, theirs.as_fd())?;
        log::info!("{} started as process {}", self.role, process.id());
        self.running = Some(Running {
            process,
            channel: ours,
            since: now,
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

    /// Notices if it has ended. True if so; it is then to be started again.
    pub fn reap(&mut self, now: Instant) -> bool {
        let Some(running) = &mut self.running else {
            return false;
        };
        let status = match running.process.try_wait() {
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

    /// Tells it something. A child that does not take it has stopped reading its channel, or is ending: it is
    /// ended for good, so that its successor starts from a known state.
    pub fn tell(&mut self, message: &ToChild, fds: &[BorrowedFd<'_>]) {
        let Some(running) = &mut self.running else { return };
        match running.channel.try_send(message, fds) {
            Ok(()) => {}
            // It has ended or is about to; SIGCHLD says the rest.
            Err(control_protocol::ChannelError::Closed) => {}
            Err(error) => {
                log::error!("{} does not listen ({error}); killing it", self.role);
                self.kill();
            }
        }
    }

    /// Ends it without asking.
    pub fn kill(&mut self) {
        if let Some(running) = &mut self.running {
            // Fails only for a process that has ended already.
            let _ = running.process.kill();
        }
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

    /// Kills it and waits for it to be gone.
    pub fn end(&mut self) {
        self.kill();
        if let Some(mut running) = self.running.take() {
            // Returns once the killed process is gone.
            let _ = running.process.wait();
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.end();
    }
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
}
