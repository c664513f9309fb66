//! The constraints of all cores, in the hands of the privileged process.

use crate::{ANY_STATE, POLL_ONLY};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The directory in which the kernel has one for each core.
pub const CPUS: &str = "/sys/devices/system/cpu";

/// Number from which on cores are left out: all descriptors have to fit into the channel of a process that
/// does not read yet.
const MOST: u16 = 512;

/// The reason why no core can be kept from halting.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("the kernel has no driver for idle states")]
    NoIdleStates,
    /// The directory of cores cannot be read, or the note cannot be written.
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
}

/// The reason why the file of one core is left alone.
#[derive(Debug, thiserror::Error)]
enum CoreError {
    #[error("its resume latency is set to {0}")]
    Constrained(String),
    #[error(transparent)]
    File(#[from] io::Error),
}

/// See the crate's description. When it is dropped, all constraints are lifted.
#[derive(Debug)]
pub struct Constraints {
    cpus: PathBuf,
    files: Vec<(u16, OwnedFd)>,
    refused: String,
    note: PathBuf,
}

impl Constraints {
    /// Opens the files of all cores that have no constraint, below `cpus` ([`CPUS`]). `note` is a file of
    /// this process alone, which outlives it if it is killed; constraints that its predecessor has left
    /// behind are lifted.
    pub fn open(cpus: &Path, note: &Path) -> Constraints {
        let mut all = Constraints {
            cpus: cpus.into(),
            files: Vec::new(),
            refused: String::new(),
            note: note.into(),
        };
        if let Err(error) = all.open_files() {
            all.files.clear();
            all.refused = error.to_string();
        }
        all
    }

    /// The cores whose files are open.
    pub fn files(&self) -> impl Iterator<Item = (u16, BorrowedFd<'_>)> {
        self.files.iter().map(|(cpu, file)| (*cpu, file.as_fd()))
    }

    /// The reason why other cores' files are not open, for users; empty if all are.
    pub fn refused(&self) -> &str {
        &self.refused
    }

    /// Lifts the constraints that the process with the descriptors has set and not lifted, whatever it wrote.
    pub fn lift_all(&self) {
        for (cpu, _) in &self.files {
            let file = self.file_of(*cpu);
            if value(&file).is_ok_and(|value| value != ANY_STATE)
                && let Err(error) = fs::write(&file, ANY_STATE)
            {
                log::warn!("CPU {cpu} keeps its constraint, {}: {error}", file.display());
            }
        }
    }

    fn open_files(&mut self) -> Result<(), OpenError> {
        let failed = |path: &Path, error| OpenError::File {
            path: path.into(),
            error,
        };
        let driver = value(&self.cpus.join("cpuidle/current_driver"));
        if !driver.is_ok_and(|driver| driver != "none") {
            return Err(OpenError::NoIdleStates);
        }
        let stale = read_note(&self.note);
        let (mut refusals, mut reason) = (0, String::new());
        for cpu in numbers(&self.cpus).map_err(|error| failed(&self.cpus, error))? {
            match open(&self.file_of(cpu), stale.contains(&cpu)) {
                Ok(file) => self.files.push((cpu, file)),
                Err(error) if refusals == 0 => (refusals, reason) = (1, format!("CPU {cpu}: {error}")),
                Err(_) => refusals += 1,
            }
        }
        self.refused = match refusals {
            0 | 1 => reason,
            more => format!("{reason}, and {} more", more - 1),
        };
        if self.files.is_empty() {
            return Ok(());
        }
        // Before anything is set: without it, a constraint might stay behind for good.
        write_note(&self.note, &self.files).map_err(|error| failed(&self.note, error))?;
        self.lift_all();
        Ok(())
    }

    fn file_of(&self, cpu: u16) -> PathBuf {
        let file = format!("cpu{cpu}/power/pm_qos_resume_latency_us");
        self.cpus.join(file)
    }
}

impl Drop for Constraints {
    fn drop(&mut self) {
        self.lift_all();
        // It may not be there.
        let _ = fs::remove_file(&self.note);
    }
}

/// The numbers of the cores with a directory, in order.
fn numbers(cpus: &Path) -> io::Result<Vec<u16>> {
    let number = |name: &str| name.strip_prefix("cpu")?.parse().ok();
    let names = fs::read_dir(cpus)?.map_while(Result::ok);
    let numbers = names.filter_map(|entry| number(entry.file_name().to_str()?));
    let mut numbers: Vec<u16> = numbers.filter(|number| *number < MOST).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn value(file: &Path) -> io::Result<String> {
    fs::read_to_string(file).map(|text| text.trim().to_owned())
}

/// Opens a core's file if there is no constraint, or only one that was left behind.
fn open(file: &Path, is_stale: bool) -> Result<OwnedFd, CoreError> {
    match value(file)?.as_str() {
        ANY_STATE => {}
        POLL_ONLY if is_stale => {}
        other => return Err(CoreError::Constrained(other.into())),
    }
    Ok(OpenOptions::new().write(true).open(file)?.into())
}

/// Names the run of the kernel: constraints do not survive it.
fn boot_id() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
}

fn write_note(note: &Path, files: &[(u16, OwnedFd)]) -> io::Result<()> {
    let mut text = boot_id()?;
    for (cpu, _) in files {
        text += &format!("{cpu}\n");
    }
    fs::write(note, text)
}

/// The cores whose constraints a predecessor may have left behind.
fn read_note(note: &Path) -> Vec<u16> {
    let (Ok(text), Ok(boot_id)) = (fs::read_to_string(note), boot_id()) else {
        return Vec::new();
    };
    let cores = text.strip_prefix(&boot_id).unwrap_or_default();
    cores.lines().filter_map(|line| line.parse().ok()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A directory like the kernel's, with these values.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn with(values: &[&str]) -> Machine {
            let machine = Machine(tempfile::tempdir().unwrap());
            for (cpu, value) in values.iter().enumerate() {
                fs::create_dir_all(machine.0.path().join(format!("cpu{cpu}/power"))).unwrap();
                machine.set(cpu, value);
            }
            fs::create_dir(machine.0.path().join("cpuidle")).unwrap();
            machine.set_driver("test");
            machine
        }

        fn file(&self, cpu: usize) -> PathBuf {
            let file = format!("cpu{cpu}/power/pm_qos_resume_latency_us");
            self.0.path().join(file)
        }

        fn set(&self, cpu: usize, value: &str) {
            fs::write(self.file(cpu), format!("{value}\n")).unwrap();
        }

        fn set_driver(&self, name: &str) {
            let file = self.0.path().join("cpuidle/current_driver");
            fs::write(file, format!("{name}\n")).unwrap();
        }

        fn value(&self, cpu: usize) -> String {
            value(&self.file(cpu)).unwrap()
        }

        fn note(&self) -> PathBuf {
            self.0.path().join("note")
        }

        fn open(&self) -> Constraints {
            Constraints::open(self.0.path(), &self.note())
        }
    }

    fn cores(constraints: &Constraints) -> Vec<u16> {
        constraints.files().map(|(cpu, _)| cpu).collect()
    }

    #[test]
    fn an_administrator_s_values_are_left_alone() {
        let machine = Machine::with(&["0", "n/a", "50", "0"]);
        let constraints = machine.open();
        assert_eq!(cores(&constraints), [0, 3]);
        assert_eq!(
            constraints.refused(),
            "CPU 1: its resume latency is set to n/a, and 1 more"
        );
        machine.set(0, "n/a");
        // As a process that was taken over could.
        machine.set(3, "7");
        drop(constraints);
        let values: Vec<_> = (0..4).map(|cpu| machine.value(cpu)).collect();
        assert_eq!(values, ["0", "n/a", "50", "0"]);
        assert!(!machine.note().exists());
    }

    #[test]
    fn what_a_dead_process_has_set_is_lifted() {
        let machine = Machine::with(&["0", "0"]);
        let constraints = machine.open();
        machine.set(1, "n/a");
        constraints.lift_all();
        assert_eq!(machine.value(1), "0");
        assert_eq!(cores(&constraints), [0, 1], "for the next one");
    }

    #[test]
    fn what_a_killed_predecessor_left_behind_is_lifted() {
        let machine = Machine::with(&["0", "n/a"]);
        let killed = machine.open();
        machine.set(0, "n/a");
        std::mem::forget(killed);
        let constraints = machine.open();
        assert_eq!(cores(&constraints), [0], "the other one was not its own");
        assert_eq!([machine.value(0), machine.value(1)], ["0", "n/a"]);
        drop(constraints);
        // After the machine was started again, it is somebody else's.
        machine.set(0, "n/a");
        fs::write(machine.note(), "another run of the kernel\n0\n").unwrap();
        assert_eq!(cores(&machine.open()), [0; 0]);
    }

    #[test]
    fn what_is_missing_is_said() {
        let machine = Machine::with(&["0", "0"]);
        fs::remove_file(machine.file(0)).unwrap();
        let constraints = machine.open();
        assert_eq!(cores(&constraints), [1]);
        assert!(constraints.refused().starts_with("CPU 0: No such file"));
        drop(constraints);
        machine.set_driver("none");
        let nothing = Constraints::open(Path::new("/nonexistent"), &machine.note());
        for constraints in [machine.open(), nothing] {
            assert_eq!(cores(&constraints), [0; 0]);
            let reason = "the kernel has no driver for idle states";
            assert_eq!(constraints.refused(), reason);
        }
    }

    #[test]
    fn without_a_note_nothing_is_lent() {
        let machine = Machine::with(&["0"]);
        let constraints = Constraints::open(machine.0.path(), Path::new("/nonexistent/note"));
        assert_eq!(cores(&constraints), [0; 0]);
        assert!(constraints.refused().starts_with("/nonexistent/note: "));
    }
}
