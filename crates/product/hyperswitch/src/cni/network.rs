//! A network's configuration: what the runtime writes to standard input.
//!
//! Keys of the specification that do not concern this plugin are accepted; any other key is refused. `port`
//! takes whatever a `[[switch.port]]` of the configuration file takes, but for what the plugin decides.

use super::result::{CniError, Code};
use management::{MacAddr, Mtu, Name, VlanId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Keys of the specification and of its conventions that change nothing here.
const IGNORED: [&str; 6] = [
    "type",
    "capabilities",
    "args",
    "cniVersions",
    "disableCheck",
    "disableGC",
];

/// Keys of `port` that the plugin decides about.
const DECIDED: [&str; 7] = [
    "name",
    "type",
    "socket",
    "mode",
    "interface",
    "netns",
    "addresses",
];

/// The configuration of a network.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Version of the specification.
    #[serde(default)]
    pub cni_version: String,
    /// Name of the network, unique on the host.
    #[serde(default)]
    pub name: String,
    /// The switch whose ports the containers get. STATUS and GC do without.
    pub switch: Option<Name>,
    /// Run directory of the instance.
    pub run_dir: Option<PathBuf>,
    /// The containers' VLAN; absent: untagged frames.
    pub vlan: Option<VlanId>,
    /// Largest IP packet; absent: the switch's.
    pub mtu: Option<Mtu>,
    /// Whether containers of the network reach only ports that are not isolated.
    #[serde(default)]
    pub isolated: bool,
    /// What containers' interfaces are; absent: TAPs.
    pub interface: Option<InterfaceKind>,
    /// Further keys of the ports.
    #[serde(default)]
    pub port: Map<String, Value>,
    /// Ports are sockets of vhost-user in place of interfaces.
    pub vhost_user: Option<VhostUser>,
    /// The plugin that assigns addresses, with its own configuration.
    pub ipam: Option<Value>,
    /// Name servers, if they are not what that plugin says.
    pub dns: Option<Value>,
    /// What the runtime decides for one container.
    #[serde(default)]
    pub runtime_config: RuntimeConfig,
    /// The answer to ADD.
    pub prev_result: Option<Value>,
    /// GC: what is to stay.
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<Valid>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// What a container's interface is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceKind {
    /// A TAP.
    #[default]
    Tap,
    /// One end of a veth pair.
    Veth,
}

/// How containers reach their vhost-user sockets.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VhostUser {
    /// `server`: the switch listens; `client`: the container does.
    #[serde(default)]
    pub mode: Option<management::PortMode>,
    /// Directory of the sockets; `{container}` and `{pod-uid}` stand for the container's ID and the
    /// `K8S_POD_UID` of `CNI_ARGS`. Absent: the run directory.
    pub directory: Option<String>,
}

/// `runtimeConfig`, which the runtime fills for the capabilities of a configuration.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct RuntimeConfig {
    /// Hardware address of the container.
    pub mac: Option<MacAddr>,
}

/// An attachment that is to stay.
#[derive(Clone, Debug, Deserialize)]
pub struct Valid {
    /// ID of the container.
    #[serde(rename = "containerID")]
    pub container: String,
    /// Name of the interface in the container.
    pub ifname: String,
}

impl Network {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Text that is no JSON, a key that is not known, a version that is not, or a value that is wrong.
    pub fn parse(text: &[u8]) -> Result<Network, CniError> {
        let value: Value = serde_json::from_slice(text)
            .map_err(|error| CniError::new(Code::Decode, format!("the configuration is no JSON: {error}")))?;
        let refused = |text: String| CniError::new(Code::Configuration, text);
        let network: Network =
            serde_json::from_value(value).map_err(|error| refused(format!("the configuration: {error}")))?;
        network
            .validate()
            .map_err(|error| error.in_version(&network.cni_version))?;
        Ok(network)
    }

    fn validate(&self) -> Result<(), CniError> {
        let version = &self.cni_version;
        if !super::VERSIONS.contains(&version.as_str()) {
            let known = super::VERSIONS.join(", ");
            let text = format!("cniVersion {version:?} is not one of {known}");
            return Err(CniError::new(Code::Version, text));
        }
        let is_known = |key: &str| IGNORED.contains(&key) || key.starts_with("cni.dev/");
        if let Some(key) = self.rest.keys().find(|key| !is_known(key)) {
            let text = format!("{key} is not known; keys of a port belong into `port`");
            return Err(CniError::new(Code::UnknownKey, text));
        }
        let is_decided = |key: &&String| DECIDED.contains(&key.as_str());
        if let Some(key) = self.port.keys().find(is_decided) {
            let text = format!("port.{key}: the plugin decides that");
            return Err(CniError::new(Code::UnknownKey, text));
        }
        if self.interface.is_some() && self.vhost_user.is_some() {
            let text = "interface: containers with vhostUser have none";
            return Err(CniError::new(Code::Configuration, text));
        }
        if self.name.is_empty() {
            return Err(CniError::new(Code::Configuration, "the network has no name"));
        }
        Ok(())
    }

    /// The switch.
    ///
    /// # Errors
    /// The configuration has none.
    pub fn switch(&self) -> Result<&Name, CniError> {
        let missing = || CniError::new(Code::Configuration, "`switch` is missing: the name of a switch");
        self.switch.as_ref().ok_or_else(missing)
    }
}
