//! The instance as this process sees it: devices, and the versions of their P4 switches.

use crate::failure::Done;
use control_protocol::Channel;
use control_protocol::p4::{P4Array, P4CellWrite};

/// A device of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number by which clients know it, not 0.
    pub id: u64,
    /// Name of the P4 switch.
    pub name: String,
    /// Tag of its version, if it has one.
    pub tag: Option<u64>,
}

/// Requests to the instance.
pub trait Switches {
    /// The devices of the configuration.
    ///
    /// # Errors
    /// The instance does not answer.
    fn devices(&mut self) -> Done<Vec<DeviceInfo>>;

    /// The tag of a device's version.
    ///
    /// # Errors
    /// The instance does not answer.
    fn tag(&mut self, name: &str) -> Done<Option<u64>> {
        let devices = self.devices()?;
        let device = devices.into_iter().find(|device| device.name == name);
        Ok(device.and_then(|device| device.tag))
    }

    /// The version of a P4 switch, with its tag.
    ///
    /// # Errors
    /// There is none, or the instance does not answer.
    fn fetch(&mut self, name: &str) -> Done<(u64, Vec<u8>)>;

    /// Puts a version in force, in place of the one with a tag; cells get values in that moment.
    ///
    /// # Errors
    /// The instance refuses it, or does not answer.
    fn put(&mut self, name: &str, bytes: &[u8], replaces: Option<u64>, writes: &[P4CellWrite]) -> Done<()>;

    /// Makes a batch of changes of entries ([`p4_ir::changes`]) in the version with a tag; cells get values
    /// in that moment.
    ///
    /// # Errors
    /// The instance refuses it, or does not answer.
    fn change(&mut self, name: &str, batch: &[u8], replaces: u64, writes: &[P4CellWrite]) -> Done<()>;

    /// Words of cells of a version's array, from a cell on, and the number of words of one. At least one cell
    /// if there is one.
    ///
    /// # Errors
    /// There is no such array, or the instance does not answer.
    fn cells(&mut self, version: (&str, u64), array: P4Array, from: u32) -> Done<(Vec<u64>, usize)>;

    /// Sets a cell.
    ///
    /// # Errors
    /// As [`cells`](Self::cells).
    fn set_cell(&mut self, version: (&str, u64), array: P4Array, cell: u32, words: Vec<u64>) -> Done<()>;

    /// Sets cells at once: each packet sees all of them as they were, or as they are to be.
    ///
    /// # Errors
    /// As [`cells`](Self::cells), and if they are too many; nothing has changed then.
    fn set_cells(&mut self, version: (&str, u64), writes: Vec<P4CellWrite>) -> Done<()>;

    /// A connection to the data plane, by which packets of a P4 switch come and go.
    ///
    /// # Errors
    /// There is no such P4 switch, or the instance does not answer.
    fn connect(&mut self, name: &str) -> Done<Channel>;
}
