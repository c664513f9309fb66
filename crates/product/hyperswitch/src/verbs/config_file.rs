//! The configuration file as this command writes it: its text, and its place on disk.
//!
//! The control process may read the directory of the file and write nothing there. So the user's command
//! replaces the file, with the user's rights, and prepares all that can fail before anything is changed.

use anyhow::{Context, Result};
use management::Config;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

/// A configuration as TOML.
pub fn text(config: &Config) -> String {
    toml::to_string_pretty(config).expect("a configuration has tables with text keys only")
}

/// A file that waits beside the one that it will replace.
#[derive(Debug)]
pub struct Successor {
    file: PathBuf,
    new: PathBuf,
}

impl Successor {
    /// Writes `text` beside a file; `None` where the file says just that. What a symbolic link leads to is
    /// replaced, and not the link. Owner and mode are those of the file.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(file: &Path, text: &str) -> Result<Option<Successor>> {
        let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        if fs::read(&file).is_ok_and(|present| present == text.as_bytes()) {
            return Ok(None);
        }
        let successor = Successor {
            new: beside(&file, ".new"),
            file,
        };
        let written = successor.fill(text);
        written.with_context(|| format!("cannot write {}", successor.new.display()))?;
        Ok(Some(successor))
    }

    fn fill(&self, text: &str) -> std::io::Result<()> {
        let mut new = File::create(&self.new)?;
        if let Ok(present) = fs::metadata(&self.file) {
            new.set_permissions(present.permissions())?;
            // Without the right to give files away, it stays the user's.
            let _ = chown(&self.new, Some(present.uid()), Some(present.gid()));
        }
        new.write_all(text.as_bytes())?;
        new.sync_all()
    }

    /// Takes the file's place, which is kept beside it. Returns both names, for users.
    ///
    /// # Errors
    /// The file system's.
    pub fn take_place(self) -> Result<String> {
        let (old, copy) = (beside(&self.file, ".old"), beside(&self.file, ".old.new"));
        let kept = match fs::copy(&self.file, &copy) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            copied => copied.and_then(|_| fs::rename(&copy, &old)),
        };
        let taken = kept.and_then(|()| fs::rename(&self.new, &self.file));
        taken.with_context(|| format!("in force, but cannot replace {}", self.file.display()))?;
        Ok(format!(
            "{} replaced; what it was is in {}",
            self.file.display(),
            old.display()
        ))
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        // The draft has taken the place of the file, or is not wanted.
        let _ = fs::remove_file(&self.new);
    }
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(ending);
    name.into()
}
