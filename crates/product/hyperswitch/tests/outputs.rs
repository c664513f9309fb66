//! Outputs in README and `docs/`: a fenced block without a language is what a program printed, and comes
//! from a test run.
//!
//! [`SOURCES`] says for each of them where it comes from: it is made here and compared, or by another test
//! that compares it, or it is a measurement with its command. A block that nobody makes is an error.
//! `HYPERSWITCH_UPDATE=1 cargo test -p hyperswitch --test outputs` writes those that are made here.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where an output comes from.
enum Source {
    /// Made by this function.
    Here(fn() -> String),
    /// A test with that name in that file holds it.
    Test(&'static str, &'static str),
    /// The test compares what a measurement by that target of make leaves the same: headings and words.
    Measured(&'static str, &'static str, &'static str),
}
use Source::{Here, Measured, Test};

/// Document, how the block begins, and what makes it.
const SOURCES: [(&str, &str, Source); 6] = [
    (
        "README.md",
        "  from       to  ",
        Measured(
            "demo",
            "crates/test/testbed/src/bin/demo/table.rs",
            "the_readme_has_a_table_of_this_shape",
        ),
    ),
    ("docs/configuration.md", "hyperswitch: /etc", Here(unknown_field)),
    (
        "docs/daily-work.md",
        "$ hyperswitch ",
        Test("crates/test/testbed/tests/e2e/readme.rs", "outputs_are_todays"),
    ),
    (
        "docs/endpoint.md",
        "$ hyperswitch run",
        Test(
            "crates/test/testbed/tests/e2e/endpoints.rs",
            "an_application_talks_to_kernels_and_to_another_one",
        ),
    ),
    ("docs/p4.md", "  ingress\n", Here(trace_of_a_router)),
    (
        "docs/policies.md",
        "20",
        Test(
            "crates/product/hyperswitch/src/verbs/policy_log.rs",
            "the_line_of_the_document_is_of_this_form",
        ),
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// README and the pages of `docs/`.
fn documents() -> Vec<String> {
    let pages = std::fs::read_dir(root().join("docs")).unwrap();
    let names = pages.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"));
    pages.chain(["README.md".to_owned()]).collect()
}

/// Bytes of the outputs of a document: blocks without a language, and sessions (`console`).
fn outputs(text: &str) -> Vec<std::ops::Range<usize>> {
    let (mut found, mut at, mut open) = (Vec::new(), 0, None);
    for line in text.split_inclusive('\n') {
        let next = at + line.len();
        match (line.strip_prefix("```"), open) {
            (Some(language), None) => {
                let is_output = ["", "console"].contains(&language.trim_end());
                open = Some((is_output, next));
            }
            (Some(_), Some((is_output, begin))) => {
                found.extend(is_output.then_some(begin..at));
                open = None;
            }
            (None, _) => {}
        }
        at = next;
    }
    found
}

fn hyperswitch(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hyperswitch"))
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// The README's configuration with an unknown key at its end, as `check` refuses it; the list of known ones
/// is cut.
fn unknown_field() -> String {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let example = readme.split("```toml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hyperswitch.toml");
    std::fs::write(&file, format!("{example}\ncolour = \"red\"\n")).unwrap();
    let said = hyperswitch(&["check", file.to_str().unwrap()]);
    let (head, known) = said.split_once("expected one of ").unwrap();
    let known: Vec<_> = known.split(", ").take(2).collect();
    let place = directory.path().to_str().unwrap();
    let head = head.replace(place, "/etc/hyperswitch");
    format!("{head}expected one of {}, ...\n", known.join(", "))
}

/// Table and hit of a packet through the project's own router, as `--trace` shows them.
fn trace_of_a_router() -> String {
    let directory = tempfile::tempdir().unwrap();
    let program = root().join("crates/p4/p4-bmv2/programs/router/router.json");
    let script = std::fs::read_to_string(program.with_file_name("test.stf")).unwrap();
    // Its entries, and its first packet.
    let wanted = |line: &&str| line.starts_with("add ");
    let packet = script.lines().find(|line| line.starts_with("packet ")).unwrap();
    let mut entries = String::new();
    for line in script.lines().filter(wanted).chain([packet]) {
        writeln!(entries, "{line}").unwrap();
    }
    let file = directory.path().join("entries.stf");
    std::fs::write(&file, entries).unwrap();
    let [program, file, out] =
        [program, file, directory.path().join("out")].map(|path| path.display().to_string());
    let said = hyperswitch(&[
        "p4",
        "run",
        &program,
        "--entries",
        &file,
        "--out",
        &out,
        "--trace",
    ]);
    let mut lines = said
        .lines()
        .skip_while(|line| !line.contains("RouterIngress.routes"));
    let (table, rest): (_, Vec<_>) = (lines.next().unwrap(), lines.collect());
    let indent = table.len() - table.trim_start().len();
    let of_table = rest
        .iter()
        .take_while(|line| line.len() - line.trim_start().len() > indent);
    let mut text = format!("  ingress\n{table}\n");
    of_table.for_each(|line| writeln!(text, "{line}").unwrap());
    text
}

#[test]
fn outputs_come_from_runs() {
    let is_update = std::env::var_os("HYPERSWITCH_UPDATE").is_some();
    let (mut used, mut wrong) = ([false; SOURCES.len()], Vec::new());
    for document in documents() {
        let path = root().join(&document);
        let mut text = std::fs::read_to_string(&path).unwrap();
        // From the end, so that ranges hold while blocks are replaced.
        for range in outputs(&text).into_iter().rev() {
            let block = &text[range.clone()];
            let is_source =
                |(page, begin, _): &(&str, &str, Source)| *page == document && block.starts_with(begin);
            let Some(number) = SOURCES.iter().position(is_source) else {
                wrong.push(format!("{document}: nobody makes this output: {block}"));
                continue;
            };
            used[number] = true;
            let Here(make) = SOURCES[number].2 else {
                continue;
            };
            let made = make();
            if is_update {
                text.replace_range(range, &made);
            } else if block != made {
                wrong.push(format!("{document} has\n{block}today it is\n{made}"));
            }
        }
        if is_update {
            std::fs::write(path, text).unwrap();
        }
    }
    for (number, (document, begin, _)) in SOURCES.iter().enumerate().filter(|(number, _)| !used[*number]) {
        wrong.push(format!("source {number}: {document} has no output {begin:?}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Other tests and targets are where they are said to be.
#[test]
fn sources_exist() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    for (document, begin, source) in &SOURCES {
        let (file, name) = match source {
            Here(_) => continue,
            Test(file, name) => (file, name),
            Measured(target, file, name) => {
                assert!(makefile.contains(&format!("\n{target}:")), "{document}: {target}");
                (file, name)
            }
        };
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        assert!(
            text.contains(&format!("fn {name}(")),
            "{document} {begin}: {file} has no {name}"
        );
    }
}

#[test]
fn blocks_of_a_language_are_no_outputs() {
    let text = "a\n```\none\n```\n```sh\ntwo\n```\n```console\n$ three\n```\n";
    let found: Vec<_> = outputs(text).into_iter().map(|range| &text[range]).collect();
    assert_eq!(found, ["one\n", "$ three\n"]);
}
