//! A configuration that was applied on probation: unless a user confirms it in time, the one before returns.
//!
//! The time is that of the machine (`CLOCK_MONOTONIC`), and the intent is saved with the configuration
//! before, so the next control process takes it back as well. What requests change meanwhile stays. The safe
//! direction of error is to take back: the user may have lost the way to this host.

use crate::control::Control;
use crate::intent::{Intent, P4Intent, Unconfirmed, has_port};
use crate::p4::free_number;
use crate::refusal::Refusal;

use management::{Happening, PortConfig};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};

impl Control {
    /// When the configuration has to be taken back, unless it is confirmed.
    pub fn roll_back_ms(&self) -> Option<u64> {
        let unconfirmed = self.intent.unconfirmed.as_ref()?;
        Some(self.now_ms() + unconfirmed.until_ms.saturating_sub(machine_ms()))
    }

    /// Takes back a configuration that was not confirmed in time.
    pub fn roll_back_if_due(&mut self) {
        let Some(unconfirmed) = &self.intent.unconfirmed else {
            return;
        };
        if unconfirmed.until_ms > machine_ms() {
            return;
        }
        log::warn!(
            "{} was not confirmed: the configuration before it returns",
            unconfirmed.file
        );
        let reason = format!("{} was not confirmed", unconfirmed.file);
        let before = (*unconfirmed.before).clone();
        let done = self.adopt_unsaved(taken_back(unconfirmed, &self.intent));
        // What was changed meanwhile may not go with it.
        if let Err(refusal) = done.or_else(|_| self.adopt_unsaved(before)) {
            log::error!("the configuration before cannot return: {refusal}");
            self.intent.unconfirmed = None;
        }
        self.tell(Happening::ConfigurationRefused { reason });
    }

    /// Refuses while a configuration waits to be confirmed.
    pub fn nothing_unconfirmed(&self) -> Result<(), Refusal> {
        match self.unconfirmed() {
            None => Ok(()),
            Some(waiting) => Err(Refusal::Unconfirmed(waiting.file, waiting.seconds_left)),
        }
    }

    /// The configuration that waits to be confirmed, for users.
    pub fn unconfirmed(&self) -> Option<management::Unconfirmed> {
        let unconfirmed = self.intent.unconfirmed.as_ref()?;
        Some(management::Unconfirmed {
            number: unconfirmed.until_ms,
            file: unconfirmed.file.clone(),
            text: unconfirmed.text.clone(),
            seconds_left: unconfirmed.until_ms.saturating_sub(machine_ms()).div_ceil(1000),
        })
    }

    /// Keeps a configuration.
    ///
    /// # Errors
    /// There is no such one, or the intent cannot be saved.
    pub fn confirm(&mut self, number: u64) -> Result<(), Refusal> {
        let mut intent = self.intent.clone();
        match intent.unconfirmed.take() {
            Some(unconfirmed) if unconfirmed.until_ms == number => {
                log::info!("{} is confirmed", unconfirmed.file);
                self.adopt(intent).map(drop)
            }
            _ => Err(Refusal::NothingToConfirm),
        }
    }

    /// What remembers the present intent, to return after so many seconds.
    pub fn on_probation(&self, file: &str, text: &str, seconds: u32) -> Unconfirmed {
        let mut before = self.intent.clone();
        // What was never confirmed does not return.
        let earlier = before.unconfirmed.take();
        let until_ms = machine_ms() + u64::from(seconds) * 1000;
        let is_taken = earlier
            .as_ref()
            .is_some_and(|earlier| earlier.until_ms == until_ms);
        Unconfirmed {
            file: file.into(),
            text: text.into(),
            until_ms: until_ms + u64::from(is_taken),
            before: earlier.map_or(Box::new(before), |earlier| earlier.before),
        }
    }
}

/// Milliseconds of the machine's clock.
fn machine_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// The intent before, with what requests have added, changed and deleted since.
fn taken_back(unconfirmed: &Unconfirmed, now: &Intent) -> Intent {
    let before = &*unconfirmed.before;
    let added: BTreeMap<&str, (&str, &PortConfig)> = (now.added_ports())
        .map(|(switch, port)| (port.name.as_str(), (switch, port)))
        .collect();
    let mut intent = before.clone();
    intent.p4 = p4_taken_back(&before.p4, &now.p4);
    let is_left = |name: &str| {
        now.switches.iter().any(|switch| switch.name.as_str() == name)
            || now
                .config
                .switches
                .iter()
                .any(|switch| switch.name.as_str() == name)
    };
    intent.switches.retain(|switch| is_left(switch.name.as_str()));
    let own = intent.switches.iter_mut().map(|switch| &mut switch.ports);
    for ports in own.chain(intent.ports.values_mut()) {
        // A port that the file had taken over returns as it was.
        ports.retain(|port| {
            added.contains_key(port.name.as_str()) || has_port(&now.config, port.name.as_str())
        });
        for port in ports {
            if let Some((_, changed)) = added.get(port.name.as_str()) {
                port.clone_from(changed);
            }
        }
    }
    let is_known = |name: &str| {
        has_port(&before.config, name) || before.added_ports().any(|(_, port)| port.name.as_str() == name)
    };
    let new = now.switches.iter().filter(|switch| {
        let mut known = before.switches.iter().chain(&before.config.switches);
        !known.any(|own| own.name == switch.name)
    });
    let new: Vec<_> = new.cloned().collect();
    for (name, (switch, port)) in added {
        let comes_along = new.iter().any(|own| own.name.as_str() == switch);
        if !is_known(name) && !comes_along {
            put(&mut intent, switch, port);
        }
    }
    intent.switches.extend(new);
    intent.ports.retain(|_, ports| !ports.is_empty());
    intent
}

/// P4 switches as they were, but for what requests have changed since: those that the file neither had nor
/// has, and those of which it says what it said.
fn p4_taken_back(
    before: &BTreeMap<String, P4Intent>,
    now: &BTreeMap<String, P4Intent>,
) -> BTreeMap<String, P4Intent> {
    let is_kept = |name: &str| match (before.get(name), now.get(name)) {
        (Some(old), Some(new)) if old.file.is_some() => old.file == new.file && old.ports == new.ports,
        (old, new) => {
            let mut both = old.into_iter().chain(new);
            both.all(|own| own.file.is_none())
        }
    };
    let kept = now.iter().filter(|(name, _)| is_kept(name));
    let mut p4: BTreeMap<String, P4Intent> = kept.map(|(name, own)| (name.clone(), own.clone())).collect();
    let mut taken: BTreeSet<u32> = p4.values().map(|own| own.number).collect();
    for (name, own) in before.iter().filter(|(name, _)| !is_kept(name)) {
        let mut own = own.clone();
        // A request may have given the number to another one.
        if taken.contains(&own.number) {
            let all = before.values().chain(now.values()).map(|own| own.number);
            let free = free_number(&all.chain(taken.iter().copied()).collect());
            own.number = free.unwrap_or(own.number);
        }
        taken.insert(own.number);
        p4.insert(name.clone(), own);
    }
    p4
}

/// Adds a port to a switch, if that is there.
fn put(intent: &mut Intent, switch: &str, port: &PortConfig) {
    if let Some(own) = intent.switches.iter_mut().find(|own| own.name.as_str() == switch) {
        own.ports.push(port.clone());
    } else if intent
        .config
        .switches
        .iter()
        .any(|own| own.name.as_str() == switch)
    {
        intent.ports.entry(switch.into()).or_default().push(port.clone());
    } else {
        log::warn!(
            "port {} goes with switch {switch}, which is taken back",
            port.name
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use management::{Config, PortKind, SwitchConfig, SwitchKind};

    fn port(name: &str) -> PortConfig {
        PortConfig::new(name.parse().unwrap(), PortKind::VhostUser)
    }

    fn switch(name: &str, ports: &[&str]) -> SwitchConfig {
        SwitchConfig {
            ports: ports.iter().map(|name| port(name)).collect(),
            ..SwitchConfig::new(name.parse().unwrap(), SwitchKind::Private)
        }
    }

    fn file(switches: &[SwitchConfig]) -> Config {
        Config {
            switches: switches.to_vec(),
            ..Config::default()
        }
    }

    fn names(intent: &Intent) -> Vec<(&str, &str)> {
        let ports = intent
            .added_ports()
            .map(|(switch, port)| (switch, port.name.as_str()));
        ports.collect()
    }

    /// File and commands before: `lan` with `a`, and `added` and `web` by command.
    fn before() -> Intent {
        Intent {
            config: file(&[switch("lan", &["a"])]),
            switches: vec![switch("added", &["x", "y"])],
            ports: BTreeMap::from([("lan".into(), vec![port("web"), port("db")])]),
            ..Intent::default()
        }
    }

    fn back(now: &Intent) -> Intent {
        let unconfirmed = Unconfirmed {
            file: "f".into(),
            text: String::new(),
            until_ms: 1,
            before: Box::new(before()),
        };
        taken_back(&unconfirmed, now)
    }

    #[test]
    fn nothing_else_done_means_as_before() {
        for config in [
            file(&[switch("lan", &["b"])]),
            // Takes over a switch with one of its ports, and a port.
            file(&[switch("lan", &["web"]), switch("added", &["x"])]),
            // Moves a port.
            file(&[switch("lan", &[]), switch("new", &["web", "x"])]),
        ] {
            assert_eq!(back(&before().with_file(config)), before());
        }
    }

    /// Programs return with the file; those that requests have loaded meanwhile stay, with their numbers.
    #[test]
    fn programs_return_with_the_file() {
        let own = |number, program, file| P4Intent {
            number,
            program,
            file,
            ..P4Intent::default()
        };
        let p4 = |all: &[(&str, P4Intent)]| -> BTreeMap<String, P4Intent> {
            let all = all.iter().cloned();
            all.map(|(name, own)| (name.to_owned(), own)).collect()
        };
        let before = p4(&[
            ("changed", own(1, 10, Some(10))),
            ("gone", own(2, 20, Some(20))),
            ("same", own(3, 30, Some(30))),
            ("unloaded", own(4, 40, None)),
            ("taken", own(5, 50, None)),
        ]);
        let now = p4(&[
            ("changed", own(1, 11, Some(11))),
            ("loaded", own(2, 60, None)),
            ("new", own(6, 70, Some(70))),
            ("same", own(3, 31, Some(30))),
            ("taken", own(5, 50, Some(50))),
        ]);
        let back = p4(&[
            ("changed", own(1, 10, Some(10))),
            ("gone", own(7, 20, Some(20))),
            ("loaded", own(2, 60, None)),
            ("same", own(3, 31, Some(30))),
            ("taken", own(5, 50, None)),
        ]);
        assert_eq!(p4_taken_back(&before, &now), back);
        assert_eq!(p4_taken_back(&before, &before), before);
    }

    #[test]
    fn what_requests_did_meanwhile_stays() {
        let mut now = before().with_file(file(&[switch("lan", &["web"]), switch("new", &[])]));
        now.ports.get_mut("lan").unwrap().push(port("late"));
        now.ports
            .get_mut("lan")
            .unwrap()
            .retain(|port| port.name.as_str() != "db");
        now.ports.insert("new".into(), vec![port("lost")]);
        now.switches[0].ports[0].isolated = true;
        now.switches[0].ports.push(port("z"));
        now.switches.push(switch("later", &["l"]));
        let back = back(&now);
        assert_eq!(back.config, before().config);
        let expected = [
            ("added", "x"),
            ("added", "y"),
            ("added", "z"),
            ("later", "l"),
            ("lan", "web"),
            ("lan", "late"),
        ];
        assert_eq!(names(&back), expected);
        assert!(back.switches[0].ports[0].isolated);
        now.switches.remove(0);
        assert!(
            !names(&super::tests::back(&now))
                .iter()
                .any(|(switch, _)| *switch == "added")
        );
    }
}
