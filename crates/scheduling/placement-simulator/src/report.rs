//! Results as JSON for programs and as Markdown for readers.

use crate::experiment::{
    self, Contender, FIGURE_7, LARGE, ON_A_LINE, OTHER_PEAKS, PUT_IN, Point, REQUESTS, SMALL, Unit, Workload,
};
use crate::machine::{Machine, PAPERS, machines};
use serde::Serialize;
use std::fmt::Write;

/// Numbers of pairs for which mechanisms are turned off one at a time: a machine nearly idle, in between, and
/// full.
const ABLATION_PAIRS: [usize; 3] = [1, 8, 64];

/// All results.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Per machine.
    pub machines: Vec<MachineReport>,
}

/// The results of a machine.
#[derive(Debug, Serialize)]
pub struct MachineReport {
    /// Name of the machine.
    pub name: &'static str,
    /// Description of the machine.
    pub title: &'static str,
    /// Per workload.
    pub workloads: Vec<WorkloadReport>,
}

/// The results of a workload on a machine.
#[derive(Debug, Serialize)]
pub struct WorkloadReport {
    /// Name of the workload.
    pub name: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    #[serde(skip)]
    title: &'static str,
    /// All contenders over numbers of pairs, the default first, then the paper's criteria.
    pub curves: Vec<Curve>,
    /// The default with one mechanism off at a time, as ratio to the default.
    pub ablations: Vec<Ablation>,
}

/// A contender's results.
#[derive(Debug, Serialize)]
pub struct Curve {
    /// The contender.
    pub contender: String,
    /// Results of the contender, by number of pairs.
    pub points: Vec<Point>,
}

/// The effect of a mechanism.
#[derive(Debug, Serialize)]
pub struct Ablation {
    /// Key of the switched-off part in the configuration.
    pub off: String,
    /// Pairs, and throughput without it divided by that with it.
    pub ratios: Vec<(usize, f64)>,
}

impl Unit {
    /// For readers.
    pub fn text(self) -> &'static str {
        match self {
            Unit::Gigabits => "Gb/s",
            Unit::KiloTransactions => "thousand transactions/s",
        }
    }
}

/// Runs everything; `progress` is told what comes next.
pub fn run(progress: impl Fn(&str)) -> Report {
    let of_machine = |machine: Machine| {
        let workloads = [LARGE, SMALL, REQUESTS];
        let of_workload = |workload: Workload| {
            progress(&format!("{}, {}", machine.title, workload.title));
            workload_report(&machine, &workload)
        };
        MachineReport {
            name: machine.name,
            title: machine.title,
            workloads: workloads.map(of_workload).into(),
        }
    };
    Report {
        machines: machines().into_iter().map(of_machine).collect(),
    }
}

fn workload_report(machine: &Machine, workload: &Workload) -> WorkloadReport {
    let ours = [Contender::default_policy(), Contender::papers_criteria()];
    let contenders = ours.into_iter().chain(Contender::comparison(machine));
    let curve = |contender: Contender| {
        let points = experiment::sweep(machine, &contender, workload);
        Curve {
            contender: contender.name,
            points,
        }
    };
    let curves: Vec<Curve> = contenders.map(curve).collect();
    let ablation = |contender: Contender| {
        let ratio = |pairs| {
            let without = experiment::measure(machine, &contender, workload, pairs).value;
            (pairs, without / curves[0].at(pairs))
        };
        Ablation {
            off: contender.name.clone(),
            ratios: ABLATION_PAIRS.map(ratio).into(),
        }
    };
    let ablations = Contender::ablations().into_iter().map(ablation).collect();
    WorkloadReport {
        name: workload.name,
        unit: workload.unit.text(),
        title: workload.title,
        curves,
        ablations,
    }
}

impl Curve {
    /// The highest value with numbers of pairs that the paper's Figure 7 has.
    pub fn peak_of_figure_7(&self) -> f64 {
        FIGURE_7
            .iter()
            .map(|(pairs, _)| self.at(*pairs))
            .fold(0.0, f64::max)
    }

    fn at(&self, pairs: usize) -> f64 {
        self.points
            .iter()
            .find(|point| point.pairs == pairs)
            .map_or(0.0, |point| point.value)
    }
}

impl WorkloadReport {
    /// Throughput of the default, divided by that of the best mode for comparison.
    fn lead(&self, pairs: usize) -> f64 {
        let others = self.curves[2..].iter().map(|curve| curve.at(pairs));
        self.curves[0].at(pairs) / others.fold(0.0, f64::max)
    }
}

impl Report {
    /// The report as Markdown. `plot` returns the file name of a machine's picture.
    ///
    /// # Errors
    /// None but those of formatting, which does not fail for strings.
    pub fn markdown(&self, plot: impl Fn(&str) -> String) -> Result<String, std::fmt::Error> {
        let mut text = String::from(
            "# Placement, simulated\n\nWritten by `make simulate`: the placement policy on modelled machines, in all modes. What \
             is modelled and what is not is said in `crates/scheduling/placement-simulator/src/lib.rs`, what things cost in \
             `crates/scheduling/placement-simulator/src/machine.rs`. The last column is the default divided by the best mode for \
             comparison.\n",
        );
        for machine in &self.machines {
            write!(
                text,
                "\n## {}\n\n![Throughput by pairs]({})\n",
                machine.title,
                plot(machine.name)
            )?;
            for workload in &machine.workloads {
                workload.table(&mut text)?;
                if machine.name == PAPERS && workload.name == LARGE.name {
                    workload.paper_table(&mut text)?;
                }
                workload.ablation_table(&mut text)?;
            }
        }
        Ok(text)
    }
}

impl WorkloadReport {
    fn table(&self, text: &mut String) -> std::fmt::Result {
        write!(
            text,
            "\n### {}, in {}\n\n| pairs |",
            capitalized(self.title),
            self.unit
        )?;
        for curve in &self.curves {
            write!(text, " {} |", curve.contender)?;
        }
        writeln!(text, " ratio |\n|{}", "---:|".repeat(self.curves.len() + 2))?;
        for pairs in self.curves[0].points.iter().map(|point| point.pairs) {
            write!(text, "| {pairs} |")?;
            for curve in &self.curves {
                let value = curve.at(pairs);
                let digits = if value < 10.0 { 2 } else { 1 };
                write!(text, " {value:.digits$} |")?;
            }
            writeln!(text, " {:.2} |", self.lead(pairs))?;
        }
        Ok(())
    }

    /// The paper's Figure 7 and the model's, with the paper's criteria and ours.
    fn paper_table(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "\nThe paper's Figure 7, and the model's deviation from it:\n\n| pairs | paper | paper's criteria | | hyperswitch | | \
             |\n|---:|---:|---:|---:|---:|---:|---|"
        )?;
        for (pairs, paper) in FIGURE_7 {
            write!(text, "| {pairs} | {paper:.1} |")?;
            for curve in [&self.curves[1], &self.curves[0]] {
                let value = curve.at(pairs);
                write!(text, " {value:.1} | {:+.0} % |", (value / paper - 1.0) * 100.0)?;
            }
            let remark = match () {
                () if PUT_IN.contains(&pairs) => "put in, with the paper's criteria",
                () if ON_A_LINE.contains(&pairs) => "the paper's straight line",
                () => "",
            };
            writeln!(text, " {remark} |")?;
        }
        writeln!(text)?;
        for (theirs, ours, paper) in OTHER_PEAKS {
            let curve = self.curves.iter().find(|curve| curve.contender == ours);
            let peak = curve.map_or(0.0, Curve::peak_of_figure_7);
            let deviation = (peak / paper - 1.0) * 100.0;
            writeln!(
                text,
                "* Peak of {theirs}: {paper:.0} Gb/s in the paper; of `{ours}`: {peak:.1} ({deviation:+.0} %)."
            )?;
        }
        Ok(())
    }

    fn ablation_table(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\nWith one mechanism off, relative to the default:\n")?;
        write!(text, "| off |")?;
        for pairs in ABLATION_PAIRS {
            write!(text, " {pairs} {} |", if pairs == 1 { "pair" } else { "pairs" })?;
        }
        writeln!(text, "\n|---|{}", "---:|".repeat(ABLATION_PAIRS.len()))?;
        for ablation in &self.ablations {
            write!(text, "| `{}` |", ablation.off)?;
            for (_, ratio) in &ablation.ratios {
                write!(text, " {ratio:.2} |")?;
            }
            writeln!(text)?;
        }
        Ok(())
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
