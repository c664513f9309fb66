//! When a child that has not ended counts as dead: it hangs.
//!
//! | what | noticed by | replaced after |
//! |---|---|---|
//! | stopped by a signal | SIGCHLD | [`STOPPED_LOOKS`] looks |
//! | does not answer a ping, all of it asleep | looks at its main thread | [`SILENT_LOOKS`] looks |
//! | does not answer a ping, and computes | the same | [`ENDLESS_MS`] of processor time |
//! | a forwarding thread does not go on, and sleeps | reports of the data plane or a forwarder | [`STUCK_REPORTS`] reports |
//! | a forwarding thread does not go on, and computes | the same | [`ENDLESS_MS`] of processor time, of a forwarder [`ENDLESS_FORWARDER_MS`] |
//! | waits for a processor, is held by the kernel, is being traced | - | never: another process would not do better |
//!
//! A child is pinged when somebody waits for it - a user, a process to which it owes an answer, the service
//! manager - and not otherwise, so that an idle switch sleeps. Looks read the states of threads from the
//! kernel and wake nobody.
//!
//! The direction of error is to wait. Looks are counted, and time is not: whatever stops or slows this
//! process or the machine - suspension, a debugger, other processes on all cores - makes looks rare, and no
//! look finds a healthy child asleep with a message that it has not read. A thread that waits for another one
//! of its process is asleep as well, so a child is not killed while any of its threads wants a processor and
//! does not get one.

use super::threads::{Condition, Thread};
use control_protocol::supervisor::{Role, StuckThread};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(25);

/// Time between two looks at a child after the first [`QUICK_LOOKS`].
const SLOW_LOOK: Duration = Duration::from_millis(250);
const QUICK_LOOKS: u32 = 100;

/// Looks at which a child is still stopped, after the first, before it is replaced: a terminal's Ctrl-Z and
/// `fg` reach one process of the group after the other.
const STOPPED_LOOKS: u32 = 2;

/// Looks at which a child that owes an answer is in the same sleep before it is replaced. Main threads do not
/// sleep for so long while they wait for a thread of their own.
const SILENT_LOOKS: u32 = 8;

/// Looks before a child that has never answered counts as hanging, since it may still be starting: 10 s.
const STARTING_LOOKS: u32 = QUICK_LOOKS + 30;

/// Processor time in which a thread that does not go on is not waited for any more.
const ENDLESS_MS: u64 = 2_000;

/// Of a thread of a forwarder, whose turns are a batch of frames each way.
const ENDLESS_FORWARDER_MS: u64 = 100;

/// Reports about a thread after which it is not waited for any more.
const STUCK_REPORTS: u32 = 2;

/// Age of a report that is of no use.
const STALE_MS: u64 = 50;

/// Threads of which reports are kept.
const MAX_STUCK: usize = 64;

/// What can be seen of a child from outside.
pub trait Sight {
    /// The signal that has stopped it.
    fn stopped_by(&self) -> Option<i32>;
    /// Whether a debugger has it.
    fn is_traced(&self) -> bool;
    /// One of its threads, or the main thread.
    fn thread(&self, tid: Option<u32>) -> Option<Thread>;
    /// Threads of the child that others may have to wait for.
    fn threads(&self) -> BTreeMap<u32, Thread>;
}

/// What is known about the progress of one child.
#[derive(Debug, Default)]
pub struct Watch {
    /// Number of the last ping.
    ping: u32,
    /// The child has answered before.
    has_answered: bool,
    silent: Option<Silent>,
    /// Looks in a row that found it stopped.
    stopped: u32,
    stuck: Vec<Stuck>,
    /// When to look again.
    due: Option<Instant>,
    /// The sleep in which it was when it had answered last.
    rest: Option<Thread>,
    trouble: Option<String>,
    /// Messages of the child wait to be read: its answer may be among them.
    has_unread: bool,
    /// The child is to be asked once these are read.
    is_put_off: bool,
    /// The turns of the child's threads are short.
    has_short_turns: bool,
}

/// An answer that the child owes.
#[derive(Debug)]
struct Silent {
    since: Instant,
    looks: u32,
    /// Processor time of the main thread when it was asked.
    cpu_ms: u64,
    sleep: Option<Sleep>,
}

/// A sleep without any interruption, and what the other threads did at its beginning.
#[derive(Debug)]
struct Sleep {
    main: Thread,
    since: Instant,
    looks: u32,
    others: BTreeMap<u32, Thread>,
}

/// A thread that makes no progress.
#[derive(Debug)]
struct Stuck {
    tid: u32,
    beats: u32,
    /// Reports in a row at which it slept.
    asleep: u32,
    cpu_ms: u64,
    since: Instant,
    others: BTreeMap<u32, Thread>,
}

impl Watch {
    /// For a process of this role.
    pub fn new(role: Role) -> Watch {
        Watch {
            has_short_turns: matches!(role, Role::Forwarder(_)),
            ..Watch::default()
        }
    }

    /// Asks for an answer: the number of the ping to be sent, unless one is under way or put off.
    pub fn ping(&mut self, sight: &impl Sight, now: Instant) -> Option<u32> {
        if self.silent.is_some() {
            return None;
        }
        // What was not read yet may be so much that there is no room for an answer.
        self.is_put_off = self.has_unread;
        if self.is_put_off {
            return None;
        }
        self.ping = self.ping.wrapping_add(1);
        self.silent = Some(Silent {
            since: now,
            looks: 0,
            cpu_ms: sight.thread(None).map_or(0, |main| main.cpu_ms),
            sleep: None,
        });
        self.due.get_or_insert(now + LOOK);
        Some(self.ping)
    }

    /// Whether it has run since it answered last, or has never answered.
    pub fn has_run(&self, sight: &impl Sight) -> bool {
        self.rest.is_none() || sight.thread(None) != self.rest
    }

    /// Notes an answer of the child. False if it was not asked that.
    pub fn answered(&mut self, ping: u32, sight: &impl Sight) -> bool {
        if ping != self.ping || self.silent.is_none() {
            return false;
        }
        self.silent = None;
        self.has_answered = true;
        self.rest = sight
            .thread(None)
            .filter(|main| main.condition == Condition::Asleep);
        self.end_looks_if_well();
        true
    }

    /// Whether messages of the child wait to be read.
    pub fn set_unread(&mut self, yes: bool) {
        self.has_unread = yes;
    }

    /// Whether the child was to be asked while messages of its waited, and none does any more.
    pub fn is_to_be_asked(&self) -> bool {
        self.is_put_off && !self.has_unread
    }

    /// Whether an answer is under way, so that its state is not known.
    pub fn is_unsure(&self) -> bool {
        self.silent.is_some() || self.stopped > 0
    }

    /// When to look at it.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// What is wrong with it, for users.
    pub fn trouble(&self) -> Option<&String> {
        self.trouble.as_ref()
    }

    /// Looks at it, if it has been stopped or a look is due. Returns why it is to be replaced.
    pub fn look(&mut self, sight: &impl Sight, now: Instant) -> Option<String> {
        let stopped = sight.stopped_by();
        if self.due.is_none_or(|due| due > now) && (stopped.is_none() || self.stopped > 0) {
            return None;
        }
        let hangs = match stopped {
            None if self.has_unread => None,
            Some(signal) => {
                self.stopped += 1;
                (self.stopped > STOPPED_LOOKS).then(|| format!("was stopped by signal {signal}"))
            }
            None => {
                self.stopped = 0;
                self.look_at_silent(sight, now)
            }
        };
        let looks = self.silent.as_ref().map_or(self.stopped, |silent| silent.looks);
        let pause = if looks < QUICK_LOOKS { LOOK } else { SLOW_LOOK };
        self.due = Some(now + pause);
        self.end_looks_if_well();
        self.unless_traced(hangs, sight)
    }

    /// A debugger may hold a process for as long as its user likes.
    fn unless_traced(&mut self, hangs: Option<String>, sight: &impl Sight) -> Option<String> {
        let reason = hangs?;
        let traced = sight.is_traced();
        self.trouble = Some(if traced {
            format!("{reason}, under a debugger")
        } else {
            reason.clone()
        });
        (!traced).then_some(reason)
    }

    /// No further look is needed when nothing is wrong.
    fn end_looks_if_well(&mut self) {
        if !self.is_unsure() {
            self.due = None;
            self.trouble = None;
        }
    }

    fn look_at_silent(&mut self, sight: &impl Sight, now: Instant) -> Option<String> {
        let limit = if self.has_answered {
            SILENT_LOOKS
        } else {
            STARTING_LOOKS
        };
        let silent = self.silent.as_mut()?;
        let main = sight.thread(None)?;
        silent.looks += 1;
        if silent.looks >= SILENT_LOOKS {
            self.trouble = Some(silent.describe(main, now));
        }
        match main.condition {
            Condition::Held => silent.sleep = None,
            Condition::Runnable => {
                silent.sleep = None;
                let used_ms = main.cpu_ms.saturating_sub(silent.cpu_ms);
                if used_ms >= ENDLESS_MS {
                    return Some(format!("did not answer in {used_ms} ms of processor time"));
                }
            }
            Condition::Asleep => {
                if silent.count_sleep(main, limit, sight, now) {
                    return Some("did not answer, and did not work either".into());
                }
            }
        }
        None
    }

    /// The child says that one of its threads makes no progress. Returns why the child is to be replaced.
    pub fn on_stuck(&mut self, report: StuckThread, sight: &impl Sight, now: Instant) -> Option<String> {
        let hangs = self.judge_stuck(report, sight, now);
        self.unless_traced(hangs, sight)
    }

    fn judge_stuck(&mut self, report: StuckThread, sight: &impl Sight, now: Instant) -> Option<String> {
        let age_ms = monotonic_ms().saturating_sub(report.at_ms);
        let thread = sight.thread(Some(report.tid)).filter(|_| age_ms <= STALE_MS)?;
        let known = |stuck: &Stuck| (stuck.tid, stuck.beats) == (report.tid, report.beats);
        let Some(stuck) = self.stuck.iter_mut().find(|stuck| known(stuck)) else {
            self.stuck.retain(|stuck| stuck.tid != report.tid);
            if self.stuck.len() == MAX_STUCK {
                self.stuck.remove(0);
            }
            self.stuck.push(Stuck {
                tid: report.tid,
                beats: report.beats,
                asleep: u32::from(thread.condition == Condition::Asleep),
                cpu_ms: thread.cpu_ms,
                since: now,
                others: sight.threads(),
            });
            return None;
        };
        let used_ms = thread.cpu_ms.saturating_sub(stuck.cpu_ms);
        let most_ms = if self.has_short_turns {
            ENDLESS_FORWARDER_MS
        } else {
            ENDLESS_MS
        };
        if used_ms >= most_ms {
            return Some(format!(
                "has a thread that did not go on in {used_ms} ms of processor time"
            ));
        }
        stuck.asleep = match thread.condition {
            Condition::Asleep => stuck.asleep + 1,
            Condition::Runnable | Condition::Held => 0,
        };
        if stuck.asleep < STUCK_REPORTS {
            return None;
        }
        let others = sight.threads();
        if is_anybody_starved(&stuck.others, &others, now - stuck.since) {
            (stuck.asleep, stuck.since, stuck.others) = (0, now, others);
            return None;
        }
        Some("has a thread that does not go on".into())
    }
}

impl Silent {
    /// Another look finds the main thread asleep. True if it has slept for so many looks, and nothing keeps
    /// it from working.
    fn count_sleep(&mut self, main: Thread, limit: u32, sight: &impl Sight, now: Instant) -> bool {
        let Some(sleep) = self.sleep.as_mut().filter(|sleep| sleep.main == main) else {
            self.sleep = Some(Sleep {
                main,
                since: now,
                looks: 1,
                others: sight.threads(),
            });
            return false;
        };
        sleep.looks += 1;
        if sleep.looks < limit {
            return false;
        }
        let others = sight.threads();
        if is_anybody_starved(&sleep.others, &others, now - sleep.since) {
            self.sleep = None;
            return false;
        }
        true
    }

    fn describe(&self, main: Thread, now: Instant) -> String {
        let why = match main.condition {
            Condition::Asleep => "it sleeps, or one of its threads waits for a processor",
            Condition::Runnable => "it computes, or waits for a processor",
            Condition::Held => "the kernel holds it",
        };
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        format!("has not answered for {seconds:.1} s: {why}")
    }
}

/// Whether a thread wants a processor and got one for less than half of the time, or is held by the kernel.
fn is_anybody_starved(
    before: &BTreeMap<u32, Thread>,
    now: &BTreeMap<u32, Thread>,
    elapsed: Duration,
) -> bool {
    let half_ms = u64::try_from(elapsed.as_millis() / 2).unwrap_or(u64::MAX);
    now.iter().any(|(tid, thread)| match thread.condition {
        Condition::Asleep => false,
        Condition::Held => true,
        Condition::Runnable => {
            let earlier_ms = before.get(tid).map_or(thread.cpu_ms, |earlier| earlier.cpu_ms);
            thread.cpu_ms.saturating_sub(earlier_ms) < half_ms
        }
    })
}

/// `CLOCK_MONOTONIC`, which all processes share.
fn monotonic_ms() -> u64 {
    u64::try_from(process::monotonic().as_millis()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
