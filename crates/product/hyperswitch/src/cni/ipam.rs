//! The plugin that assigns addresses: another program, which gets the same environment and the same
//! configuration (CNI specification 1.1, section 4).

use super::call::Call;
use super::network::Network;
use super::result::{CniError, Code};
use management::IpPrefix;
use nic_packet::Route;
use serde_json::Value;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Makes the plugin carry out a command. Without a plugin, the answer is empty.
///
/// # Errors
/// The plugin is not found, or says no; then with its code.
pub fn delegate(network: &Network, call: &Call, command: &str, text: &[u8]) -> Result<Value, CniError> {
    let Some(kind) = network.ipam.as_ref().map(|ipam| ipam["type"].as_str()) else {
        return Ok(Value::Null);
    };
    let kind = kind.ok_or_else(|| CniError::new(Code::Configuration, "ipam has no type"))?;
    let program = find(kind, &call.path)?;
    let failed = |error: std::io::Error| {
        CniError::new(
            Code::Io,
            format!("cannot execute the IPAM plugin {}: {error}", program.display()),
        )
    };
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A plugin that reads nothing says so by its answer.
        let _ = stdin.write_all(text);
    }
    let output = child.wait_with_output().map_err(failed)?;
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if output.status.success() {
        return Ok(said);
    }
    let why = said["msg"].as_str().unwrap_or("it said nothing");
    let code = said["code"].as_u64().unwrap_or(Code::Refused as u64);
    Err(CniError::of_other(code, format!("IPAM plugin {kind}: {why}")))
}

fn find(kind: &str, path: &[String]) -> Result<PathBuf, CniError> {
    if kind.is_empty() || kind.contains('/') {
        return Err(CniError::new(
            Code::Configuration,
            format!("ipam.type {kind:?} is no name of a program"),
        ));
    }
    let mut places = path.iter().map(|directory| Path::new(directory).join(kind));
    places.find(|place| place.is_file()).ok_or_else(|| {
        let text = format!("the IPAM plugin {kind} is not in CNI_PATH ({})", path.join(":"));
        CniError::new(Code::Configuration, text)
    })
}

/// Addresses of an answer.
///
/// # Errors
/// One of them is none.
pub fn addresses(assigned: &Value) -> Result<Vec<IpPrefix>, CniError> {
    let ips = assigned["ips"].as_array().into_iter().flatten();
    ips.map(|ip| {
        let text = ip["address"].as_str().unwrap_or_default();
        text.parse()
            .map_err(|error| CniError::new(Code::Decode, format!("ips of the IPAM plugin: {error}")))
    })
    .collect()
}

/// Routes of an answer. Those without a gateway lead over that of the addresses of their family.
///
/// # Errors
/// One of them is none.
pub fn routes(assigned: &Value) -> Result<Vec<Route>, CniError> {
    let ips = assigned["ips"].as_array().into_iter().flatten();
    let gateways: Vec<IpAddr> = ips.filter_map(|ip| address(&ip["gateway"])).collect();
    let routes = assigned["routes"].as_array().into_iter().flatten();
    routes
        .map(|route| {
            let wrong = || CniError::new(Code::Decode, format!("{route} is no route"));
            let destination = prefix(route["dst"].as_str().unwrap_or_default()).ok_or_else(wrong)?;
            let of_family = |gateway: &&IpAddr| gateway.is_ipv4() == destination.0.is_ipv4();
            let gateway = match &route["gw"] {
                Value::Null => gateways.iter().find(of_family).copied(),
                given => Some(address(given).ok_or_else(wrong)?),
            };
            let number = |key: &str| route[key].as_u64().and_then(|number| u32::try_from(number).ok());
            Ok(Route {
                destination,
                gateway,
                mtu: number("mtu"),
                advertised_mss: number("advmss"),
                priority: number("priority"),
                table: number("table"),
                scope: number("scope").and_then(|scope| u8::try_from(scope).ok()),
            })
        })
        .collect()
}

fn address(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

/// `10.0.0.0/8`, also of length 0.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    (length <= longest).then_some((address, length))
}
