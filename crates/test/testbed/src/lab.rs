//! One test's claim to this machine.
//!
//! End-to-end tests need root, and would disturb each other's throughput on a small machine; so each begins
//! with [`Lab::enter`], which lets one in at a time per process, whatever the number of test threads. Without
//! root it says so and the test ends there; where tests must not be skipped, `HYPERSWITCH_E2E=require` makes
//! that a failure.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Held while a test uses the machine.
#[derive(Debug)]
pub struct Lab {
    name: &'static str,
    begin: Instant,
    _alone: MutexGuard<'static, ()>,
}

/// The privileges or programs that this process lacks to run guests and namespaces, if any.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root");
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("needs /dev/net/tun");
    }
    None
}

impl Lab {
    /// Waits for its turn. `None` if the test cannot run here; the reason has been printed.
    ///
    /// # Panics
    /// If it cannot run and `HYPERSWITCH_E2E` is `require`.
    pub fn enter(name: &'static str) -> Option<Lab> {
        if let Some(obstacle) = obstacle() {
            assert!(
                !std::env::var("HYPERSWITCH_E2E").is_ok_and(|value| value == "require"),
                "{name}: {obstacle}"
            );
            // Past the test harness, which hides the output of successful tests.
            let _ = writeln!(std::io::stderr(), "{name}: skipped: {obstacle}");
            return None;
        }
        // A test that failed leaves nothing behind that the next one could trip over.
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Lab {
            name,
            begin: Instant::now(),
            _alone: alone,
        })
    }

    /// Prints how far the test is; shown when it fails or with `--nocapture`.
    pub fn note(&self, text: impl std::fmt::Display) {
        println!(
            "[{:6.2} s] {}: {text}",
            self.begin.elapsed().as_secs_f64(),
            self.name
        );
    }
}
