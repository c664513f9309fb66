//! `ovs start`.

use super::{SYSTEM, check_instance, daemon, private, programs};
use crate::output;
use anyhow::{Context, Result, bail};
use rustix::process::Pid;
use schemars::JsonSchema;
use serde::Serialize;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const SHIM: &str = "libovs_shim.so";

/// Processes that run, as JSON.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "OvsStarted")]
pub struct Started {
    ovsdb_server: i32,
    ovs_vswitchd: i32,
    directory: PathBuf,
    /// As `ovs-vsctl --db` takes it.
    database: String,
}

pub fn run(run_dir: &Path, shim: Option<&Path>, json: bool) -> Result<()> {
    check_instance(run_dir)?;
    check_system()?;
    let place = private(run_dir);
    let shim = find_shim(shim)?;
    // Before anything is made, the programs are looked for.
    for program in ["ovsdb-tool", daemon::DATABASE, daemon::SWITCH, "ovs-vsctl"] {
        programs::command(&place, program)?;
    }
    let database = start_database(&place)?;
    let switch = start_switch(run_dir, &place, &shim)?;
    let socket = place.join("db.sock");
    if json {
        return output::json(&Started {
            ovsdb_server: database.as_raw_pid(),
            ovs_vswitchd: switch.as_raw_pid(),
            database: format!("unix:{}", socket.display()),
            directory: place,
        });
    }
    output::print(&format!(
        "ovsdb-server is process {database}, ovs-vswitchd process {switch}.\n\
         ovs-vsctl --db=unix:{} ...\n\
         export OVS_RUNDIR={}   # for all of ovs-vsctl, ovs-ofctl and ovs-appctl\n",
        socket.display(),
        place.display()
    ))
}

/// Makes sure that the system's ovs-vswitchd is not one of ours: two would take the ports from each other.
fn check_system() -> Result<()> {
    if let Some(pid) = daemon::running(Path::new(SYSTEM), daemon::SWITCH)
        && std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(SHIM))
    {
        bail!("the system's ovs-vswitchd, process {pid}, drives the switch already");
    }
    Ok(())
}

/// The library: as given, or as installed beside the program, or where cargo has made it.
fn find_shim(given: Option<&Path>) -> Result<PathBuf> {
    let places = match given {
        Some(path) => vec![std::path::absolute(path)?],
        None => {
            let program = std::env::current_exe().context("cannot find this program")?;
            let directory = program.parent().unwrap_or(Path::new("/"));
            vec![
                directory.join("../lib/hyperswitch").join(SHIM),
                directory.join(SHIM),
            ]
        }
    };
    match places.iter().find(|path| path.is_file()) {
        Some(path) => path.canonicalize().context("cannot find the library"),
        None => bail!("{} is not there; --shim names {SHIM}", places[0].display()),
    }
}

/// Starts the database, unless it runs, and makes it, unless there is one.
fn start_database(place: &Path) -> Result<Pid> {
    if let Some(pid) = daemon::running(place, daemon::DATABASE) {
        return Ok(pid);
    }
    // A user who may write to the database names sockets to which the switch connects.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(place)
        .with_context(|| format!("cannot make {}", place.display()))?;
    let file = place.join("conf.db");
    if !file.exists() {
        let mut tool = programs::command(place, "ovsdb-tool")?;
        programs::run(tool.arg("create").arg(&file).arg(SCHEMA))?;
    }
    let mut server = programs::command(place, daemon::DATABASE)?;
    server
        .arg(file)
        .arg(format!("--remote=punix:{}", place.join("db.sock").display()))
        // As the distribution starts it: managers that the database itself names.
        .arg("--remote=db:Open_vSwitch,Open_vSwitch,manager_options");
    let pid = daemon::start(place, daemon::DATABASE, &mut server)?;
    programs::ask(place, "ovs-vsctl", &["--no-wait", "init"])?;
    describe(place)?;
    Ok(pid)
}

/// Says in the database what Open vSwitch's own `ovs-ctl` says there: versions, and the host's name and
/// identity. The latter two stay as they are once they are there.
fn describe(place: &Path) -> Result<()> {
    let run = |program, arguments: &[&str]| programs::run(programs::command(place, program)?.args(arguments));
    let version = run(daemon::SWITCH, &["--version"])?;
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let host = rustix::system::uname();
    let columns = [
        ("ovs_version", programs::version(&version).to_owned()),
        ("db_version", run("ovsdb-tool", &["schema-version", SCHEMA])?),
        ("system_type", os_release(&system, "ID")),
        ("system_version", os_release(&system, "VERSION_ID")),
        ("external_ids:rundir", place.display().to_string()),
    ];
    let identity = [
        (
            "system-id",
            std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default(),
        ),
        ("hostname", host.nodename().to_string_lossy().into_owned()),
    ];
    let mut change: Vec<_> = ["--no-wait", "set", "Open_vSwitch", "."]
        .map(str::to_owned)
        .into();
    for (column, value) in columns {
        change.push(format!("{column}={}", quoted(&value)));
    }
    for (key, value) in identity {
        let column = format!("external_ids:{key}");
        let get = ["--if-exists", "get", "Open_vSwitch", ".", &column];
        if programs::ask(place, "ovs-vsctl", &get)?.is_empty() {
            change.push(format!("{column}={}", quoted(value.trim())));
        }
    }
    let change: Vec<_> = change.iter().map(String::as_str).collect();
    programs::ask(place, "ovs-vsctl", &change).map(drop)
}

/// A value of os-release(5); `unknown` if it is not there.
fn os_release(text: &str, key: &str) -> String {
    let value = |line: &str| {
        Some(
            line.strip_prefix(key)?
                .strip_prefix('=')?
                .trim_matches('"')
                .to_owned(),
        )
    };
    text.lines()
        .find_map(value)
        .unwrap_or_else(|| "unknown".to_owned())
}

/// A string as ovs-vsctl reads it.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn start_switch(run_dir: &Path, place: &Path, shim: &Path) -> Result<Pid> {
    if let Some(pid) = daemon::running(place, daemon::SWITCH) {
        return Ok(pid);
    }
    let mut switch = programs::command(place, daemon::SWITCH)?;
    switch
        .arg(format!("unix:{}", place.join("db.sock").display()))
        .env("LD_PRELOAD", shim)
        .env("HYPERSWITCH_OVS_SOCKET", run_dir.join("ovs.sock"));
    daemon::start(place, daemon::SWITCH, &mut switch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_known_by_its_release_file() {
        let text = "NAME=\"Debian GNU/Linux\"\nVERSION_ID=\"12\"\nID=debian\n";
        assert_eq!(os_release(text, "ID"), "debian");
        assert_eq!(os_release(text, "VERSION_ID"), "12");
        assert_eq!(os_release("", "ID"), "unknown");
        assert_eq!(quoted("a \"b\""), r#""a \"b\"""#);
    }
}
