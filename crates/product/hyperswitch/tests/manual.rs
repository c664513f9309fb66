//! The files that are generated for packages, and their places after `make install`.

#![allow(clippy::unwrap_used)]

mod containers;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_hyperswitch");

fn generate(verb: &str, directory: &Path) {
    let output = Command::new(BINARY).arg(verb).arg(directory).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn every_verb_has_a_page_and_no_internals_have() {
    let directory = tempfile::tempdir().unwrap();
    // Also where nothing is yet.
    let pages = directory.path().join("share/man");
    generate("man", &pages);
    let verbs = "run|status|report|switch|switch-add|switch-del|switch-list|port|port-add|port-del|port-set|port-show|\
        port-list|mac|mac-list|mac-flush|flow|flow-list|flow-flush|events|stats|stats-placement|top|trace|capture|policy|policy-check|policy-list|policy-show|\
        policy-log|policy-explain|policy-diff|check|config|config-show|apply|confirm|reload|version|schema|p4|p4-check|p4-graph|p4-run|p4-test|p4-group|p4-group-list|p4-group-add|p4-group-set|p4-group-remove|p4-group-add-member|p4-group-set-member|p4-group-remove-member|\
        p4-load|p4-show|p4-unload|p4-rollback|p4-export|p4-import|p4-entry|p4-entry-add|p4-entry-set|p4-entry-delete|p4-entry-list|p4-counter|\
        p4-counter-list|p4-counter-set|p4-register|p4-register-list|p4-register-set|p4-meter|p4-meter-list|p4-meter-set|p4-port|p4-port-show|p4-port-set|p4-port-remove|p4-link|p4-link-show|p4-link-add|p4-link-remove|p4-stage|p4-stage-show|p4-stage-add|p4-stage-move|p4-stage-replace|p4-stage-remove|\
        ovs|ovs-start|ovs-stop|ovs-status|ovs-plug|ovs-trace";
    let expected: BTreeSet<String> = verbs
        .split('|')
        .map(|verb| format!("hyperswitch-{verb}.1"))
        .chain(["hyperswitch.1".to_owned()])
        .collect();
    assert_eq!(names(&pages), expected);
    for name in &expected {
        let text = std::fs::read_to_string(pages.join(name)).unwrap();
        let title = name.trim_end_matches(".1");
        assert!(
            text.contains(&format!(".TH {title}")) && text.contains(".SH OPTIONS"),
            "{name}: {text}"
        );
        for internal in ["data\\-plane", "completions"] {
            assert!(!text.contains(internal), "{name} mentions {internal}");
        }
    }
    let page = std::fs::read_to_string(pages.join("hyperswitch-port-add.1")).unwrap();
    assert!(page.contains("static\\-mac"), "{page}");
    assert!(page.contains(".SH EXAMPLES"), "{page}");
    let page = std::fs::read_to_string(pages.join("hyperswitch.1")).unwrap();
    for part in [
        ".SH \"EXIT STATUS\"",
        "view.sock",
        "hyperswitch.toml (5)",
        "HYPERSWITCH_LOG",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

/// Words that bash would offer for the last one of a command line.
fn offered(words: &[&str]) -> BTreeSet<String> {
    let output = Command::new(BINARY)
        .env("COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
        .env("_CLAP_COMPLETE_COMP_TYPE", "9")
        .env("_CLAP_COMPLETE_SPACE", "true")
        .arg("--")
        .args(words)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn completions_know_verbs_options_and_names() {
    assert_eq!(
        offered(&["hyperswitch", "re"]),
        ["reload", "report"].map(str::to_owned).into()
    );
    let options = offered(&["hyperswitch", "port", "add", "--sta"]);
    assert_eq!(options, ["--static-mac".to_owned()].into());
    assert!(!offered(&["hyperswitch", ""]).contains("data-plane"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("c.toml");
    let switch = "[[switch]]\nname = \"lan\"\n";
    std::fs::write(&file, format!("{switch}[[switch.port]]\nname = \"vm1\"\n")).unwrap();
    let run_dir = directory.path().join("run");
    let run = run_dir.to_str().unwrap();
    // Without an instance there are none, and no error.
    assert!(offered(&["hyperswitch", "--run-dir", run, "port", "show", "v"]).is_empty());
    let _instance = containers::Instance::start(&run_dir, &file);
    containers::eventually("the name of a port", || {
        offered(&["hyperswitch", "--run-dir", run, "port", "show", "v"]).contains("vm1")
    });
    assert!(offered(&["hyperswitch", "--run-dir", run, "switch", "del", ""]).contains("lan"));
    assert!(offered(&["hyperswitch", "--run-dir", run, "stats", "v"]).contains("vm1"));
}

#[test]
fn shells_learn_that_the_command_completes_itself() {
    let directory = tempfile::tempdir().unwrap();
    generate("completions", directory.path());
    let expected = ["_hyperswitch", "hyperswitch.bash", "hyperswitch.fish"].map(str::to_owned);
    assert_eq!(names(directory.path()), expected.clone().into());
    for name in expected {
        let text = std::fs::read_to_string(directory.path().join(&name)).unwrap();
        assert!(
            text.contains("COMPLETE") && text.contains("hyperswitch"),
            "{text}"
        );
    }
}

#[test]
fn a_directory_that_cannot_be_is_an_error() {
    let output = Command::new(BINARY)
        .args(["man", "/dev/null/x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/null/x"));
}

/// Installs into `root`, as a package would.
fn install(root: &Path) {
    // The library is no part of this crate. Any one with symbols stands for it, made by what links Rust
    // programs, too.
    let library = root.join("built.so");
    let made = Command::new("cc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(&library)
        .status();
    assert!(made.unwrap().success());
    let output = Command::new("make")
        .args(["install", "PREFIX=/usr"])
        .arg(format!("BINARY={BINARY}"))
        .arg(format!("SHIM={}", library.display()))
        .arg(format!("DESTDIR={}", root.display()))
        .env_remove("MAKEFLAGS")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn make_install_installs_and_keeps_a_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    install(root);
    let installed = Command::new(root.join("usr/bin/hyperswitch"))
        .arg("--version")
        .output()
        .unwrap();
    assert!(installed.status.success());
    for file in [
        "usr/share/man/man1/hyperswitch.1",
        "usr/share/man/man1/hyperswitch-run.1",
        "usr/share/man/man5/hyperswitch.toml.5",
        "usr/share/man/man7/hyperswitch.7",
        "usr/share/man/man8/hyperswitch-cni.8",
        "usr/share/man/man8/hyperswitch-netavark.8",
        "usr/share/bash-completion/completions/hyperswitch",
        "usr/share/zsh/site-functions/_hyperswitch",
        "usr/share/fish/vendor_completions.d/hyperswitch.fish",
        "usr/lib/hyperswitch/libovs_shim.so",
        "usr/lib/hyperswitch/ovs-vswitchd-hyperswitch",
        "lib/systemd/system/hyperswitch.service",
        "etc/hyperswitch/hyperswitch.toml",
        "usr/lib/cni/hyperswitch-cni",
        "usr/lib/netavark/hyperswitch-netavark",
        "usr/lib/udev/rules.d/80-hyperswitch.rules",
        "usr/lib/systemd/network/05-hyperswitch.network",
    ] {
        let metadata = std::fs::metadata(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(metadata.len() > 0, "{file} is empty");
        assert_eq!(
            metadata.permissions().mode() & 0o444,
            0o444,
            "{file} is for everybody to read"
        );
    }
    for file in ["usr/bin/hyperswitch", "usr/lib/hyperswitch/libovs_shim.so"] {
        // Of binutils, as the program that strips.
        let output = Command::new("readelf")
            .arg("-SW")
            .arg(root.join(file))
            .output()
            .unwrap();
        let sections = String::from_utf8_lossy(&output.stdout);
        assert!(sections.contains(".text"), "{file}: {sections}");
        assert!(!sections.contains(".symtab"), "{file} has symbols: {sections}");
    }
    let unit = std::fs::read_to_string(root.join("lib/systemd/system/hyperswitch.service")).unwrap();
    // Without these, forwarding threads are scheduled as all others.
    for grants in ["\nLimitRTPRIO=1\n", "\nLimitNICE=-20\n"] {
        assert!(unit.contains(grants), "{unit}");
    }
    assert!(!unit.contains("\nRestrictRealtime="), "{unit}");
    assert!(
        unit.contains("\nExecStart=/usr/bin/hyperswitch run --config /etc/hyperswitch/hyperswitch.toml\n"),
        "{unit}"
    );

    // 0 is no exposure, 100 all.
    let judged = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=48"])
        .arg(root.join("lib/systemd/system/hyperswitch.service"))
        .output();
    match judged {
        Ok(judged) => assert!(
            judged.status.success(),
            "{}",
            String::from_utf8_lossy(&judged.stdout)
        ),
        Err(_) => println!("systemd-analyze is missing: the exposure of the service is not judged"),
    }

    let wrapper = std::fs::read_to_string(root.join("usr/lib/hyperswitch/ovs-vswitchd-hyperswitch")).unwrap();
    assert!(
        wrapper.contains("\nLD_PRELOAD=/usr/lib/hyperswitch/libovs_shim.so exec "),
        "{wrapper}"
    );

    let config = root.join("etc/hyperswitch/hyperswitch.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    management::parse(&text, "hyperswitch.toml").unwrap();
    std::fs::write(&config, "# mine\n").unwrap();
    install(root);
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "# mine\n");
}
