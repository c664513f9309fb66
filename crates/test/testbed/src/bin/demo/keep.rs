//! A demonstration that keeps running: a process in the background owns it and takes orders on a socket in
//! `build/demo`.
//!
//! One per checkout. Orders are one line of JSON each way: `["exec", name, command]` and `["stop"]`.

use crate::{Demo, HOST, v4};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use testbed::{Endpoint, build_dir};

/// The line in the log after which the measuring is over.
const READY: &str = "The demonstration keeps running.";

fn socket() -> PathBuf {
    build_dir::path().join("demo/socket")
}

/// Runs the demonstration in the background and shows its progress until the table is there.
pub fn in_background() -> Result<bool> {
    if UnixStream::connect(socket()).is_ok() {
        bail!("a demonstration is running already; `make demo-stop` ends it");
    }
    let directory = build_dir::path().join("demo");
    std::fs::create_dir_all(&directory)?;
    let log = directory.join("log");
    let output = File::create(&log)?;
    // A session of its own, so that Ctrl-C in this terminal does not reach it.
    let mut child = Command::new("setsid")
        .arg(std::env::current_exe()?)
        .arg("serve")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("cannot start the background process")?;
    let mut shown = File::open(&log)?;
    let mut text = String::new();
    loop {
        let ended = child.try_wait()?;
        let mut more = Vec::new();
        shown.read_to_end(&mut more)?;
        let more = String::from_utf8_lossy(&more);
        print!("{more}");
        std::io::stdout().flush()?;
        text += &more;
        if let Some(status) = ended {
            bail!("the background process ended with {status}");
        }
        if text.contains(READY) && text.ends_with('\n') {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    let passed = order(&json!(["passed"]))?;
    Ok(passed == Value::Bool(true))
}

/// Prints commands with which to look around.
pub fn explain(demo: &Demo) {
    let binary = demo.switch.binary().display();
    let run_dir = demo.switch.run_dir().display();
    let own = std::env::current_exe().unwrap_or_else(|_| "demo".into());
    let own = own.display();
    let netns = demo.switch.host().netns();
    println!(
        "\nLook around:\n  \
         {binary} --run-dir {run_dir} status        (or port list, mac list, flow list, stats --watch)\n  \
         {own} exec uml1 'ip addr; ping -c 3 {host}'    (or uml2, qemu, container, host)\n  \
         ip netns exec {netns} ping {guest}    (from the host's side)\n\
         Stop it: make demo-stop\n\n{READY}",
        host = v4(HOST),
        guest = v4(1),
    );
}

/// Takes orders for a demonstration.
pub struct Server {
    listener: UnixListener,
}

impl Server {
    pub fn bind() -> Result<Server> {
        let path = socket();
        if UnixStream::connect(&path).is_ok() {
            bail!("a demonstration is running already");
        }
        let _ = std::fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        Ok(Server { listener })
    }

    /// Serves until a stop is requested.
    pub fn serve(self, demo: &Demo, passed: bool) -> Result<()> {
        for stream in self.listener.incoming() {
            let mut stream = BufReader::new(stream?);
            let mut line = String::new();
            // A client that goes away is no reason to end.
            if stream.read_line(&mut line).is_err() {
                continue;
            }
            let order: Value = serde_json::from_str(&line).unwrap_or_default();
            let words: Vec<&str> = order
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let answer = match words[..] {
                ["stop"] => {
                    let _ = writeln!(stream.get_mut(), "true");
                    break;
                }
                ["passed"] => json!(passed),
                ["exec", name, command] => execute(demo, name, command),
                _ => json!({ "error": "not understood" }),
            };
            let _ = writeln!(stream.get_mut(), "{answer}");
        }
        std::fs::remove_file(socket())?;
        Ok(())
    }
}

fn execute(demo: &Demo, name: &str, command: &str) -> Value {
    match demo
        .endpoint(name)
        .and_then(|endpoint: &dyn Endpoint| endpoint.run(command))
    {
        Ok(output) => json!({ "status": output.status, "stdout": output.stdout, "stderr": output.stderr }),
        Err(error) => json!({ "error": format!("{error:#}") }),
    }
}

fn order(order: &Value) -> Result<Value> {
    let mut stream = UnixStream::connect(socket()).context("no demonstration is running")?;
    writeln!(stream, "{order}")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    serde_json::from_str(&answer).context("the demonstration ended")
}

/// Runs a command in a party of the demonstration; whether it succeeded.
pub fn exec(name: &str, command: &str) -> Result<bool> {
    let answer = order(&json!(["exec", name, command]))?;
    if let Some(error) = answer["error"].as_str() {
        bail!("{error}");
    }
    print!("{}", answer["stdout"].as_str().unwrap_or_default());
    eprint!("{}", answer["stderr"].as_str().unwrap_or_default());
    Ok(answer["status"] == 0)
}

/// Ends the demonstration and waits until it has cleaned up.
pub fn stop() -> Result<()> {
    order(&json!(["stop"]))?;
    // The background process holds its log open until it has ended; its socket goes first. Its last line says
    // so.
    let log = build_dir::path().join("demo/log");
    for _ in 0..300 {
        let text = std::fs::read_to_string(&log)?;
        if text.trim_end().ends_with("done") {
            println!("stopped");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    bail!("it does not end; see {}", log.display())
}
