//! Containers' runtimes attach containers here: as a CNI plugin (`hyperswitch-cni`, specification 1.1), and
//! as a plugin of netavark (`hyperswitch-netavark`), which Podman uses.
//!
//! | module | contents |
//! |---|---|
//! | `network` | the network's configuration, as it comes on standard input |
//! | `call` | what the runtime says about a container, in the environment |
//! | `ipam` | the plugin that assigns addresses, which is another program |
//! | `attachment` | an attachment as a port of the running switch: added, checked, removed |
//! | `result` | answers and errors, in the form of the specification |
//! | `netavark` | the same for netavark, whose addresses come with the request |
//!
//! An attachment is a port that was added by command. Its name is made of the network's name, the container's
//! and the interface's, so that nothing is stored here, and DEL and GC find what ADD made. A port that a user
//! has added has another name, and is never touched.
//!
//! The safe direction of error is an attachment that fails: what ADD did before the error is undone, and a
//! key of the configuration that is not known is refused, since it may have been meant to isolate.
//!
//! The program runs once for each request, as the runtime's user, which is root. Standard output has the
//! answer and nothing else.

mod attachment;
mod call;
mod ipam;
mod netavark;
mod network;
mod result;
#[cfg(test)]
mod tests;

use crate::output;
use anyhow::Result;
use call::Call;
pub use netavark::run as run_netavark;
use network::Network;
use result::{CniError, Code};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Versions of the specification, the oldest first.
const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Longest request in bytes.
const MAX_INPUT: u64 = 1 << 20;

/// Names by which the executable is called in place of a verb, and the verb.
const LINKS: [(&str, &str); 2] = [("hyperswitch-cni", "cni"), ("hyperswitch-netavark", "netavark")];

/// Arguments of the command line, with the verb in front that the name of the executable stands for.
pub fn arguments() -> Vec<std::ffi::OsString> {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let name = arguments.first().and_then(|path| Path::new(path).file_name());
    let verb = LINKS
        .iter()
        .find(|(link, _)| name.is_some_and(|name| name == *link));
    if let Some((_, verb)) = verb {
        arguments.insert(1, (*verb).into());
    }
    arguments
}

/// Answers a request of a container's runtime: `CNI_COMMAND` and others in the environment, and the network's
/// configuration on standard input.
///
/// # Errors
/// When standard output fails. Other errors are the answer.
pub fn run(run_dir: &Path, timeout: Duration) -> Result<ExitCode> {
    let environment = |name: &str| std::env::var(name).ok();
    let answer = answer(&environment, &mut std::io::stdin(), run_dir, timeout);
    match answer {
        Ok(None) => Ok(ExitCode::SUCCESS),
        Ok(Some(result)) => output::json(&result).map(|()| ExitCode::SUCCESS),
        Err(error) => output::json(&error).map(|()| ExitCode::FAILURE),
    }
}

/// Carries out a request.
fn answer(
    environment: &dyn Fn(&str) -> Option<String>,
    input: &mut dyn Read,
    run_dir: &Path,
    timeout: Duration,
) -> Result<Option<Value>, CniError> {
    let command = environment("CNI_COMMAND").unwrap_or_default();
    if command == "VERSION" {
        // Older runtimes send nothing.
        let text = read(input)?;
        let asked: Value = serde_json::from_slice(&text).unwrap_or_default();
        let version = asked["cniVersion"].as_str().unwrap_or(VERSIONS[3]);
        return Ok(Some(
            json!({ "cniVersion": version, "supportedVersions": VERSIONS }),
        ));
    }
    let text = read(input)?;
    let network = Network::parse(&text)?;
    let call = Call::new(&command, environment, &network)?;
    let switch = attachment::Switch::new(network.run_dir.as_deref().unwrap_or(run_dir), timeout);
    let done = match command.as_str() {
        "ADD" => attachment::add(switch, &network, &call, &text).map(Some),
        "DEL" => attachment::delete(switch, &network, &call, &text).map(|()| None),
        "CHECK" => attachment::check(switch, &network, &call, &text).map(|()| None),
        "STATUS" => attachment::status(switch, &network, &call, &text).map(|()| None),
        "GC" => attachment::collect(switch, &network, &call, &text).map(|()| None),
        other => Err(CniError::new(
            Code::Environment,
            format!("CNI_COMMAND={other} is not known"),
        )),
    };
    done.map_err(|error| error.in_version(&network.cni_version))
}

fn read(input: &mut dyn Read) -> Result<Vec<u8>, CniError> {
    let mut text = Vec::new();
    let read = input.take(MAX_INPUT + 1).read_to_end(&mut text);
    read.map_err(|error| CniError::new(Code::Io, format!("cannot read standard input: {error}")))?;
    if text.len() as u64 > MAX_INPUT {
        let text = format!("the configuration is longer than {MAX_INPUT} bytes");
        return Err(CniError::new(Code::Decode, text));
    }
    Ok(text)
}
