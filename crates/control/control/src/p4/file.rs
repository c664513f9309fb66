//! P4 programs of the configuration file.
//!
//! Files of programs are read when the configuration is, and a program that cannot be used is an error of the
//! configuration: nothing has changed then. A program that was loaded by command becomes the file's where the
//! file has its name. What commands have changed of the entries since stays until the program's own files say
//! something else.

use super::Version;
use super::join::free_number;
use crate::Options;
use crate::control::Control;
use crate::intent::{Intent, P4Intent};
use crate::refusal::Refusal;
use flow::P4Id;
use management::{CheckError, Config, Name, P4Config, P4Operations, PlacedPort};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Brings the P4 switches of an intent in line with its configuration. Returns the programs as their files
/// have them. `taken` are numbers that no new P4 switch gets.
///
/// # Errors
/// A program cannot be used.
pub(crate) fn read(
    intent: &mut Intent,
    options: &Options,
    mut taken: BTreeSet<u32>,
) -> Result<Vec<Version>, CheckError> {
    let wanted = intent.config.p4.clone();
    let is_left = |name: &str| wanted.iter().any(|own| own.name.as_str() == name);
    intent.p4.retain(|name, own| own.file.is_none() || is_left(name));
    let mut versions = Vec::new();
    for (index, wanted) in wanted.iter().enumerate() {
        let error = |key, message| CheckError::in_program(index, key, message);
        let bytes = (options.p4.read)(wanted, &directory(options), options.cores.len().max(1));
        let bytes = bytes.map_err(|message| error("program", message))?;
        let version = Version::new(bytes, allowed(wanted));
        let present = intent.p4.get(wanted.name.as_str());
        let number = match present {
            Some(present) => present.number,
            None => free_number(&taken).map_err(|refusal| error("name", refusal.to_string()))?,
        };
        taken.insert(number);
        let own = of_file(wanted, number, version.tag, present);
        intent.p4.insert(wanted.name.to_string(), own);
        versions.push(version);
    }
    Ok(versions)
}

/// Most operations of a pass that a program is allowed, if more than usual.
fn allowed(wanted: &P4Config) -> Option<u32> {
    wanted.operations.map(P4Operations::get)
}

/// The directory from which paths of the configuration are seen.
fn directory(options: &Options) -> PathBuf {
    let of_file = options.config.as_deref().and_then(Path::parent);
    of_file.unwrap_or(&options.run_dir).to_owned()
}

/// A P4 switch as the file wants it, in the place of the present one.
fn of_file(wanted: &P4Config, number: u32, tag: u64, present: Option<&P4Intent>) -> P4Intent {
    let ports = wanted
        .ports
        .iter()
        .map(|place| (place.number, place.port.clone()));
    let unchanged = present.filter(|present| present.file == Some(tag));
    let own = P4Intent {
        number,
        program: unchanged.map_or(tag, |present| present.program),
        operations: allowed(wanted),
        ports: ports.collect(),
        stage: wanted.stage.clone(),
        file: Some(tag),
        former: None,
    };
    own.succeeding(present)
}

/// What differs between P4 switches, for users.
pub(crate) fn differences(old: &BTreeMap<String, P4Intent>, new: &BTreeMap<String, P4Intent>) -> Vec<String> {
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let gone = gone.map(|name| format!("P4 program {name} removed"));
    let changed = new.iter().filter_map(|(name, own)| match old.get(name) {
        None => Some(format!("P4 program {name} added")),
        Some(present) if present.program != own.program => Some(format!("P4 program {name} replaced")),
        Some(present) if present.ports != own.ports => Some(format!("P4 program {name} has other ports")),
        Some(present) if present.stage != own.stage => Some(format!("P4 program {name} has another stage")),
        Some(_) => None,
    });
    gone.chain(changed).collect()
}

impl Control {
    /// What of P4 programs' state is lost with another intent, for users. `versions` are programs that the
    /// store does not have yet.
    pub fn p4_losses(&self, intent: &Intent, versions: &[Version]) -> Vec<String> {
        let replaced = intent.p4.iter().filter_map(|(name, own)| {
            let present = self.p4.wanted(P4Id(own.number))?;
            let next = versions.iter().find(|version| version.tag == own.program)?;
            (present.tag != next.tag).then_some((name, present, next))
        });
        let texts = replaced.flat_map(|(name, present, next)| {
            let lost = (self.options.p4.losses)(present.bytes(), next.bytes());
            lost.into_iter()
                .map(move |text| format!("P4 program {name} loses state: {text}"))
        });
        texts.collect()
    }

    /// Saves programs, so that an intent can name them.
    ///
    /// # Errors
    /// A program cannot be saved.
    pub fn save_programs(&self, versions: &[Version]) -> Result<(), Refusal> {
        versions.iter().try_for_each(|version| {
            let saved = self.store.save_program(version.tag, version.bytes());
            saved.map_err(|error| Refusal::Unsaved {
                path: self.store.path().to_owned(),
                error,
            })
        })
    }

    /// Everything that is in force as one configuration. A program that is not in force as its own files have
    /// it is shown with the file in the run directory that has it.
    ///
    /// # Errors
    /// The intent contradicts itself, as none does that was adopted.
    pub fn shown_configuration(&self) -> Result<Config, Refusal> {
        let mut config = self.intent.as_config()?;
        let of_files = std::mem::take(&mut config.p4);
        let shown = self.intent.p4.iter().filter_map(|(name, intent)| {
            let ports = intent.ports.iter().map(|(number, port)| PlacedPort {
                number: *number,
                port: port.clone(),
            });
            let name: Name = name.parse().ok()?;
            let own = of_files.iter().find(|program| program.name == name);
            let in_force = P4Config {
                name,
                program: self.store.program(intent.program),
                p4info: None,
                entries: Vec::new(),
                ports: Vec::new(),
                operations: intent.operations.and_then(P4Operations::new),
                stage: None,
            };
            let shown = own.filter(|_| intent.file == Some(intent.program));
            Some(P4Config {
                ports: ports.collect(),
                stage: intent.stage.clone(),
                ..shown.cloned().unwrap_or(in_force)
            })
        });
        config.p4 = shown.collect();
        Ok(config)
    }
}
