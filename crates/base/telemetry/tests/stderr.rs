//! The log as another process sees it: a test runs this binary again as a child and reads its standard error.

#![allow(clippy::unwrap_used)]

use std::process::Command;

const MARK: &str = "TELEMETRY_TEST_CHILD";

fn child(level: Option<&str>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "speaks_when_asked", "--nocapture"])
        .env(MARK, "1");
    match level {
        Some(level) => command.env(telemetry::LEVEL_VARIABLE, level),
        None => command.env_remove(telemetry::LEVEL_VARIABLE),
    };
    String::from_utf8(command.output().unwrap().stderr).unwrap()
}

#[test]
fn speaks_when_asked() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    telemetry::init("tester");
    log::debug!("fine print");
    log::info!("news");
    for number in 0..100 {
        telemetry::limited!(log::Level::Warn, "guest nonsense {number}");
    }
    for number in 0..100 {
        let port = u32::from(number == 99);
        telemetry::limited_by!(port, log::Level::Warn, "port {port} nonsense {number}");
    }
}

#[test]
fn the_level_comes_from_the_environment() {
    let default = child(None);
    assert!(default.contains("INFO  tester: news"), "{default}");
    assert!(!default.contains("fine print"), "{default}");
    assert!(child(Some("debug")).contains("DEBUG tester: fine print"));
    assert!(!child(Some("error")).contains("tester:"));
    let wrong = child(Some("loud"));
    assert!(
        wrong.contains("allowed are off, error") && wrong.contains("tester: news"),
        "{wrong}"
    );
}

#[test]
fn a_flood_from_one_place_is_cut_to_a_burst() {
    let log = child(None);
    assert_eq!(log.matches("guest nonsense").count(), 5, "{log}");
}

#[test]
fn a_port_that_says_much_silences_no_other() {
    let log = child(None);
    assert_eq!(log.matches("port 0 nonsense").count(), 5, "{log}");
    assert_eq!(log.matches("port 1 nonsense").count(), 1, "{log}");
}
