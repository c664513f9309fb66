//! Talking to the agent in a guest over its console.
//!
//! The agent ([`initrd`](crate::initrd), `init.sh`) reads `RUN <id> <command in base64>` and answers with
//! lines `@@o <id> <base64>` (standard output), `@@e <id> <base64>` (standard error) and `@@end <id> <status>
//! <bytes out> <bytes err>`. Everything else on the console is log. Lines are recognised by content, not by
//! position, because the kernel may print between any two of them; the byte counts tell whether something was
//! lost, and then the command counts as failed rather than as having printed less.
//!
//! A User Mode Linux on a busy host sometimes does not see what came on its console until more comes, minutes
//! later. So empty lines follow, which the agent skips, as long as a command has not ended.
//!
//! One thread per console reads; it ends with the guest, and so does the one that sends empty lines.
//! `@@ready` counts boots: a second one means the guest rebooted, and that whatever ran before is gone.

use crate::base64;
use crate::endpoint::{Output, Running};
use anyhow::{Context, Result, bail};
use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Lines of log kept.
const LOG_LINES: usize = 200;

/// Silence on a console after which an empty line is sent to a guest that has not reported a command's end.
const NUDGE: Duration = Duration::from_secs(1);

/// Status reported for a command whose output was damaged on the way.
const DAMAGED: i32 = 125;

/// The host's end of a guest's console.
pub struct Console {
    name: String,
    input: Arc<Mutex<Box<dyn Write + Send>>>,
    shared: Arc<Shared>,
    next_id: AtomicU64,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    boots: u32,
    closed: bool,
    log: VecDeque<String>,
    pending: HashMap<u64, Pending>,
}

struct Pending {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    result: mpsc::Sender<Output>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with the lock")
    }
}

impl Console {
    /// Takes over the two ends. `name` is the guest's, for messages.
    pub fn new(
        name: &str,
        input: impl Write + Send + 'static,
        output: impl Read + Send + 'static,
    ) -> Console {
        let shared = Arc::new(Shared::default());
        let reader = Arc::clone(&shared);
        thread::spawn(move || {
            let mut lines = BufReader::new(output);
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                reader
                    .state()
                    .take_line(String::from_utf8_lossy(&line).trim_end());
                reader.changed.notify_all();
                line.clear();
            }
            let mut state = reader.state();
            state.closed = true;
            state.pending.clear();
            reader.changed.notify_all();
        });
        let input: Arc<Mutex<Box<dyn Write + Send>>> = Arc::new(Mutex::new(Box::new(input)));
        let (nudged, state) = (Arc::clone(&input), Arc::clone(&shared));
        thread::spawn(move || nudge(&nudged, &state));
        Console {
            name: name.into(),
            input,
            shared,
            next_id: AtomicU64::new(1),
        }
    }

    /// How often the agent has reported that it is ready.
    pub fn boots(&self) -> u32 {
        self.shared.state().boots
    }

    /// Waits until the agent has been ready `boots` times. The error shows the end of the console's log.
    pub fn wait_ready(&self, boots: u32, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state();
        while state.boots < boots {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.closed || left.is_zero() {
                let why = if state.closed {
                    "ended".into()
                } else {
                    format!("not ready within {timeout:?}")
                };
                bail!("{}: {why}; its console says:\n{}", self.name, state.tail(40));
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .expect("nobody panics with the lock")
                .0;
        }
        Ok(())
    }

    /// The last lines of the log.
    pub fn tail(&self, lines: usize) -> String {
        self.shared.state().tail(lines)
    }

    /// Starts a shell command in the guest.
    pub fn start(&self, command: &str) -> Result<Running> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, result) = mpsc::channel();
        let what = format!("{}: `{command}`", self.name);
        {
            let mut state = self.shared.state();
            if state.closed {
                bail!(
                    "{what}: the guest has ended; its console says:\n{}",
                    state.tail(20)
                );
            }
            state.pending.insert(
                id,
                Pending {
                    stdout: Vec::new(),
                    stderr: Vec::new(),
                    result: sender,
                },
            );
        }
        let line = format!("RUN {id} {}\n", base64::encode(command.as_bytes()));
        let mut input = self.input.lock().expect("nobody panics with the lock");
        input
            .write_all(line.as_bytes())
            .and_then(|()| input.flush())
            .with_context(|| what.clone())?;
        let shared = Arc::clone(&self.shared);
        Ok(Running::in_guest(what, result, move || shared.state().tail(20)))
    }
}

/// Sends empty lines while a command has not ended, until the guest has.
fn nudge(input: &Mutex<Box<dyn Write + Send>>, shared: &Shared) {
    let mut state = shared.state();
    while !state.closed {
        let wait = shared.changed.wait_timeout(state, NUDGE);
        let (guard, result) = wait.expect("nobody panics with the lock");
        let waiting = result.timed_out() && !guard.pending.is_empty();
        drop(guard);
        if waiting {
            let mut input = input.lock().expect("nobody panics with the lock");
            // The thread that waits for the command sees that the guest is gone.
            let _ = input.write_all(b"\n").and_then(|()| input.flush());
        }
        state = shared.state();
    }
}

impl State {
    fn tail(&self, lines: usize) -> String {
        let skip = self.log.len().saturating_sub(lines);
        self.log
            .iter()
            .skip(skip)
            .map(|line| format!("  | {line}\n"))
            .collect()
    }

    fn take_line(&mut self, line: &str) {
        let taken = line.find("@@").and_then(|start| self.take_report(&line[start..]));
        if taken.is_none() && !line.is_empty() {
            if self.log.len() == LOG_LINES {
                self.log.pop_front();
            }
            self.log.push_back(line.into());
        }
    }

    /// `None` if the line is not one of the agent's.
    fn take_report(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        match words.next()? {
            "@@ready" => {
                self.boots += 1;
                self.pending.clear();
            }
            kind @ ("@@o" | "@@e") => {
                let pending = self.pending.get_mut(&words.next()?.parse().ok()?)?;
                let bytes = base64::decode(words.next().unwrap_or("")).ok()?;
                let text = if kind == "@@o" {
                    &mut pending.stdout
                } else {
                    &mut pending.stderr
                };
                text.extend_from_slice(&bytes);
            }
            "@@end" => {
                let id = words.next()?.parse().ok()?;
                let mut numbers = words.map(str::parse::<i64>);
                let mut number = || numbers.next()?.ok();
                let (status, out, err) = (number()?, number()?, number()?);
                let pending = self.pending.remove(&id)?;
                let _ = pending
                    .result
                    .send(output(&pending.stdout, &pending.stderr, status, out, err));
            }
            _ => return None,
        }
        Some(())
    }
}

fn output(stdout: &[u8], stderr: &[u8], status: i64, out: i64, err: i64) -> Output {
    let length = |bytes: &[u8]| i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    let mut output = Output {
        status: i32::try_from(status).unwrap_or(DAMAGED),
        stdout: String::from_utf8_lossy(stdout).into_owned(),
        stderr: String::from_utf8_lossy(stderr).into_owned(),
    };
    if (length(stdout), length(stderr)) != (out, err) {
        output.status = DAMAGED;
        output
            .stderr
            .push_str("\n(console output was damaged on the way)");
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// A console whose guest is the test: its output goes in, its commands come out.
    fn console() -> (Console, UnixStream, BufReader<UnixStream>) {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let input = ours.try_clone().expect("clones");
        let told = BufReader::new(theirs.try_clone().expect("clones"));
        (Console::new("vm", input, ours), theirs, told)
    }

    fn soon(running: Running) -> Result<Output> {
        running.wait(Duration::from_secs(5))
    }

    #[test]
    fn a_command_that_has_not_ended_is_followed_by_empty_lines() {
        let (console, mut guest, mut told) = console();
        let running = console.start("true").expect("starts");
        let mut lines = [String::new(), String::new()];
        for line in &mut lines {
            told.read_line(line).expect("the guest is told");
        }
        assert!(lines[0].starts_with("RUN 1 "));
        assert_eq!(lines[1], "\n");
        guest.write_all(b"@@end 1 0 0 0\n").expect("writes");
        assert!(soon(running).expect("ends").success());
    }

    #[test]
    fn reports_are_found_between_kernel_messages() {
        let (console, mut guest, mut told) = console();
        guest.write_all(b"Linux version\n@@ready\n").expect("writes");
        console.wait_ready(1, Duration::from_secs(5)).expect("ready");
        let first = console.start("echo hi").expect("starts");
        let second = console.start("false").expect("starts");
        let mut line = String::new();
        told.read_line(&mut line).expect("reads");
        assert_eq!(line, "RUN 1 ZWNobyBoaQ==\n");
        guest
            .write_all(b"@@o 1 aGkK\r\n[ 1.0] noise\n[ 1.1] more@@end 2 1 0 0\n@@e 1 IQ==\n@@end 1 0 3 1\n")
            .expect("writes");
        assert_eq!(soon(second).expect("ends").status, 1);
        let output = soon(first).expect("ends");
        assert_eq!(
            output,
            Output {
                status: 0,
                stdout: "hi\n".into(),
                stderr: "!".into()
            }
        );
        assert!(console.tail(10).contains("Linux version") && console.tail(10).contains("noise"));
    }

    #[test]
    fn lost_output_is_a_failure() {
        let (console, mut guest, _told) = console();
        let running = console.start("echo hi").expect("starts");
        guest.write_all(b"@@end 1 0 3 0\n").expect("writes");
        assert_eq!(soon(running).expect("ends").status, DAMAGED);
    }

    #[test]
    fn a_reboot_and_an_end_release_who_waits() {
        let (console, mut guest, told) = console();
        let lost = console.start("sleep 100").expect("starts");
        guest.write_all(b"@@ready\n").expect("writes");
        assert!(soon(lost).is_err());
        let lost = console.start("sleep 100").expect("starts");
        drop((guest, told));
        assert!(soon(lost).is_err());
        assert!(console.wait_ready(2, Duration::from_secs(5)).is_err());
        assert!(console.start("true").is_err());
    }
}
