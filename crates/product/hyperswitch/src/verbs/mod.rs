//! Verbs for a running instance: each makes a request, and prints the answer as a table or as JSON.

mod apply;
mod capture;
mod check;
mod config_file;
mod events;
mod explain;
mod health;
mod p4;
mod policy;
mod policy_decisions;
mod policy_diff;
mod policy_log;
mod port;
mod rate;
mod reload;
mod report;
mod show;
mod stats;
mod status;
mod switch;
mod top;
pub mod trace;

use crate::cli::{
    ConfigVerb, FlowVerb, MacVerb, PolicyVerb, PortVerb, StatsArgs, StatsVerb, SwitchVerb, UserVerb,
};
use crate::output;
use anyhow::Result;
use management::{Client, ClientError, Reply, Request};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Carries out a verb.
///
/// # Errors
/// When there is no instance, it refuses, or output fails.
pub fn run(verb: &UserVerb, instance: Instance<'_>, json: bool) -> Result<ExitCode> {
    match verb {
        UserVerb::Check { file } => check::run(file, instance.run_dir, json),
        UserVerb::Status(args) if args.check || args.wait.is_some() => health::run(args, instance, json),
        _ => ask(verb, instance, json).map(|()| ExitCode::SUCCESS),
    }
}

fn ask(verb: &UserVerb, instance: Instance<'_>, json: bool) -> Result<()> {
    let mut session = Session::new(instance, json);
    match verb {
        UserVerb::Check { file } => check::run(file, instance.run_dir, json).map(drop),
        UserVerb::Config(ConfigVerb::Show) => session.show(Request::ConfigShow),
        UserVerb::Apply(args) => apply::run(&mut session, args),
        UserVerb::Confirm => apply::confirm(&mut session),
        UserVerb::Status(_) => status::run(&mut session),
        UserVerb::Report(args) => report::run(args, instance.run_dir),
        UserVerb::Switch(verb) => session.show(switch::request(verb)),
        UserVerb::Port(verb @ PortVerb::Show { .. }) => session.show_with(port::request(verb), port::details),
        UserVerb::Port(verb) => session.show(port::request(verb)),
        UserVerb::Mac(MacVerb::List { switch }) => session.show(Request::MacList {
            switch: switch.clone(),
        }),
        UserVerb::Mac(MacVerb::Flush { switch, port }) => session.show(Request::MacFlush {
            switch: switch.clone(),
            port: port.clone(),
        }),
        UserVerb::Flow(FlowVerb::Flush { switch }) => session.show(Request::FlowFlush {
            switch: switch.clone(),
        }),
        UserVerb::Flow(FlowVerb::List { switch }) => session.show(Request::FlowList {
            switch: switch.clone(),
        }),
        UserVerb::Stats(StatsArgs {
            verb: Some(StatsVerb::Placement),
            ..
        }) => session.show(Request::Placement),
        UserVerb::Stats(args) => stats::run(&mut session, args),
        UserVerb::Top(args) => top::run(args, instance),
        UserVerb::Events { follow } => events::run(&mut session, *follow),
        UserVerb::Trace(args) => trace::run(&mut session, args),
        UserVerb::Capture(args) => capture::run(&mut session, args),
        UserVerb::Policy(PolicyVerb::Check { file }) => policy::check(file, json),
        UserVerb::Policy(PolicyVerb::List) => session.show(Request::PolicyList),
        UserVerb::Policy(PolicyVerb::Show { name }) => {
            session.show(Request::PolicyShow { policy: name.clone() })
        }
        UserVerb::Policy(PolicyVerb::Explain(args)) => explain::run(&mut session, args),
        UserVerb::Policy(PolicyVerb::Log { follow, port }) => {
            policy_log::run(&mut session, port.as_deref(), *follow)
        }
        UserVerb::Policy(PolicyVerb::Diff { file }) => policy_diff::run(&mut session, file),
        UserVerb::Reload { dry_run } => reload::run(&mut session, *dry_run),
        UserVerb::Version => show::versions(&mut session),
    }
}

/// A running instance, and how long its answers may take.
#[derive(Clone, Copy)]
pub struct Instance<'a> {
    pub run_dir: &'a Path,
    pub timeout: Duration,
    /// The user has chosen it.
    pub is_timeout_given: bool,
}

/// A connection, and the output format that the user chose.
pub struct Session<'a> {
    instance: Instance<'a>,
    client: Option<Client>,
    pub json: bool,
}

impl<'a> Session<'a> {
    /// A session that connects when something is asked.
    pub fn new(instance: Instance<'a>, json: bool) -> Session<'a> {
        Session {
            instance,
            client: None,
            json,
        }
    }

    fn client(&mut self) -> Result<&mut Client, ClientError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(self.instance.run_dir, self.instance.timeout)?,
        };
        Ok(self.client.insert(client))
    }

    /// Makes a request.
    ///
    /// # Errors
    /// When the instance refuses, or goes away.
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.client()?.call(request)
    }

    /// Makes a request with a descriptor, and shows the answer.
    ///
    /// # Errors
    /// When the instance refuses, or output fails.
    pub fn show_sent(&mut self, request: &Request, fd: BorrowedFd<'_>) -> Result<()> {
        let reply = self.call_sent(request, fd)?;
        self.print(&reply, show::text)
    }

    /// Makes a request with a descriptor.
    ///
    /// # Errors
    /// When the instance refuses, or goes away.
    pub fn call_sent(&mut self, request: &Request, fd: BorrowedFd<'_>) -> Result<Reply, ClientError> {
        self.client()?.call_with(request, fd)
    }

    /// Makes a request, and shows the answer.
    ///
    /// # Errors
    /// When the instance refuses, or output fails.
    pub fn show(&mut self, request: Request) -> Result<()> {
        self.show_with(request, show::text)
    }

    fn show_with(&mut self, request: Request, text: fn(&Reply) -> String) -> Result<()> {
        let reply = self.call(&request)?;
        self.print(&reply, text)
    }

    fn print(&self, reply: &Reply, text: fn(&Reply) -> String) -> Result<()> {
        if self.json {
            output::json(&Bare(reply))
        } else {
            output::print(&text(reply))
        }
    }
}

/// A reply without the tag of its kind, which the verb implies.
struct Bare<'a>(&'a Reply);

impl serde::Serialize for Bare<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Reply::Done => output::Done::TRUE.serialize(serializer),
            Reply::Version(reply) => reply.serialize(serializer),
            Reply::Status(reply) => reply.serialize(serializer),
            Reply::Switches(reply) => reply.serialize(serializer),
            Reply::Ports(reply) => reply.serialize(serializer),
            Reply::Macs(reply) => reply.serialize(serializer),
            Reply::Flows(reply) => reply.serialize(serializer),
            Reply::Stats(reply) => reply.serialize(serializer),
            Reply::Placement(reply) => reply.serialize(serializer),
            Reply::Trace(reply) => reply.serialize(serializer),
            Reply::Policies(reply) => reply.serialize(serializer),
            Reply::Policy(reply) => reply.serialize(serializer),
            Reply::PolicyLog(reply) => reply.serialize(serializer),
            Reply::PolicyJudged(reply) => reply.serialize(serializer),
            Reply::P4(reply) => reply.serialize(serializer),
            Reply::P4Program(reply) => reply.serialize(serializer),
            Reply::P4Cells(reply) => reply.serialize(serializer),
            Reply::Reloaded(reply) => reply.serialize(serializer),
            Reply::Unconfirmed(reply) => reply.serialize(serializer),
            Reply::P4Devices(reply) => reply.serialize(serializer),
            Reply::Config(reply) => reply.serialize(serializer),
            Reply::Snapshot(reply) => reply.serialize(serializer),
            Reply::Events(reply) => reply.events.serialize(serializer),
        }
    }
}

/// What is printed as JSON besides replies.
#[cfg(test)]
pub mod outputs {
    pub use super::capture::Seen as Captured;
    pub use super::check::Checked;
    pub use super::explain::Explained;
    pub use super::health::Looked;
    pub use super::policy::Checked as PoliciesChecked;
    pub use super::policy_diff::Difference as PolicyDifference;
    pub use super::show::Versions;
    pub use super::stats::Watched;
    pub use super::status::WithoutControl;
}
