//! Loaded programs as stages of ports.

use crate::cli::P4StageVerb;
use crate::output::{self, Table, or_dash};
use crate::verbs::Session;
use anyhow::{Context, Result};
use management::{P4StageConfig, P4Switch, Request};
use schemars::JsonSchema;
use serde::Serialize;

/// A program that is a stage.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "P4Stage")]
pub struct StageRow {
    program: String,
    /// Where it is a stage.
    #[serde(flatten)]
    stage: P4StageConfig,
    /// Whether the data plane has the program.
    state: String,
    /// Packets that have come to it.
    packets: u64,
    /// Packets that it has passed or copied to clients.
    outputs: u64,
}

/// Runs a verb for stages.
///
/// # Errors
/// There is no such program or stage, or the instance refuses.
pub fn run(session: &mut Session<'_>, verb: &P4StageVerb) -> Result<()> {
    let set = match verb {
        P4StageVerb::Show => return show(session),
        P4StageVerb::Add {
            name,
            at,
            switch,
            ports,
        } => {
            let stage = P4StageConfig {
                at: *at,
                switch: switch.clone(),
                ports: ports.clone(),
            };
            vec![(name.clone(), Some(stage))]
        }
        P4StageVerb::Move { name, at } => {
            let stage = stage_of(session, name)?;
            vec![(name.clone(), Some(P4StageConfig { at: *at, ..stage }))]
        }
        P4StageVerb::Replace { name, with } => {
            let stage = stage_of(session, name)?;
            vec![(name.clone(), None), (with.clone(), Some(stage))]
        }
        P4StageVerb::Remove { name } => {
            stage_of(session, name)?;
            vec![(name.clone(), None)]
        }
    };
    session.show(Request::P4Stages { set })
}

fn show(session: &mut Session<'_>) -> Result<()> {
    let mut rows: Vec<StageRow> = super::switches(session)?.into_iter().filter_map(row).collect();
    rows.sort_by(|a, b| (a.stage.at, &a.program).cmp(&(b.stage.at, &b.program)));
    if session.json {
        return output::json(&rows);
    }
    let mut table = Table::new(&["AT", "PROGRAM", "SWITCH", "PORTS", "STATE", "PACKETS", "OUTPUTS"]);
    for row in rows {
        let ports: Vec<String> = row.stage.ports.iter().map(ToString::to_string).collect();
        table.row([
            row.stage.at.to_string(),
            row.program,
            or_dash(row.stage.switch.map(|switch| switch.to_string())),
            or_dash((!ports.is_empty()).then(|| ports.join(" "))),
            row.state,
            row.packets.to_string(),
            row.outputs.to_string(),
        ]);
    }
    output::print(&table.to_string())
}

fn row(switch: P4Switch) -> Option<StageRow> {
    Some(StageRow {
        program: switch.name,
        stage: switch.stage?,
        state: switch.state,
        packets: switch.packets,
        outputs: switch.outputs,
    })
}

/// Where a program is a stage.
fn stage_of(session: &mut Session<'_>, name: &str) -> Result<P4StageConfig> {
    let switches = super::switches(session)?;
    let own = switches.into_iter().find(|switch| switch.name == name);
    let own =
        own.with_context(|| format!("there is no P4 switch {name}; `hyperswitch p4 show` names them"))?;
    own.stage.with_context(|| format!("P4 switch {name} is no stage"))
}
