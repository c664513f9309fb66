//! The addresses of an interface, as the kernel has them.

use crate::netlink::Netlink;
use crate::tap::Tap;
use crate::{NicError, check_name};
use std::net::IpAddr;

/// Addresses of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Number of the interface in its network namespace.
    pub index: u32,
    /// Hardware address, if it is one of Ethernet.
    pub mac: Option<[u8; 6]>,
    /// Addresses of wider than link-local scope, with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Of a device of the host: other devices that have it ([`users_of`](crate::users_of)).
    pub users: Vec<String>,
}

/// Reads those of an interface in the calling thread's namespace.
///
/// # Errors
///
/// There is none of this name, or the kernel refused.
pub fn addresses_of(name: &str) -> Result<Addresses, NicError> {
    check_name(name)?;
    let mut netlink = Netlink::new()?;
    let link = netlink
        .link(name)?
        .ok_or_else(|| NicError::Missing(name.into()))?;
    Ok(Addresses {
        index: link.index,
        mac: link.mac,
        addresses: netlink.addresses(link.index)?,
        users: Vec::new(),
    })
}

impl Tap {
    /// Reads those of the open device, wherever it is.
    ///
    /// # Errors
    ///
    /// The device is gone, or the kernel refused.
    pub fn addresses(&self) -> Result<Addresses, NicError> {
        self.where_it_is(addresses_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_none_beyond_the_host() {
        let lo = addresses_of("lo").unwrap();
        assert_eq!((lo.index, lo.mac), (1, Some([0; 6])));
        assert!(addresses_of("no-such-thing").is_err());
    }
}
