//! Something with a network stack in which commands can be run: a guest, a namespace.
//!
//! Commands are shell text. They run concurrently: [`Endpoint::start`] returns at once, and what it returns
//! is waited for by whoever wants the result. Everything has a time limit, so that a dead endpoint fails a
//! test and never hangs it.

use crate::process::Group;
use anyhow::{Context, Result, bail};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// Time limit of commands that should be quick. Generous, for machines that are busy with other guests.
pub const QUICK: Duration = Duration::from_secs(30);

/// The result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Exit status; 128 plus the signal's number if it was killed.
    pub status: i32,
    /// Standard output, invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error, invalid UTF-8 replaced.
    pub stderr: String,
}

impl Output {
    /// Whether the exit status is 0.
    pub fn success(&self) -> bool {
        self.status == 0
    }
}

/// A command under way. Dropping it kills a command of this machine; one in a guest goes on.
pub struct Running {
    what: String,
    result: mpsc::Receiver<Output>,
    group: Option<Arc<Mutex<Group>>>,
    log: Box<dyn Fn() -> String + Send>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("what", &self.what)
            .finish_non_exhaustive()
    }
}

impl Running {
    /// A command in a guest, whose console will send the result, or drop the sender if the guest ends. `log`
    /// is what the guest's kernel has to say when it does not.
    pub(crate) fn in_guest(
        what: String,
        result: mpsc::Receiver<Output>,
        log: impl Fn() -> String + Send + 'static,
    ) -> Running {
        Running {
            what,
            result,
            group: None,
            log: Box::new(log),
        }
    }

    /// A command of this machine; its pipes must not have been taken.
    pub(crate) fn local(what: String, mut command: Command) -> Result<Running> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut group = Group::spawn(command)?;
        let mut stdout = group.child().stdout.take().context("standard output is a pipe")?;
        let mut stderr = group.child().stderr.take().context("standard error is a pipe")?;
        let group = Arc::new(Mutex::new(group));
        let (sender, result) = mpsc::channel();
        let waited = Arc::clone(&group);
        thread::spawn(move || {
            let errors = thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = stderr.read_to_end(&mut bytes);
                bytes
            });
            let mut bytes = Vec::new();
            let _ = stdout.read_to_end(&mut bytes);
            let errors = errors.join().unwrap_or_default();
            let status = loop {
                if let Some(status) = waited.lock().expect("nobody panics with the lock").ended() {
                    break status;
                }
                thread::sleep(Duration::from_millis(2));
            };
            let _ = sender.send(Output {
                status: exit_code(status),
                stdout: String::from_utf8_lossy(&bytes).into_owned(),
                stderr: String::from_utf8_lossy(&errors).into_owned(),
            });
        });
        Ok(Running {
            what,
            result,
            group: Some(group),
            log: Box::new(String::new),
        })
    }

    /// Waits for the command to end. Fails after `timeout`, and if its endpoint died.
    pub fn wait(self, timeout: Duration) -> Result<Output> {
        match self.result.recv_timeout(timeout) {
            Ok(output) => Ok(output),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("{}: still running after {timeout:?}\n{}", self.what, (self.log)())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                bail!("{}: its endpoint is gone\n{}", self.what, (self.log)())
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = &self.group
            && let Ok(mut group) = group.lock()
        {
            group.kill();
        }
    }
}

/// The exit status as shells report it.
pub(crate) fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Something with a network stack in which commands can be run.
pub trait Endpoint: Sync {
    /// Name, for messages.
    fn name(&self) -> &str;

    /// Starts a shell command.
    fn start(&self, command: &str) -> Result<Running>;

    /// Runs a shell command that should end within [`QUICK`], with any exit status.
    fn run(&self, command: &str) -> Result<Output> {
        self.start(command)?.wait(QUICK)
    }

    /// Runs a shell command that must succeed; returns its standard output.
    fn must(&self, command: &str) -> Result<String> {
        let output = self.run(command)?;
        if !output.success() {
            bail!(
                "{}: `{command}` ended with {}\n{}{}",
                self.name(),
                output.status,
                output.stdout,
                output.stderr
            );
        }
        Ok(output.stdout)
    }
}

/// The host, outside any namespace of ours.
#[derive(Debug)]
pub struct Host;

impl Endpoint for Host {
    fn name(&self) -> &str {
        "host"
    }

    fn start(&self, command: &str) -> Result<Running> {
        let mut shell = crate::process::command("sh");
        shell.args(["-c", command]);
        Running::local(format!("host: `{command}`"), shell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn output_and_status_come_back() {
        let output = Host.run("echo out; echo err >&2; exit 7").expect("runs");
        assert_eq!(
            output,
            Output {
                status: 7,
                stdout: "out\n".into(),
                stderr: "err\n".into()
            }
        );
        let output = Host.run("kill -9 $$").expect("runs");
        assert_eq!(output.status, 137);
        assert!(Host.must("exit 3").is_err());
    }

    #[test]
    fn a_time_limit_ends_the_wait_and_the_command() {
        let begin = Instant::now();
        let running = Host.start("sleep 100").expect("starts");
        assert!(running.wait(Duration::from_millis(50)).is_err());
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}
