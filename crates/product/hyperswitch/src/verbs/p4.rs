//! P4 switches of a running instance, as text.

use crate::output::{Table, counts, or_dash};
use management::{P4Clients, P4StageConfig, P4Switch};

/// All P4 switches.
pub fn switches(switches: &[P4Switch]) -> String {
    let headings = [
        "NAME",
        "PORTS",
        "STATE",
        "OPERATIONS",
        "PACKETS",
        "REPEATED",
        "OUTPUTS",
        "TIME",
        "DROPS",
    ];
    let mut table = Table::new(&headings);
    for switch in switches {
        let ports = switch
            .ports
            .iter()
            .map(|place| format!("{}={}", place.number, place.port));
        let stage = switch.stage.as_ref().map(stage);
        let ports: Vec<String> = ports.chain(stage).collect();
        table.row([
            switch.name.clone(),
            or_dash((!ports.is_empty()).then(|| ports.join(" "))),
            switch.state.clone(),
            switch.operations.to_string(),
            switch.packets.to_string(),
            switch.repeated.to_string(),
            switch.outputs.to_string(),
            format!("{} ms", switch.busy_ms),
            or_dash((!switch.drops.is_empty()).then(|| counts(&switch.drops))),
        ]);
    }
    let clients = switches
        .iter()
        .filter(|switch| switch.clients != P4Clients::default());
    let clients: String = clients.map(of_clients).collect();
    table.to_string() + &clients
}

/// Where a P4 switch is a stage.
fn stage(stage: &P4StageConfig) -> String {
    let switch = stage.switch.iter().map(ToString::to_string);
    let places = switch.chain(stage.ports.iter().map(ToString::to_string));
    let places: Vec<String> = places.collect();
    format!("stage {} of {}", stage.at, places.join(" "))
}

/// What a P4 switch and its clients sent each other, in a line.
fn of_clients(switch: &P4Switch) -> String {
    let clients = &switch.clients;
    let lost = |count: u64| match count {
        0 => String::new(),
        count => format!(" ({count} lost)"),
    };
    format!(
        "{}: {} packets to clients{}, {} from clients{}, {} of them dropped, {} digests{}\n",
        switch.name,
        clients.packets_in,
        lost(clients.packets_in_lost),
        clients.packets_out,
        lost(clients.packets_out_lost),
        clients.packets_out_dropped,
        switch.digests,
        lost(clients.digests_lost),
    )
}
