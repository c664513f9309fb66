//! The plugin of netavark, which Podman uses: `create`, `setup`, `teardown` and `info`.
//!
//! netavark's plugin interface 1.0.0 gives the network and the container as JSON on standard input, and wants
//! JSON on standard output; an error is `{"error": "..."}`. Addresses are assigned before.
//!
//! The switch is the network's option `switch`, or else has the network's name.

use super::attachment::{Namespace, Switch, mac_of, port_name, set_routes};
use super::result::{CniError, Code};
use crate::cli::NetavarkVerb;
use crate::output;
use anyhow::Result;
use management::{IpPrefix, Name, PortConfig};
use nic_packet::Route;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Version of the interface.
const API_VERSION: &str = "1.0.0";

/// A container and its network, as far as they concern this plugin.
#[derive(Debug, Deserialize)]
struct Request {
    container_id: String,
    network: NetworkOf,
    network_options: Options,
    port_mappings: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
struct NetworkOf {
    name: String,
    #[serde(default)]
    options: Option<BTreeMap<String, String>>,
    #[serde(default)]
    subnets: Option<Vec<Subnet>>,
    #[serde(default)]
    internal: bool,
}

#[derive(Debug, Deserialize)]
struct Subnet {
    subnet: String,
    gateway: Option<IpAddr>,
}

#[derive(Debug, Deserialize)]
struct Options {
    interface_name: String,
    #[serde(default)]
    static_ips: Option<Vec<IpAddr>>,
    #[serde(default)]
    static_mac: Option<String>,
}

/// Carries out a verb.
///
/// # Errors
/// When standard output fails. Other errors are the answer.
pub fn run(verb: &NetavarkVerb, run_dir: &Path, timeout: Duration) -> Result<ExitCode> {
    let switch = Switch::new(run_dir, timeout);
    match answer(verb, &switch) {
        Ok(None) => Ok(ExitCode::SUCCESS),
        Ok(Some(answer)) => output::json(&answer).map(|()| ExitCode::SUCCESS),
        Err(error) => {
            output::json(&json!({ "error": error.to_string() }))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn answer(verb: &NetavarkVerb, switch: &Switch<'_>) -> Result<Option<Value>, CniError> {
    let input = || super::read(&mut std::io::stdin());
    match verb {
        NetavarkVerb::Info => Ok(Some(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "api_version": API_VERSION,
        }))),
        NetavarkVerb::Create => create(&input()?).map(Some),
        NetavarkVerb::Setup { netns } => setup(switch, netns, &parse(&input()?)?).map(Some),
        NetavarkVerb::Teardown { netns } => {
            let request: Request = parse(&input()?)?;
            let name = name(&request)?;
            let interface = &request.network_options.interface_name;
            switch.detach(&name, &Namespace::of(netns, &name), interface)?;
            Ok(None)
        }
    }
}

fn parse<T: for<'de> Deserialize<'de>>(text: &[u8]) -> Result<T, CniError> {
    serde_json::from_slice(text).map_err(|error| CniError::new(Code::Decode, format!("the request: {error}")))
}

fn name(request: &Request) -> Result<Name, CniError> {
    let ifname = &request.network_options.interface_name;
    port_name(&request.network.name, &request.container_id, ifname)
}

/// Checks the options of a network that is being made, which stays as it is.
fn create(text: &[u8]) -> Result<Value, CniError> {
    let network: NetworkOf = parse(text)?;
    port(&network, None)?;
    parse(text)
}

/// The switch, and the port but for what differs by container. Options are the keys of a port, as text.
fn port(network: &NetworkOf, port_name: Option<&Name>) -> Result<(Name, PortConfig), CniError> {
    let refused = |text: String| CniError::new(Code::Configuration, text);
    let name = port_name.map_or("name", |name| name.as_str());
    let mut port = json!({ "name": name, "type": "tap" });
    let mut switch = network.name.clone();
    for (key, value) in network.options.iter().flatten() {
        let number = || {
            let number = value.parse::<u32>();
            number.map_err(|_| refused(format!("option {key}: {value:?} is no number")))
        };
        match key.as_str() {
            "switch" => switch.clone_from(value),
            "vlan" => port["vlan"] = json!({ "access": number()? }),
            "mtu" => port["mtu"] = json!(number()?),
            "interface" if ["tap", "veth"].contains(&value.as_str()) => port["type"] = json!(value),
            "isolated" | "isolate" if value == "true" => port["isolated"] = json!(true),
            "isolated" | "isolate" if value == "false" => {}
            "guards" | "security-groups" => port[key] = value.split(',').collect(),
            "acl-from" | "acl-to" | "max-rate-from" | "max-rate-to" => port[key] = json!(value),
            _ => return Err(refused(format!("option {key}={value} is not known"))),
        }
    }
    let switch = switch
        .parse()
        .map_err(|error| refused(format!("option switch: {error}")))?;
    let port = serde_json::from_value(port).map_err(|error| refused(format!("options: {error}")))?;
    Ok((switch, port))
}

fn setup(switch: &Switch<'_>, netns: &str, request: &Request) -> Result<Value, CniError> {
    let refused = |text: &str| CniError::new(Code::Configuration, text);
    if request
        .port_mappings
        .as_ref()
        .is_some_and(|ports| !ports.is_empty())
    {
        return Err(refused(
            "published ports are not possible: containers have addresses of the switch",
        ));
    }
    let options = &request.network_options;
    let name = name(request)?;
    let (switch_name, mut config) = port(&request.network, Some(&name))?;
    let mac = options.static_mac.clone().unwrap_or_else(|| mac_of(&name));
    let mac = mac.parse().map(Some);
    config.mac = mac.map_err(|error| CniError::new(Code::Configuration, format!("static_mac: {error}")))?;
    config.interface = Some(
        options
            .interface_name
            .parse()
            .map_err(|error| CniError::new(Code::Configuration, format!("interface_name: {error}")))?,
    );
    let found = addresses(&request.network, options)?;
    config.addresses = found.addresses;
    let namespace = Namespace::of(netns, &name);
    config.netns = namespace.name.parse().ok();
    let port = namespace
        .open()
        .and_then(|()| switch.add(&switch_name, config))
        .inspect_err(|_| namespace.close())?;
    set_routes(&namespace.name, &options.interface_name, &found.routes).inspect_err(|_| {
        let _ = switch.remove(&name);
        namespace.close();
    })?;
    Ok(json!({
        "interfaces": { &options.interface_name: { "mac_address": port.mac, "subnets": found.shown } },
    }))
}

/// What a container's addresses mean.
#[derive(Default)]
struct Addresses {
    /// With the lengths of their subnets.
    addresses: Vec<IpPrefix>,
    /// Default routes.
    routes: Vec<Route>,
    /// What netavark is told of them.
    shown: Vec<Value>,
}

fn addresses(network: &NetworkOf, options: &Options) -> Result<Addresses, CniError> {
    let mut found = Addresses::default();
    for address in options.static_ips.iter().flatten() {
        let subnets = network.subnets.as_deref().unwrap_or_default();
        let of_family = |subnet: &&Subnet| subnet.subnet.contains(':') == address.is_ipv6();
        let subnet = subnets.iter().find(of_family);
        let length = subnet.and_then(|subnet| subnet.subnet.split('/').nth(1));
        let prefix = format!("{address}/{}", length.unwrap_or_default());
        let wrong = |error| CniError::new(Code::Configuration, format!("{error}"));
        found.addresses.push(prefix.parse::<IpPrefix>().map_err(wrong)?);
        let gateway = subnet.and_then(|subnet| subnet.gateway);
        if let Some(gateway) = gateway.filter(|_| !network.internal) {
            let any = if gateway.is_ipv4() {
                IpAddr::from([0; 4])
            } else {
                IpAddr::from([0; 16])
            };
            found.routes.push(Route {
                destination: (any, 0),
                gateway: Some(gateway),
                mtu: None,
                advertised_mss: None,
                priority: None,
                table: None,
                scope: None,
            });
        }
        found.shown.push(json!({ "ipnet": prefix, "gateway": gateway }));
    }
    Ok(found)
}
