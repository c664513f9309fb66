//! Containers that talk through a router which an unmodified client of P4Runtime has set and filled.
//!
//! The client is p4runtime-shell, as PyPI has it, in the Python that `HYPERSWITCH_P4RUNTIME_PYTHON` names
//! (default: `python3`). Without it the test is left out, and says so.

use crate::rig::{does_not_reach, finish, reaches, route, routed, transfers};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use testbed::switch::Role;
use testbed::{Endpoint, Lab, Namespace, Switch};

const ONE: &str = "10.1.0.1";
const OTHER: &str = "10.2.0.1";

/// The address of the switch's server, on the switch's host.
const ADDRESS: &str = "127.0.0.1:9559";

/// What the client is told first: a pipeline, and entries for 10.1/16 at port 1 and 10.2/16 at port 2.
const FILL: &str = "
for port, mac in ((1, 'f1'), (2, 'f2')):
    te = sh.TableEntry('RouterIngress.router_mac')(action='RouterIngress.take')
    te.match['std.ingress_port'] = str(port)
    te.match['hdr.ethernet.dst'] = '02:00:00:00:00:' + mac
    te.insert()
    te = sh.TableEntry('RouterIngress.routes')(action='RouterIngress.via')
    te.match['hdr.ipv4.dst'] = '10.%d.0.0/16' % port
    te.action['next_hop_id'] = str(port)
    te.insert()
    te = sh.TableEntry('RouterIngress.next_hops')(action='RouterIngress.send')
    te.match['meta.next_hop_id'] = str(port)
    te.action['port'] = str(port)
    te.action['mac'] = '02:00:00:00:01:0%d' % port
    te.insert()
    te = sh.TableEntry('RouterEgress.port_mac')(action='RouterEgress.leave_as')
    te.match['std.egress_port'] = str(port)
    te.action['mac'] = '02:00:00:00:00:' + mac
    te.insert()
found = list(sh.TableEntry('RouterIngress.routes').read())
assert len(found) == 2, found
group = sh.MulticastGroupEntry(5)
group.add(1, 1).add(2, 2)
group.insert()
[found] = list(sh.MulticastGroupEntry(5).read())
assert len(found.replicas) == 2
";

/// Another client, without a pipeline of its own: it reads what is there, and takes a route away.
const DELETE: &str = "
te = sh.TableEntry('RouterIngress.routes')(action='RouterIngress.via')
te.match['hdr.ipv4.dst'] = '10.2.0.0/16'
te.delete()
try:
    te.delete()
    assert False, 'deleted twice'
except Exception as error:
    assert 'NOT_FOUND' in str(error), error
assert len(list(sh.TableEntry('RouterIngress.routes').read())) == 1
";

/// The Python that has p4runtime-shell.
fn python() -> Option<String> {
    let python = std::env::var("HYPERSWITCH_P4RUNTIME_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python)
        .args(["-c", "import p4runtime_sh.shell"])
        .output();
    found
        .is_ok_and(|output| output.status.success())
        .then_some(python)
}

/// Runs lines of p4runtime-shell as a client with an election number.
fn client((switch, python): (&Switch, &str), election: u32, pipeline: bool, lines: &str) -> Result<()> {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs/router");
    let config = match pipeline {
        true => format!(
            "sh.FwdPipeConfig('{0}/router.p4info.txtpb', '{0}/router.json')",
            program.display()
        ),
        false => "None".into(),
    };
    // A failure would leave a thread of the client behind that waits for ever.
    let script = format!(
        "import os, traceback\nimport p4runtime_sh.shell as sh\n\
         try:\n    sh.setup(device_id=1, grpc_addr='{ADDRESS}', election_id=(0, {election}), config={config})\n\
         {}\n    sh.teardown()\n\
         except BaseException:\n    traceback.print_exc()\n    os._exit(1)\n",
        lines.replace('\n', "\n    ")
    );
    let file = switch.run_dir().join("client.py");
    std::fs::write(&file, script)?;
    switch
        .host()
        .must(&format!("{python} {}", file.display()))
        .map(drop)
}

#[test]
fn containers_talk_through_a_router_that_p4runtime_shell_has_filled() -> Result<()> {
    let Some(_lab) = Lab::enter("containers_talk_through_a_router_that_p4runtime_shell") else {
        return Ok(());
    };
    let Some(python) = python() else {
        eprintln!("left out: no python3 has p4runtime-shell (HYPERSWITCH_P4RUNTIME_PYTHON names one)");
        return Ok(());
    };
    let [one, other] = [Namespace::new("one")?, Namespace::new("other")?];
    let (a, b) = (routed("a", &one, 1), routed("b", &other, 2));
    let switch = Switch::start(&format!(
        "[p4runtime]\nlisten = \"{ADDRESS}\"\n[[p4runtime.device]]\nid = 1\nname = \"router\"\n\
         ports = [\"1=a\", \"2=b\"]\n[[switch]]\nname = \"lan\"\n{a}{b}"
    ))?;
    for (name, container, number) in [("a", &one, 1), ("b", &other, 2)] {
        switch.wait_port(name, "running")?;
        route(container, "eth0", number)?;
    }
    switch.host().must("ip link set lo up")?;
    does_not_reach(&one, OTHER)?;
    client((&switch, &python), 1, true, FILL)?;
    reaches(&one, OTHER)?;
    transfers(&one, &other, OTHER, 8)?;
    transfers(&other, &one, ONE, 8)?;

    // The process is killed; what it has set goes on, and the next one finds it.
    let old = switch.kill(Role::P4Runtime)?;
    reaches(&one, OTHER)?;
    switch.wait_replaced(Role::P4Runtime, old)?;
    let until = Instant::now() + Duration::from_secs(20);
    while client((&switch, &python), 2, false, "").is_err() {
        ensure!(Instant::now() < until, "the next process serves nobody");
    }
    client((&switch, &python), 3, false, DELETE).context("the second client")?;
    does_not_reach(&one, OTHER)?;
    let old = switch.kill(Role::Control)?;
    switch.wait_replaced(Role::Control, old)?;
    client((&switch, &python), 4, true, FILL).context("the third client")?;
    reaches(&one, OTHER)?;
    finish(switch, []).map(drop)
}
