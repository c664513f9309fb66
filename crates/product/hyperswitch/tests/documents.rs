//! Documents that are generated from the code, and statements of other documents about the code that can be
//! checked.
//!
//! `HYPERSWITCH_UPDATE=1 cargo test -p hyperswitch --test documents` writes the generated ones anew.

#![allow(clippy::unwrap_used)]

use flow::{DropReason, PortCounters};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

const UPDATE: &str = "HYPERSWITCH_UPDATE=1 cargo test -p hyperswitch --test documents";

/// Compares a generated document with the file, or writes it when asked to.
fn check(name: &str, text: &str) {
    let path = root().join("docs").join(name);
    if std::env::var_os("HYPERSWITCH_UPDATE").is_some() {
        std::fs::write(path, text).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "docs/{name} is out of date; run: {UPDATE}");
}

#[test]
fn drop_reasons() {
    let mut text = format!(
        "# Drop reasons\n\nEvery packet that comes in is delivered or dropped for one of these reasons. They appear \
         in `hyperswitch stats`\n(`dropped`, `egress-dropped`, `discarded`), in `trace`, and as comments in captures. \
         Made from `flow::DropReason` by\n`{UPDATE}`.\n\n| reason | meaning |\n|---|---|\n"
    );
    for reason in DropReason::ALL {
        writeln!(text, "| `{}` | {} |", reason.name(), reason.description()).unwrap();
    }
    check("drop-reasons.md", &text);
}

/// The fields of a structure with their documentation, in the order of the source.
fn fields(file: &str, structure: &str) -> Vec<(String, String)> {
    let source = std::fs::read_to_string(root().join(file)).unwrap();
    let head = format!("pub struct {structure} {{");
    let body = source.split(&head).nth(1).unwrap();
    let mut found = Vec::new();
    let mut description = String::new();
    for line in body.split("\n}").next().unwrap().lines().map(str::trim) {
        if let Some(more) = line.strip_prefix("/// ") {
            description += if description.is_empty() { "" } else { " " };
            description += more;
        } else if let Some(field) = line.strip_prefix("pub ") {
            let name = field.split(':').next().unwrap().replace('_', "-");
            found.push((name, std::mem::take(&mut description)));
        }
    }
    found
}

fn counters() -> Vec<(String, String)> {
    fields("crates/forwarding/flow/src/counters.rs", "PortCounters")
}

fn rows(fields: &[(String, String)]) -> String {
    let rows = fields
        .iter()
        .map(|(name, description)| format!("| `{name}` | {description} |\n"));
    rows.collect()
}

#[test]
fn counters_of_ports_and_threads() {
    let mut text = format!(
        "# Counters\n\nPer port, seen from the switch: a port's ingress is what its guest sends (`received`), its egress what its \
         guest gets\n(`transmitted`). As `hyperswitch stats --json` shows them; drops by the name of their reason, see\n\
         [drop-reasons.md](drop-reasons.md). All but `in-flight` only grow, from 0 when the data plane gets the port. \
         Made from\n`flow::PortCounters` by `{UPDATE}`.\n\n| counter | meaning |\n|---|---|\n{}",
        rows(&counters())
    );
    text += "| `in-flight` | `received + injected + copies - delivered - dropped - upcalls`: packets that came in and are \
             not accounted for yet. 0 whenever nothing is under way. |\n";
    let file = "crates/control/control-protocol/src/work.rs";
    write!(
        text,
        "\n## Threads\n\n`hyperswitch stats placement --json` shows the work of each thread since the data plane was started:\n\n\
         | field | meaning |\n|---|---|\n{}\nOf the `misses`:\n\n| field | meaning |\n|---|---|\n{}\n\
         For each of the `workers`:\n\n| field | meaning |\n|---|---|\n{}",
        rows(&fields(file, "WorkReport")),
        rows(&fields(file, "Misses")),
        rows(&fields(file, "WorkerReport"))
    )
    .unwrap();
    write!(
        text,
        "\n## Devices\n\nOf the device of an uplink, as `port show --json` shows them under `device`, with `carrier`, `mtu` and \
         `speed`, and metrics\nas `hyperswitch_device_`; a device counts from when the kernel made it:\n\n\
         | counter | meaning |\n|---|---|\n{}",
        rows(&fields("crates/control/control-protocol/src/driver.rs", "DeviceCounters"))
    )
    .unwrap();
    check("counters.md", &text);
}

/// The documented names are those that users see.
#[test]
fn counters_have_the_names_of_the_documents() {
    let shown = serde_json::to_value(management::Counters::from(&PortCounters::default())).unwrap();
    let shown: BTreeSet<String> = shown.as_object().unwrap().keys().cloned().collect();
    let documented = counters().into_iter().map(|(name, _)| name);
    let documented: BTreeSet<String> = documented.chain(["in-flight".to_owned()]).collect();
    assert_eq!(shown, documented);
}

/// Text of the parts of a document between these fences.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    text.split(&fence)
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

/// Examples in documents can be used as they are.
#[test]
fn examples_of_configurations_are_accepted() {
    for (document, at_least) in [
        ("README.md", 1),
        ("docs/daily-work.md", 1),
        ("docs/tutorial.md", 1),
        ("docs/libvirt.md", 1),
        ("docs/cni.md", 1),
        ("docs/endpoint.md", 1),
        ("docs/operations.md", 1),
        ("docs/configuration.md", 4),
        ("docs/p4.md", 2),
        ("docs/policies.md", 2),
        ("docs/policies-from-elsewhere.md", 4),
    ] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let examples = blocks(&text, "toml");
        assert!(examples.len() >= at_least, "{document} has lost its examples");
        for example in examples {
            if let Err(error) = policy::parse(example, document) {
                panic!("{error}\n{example}");
            }
        }
    }
}

/// Every key, and nothing but keys, has a row in `docs/configuration.md`.
#[test]
fn every_key_is_documented() {
    let text = std::fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let rows = |heading: &str| -> BTreeSet<String> {
        let section = text.split(&format!("\n## {heading}\n")).nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.map(|row| row.split('`').next().unwrap().to_owned())
            .collect()
    };
    // The parser's error about an unknown key lists the known ones.
    let known = |text: &str| -> BTreeSet<String> {
        let message = management::parse(text, "x").unwrap_err().message;
        let list = message
            .split(", expected ")
            .nth(1)
            .unwrap_or_else(|| panic!("{message}"));
        list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let switch = "[[switch]]\nname = \"a\"\n";
    assert_eq!(rows("Switch"), known(&format!("{switch}nonsense = 1\n")));
    assert_eq!(
        rows("Host"),
        known(&format!(
            "{switch}type = \"internal\"\nhost = {{ nonsense = 1 }}\n"
        ))
    );
    assert_eq!(
        rows("Port"),
        known(&format!("{switch}[[switch.port]]\nname = \"b\"\nnonsense = 1\n"))
    );
    assert_eq!(rows("Set"), known("[[set]]\nnonsense = 1\n"));
    assert_eq!(rows("Access control list"), known("[[acl]]\nnonsense = 1\n"));
    assert_eq!(
        rows("Security group"),
        known("[[security-group]]\nnonsense = 1\n")
    );
    assert_eq!(rows("Port policy"), known("[[port-policy]]\nnonsense = 1\n"));
    assert_eq!(
        rows("Rule"),
        known("[[acl]]\nname = \"a\"\ndefault = \"drop\"\nrule = [{ nonsense = 1 }]\n")
    );
    assert_eq!(rows("Mirror"), known("[[mirror]]\nnonsense = 1\n"));
    assert_eq!(rows("P4 program"), known("[[p4]]\nnonsense = 1\n"));
    assert_eq!(
        rows("P4 stage"),
        known("[[p4]]\nname = \"a\"\nprogram = \"b\"\nstage = { nonsense = 1 }\n")
    );
    assert_eq!(rows("Placement"), known("[placement]\nnonsense = 1\n"));
    assert_eq!(rows("Access"), known("[access]\nnonsense = 1\n"));
    assert_eq!(rows("View"), known("[view]\nnonsense = 1\n"));
    assert_eq!(rows("Open vSwitch"), known("[ovs]\nnonsense = 1\n"));
}

/// Rows of the README's table: the question, the peer, and the measure of `docs/performance/latest.md` that
/// has the figure, in the order of that document.
const COMPARED: [(&str, &str, &str); 10] = [
    (
        "Cycles per packet, 64 bytes",
        "Open vSwitch with DPDK",
        "busy or awake cycles per packet, the stricter, 64 B, 1 flow: OVS-DPDK / ours",
    ),
    (
        "The same, bursts of 1 to 4 packets",
        "Open vSwitch with DPDK",
        "same, 64 B, bursts of 1 to 4 packets",
    ),
    (
        "TCP of a pair of VMs",
        "bridge",
        "UML pair TCP: ours / bridge and TAP",
    ),
    (
        "TCP of a pair of VMs",
        "Open vSwitch with DPDK",
        "UML pair TCP: ours / OVS-DPDK",
    ),
    (
        "Round trips of 64 bytes between VMs",
        "bridge",
        "UDP RR 64 B: ours / bridge and TAP",
    ),
    (
        "Round trips of 64 bytes between VMs",
        "Open vSwitch with DPDK",
        "UDP RR 64 B: ours / OVS-DPDK",
    ),
    (
        "Round trips on a full host, p90",
        "bridge",
        "UML pair, a loop on each processor, ping p90: bridge and TAP / ours",
    ),
    (
        "Round trips between containers on a full host",
        "bridge and veth",
        "container pair, a loop on each processor, ping p50: bridge and veth / ours",
    ),
    (
        "Processor time at 1,000 and 10,000 packets per second",
        "bridge",
        "processor time at 1,000 and 10,000 packets/s: bridge and TAP / ours",
    ),
    (
        "New flows per second under ovs-vswitchd",
        "Open vSwitch with DPDK",
        "new flows per second through ovs-vswitchd: ours / OVS-DPDK, which decides in its poll thread",
    ),
];

/// The README's table has the figures of the last `make bench`.
#[test]
fn the_table_of_the_readme_is_that_of_the_measurements() {
    let measured = std::fs::read_to_string(root().join("docs/performance/latest.md")).unwrap();
    let mut lines = measured.lines();
    let mut table = String::from("| question | beside | times better |\n|---|---|---|\n");
    for (question, peer, measure) in COMPARED {
        let row = lines.find_map(|line| line.strip_prefix(&format!("| {measure} | ")));
        let row = row.unwrap_or_else(|| panic!("no row {measure:?} behind the one before"));
        let figure = row.split(" | ").nth(2).unwrap().split(' ').next().unwrap();
        let is_worse = figure.parse::<f64>().unwrap() < 1.0;
        let mark = if is_worse { "**" } else { "" };
        writeln!(table, "| {question} | {peer} | {mark}{figure}{mark} |").unwrap();
    }
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (head, rest) = readme.split_once("docs/performance/latest.md -->\n").unwrap();
    let (found, tail) = rest.split_once("<!-- end -->").unwrap();
    if std::env::var_os("HYPERSWITCH_UPDATE").is_some() {
        let updated = format!("{head}docs/performance/latest.md -->\n{table}<!-- end -->{tail}");
        std::fs::write(root().join("README.md"), updated).unwrap();
        return;
    }
    assert!(found == table, "the README's table is out of date; run: {UPDATE}");
    assert!(
        readme.lines().count() <= 150,
        "the README is longer than 150 lines"
    );
}

/// Names by which links lead to a document's sections, as GitHub makes them of headings.
fn sections(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let kept = heading
                .trim_start_matches('#')
                .trim()
                .chars()
                .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

/// Documents of the project, without those in folders of `docs/` that programs write.
fn documents() -> Vec<PathBuf> {
    let mut documents: Vec<PathBuf> = [
        "README.md",
        "ARCHITECTURE.md",
        "SPECIFICATION.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ]
    .map(|name| root().join(name))
    .into();
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    documents.extend(docs.map(|entry| entry.unwrap().path()));
    documents.push(root().join("docs/performance/history.md"));
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents
}

/// Links between documents lead to files and sections that exist.
#[test]
fn links_lead_to_files_and_sections() {
    let mut wrong = Vec::new();
    for document in &documents() {
        let text = std::fs::read_to_string(document).unwrap();
        for target in text
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap())
        {
            let file = target.split('#').next().unwrap();
            if target.contains("://") {
                continue;
            }
            let linked = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            let has_section = |(_, section): (&str, &str)| {
                linked.extension().is_some_and(|extension| extension != "md")
                    || sections(&std::fs::read_to_string(&linked).unwrap()).contains(section)
            };
            if !linked.exists() || !target.split_once('#').is_none_or(has_section) {
                wrong.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files and folders that documents name by their whole path exist. `CHANGELOG.md` speaks of older versions.
#[test]
fn paths_in_documents_exist() {
    let mut named = 0;
    let mut wrong = Vec::new();
    for document in documents().iter().filter(|path| !path.ends_with("CHANGELOG.md")) {
        let text = std::fs::read_to_string(document).unwrap();
        let is_path = |code: &&str| {
            ["crates/", "scripts/", "packaging/", "docs/"]
                .iter()
                .any(|folder| code.starts_with(folder))
                && !code.contains(['*', '{', ' ', '\n'])
        };
        for path in text.split('`').skip(1).step_by(2).filter(is_path) {
            named += 1;
            if !root().join(path).exists() {
                wrong.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 100, "only {named} paths found: has the format changed?");
}

/// Every test that `SPECIFICATION.md` or `SECURITY.md` names is in the file it names.
#[test]
fn promises_are_held_by_tests_that_exist() {
    let read = |name| std::fs::read_to_string(root().join(name)).unwrap();
    let text = read("SPECIFICATION.md") + &read("SECURITY.md");
    let mut held = 0;
    let mut wrong = Vec::new();
    for part in text.split('[').skip(1) {
        let Some((name, rest)) = part.split_once("](") else {
            continue;
        };
        let file = rest.split(')').next().unwrap();
        if !file.ends_with(".rs") || name == "list" || name == "one part" {
            continue;
        }
        held += 1;
        let source = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        if !source.contains(&format!("fn {name}(")) {
            wrong.push(format!("{file} has no {name}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(held > 50, "only {held} tests found: has the format changed?");
}
