//! Where metrics are served.

use crate::value::{InvalidValue, text};
use schemars::JsonSchema;
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A place where a process listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Address and port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

text! {
    /// A place where a process listens, as text.
    ListenAddress(Place),
    "an address with a port, like 127.0.0.1:9490 or [::1]:9490, or the absolute path of a socket, of at most 107 bytes",
    parse
}

impl ListenAddress {
    /// The place.
    pub fn place(&self) -> &Place {
        &self.0
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Tcp(address) => address.fmt(f),
            Place::Unix(path) => path.display().fmt(f),
        }
    }
}

fn parse(text: &str) -> Option<Place> {
    if text.starts_with('/') {
        return (text.len() <= 107 && !text.contains('\0')).then(|| Place::Unix(text.into()));
    }
    text.parse().ok().map(Place::Tcp)
}

/// Figures for programs that collect them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ViewConfig {
    /// Where the process `view` serves metrics; without it, there is no such process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<ListenAddress>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_or_a_path() {
        for text in ["127.0.0.1:9490", "[::1]:9490", "0.0.0.0:1", "/run/metrics.sock"] {
            let place = text.parse::<ListenAddress>();
            assert!(place.is_ok_and(|place| place.to_string() == text), "{text}");
        }
        for text in [
            "9490",
            "localhost:9490",
            "127.0.0.1",
            "run/metrics.sock",
            "127.0.0.1:99999",
        ] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
        assert!(format!("/{}", "x".repeat(107)).parse::<ListenAddress>().is_err());
    }
}
