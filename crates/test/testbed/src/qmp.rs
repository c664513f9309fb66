//! QEMU's machine protocol, as far as tests need it: commands without waiting for events.
//!
//! Source: QEMU `docs/interop/qmp-spec.txt`. One JSON object per line each way; events come in between and
//! are skipped.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connection to QEMU's management socket.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and leaves the negotiation mode.
    pub fn connect(socket: &Path) -> Result<Qmp> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut qmp = Qmp {
            reader: BufReader::new(stream),
        };
        let greeting = qmp.read()?;
        if greeting.get("QMP").is_none() {
            bail!("not a QMP socket: {greeting}");
        }
        qmp.execute("qmp_capabilities")?;
        Ok(qmp)
    }

    /// Runs a command without arguments.
    pub fn execute(&mut self, command: &str) -> Result<Value> {
        self.execute_with(command, &json!({}))
    }

    /// Runs a command, and returns its result.
    pub fn execute_with(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        self.reader.get_mut().write_all(line.as_bytes())?;
        loop {
            let mut message = self.read()?;
            if let Some(value) = message.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = message.get("error") {
                bail!("QEMU: {command}: {error}");
            }
        }
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).context("QEMU does not answer")? == 0 {
            bail!("QEMU closed its management socket");
        }
        serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))
    }
}
