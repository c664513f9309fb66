//! Where artefacts that are made once and kept live: `build/` of the checkout, ignored by git.
//!
//! Files are written under a temporary name and renamed, so that test runs at the same time see either
//! nothing or everything.

use anyhow::{Context, Result, bail};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// `build/`, or the directory that `HYPERSWITCH_BUILD_DIR` names.
pub fn path() -> PathBuf {
    match std::env::var_os("HYPERSWITCH_BUILD_DIR") {
        Some(path) => path.into(),
        None => workspace().join("build"),
    }
}

/// The checkout.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(3).unwrap_or(here).into()
}

/// A program that was built with the one that runs: it lies beside it, or one level above where tests are.
pub fn sibling(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// The file `name`, made by `make` if it does not exist. Everything on which the contents depend must be part
/// of the name.
pub fn cached(name: &str, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<PathBuf> {
    let path = path().join(name);
    if !path.exists() {
        write(&path, &make()?)?;
    }
    Ok(path)
}

/// Writes a file in one step.
pub fn write(path: &Path, contents: &[u8]) -> Result<()> {
    let dir = path.parent().context("artefacts have a directory")?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let temporary = tempfile::NamedTempFile::new_in(dir)?;
    std::fs::write(temporary.path(), contents)?;
    // Only their owner may read temporary files; all users may read results.
    std::fs::set_permissions(temporary.path(), std::fs::Permissions::from_mode(0o644))?;
    temporary
        .persist(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// The kernel for QEMU guests, as extracted by `scripts/setup`: its image and its module tree.
pub fn guest_kernel() -> Result<(PathBuf, PathBuf)> {
    let dir = path().join("guest-kernel");
    let (image, modules) = (dir.join("vmlinuz"), dir.join("modules"));
    if !image.exists() || !modules.exists() {
        bail!("no guest kernel in {}: run scripts/setup", dir.display());
    }
    Ok((image, modules))
}
