//! Problems that last, told to the log once: when they begin, change and end, and every hour.
//!
//! A port whose interface is missing is tried again and again, and says so each time. Told each time, one
//! port fills a page a minute, and a few hundred hide all other lines. So whoever tries keeps the present
//! problem of each thing, and this decides what is new:
//!
//! | what | told |
//! |---|---|
//! | begins, or becomes another one | at once, [`PER_HOUR`] times an hour for each thing |
//! | is gone for [`ENDED_MS`] | once; an attempt under way is no end |
//! | lasts | every hour |
//! | more at once than [`BURST`] | a count; the place where all are shown says the rest |
//!
//! The direction of error is to say too little: present problems are shown elsewhere in full.

use std::collections::BTreeMap;
use std::fmt::Display;

/// Time after which a problem that is no longer reported has ended, in milliseconds.
pub const ENDED_MS: u64 = 10_000;

/// Lines about problems at once.
pub const BURST: u64 = 40;

/// Time for another line beyond, in milliseconds.
const EACH_MS: u64 = 5_000;

/// Lines about one thing in an hour, ends not counted.
pub const PER_HOUR: u32 = 5;

const HOUR_MS: u64 = 3_600_000;

/// The problems of things that have names.
#[derive(Debug)]
pub struct Problems<P> {
    /// Of what kind the things are, for the log.
    kind: &'static str,
    known: BTreeMap<String, Known<P>>,
    /// Lines that may be said, and when the last one was earned.
    allowance: u64,
    earned_ms: u64,
    /// Lines left out since the last line that said so.
    left_out: u64,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The thing that it is about; `None` if it is about many.
    pub name: Option<String>,
    /// What is told of it.
    pub text: String,
}

impl Told {
    fn about(name: &str, text: String) -> Told {
        let name = Some(name.to_owned());
        Told { name, text }
    }
}

#[derive(Debug)]
struct Known<P> {
    problem: P,
    since_ms: u64,
    /// When it was told last; `None` if it was left out.
    told_ms: Option<u64>,
    absent_since_ms: Option<u64>,
    /// Lines about this thing, and the beginning of the hour in which they were counted.
    lines: u32,
    hour_ms: u64,
}

impl<P: Clone + Eq + Display> Problems<P> {
    /// No problems of things of this kind, such as `port`.
    #[must_use]
    pub fn new(kind: &'static str) -> Self {
        Problems {
            kind,
            known: BTreeMap::new(),
            allowance: BURST,
            earned_ms: 0,
            left_out: 0,
        }
    }

    /// Replaces the present problems by these, and no others. Returns lines for the log.
    pub fn update<'a>(&mut self, present: impl Iterator<Item = (&'a str, &'a P)>, now_ms: u64) -> Vec<Told>
    where
        P: 'a,
    {
        let mut present = present.peekable();
        if present.peek().is_none() && self.known.is_empty() {
            return Vec::new();
        }
        let mut lines = Vec::new();
        let mut seen = BTreeMap::new();
        for (name, problem) in present {
            seen.insert(name, ());
            lines.extend(self.note(name, problem, now_ms));
        }
        let gone = self
            .known
            .iter()
            .filter(|(name, _)| !seen.contains_key(name.as_str()));
        let gone: Vec<_> = gone.map(|(name, _)| name.clone()).collect();
        for name in gone {
            lines.extend(self.note_absence(&name, now_ms));
        }
        if self.left_out > 0 && self.admit_line(now_ms) {
            let text = format!(
                "{} lines about problems of {}s are left out; `hyperswitch status` shows all problems",
                std::mem::take(&mut self.left_out),
                self.kind
            );
            lines.push(Told { name: None, text });
        }
        lines
    }

    /// When to call [`update`](Self::update) again although nothing has changed.
    #[must_use]
    pub fn due_ms(&self) -> Option<u64> {
        let each = self.known.values().map(|known| match known.absent_since_ms {
            Some(since_ms) => since_ms + ENDED_MS,
            None => known.told_ms.unwrap_or(known.since_ms) + HOUR_MS,
        });
        let count = (self.left_out > 0).then_some(self.earned_ms + EACH_MS);
        each.chain(count).min()
    }

    fn note(&mut self, name: &str, problem: &P, now_ms: u64) -> Option<Told> {
        let Some(known) = self.known.get_mut(name) else {
            let told = self.admit_line(now_ms);
            self.left_out += u64::from(!told);
            let known = Known {
                problem: problem.clone(),
                since_ms: now_ms,
                told_ms: told.then_some(now_ms),
                absent_since_ms: None,
                lines: 1,
                hour_ms: now_ms,
            };
            self.known.insert(name.to_owned(), known);
            return told.then(|| Told::about(name, problem.to_string()));
        };
        known.absent_since_ms = None;
        let is_new = known.problem != *problem;
        let last_ms = known.told_ms.unwrap_or(known.since_ms);
        if !is_new && now_ms < last_ms + HOUR_MS {
            return None;
        }
        if now_ms >= known.hour_ms + HOUR_MS {
            (known.hour_ms, known.lines) = (now_ms, 0);
        }
        known.lines += 1;
        let changes_often = known.lines > PER_HOUR;
        known.problem = problem.clone();
        if changes_often {
            return None;
        }
        let minutes = now_ms.saturating_sub(known.since_ms) / 60_000;
        known.told_ms = Some(now_ms);
        if !self.admit_line(now_ms) {
            self.left_out += 1;
            return None;
        }
        let text = match is_new {
            true => problem.to_string(),
            false => format!("{problem} (for {minutes} minutes now)"),
        };
        Some(Told::about(name, text))
    }

    fn note_absence(&mut self, name: &str, now_ms: u64) -> Option<Told> {
        let known = self.known.get_mut(name)?;
        let since_ms = *known.absent_since_ms.get_or_insert(now_ms);
        if now_ms < since_ms + ENDED_MS {
            return None;
        }
        let known = self.known.remove(name)?;
        let seconds = since_ms.saturating_sub(known.since_ms).div_ceil(1_000);
        // Only ends of what was told.
        known.told_ms?;
        if !self.admit_line(now_ms) {
            self.left_out += 1;
            return None;
        }
        let text = format!("the problem has gone after {seconds} s");
        Some(Told::about(name, text))
    }

    /// Takes the allowance for a line, if there is one.
    fn admit_line(&mut self, now_ms: u64) -> bool {
        let earned = now_ms.saturating_sub(self.earned_ms) / EACH_MS;
        self.allowance = (self.allowance + earned).min(BURST);
        self.earned_ms += earned * EACH_MS;
        let allowed = self.allowance > 0;
        self.allowance -= u64::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said when these things have these problems.
    fn say(problems: &mut Problems<String>, present: &[(&str, &str)], now_ms: u64) -> Vec<String> {
        let owned: Vec<_> = present
            .iter()
            .map(|(name, problem)| (*name, (*problem).to_owned()))
            .collect();
        let told = problems.update(owned.iter().map(|(name, problem)| (*name, problem)), now_ms);
        let line = |told: Told| match told.name {
            Some(name) => format!("port {name}: {}", told.text),
            None => told.text,
        };
        told.into_iter().map(line).collect()
    }

    #[test]
    fn a_problem_is_told_when_it_begins_changes_and_ends() {
        let mut problems = Problems::new("port");
        assert_eq!(problems.due_ms(), None);
        assert_eq!(
            say(&mut problems, &[("a", "missing")], 1_000),
            ["port a: missing"]
        );
        for now_ms in 1_001..3_000 {
            // Attempts under way, too.
            let present: &[_] = if now_ms % 2 == 0 { &[("a", "missing")] } else { &[] };
            assert!(say(&mut problems, present, now_ms).is_empty());
        }
        assert_eq!(say(&mut problems, &[("a", "in use")], 3_000), ["port a: in use"]);
        assert!(say(&mut problems, &[], 4_000).is_empty());
        assert_eq!(problems.due_ms(), Some(4_000 + ENDED_MS));
        let end = say(&mut problems, &[], 4_000 + ENDED_MS);
        assert_eq!(end, ["port a: the problem has gone after 3 s"]);
        assert_eq!(problems.due_ms(), None);
        assert!(problems.known.is_empty());
    }

    #[test]
    fn one_that_lasts_is_told_every_hour() {
        let mut problems = Problems::new("port");
        say(&mut problems, &[("a", "missing")], 0);
        let mut told = Vec::new();
        let mut now_ms = 0;
        while now_ms < 3 * HOUR_MS + 1 {
            now_ms += 5_000;
            told.extend(say(&mut problems, &[("a", "missing")], now_ms));
        }
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[1], "port a: missing (for 120 minutes now)");
        assert_eq!(problems.due_ms(), Some(4 * HOUR_MS));
    }

    #[test]
    fn one_that_changes_all_the_time_is_told_a_few_times_an_hour() {
        let mut problems = Problems::new("port");
        let mut count = 0;
        for now_ms in (0..2 * HOUR_MS).step_by(1_000) {
            let problem = ["missing", "in use"][usize::from(now_ms / 1_000 % 2 == 0)];
            count += say(&mut problems, &[("a", problem)], now_ms).len();
        }
        assert!(count <= 2 * PER_HOUR as usize + 1, "{count} lines in two hours");
    }

    #[test]
    fn hundreds_at_once_are_counted_and_hide_nothing() {
        let names: Vec<_> = (0..2_000).map(|number| format!("p{number}")).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), "missing")).collect();
        let mut problems = Problems::new("port");
        let mut lines = Vec::new();
        for now_ms in (0..60_000).step_by(100) {
            lines.extend(say(&mut problems, &all, now_ms));
        }
        let (most, rest) = (BURST as usize + 60_000 / EACH_MS as usize, 2_000 - BURST);
        assert!(lines.len() <= most, "{} lines in a minute", lines.len());
        let count = format!("{rest} lines about problems of ports are left out");
        assert!(lines.iter().any(|line| line.starts_with(&count)), "{lines:?}");
        // Another one is told all the same, a little later.
        let now_ms = 100_000;
        let more = [all.as_slice(), &[("z", "in use")]].concat();
        assert_eq!(say(&mut problems, &more, now_ms), ["port z: in use"]);
    }

    /// The names of ports that were deleted are not kept.
    #[test]
    fn what_is_gone_is_forgotten() {
        let mut problems = Problems::new("port");
        for number in 0..10_000u64 {
            let name = format!("p{number}");
            say(&mut problems, &[(&name, "missing")], number * 1_000);
        }
        assert!(problems.known.len() <= 12, "{}", problems.known.len());
    }
}
