//! State that has to outlive the control process: users' intent, in `<run dir>/state.json`.
//!
//! A restarted control process takes the intent from there and not from the configuration file, which may
//! have been edited in the meantime, possibly with errors: only a reload reads that file. The intent lasts as
//! long as `hyperswitch run`, so the file names the supervisor that it belongs to; that of an earlier one is
//! ignored.

use crate::intent::Intent;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
struct Stored {
    instance: String,
    intent: Intent,
}

/// The file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    instance: String,
}

impl Store {
    /// The store in a run directory, for the supervisor that started this process.
    pub fn new(run_dir: &Path) -> Self {
        Store {
            path: run_dir.join("state.json"),
            instance: supervisor_instance(),
        }
    }

    /// The intent that was saved under the same supervisor, if there is one that can be read.
    pub fn load(&self) -> Option<Intent> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                log::warn!("cannot read {}: {error}", self.path.display());
                return None;
            }
        };
        match serde_json::from_str::<Stored>(&text) {
            Ok(stored) => (stored.instance == self.instance).then_some(stored.intent),
            Err(error) => {
                log::warn!("cannot understand {}: {error}", self.path.display());
                None
            }
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Saves; readers see the old contents or the new.
    ///
    /// # Errors
    /// The file system's.
    pub fn save(&self, intent: &Intent) -> io::Result<()> {
        let stored = Stored {
            instance: self.instance.clone(),
            intent: intent.clone(),
        };
        let text = serde_json::to_vec_pretty(&stored)?;
        replace(&self.path, &text)
    }

    /// The file of a P4 program with its entries, which never changes.
    pub fn program(&self, tag: u64) -> PathBuf {
        self.path.with_file_name(format!("p4-{tag:016x}.program"))
    }

    /// Saves a P4 program.
    ///
    /// # Errors
    /// The file system's.
    pub fn save_program(&self, tag: u64, bytes: &[u8]) -> io::Result<()> {
        replace(&self.program(tag), bytes)
    }

    /// Reads a P4 program.
    ///
    /// # Errors
    /// The file system's.
    pub fn load_program(&self, tag: u64) -> io::Result<Vec<u8>> {
        fs::read(self.program(tag))
    }

    /// Removes P4 programs.
    pub fn remove_programs<'a>(&self, tags: impl IntoIterator<Item = &'a u64>) {
        for tag in tags {
            let _ = fs::remove_file(self.program(*tag));
        }
    }

    /// Removes the files: `hyperswitch run` ends.
    pub fn clear(&self, intent: &Intent) {
        let _ = fs::remove_file(&self.path);
        self.remove_programs(&intent.programs());
    }
}

/// Puts a file in another one's place.
fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let written = fs::File::create(&temporary).and_then(|mut file| file.write_all(contents));
    let saved = written.and_then(|()| fs::rename(&temporary, path));
    if saved.is_err() {
        // Where there is no room, half a file takes the rest of it.
        let _ = fs::remove_file(&temporary);
    }
    saved
}

/// Names the parent process for good: its number and when it was started (field 22 of `/proc/<pid>/stat`).
fn supervisor_instance() -> String {
    let parent = std::os::unix::process::parent_id();
    let stat = fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    let started = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_ascii_whitespace().nth(19))
        .unwrap_or("?");
    format!("{parent}-{started}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intent::P4Intent;

    #[test]
    fn the_intent_returns_to_the_same_instance_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        assert_eq!(store.load(), None);
        let mut intent = Intent::default();
        intent.overrides.insert(
            "vm1".into(),
            management::PortChanges {
                isolated: Some(true),
                ..Default::default()
            },
        );
        store.save(&intent).unwrap();
        assert_eq!(Store::new(dir.path()).load(), Some(intent));
        let other = Store {
            instance: "1-2".into(),
            path: store.path.clone(),
        };
        assert_eq!(other.load(), None);
        fs::write(&store.path, "{").unwrap();
        assert_eq!(store.load(), None);
        store.clear(&Intent::default());
        assert_eq!(store.load(), None);
    }

    #[test]
    fn programs_have_files_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        for (tag, bytes) in [(3, &b"first"[..]), (u64::MAX, b"second")] {
            store.save_program(tag, bytes).unwrap();
            assert_eq!(store.load_program(tag).unwrap(), bytes);
        }
        assert!(store.load_program(4).is_err());
        let own = P4Intent {
            program: 3,
            file: Some(u64::MAX),
            ..P4Intent::default()
        };
        let mut intent = Intent::default();
        intent.p4.insert("one".into(), own);
        store.clear(&intent);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
