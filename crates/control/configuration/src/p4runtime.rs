//! `[p4runtime]`: clients of P4Runtime, and the P4 switches that they may drive.
//!
//! The safe direction of error is to refuse: without certificates for clients, anybody who reaches the
//! address drives the devices, so such an address must be the host's own.

use crate::p4::PlacedPort;
use crate::value::{Name, P4Operations};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// See the module's description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct P4RuntimeConfig {
    /// Address and port where clients connect; without one there is no such process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// The server's certificates, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// The server's key, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Certificates of those who vouch for clients, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_authorities: Option<PathBuf>,
    /// P4 switches that clients may drive.
    #[serde(rename = "device", skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<P4DeviceConfig>,
}

impl P4RuntimeConfig {
    /// All but the devices: what takes effect when the switch is started again.
    #[must_use]
    pub fn without_devices(&self) -> P4RuntimeConfig {
        P4RuntimeConfig {
            devices: Vec::new(),
            ..self.clone()
        }
    }
}

/// A P4 switch that clients may drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct P4DeviceConfig {
    /// Number by which clients know it, not 0.
    pub id: u64,
    /// Name of the P4 switch.
    pub name: Name,
    /// Ports that are bound to it. Without them, those that the P4 switch has stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PlacedPort>,
    /// Number of the port by which packets go to clients and come from them: 0 to 510, and none of `ports`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_port: Option<u16>,
    /// Most operations of one pass that clients' programs are allowed; default: 32,768, or what the P4 switch
    /// has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations: Option<P4Operations>,
}

#[cfg(test)]
mod tests {
    fn error(text: &str) -> String {
        match crate::parse(text, "test") {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn devices_and_addresses_are_checked() {
        let device = "\n[[p4runtime.device]]\nid = 1\nname = \"a\"\nports = [\"1=p\", \"2=q\"]\n";
        let local = "[p4runtime]\nlisten = \"127.0.0.1:9559\"\n";
        assert_eq!(error(&format!("{local}{device}")), "");
        let cases = [
            (
                "[p4runtime]\nlisten = \"0.0.0.0:9559\"\n".to_owned(),
                "need certificates",
            ),
            (format!("{local}certificate = \"/c\"\n"), "belong together"),
            (
                format!("{local}client-authorities = \"/c\"\n"),
                "needs `certificate`",
            ),
            (format!("{device}{device}"), "numbers of their own"),
            (
                format!("{device}{}", device.replace("id = 1", "id = 2")),
                "same P4 switch",
            ),
            (device.replace("id = 1", "id = 0"), ""),
            (device.replace("2=q", "2=p"), "two numbers"),
            (device.replace("2=q", "1=q"), "two ports"),
            (device.replace("2=q", "511=q"), "0 to 510"),
            (format!("{device}cpu-port = 510\n"), ""),
            (format!("{device}cpu-port = 511\n"), "0 to 510"),
            (format!("{device}cpu-port = 2\n"), "has that number"),
            (format!("{device}operations = 640404\n"), ""),
            (format!("{device}operations = 32767\n"), "32768 to 1000000"),
            (format!("{device}operations = 1000001\n"), "32768 to 1000000"),
        ];
        for (text, expected) in cases {
            let error = error(&text);
            assert_eq!(error.is_empty(), expected.is_empty(), "{text}: {error}");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
