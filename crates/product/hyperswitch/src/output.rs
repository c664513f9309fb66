//! Output for users: tables with aligned columns, or JSON.

use anyhow::Result;
use management::{ClientError, ConfigError, ErrorCode, ErrorReport};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::Write;

/// Text that is safe on a terminal: lines without characters that control it or change the direction of
/// reading. Text comes from the control process, which may have been taken over, and from the processes that
/// report to it. `instead` replaces each such character.
fn harmless(text: &str, instead: impl Fn(char) -> String) -> String {
    let harmless = |c: char| {
        let direction =
            matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        matches!(c, '\n' | '\t') || !(c.is_control() || direction)
    };
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        match harmless(c) {
            true => result.push(c),
            false => result.push_str(&instead(c)),
        }
    }
    result
}

/// A number with what it counts: `1 port`, `2 ports`. An `s` makes the word a plural, or `es` behind a hiss.
pub fn counted(number: impl TryInto<u64>, word: &str) -> String {
    // Numbers of things are no negative ones.
    let number = number.try_into().unwrap_or(u64::MAX);
    let ending = match number {
        1 => "",
        _ if word.ends_with("ch") || word.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {word}{ending}")
}

/// As plain text.
pub fn plain(text: &str) -> String {
    harmless(text, |_| "?".into())
}

/// Writes all of it to standard output, as [`plain`] text.
///
/// # Errors
/// As [`Write::write_all`]; see [`is_broken_pipe`].
pub fn print(text: &str) -> Result<()> {
    write(&plain(text))
}

fn write(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

/// Prints as JSON, indented.
///
/// # Errors
/// As [`print`].
pub fn json(value: &impl Serialize) -> Result<()> {
    // Such characters are found in strings only, where they may be written as their number.
    let text = serde_json::to_string_pretty(value)? + "\n";
    write(&harmless(&text, |c| format!("\\u{:04x}", u32::from(c))))
}

/// Prints as JSON on one line, for programs that read along.
///
/// # Errors
/// As [`print`].
pub fn json_line(value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value)? + "\n";
    write(&harmless(&line, |c| format!("\\u{:04x}", u32::from(c))))
}

/// An error that is part of the JSON that was printed already.
#[derive(Debug)]
pub struct Told(pub String);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Told {}

/// Prints an error as JSON, on one line, for programs that read our output. If that fails there is still the
/// text.
pub fn json_error(report: &ErrorReport) {
    let _ = json_line(report);
}

/// An error as programs read it: the kind and place of its cause that has them, and the text of all causes.
pub fn report(error: &anyhow::Error) -> ErrorReport {
    let known = error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<ClientError>() {
            return Some(error.report());
        }
        let place = cause.downcast_ref::<ConfigError>()?.into();
        Some(ErrorReport::new(ErrorCode::Configuration, "").at(place))
    });
    let known = known.unwrap_or_else(|| ErrorReport::new(ErrorCode::Failed, ""));
    ErrorReport {
        error: format!("{error:#}"),
        ..known
    }
}

/// What a verb prints that has nothing to tell but success.
#[derive(Serialize, JsonSchema)]
pub struct Done {
    /// Always true.
    done: bool,
}

impl Done {
    /// Success.
    pub const TRUE: Done = Done { done: true };
}

/// Whether the reader of our output went away, as `head` does.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Rows under headings, with columns as wide as their contents.
#[derive(Debug)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Headings; one that begins with `>` makes a column of numbers, aligned to the right.
    pub fn new(headings: &[&'static str]) -> Self {
        Table {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; it has a cell for each heading.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<_> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.headings.len());
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let right: Vec<bool> = self
            .headings
            .iter()
            .map(|heading| heading.starts_with('>'))
            .collect();
        let headings = self
            .headings
            .iter()
            .map(|heading| heading.trim_start_matches('>').to_owned())
            .collect();
        let lines: Vec<&Vec<String>> = [&headings].into_iter().chain(&self.rows).collect();
        let widths: Vec<usize> = (0..right.len())
            .map(|column| {
                lines
                    .iter()
                    .map(|line| line[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for line in lines {
            let mut text = String::new();
            for ((cell, &width), &right) in line.iter().zip(&widths).zip(&right) {
                let padding = " ".repeat(width - cell.chars().count());
                let (before, after) = if right {
                    (padding.as_str(), "")
                } else {
                    ("", padding.as_str())
                };
                text.extend([before, cell, after, "  "]);
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// The value, or `-` if there is none.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// `3d 4h`, `2m 5s`: the two largest units.
pub fn duration(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let mut rest = seconds;
    let parts = units.map(|(name, length)| {
        let count = rest / length;
        rest %= length;
        (name, count)
    });
    let first = parts.iter().position(|(_, count)| *count > 0).unwrap_or(3);
    let shown = &parts[first..(first + 2).min(4)];
    shown
        .iter()
        .map(|(name, count)| format!("{count}{name}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// `name 5, other 3`, or `-` when there is nothing.
pub fn counts<'a>(counts: impl IntoIterator<Item = (&'a String, &'a u64)>) -> String {
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if parts.is_empty() {
        "-".into()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let said = [0, 1, 2].map(|number| counted(number, "port"));
        assert_eq!(said, ["0 ports", "1 port", "2 ports"]);
        assert_eq!(counted(1u64, "switch"), "1 switch");
        assert_eq!(counted(u64::MAX, "switch"), "18446744073709551615 switches");
        assert_eq!(counted(3usize, "MAC address"), "3 MAC addresses");
    }

    #[test]
    fn nothing_that_is_printed_controls_a_terminal() {
        let evil = "a\x1b]0;title\x07\u{9b}2J\r\u{202e}b\tc\nd\u{e4}";
        assert_eq!(plain(evil), "a?]0;title??2J??b\tc\nd\u{e4}");
        let json = serde_json::to_string(evil).unwrap();
        let clean = harmless(&json, |c| format!("\\u{:04x}", u32::from(c)));
        assert!(
            clean.chars().all(|c| !c.is_control() && c != '\u{202e}'),
            "{clean}"
        );
        assert_eq!(serde_json::from_str::<String>(&clean).unwrap(), evil);
    }

    #[test]
    fn columns_align() {
        let mut table = Table::new(&["PORT", ">PACKETS", "STATE"]);
        table.row(["vm1".into(), "7".into(), "running".into()]);
        table.row(["a-longer-näme".into(), "1234567890".into(), String::new()]);
        let expected = "\
PORT              PACKETS  STATE
vm1                     7  running
a-longer-näme  1234567890
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn durations_have_two_units() {
        let texts = [0, 59, 60, 125, 3600, 100_000, 86_400].map(duration);
        assert_eq!(texts, ["0s", "59s", "1m 0s", "2m 5s", "1h 0m", "1d 3h", "1d 0h"]);
    }
}
