//! `ovs status`.

use super::{daemon, place, programs, socket};
use crate::output::{self, Table, or_dash};
use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "OvsStatus")]
pub struct Status {
    directory: PathBuf,
    /// `None`: it is not running.
    ovsdb_server: Option<i32>,
    ovs_vswitchd: Option<i32>,
    /// Of the ovs-vswitchd that runs.
    version: Option<String>,
    bridges: Vec<String>,
    ports: Vec<Port>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OvsPort")]
struct Port {
    bridge: String,
    port: String,
    /// `server`: the switch listens; `client`: the VMM listens. `None`: the port is not a virtual machine's.
    mode: Option<String>,
    socket: Option<PathBuf>,
    /// Whether the guest's driver runs. `None`: not known.
    carrier: Option<bool>,
    error: Option<String>,
}

pub fn run(run_dir: &Path, json: bool) -> Result<()> {
    let directory = place(run_dir)?;
    let pid = |name: &str| daemon::running(&directory, name).map(|pid| pid.as_raw_pid());
    let (ovsdb_server, ovs_vswitchd) = (pid(daemon::DATABASE), pid(daemon::SWITCH));
    let (bridges, ports) = match ovsdb_server {
        Some(_) => ports(run_dir, &directory)?,
        None => Default::default(),
    };
    let status = Status {
        ovsdb_server,
        ovs_vswitchd,
        version: ovs_vswitchd.map(|_| version(&directory)).transpose()?,
        bridges,
        ports,
        directory,
    };
    if json {
        output::json(&status)
    } else {
        output::print(&text(&status))
    }
}

fn version(place: &Path) -> Result<String> {
    let said = programs::ask(place, "ovs-appctl", &["--target=ovs-vswitchd", "version"])?;
    Ok(programs::version(&said).to_owned())
}

/// All bridges, and their ports besides their own.
fn ports(run_dir: &Path, place: &Path) -> Result<(Vec<String>, Vec<Port>)> {
    let columns = "--columns=name,external_ids,link_state,error,type,options";
    let interfaces = programs::ask(
        place,
        "ovs-vsctl",
        &["--format=json", columns, "list", "Interface"],
    )?;
    let interfaces = read(&interfaces).context("ovs-vsctl does not say what interfaces there are")?;
    let list = |arguments: &[&str]| programs::ask(place, "ovs-vsctl", arguments);
    let mut ports = Vec::new();
    let bridges: Vec<_> = list(&["list-br"])?.lines().map(str::to_owned).collect();
    for bridge in &bridges {
        for name in list(&["list-ports", bridge])?.lines() {
            let told = interfaces.get(name);
            let (mode, path) = told.map_or((None, None), |told| told.guest(run_dir, name));
            ports.push(Port {
                bridge: bridge.clone(),
                port: name.to_owned(),
                mode,
                socket: path,
                carrier: told.and_then(|told| told.link.as_ref()).map(|link| link == "up"),
                error: told.and_then(|told| told.error.clone()),
            });
        }
    }
    Ok((bridges, ports))
}

/// An interface in the database.
struct Interface {
    ids: BTreeMap<String, String>,
    link: Option<String>,
    error: Option<String>,
    kind: String,
    options: BTreeMap<String, String>,
}

impl Interface {
    /// Who listens for a virtual machine's port, and where.
    fn guest(&self, run_dir: &Path, name: &str) -> (Option<String>, Option<PathBuf>) {
        let path = |of: &BTreeMap<String, String>, key: &str| of.get(key).map(PathBuf::from);
        let (mode, path) = match (self.ids.get("vhost-user").map(String::as_str), &*self.kind) {
            (Some("server"), _) => ("server", Some(socket(run_dir, name))),
            (Some("client"), _) => ("client", path(&self.ids, "vhost-user-path")),
            (Some(other), _) => (other, None),
            (None, "dpdkvhostuser") => ("server", Some(run_dir.join("ovs").join(name))),
            (None, "dpdkvhostuserclient") => ("client", path(&self.options, "vhost-server-path")),
            _ => return (None, None),
        };
        (Some(mode.to_owned()), path)
    }
}

/// A table as ovs-vsctl writes it (RFC 7047, 5.1): name, external_ids, link_state, error, type and
/// options of each row. A column that may be empty is a string, or an empty set.
fn read(text: &str) -> Option<BTreeMap<String, Interface>> {
    let table: Value = serde_json::from_str(text).ok()?;
    let string = |value: &Value| value.as_str().map(str::to_owned);
    let map = |value: &Value| {
        let pairs = value[1].as_array()?.iter();
        let pairs = pairs.filter_map(|pair| Some((string(&pair[0])?, string(&pair[1])?)));
        Some(pairs.collect())
    };
    let rows = table["data"].as_array()?.iter().map(|row| {
        let interface = Interface {
            ids: map(&row[1])?,
            link: string(&row[2]),
            error: string(&row[3]),
            kind: string(&row[4])?,
            options: map(&row[5])?,
        };
        Some((string(&row[0])?, interface))
    });
    rows.collect()
}

fn text(status: &Status) -> String {
    let process = |pid: Option<i32>| pid.map_or_else(|| "not running".into(), |pid| format!("process {pid}"));
    let mut text = format!(
        "directory     {}\novsdb-server  {}\novs-vswitchd  {}\nversion       {}\nbridges       {}\n",
        status.directory.display(),
        process(status.ovsdb_server),
        process(status.ovs_vswitchd),
        or_dash(status.version.as_ref()),
        or_dash(Some(status.bridges.join(" ")).filter(|bridges| !bridges.is_empty())),
    );
    if !status.ports.is_empty() {
        let mut table = Table::new(&["BRIDGE", "PORT", "MODE", "CARRIER", "SOCKET", "ERROR"]);
        for port in &status.ports {
            table.row([
                port.bridge.clone(),
                port.port.clone(),
                or_dash(port.mode.as_ref()),
                or_dash(port.carrier.map(|up| if up { "up" } else { "down" })),
                or_dash(port.socket.as_ref().map(|path| path.display())),
                or_dash(port.error.as_ref()),
            ]);
        }
        text += &format!(
            "\n{table}\n`hyperswitch stats PORT` shows what a port has counted, and why packets were dropped.\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_the_database_is_read() {
        let text = r#"{"data":[
            ["vm1",["map",[["vhost-user","client"],["vhost-user-path","/a"]]],"up",["set",[]],"internal",["map",[]]],
            ["br0",["map",[]],["set",[]],"could not add","",["map",[]]],
            ["vhu1",["map",[]],"up",["set",[]],"dpdkvhostuser",["map",[]]],
            ["vhu2",["map",[]],"up",["set",[]],"dpdkvhostuserclient",["map",[["vhost-server-path","/b"]]]]],
            "headings":["name","external_ids","link_state","error","type","options"]}"#;
        let interfaces = read(text).unwrap();
        let (vm1, br0) = (&interfaces["vm1"], &interfaces["br0"]);
        assert_eq!(vm1.ids["vhost-user-path"], "/a");
        assert_eq!((vm1.link.as_deref(), &vm1.error), (Some("up"), &None));
        assert_eq!((&br0.link, br0.error.as_deref()), (&None, Some("could not add")));
        assert!(br0.ids.is_empty());
        let guest = |name: &str| interfaces[name].guest("/run".as_ref(), name);
        let listens = |mode: &str, path: &str| (Some(mode.to_owned()), Some(PathBuf::from(path)));
        assert_eq!(guest("vm1"), listens("client", "/a"));
        assert_eq!(guest("br0"), (None, None));
        assert_eq!(guest("vhu1"), listens("server", "/run/ovs/vhu1"));
        assert_eq!(guest("vhu2"), listens("client", "/b"));
        assert!(read("[]").is_none());
    }
}
