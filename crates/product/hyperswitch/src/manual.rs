//! Manual pages and shell completions, generated from the command line's own definition for packages and
//! `make install`. They cannot promise an option that does not exist, and none can be missing.

use crate::cli::Cli;
use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use std::fs::{self, File};
use std::path::Path;
use std::process::ExitCode;

/// Sections of the command's own page besides its options.
const MORE: &str = r#".SH "EXIT STATUS"
.TP
.B 0
success
.TP
.B 1
something could not be done
.TP
.B 2
wrong usage, or a configuration file that cannot be used
.TP
.B 3
.BR "status \-\-check" " and " "status \-\-wait" :
the switch is degraded
.TP
.B 4
the same: it is down
.PP
With
.B \-\-json
an error is an object with the text as
.BR error ,
a word that stays the same as
.BR code ,
and its
.BR place :
file, line and column, or switch and port.
.B hyperswitch schema
has the codes, and what each verb prints.
.SH FILES
.TP
.I /etc/hyperswitch/hyperswitch.toml
the configuration of the service
.TP
.I /run/hyperswitch/control.sock
requests of users; one line of JSON each
.TP
.I /run/hyperswitch/view.sock
requests that change nothing
.TP
.I /run/hyperswitch/PORT.sock
default socket of a vhost-user port
.SH ENVIRONMENT
.TP
.B HYPERSWITCH_LOG
what is logged to standard error: off, error, warn, info (the default), debug or trace
.TP
.B HYPERSWITCH_SECCOMP
.I report
makes the data plane name a forbidden system call on standard error before it ends
.SH "SEE ALSO"
.BR hyperswitch.toml (5),
.BR hyperswitch (7)
"#;

/// Examples of verbs, for their pages: what each does, and the command.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "run",
        &[(
            "Run a configuration",
            "hyperswitch run --config /etc/hyperswitch/hyperswitch.toml",
        )],
    ),
    (
        "status",
        &[
            ("Is it well, for a script", "hyperswitch status --check"),
            ("Wait until it forwards", "hyperswitch status --wait=degraded"),
        ],
    ),
    (
        "report",
        &[(
            "An archive for somebody who is to help",
            "hyperswitch report -o report.tar",
        )],
    ),
    (
        "switch-add",
        &[(
            "A switch with an uplink",
            "hyperswitch switch add lan --uplink eth1",
        )],
    ),
    (
        "port-add",
        &[
            (
                "A virtual machine in VLAN 10",
                "hyperswitch port add lan vm1 --access 10",
            ),
            (
                "A trunk",
                "hyperswitch port add lan router --trunk 10,100-199 --native 10",
            ),
            (
                "A container",
                "hyperswitch port add lan web --type tap --netns web --address 10.0.0.5/24",
            ),
        ],
    ),
    (
        "port-set",
        &[("Another bandwidth", "hyperswitch port set vm1 --max-rate-from 1G")],
    ),
    (
        "events",
        &[("What happens from now on", "hyperswitch events --follow")],
    ),
    (
        "stats",
        &[(
            "The five busiest ports, each second",
            "hyperswitch stats --watch --sort rx --top 5",
        )],
    ),
    (
        "top",
        &[
            ("Ports with drops first", "hyperswitch top --sort drops"),
            ("One picture as text", "hyperswitch top --count 1 --filter vm"),
        ],
    ),
    (
        "trace",
        &[(
            "Where a packet would go",
            "hyperswitch trace --in-port vm1 --src 52:54:00:00:00:01 --dst 52:54:00:00:00:02",
        )],
    ),
    (
        "capture",
        &[("Into a file", "hyperswitch capture vm1 -w vm1.pcap")],
    ),
    (
        "check",
        &[("Would it be accepted?", "hyperswitch check new.toml")],
    ),
    (
        "apply",
        &[(
            "Return to the former one unless confirmed",
            "hyperswitch apply new.toml --confirm 60",
        )],
    ),
    (
        "schema",
        &[("For a program that checks outputs", "hyperswitch schema")],
    ),
    (
        "reload",
        &[("What would change?", "hyperswitch reload --dry-run")],
    ),
];

/// The examples of a page, if it has any.
fn examples(page: &str) -> String {
    let verb = page.strip_prefix("hyperswitch-").unwrap_or_default();
    let Some((_, examples)) = EXAMPLES.iter().find(|(name, _)| *name == verb) else {
        return String::new();
    };
    let example = |(what, command): &(&str, &str)| {
        format!(
            "{what}:\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n",
            command.replace('-', "\\-")
        )
    };
    let examples: Vec<String> = examples.iter().map(example).collect();
    format!(".SH EXAMPLES\n{}", examples.join(".PP\n"))
}

/// Writes `hyperswitch.1` and a page for each verb, `hyperswitch-port-add.1`, into a directory.
///
/// # Errors
/// When a file cannot be written.
pub fn pages(directory: &Path) -> Result<ExitCode> {
    create(directory)?;
    let mut root = command();
    root.build();
    page(&root, "hyperswitch", directory)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes what has bash, zsh and fish complete command lines into a directory, under the names that they look
/// for.
///
/// # Errors
/// When a file cannot be written.
pub fn completions(directory: &Path) -> Result<ExitCode> {
    create(directory)?;
    for (shell, name) in [
        ("bash", "hyperswitch.bash"),
        ("zsh", "_hyperswitch"),
        ("fish", "hyperswitch.fish"),
    ] {
        let path = directory.join(name);
        let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        crate::complete::register(shell, &mut file)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The command line without hidden verbs.
pub fn command() -> Command {
    let full = Cli::command();
    let (hidden, shown): (Vec<_>, Vec<_>) = full
        .get_subcommands()
        .cloned()
        .partition(|verb| verb.is_hide_set());
    debug_assert!(!hidden.is_empty(), "the processes have verbs of their own");
    // Verbs cannot be removed, so the command is put together again.
    let mut command = Command::new("hyperswitch")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown)
        .args(full.get_arguments().cloned());
    if let Some(about) = full.get_about() {
        command = command.about(about.clone());
    }
    command
}

fn page(command: &Command, name: &str, directory: &Path) -> Result<()> {
    let path = directory.join(format!("{name}.1"));
    let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let manual = clap_mangen::Man::new(command.clone())
        .title(name.to_owned())
        .source(concat!("hyperswitch ", env!("CARGO_PKG_VERSION")));
    manual.render(&mut file)?;
    if name == "hyperswitch" {
        std::io::Write::write_all(&mut file, MORE.as_bytes())?;
    }
    std::io::Write::write_all(&mut file, examples(name).as_bytes())?;
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        page(verb, &format!("{name}-{}", verb.get_name()), directory)?;
    }
    Ok(())
}

fn create(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn examples_are_commands() {
        for (verb, examples) in EXAMPLES {
            assert!(!examples.is_empty());
            for (_, command) in *examples {
                let words = command.split(' ');
                assert!(Cli::try_parse_from(words).is_ok(), "{command}");
                let name = format!("hyperswitch {}", verb.replace('-', " "));
                assert!(command.starts_with(&name), "{command} is in the page of {verb}");
            }
        }
    }
}
