//! P4 programs of the configuration, and of commands beside them: checked, applied, taken back, shown,
//! exported.

#![allow(clippy::unwrap_used)]

mod containers;
mod p4_world;

use p4_world::{PORTS, ROUTER, ROUTES, World, files, hyperswitch, program, with};
use serde_json::Value;
use std::fs;
use std::path::Path;

const IN_FORCE: &str = "router 1=a,2=b in force";

#[test]
fn a_program_of_the_file_is_there_from_the_start_and_outlives_processes() {
    let world = World::start(&with("router", "router.json", ROUTER));
    world.until(&[IN_FORCE]);
    assert!(world.routes().contains("0x0a010000/16"), "{}", world.routes());
    assert_eq!(world.says(&["reload"]), "nothing to change\n");
    world.refuses(&["p4", "unload", "router"], "comes from the configuration file");
    // The files are read when the configuration is, and not again.
    fs::remove_file(world.directory.path().join("routes.txt")).unwrap();
    for role in ["control", "data-plane"] {
        world.instance.kill(role);
        world.until(&[IN_FORCE]);
        assert!(world.routes().contains("0x0a010000/16"));
    }
    world.refuses(&["reload"], "start.toml:9:11: ");
    world.until(&[IN_FORCE]);
    // Entries of commands go on over a reload, as the program's own files say what they said.
    world.write("routes.txt", ROUTES);
    world.says(&["p4", "entry", "add", "router", "routes via 10.2.0.0/16 => 2"]);
    assert_eq!(world.says(&["reload"]), "nothing to change\n");
    assert!(world.routes().contains("0x0a020000/16"));
    world.write("routes.txt", "table_add routes via 10.3.0.0/16 => 1\n");
    let planned = world.says(&["reload", "--dry-run"]);
    assert!(planned.contains("P4 program router replaced"), "{planned}");
    assert!(!world.routes().contains("0x0a030000/16"));
    assert_eq!(world.says(&["reload"]), planned);
    world.until(&[IN_FORCE]);
    assert!(world.routes().contains("0x0a030000/16") && !world.routes().contains("0x0a020000/16"));
    world.write("start.toml", PORTS);
    assert!(world.says(&["reload"]).contains("P4 program router removed"));
    world.until(&[]);
    assert_eq!(world.saved(), 0);
}

#[test]
fn programs_that_cannot_be_used_are_errors_with_their_place() {
    let directory = tempfile::tempdir().unwrap();
    files(directory.path());
    let malicious = program("malicious")
        .parent()
        .unwrap()
        .join("parser_spin/parser_spin.json");
    fs::copy(malicious, directory.path().join("spin.json")).unwrap();
    let policy = "[[acl]]\nname = \"all\"\ndefault = \"allow\"\n";
    let of_port = with("r", "router.json", "ports = [\"1=a\"]\n");
    let guarded = of_port.replace("name = \"a\"\n", "name = \"a\"\nacl-from = \"all\"\n") + policy;
    let two = with("r", "router.json", ROUTER) + "[[p4]]\nname = \"x\"\nprogram = \"router.json\"\n";
    for (text, expected) in [
        (with("r", "none.json", ""), "x.toml:9:11: cannot read"),
        (with("r", "spin.json", ""), "x.toml:9:11: "),
        (
            with("r", "router.json", "p4info = \"routes.txt\"\n"),
            "x.toml:9:11: ",
        ),
        (
            with("r", "router.json", "entries = [\"spin.json\"]\n"),
            "x.toml:9:11: ",
        ),
        (with("r", "router.json", "ports = [\"a\"]\n"), "x.toml:10:"),
        (with("r", "router.json", "ports = [\"511=a\"]\n"), "x.toml:10:"),
        (
            with("r", "router.json", "ports = [\"1=a\", \"1=b\"]\n"),
            "two ports of r have number 1",
        ),
        (
            two.clone() + "ports = [\"3=a\"]\n",
            "x.toml:15:9: port a is bound to P4 program r already",
        ),
        (
            two.replace("\"x\"", "\"r\""),
            "x.toml:13:8: there is already a P4 program r",
        ),
        (with("r", "router.json", "colour = 1\n"), "x.toml:10:"),
        (guarded, "x.toml:11:9: P4 switch r: port a: it has policies"),
        (
            "p4 = 1\n".into(),
            "`p4` is the number 1, expected a list of tables",
        ),
        (
            with("r", "router.json", "ports = 1\n"),
            "`ports` is the number 1, expected a list like",
        ),
    ] {
        let file = directory.path().join("x.toml");
        fs::write(&file, &text).unwrap();
        let output = hyperswitch(&directory.path().join("run"), &["check", file.to_str().unwrap()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && error.contains(expected),
            "{text}{error}"
        );
    }
    let file = directory.path().join("x.toml");
    fs::write(
        &file,
        with("r", "router.json", "ports = [\"1=a\", \"9=later\"]\n"),
    )
    .unwrap();
    let output = hyperswitch(&directory.path().join("run"), &["check", file.to_str().unwrap()]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn what_is_shown_is_in_force_and_may_become_the_file_s() {
    let world = World::start(&with(
        "router",
        "router.json",
        "entries = [\"routes.txt\"]\nports = [\"1=a\"]\n",
    ));
    world.until(&["router 1=a in force"]);
    assert!(
        world
            .says(&["config", "show"])
            .contains("program = \"router.json\"")
    );
    let limiter = program("rate_limiter");
    world.says(&["p4", "load", limiter.to_str().unwrap(), "--port", "2=b"]);
    world.says(&["p4", "entry", "add", "router", "routes via 10.2.0.0/16 => 2"]);
    let both = ["rate_limiter 2=b in force", "router 1=a in force"];
    world.until(&both);
    let shown = world.says(&["config", "show"]);
    assert_eq!(shown.matches("[[p4]]").count(), 2, "{shown}");
    let all = world.write("all.toml", &shown);
    assert!(world.says(&["check", &all]).contains("1 switch, 2 ports"));
    assert_eq!(world.says(&["apply", "--dry-run", &all]), "nothing to change\n");
    assert!(world.says(&["apply", &all]).starts_with("nothing to change\n"));
    world.until(&both);
    assert_eq!(world.says(&["config", "show"]), shown);
    assert!(world.routes().contains("0x0a020000/16"));
    // The file has taken over what the command had loaded.
    world.refuses(
        &["p4", "unload", "rate_limiter"],
        "comes from the configuration file",
    );
    world.write(
        "start.toml",
        &with("router", "router.json", "ports = [\"1=a\"]\n"),
    );
    let said = world.says(&["reload"]);
    assert!(said.contains("P4 program rate_limiter removed") && said.contains("P4 program router replaced"));
    world.until(&["router 1=a in force"]);
}

#[test]
fn what_is_not_confirmed_is_taken_back_with_its_entries() {
    let world = World::start(&with("router", "router.json", ROUTER));
    world.says(&["p4", "entry", "add", "router", "routes via 10.2.0.0/16 => 2"]);
    let other = with("router", "l2_switch.json", "ports = [\"3=a\"]\n")
        + "[[p4]]\nname = \"limit\"\nprogram = \"rate_limiter.json\"\nports = [\"1=b\"]\n";
    let other = world.write("other.toml", &other);
    let said = world.says(&["apply", &other, "--confirm", "5"]);
    assert!(
        said.contains("P4 program limit added") && said.contains("P4 program router replaced"),
        "{said}"
    );
    // What was in force before is in the run directory: the files may be gone.
    fs::remove_file(world.directory.path().join("routes.txt")).unwrap();
    world.instance.kill("control");
    world.until(&[IN_FORCE]);
    assert!(world.routes().contains("0x0a010000/16") && world.routes().contains("0x0a020000/16"));
}

#[test]
fn state_that_a_file_s_program_loses_is_named_before() {
    let world = World::start(&with("one", "stateful_firewall.json", ""));
    world.until(&["one  in force"]);
    world.write("start.toml", &with("one", "router.json", ""));
    let planned = world.says(&["reload", "--dry-run"]);
    assert!(
        planned.contains("P4 program one loses state: register"),
        "{planned}"
    );
    assert!(
        world
            .says(&["reload"])
            .contains("P4 program one loses state: register")
    );
    world.until(&["one  in force"]);
}

#[test]
fn the_program_before_the_last_load_returns() {
    let world = World::start(PORTS);
    let [router, switch] = ["router", "l2_switch"].map(|name| program(name).to_str().unwrap().to_owned());
    let commands = world.write("routes.txt", ROUTES);
    world.says(&[
        "p4",
        "load",
        &router,
        "--name",
        "one",
        "--port",
        "1=a",
        "--entries",
        &commands,
    ]);
    world.refuses(&["p4", "rollback", "one"], "had no other program before");
    world.refuses(&["p4", "rollback", "none"], "no P4 switch none");
    world.says(&[
        "p4",
        "load",
        &switch,
        "--name",
        "one",
        "--port",
        "1=b",
        "--discard",
    ]);
    world.until(&["one 1=b in force"]);
    world.says(&["p4", "entry", "add", "one", "dmac forward 02:00:00:00:00:01 => 1"]);
    world.says(&["p4", "rollback", "one"]);
    world.until(&["one 1=a in force"]);
    let entries = || world.says(&["p4", "entry", "list", "one"]);
    assert!(entries().contains("0x0a010000/16"), "{}", entries());
    // Also in another control process, and back again with the entries that were added.
    world.instance.kill("control");
    world.until(&["one 1=a in force"]);
    world.says(&["p4", "rollback", "one"]);
    world.until(&["one 1=b in force"]);
    assert!(entries().contains("0x020000000001"), "{}", entries());
    world.says(&["p4", "unload", "one"]);
    assert_eq!(world.saved(), 0);
}

#[test]
fn counters_registers_and_meters_are_set_shown_and_exported() {
    let world = World::start(PORTS);
    let shown =
        |world: &World, kind: &str, name: &str| world.instance.verb(&["p4", kind, "list", name]).unwrap();
    let [limiter, firewall] = ["rate_limiter", "stateful_firewall"].map(program);
    for (program, name) in [(&limiter, "limit"), (&firewall, "fire")] {
        world.says(&["p4", "load", program.to_str().unwrap(), "--name", name]);
    }
    let counter = counter_of(&limiter);
    world.says(&["p4", "counter", "set", "limit", &counter, "0", "5", "500"]);
    world.refuses(
        &["p4", "counter", "set", "limit", &counter, "4000000", "5", "500"],
        "no",
    );
    world.refuses(
        &["p4", "counter", "set", "limit", "none", "0", "5", "500"],
        "there is no counter none",
    );
    let counters = shown(&world, "counter", "limit");
    assert_eq!(
        (&counters[0]["packets"], &counters[0]["bytes"]),
        (&5.into(), &500.into()),
        "{counters}"
    );
    let meter = meter_of(&limiter);
    world.says(&["p4", "meter", "set", "limit", &meter, "all", "1000:10", "2000:20"]);
    world.refuses(
        &["p4", "meter", "set", "limit", &meter, "all", "1000", "2000:20"],
        "RATE:BURST",
    );
    let meters = shown(&world, "meter", "limit");
    let committed = |meters: &Value| {
        meters
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["committed"] == "1000:10")
    };
    assert!(committed(&meters), "{meters}");
    let register = register_of(&firewall);
    world.says(&["p4", "register", "set", "fire", &register, "3", "1"]);
    world.refuses(
        &[
            "p4",
            "register",
            "set",
            "fire",
            &register,
            "3",
            "0x1ffffffffffffffff",
        ],
        "bits wide",
    );
    world.refuses(
        &["p4", "register", "set", "fire", &register, "3", "x"],
        "is no number",
    );
    let registers = shown(&world, "register", "fire");
    assert_eq!(
        (&registers[0]["cell"], &registers[0]["value"]),
        (&3.into(), &"0x1".into()),
        "{registers}"
    );

    let files: Vec<String> = ["limit", "fire"]
        .map(|name| world.write(&format!("{name}.p4x"), ""))
        .into();
    for (name, file) in ["limit", "fire"].into_iter().zip(&files) {
        world.says(&["p4", "export", name, file]);
        world.refuses(&["p4", "import", file], "there is a P4 program");
        world.says(&["p4", "unload", name]);
    }
    world.says(&["p4", "import", &files[0], "--port", "1=a"]);
    world.refuses(
        &["p4", "import", &files[1], "--name", "wall", "--port", "1=a"],
        "bound to P4 switch limit already",
    );
    world.until(&["limit 1=a in force"]);
    world.says(&["p4", "import", &files[1], "--name", "wall", "--port", "1=b"]);
    world.until(&["limit 1=a in force", "wall 1=b in force"]);
    assert_eq!(shown(&world, "counter", "limit"), counters);
    assert_eq!(shown(&world, "meter", "limit"), meters);
    assert_eq!(shown(&world, "register", "wall"), registers);
    // An exported program is one of a configuration, without its state.
    world.says(&["p4", "unload", "wall"]);
    world.write("start.toml", &with("wall", "fire.p4x", "ports = [\"1=b\"]\n"));
    world.says(&["reload"]);
    world.until(&["limit 1=a in force", "wall 1=b in force"]);
    assert_eq!(shown(&world, "register", "wall"), Value::Array(Vec::new()));
    let cut = world.write("cut.p4x", "P4EX");
    world.refuses(&["p4", "import", &cut], "no exported P4 program");
}

/// The first element of a program's list, by its name.
fn first_of(file: &Path, list: &str) -> String {
    let program: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let all = program[list].as_array().unwrap().clone();
    let own = all.iter().find(|one| one["is_direct"] != true).unwrap();
    own["name"].as_str().unwrap().to_owned()
}

fn counter_of(file: &Path) -> String {
    first_of(file, "counter_arrays")
}

fn meter_of(file: &Path) -> String {
    first_of(file, "meter_arrays")
}

fn register_of(file: &Path) -> String {
    first_of(file, "register_arrays")
}

/// Blocks of code in a part of the document.
fn blocks(part: &str) -> Vec<String> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/p4.md");
    let document = fs::read_to_string(document).unwrap();
    let part = document
        .split("\n## ")
        .find(|found| found.starts_with(part))
        .unwrap();
    let blocks = part.split("```").skip(1).step_by(2);
    // Behind the name of the language.
    let text = |block: &str| block.split_once('\n').map(|(_, text)| text.to_owned());
    blocks.filter_map(text).collect()
}

/// Through the operator's program, the tenant's, and the operator's again.
fn follows_a_packet(world: &World) {
    let arguments = |to: &'static str| {
        let packet = [
            "--src",
            "02:00:00:00:01:01",
            "--dst",
            to,
            "--ip",
            "10.1.0.1,10.2.0.1",
        ];
        [&["trace", "--in-port", "a"], &packet[..]].concat()
    };
    let said = world.says(&arguments("02:00:00:00:00:f1"));
    let mut rest = &said[..];
    for part in [
        "switch lan, from port a\n",
        "program     operator, by its port 1\n",
        "hit: SwitchIngress.forward(port = 3)",
        "program     tenant, by its port 1\n",
        "hdr.ipv4.dst (lpm) = 10.2.0.1",
        "ipv4.ttl  64 -> 63",
        "program     operator, by its port 4\n",
        "hdr.ethernet.dst (exact) = 02:00:00:00:01:02",
        "delivered   to port b\n",
    ] {
        let found = rest.find(part).unwrap_or_else(|| panic!("no {part} in\n{said}"));
        rest = &rest[found + part.len()..];
    }
    assert_eq!(rest, "");
    let report = world.instance.verb(&arguments("02:00:00:00:00:99")).unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(
        (steps.len(), &steps[0]["step"]),
        (1, &"program".into()),
        "{report}"
    );
    assert!(
        steps[0]["lines"].to_string().contains("dropped: no-replica"),
        "{report}"
    );
    // The packets were none of the instance's.
    let shown = world.instance.verb(&["p4", "show"]).unwrap();
    assert_eq!(shown[0]["packets"], 0);
}

/// The commands of the document, with files as it has them.
#[test]
fn the_example_of_linked_programs_is_as_the_document_says() {
    let world = World::start(PORTS);
    let of_router = blocks("Two guests talk through a program");
    let entries = of_router
        .iter()
        .find(|block| block.starts_with("table_add router_mac"));
    world.write("commands.txt", entries.unwrap());
    let of_links = blocks("Programs around programs");
    world.write("stations.txt", &of_links[1]);
    let run = |line: &str| {
        let words = line.split(' ').skip(1).map(|word| {
            let file = world.directory.path().join(word);
            if file.is_file() {
                file.to_str().unwrap().to_owned()
            } else {
                word.to_owned()
            }
        });
        let words: Vec<String> = words.collect();
        world.says(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let said: Vec<String> = of_links[0].lines().map(run).collect();
    assert_eq!(said.len(), 6);
    let around = "operator 1=a,2=b,3=tenant:1,4=tenant:2 in force";
    world.until(&[around, "tenant 1=operator:3,2=operator:4 in force"]);
    assert!(
        said[2].contains("operator:3  tenant:1") && said[2].contains("operator:4  tenant:2"),
        "{}",
        said[2]
    );
    assert!(said[5].contains("tenant:2"), "{}", said[5]);
    follows_a_packet(&world);
    // In other processes as well.
    for role in ["control", "data-plane"] {
        world.instance.kill(role);
        world.until(&[around, "tenant 1=operator:3,2=operator:4 in force"]);
    }
    assert_eq!(
        world
            .instance
            .verb(&["p4", "link", "show"])
            .unwrap()
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn ports_and_links_are_changed_while_a_program_stays() {
    let two = with("one", "l2_switch.json", "ports = [\"1=a\", \"3=two:1\"]\n")
        + "[[p4]]\nname = \"two\"\nprogram = \"router.json\"\n";
    let world = World::start(&two);
    let as_the_file_has_it = ["one 1=a,3=two:1 in force", "two 1=one:3 in force"];
    world.until(&as_the_file_has_it);
    world.says(&["p4", "port", "set", "one", "2=b", "3=two:9"]);
    world.until(&["one 1=a,2=b,3=two:9 in force", "two 9=one:3 in force"]);
    world.says(&["p4", "port", "remove", "one", "1", "2"]);
    world.says(&["p4", "link", "remove", "two:9"]);
    world.until(&["one  in force", "two  in force"]);
    for (arguments, expected) in [
        (&["p4", "port", "set", "none", "1=a"][..], "no P4 switch none"),
        (&["p4", "port", "set", "one", "1=nobody"], "no port nobody"),
        (&["p4", "port", "set", "one", "1=none:2"], "no P4 switch none"),
        (
            &["p4", "port", "set", "one", "1=two:511"],
            "NUMBER=PROGRAM:NUMBER",
        ),
        (
            &["p4", "port", "remove", "one", "7"],
            "P4 switch one has no port 7",
        ),
        (
            &["p4", "link", "add", "one:1", "one:1"],
            "cannot be linked with itself",
        ),
        (&["p4", "link", "remove", "one:1"], "there is no link at one:1"),
        (&["p4", "port", "show", "none"], "no P4 switch none"),
    ] {
        world.refuses(arguments, expected);
    }
    world.says(&["p4", "link", "add", "one:5", "two:5"]);
    world.refuses(
        &["p4", "link", "add", "one:6", "two:5"],
        "bound to P4 switch one already",
    );
    world.refuses(&["p4", "port", "set", "two", "5=a"], "that is a already");
    let said = world.says(&["reload"]);
    assert!(said.contains("P4 program one has other ports"), "{said}");
    world.until(&as_the_file_has_it);
    // Programs that are joined have ports of one switch; what the file has wrong has its place.
    let far = format!(
        "{}[[switch]]\nname = \"far\"\n[[switch.port]]\nname = \"c\"\n",
        &two
    );
    let far = world.write(
        "far.toml",
        &far.replace("router.json\"\n", "router.json\"\nports = [\"2=c\"]\n"),
    );
    world.refuses(&["apply", &far], "it is at switch far, and others are at lan");
    world.until(&as_the_file_has_it);
}

const COMMANDS: &str = "\
table_add services select_pool 10.0.0.100 6 80 => 1
table_add l2_forward forward 02:00:00:00:00:0a => 1
act_prof_create_member servers to_server 02:00:00:00:00:0b 10.0.1.1 8080 2
act_prof_create_member servers to_server 02:00:00:00:00:0c 10.0.1.2 8080 3
act_prof_create_group servers
act_prof_add_member_to_group servers 0 0
table_indirect_add_with_group pools 1 => 0
";

/// A packet of the service, and as it leaves for the first server and for the second.
const PACKET: &str = "packet 1 0200000000f102000000000a08004500002d000140004006062cc63364070a000064c7380050000003e800000000500210005bfc000068656c6c6f\n";
const TO_FIRST: &str = "expect 2 02000000000b\n";
const TO_SECOND: &str = "expect 3 02000000000c\n";

#[test]
fn members_and_groups_change_by_command_and_packet_tests_run_on_a_copy() {
    let world = World::start(PORTS);
    let balancer = program("load_balancer");
    // The checksum of TCP over the whole payload is more than the usual quota.
    let allowed = ["--operations", "65536"];
    world.says(
        &[
            &["p4", "load", balancer.to_str().unwrap(), "--name", "lb"],
            &allowed[..],
        ]
        .concat(),
    );
    let file = world.write("commands.txt", COMMANDS);
    world.says(&["p4", "entry", "add", "lb", "--file", &file]);
    let [first, second] = [("first.stf", TO_FIRST), ("second.stf", TO_SECOND)].map(|(name, expect)| {
        let text = format!("{PACKET}{}\n", expect.trim_end());
        world.write(name, &text)
    });
    assert_eq!(
        world.says(&["p4", "test", "lb", &first]),
        format!("passed  {first}\n")
    );
    let listed = |world: &World| world.says(&["p4", "group", "list", "lb"]);
    assert!(
        listed(&world).contains("group 0  members 0"),
        "{}",
        listed(&world)
    );
    // The group has the other member.
    world.says(&["p4", "group", "set", "lb", "servers", "0", "1:3@4"]);
    assert!(
        listed(&world).contains("group 0  members 1:3@4"),
        "{}",
        listed(&world)
    );
    let refused = world
        .instance
        .verb(&["p4", "test", "lb", &second, &first])
        .unwrap_err();
    assert!(refused.contains("1 of 2 scripts failed"), "{refused}");
    // A member has another action, and a new one comes.
    let server = ["to_server", "02:00:00:00:00:0b", "10.0.1.1", "8080", "2"];
    let member = |verb, number| [&["p4", "group", verb, "lb", "servers", number], &server[..]].concat();
    world.says(&member("set-member", "1"));
    world.says(&["p4", "test", "lb", &first]);
    world.says(&member("add-member", "7"));
    world.says(&["p4", "group", "add", "lb", "servers", "5", "7", "0:2"]);
    for (arguments, expected) in [
        (member("add-member", "7"), "has member 7 already"),
        (member("set-member", "8"), "has no member 8"),
        (
            vec!["p4", "group", "remove-member", "lb", "servers", "7"],
            "member 7, which does not exist",
        ),
        (
            vec!["p4", "group", "remove", "lb", "servers", "0"],
            "group 0, which does not exist",
        ),
        (
            vec!["p4", "group", "add", "lb", "servers", "5"],
            "has group 5 already",
        ),
        (
            vec!["p4", "group", "set", "lb", "servers", "5", "7", "7"],
            "member 7 is there twice",
        ),
        (
            vec!["p4", "group", "set", "lb", "servers", "5", "7:0"],
            "MEMBER[:WEIGHT][@PORT]",
        ),
        (vec!["p4", "group", "set", "lb", "none", "5", "7"], "none"),
        (
            vec!["p4", "group", "list", "lb", "none"],
            "there is no action profile none",
        ),
        (vec!["p4", "test", "gone", &first], "no P4 switch gone"),
    ] {
        world.refuses(&arguments, expected);
    }
    world.says(&["p4", "group", "remove", "lb", "servers", "5"]);
    world.says(&["p4", "group", "remove-member", "lb", "servers", "7"]);
    let rows = world
        .instance
        .verb(&["p4", "group", "list", "lb", "servers"])
        .unwrap();
    let kinds: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (&row["member"], &row["group"]))
        .collect();
    assert_eq!(
        kinds,
        [
            (&0.into(), &Value::Null),
            (&1.into(), &Value::Null),
            (&Value::Null, &0.into())
        ]
    );
    // A file's program has no entries: nothing leaves.
    let silent = world.write("silent.stf", PACKET);
    world.says(&["p4", "test", balancer.to_str().unwrap(), &silent]);
}
