//! `hyperswitch report`: what somebody else needs to understand a fault, in a directory or an archive.
//!
//! Each file is the output of a command, with its errors and its exit status: a part that is missing says
//! why, and the others are there. Only the owner may read it.

use crate::output;
use anyhow::{Context, Result, ensure};
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Verbs whose outputs are gathered, as text and as JSON.
const VERBS: &[&str] = &[
    "version",
    "status",
    "switch list",
    "port list",
    "mac list",
    "flow list",
    "stats",
    "stats placement",
    "events",
    "policy list",
    "p4 show",
    "config show",
    "ovs status",
];

/// Commands of the host: the name of the file, and the command.
const COMMANDS: &[(&str, &str)] = &[
    (
        "log.txt",
        "journalctl --no-pager --output=short-iso-precise --lines=5000 --unit=hyperswitch.service",
    ),
    ("host/kernel.txt", "uname -a"),
    ("host/command-line.txt", "cat /proc/cmdline"),
    ("host/distribution.txt", "cat /etc/os-release"),
    ("host/topology.txt", "lscpu --extended"),
    ("host/processors.txt", "lscpu"),
    ("host/memory.txt", "cat /proc/meminfo"),
    ("host/interfaces.txt", "ip -details link show"),
    ("host/limits.txt", "systemctl show hyperswitch.service"),
];

/// Bytes of a file at most: of a longer output, the beginning.
const MOST: usize = 64 << 20;

/// Writes the report.
///
/// # Errors
/// The file system's.
pub fn run(args: &crate::cli::ReportArgs, run_dir: &Path) -> Result<()> {
    let directory = match (&args.directory, &args.output) {
        (Some(directory), _) => directory.clone(),
        (None, output) => beside(output.as_deref().unwrap_or(Path::new("report"))),
    };
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    let made = builder.create(&directory);
    made.with_context(|| format!("cannot make {}", directory.display()))?;
    let gathered = gather(&directory, run_dir, args.seconds);
    let Some(archive) = &args.output else {
        gathered?;
        return output::print(&format!("{} written\n", directory.display()));
    };
    let packed = gathered.and_then(|()| pack(&directory, archive));
    let removed = std::fs::remove_dir_all(&directory);
    packed?;
    removed.with_context(|| format!("cannot remove {}", directory.display()))?;
    output::print(&format!("{} written\n", archive.display()))
}

/// The directory that becomes an archive.
fn beside(archive: &Path) -> PathBuf {
    let mut name = archive.as_os_str().to_owned();
    name.push(".d");
    name.into()
}

fn pack(directory: &Path, archive: &Path) -> Result<()> {
    let mut file = std::fs::OpenOptions::new();
    let file = file.write(true).create_new(true).mode(0o600).open(archive);
    let file = file.with_context(|| format!("cannot make {}", archive.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("--create")
        .arg("--directory")
        .arg(directory)
        .arg(".")
        .stdout(file);
    let status = tar.status().context("cannot run tar")?;
    ensure!(status.success(), "tar failed: {status}");
    Ok(())
}

fn gather(directory: &Path, run_dir: &Path, seconds: u32) -> Result<()> {
    for part in ["text", "json", "host"] {
        std::fs::create_dir(directory.join(part))?;
    }
    for verb in VERBS {
        let file = verb.replace(' ', "-");
        keep(
            &directory.join("text").join(format!("{file}.txt")),
            own(run_dir, verb),
        )?;
        keep(
            &directory.join("json").join(format!("{file}.json")),
            own(run_dir, &format!("{verb} --json")),
        )?;
    }
    for (file, line) in COMMANDS {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        keep(&directory.join(file), command)?;
    }
    watch(&directory.join("json/stats-watch.jsonl"), run_dir, seconds)
}

/// Writes all counters each second.
fn watch(path: &Path, run_dir: &Path, seconds: u32) -> Result<()> {
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut command = own(run_dir, "stats --watch=1 --json");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(Stdio::null())
        .spawn()?;
    // The command ends by itself where there is no instance, and has its last line a moment late.
    std::thread::sleep(Duration::from_millis(u64::from(seconds) * 1000 + 500));
    let _ = child.kill();
    child.wait()?;
    Ok(())
}

/// Another verb of this program.
fn own(run_dir: &Path, verb: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("--run-dir").arg(run_dir).args(verb.split(' '));
    command
}

/// Runs a command into a file.
fn keep(path: &Path, mut command: Command) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let output = command.stdin(Stdio::null()).output();
    match output {
        Ok(output) => {
            file.write_all(&output.stdout[..output.stdout.len().min(MOST)])?;
            if !output.status.success() {
                writeln!(
                    file,
                    "{}{}",
                    String::from_utf8_lossy(&output.stderr),
                    output.status
                )?;
            }
        }
        Err(error) => writeln!(file, "{}: {error}", command.get_program().display())?,
    }
    Ok(())
}
