//! P4 switches of a running instance, as text.

use crate::output::{Table, counts, or_dash};
use management::P4Switch;

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
        let ports: Vec<String> = ports.collect();
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
    table.to_string()
}
