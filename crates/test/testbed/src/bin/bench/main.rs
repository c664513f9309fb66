//! `make bench`: what the specification promises in numbers, measured on this machine beside what users would
//! run otherwise.
//!
//! Absolute numbers of a shared machine mean little, so contenders are measured in turn, round after round,
//! on the same machine in the same minute; medians of the rounds and medians of the ratios within a round are
//! what counts.
//!
//! ```text
//!   cases      what is measured, one module each, all of one shape (Case)
//!   contender  who is measured: a switch and its configuration
//!   network    a contender that runs, with ports for guests
//!   record     what was measured: rounds, medians, ratios
//!   report     the record as JSON, tables, plots, and the targets it is held against
//!   machine    what it was measured on, and processor time
//! ```
//!
//! Results are merged by case into `docs/performance/latest.json`, from which tables and plots are written.

#![forbid(unsafe_code)]

mod cases;
mod contender;
mod machine;
mod network;
mod record;
mod report;

use anyhow::{Result, bail, ensure};
use cases::Case;
use clap::Parser;
use contender::Contender;
use machine::Machine;
use record::Record;
use report::Results;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testbed::build_dir;

/// Measures Hyper-Switch beside its peers and writes tables and plots.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Arguments {
    /// Names the cases and ends
    #[arg(long)]
    list: bool,
    /// Runs only this case; may be given several times
    #[arg(long, value_name = "CASE")]
    only: Vec<String>,
    /// Few and short rounds, and fewer points, to see whether everything works; results go to
    /// build/performance
    #[arg(long)]
    quick: bool,
    /// Measures only this contender; may be given several times
    #[arg(long, value_name = "NAME", requires = "output")]
    contender: Vec<String>,
    /// Measures only points with this in their names, and leaves `docs/` alone
    #[arg(long, value_name = "TEXT", requires = "output")]
    point: Option<String>,
    /// Rounds, each of which measures every contender once
    #[arg(long, value_name = "NUMBER")]
    rounds: Option<usize>,
    /// Leaves out cases that have results of this commit, unchanged, and of this machine
    #[arg(long)]
    resume: bool,
    /// Measures nothing and writes tables and plots from the results that are there
    #[arg(long)]
    report: bool,
    /// Where results go [default: docs/performance]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds, each of which measures every contender once.
    pub rounds: usize,
    /// One measurement of a switch alone.
    pub short: Duration,
    /// One measurement with guests, in whole seconds.
    pub long: Duration,
    /// Only the most telling points of a case.
    pub quick: bool,
}

impl Effort {
    fn new(quick: bool, rounds: Option<usize>) -> Effort {
        let (default, short) = if quick { (2, 100) } else { (10, 250) };
        Effort {
            rounds: rounds.unwrap_or(default),
            short: Duration::from_millis(short),
            long: Duration::from_secs(1),
            quick,
        }
    }

    /// Splits the time into more and shorter turns, where a turn needs no preparation: a shared machine is
    /// another one from one moment to the next, and the shorter the turns, the more do contenders meet the
    /// same one.
    fn finely(mut self, record: &mut Record) -> Effort {
        const TIMES: u16 = 2;
        if !self.quick {
            self.rounds *= usize::from(TIMES);
            self.short /= TIMES.into();
        }
        record.rounds = self.rounds;
        self
    }

    /// All of the points, or the most telling ones.
    pub fn choose<'a, T>(&self, all: &'a [T], quick: &'a [T]) -> &'a [T] {
        if self.quick { quick } else { all }
    }
}

fn chosen(only: &[String]) -> Result<Vec<&'static Case>> {
    for name in only {
        if !cases::ALL.iter().any(|case| case.name == name) {
            bail!("there is no case {name}; --list names them");
        }
    }
    let wanted = |case: &&Case| only.is_empty() || only.iter().any(|name| case.name == name);
    Ok(cases::ALL.iter().filter(wanted).collect())
}

fn list() {
    for case in cases::ALL {
        let contenders: Vec<&str> = case.contenders.iter().map(|contender| contender.name).collect();
        println!("{:<10} {}", case.name, case.about);
        println!("{:<10} {}", "", contenders.join(", "));
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.list {
        list();
        return Ok(());
    }
    let default = if arguments.quick {
        build_dir::path().join("performance")
    } else {
        build_dir::workspace().join("docs/performance")
    };
    let directory = arguments.output.clone().unwrap_or(default);
    let cases = chosen(&arguments.only)?;
    if arguments.report {
        return report::write(&directory, &report::read(&directory)?);
    }
    if let Some(obstacle) = testbed::lab::obstacle() {
        bail!("benchmarks: {obstacle}");
    }
    let effort = Effort::new(arguments.quick, arguments.rounds);
    ensure!(effort.rounds > 0, "nothing would be measured");
    let before = report::read(&directory)?;
    let cases = if arguments.resume {
        left(cases, &before, &effort)
    } else {
        cases
    };
    let part = Part {
        point: arguments.point.unwrap_or_default(),
        contenders: arguments.contender,
    };
    let failed = measure(&cases, &part, &effort, &directory, &before)?;
    println!("\nresults are in {}", directory.display());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Cases that have no results of this commit and machine.
fn left(cases: Vec<&'static Case>, results: &Results, effort: &Effort) -> Vec<&'static Case> {
    let (machine, commit) = (Machine::this(), record::commit());
    let is_left = |case: &&Case| {
        let record = results.cases.get(case.name);
        let done = record.is_some_and(|record| record.is_of(&machine, &commit, effort.quick));
        if done {
            println!("{}: measured on commit {commit}", case.name);
        }
        !done
    };
    cases.into_iter().filter(is_left).collect()
}

/// What is measured of each case; nothing is everything.
struct Part {
    /// What is part of a point's name.
    point: String,
    contenders: Vec<String>,
}

impl Part {
    fn contenders(&self, case: &Case) -> Vec<Contender> {
        let before = contender::before().map(|_| contender::BEFORE);
        let wants = |contender: &Contender| {
            self.contenders.is_empty() || self.contenders.iter().any(|name| name == contender.name)
        };
        case.contenders
            .iter()
            .copied()
            .chain(before)
            .filter(wants)
            .collect()
    }
}

/// Measures a part of cases, and returns the cases that failed. `before` says how long they took.
fn measure(
    cases: &[&'static Case],
    part: &Part,
    effort: &Effort,
    directory: &Path,
    before: &Results,
) -> Result<Vec<&'static str>> {
    let mut failed = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let left = expected(&cases[index..], before, effort.quick).map_or(String::new(), |left| {
            format!(", {} left if it takes as long as before", report::duration(left))
        });
        println!("\ncase {} of {}{left}", index + 1, cases.len());
        println!("{}: {}", case.name, case.about);
        let (mut record, begin) = (Record::new(case, effort), Instant::now());
        record.part.clone_from(&part.point);
        match (case.run)(effort, &part.contenders(case), &mut record) {
            Ok(()) if record.points.is_empty() => {}
            Ok(()) => {
                record.seconds = begin.elapsed().as_secs();
                if let Some(percent) = record.others() {
                    println!("  {percent:.1} % of a core went to others on this machine");
                }
                report::merge(directory, record)?;
            }
            Err(error) => {
                println!("{}: {error:#}", case.name);
                failed.push(case.name);
            }
        }
    }
    Ok(failed)
}

/// How long cases took when they were measured before, if that is known of all of them.
fn expected(cases: &[&Case], before: &Results, quick: bool) -> Option<Duration> {
    let seconds = cases.iter().map(|case| {
        let record = before.cases.get(case.name)?;
        (record.quick == quick && record.seconds > 0).then_some(record.seconds)
    });
    seconds.sum::<Option<u64>>().map(Duration::from_secs)
}
