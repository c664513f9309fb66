//! The names by which clients call this process.
//!
//! A browser on this host lets a page of a stranger ask only the stranger's own server. But the stranger
//! decides which address the name of that server has, and may change it to a loopback address once the page
//! is there ("DNS rebinding"): then the page could read the figures. Its requests still say the stranger's
//! name. So a process that listens at a loopback address answers only to names of such addresses.

use std::net::IpAddr;

/// The names to which the process answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Any: it listens at a socket that no browser reaches, or at an address that may have names of its own.
    Any,
    /// Loopback addresses and `localhost`, whatever the port: it may be another end of a tunnel.
    Loopback,
}

impl Hosts {
    /// The names of a process that listens at this address.
    pub fn at(address: IpAddr) -> Hosts {
        match address.to_canonical().is_loopback() {
            true => Hosts::Loopback,
            false => Hosts::Any,
        }
    }

    /// Whether a request with this `Host` header (RFC 9110, section 7.2) is answered. Browsers always send
    /// one.
    pub(crate) fn include(self, header: &[u8]) -> bool {
        let header = || std::str::from_utf8(header).map(str::trim);
        self == Hosts::Any || header().is_ok_and(is_loopback)
    }
}

/// Whether this is the name of a loopback address, with or without port.
fn is_loopback(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let address = rest.split_once(']').and_then(|(address, _)| address.parse().ok());
        return address.is_some_and(|address: IpAddr| address.to_canonical().is_loopback());
    }
    let name = host.split(':').next().unwrap_or_default();
    if let Ok(address) = name.parse::<IpAddr>() {
        return address.is_loopback();
    }
    // Resolvers of browsers take names below `localhost` for loopback addresses (RFC 6761, section 6.3).
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_loopback_addresses_are_known() {
        for ours in [
            "127.0.0.1",
            "127.0.0.1:9490",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:9490",
            "[::ffff:127.0.0.1]:80",
            "localhost",
            "LOCALHOST:9490",
            "localhost.:80",
            "switch.localhost",
            " localhost ",
        ] {
            assert!(Hosts::Loopback.include(ours.as_bytes()), "{ours}");
        }
        for strange in [
            "evil.example",
            "evil.example:9490",
            "127.0.0.1.evil.example",
            "localhost.evil.example:9490",
            "notlocalhost",
            "192.0.2.1:9490",
            "[2001:db8::1]:9490",
            "[::1",
            "[evil]",
            "",
            ":9490",
        ] {
            assert!(!Hosts::Loopback.include(strange.as_bytes()), "{strange}");
            assert!(Hosts::Any.include(strange.as_bytes()), "{strange}");
        }
        assert!(!Hosts::Loopback.include(b"\xff"));
    }

    #[test]
    fn a_process_that_others_reach_answers_to_any_name() {
        let at = |address: &str| Hosts::at(address.parse().unwrap());
        for loopback in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(at(loopback), Hosts::Loopback);
        }
        for other in ["0.0.0.0", "192.0.2.1", "::"] {
            assert_eq!(at(other), Hosts::Any);
        }
    }
}
