//! Settings of a TAP or of a veth pair's end that change while it is in use: hardware address, MTU,
//! addresses.
//!
//! Only what differs between two specifications is changed, so that whatever a user has set besides stays.
//! Routes stay, too, as far as the kernel allows. It forgets all IPv4 routes of an interface with its last
//! IPv4 address, and takes secondary addresses away with their primary one, so an address is never taken from
//! an interface before another one holds its place.

use crate::NicError;
use crate::netlink::{Change, Netlink};
use crate::tap::{Tap, TapSpec};
use std::io;
use std::net::IpAddr;

/// Prefix length of an IPv4 address that is in nobody's subnet, and so no secondary address.
const HOST_PREFIX: u8 = 32;

impl TapSpec {
    /// Hardware address of a device that is made now.
    pub(crate) fn first_mac(&self) -> Option<[u8; 6]> {
        self.mac.or(self.initial_mac)
    }
}

impl Tap {
    /// Changes the open device in place, from one specification of it to another.
    ///
    /// # Errors
    ///
    /// The device is gone, or the kernel refused. Settings may have changed in part.
    pub fn change(&self, old: &TapSpec, new: &TapSpec) -> Result<(), NicError> {
        self.where_it_is(|name| {
            let mut netlink = Netlink::new()?;
            let link = netlink.link(name)?;
            let index = link.ok_or_else(|| NicError::Missing(name.into()))?.index;
            change(&mut netlink, name, index, old, new)
        })
    }

    /// Configures a device that was just opened, and was `made` for that or existed before.
    pub(crate) fn configure(
        &self,
        netlink: &mut Netlink,
        index: u32,
        spec: &TapSpec,
        made: bool,
    ) -> Result<(), NicError> {
        let mac = if made { spec.first_mac() } else { spec.mac };
        set_link(netlink, self.name(), index, mac, spec.mtu)
    }
}

/// Changes an interface from one specification of it to another.
pub(crate) fn change(
    netlink: &mut Netlink,
    name: &str,
    index: u32,
    old: &TapSpec,
    new: &TapSpec,
) -> Result<(), NicError> {
    let mac = new.first_mac().filter(|_| new.first_mac() != old.first_mac());
    let mtu = new.mtu.filter(|_| new.mtu != old.mtu);
    set_link(netlink, name, index, mac, mtu)?;
    if new.addresses != old.addresses {
        set_addresses(netlink, name, index, &old.addresses, &new.addresses)?;
    }
    Ok(())
}

/// Sets hardware address and MTU, if given.
pub(crate) fn set_link(
    netlink: &mut Netlink,
    name: &str,
    index: u32,
    mac: Option<[u8; 6]>,
    mtu: Option<u16>,
) -> Result<(), NicError> {
    if mac.is_some() {
        let change = Change {
            mac,
            ..Change::default()
        };
        netlink
            .change(index, change)
            .map_err(refused(name, "setting the hardware address".into()))?;
    }
    if let Some(bytes) = mtu {
        let change = Change {
            mtu,
            ..Change::default()
        };
        netlink
            .change(index, change)
            .map_err(refused(name, format!("setting MTU {bytes}")))?;
    }
    Ok(())
}

/// Assigns the `wanted` addresses, and removes those of `stale` that are not wanted.
pub(crate) fn set_addresses(
    netlink: &mut Netlink,
    name: &str,
    index: u32,
    stale: &[(IpAddr, u8)],
    wanted: &[(IpAddr, u8)],
) -> Result<(), NicError> {
    let add = |netlink: &mut Netlink, addresses: &[(IpAddr, u8)]| {
        addresses.iter().try_for_each(|(address, prefix)| {
            netlink
                .add_address(index, *address, *prefix)
                .map_err(refused(name, format!("assigning {address}/{prefix}")))
        })
    };
    let remove = |netlink: &mut Netlink, addresses: &[(IpAddr, u8)]| {
        addresses.iter().try_for_each(|(address, prefix)| {
            netlink
                .delete_address(index, *address, *prefix)
                .map_err(refused(name, format!("removing {address}/{prefix}")))
        })
    };
    add(netlink, wanted)?;
    let stale: Vec<_> = stale
        .iter()
        .filter(|stale| !wanted.contains(stale))
        .copied()
        .collect();
    if !stale.iter().any(|(address, _)| address.is_ipv4()) {
        return remove(netlink, &stale);
    }
    let first = wanted.iter().find(|(address, _)| address.is_ipv4());
    let placeholder: Vec<_> = first
        .filter(|(_, prefix)| *prefix != HOST_PREFIX)
        .map(|(address, _)| (*address, HOST_PREFIX))
        .into_iter()
        .collect();
    add(netlink, &placeholder)?;
    remove(netlink, &stale)?;
    // Those that were secondary to a removed one went with it.
    add(netlink, wanted)?;
    remove(netlink, &placeholder)
}

fn refused(name: &str, what: String) -> impl FnOnce(io::Error) -> NicError + use<> {
    let what = format!("{name}: {what}");
    move |error| NicError::refused(what, error)
}
