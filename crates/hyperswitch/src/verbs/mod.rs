//! Verbs for a running instance: each makes a request, and prints the answer as a table or as JSON.

mod capture;
mod port;
mod reload;
mod show;
mod stats;
mod switch;
pub mod trace;

use crate::cli::{FlowVerb, MacVerb, PortVerb, StatsArgs, StatsVerb, SwitchVerb, UserVerb};
use crate::output;
use anyhow::{Result, bail};
use management::{Client, Reply, Request};
use std::path::Path;

/// Carries out a verb.
///
/// # Errors
/// When there is no instance, it refuses, or output fails.
pub fn run(verb: &UserVerb, run_dir: &Path, json: bool) -> Result<()> {
    let mut session = Session {
        client: Client::connect(run_dir),
        json,
    };
    match verb {
        UserVerb::Status => session.show(Request::Status),
        UserVerb::Switch(verb) => session.show(switch::request(verb)),
        UserVerb::Port(verb @ PortVerb::Show { .. }) => session.show_with(port::request(verb), port::details),
        UserVerb::Port(verb) => session.show(port::request(verb)),
        UserVerb::Mac(MacVerb::List { switch }) => session.show(Request::MacList {
            switch: switch.clone(),
        }),
        UserVerb::Flow(FlowVerb::List { switch }) => session.show(Request::FlowList {
            switch: switch.clone(),
        }),
        UserVerb::Stats(StatsArgs {
            verb: Some(StatsVerb::Placement),
            ..
        }) => session.show(Request::Placement),
        UserVerb::Stats(args) => stats::run(&mut session, args.port.as_deref(), args.watch),
        UserVerb::Trace(args) => session.show(trace::request(args)?),
        UserVerb::Capture(args) => capture::run(&mut session, args),
        UserVerb::Reload { dry_run } => reload::run(&mut session, *dry_run),
        UserVerb::Version => show::versions(&mut session),
    }
}

/// A connection, and the output format that the user chose.
pub struct Session {
    client: Result<Client, management::ClientError>,
    json: bool,
}

impl Session {
    fn client(&mut self) -> Result<&mut Client> {
        match &mut self.client {
            Ok(client) => Ok(client),
            Err(error) => bail!("{error}"),
        }
    }

    fn call(&mut self, request: &Request) -> Result<Reply> {
        Ok(self.client()?.call(request)?)
    }

    fn show(&mut self, request: Request) -> Result<()> {
        self.show_with(request, show::text)
    }

    fn show_with(&mut self, request: Request, text: fn(&Reply) -> String) -> Result<()> {
        let reply = self.call(&request)?;
        if self.json {
            output::json(&Bare(&reply))
        } else {
            output::print(&text(&reply))
        }
    }
}

/// A reply without the tag of its kind, which the verb implies.
struct Bare<'a>(&'a Reply);

impl serde::Serialize for Bare<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Reply::Done => serde_json::json!({ "done": true }).serialize(serializer),
            Reply::Version(reply) => reply.serialize(serializer),
            Reply::Status(reply) => reply.serialize(serializer),
            Reply::Switches(reply) => reply.serialize(serializer),
            Reply::Ports(reply) => reply.serialize(serializer),
            Reply::Macs(reply) => reply.serialize(serializer),
            Reply::Flows(reply) => reply.serialize(serializer),
            Reply::Stats(reply) => reply.serialize(serializer),
            Reply::Placement(reply) => reply.serialize(serializer),
            Reply::Trace(reply) => reply.serialize(serializer),
            Reply::Reloaded(reply) => reply.serialize(serializer),
        }
    }
}
