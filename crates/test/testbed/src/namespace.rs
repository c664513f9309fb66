//! Network namespaces, which are containers to a switch, and keep a test's interfaces apart from the
//! machine's.
//!
//! Names carry the process id and a count, so that test runs side by side do not collide. The namespace
//! disappears with its handle, and the interfaces made in it with the namespace; one whose process was killed
//! is removed by the next.

use crate::endpoint::{Endpoint, Host, Running};
use crate::{build_dir, process};
use anyhow::Result;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// A network namespace; deleted on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    netns: String,
}

impl Namespace {
    /// Creates a namespace with the loopback interface up. `label` is its name in messages.
    pub fn new(label: &str) -> Result<Namespace> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(remove_orphans);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let netns = format!("hs-{}-{count}-{label}", std::process::id());
        Host.must(&format!("ip netns add {netns}"))?;
        let namespace = Namespace {
            name: label.into(),
            netns,
        };
        namespace.must("ip link set lo up")?;
        Ok(namespace)
    }

    /// Name of the namespace under `/run/netns`.
    pub fn netns(&self) -> &str {
        &self.netns
    }

    /// Identifiers of the processes in it.
    pub fn pids(&self) -> Result<Vec<u32>> {
        let text = Host.must(&format!("ip netns pids {}", self.netns))?;
        Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }
}

/// Deletes namespaces that earlier processes left behind because they were killed.
fn remove_orphans() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix("hs-")
            .and_then(|rest| rest.split('-').next())
            .unwrap_or_default();
        let ours = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
        if ours && !Path::new("/proc").join(pid).exists() {
            let _ = Host.run(&format!("ip netns del {name}"));
        }
    }
}

/// Where programs are looked for: those that guests have in their initrd are at hand here, too.
fn with_our_programs() -> Option<OsString> {
    let ours = build_dir::sibling("udp-rr")?;
    let others = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(ours.parent()?.to_path_buf()).chain(std::env::split_paths(&others));
    std::env::join_paths(all).ok()
}

impl Endpoint for Namespace {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, command: &str) -> Result<Running> {
        let mut shell = process::command("ip");
        shell.args(["netns", "exec", &self.netns, "sh", "-c", command]);
        if let Some(path) = with_our_programs() {
            shell.env("PATH", path);
        }
        Running::local(format!("{}: `{command}`", self.name), shell)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nothing useful can be done if it fails.
        let _ = Host.run(&format!("ip netns del {}", self.netns));
    }
}
