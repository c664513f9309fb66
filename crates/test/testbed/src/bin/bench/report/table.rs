//! The tables of `latest.md`.

use super::{Results, target};
use crate::cases;
use crate::contender::HYPERSWITCH;
use crate::machine::Machine;
use crate::record::{Better, Measure, Record, Spread};
use std::fmt::Write;

/// The whole file. `plots` are names of files by case.
pub fn all(results: &Results, plots: &[(String, String)]) -> String {
    let mut text = "# Measurements\n\nWritten by `make bench`. Values are medians of the rounds, followed by the quartiles. \
                    Absolute numbers of a shared machine mean little: a ratio is the median of those within interleaved \
                    rounds, followed by the quartiles, and more than 1 means that Hyper-Switch is better.\n\n"
        .to_owned();
    text += "## Targets\n\n";
    text += &target::table(results);
    for case in cases::ALL {
        if let Some(record) = results.cases.get(case.name) {
            let machine = record.machine.as_ref().unwrap_or(&results.machine);
            section(&mut text, record, machine, plots);
        }
    }
    text
}

fn machine_text(machine: &Machine) -> String {
    let versions = machine.versions.iter();
    let versions: Vec<String> = versions
        .map(|(package, version)| format!("{package} {version}"))
        .collect();
    let virtualised = if machine.virtualised {
        " (itself a virtual machine)"
    } else {
        ""
    };
    format!(
        "{}, {} processors, Linux {}{virtualised}, with {}",
        machine.processor,
        machine.cores,
        machine.kernel,
        versions.join(", ")
    )
}

fn section(text: &mut String, record: &Record, machine: &Machine, plots: &[(String, String)]) {
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\n## {}\n\n{}. {} {}rounds, commit {}, on {}.\n",
        record.case,
        capital(&record.about),
        record.rounds,
        if record.quick { "quick " } else { "" },
        record.commit,
        machine_text(machine)
    );
    if let Some(percent) = record.others() {
        let _ = write!(
            text,
            "\nMeanwhile {} % of a core went to others on this machine.\n",
            digits(percent)
        );
    }
    for sentence in &record.gave_up {
        let _ = write!(text, "\n{sentence}.\n");
    }
    for measure in &record.measures {
        table(text, record, measure);
    }
    for (_, file) in plots.iter().filter(|(case, _)| *case == record.case) {
        let _ = write!(text, "\n![{}]({file})\n", file.trim_end_matches(".svg"));
    }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map(|first| first.to_uppercase().chain(characters).collect())
        .unwrap_or_default()
}

/// The title of a table, and its first row.
fn head(
    text: &mut String,
    record: &Record,
    measure: &Measure,
    (contenders, peers): (&[&str], &[&str]),
    cache_line: bool,
) {
    let direction = match measure.better {
        Better::Higher => "more",
        Better::Lower => "less",
    };
    let _ = write!(
        text,
        "\n{}, {} ({direction} is better)\n\n| {} |",
        capital(&measure.name),
        measure.unit,
        record.axis
    );
    for name in contenders {
        let _ = write!(text, " {name} |");
    }
    for peer in peers {
        let _ = write!(text, " better than {peer} |");
    }
    if cache_line {
        *text += " cache line's round trip, ns |";
    }
    *text += "\n|---|";
    *text += &"---|".repeat(contenders.len() + peers.len() + usize::from(cache_line));
    *text += "\n";
}

/// One measure: a row per point, a column per contender and per ratio to a peer.
fn table(text: &mut String, record: &Record, measure: &Measure) {
    let contenders = record.contenders(&measure.name);
    let Some((&first, _)) = contenders.split_first() else {
        return;
    };
    let peers: Vec<&str> = contenders
        .iter()
        .copied()
        .filter(|name| first.starts_with(HYPERSWITCH.name) && *name != first)
        .collect();
    let cache_line = record.points.iter().any(|point| !point.cache_line.is_empty());
    head(text, record, measure, (&contenders, &peers), cache_line);
    for point in record.points_of(&measure.name) {
        let _ = write!(text, "| {point} |");
        for name in &contenders {
            let value = record.value(point, name, &measure.name);
            let _ = write!(text, " {} |", value.map_or(String::new(), spread_text));
        }
        for peer in &peers {
            let ratio = record.ratio(point, first, peer, &measure.name);
            let _ = write!(text, " {} |", ratio.map_or(String::new(), spread_text));
        }
        if cache_line {
            let _ = write!(
                text,
                " {} |",
                record.cache_line_of(point).map_or(String::new(), spread_text)
            );
        }
        *text += "\n";
    }
}

/// Three significant digits, without an exponent.
pub fn digits(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 100.0 => format!("{value:.0}"),
        magnitude if magnitude >= 10.0 => format!("{value:.1}"),
        magnitude if magnitude >= 0.1 => format!("{value:.2}"),
        magnitude if magnitude > 0.0 => format!("{value:.4}"),
        _ => "0".into(),
    }
}

/// A median with its quartiles.
pub fn spread_text(spread: Spread) -> String {
    format!(
        "{} ({}..{})",
        digits(spread.median),
        digits(spread.lower),
        digits(spread.upper)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        let texts = [1234.5, 12.345, 1.2345, 0.12345, 0.0123, 0.0].map(digits);
        assert_eq!(texts, ["1234", "12.3", "1.23", "0.12", "0.0123", "0"]);
    }
}
