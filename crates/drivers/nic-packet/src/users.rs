//! Other devices that have a device: what is made its own by them cannot be a switch's, too.

use crate::netlink::{Link, Netlink};
use crate::{NicError, check_name};

/// Kinds of devices that lie on top of another one, and take frames from it. A veth has a peer instead.
const ON_TOP: [&str; 6] = ["macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "macsec"];

/// Devices of the calling thread's namespace that have the device of this name, with their kinds: the bridge,
/// bond or the like of which it is a port, and those that lie on top of it, as `bridge br0`.
///
/// # Errors
///
/// There is no device of this name, or the kernel refused.
pub fn users_of(name: &str) -> Result<Vec<String>, NicError> {
    check_name(name)?;
    let mut netlink = Netlink::new()?;
    let link = netlink
        .link(name)?
        .ok_or_else(|| NicError::Missing(name.into()))?;
    Ok(users(&link, &netlink.links()?))
}

fn users(device: &Link, all: &[Link]) -> Vec<String> {
    let has = |other: &&Link| {
        let is_master = device.master != 0 && other.index == device.master;
        is_master || (other.lower == Some(device.index) && ON_TOP.contains(&&*other.kind))
    };
    let named = |other: &Link| format!("{} {}", other.kind, other.name).trim().to_owned();
    all.iter().filter(has).map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_and_devices_on_top_have_a_device_and_peers_do_not() {
        let link = |index: u32, name: &str, kind: &str, lower| Link {
            index,
            name: name.into(),
            kind: kind.into(),
            lower,
            ..Link::default()
        };
        let device = Link {
            master: 2,
            ..link(1, "eth1", "", None)
        };
        let all = [
            device.clone(),
            link(2, "br0", "bridge", None),
            link(3, "mv0", "macvlan", Some(1)),
            link(4, "mv1", "macvlan", Some(9)),
            link(5, "veth0", "veth", Some(1)),
        ];
        assert_eq!(users(&device, &all), ["bridge br0", "macvlan mv0"]);
        assert!(users(&all[4], &all).is_empty());
        assert!(users_of("no-such-thing").is_err());
    }
}
