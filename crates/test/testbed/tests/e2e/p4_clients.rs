//! Other clients of P4Runtime, and a tester of packets, as PyPI has them: finsy and ptf.
//!
//! The Python that `HYPERSWITCH_FINSY_PYTHON` names has both; `scripts/test-p4runtime` makes it. Without it
//! the tests are left out, and say so.

use crate::rig::{does_not_reach, finish, reaches, route, routed, transfers};
use anyhow::Result;
use std::path::{Path, PathBuf};
use testbed::{Endpoint, Lab, Namespace, Switch};

const ONE: &str = "10.1.0.1";
const OTHER: &str = "10.2.0.1";

/// The address of the switch's server, on the switch's host.
const ADDRESS: &str = "127.0.0.1:9559";

fn python() -> Option<String> {
    let python = std::env::var("HYPERSWITCH_FINSY_PYTHON").ok();
    if python.is_none() {
        eprintln!("left out: HYPERSWITCH_FINSY_PYTHON names no Python with finsy and ptf");
    }
    python
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/e2e")
}

/// Starts an instance whose device 1 has two ports of a switch.
fn start(ports: &str) -> Result<Switch> {
    let switch = Switch::start(&format!(
        "[p4runtime]\nlisten = \"{ADDRESS}\"\n[[p4runtime.device]]\nid = 1\nname = \"one\"\n\
         ports = [\"1=a\", \"2=b\"]\n[[switch]]\nname = \"lan\"\n{ports}"
    ))?;
    for name in ["a", "b"] {
        switch.wait_port(name, "running")?;
    }
    switch.host().must("ip link set lo up")?;
    Ok(switch)
}

/// Has finsy do a task with a program of the project.
fn finsy((switch, python): (&Switch, &str), election: u32, task: &str, program: &str) -> Result<()> {
    let script = folder().join("finsy_client.py");
    let program = folder().join(format!("../../../../p4/p4-bmv2/programs/{program}/{program}"));
    let (script, program) = (script.display(), program.display());
    let command =
        format!("{python} {script} {ADDRESS} {election} {task} {program}.p4info.txtpb {program}.json");
    switch.host().must(&command).map(drop)
}

#[test]
fn containers_talk_through_a_router_that_finsy_has_filled() -> Result<()> {
    let Some(_lab) = Lab::enter("containers_talk_through_a_router_that_finsy_has_filled") else {
        return Ok(());
    };
    let Some(python) = python() else { return Ok(()) };
    let [one, other] = [Namespace::new("one")?, Namespace::new("other")?];
    let switch = start(&(routed("a", &one, 1) + &routed("b", &other, 2)))?;
    route(&one, "eth0", 1)?;
    route(&other, "eth0", 2)?;
    let client = (&switch, &*python);
    does_not_reach(&one, OTHER)?;
    finsy(client, 10, "fill", "router")?;
    reaches(&one, OTHER)?;
    transfers(&one, &other, OTHER, 8)?;
    transfers(&other, &one, ONE, 8)?;
    finsy(client, 11, "delete", "router")?;
    does_not_reach(&one, OTHER)?;
    // Other programs, in the place of the router, which returns.
    finsy(client, 12, "idle", "l2_switch")?;
    finsy(client, 13, "rates", "rate_limiter")?;
    finsy(client, 14, "fill", "router")?;
    reaches(&one, OTHER)?;
    finish(switch, []).map(drop)
}

#[test]
fn ptf_finds_its_packets_routed() -> Result<()> {
    let Some(_lab) = Lab::enter("ptf_finds_its_packets_routed") else {
        return Ok(());
    };
    let Some(python) = python() else { return Ok(()) };
    let tester = Namespace::new("tester")?;
    // The tester's kernel shall send nothing of its own.
    tester.must("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")?;
    let port = |name: &str| {
        format!(
            "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\ninterface = \"p{name}\"\nnetns = \"{}\"\n",
            tester.netns()
        )
    };
    let switch = start(&(port("a") + &port("b")))?;
    finsy((&switch, &python), 10, "fill", "router")?;
    let ptf = Path::new(&python).with_file_name("ptf");
    let (run, tests) = (switch.run_dir(), folder().join("ptf"));
    tester.must(&format!(
        "ip link set pa up && ip link set pb up && cd {} && {} --test-dir {} --interface 1@pa --interface 2@pb",
        run.display(),
        ptf.display(),
        tests.display()
    ))?;
    finish(switch, []).map(drop)
}
