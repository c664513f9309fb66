//! The output of the demonstration.

use crate::Party;
use crate::measure::Row;
use anyhow::Result;
use management::{PortInfo, Stats};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Columns as wide as they need be; the first two to the left, the others to the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let mut row = String::from(" ");
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let _ = if column < 2 {
                write!(row, " {cell:<width$} ")
            } else {
                write!(row, " {cell:>width$} ")
            };
        }
        text += row.trim_end();
        text.push('\n');
        if number == 0 {
            text += &format!(
                "  {}\n",
                "-".repeat(widths.iter().sum::<usize>() + 2 * columns - 2)
            );
        }
    }
    text
}

fn cell(result: &Result<f64>, digits: usize) -> String {
    result
        .as_ref()
        .map_or_else(|_| "FAILED".into(), |value| format!("{value:.digits$}"))
}

/// One row per pair, and the reasons of failures below.
pub fn results(parties: &[Party], rows: &[Row]) -> String {
    let mut text = String::new();
    for party in parties {
        let _ = writeln!(text, "  {:<10} {}", party.name, party.what);
    }
    text.push('\n');
    let headings = [
        "from",
        "to",
        "ping IPv4 ms",
        "ping IPv6 ms",
        "iperf3 Gb/s",
        "back Gb/s",
        "result",
    ];
    let mut lines = vec![headings.map(str::to_owned).to_vec()];
    for row in rows {
        lines.push(vec![
            row.from.into(),
            row.to.into(),
            cell(&row.ping[0], 3),
            cell(&row.ping[1], 3),
            cell(&row.throughput[0], 2),
            cell(&row.throughput[1], 2),
            if row.passed() {
                "passed".into()
            } else {
                "FAILED".into()
            },
        ]);
    }
    text += &aligned(&lines);
    for row in rows {
        for error in row
            .ping
            .iter()
            .chain(&row.throughput)
            .filter_map(|result| result.as_ref().err())
        {
            let _ = writeln!(text, "  {} to {}: {error:#}", row.from, row.to);
        }
    }
    text
}

fn reasons(dropped: &BTreeMap<String, u64>) -> String {
    if dropped.is_empty() {
        return "-".into();
    }
    dropped
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The switch's counters.
pub fn ports(ports: &[PortInfo], stats: &Stats) -> String {
    let headings = [
        "port",
        "state",
        "received",
        "delivered",
        "transmitted",
        "MB in",
        "MB out",
        "dropped",
    ];
    let mut lines = vec![headings.map(str::to_owned).to_vec()];
    for port in &stats.ports {
        let counters = &port.counters;
        let state = ports
            .iter()
            .find(|info| info.name == port.port)
            .map_or("?", |info| info.state.as_str());
        lines.push(vec![
            port.port.clone(),
            state.into(),
            counters.received.to_string(),
            counters.delivered.to_string(),
            counters.transmitted.to_string(),
            (counters.received_bytes / 1_000_000).to_string(),
            (counters.transmitted_bytes / 1_000_000).to_string(),
            reasons(&counters.dropped),
        ]);
    }
    aligned(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = include_str!("../../../../../../README.md");

    fn row(from: &'static str, to: &'static str, cells: &[&str]) -> Row {
        let number = |at: usize| Ok(cells[at].parse().unwrap());
        Row {
            from,
            to,
            ping: [number(0), number(1)],
            throughput: [number(2), number(3)],
        }
    }

    /// The figures of the README are those of some run, but their table is as `make demo` prints it.
    #[test]
    fn the_readme_has_a_table_of_this_shape() {
        let begin = README.find("  from  ").unwrap();
        let (table, _) = README[begin..].split_once("  ...\n").unwrap();
        let mut rows = Vec::new();
        for line in table.lines().skip(2) {
            let words: Vec<&'static str> = line.split_whitespace().collect();
            let [from, to, cells @ .., "passed"] = &words[..] else {
                panic!("{line}");
            };
            rows.push(row(from, to, cells));
        }
        assert!(rows.len() >= 4, "{table}");
        // One that the README leaves out, with the longest names.
        rows.push(row("container", "container", &["1"; 4]));
        let printed = results(&[], &rows);
        assert!(
            printed.contains(table),
            "README.md has\n{table}today it is\n{printed}"
        );
    }
}
