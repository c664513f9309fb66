//! What the runtime says about a container, in the environment.

use super::network::Network;
use super::result::{CniError, Code};
use management::{InterfaceName, MacAddr};
use std::collections::BTreeMap;

/// Longest ID of a container.
const MAX_ID: usize = 255;

/// The container, and its interface. Empty for commands that are about none.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// ID of the container.
    pub container: String,
    /// Name of the interface.
    pub ifname: String,
    /// Path of the network namespace; empty where DEL comes after its end.
    pub netns: String,
    /// Where other plugins are.
    pub path: Vec<String>,
    /// Hardware address that the runtime wants.
    pub mac: Option<MacAddr>,
    /// `K8S_POD_UID` of `CNI_ARGS`.
    pub pod_uid: Option<String>,
}

impl Call {
    /// Reads what a command needs.
    ///
    /// # Errors
    /// A variable is missing, or has a value that it cannot have.
    pub fn new(
        command: &str,
        environment: &dyn Fn(&str) -> Option<String>,
        network: &Network,
    ) -> Result<Call, CniError> {
        let variable = |name: &str| environment(name).unwrap_or_default();
        let arguments = pairs(&variable("CNI_ARGS"));
        let mut call = Call {
            path: variable("CNI_PATH").split(':').map(str::to_owned).collect(),
            pod_uid: arguments.get("K8S_POD_UID").cloned(),
            ..Call::default()
        };
        if matches!(command, "STATUS" | "GC") {
            return Ok(call);
        }
        call.mac = match (network.runtime_config.mac, arguments.get("MAC")) {
            (None, Some(mac)) => Some(parsed("MAC of CNI_ARGS", mac)?),
            (mac, _) => mac,
        };
        call.container = variable("CNI_CONTAINERID");
        call.ifname = variable("CNI_IFNAME");
        call.netns = variable("CNI_NETNS");
        if !is_id(&call.container) {
            return Err(wrong("CNI_CONTAINERID", &call.container));
        }
        parsed::<InterfaceName>("CNI_IFNAME", &call.ifname)?;
        if call.netns.is_empty() && command != "DEL" {
            return Err(wrong("CNI_NETNS", ""));
        }
        if call.pod_uid.as_ref().is_some_and(|uid| !is_id(uid)) {
            return Err(CniError::new(
                Code::Environment,
                "K8S_POD_UID of CNI_ARGS is no ID",
            ));
        }
        Ok(call)
    }
}

/// Whether a text is an ID, which may be part of a path.
fn is_id(text: &str) -> bool {
    text.len() <= MAX_ID
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// `A=1;B=2`.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.into(), value.into())).collect()
}

fn parsed<T: std::str::FromStr<Err = management::InvalidValue>>(
    name: &str,
    text: &str,
) -> Result<T, CniError> {
    text.parse()
        .map_err(|error| CniError::new(Code::Environment, format!("{name}: {error}")))
}

fn wrong(name: &str, value: &str) -> CniError {
    CniError::new(
        Code::Environment,
        format!("{name}={value:?} is missing or impossible"),
    )
}
