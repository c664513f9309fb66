//! Network interfaces of the host as file descriptors that carry frames with virtio-net headers.
//!
//! Two kinds: [`Tap`], a device of our own whose other end is the host's network stack, or a container's,
//! and [`Uplink`], a packet socket on a device that exists already. This crate finds, creates and configures
//! them; another process may have the descriptors and the memory, and move frames ([`PacketSocket`],
//! [`set_tap_offloads`]). Every frame is preceded by a
//! virtio-net header of [`VNET_HEADER_LEN`] bytes, little endian (a packet socket on an old kernel omits
//! the last two, see [`Uplink::header_len`]).
//!
//! | module | contents |
//! |---|---|
//! | `tap`, `settings` | TAP devices, and what changes while one is in use |
//! | `uplink`, `receive_ring`, `vlan_tag` | packet sockets on existing interfaces; frames that arrive there |
//! | `fan_out` | sockets beside an uplink's, which get the frames for some addresses |
//! | `hiding` | keeping what arrives at a device from the host's stack |
//! | `veth` | veth pairs, with TAPs behind the switch's ends |
//! | `placeholder`, `owner` | TAPs that stand for ports at the host; whose a device is |
//! | `watch`, `addresses`, `device_state` | changes of interfaces; their addresses; what has passed through |
//! | `routes`, `users` | routes through an interface; other devices that have it |
//! | `netlink`, `namespace` | requests of route netlink; a function in another namespace |
//!
//! Interfaces are set up through route netlink, with the few messages that it takes built by hand.
//! Failures leave nothing behind: a TAP becomes persistent only as the last step of its setup.
//!
//! All functions may block for as long as the kernel takes; any thread may call.

mod addresses;
mod device_state;
mod fan_out;
mod hiding;
mod namespace;
mod netlink;
mod owner;
mod placeholder;
mod receive_ring;
mod routes;
mod settings;
mod tap;
mod uplink;
mod users;
mod veth;
mod vlan_tag;
mod watch;

pub use addresses::{Addresses, addresses_of};
pub use device_state::{DeviceState, device_states};
pub use fan_out::FanOut;
pub use hiding::{Hiding, Otherwise, load_hiding_program, open_hidden, show};
pub use owner::Owner;
pub use placeholder::PlaceholderTaps;
pub use receive_ring::{Front, ReceiveRing};
pub use routes::{Route, add_routes, routes};
pub use tap::{Offloads, Tap, TapSpec, set_tap_offloads};
pub use uplink::{CONTROL_LEN, PacketSocket, Uplink, vlan_tag};
pub use users::users_of;
pub use veth::{Veth, VethMeans};
pub use vlan_tag::VlanTag;
pub use watch::{LinkEvent, LinkState, LinkWatch};

use std::io;

/// Bytes in front of each frame (VIRTIO 1.2, 5.1.6, with `num_buffers`).
pub const VNET_HEADER_LEN: usize = 12;

/// Why an interface could not be opened. The texts are for users.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// Not a name the kernel would take literally.
    #[error("'{0}' is not an interface name: 1 to 15 bytes without '/', ':', '%' and blanks")]
    BadName(String),
    /// The namespace cannot be entered.
    #[error("network namespace {path}: {source}")]
    Namespace {
        /// Where it was looked for.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// There is no such interface.
    #[error("there is no interface '{0}'")]
    Missing(String),
    /// The name belongs to an interface that is no TAP.
    #[error("interface '{name}' exists and is {found}, not a TAP")]
    NotATap {
        /// The interface.
        name: String,
        /// What it is.
        found: String,
    },
    /// The name belongs to another interface.
    #[error("there is an interface '{0}' already: remove it, or choose another name")]
    Taken(String),
    /// Another process has it open.
    #[error("TAP '{0}' is in use by another process or port")]
    Busy(String),
    /// Another instance of the switch has made it.
    #[error(
        "interface '{name}' was made by the instance in {owner}: if that is no more, `ip link delete {name}` removes it"
    )]
    Foreign {
        /// The interface.
        name: String,
        /// Run directory of the instance that has it.
        owner: String,
    },
    /// The interface is a port of a bridge or the like already.
    #[error("interface '{0}' is another device's port: `ip link set {0} nomaster` ends that")]
    Owned(String),
    /// The program that hides the interface is there by a link of another process, which does not close it.
    #[error("interface '{0}' is hidden by a process that does not end")]
    Held(String),
    /// The interface is administratively down.
    #[error("interface '{0}' is down")]
    Down(String),
    /// The kernel refused.
    #[error("{what}: {source}")]
    Refused {
        /// What was being done.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

impl NicError {
    fn refused(what: impl Into<String>, source: impl Into<io::Error>) -> NicError {
        NicError::Refused {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// Index and MTU of an interface in the calling thread's namespace.
///
/// # Errors
///
/// There is none of this name, or the kernel does not say.
pub fn index_and_mtu(name: &str) -> Result<(u32, u32), NicError> {
    check_name(name)?;
    let link = netlink::Netlink::new()?.link(name)?;
    let link = link.ok_or_else(|| NicError::Missing(name.into()))?;
    Ok((link.index, link.mtu))
}

/// The index of an interface in the calling thread's namespace; `None` if there is none of this name.
pub fn interface_index(name: &str) -> Result<Option<u32>, NicError> {
    check_name(name)?;
    let link = netlink::Netlink::new()?.link(name)?;
    Ok(link.map(|link| link.index))
}

/// Accepts names that the kernel accepts (`dev_valid_name`), except for patterns, which it would expand.
fn check_name(name: &str) -> Result<(), NicError> {
    let odd =
        |byte: u8| byte == b'/' || byte == b':' || byte == b'%' || byte == 0 || byte.is_ascii_whitespace();
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name == "." || name == ".." || name.bytes().any(odd)
    {
        return Err(NicError::BadName(name.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_literally_or_not_at_all() {
        for good in ["eth0", "a", "fifteen-bytes-x", "tap.1", "ü"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "tap%d",
            "a/b",
            "a b",
            "a:0",
            "sixteen-bytes-xx",
            "a\0",
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
