//! Reading the configuration file again, or another one that a user sends, beside what requests have added.
//!
//! The file alone makes sense, or it is refused with file and line before anything else is looked at.
//! Switches and ports that were added by request become the file's where it has their names. What it says may
//! still contradict the others. Such an error has a place in the file too, and says what to delete.

use crate::control::Control;
use crate::intent::Intent;
use crate::p4::{self, Version};
use crate::refusal::Refusal;
use crate::state::desired;
use crate::warnings::{core_warning, group_warnings};
use crate::{Options, plan};
use management::{CheckError, Config, PathSegment, ReloadSummary, error_at};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

impl Control {
    /// Reads the configuration file again.
    ///
    /// # Errors
    /// The file cannot be used; nothing has changed.
    pub fn reload(&mut self) -> Result<ReloadSummary, Refusal> {
        self.nothing_unconfirmed()?;
        self.no_trial()?;
        let (file, intent, versions) = self.reloaded_intent()?;
        self.adopt_file(&file, intent, &versions)
    }

    /// What a reload would change.
    ///
    /// # Errors
    /// The configuration file cannot be used.
    pub fn reload_plan(&self) -> Result<ReloadSummary, Refusal> {
        self.nothing_unconfirmed()?;
        let (file, intent, versions) = self.reloaded_intent()?;
        self.plan_file(&file, &intent, &versions)
    }

    /// Puts a configuration in force that a user has sent, for so many seconds unless it is confirmed.
    ///
    /// # Errors
    /// The configuration cannot be used; nothing has changed.
    pub fn apply_text(
        &mut self,
        name: String,
        text: Option<Vec<u8>>,
        confirm: Option<u32>,
    ) -> Result<ReloadSummary, Refusal> {
        self.no_trial()?;
        let file = File::sent(name, text)?;
        let (mut intent, versions) = self.intent_with(&file)?;
        intent.unconfirmed = None;
        if let Some(seconds) = confirm {
            intent.unconfirmed = Some(Box::new(self.on_probation(&file.name, &file.text, seconds)));
        }
        let summary = self.adopt_file(&file, intent, &versions)?;
        log::info!("{} is applied, {} changes", file.name, summary.changes.len());
        Ok(summary)
    }

    /// What that would change.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn apply_plan(&self, name: String, text: Option<Vec<u8>>) -> Result<ReloadSummary, Refusal> {
        let file = File::sent(name, text)?;
        let (intent, versions) = self.intent_with(&file)?;
        self.plan_file(&file, &intent, &versions)
    }

    fn adopt_file(
        &mut self,
        file: &File,
        intent: Intent,
        versions: &[Version],
    ) -> Result<ReloadSummary, Refusal> {
        let planned = self.plan_file(file, &intent, versions)?;
        let (config, later) = (intent.config.clone(), self.later(&intent.config));
        let lost = self.p4_losses(&intent, versions);
        self.adopt_with(intent, versions)
            .map_err(|refusal| file.placed(&config, refusal))?;
        let mut warnings = self.configuration_warnings();
        warnings.extend(later.into_iter().chain(lost));
        warnings.iter().for_each(|warning| log::warn!("{warning}"));
        Ok(ReloadSummary { warnings, ..planned })
    }

    fn plan_file(
        &self,
        file: &File,
        intent: &Intent,
        versions: &[Version],
    ) -> Result<ReloadSummary, Refusal> {
        let state = desired(intent, &self.options).map_err(|refusal| file.placed(&intent.config, refusal))?;
        let warnings = core_warning(&self.options, &intent.config).into_iter();
        let warnings = warnings.chain(self.later(&intent.config));
        let warnings = warnings.chain(self.p4_losses(intent, versions)).collect();
        let changes = plan::plan(&self.state, &state);
        Ok(plan::summary(&changes, |name| self.port_in_use(name), warnings))
    }

    /// What a configuration changes only when the switch is started again.
    fn later(&self, config: &Config) -> Option<String> {
        let tables = [
            ("[placement]", config.placement != self.intent.config.placement),
            ("[ovs]", config.ovs != self.intent.config.ovs),
            ("[view]", config.view != self.intent.config.view),
            (
                "[p4runtime]",
                config.p4runtime.without_devices() != self.intent.config.p4runtime.without_devices(),
            ),
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

    fn reloaded_intent(&self) -> Result<(File, Intent, Vec<Version>), Refusal> {
        let path = self.options.config.as_deref().ok_or(Refusal::NoConfiguration)?;
        let file = File::read(path)?;
        let (intent, versions) = self.intent_with(&file)?;
        Ok((file, intent, versions))
    }

    fn intent_with(&self, file: &File) -> Result<(Intent, Vec<Version>), Refusal> {
        let mut intent = self.intent.with_file(policy::parse(&file.text, &file.name)?);
        file.check_beside(&intent)?;
        let versions = file.read_p4(&mut intent, &self.options, self.p4_numbers())?;
        Ok((intent, versions))
    }
}

/// The intent with which an instance begins, and its P4 programs.
///
/// # Errors
/// The file cannot be used.
pub(crate) fn begin(path: &Path, options: &Options) -> Result<(Intent, Vec<Version>), Refusal> {
    File::read(path)?.alone(options)
}

/// Checks a configuration file as if nothing had been added by command. Returns warnings.
///
/// # Errors
/// The file cannot be used.
pub fn check(path: &Path, options: &Options) -> Result<(Config, Vec<String>), Refusal> {
    let file = File::read(path)?;
    let config = file.alone(options)?.0.config;
    let found = policy::findings(&config, &file.text, &file.name);
    let warnings = found.iter().map(ToString::to_string);
    let warnings = warnings.chain(core_warning(options, &config));
    let warnings = warnings.chain(group_warnings(options, &config)).collect();
    Ok((config, warnings))
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

    fn sent(name: String, text: Option<Vec<u8>>) -> Result<File, Refusal> {
        let text = text.and_then(|text| String::from_utf8(text).ok());
        let text = text.ok_or(Refusal::NoText)?;
        Ok(File { name, text })
    }

    /// What the file means where nothing was added by request.
    fn alone(&self, options: &Options) -> Result<(Intent, Vec<Version>), Refusal> {
        let mut intent = Intent {
            config: policy::parse(&self.text, &self.name)?,
            ..Intent::default()
        };
        let versions = self.read_p4(&mut intent, options, BTreeSet::new())?;
        desired(&intent, options).map_err(|refusal| self.placed(&intent.config, refusal))?;
        Ok((intent, versions))
    }

    /// Reads the P4 programs that the file names.
    fn read_p4(
        &self,
        intent: &mut Intent,
        options: &Options,
        taken: BTreeSet<u32>,
    ) -> Result<Vec<Version>, Refusal> {
        p4::read(intent, options, taken).map_err(|CheckError { path, message }| self.error(&path, message))
    }

    fn error(&self, path: &[PathSegment], message: String) -> Refusal {
        Refusal::Configuration(error_at(&self.text, &self.name, path, message))
    }

    /// Checks that the file does not contradict what requests have added.
    fn check_beside(&self, intent: &Intent) -> Result<(), Refusal> {
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

    /// A refusal that is about a port or a P4 program of the file, with its place.
    fn placed(&self, config: &Config, refusal: Refusal) -> Refusal {
        if let Refusal::P4Port { name, .. } = &refusal
            && let Some(index) = config.p4.iter().position(|own| own.name.as_str() == name)
        {
            let error = CheckError::in_program(index, "ports", refusal.to_string());
            return self.error(&error.path, error.message);
        }
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
