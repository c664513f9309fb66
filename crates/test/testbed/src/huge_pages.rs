//! Pages of 2 MiB for peers that need them, given back afterwards in any case.
//!
//! The setting is the machine's. A small shell, which outlives this process whether it ends well, panics, is
//! interrupted or killed, waits for its pipe to close and then writes the old value; pages still in use are
//! freed by the kernel when their owner ends.

use anyhow::{Context, Result, bail};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const SETTING: &str = "/proc/sys/vm/nr_hugepages";

/// The pages that this process has reserved.
struct Ledger {
    before: u64,
    /// Pages of all handles.
    ours: u64,
    /// Process that restores the number of pages; its pipe closes with this process.
    _restorer: Child,
}

static LEDGER: Mutex<Option<Ledger>> = Mutex::new(None);

/// Reserved pages; given back on drop.
#[derive(Debug)]
pub struct HugePages {
    count: u64,
}

fn reserved() -> Result<u64> {
    let text = std::fs::read_to_string(SETTING).context("this kernel has no huge pages")?;
    Ok(text.trim().parse()?)
}

impl Ledger {
    fn open() -> Result<Ledger> {
        let before = reserved()?;
        let restorer = Command::new("sh")
            .args(["-c", &format!("cat > /dev/null; echo {before} > {SETTING}")])
            .stdin(Stdio::piped())
            // Ctrl-C at a terminal goes to the foreground group.
            .process_group(0)
            .spawn()
            .context("cannot start sh")?;
        Ok(Ledger {
            before,
            ours: 0,
            _restorer: restorer,
        })
    }

    fn apply(&self) -> Result<()> {
        let count = self.before + self.ours;
        std::fs::write(SETTING, count.to_string()).with_context(|| format!("cannot write {SETTING}"))
    }
}

impl HugePages {
    /// Has `count` pages reserved, besides those that are.
    pub fn reserve(count: u64) -> Result<HugePages> {
        let mut guard = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
        let ledger = match &mut *guard {
            Some(ledger) => ledger,
            empty => empty.insert(Ledger::open()?),
        };
        ledger.ours += count;
        ledger.apply()?;
        let (wanted, got) = (ledger.before + ledger.ours, reserved()?);
        // Dropping it takes the ledger's lock.
        drop(guard);
        let pages = HugePages { count };
        if got < wanted {
            bail!("only {got} of {wanted} huge pages of 2 MiB: memory is short or fragmented");
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let mut guard = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ledger) = &mut *guard {
            ledger.ours -= self.count;
            // The shell tries once more at the end.
            let _ = ledger.apply();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_given_back_in_any_order() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let now = || reserved().expect("readable");
        let before = now();
        let first = HugePages::reserve(2).expect("4 MiB are there");
        let second = HugePages::reserve(1).expect("2 MiB are there");
        assert_eq!(now(), before + 3);
        drop(first);
        assert_eq!(now(), before + 1);
        drop(second);
        assert_eq!(now(), before);
    }
}
