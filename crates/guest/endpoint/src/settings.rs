//! What an endpoint is to be.

use crate::EndpointError;
use std::net::IpAddr;
use std::time::Duration;

/// Most addresses of an endpoint, with the one by DHCP.
const MAX_ADDRESSES: usize = 8;

/// Addresses and sizes of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// MAC address, unicast.
    pub mac: [u8; 6],
    /// Addresses and the length of their networks' prefixes, at most 8 with the one by DHCP.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Routers for other networks, one of each family.
    pub gateways: Vec<IpAddr>,
    /// Whether to ask for an IPv4 address and a router by DHCP (RFC 2131).
    pub dhcp: bool,
    /// Largest IP packet in bytes, 1280 to 9000.
    pub mtu: usize,
    /// Bytes that a connection buffers for each direction, 4 KiB to 16 MiB.
    pub buffer: usize,
    /// How long [`Endpoint::wait`](crate::Endpoint::wait) looks at the rings before it sleeps. Looking costs
    /// a processor and saves the time of being woken, some microseconds.
    pub spin: Duration,
}

impl Settings {
    /// An endpoint with one address in a network with a prefix of that length. Its MAC address is made of the
    /// address, so that it stays the same.
    pub fn at(address: IpAddr, prefix: u8) -> Settings {
        let mut mac = [2, 0x48, 0, 0, 0, 0];
        match address {
            IpAddr::V4(address) => mac[2..].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => mac[2..].copy_from_slice(&address.octets()[12..]),
        }
        Settings {
            addresses: vec![(address, prefix)],
            ..Settings::by_dhcp(mac)
        }
        .without_dhcp()
    }

    /// An endpoint with this MAC address that asks for an IPv4 address.
    pub fn by_dhcp(mac: [u8; 6]) -> Settings {
        Settings {
            mac,
            addresses: Vec::new(),
            gateways: Vec::new(),
            dhcp: true,
            mtu: 1500,
            buffer: 256 << 10,
            spin: Duration::ZERO,
        }
    }

    fn without_dhcp(self) -> Settings {
        Settings { dhcp: false, ..self }
    }

    /// Whether everything is in its range.
    pub(crate) fn check(&self) -> Result<(), EndpointError> {
        let prefix_fits = |(address, prefix): &(IpAddr, u8)| {
            *prefix <= if address.is_ipv4() { 32 } else { 128 }
                && !address.is_multicast()
                && !address.is_unspecified()
        };
        let routers = |is_v4: bool| self.gateways.iter().filter(|one| one.is_ipv4() == is_v4).count();
        let wrong = if self.mac[0] & 1 != 0 || self.mac == [0; 6] {
            "the MAC address is no unicast address"
        } else if self.addresses.len() + usize::from(self.dhcp) > MAX_ADDRESSES {
            "there are more than 8 addresses"
        } else if !self.addresses.iter().all(prefix_fits) {
            "an address is no unicast address, or its prefix is longer than it is"
        } else if routers(true) > 1 || routers(false) > 1 {
            "there is more than one gateway of a family"
        } else if !(1280..=9000).contains(&self.mtu) {
            "the MTU is not in 1280 to 9000"
        } else if !(4 << 10..=16 << 20).contains(&self.buffer) {
            "the buffer is not in 4 KiB to 16 MiB"
        } else {
            return Ok(());
        };
        Err(EndpointError::Setting(wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_their_range_are_refused() {
        let sound = Settings::at("10.0.0.1".parse().unwrap(), 24);
        assert!(sound.check().is_ok());
        let address = sound.addresses[0];
        let wrong = [
            Settings {
                mac: [1; 6],
                ..sound.clone()
            },
            Settings {
                mac: [0; 6],
                ..sound.clone()
            },
            Settings {
                addresses: vec![address; 9],
                ..sound.clone()
            },
            Settings {
                dhcp: true,
                addresses: vec![address; 8],
                ..sound.clone()
            },
            Settings {
                addresses: vec![(address.0, 33)],
                ..sound.clone()
            },
            Settings {
                addresses: vec![("224.0.0.1".parse().unwrap(), 4)],
                ..sound.clone()
            },
            Settings {
                gateways: vec![address.0; 2],
                ..sound.clone()
            },
            Settings {
                mtu: 1279,
                ..sound.clone()
            },
            Settings {
                buffer: 0,
                ..sound.clone()
            },
        ];
        for settings in wrong {
            assert!(
                matches!(settings.check(), Err(EndpointError::Setting(_))),
                "{settings:?}"
            );
        }
    }
}
