//! Network devices that stand for ports at the host.
//!
//! ovs-vswitchd looks at a port's network device for its index, address, MTU and link state, and uses the
//! datapath's local port by its device. A port of ours has no such device, so one is made in answer to the
//! request that makes the port. If a virtual machine is the port's other end, frames that the host sends into
//! the device reach nobody, so it is kept silent; otherwise the device itself is the other end, and is lent
//! to the process that forwards its packets. Until it is known which, it is down, and nothing passes.

use crate::datapath::DeviceSettings;
use ovs_netlink::Errno;
use rustix::fd::{BorrowedFd, OwnedFd};

/// The state of such a device, as the host's administrator or ovs-vswitchd has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// Interface index, in the namespace where the device is.
    pub index: u32,
    /// The namespace where it is, by its number in the glue's; `None`: in the glue's.
    pub namespace: Option<i32>,
    /// Whether it is administratively up, and its MTU in bytes. `None`: not known, as it is in another
    /// namespace.
    pub port: Option<DeviceSettings>,
}

/// Makes and removes such devices.
pub trait Placeholders {
    /// Makes the device, down, or takes over the one that an earlier process made; returns its interface
    /// index. `EEXIST` if the name is somebody else's.
    fn create(&mut self, name: &str) -> Result<u32, Errno>;
    /// Removes a device made here. No error if there is none.
    fn remove(&mut self, name: &str);
    /// The next device made here that has gone, though nobody removed it here: with the namespace where it
    /// was, or by an administrator.
    fn next_gone(&mut self) -> Option<String>;
    /// As [`Placeholders::create`], for a device that has gone.
    fn renew(&mut self, name: &str) -> Result<u32, Errno>;
    /// Has the kernel tell all who watch devices of a change of this one, which is down.
    fn announce(&mut self, name: &str);
    /// The interface index of any device of this name, whose changes are told from then on.
    fn index(&mut self, name: &str) -> Option<u32>;
    /// Whether the device shows a link, as the guest behind the port is connected or not. From now on it is
    /// silent, and up unless it was set down as such.
    fn set_carrier(&mut self, name: &str, up: bool) -> Result<(), Errno>;
    /// No change of a device that was not made here is told any more.
    fn forget(&mut self, name: &str);
    /// From now on the device is its port's other end: it shows a link, and the host speaks through it once
    /// it was set up. Returns its index and a descriptor of it, unless that was lent by an earlier process
    /// and is in use.
    fn lend(&mut self, name: &str) -> Result<(u32, Option<OwnedFd>), Errno>;
    /// Readable when [`Placeholders::next_change`] or [`Placeholders::next_gone`] may have something to say.
    fn changes(&self) -> Option<BorrowedFd<'_>>;
    /// The next device made here that changed, and what it is now. The first change of each is that it was
    /// made.
    fn next_change(&mut self) -> Option<(String, DeviceState)>;
    /// Removes devices that an earlier process made and this one has not taken over; returns their number.
    /// Only such as are surely ours.
    fn remove_abandoned(&mut self) -> usize;
}

/// A locally administered address that depends on the name alone, so that the port keeps it when its device
/// is made again. ovs-vswitchd never gives such an address to a bridge.
pub fn address(name: &str) -> [u8; 6] {
    // FNV-1a: short names differ in few bits, and any address does as long as two ports rarely share it.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [_, _, _, a, b, c, d, e] = (hash ^ hash >> 32).to_be_bytes();
    [0x02, a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_depend_on_the_name_and_are_local() {
        assert_eq!(address("vm1"), address("vm1"));
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..10_000 {
            let address = address(&format!("vm{number}"));
            assert_eq!(address[0], 0x02, "unicast, locally administered");
            assert!(seen.insert(address), "vm{number}");
        }
    }
}
