//! P4 switches as stages: which ports have which, in which order.

use crate::intent::P4Intent;
use crate::p4_map::stated;
use crate::refusal::Refusal;
use crate::state::DesiredPort;
use control_protocol::p4::{MAX_P4_STAGES, P4_PORTS, P4Binding};
use flow::P4Id;
use management::{Name, P4StageConfig};
use std::collections::BTreeMap;

/// Stages that a port of a switch has, in order, with its number at each.
pub(crate) fn stages_of(all: &BTreeMap<String, P4Intent>, port: &str, switch: &str) -> Vec<P4Binding> {
    let stages = all.iter().filter_map(|(name, own)| {
        let stage = own.stage.as_ref()?;
        let number = stage.number_of(port, switch)?;
        let binding = P4Binding {
            switch: P4Id(own.number),
            port: number,
        };
        Some((stage.at, name, binding))
    });
    let mut stages: Vec<_> = stages.collect();
    stages.sort_by_key(|(at, name, _)| (*at, *name));
    stages.into_iter().map(|(.., binding)| binding).collect()
}

/// Checks that stages have no ports or links and are at switches that exist, and that no port has too many.
pub(crate) fn check_stages(
    all: &BTreeMap<String, P4Intent>,
    ports: &BTreeMap<String, DesiredPort>,
    has_switch: impl Fn(&str) -> bool,
) -> Result<(), Refusal> {
    for (name, own) in all {
        let stage = own.stage.iter();
        let wrong = stage.filter_map(|stage| what_is_wrong(all, (name, own), stage, &has_switch));
        if let Some(reason) = wrong.into_iter().next() {
            let name = name.clone();
            return Err(Refusal::P4Stage { name, reason });
        }
    }
    for (port, desired) in ports {
        let stages = stages_of(all, port, &desired.switch);
        if let Some(last) = stages.get(MAX_P4_STAGES) {
            let name = all.iter().find(|(_, own)| P4Id(own.number) == last.switch);
            return Err(Refusal::P4Stage {
                name: name.map_or_else(String::new, |(name, _)| name.clone()),
                reason: format!(
                    "port {port} would have {} stages; {MAX_P4_STAGES} is the most",
                    stages.len()
                ),
            });
        }
    }
    Ok(())
}

/// Why a P4 switch cannot be such a stage.
fn what_is_wrong(
    all: &BTreeMap<String, P4Intent>,
    (name, own): (&String, &P4Intent),
    stage: &P4StageConfig,
    has_switch: &impl Fn(&str) -> bool,
) -> Option<String> {
    if let Err(reason) = stage.check() {
        return Some(reason);
    }
    if let Some(place) = stage.ports.iter().find(|place| place.number >= P4_PORTS) {
        let (number, last) = (place.number, P4_PORTS - 1);
        return Some(format!("{number} is no number of a port: 0 to {last} are"));
    }
    let missing = |switch: &&Name| !has_switch(switch.as_str());
    if let Some(switch) = stage.switch.as_ref().filter(missing) {
        return Some(format!("there is no switch {switch}"));
    }
    if let Some(port) = own.ports.values().next() {
        return Some(format!("a stage forwards for no port, as it does for {port}"));
    }
    let mut links = stated(all);
    let (_, _, (other, _)) = links.find(|(_, end, _)| end.program.as_str() == name)?;
    Some(format!("a stage has no links, as {other} has one to it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(number: u32, at: u16, switch: Option<&str>, ports: &[&str]) -> P4Intent {
        let ports = ports.iter().map(|port| port.parse().unwrap());
        P4Intent {
            number,
            stage: Some(P4StageConfig {
                at,
                switch: switch.map(|switch| switch.parse().unwrap()),
                ports: ports.collect(),
            }),
            ..P4Intent::default()
        }
    }

    fn all(programs: &[(&str, &P4Intent)]) -> BTreeMap<String, P4Intent> {
        let programs = programs.iter();
        programs
            .map(|(name, own)| ((*name).to_owned(), (*own).clone()))
            .collect()
    }

    #[test]
    fn ports_have_stages_in_their_order_with_their_numbers() {
        let (early, late) = (
            stage(3, 10, Some("lan"), &["7=a"]),
            stage(1, 20, None, &["4=a", "5=b"]),
        );
        let same = stage(2, 20, Some("dmz"), &[]);
        let programs = all(&[("x", &early), ("c", &late), ("b", &same)]);
        let of = |port, switch| -> Vec<(u32, u16)> {
            let stages = stages_of(&programs, port, switch).into_iter();
            stages.map(|stage| (stage.switch.0, stage.port)).collect()
        };
        assert_eq!(of("a", "lan"), [(3, 7), (1, 4)]);
        assert_eq!(of("b", "lan"), [(3, 0), (1, 5)]);
        assert_eq!(
            of("b", "dmz"),
            [(2, 0), (1, 5)],
            "by name, where numbers are equal"
        );
        assert_eq!(of("c", "other"), []);
    }

    #[test]
    fn stages_that_cannot_be_are_refused() {
        let refused = |programs: &[(&str, &P4Intent)]| {
            let checked = check_stages(&all(programs), &BTreeMap::new(), |switch| switch == "lan");
            checked
                .err()
                .map_or_else(String::new, |refused| refused.to_string())
        };
        let good = stage(1, 0, Some("lan"), &["1=a"]);
        assert_eq!(refused(&[("a", &good)]), "");
        let bound = P4Intent {
            ports: [(1, "vm".to_owned())].into(),
            ..good.clone()
        };
        let linked = P4Intent {
            number: 2,
            ports: [(1, "a:1".to_owned())].into(),
            ..P4Intent::default()
        };
        for (programs, wanted) in [
            (vec![("a", &bound)], "forwards for no port"),
            (vec![("a", &good), ("b", &linked)], "no links"),
            (vec![("a", &stage(1, 0, Some("lxn"), &[]))], "no switch lxn"),
            (vec![("a", &stage(1, 0, None, &[]))], "needs a switch or ports"),
            (vec![("a", &stage(1, 0, None, &["1=p", "2=p"]))], "twice"),
            (vec![("a", &stage(1, 0, None, &["1=b:2"]))], "no links"),
        ] {
            let text = refused(&programs);
            assert!(text.contains(wanted), "{text}");
        }
    }
}
