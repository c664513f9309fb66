//! Placeholders that exist in memory only.

use ovs_glue::placeholder::{DeviceState, Placeholders};
use ovs_netlink::Errno;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, VecDeque};

/// See the module.
#[derive(Debug, Default)]
pub struct NoDevices {
    /// What [`Placeholders::next_change`] will say.
    pub changed: VecDeque<(String, DeviceState)>,
    /// Devices that [`Placeholders::next_gone`] will name.
    pub gone: VecDeque<String>,
    /// The links that were set last.
    pub carriers: BTreeMap<String, bool>,
    devices: BTreeMap<String, u32>,
    made: u32,
}

impl Placeholders for NoDevices {
    fn create(&mut self, name: &str) -> Result<u32, Errno> {
        if self.devices.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.made += 1;
        self.devices.insert(name.to_owned(), self.made);
        Ok(self.made)
    }

    fn remove(&mut self, name: &str) {
        self.devices.remove(name);
    }

    fn next_gone(&mut self) -> Option<String> {
        self.gone.pop_front()
    }

    fn renew(&mut self, name: &str) -> Result<u32, Errno> {
        self.devices.remove(name);
        self.create(name)
    }

    fn announce(&mut self, _: &str) {}

    fn index(&mut self, name: &str) -> Option<u32> {
        self.devices.get(name).copied()
    }

    fn set_carrier(&mut self, name: &str, up: bool) -> Result<(), Errno> {
        self.index(name).ok_or(Errno::ENODEV)?;
        self.carriers.insert(name.to_owned(), up);
        Ok(())
    }

    fn forget(&mut self, _: &str) {}

    fn lend(&mut self, name: &str) -> Result<(u32, Option<OwnedFd>), Errno> {
        Ok((self.index(name).ok_or(Errno::ENODEV)?, None))
    }

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_change(&mut self) -> Option<(String, DeviceState)> {
        self.changed.pop_front()
    }

    fn remove_abandoned(&mut self) -> usize {
        0
    }
}
