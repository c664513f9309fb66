//! Text that other processes wrote, made fit for state, logs and terminals.
//!
//! Data plane and driver domain are the first targets of a guest that attacks, and their texts about ports
//! end in answers to users, who print them. Every text is cleaned before it is used: no character of it
//! controls a terminal, forges a line, or changes the direction in which the following text is read, and its
//! length is bounded.

use control_protocol::RequestError;
use control_protocol::data_plane::{Answer, FromDataPlane, PortState};
use control_protocol::driver::{FromDriver, InterfaceState, QueueSockets};
use control_protocol::p4::{MAX_CELL_WORDS, MAX_P4_SWITCHES, P4Answer};
use control_protocol::rules::MAX_RECORDS;
use control_protocol::work::WorkReport;

/// Longest sentence in characters.
const MAX_TEXT: usize = 240;

/// Longest name in characters. An honest process reports only names that we gave.
const MAX_NAME: usize = 64;

/// Largest error number of Linux (`MAX_ERRNO`).
const MAX_ERRNO: i32 = 4095;

/// `EIO` (errno(3)).
pub const EIO: i32 = 5;

/// Most reasons with which a P4 switch drops packets.
const MAX_REASONS: usize = 16;

/// Most threads in a report.
const MAX_WORKERS: usize = 4096;

/// At most so many characters; those that are not plain text are spelled out (`\u{1b}`).
fn cut(text: &str, most: usize) -> String {
    let plain = |c: char| {
        let direction = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        !c.is_control() && !direction
    };
    let mut clean = String::new();
    let mut left = most;
    for c in text.chars() {
        let mut spelled = String::new();
        match plain(c) {
            true => spelled.push(c),
            false => spelled.extend(c.escape_unicode()),
        }
        let length = spelled.chars().count();
        if length > left {
            clean.push('…');
            break;
        }
        left -= length;
        clean.push_str(&spelled);
    }
    clean
}

/// A sentence for users.
pub fn text(text: &str) -> String {
    cut(text, MAX_TEXT)
}

/// An error number: the one that was said, if it is one.
fn errno(said: i32) -> i32 {
    if (1..=MAX_ERRNO).contains(&said) {
        said
    } else {
        EIO
    }
}

/// Cleans all text in a message.
pub fn data_plane(message: FromDataPlane) -> FromDataPlane {
    match message {
        FromDataPlane::Answer { serial, result } => FromDataPlane::Answer {
            serial,
            result: result.map(answer).map_err(|error| RequestError {
                errno: errno(error.errno),
                text: text(&error.text),
            }),
        },
        FromDataPlane::PortState {
            port,
            state,
            peer,
            shortfall,
        } => FromDataPlane::PortState {
            port,
            state: port_state(state),
            peer,
            shortfall: shortfall.as_deref().map(text),
        },
        FromDataPlane::ForeignPort {
            port,
            connection,
            state,
            peer,
        } => FromDataPlane::ForeignPort {
            port,
            connection,
            state: port_state(state),
            peer,
        },
        upcall @ FromDataPlane::Upcall(_) => upcall,
        FromDataPlane::RuleRecords(mut records) => {
            records.truncate(MAX_RECORDS);
            FromDataPlane::RuleRecords(records)
        }
    }
}

fn port_state(state: PortState) -> PortState {
    match state {
        PortState::Broken(error) => PortState::Broken(text(&error)),
        state => state,
    }
}

fn answer(answer: Answer) -> Answer {
    match answer {
        Answer::Ports { mut ports, more } => {
            for info in &mut ports {
                info.spec.name = cut(&info.spec.name, MAX_NAME);
                info.state = port_state(std::mem::replace(&mut info.state, PortState::Disconnected));
                info.shortfall = info.shortfall.as_deref().map(text);
            }
            Answer::Ports { ports, more }
        }
        Answer::P4(answer) => Answer::P4(p4(answer)),
        Answer::Work(report) => Answer::Work(work(report)),
        Answer::Done
        | Answer::Welcome { .. }
        | Answer::Counters { .. }
        | Answer::Ended { .. }
        | Answer::Flows { .. }
        | Answer::FlowStats { .. }
        | Answer::Meter(_)
        | Answer::Rules(_)
        | Answer::Trace(_) => answer,
    }
}

fn p4(answer: P4Answer) -> P4Answer {
    match answer {
        P4Answer::Switches(mut switches) => {
            switches.truncate(MAX_P4_SWITCHES);
            for info in &mut switches {
                info.counts.drops.truncate(MAX_REASONS);
                for (reason, _) in &mut info.counts.drops {
                    *reason = cut(reason, MAX_NAME);
                }
            }
            P4Answer::Switches(switches)
        }
        P4Answer::Cells {
            mut words,
            stride,
            more,
        } => {
            words.truncate(MAX_CELL_WORDS);
            // Without cells in them, further answers would never end.
            let more = more && !words.is_empty();
            P4Answer::Cells {
                words,
                stride: stride.clamp(1, MAX_CELL_WORDS as u32),
                more,
            }
        }
    }
}

fn work(mut report: WorkReport) -> WorkReport {
    report.workers.truncate(MAX_WORKERS);
    for worker in &mut report.workers {
        worker.name = cut(&worker.name, MAX_NAME);
    }
    report
}

/// Cleans all text in a message that reaches users. Text that is only compared stays as it is.
pub fn driver(message: FromDriver) -> FromDriver {
    match message {
        FromDriver::State {
            port,
            state: InterfaceState::Failed(error),
        } => FromDriver::State {
            port,
            state: InterfaceState::Failed(text(&error)),
        },
        FromDriver::Queue { port, result } => FromDriver::Queue {
            port,
            result: result
                .map(|sockets| QueueSockets {
                    receives: sockets.receives.map_err(|error| text(&error)),
                    ..sockets
                })
                .map_err(|error| text(&error)),
        },
        FromDriver::Steered {
            port,
            mac,
            is_on,
            result,
        } => FromDriver::Steered {
            port,
            mac,
            is_on,
            result: result.map_err(|error| text(&error)),
        },
        message => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::PortId;

    #[test]
    fn plain_text_stays_and_the_rest_is_spelled_out() {
        assert_eq!(
            text("ring 0: Schleife im Gäste-Ring"),
            "ring 0: Schleife im Gäste-Ring"
        );
        assert_eq!(
            text("\x1b[2J\u{9b}31m\r\n\0"),
            "\\u{1b}[2J\\u{9b}31m\\u{d}\\u{a}\\u{0}"
        );
        assert_eq!(text("\u{202e}desrever"), "\\u{202e}desrever");
        let long = text(&"ä".repeat(100_000));
        assert_eq!(long.chars().count(), MAX_TEXT + 1);
        let long = text(&"\x1b".repeat(100_000));
        assert!(long.chars().count() <= MAX_TEXT + 1 && long.ends_with('…'));
    }

    #[test]
    fn each_message_with_text_is_cleaned() {
        let evil = || "\x1b]0;title\x07".repeat(1000);
        let clean = |message: String| !message.contains('\x1b') && message.len() < 4000;
        let state = PortState::Broken(evil());
        let cleaned = data_plane(FromDataPlane::PortState {
            port: PortId(1),
            state,
            peer: None,
            shortfall: Some(evil()),
        });
        assert!(clean(format!("{cleaned:?}")));
        let cleaned = data_plane(FromDataPlane::Answer {
            serial: 1,
            result: Err(RequestError {
                errno: 22,
                text: evil(),
            }),
        });
        assert!(clean(format!("{cleaned:?}")));
        let cleaned = driver(FromDriver::State {
            port: PortId(1),
            state: InterfaceState::Failed(evil()),
        });
        assert!(clean(format!("{cleaned:?}")));
        let mut report = WorkReport::default();
        report.workers.push(control_protocol::work::WorkerReport {
            name: evil(),
            ..Default::default()
        });
        assert!(clean(format!("{:?}", work(report))));
    }
}
