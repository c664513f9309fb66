//! An instance with P4 programs of the project, in a folder of its own.

#![allow(dead_code, reason = "shared by several test programs")]

use crate::containers::{Instance, eventually};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Two ports that need no privileges.
pub const PORTS: &str =
    "[[switch]]\nname = \"lan\"\n[[switch.port]]\nname = \"a\"\n[[switch.port]]\nname = \"b\"\n";

pub const ROUTES: &str = "table_add routes via 10.1.0.0/16 => 1\n";

pub struct World {
    pub directory: TempDir,
    pub instance: Instance,
}

/// A file of the project's programs.
pub fn program(name: &str) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs");
    programs.join(name).join(format!("{name}.json"))
}

/// A configuration with a program whose files lie beside it.
pub fn with(name: &str, program: &str, ports: &str) -> String {
    format!("{PORTS}[[p4]]\nname = \"{name}\"\nprogram = \"{program}\"\n{ports}")
}

pub const ROUTER: &str = "entries = [\"routes.txt\"]\nports = [\"1=a\", \"2=b\"]\n";

pub fn files(directory: &Path) {
    for name in [
        "router",
        "rate_limiter",
        "stateful_firewall",
        "l2_switch",
        "firewall",
    ] {
        fs::copy(program(name), directory.join(format!("{name}.json"))).unwrap();
    }
    fs::write(directory.join("routes.txt"), ROUTES).unwrap();
}

pub fn hyperswitch(run_dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hyperswitch"));
    command.arg("--run-dir").arg(run_dir).args(arguments);
    command.output().unwrap()
}

impl World {
    pub fn start(config: &str) -> World {
        let directory = tempfile::tempdir().unwrap();
        files(directory.path());
        let file = directory.path().join("start.toml");
        fs::write(&file, config).unwrap();
        let instance = Instance::start(&directory.path().join("run"), &file);
        let world = World { directory, instance };
        eventually("it answers", || {
            let status = world.instance.verb(&["status"]).unwrap_or_default();
            status["data-plane"]["workers"].is_u64()
        });
        world
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// What a command prints for humans.
    pub fn says(&self, arguments: &[&str]) -> String {
        let output = hyperswitch(&self.directory.path().join("run"), arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn refuses(&self, arguments: &[&str], expected: &str) {
        let error = self.instance.verb(arguments).unwrap_err();
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }

    /// Names of P4 programs with their ports and states.
    pub fn programs(&self) -> Vec<String> {
        let all = self.instance.verb(&["p4", "show"]).unwrap_or_default();
        let all = all.as_array().cloned().unwrap_or_default();
        let shown = all.iter().map(|own| {
            let ports = own["ports"].as_array().cloned().unwrap_or_default();
            let ports: Vec<String> = ports
                .iter()
                .map(|place| format!("{}={}", place["number"], place["port"].as_str().unwrap()))
                .collect();
            let [name, state] = ["name", "state"].map(|key| own[key].as_str().unwrap());
            format!("{name} {} {state}", ports.join(","))
        });
        shown.collect()
    }

    pub fn until(&self, programs: &[&str]) {
        eventually(&format!("{programs:?}"), || self.programs() == programs);
    }

    pub fn routes(&self) -> String {
        self.says(&["p4", "entry", "list", "router", "routes"])
    }

    /// Programs in the run directory.
    pub fn saved(&self) -> usize {
        let entries = fs::read_dir(self.directory.path().join("run")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".program")).count()
    }
}
