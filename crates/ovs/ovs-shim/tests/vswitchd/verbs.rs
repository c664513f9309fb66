//! `hyperswitch ovs ...`, which starts Open vSwitch's programs by itself.

use crate::forwarding::{Guest, all_arrive};
use crate::schema_check::check_output;
use crate::world::{World, library, run};
use serde_json::{Value, json};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use testbed::polling::{Build, PollingGuest};

const SCHEMA: &str = include_str!("../../../../../docs/schema.json");

/// What a verb prints, which is as `docs/schema.json` says.
fn json_of(world: &World, arguments: &str) -> Value {
    let said = serde_json::from_str(&world.product(&format!("{arguments} --json"))).unwrap();
    let words: Vec<_> = arguments.split(' ').collect();
    let verb = match words[0] {
        "ovs" => words[..2].join(" "),
        verb => verb.to_owned(),
    };
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    assert_eq!(check_output(&schema, &verb, &said), Ok(()));
    said
}

/// Runs the private instance's ovs-vsctl, as `ovs start` says.
fn vsctl(world: &World, arguments: &str) -> String {
    let database = json_of(world, &start())["database"].as_str().unwrap().to_owned();
    run(Command::new("ovs-vsctl")
        .args(["--timeout=60", &format!("--db={database}")])
        .args(arguments.split(' ')))
}

fn start() -> String {
    format!("ovs start --shim {}", library().display())
}

pub fn all(world: &mut World, program: PathBuf) {
    // No Open vSwitch of the system.
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]));
    refusals(world, program);
    let started = json_of(world, &start());
    let pids = [&started["ovsdb-server"], &started["ovs-vswitchd"]].map(|pid| pid.as_i64().unwrap());
    assert_eq!(json_of(world, &start()), started, "they run already");
    let described = described(world);
    vsctl(world, "add-br br0");
    let (mut a, mut b) = plugged(world);
    a.reach(&mut b);
    b.reach(&mut a);
    a.reach(&mut b);
    shown(world, pids);
    traced(world, &mut a, &mut b);
    counted(world, &mut a, &mut b);
    let long = format!("ovs plug br0 vm3 --client /{}", "x".repeat(107));
    let refused = world.product_refuses(&long);
    assert!(refused.contains("longer than 107"), "{refused}");
    let again = json_of(world, "ovs plug br0 vm1");
    assert_eq!(
        (&again["port"], &again["mode"]),
        (&json!("vm1"), &json!("server"))
    );
    let refused = world.product_refuses("ovs plug nowhere vm3");
    assert!(refused.contains("no bridge named nowhere"), "{refused}");
    // It starts again when it crashes, as when the process that answers it has ended.
    // SAFETY: plain integers; the process was started above.
    let result = unsafe { libc::kill(i32::try_from(pids[1]).unwrap(), libc::SIGABRT) };
    assert_eq!(result, 0);
    world.until("another ovs-vswitchd runs", |world| {
        let pid = json_of(world, "ovs status")["ovs-vswitchd"].as_i64();
        pid.is_some_and(|pid| pid != pids[1])
    });
    stopped(world, &mut a, &mut b);
    world.product(&start());
    assert_eq!(self::described(world), described, "the host is the same");
    assert_eq!(
        vsctl(world, "list-ports br0"),
        "vm1\nvm2",
        "the database was kept"
    );
    a.reach(&mut b);
    json_of(world, "ovs stop");
}

/// What the database says of the host, none of which is missing.
fn described(world: &World) -> Vec<String> {
    let columns = [
        "ovs_version",
        "db_version",
        "system_type",
        "system_version",
        "external_ids:system-id",
        "external_ids:hostname",
        "external_ids:rundir",
    ];
    let values = columns.map(|column| vsctl(world, &format!("get Open_vSwitch . {column}")));
    for (column, value) in columns.iter().zip(&values) {
        assert!(!["", "[]", "\"\""].contains(&value.as_str()), "{column}: {value}");
    }
    let version = json_of(world, "ovs status")["version"].clone();
    assert_eq!(values[0].trim_matches('"'), version);
    values.into()
}

/// What is missing is said.
fn refusals(world: &mut World, program: PathBuf) {
    world.start_product_with(program.clone(), "");
    let refused = world.product_refuses(&start());
    assert!(
        refused.contains("[ovs]") && refused.contains("config.toml"),
        "{refused}"
    );
    world.stop_product();
    let refused = world.product_refuses(&start());
    assert!(refused.contains("is it running"), "{refused}");
    world.start_product_with(program, "[ovs]\nenabled = true\n");
    // Else ovs-vswitchd waits, and says so.
    world.until("ovs-vswitchd would be answered", |world| {
        world.path("run/ovs.sock").exists()
    });
    for verb in ["ovs plug br0 vm1", "ovs status"] {
        let refused = world.product_refuses(verb);
        assert!(refused.contains("`hyperswitch ovs start`"), "{refused}");
    }
    let refused = world.product_refuses("ovs start --shim /nowhere.so");
    assert!(refused.contains("/nowhere.so is not there"), "{refused}");
    assert!(world.product("ovs stop").contains("was not running"));
    // The system's drives the switch.
    std::os::unix::fs::symlink(world.path(""), "/run/openvswitch").unwrap();
    world.start_vswitchd();
    world.until("it runs", |world| world.path("ovs-vswitchd.pid").exists());
    let refused = world.product_refuses(&start());
    assert!(refused.contains("drives the switch already"), "{refused}");
    world.kill_vswitchd();
    std::fs::remove_file("/run/openvswitch").unwrap();
}

/// A port of each kind, and its guest.
fn plugged(world: &World) -> (Guest, Guest) {
    let socket = world.product("ovs plug br0 vm1");
    assert_eq!(socket, world.guest_socket("vm1").display().to_string());
    let path = world.path("a vmm.sock");
    let vmm = UnixListener::bind(&path).unwrap();
    let arguments = ["ovs", "plug", "br0", "vm2", "--client"];
    let mut command = Command::new(world.program());
    command
        .arg("--run-dir")
        .arg(world.path("run"))
        .args(arguments)
        .arg(&path);
    assert_eq!(run(&mut command), path.display().to_string());
    let a = Guest::connect(world, "vm1", 1);
    // The switch gives up after its own time only, and so does the test.
    vmm.set_nonblocking(true).unwrap();
    let stream = std::cell::RefCell::new(None);
    world.until("the switch connects", |_| {
        *stream.borrow_mut() = vmm.accept().ok();
        stream.borrow().is_some()
    });
    let (stream, _) = stream.into_inner().unwrap();
    let ports = PollingGuest::over(Build::default(), vec![stream], 2000).unwrap();
    (a, Guest::new("vm2", 2, ports))
}

/// A packet that nobody sent: by the flows that are there, and by ovs-vswitchd's decision where there is
/// none.
fn traced(world: &World, a: &mut Guest, b: &mut Guest) {
    let mac = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(":")
    };
    let frame = a.reach(b);
    let trace = |source: &str| {
        let to = mac(&frame[..6]);
        format!("ovs trace --in-port vm1 --src {source} --dst {to} --ip 192.0.2.1,192.0.2.2 --proto udp")
    };
    let known = trace(&mac(&frame[6..12]));
    world.until("a flow is traced", |world| {
        let steps = json_of(world, &known)["steps"].clone();
        let flow = steps[0]["flow"].as_str().unwrap_or_default();
        flow.contains("in_port(") && steps[1] == json!({"step": "delivered", "port": "vm2"})
    });
    let text = world.product(&known);
    assert!(
        text.contains("matched     ") && text.contains("\ndelivered   to port vm2"),
        "{text}"
    );
    let text = world.product(&trace("02:00:00:00:00:99"));
    assert!(
        text.contains("miss        no flow matches") && text.contains("Datapath actions: "),
        "{text}"
    );
    let refused = world.product_refuses(&known.replace("vm1", "vm9"));
    assert!(refused.contains("no port vm9"), "{refused}");
}

/// What a port has counted, and why packets of it were dropped.
fn counted(world: &World, a: &mut Guest, b: &mut Guest) {
    let of_vm1 = || json_of(world, "stats vm1")["ports"][0].clone();
    assert_eq!(of_vm1()["port"], "vm1");
    let ofctl = |arguments: &[&str]| {
        let mut ofctl = Command::new("ovs-ofctl");
        ofctl.env("OVS_RUNDIR", world.path("run/openvswitch"));
        run(ofctl.args(arguments))
    };
    ofctl(&["add-flow", "br0", "priority=9,in_port=vm1,actions=drop"]);
    a.loses(b);
    world.until("the reason is told", |_| {
        let dropped = of_vm1()["counters"]["dropped"]["no-action"].as_u64();
        dropped.is_some_and(|dropped| dropped > 0)
    });
    let text = world.product("stats vm1");
    assert!(text.contains("no-action"), "{text}");
    ofctl(&["del-flows", "br0", "in_port=vm1"]);
    a.reach(b);
    let refused = world.product_refuses("stats vm9");
    assert!(refused.contains("vm9"), "{refused}");
    assert!(world.product("ovs status").contains("`hyperswitch stats PORT`"));
}

fn shown(world: &World, pids: [i64; 2]) {
    world.until("both guests are shown", |world| {
        let status = json_of(world, "ovs status");
        let ports = status["ports"].as_array().unwrap();
        ports.len() == 2 && ports.iter().all(|port| port["carrier"] == true)
    });
    let status = json_of(world, "ovs status");
    assert_eq!(
        [&status["ovsdb-server"], &status["ovs-vswitchd"]],
        pids.map(Value::from).each_ref()
    );
    let version = run(Command::new("ovs-vswitchd").arg("--version"));
    let version = version.lines().next().unwrap().rsplit(' ').next().unwrap();
    assert_eq!(
        (&status["version"], &status["bridges"]),
        (&json!(version), &json!(["br0"]))
    );
    let [vm1, vm2] = [&status["ports"][0], &status["ports"][1]];
    assert_eq!((&vm1["port"], &vm1["mode"]), (&json!("vm1"), &json!("server")));
    assert_eq!(vm1["socket"], json!(world.guest_socket("vm1")));
    assert_eq!(
        (&vm2["mode"], &vm2["socket"]),
        (&json!("client"), &json!(world.path("a vmm.sock")))
    );
    let text = world.product("ovs status");
    assert!(text.contains("vm1   server  up"), "{text}");
}

/// Flows go on without the processes.
fn stopped(world: &World, a: &mut Guest, b: &mut Guest) {
    a.reach(b);
    b.reach(a);
    a.reach(b);
    world.product("ovs stop");
    all_arrive(100, a, b);
    let status = json_of(world, "ovs status");
    assert_eq!(
        (&status["ovsdb-server"], &status["ovs-vswitchd"]),
        (&Value::Null, &Value::Null)
    );
    let refused = world.product_refuses("ovs plug br0 vm3");
    assert!(refused.contains("no ovs-vswitchd runs"), "{refused}");
}
