//! Reading the configuration file again, beside what requests have added.
//!
//! The file alone makes sense, or it is refused with file and line before anything else is looked at. What it
//! says may still contradict switches and ports that were added by request. Such an error has a place in the
//! file too, and says what to delete.

use crate::control::Control;
use crate::plan;
use crate::refusal::Refusal;
use crate::state::{Intent, desired};
use management::{CheckError, Config, PathSegment, ReloadSummary, error_at};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

impl Control {
    /// Reads the configuration file again.
    ///
    /// # Errors
    /// The file cannot be used; nothing has changed.
    pub fn reload(&mut self) -> Result<ReloadSummary, Refusal> {
        let (file, intent) = self.reloaded_intent()?;
        let (config, later) = (intent.config.clone(), self.later(&intent.config));
        let changes = self
            .adopt(intent)
            .map_err(|refusal| file.placed(&config, refusal))?;
        let mut warnings = self.configuration_warnings();
        warnings.extend(later);
        warnings.iter().for_each(|warning| log::warn!("{warning}"));
        Ok(plan::summary(&changes, warnings))
    }

    /// What a reload would change.
    ///
    /// # Errors
    /// The configuration file cannot be used.
    pub fn reload_plan(&self) -> Result<ReloadSummary, Refusal> {
        let (file, intent) = self.reloaded_intent()?;
        let state =
            desired(&intent, &self.options).map_err(|refusal| file.placed(&intent.config, refusal))?;
        let warnings = self.core_warning(&intent.config).into_iter();
        let warnings = warnings.chain(self.later(&intent.config)).collect();
        Ok(plan::summary(&plan::plan(&self.state, &state), warnings))
    }

    /// What a configuration changes only when the switch is started again.
    fn later(&self, config: &Config) -> Option<String> {
        let tables = [
            ("[placement]", config.placement != self.intent.config.placement),
            ("[ovs]", config.ovs != self.intent.config.ovs),
        ];
        let changed: Vec<&str> = tables
            .iter()
            .filter(|(_, is)| *is)
            .map(|(table, _)| *table)
            .collect();
        (!changed.is_empty()).then(|| {
            format!(
                "{} changed, which takes effect when the switch is started again",
                changed.join(" and ")
            )
        })
    }

    fn reloaded_intent(&self) -> Result<(File, Intent), Refusal> {
        let path = self.options.config.as_deref().ok_or(Refusal::NoConfiguration)?;
        let file = File::read(path)?;
        let intent = Intent {
            config: policy::parse(&file.text, &file.name)?,
            overrides: BTreeMap::new(),
            ..self.intent.clone()
        };
        file.check_beside(&intent)?;
        Ok((file, intent))
    }
}

/// A configuration file as it was read.
struct File {
    name: String,
    text: String,
}

impl File {
    fn read(path: &Path) -> Result<File, Refusal> {
        let text = fs::read_to_string(path).map_err(|error| Refusal::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        Ok(File {
            name: path.display().to_string(),
            text,
        })
    }

    fn error(&self, path: &[PathSegment], message: String) -> Refusal {
        Refusal::Configuration(error_at(&self.text, &self.name, path, message))
    }

    /// Checks that the file does not contradict what requests have added.
    fn check_beside(&self, intent: &Intent) -> Result<(), Refusal> {
        self.check_names(intent)?;
        // What requests have added comes first, so that errors are about the file.
        let mut mixed = intent.config.clone();
        for switch in &mut mixed.switches {
            let added = intent.ports.get(switch.name.as_str());
            switch.ports.splice(0..0, added.into_iter().flatten().cloned());
        }
        mixed.switches.splice(0..0, intent.switches.iter().cloned());
        let checked = mixed.check().and_then(|()| policy::compile(&mixed));
        checked.map(drop).map_err(|CheckError { path, message }| {
            let way_out = "switches and ports that were added by command count too (ORIGIN is runtime in `hyperswitch port list` and \
                           `switch list`); delete those with `hyperswitch port del` or `switch del`, or change the file";
            self.error(&in_file(&path, intent), format!("{message}; {way_out}"))
        })
    }

    /// Names are unique among what the file has and what requests have added.
    fn check_names(&self, intent: &Intent) -> Result<(), Refusal> {
        let name = PathSegment::Key("name");
        let own = intent.switches.iter();
        let added = intent
            .ports
            .values()
            .flatten()
            .chain(own.clone().flat_map(|switch| &switch.ports));
        let added: Vec<_> = added.map(|port| port.name.as_str()).collect();
        for (index, switch) in intent.config.switches.iter().enumerate() {
            let place = [PathSegment::Key("switch"), PathSegment::Index(index)];
            if own.clone().any(|added| added.name == switch.name) {
                let message = format!(
                    "switch {0} was also added by command; `hyperswitch switch del {0}`, and reload again, or leave it out here",
                    switch.name
                );
                return Err(self.error(&[&place[..], &[name]].concat(), message));
            }
            for (index, port) in switch.ports.iter().enumerate() {
                if added.contains(&port.name.as_str()) {
                    let message = format!(
                        "port {0} was also added by command; `hyperswitch port del {0}`, and reload again, or leave it out here",
                        port.name
                    );
                    let port = [PathSegment::Key("port"), PathSegment::Index(index), name];
                    return Err(self.error(&[&place[..], &port].concat(), message));
                }
            }
        }
        Ok(())
    }

    /// A refusal that is about a port of the file, with the port's place.
    fn placed(&self, config: &Config, refusal: Refusal) -> Refusal {
        let (Refusal::LongSocketPath { port, .. } | Refusal::SocketTaken { port, .. }) = &refusal else {
            return refusal;
        };
        for (number, switch) in config.switches.iter().enumerate() {
            if let Some(index) = switch.ports.iter().position(|own| own.name.as_str() == port) {
                let path = [
                    PathSegment::Key("switch"),
                    PathSegment::Index(number),
                    PathSegment::Key("port"),
                    PathSegment::Index(index),
                    PathSegment::Key("socket"),
                ];
                return self.error(&path, refusal.to_string());
            }
        }
        refusal
    }
}

/// The place in the file of a part of the mixed configuration; of its switch, if it was added by request.
fn in_file(path: &[PathSegment], intent: &Intent) -> Vec<PathSegment> {
    let mut path = path.to_vec();
    // Requests add switches and ports only.
    let is_switch = path.first() == Some(&PathSegment::Key("switch"));
    let Some(PathSegment::Index(switch)) = path.get_mut(1).filter(|_| is_switch) else {
        return path;
    };
    *switch = switch.saturating_sub(intent.switches.len());
    let home = intent.config.switches.get(*switch);
    let added = home
        .and_then(|home| intent.ports.get(home.name.as_str()))
        .map_or(0, Vec::len);
    match path.get_mut(3) {
        Some(PathSegment::Index(port)) if *port >= added => *port -= added,
        Some(_) => path.truncate(2),
        None => {}
    }
    path
}
