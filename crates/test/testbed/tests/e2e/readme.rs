//! The outputs in `docs/daily-work.md` have the shape of today's. `HYPERSWITCH_UPDATE=1` writes today's
//! there.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::process::Command;
use testbed::{Endpoint, Lab, Namespace, Switch};

const DOCUMENT: &str = include_str!("../../../../../docs/daily-work.md");

/// The blocks between fences of a section, with what follows each opening fence.
fn blocks(section: &str) -> impl Iterator<Item = &str> {
    let text = DOCUMENT.split_once(section).map_or("", |(_, rest)| rest);
    let text = text.split("\n## ").next().unwrap_or_default();
    text.split("\n```").skip(1).step_by(2)
}

/// Commands of a block, each with its output.
fn commands(block: &str) -> Vec<(String, String)> {
    let runs = block.split("$ hyperswitch ").skip(1);
    let run = runs.map(|run| run.split_once('\n').unwrap_or((run, "")));
    run.map(|(command, output)| (command.to_owned(), output.trim_end().to_owned()))
        .collect()
}

/// What does not change from run to run: headings, the first words of lines, names of a flow's fields.
fn shape(output: &str) -> BTreeSet<String> {
    let mut shape = BTreeSet::new();
    for line in output.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        let is_heading = first.len() > 1 && first.bytes().all(|byte| byte.is_ascii_uppercase());
        if is_heading {
            shape.extend(line.split_whitespace().map(str::to_owned));
            continue;
        }
        let end = [": ", "  "].iter().filter_map(|end| line.find(end)).min();
        shape.extend(end.map(|end| line[..end].to_owned()));
        let fields = line.split([',', ' ']).filter_map(|part| part.split_once('='));
        shape.extend(fields.map(|(name, _)| name.to_owned()));
    }
    // Only some hosts have these.
    shape.remove("idle-poll");
    shape.remove("warning");
    // Drops of nothing that was sent on purpose.
    shape.remove("drops");
    shape
}

/// All that a verb says within so many seconds, while a container pings the host. It ends by itself, or is
/// ended.
fn beside_a_ping(switch: &Switch, container: &Namespace, seconds: u32, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("timeout");
    command.arg(seconds.to_string()).arg(switch.binary());
    command.arg("--run-dir").arg(switch.run_dir()).args(arguments);
    // Where `capture` writes its file.
    command.current_dir(switch.run_dir());
    let output = std::thread::scope(|scope| {
        let ping = format!("ping -q -w {seconds} -i 0.015 10.77.0.254");
        scope.spawn(move || container.run(&ping));
        command.output()
    })?;
    let said = [output.stderr, output.stdout].concat();
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn outputs_are_todays() -> Result<()> {
    let Some(_lab) = Lab::enter("outputs_are_todays") else {
        return Ok(());
    };
    let container = Namespace::new("web")?;
    let config = blocks("## A first configuration").find_map(|block| block.strip_prefix("toml\n"));
    let config = config.context("no configuration")?;
    let switch =
        Switch::start(&config.replace("netns = \"web\"", &format!("netns = \"{}\"", container.netns())))?;
    switch.wait_port("web", "running")?;
    switch.wait_port("lan:host", "running")?;
    container.must("ping -q -c 3 -i 0.2 10.77.0.254")?;
    let mut compared = 0;
    let mut updated = DOCUMENT.to_owned();
    for (command, documented) in blocks("## Daily work").flat_map(commands) {
        let arguments: Vec<&str> = command.split_whitespace().collect();
        let output = match arguments[0] {
            "capture" => beside_a_ping(&switch, &container, 8, &arguments)?,
            _ if command.contains("--watch") => {
                let said = beside_a_ping(&switch, &container, 3, &arguments)?;
                // The first reading.
                said.split("\n\n").next().unwrap_or_default().to_owned()
            }
            _ => switch.verb(&arguments)?,
        };
        if std::env::var_os("HYPERSWITCH_UPDATE").is_some() {
            let run = |output: &str| format!("$ hyperswitch {command}\n{}\n", output.trim_end());
            updated = updated.replace(&run(&documented), &run(&output));
            continue;
        }
        let (wanted, real) = (shape(&documented), shape(&output));
        ensure!(
            wanted == real,
            "{command}: the document has {wanted:?}, not {real:?}:\n{output}"
        );
        if command.starts_with("trace") {
            ensure!(documented == output.trim_end(), "{command}: {output}");
        }
        compared += 1;
    }
    if std::env::var_os("HYPERSWITCH_UPDATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/daily-work.md");
        std::fs::write(path, updated)?;
        return switch.stop();
    }
    ensure!(
        compared > 7,
        "only {compared} outputs found: has the format changed?"
    );
    switch.stop()
}
