//! Answers and errors, in the form of the specification.

use management::ClientError;
use nic_packet::NicError;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::fmt;

/// Codes of errors (CNI specification 1.1, section "Errors"). From 100 on they are the plugin's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A version of the specification that is not known.
    Version = 1,
    /// A key of the configuration that is not known.
    UnknownKey = 2,
    /// A variable of the environment.
    Environment = 4,
    /// Reading or writing.
    Io = 5,
    /// Text that is no JSON.
    Decode = 6,
    /// A configuration that makes no sense.
    Configuration = 7,
    /// The switch does not answer now; trying again later may help.
    TryAgain = 11,
    /// STATUS: no container can be attached now.
    NotAvailable = 50,
    /// The switch refuses, or did not do what it was asked in time.
    Refused = 100,
    /// CHECK: something is not as ADD left it.
    Changed = 101,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// The version of the specification that the runtime speaks.
    version: String,
    /// A [`Code`], or that of the plugin that assigns addresses.
    pub code: u64,
    /// What happened, in one line.
    pub message: String,
}

impl CniError {
    /// An error of this plugin.
    pub fn new(code: Code, message: impl Into<String>) -> CniError {
        CniError::of_other(code as u64, message)
    }

    /// An error of another plugin, with its code.
    pub fn of_other(code: u64, message: impl Into<String>) -> CniError {
        CniError {
            version: super::VERSIONS[3].into(),
            code,
            message: message.into(),
        }
    }

    /// Another error, which differs by the version of the specification.
    pub fn in_version(self, version: &str) -> CniError {
        CniError {
            version: version.into(),
            ..self
        }
    }
}

impl From<ClientError> for CniError {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Refused(_) | ClientError::Malformed(_) => Code::Refused,
            ClientError::Forbidden { .. } => Code::Io,
            _ => Code::TryAgain,
        };
        CniError::new(code, error.to_string())
    }
}

impl From<NicError> for CniError {
    fn from(error: NicError) -> Self {
        CniError::new(Code::Refused, error.to_string())
    }
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Serialize for CniError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_struct("CniError", 3)?;
        map.serialize_field("cniVersion", &self.version)?;
        map.serialize_field("code", &self.code)?;
        map.serialize_field("msg", &self.message)?;
        map.end()
    }
}

/// The interface that a container got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name in the container.
    pub name: String,
    /// Hardware address, if it has one already.
    pub mac: Option<String>,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Path of the network namespace.
    pub sandbox: String,
    /// The socket of a vhost-user port.
    pub socket: Option<String>,
}

/// The answer to ADD. `assigned` is the answer of the plugin that assigns addresses, in the same version.
pub fn added(version: &str, interface: &Interface, assigned: &Value, dns: Option<&Value>) -> Value {
    let mut shown = json!({ "name": interface.name, "sandbox": interface.sandbox });
    if let Some(mac) = &interface.mac {
        shown["mac"] = json!(mac);
    }
    if version == "1.1.0" {
        shown["mtu"] = json!(interface.mtu);
        if let Some(socket) = &interface.socket {
            shown["socketPath"] = json!(socket);
        }
    }
    let mut ips = assigned["ips"].as_array().cloned().unwrap_or_default();
    for ip in &mut ips {
        ip["interface"] = json!(0);
    }
    let mut result = json!({ "cniVersion": version, "interfaces": [shown], "ips": ips });
    if let Some(routes) = assigned["routes"].as_array() {
        result["routes"] = json!(routes);
    }
    let of_plugin = Some(&assigned["dns"]).filter(|dns| dns.is_object());
    result["dns"] = dns.or(of_plugin).cloned().unwrap_or_else(|| json!({}));
    result
}
