//! Manual pages and shell completions, generated from the command line's own definition for packages and
//! `make install`. They cannot promise an option that does not exist, and none can be missing.

use crate::cli::Cli;
use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::fs::{self, File};
use std::path::Path;
use std::process::ExitCode;

/// Sections of the command's own page besides its options.
const MORE: &str = r#".SH "EXIT STATUS"
0 for success, 1 when something could not be done, 2 for wrong usage or an unusable configuration file.
.SH FILES
.TP
.I /run/hyperswitch/control.sock
requests of users; one line of JSON each
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
"#;

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

/// Writes completions for bash, zsh and fish into a directory, under the names that those shells look for.
///
/// # Errors
/// When a file cannot be written.
pub fn completions(directory: &Path) -> Result<ExitCode> {
    create(directory)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command(), "hyperswitch", directory)
            .with_context(|| format!("cannot write into {}", directory.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The command line without hidden verbs.
fn command() -> Command {
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
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        page(verb, &format!("{name}-{}", verb.get_name()), directory)?;
    }
    Ok(())
}

fn create(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))
}
