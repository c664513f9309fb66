//! Placeholders that are TAPs, in the namespace of the calling thread.
//!
//! They are persistent, as all our TAPs: a new glue process takes over those of the one before, with index and MTU.

use crate::placeholder::{Placeholders, address};
use nic_packet::{NicError, Tap, interface_index};
use ovs_netlink::Errno;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub struct TapPlaceholders {
    taps: BTreeMap<String, Tap>,
}

impl Placeholders for TapPlaceholders {
    fn create(&mut self, name: &str) -> Result<u32, Errno> {
        if self.taps.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let tap = Tap::open_placeholder(name, address(name)).map_err(|error| refusal(&error))?;
        let index = interface_index(name).ok().flatten().ok_or(Errno::ENODEV)?;
        self.taps.insert(name.to_owned(), tap);
        Ok(index)
    }

    fn remove(&mut self, name: &str) {
        if let Some(tap) = self.taps.remove(name)
            && let Err(error) = tap.remove()
        {
            log::warn!("placeholder '{name}' stays: {error}");
        }
    }

    fn index(&mut self, name: &str) -> Option<u32> {
        interface_index(name).ok().flatten()
    }

    fn set_carrier(&mut self, name: &str, up: bool) -> Result<(), Errno> {
        let tap = self.taps.get(name).ok_or(Errno::ENODEV)?;
        tap.set_carrier(up).map_err(|error| refusal(&error))
    }
}

/// The error number that ovs-vswitchd is told. The text goes to the log.
fn refusal(error: &NicError) -> Errno {
    log::warn!("placeholder: {error}");
    match error {
        NicError::BadName(_) => Errno::EINVAL,
        NicError::NotATap { .. } | NicError::Busy(_) => Errno::EEXIST,
        NicError::Missing(_) => Errno::ENODEV,
        NicError::Refused { source, .. } => source.raw_os_error().map_or(Errno::EINVAL, Errno),
        _ => Errno::EINVAL,
    }
}
