//! A virtual switch for hosts that run virtual machines.
//!
//! | module | contents |
//! |---|---|
//! | `cli`, `manual`, `output` | the command line, its manual pages, and output for users |
//! | `complete` | words for shells that complete a command line |
//! | `schema` | schemas of what `--json` prints |
//! | `supervisor`, `children` | `hyperswitch run`: the supervisor, and the processes that it starts |
//! | `verbs`, `capture_file`, `frame` | verbs for a running instance; capture files; frames for `trace` |
//! | `cni` | plugins of containers' runtimes |
//! | `ovs` | Open vSwitch's own programs on a switch of the instance |
//! | `p4` | verbs for P4 programs |
//!
//! One executable: `hyperswitch run` is the supervisor, hidden subcommands are the processes it starts, and
//! all other verbs are requests to the control process of a running instance. Exit status: 0 for success, 1
//! when something could not be done, 2 for wrong usage or an unusable configuration file, 3 and 4 for a
//! switch that is degraded or down, where that was asked.

#![forbid(unsafe_code)]

mod capture_file;
mod children;
mod cli;
mod cni;
mod complete;
#[cfg(test)]
mod documented;
mod frame;
mod manual;
mod output;
mod ovs;
mod p4;
mod schema;
mod supervisor;
mod verbs;

use clap::Parser;
use cli::{Cli, Verb};
use management::{ErrorCode, ErrorReport};
use std::process::ExitCode;
use std::time::Duration;

/// How long an answer may take, unless the user says otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    complete::answer_shell();
    let cli = Cli::try_parse_from(cni::arguments()).unwrap_or_else(|error| {
        // Help and version are no errors.
        if error.use_stderr() && std::env::args().any(|argument| argument == "--json") {
            let text = error.to_string();
            output::json_error(&ErrorReport::new(ErrorCode::Usage, text.trim_end()));
        }
        error.exit()
    });
    // Packets on standard output are nothing that JSON could follow.
    let tells_json = cli.json && !cli.writes_packets();
    let timeout = cli.timeout.map(|seconds| Duration::from_secs(seconds.into()));
    let instance = verbs::Instance {
        run_dir: &cli.run_dir,
        timeout: timeout.unwrap_or(TIMEOUT),
        is_timeout_given: timeout.is_some(),
    };
    let done = match cli.verb {
        Verb::Run { config } => supervisor::run(&cli.run_dir, config.as_deref()),
        Verb::DataPlane => children::data_plane(),
        Verb::Driver => children::driver(&cli.run_dir),
        Verb::Forwarder { number } => children::forwarder(number),
        Verb::OvsGlue {
            database,
            claim_connections,
        } => children::ovs(&cli.run_dir, database, claim_connections),
        Verb::View { listen, group, mode } => children::view(&listen, group.as_ref(), mode),
        Verb::P4Runtime {
            listen,
            certificate,
            key,
            client_authorities,
        } => children::p4runtime(listen, certificate.zip(key), client_authorities),
        Verb::Control { config } => children::control(cli.run_dir, config),
        Verb::Cni => cni::run(&cli.run_dir, timeout.unwrap_or(TIMEOUT)),
        Verb::Netavark(verb) => cni::run_netavark(&verb, &cli.run_dir, timeout.unwrap_or(TIMEOUT)),
        Verb::Schema => schema::print().map(|()| ExitCode::SUCCESS),
        Verb::Man { directory } => manual::pages(&directory),
        Verb::Completions { directory } => manual::completions(&directory),
        Verb::Ovs(verb) => ovs::run(&verb, &cli.run_dir, timeout, cli.json).map(|()| ExitCode::SUCCESS),
        Verb::P4(verb) => p4::run(&verb, instance, cli.json).map(|()| ExitCode::SUCCESS),
        Verb::User(verb) => verbs::run(&verb, instance, cli.json),
    };
    done.unwrap_or_else(|error| {
        // The reader of our output has closed it, as `head` does: not an error.
        if output::is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        let report = output::report(&error);
        if tells_json && !error.is::<output::Told>() {
            output::json_error(&report);
        }
        eprintln!("hyperswitch: {}", output::plain(&report.error));
        ExitCode::FAILURE
    })
}
