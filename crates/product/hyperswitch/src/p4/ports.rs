//! Ports of loaded programs, and links between them.

use crate::cli::{P4LinkVerb, P4PortVerb};
use crate::output::{self, Table};
use crate::verbs::Session;
use anyhow::{Result, bail};
use management::{P4End, P4Place, PlacedPort, Request};
use schemars::JsonSchema;
use serde::Serialize;

/// A port of a program.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Port")]
pub struct PortRow {
    program: String,
    /// Number by which the program knows it.
    number: u16,
    /// Name of the port, or `PROGRAM:NUMBER` as the other end of a link.
    port: String,
}

/// A link between programs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Link")]
pub struct LinkRow {
    /// One end, as `PROGRAM:NUMBER`.
    one: String,
    /// End that the first one is joined with.
    other: String,
}

/// Runs a verb for ports.
///
/// # Errors
/// There is no such program, or the instance refuses.
pub fn port(session: &mut Session<'_>, verb: &P4PortVerb) -> Result<()> {
    match verb {
        P4PortVerb::Show { name } => {
            let rows = rows(session, name.as_deref())?;
            if session.json {
                return output::json(&rows);
            }
            let mut table = Table::new(&["PROGRAM", "NUMBER", "PORT"]);
            for row in rows {
                table.row([row.program, row.number.to_string(), row.port]);
            }
            output::print(&table.to_string())
        }
        P4PortVerb::Set { name, ports } => session.show(changed(name, ports, &[])),
        P4PortVerb::Remove { name, numbers } => session.show(changed(name, &[], numbers)),
    }
}

/// Runs a verb for links.
///
/// # Errors
/// There is no such program, or the instance refuses.
pub fn link(session: &mut Session<'_>, verb: &P4LinkVerb) -> Result<()> {
    match verb {
        P4LinkVerb::Show => {
            let rows = links(rows(session, None)?);
            if session.json {
                return output::json(&rows);
            }
            let mut table = Table::new(&["ONE", "OTHER"]);
            for row in rows {
                table.row([row.one, row.other]);
            }
            output::print(&table.to_string())
        }
        P4LinkVerb::Add { from, to } => {
            let placed = PlacedPort {
                number: from.number,
                port: to.to_string(),
            };
            session.show(changed(from.program.as_str(), &[placed], &[]))
        }
        P4LinkVerb::Remove { end } => {
            let own = rows(session, Some(end.program.as_str()))?;
            let mut own = own.iter().filter(|row| row.number == end.number);
            if !own.any(|row| P4End::of(&row.port).is_some()) {
                bail!("there is no link at {end}");
            }
            session.show(changed(end.program.as_str(), &[], &[end.number]))
        }
    }
}

fn changed(name: &str, set: &[PlacedPort], remove: &[u16]) -> Request {
    let place = |place: &PlacedPort| P4Place {
        number: place.number,
        port: place.port.clone(),
    };
    Request::P4Ports {
        name: name.into(),
        set: set.iter().map(place).collect(),
        remove: remove.to_vec(),
    }
}

/// Ports of a program, or of all.
fn rows(session: &mut Session<'_>, name: Option<&str>) -> Result<Vec<PortRow>> {
    let mut switches = super::switches(session)?;
    switches.retain(|switch| name.is_none_or(|name| switch.name == name));
    if let Some(name) = name.filter(|_| switches.is_empty()) {
        bail!("there is no P4 switch {name}; `hyperswitch p4 show` names them");
    }
    let rows = switches.into_iter().flat_map(|switch| {
        let row = move |place: P4Place| PortRow {
            program: switch.name.clone(),
            number: place.number,
            port: place.port,
        };
        switch.ports.into_iter().map(row)
    });
    Ok(rows.collect())
}

/// Links among ports, each once, though both ends may be there.
fn links(rows: Vec<PortRow>) -> Vec<LinkRow> {
    let mut links: Vec<(String, String)> = Vec::new();
    for row in rows.into_iter().filter(|row| P4End::of(&row.port).is_some()) {
        let own = format!("{}:{}", row.program, row.number);
        let is_known = |(one, other): &(String, String)| *one == row.port && *other == own;
        if !links.iter().any(is_known) {
            links.push((own, row.port));
        }
    }
    let row = |(one, other)| LinkRow { one, other };
    links.into_iter().map(row).collect()
}
