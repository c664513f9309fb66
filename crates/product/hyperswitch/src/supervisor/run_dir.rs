//! The run directory: the place of an instance's sockets, and the lock that makes it the only instance there.

use anyhow::{Context, Result, bail};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Holds the run directory for this process until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct RunDir {
    lock: File,
}

impl RunDir {
    /// Creates the directory if need be (mode 0755) and takes it.
    ///
    /// # Errors
    /// When another instance has it, or the file system returns an error.
    pub fn take(path: &Path) -> Result<RunDir> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .with_context(|| format!("cannot create the run directory {}", path.display()))?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .with_context(|| format!("cannot open {}", lock_path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // Only decorates the message; it may be read while the other instance writes it.
                let _ = lock.read_to_string(&mut pid);
                let pid = pid.trim();
                let holder = if pid.is_empty() {
                    String::new()
                } else {
                    format!(" (process {pid})")
                };
                bail!(
                    "another instance{holder} uses the run directory {}; choose another one with --run-dir",
                    path.display()
                );
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", lock_path.display()));
            }
        }
        lock.set_len(0)?;
        lock.write_all(format!("{}\n", std::process::id()).as_bytes())?;
        Ok(RunDir { lock })
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // Closing is not enough while a child that is just being started still has a copy of the descriptor.
        let _ = self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_instance_per_directory() {
        let base = tempfile::tempdir().unwrap();
        let (a, b) = (base.path().join("deep/a"), base.path().join("b"));
        let first = RunDir::take(&a).unwrap();
        let error = RunDir::take(&a).unwrap_err().to_string();
        let expected = format!(
            "another instance (process {}) uses the run directory",
            std::process::id()
        );
        assert!(error.starts_with(&expected), "{error}");
        let _beside = RunDir::take(&b).unwrap();
        drop(first);
        RunDir::take(&a).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_is_named() {
        let error = RunDir::take(Path::new("/dev/null/x")).unwrap_err().to_string();
        assert!(error.contains("/dev/null/x"), "{error}");
    }
}
