//! Uplinks that other devices have.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};

const CONFIG: &str = "[[switch]]\nname = \"lan\"\ntype = \"external\"\nuplink = \"up0\"\n";

#[test]
fn an_uplink_that_another_device_has_is_a_warning_before_and_while_the_switch_runs() {
    let (directory, host) = (tempfile::tempdir().unwrap(), Namespace::new("uplink"));
    let must = |line: &str| {
        let (is_done, said) = host.run(line);
        assert!(is_done, "{line}: {said}");
        said
    };
    must("ip link add up0 type veth peer name world");
    must("ip link set up0 up");
    must("ip link add br0 type bridge");
    must("ip link set up0 master br0");
    let (file, run_dir) = (directory.path().join("x.toml"), directory.path().join("run"));
    std::fs::write(&file, CONFIG).unwrap();
    let check = format!("{} check {}", env!("CARGO_BIN_EXE_hyperswitch"), file.display());
    let belongs = "the uplink up0 also belongs to bridge br0";
    let said = must(&check);
    assert!(said.contains(&format!("warning: {belongs}")), "{said}");

    let instance = Instance::start_in(&host, &run_dir, &file);
    let warned = |part: &str| {
        let status = instance.verb(&["status"]).unwrap_or_default();
        let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
        warnings
            .iter()
            .any(|warning| warning.as_str().unwrap().contains(part))
    };
    // A port of another device is not opened.
    let refused = "interface 'up0' is another device's port";
    eventually("status warns", || warned(refused));
    let log = std::fs::read_to_string(file.with_extension("log")).unwrap();
    assert!(log.contains(refused), "{log}");

    must("ip link set up0 nomaster");
    let said = must(&check);
    assert!(!said.contains("belongs to"), "{said}");
    eventually("it is open", || instance.is_running("lan:uplink"));
    assert!(!warned("belongs to"));
    must("ip link add mv0 link up0 type macvlan");
    let belongs = "the uplink up0 also belongs to macvlan mv0";
    eventually("a macvlan is seen", || warned(belongs));
    let log = std::fs::read_to_string(file.with_extension("log")).unwrap();
    assert!(log.contains(belongs), "{log}");
    let reloaded = instance.verb(&["reload"]).unwrap();
    assert!(reloaded["warnings"].to_string().contains(belongs), "{reloaded}");
    must("ip link del mv0");
    eventually("it has gone", || !warned("belongs to"));
}
