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

fn programs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs")
}

/// Runs lines of p4runtime-shell as a client with an election number.
fn client((switch, python): (&Switch, &str), election: u32, pipeline: bool, lines: &str) -> Result<()> {
    let config = match pipeline {
        true => format!(
            "sh.FwdPipeConfig('{0}/router.p4info.txtpb', '{0}/router.json')",
            programs().join("router").display()
        ),
        false => "None".into(),
    };
    client_with((switch, python), election, &config, lines)
}

/// Runs lines of p4runtime-shell as a client that sets a pipeline, or `None`.
fn client_with((switch, python): (&Switch, &str), election: u32, config: &str, lines: &str) -> Result<()> {
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

/// Fields of packets to and from clients, beside what the switch's P4Info has. Two bytes in front of a frame
/// are the first ones of its receiver's address.
const PACKET_HEADERS: &str = "
controller_packet_metadata {
  preamble { id: 81826293 name: 'packet_in' alias: 'packet_in' }
  metadata { id: 1 name: 'first' bitwidth: 16 }
}
controller_packet_metadata {
  preamble { id: 76689799 name: 'packet_out' alias: 'packet_out' }
  metadata { id: 1 name: 'first' bitwidth: 16 }
}
";

/// A client that is station 02:..:09 of a switch, asks for a container's address, and is answered. The switch
/// tells it of stations, of which it is one.
const ASK: &str = "
group = sh.MulticastGroupEntry(256)
group.add(1, 1).add(2, 2)
group.insert()
te = sh.TableEntry('SwitchIngress.dmac')(action='SwitchIngress.forward')
te.match['hdr.ethernet.dst'] = '02:00:00:00:00:09'
te.action['port'] = '255'
te.insert()
digest = sh.DigestEntry('sighting_t')
digest.max_list_size = 1
digest.insert()
assert len(list(sh.DigestEntry('sighting_t').read())) == 1
lists = sh.DigestList()
received = sh.PacketIn()
own = bytes.fromhex('020000000009')
address = bytes([10, 1, 0, 9])
question = bytes.fromhex('08060001080006040001') + own + address + bytes(6) + bytes([10, 1, 0, 1])
answer = None
for attempt in range(100):
    out = sh.PacketOut(payload=(bytes([255] * 4) + own + question).ljust(60, bytes(1)))
    out.metadata['first'] = '0xffff'
    out.send()
    try:
        answer = received.packet_in_queue.get(timeout=0.2).packet
        break
    except Exception:
        pass
assert answer, 'nobody answers'
assert answer.metadata[0].value == bytes([2, 0]), answer
assert answer.payload[:4] == own[2:], answer
assert answer.payload[10:12] == bytes.fromhex('0806'), answer
assert answer.payload[26:30] == bytes([10, 1, 0, 1]), answer
seen = None
while seen != [own, bytes([255])]:
    one = lists.digest_list_queue.get(timeout=20).digest.data[0]
    seen = [member.bitstring for member in one.struct.members]
";

#[test]
fn a_client_sends_packets_to_a_container_and_gets_its_answers() -> Result<()> {
    let Some(_lab) = Lab::enter("a_client_sends_packets_to_a_container_and_gets_its_answers") else {
        return Ok(());
    };
    let Some(python) = python() else {
        eprintln!("left out: no python3 has p4runtime-shell (HYPERSWITCH_P4RUNTIME_PYTHON names one)");
        return Ok(());
    };
    let [one, other] = [Namespace::new("one")?, Namespace::new("other")?];
    let (a, b) = (routed("a", &one, 1), routed("b", &other, 2));
    let switch = Switch::start(&format!(
        "[p4runtime]\nlisten = \"{ADDRESS}\"\n[[p4runtime.device]]\nid = 1\nname = \"l2\"\n\
         ports = [\"1=a\", \"2=b\"]\ncpu-port = 255\n[[switch]]\nname = \"lan\"\n{a}{b}"
    ))?;
    for name in ["a", "b"] {
        switch.wait_port(name, "running")?;
    }
    switch.host().must("ip link set lo up")?;
    let program = programs().join("l2_switch");
    let p4info = switch.run_dir().join("l2.p4info.txtpb");
    let text = std::fs::read_to_string(program.join("l2_switch.p4info.txtpb"))?;
    std::fs::write(&p4info, text + PACKET_HEADERS)?;
    let (p4info, json) = (p4info.display(), program.join("l2_switch.json"));
    let config = format!("sh.FwdPipeConfig('{p4info}', '{}')", json.display());
    client_with((&switch, &python), 1, &config, ASK)?;
    // So it is for the next processes.
    for role in [Role::P4Runtime, Role::Control, Role::DataPlane] {
        let old = switch.kill(role)?;
        switch.wait_replaced(role, old)?;
        let (until, mut election) = (Instant::now() + Duration::from_secs(30), 2);
        while let Err(error) = client_with((&switch, &python), election, &config, ASK) {
            ensure!(Instant::now() < until, "after the end of {role:?}: {error:#}");
            election += 1;
        }
    }
    finish(switch, []).map(drop)
}
