//! Compares the packets that left with the expected ones.

use std::collections::BTreeMap;
use std::fmt::Write;

use p4_ir::Checked;
use p4_ir::setup::Setup;

use crate::error::{Difference, Expected};
use crate::script::{Command, Expectation, Line};
use crate::session::Session;

/// Packets of a port.
#[derive(Debug, Default)]
struct Port {
    /// At most one more than are expected.
    sent: Vec<Vec<u8>>,
    /// Number of all that were sent.
    count: usize,
    /// With the line that expects it.
    expected: Vec<(usize, Expectation)>,
}

/// The packets that a script expects, and those that left. Packets that leave by ports that the script does
/// not name are ignored.
#[derive(Debug, Default)]
pub struct Expectations {
    ports: BTreeMap<u32, Port>,
}

impl Expectations {
    /// What a script expects.
    pub fn of(script: &[Line]) -> Self {
        let mut ports: BTreeMap<u32, Port> = BTreeMap::new();
        for line in script {
            match &line.command {
                Command::Packet(port, _) => {
                    ports.entry(*port).or_default();
                }
                Command::Expect(port, expected) => {
                    let port = ports.entry(*port).or_default();
                    port.expected.push((line.line, expected.clone()));
                }
                _ => {}
            }
        }
        Self { ports }
    }

    /// Notes a packet that left.
    pub fn sent(&mut self, port: u32, bytes: &[u8]) {
        if let Some(port) = self.ports.get_mut(&port) {
            port.count += 1;
            if port.sent.len() <= port.expected.len() {
                port.sent.push(bytes.to_vec());
            }
        }
    }

    /// The first difference by its line; packets that no line expected come last.
    pub fn difference(&self) -> Option<Difference> {
        let differences = self
            .ports
            .iter()
            .filter_map(|(&number, port)| difference(number, port));
        let first = differences.min_by_key(|(line, _)| *line);
        first.map(|(_, difference)| difference)
    }
}

/// Runs a script on a fresh program.
///
/// # Errors
///
/// As for [`run_given`].
pub fn run(program: Checked, script: &[Line]) -> Result<(), Difference> {
    run_given(program, &Setup::default(), script)
}

/// Runs a script on a fresh program that has been given groups, sessions and rates of meters.
///
/// # Errors
///
/// The first difference: a command that cannot be done or a counter that differs, else the first packet.
pub fn run_given(program: Checked, given: &Setup, script: &[Line]) -> Result<(), Difference> {
    let mut session = Session::new(program).map_err(Difference::Program)?;
    session.state().give(given).map_err(Difference::Program)?;
    let mut expectations = Expectations::of(script);
    for line in script {
        let sent = session.run(&line.command).map_err(|error| Difference::Command {
            line: line.line,
            error,
        })?;
        for (port, bytes) in sent {
            expectations.sent(port, &bytes);
        }
    }
    expectations.difference().map_or(Ok(()), Err)
}

fn difference(number: u32, port: &Port) -> Option<(usize, Difference)> {
    for (index, (line, expected)) in port.expected.iter().enumerate() {
        let at = Expected {
            line: *line,
            port: number,
            packet: index + 1,
        };
        let wanted = shown(expected);
        let Some(sent) = port.sent.get(index) else {
            let expected = wanted;
            return Some((*line, Difference::NothingLeft { at, expected }));
        };
        let sent = digits(sent);
        if !matches(expected, &sent) {
            let expected = wanted;
            return Some((*line, Difference::OtherLeft { at, expected, sent }));
        }
    }
    let next = digits(port.sent.get(port.expected.len())?);
    let difference = Difference::MoreLeft {
        port: number,
        sent: port.count,
        expected: port.expected.len(),
        next,
    };
    Some((usize::MAX, difference))
}

fn matches(expected: &Expectation, sent: &str) -> bool {
    let Some(digits) = &expected.digits else {
        return true;
    };
    let length = if expected.complete {
        sent.len() == digits.len()
    } else {
        sent.len() >= digits.len()
    };
    length
        && digits
            .bytes()
            .zip(sent.bytes())
            .all(|(expected, sent)| expected == b'*' || expected == sent)
}

fn shown(expected: &Expectation) -> String {
    let digits = expected.digits.as_deref().unwrap_or("any packet");
    format!("{digits}{}", if expected.complete { "$" } else { "" })
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expectation(digits: &str, complete: bool) -> Expectation {
        Expectation {
            digits: Some(digits.to_owned()),
            complete,
        }
    }

    #[test]
    fn prefixes_lengths_and_gaps() {
        assert!(matches(&expectation("0*ff", false), "0affab"));
        assert!(!matches(&expectation("0*ff", true), "0affab"));
        assert!(matches(&expectation("0*ff", true), "0aff"));
        assert!(!matches(&expectation("0*ff", false), "0a"));
        assert!(!matches(&expectation("00ff", false), "00fe"));
        assert!(matches(
            &Expectation {
                digits: None,
                complete: false
            },
            ""
        ));
        assert!(!matches(&expectation("", true), "00"));
    }

    #[test]
    fn the_first_difference_of_a_port_is_told() {
        let expected = [expectation("00", false), expectation("01", true)];
        let port = |sent: &[&[u8]]| Port {
            sent: sent.iter().map(|bytes| bytes.to_vec()).collect(),
            count: sent.len(),
            expected: expected
                .iter()
                .enumerate()
                .map(|(index, one)| (index + 5, one.clone()))
                .collect(),
        };
        let told = |sent: &[&[u8]]| difference(3, &port(sent)).map(|(_, difference)| difference.to_string());
        assert_eq!(told(&[&[0, 7], &[1]]), None);
        assert_eq!(
            told(&[&[0]]).unwrap(),
            "line 6: port 3, packet 2: expected 01$, nothing left"
        );
        assert_eq!(
            told(&[&[0], &[1, 2]]).unwrap(),
            "line 6: port 3, packet 2: expected 01$\n      got 0102"
        );
        assert!(
            told(&[&[0], &[1], &[9]])
                .unwrap()
                .ends_with("3 packets left, 2 were expected; the next is 09")
        );
    }
}
