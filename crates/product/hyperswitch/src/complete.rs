//! Words for shells that complete a command line: verbs and options from its definition, and names of ports,
//! switches, lists and P4 programs from the running instance, at the socket for queries.
//!
//! Shells call the command itself, with `COMPLETE` in its environment. An instance that does not answer
//! within [`PATIENCE`] has no names.

use crate::manual;
use clap::Command;
use clap_complete::env::Shells;
use clap_complete::{ArgValueCandidates, CompleteEnv, CompletionCandidate};
use management::{Client, Reply, Request};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The variable that says for which shell words are wanted.
const VARIABLE: &str = "COMPLETE";

/// How long a user waits for names.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers a shell, and ends, if one has asked.
pub fn answer_shell() {
    CompleteEnv::with_factory(|| with_names(manual::command(), "")).complete();
}

/// What a shell reads to learn that the command completes itself.
///
/// # Errors
/// When it cannot be written, or there is no such shell.
pub fn register(shell: &str, to: &mut impl io::Write) -> io::Result<()> {
    let shells = Shells::builtins();
    let shell = shells
        .completer(shell)
        .ok_or_else(|| io::Error::other(format!("no words can be completed in {shell}")))?;
    let name = "hyperswitch";
    shell.write_registration(VARIABLE, name, name, name, to)
}

/// What an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Ports,
    Switches,
    Policies,
    P4,
}

impl Names {
    /// Of an argument of a verb, `port show`.
    fn of(verb: &str, argument: &str) -> Option<Names> {
        Some(match (verb, argument) {
            (_, "port" | "in_port" | "to") => Names::Ports,
            (_, "switch") => Names::Switches,
            ("port del" | "port set" | "port show", "name") => Names::Ports,
            ("switch del", "name") => Names::Switches,
            ("policy show", "name") => Names::Policies,
            (verb, "name") if verb.starts_with("p4 ") && verb != "p4 load" && verb != "p4 import" => {
                Names::P4
            }
            _ => return None,
        })
    }

    fn found(self) -> Vec<CompletionCandidate> {
        let names = self.ask().unwrap_or_default();
        names.into_iter().map(CompletionCandidate::new).collect()
    }

    /// Asks the instance that the command line names.
    fn ask(self) -> Option<Vec<String>> {
        let mut client = Client::connect_to_view(&run_dir(std::env::args()), PATIENCE).ok()?;
        let request = match self {
            Names::Ports => Request::PortList { switch: None },
            Names::Switches => Request::SwitchList,
            Names::Policies => Request::PolicyList,
            Names::P4 => Request::P4List,
        };
        Some(match client.call(&request).ok()? {
            Reply::Ports(ports) => ports.into_iter().map(|port| port.name).collect(),
            Reply::Switches(all) => all.into_iter().map(|it| it.config.name.to_string()).collect(),
            Reply::Policies(all) => all.into_iter().map(|policy| policy.name).collect(),
            Reply::P4(all) => all.into_iter().map(|switch| switch.name).collect(),
            _ => return None,
        })
    }
}

/// The run directory of a command line.
fn run_dir(mut words: impl Iterator<Item = String>) -> PathBuf {
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--run-dir") {
            Some("") => words.next(),
            Some(value) => value.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        if let Some(value) = value {
            return value.into();
        }
    }
    "/run/hyperswitch".into()
}

/// The command with names at each argument that takes one.
fn with_names(command: Command, verb: &str) -> Command {
    let verb = verb.to_owned();
    let parent = verb.clone();
    let command = command.mut_args(
        move |argument| match Names::of(&verb, argument.get_id().as_str()) {
            Some(names) => argument.add(ArgValueCandidates::new(move || names.found())),
            None => argument,
        },
    );
    command.mut_subcommands(move |child| {
        let path = format!("{parent} {}", child.get_name());
        with_names(child, path.trim_start())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instance_is_that_of_the_command_line() {
        let of = |line: &str| run_dir(line.split(' ').map(str::to_owned));
        assert_eq!(
            of("hyperswitch -- hyperswitch port show "),
            PathBuf::from("/run/hyperswitch")
        );
        assert_eq!(of("x --run-dir /a port show"), PathBuf::from("/a"));
        assert_eq!(of("x --run-dir=/b port show"), PathBuf::from("/b"));
        assert_eq!(of("x port show --run-dir"), PathBuf::from("/run/hyperswitch"));
    }

    #[test]
    fn arguments_that_take_names_have_them() {
        for (verb, argument, names) in [
            ("port show", "name", Some(Names::Ports)),
            ("port add", "name", None),
            ("port add", "switch", Some(Names::Switches)),
            ("stats", "port", Some(Names::Ports)),
            ("p4 unload", "name", Some(Names::P4)),
            ("p4 load", "name", None),
        ] {
            assert_eq!(Names::of(verb, argument), names, "{verb} {argument}");
        }
    }
}
