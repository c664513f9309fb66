//! What became of stations since somebody asked, within a bound.

use super::mac_table::Station;
use flow::PortId;

/// Notes that are kept until they are taken. They are taken each time that messages were served, so more of
/// them come at once only from ports that flood.
const KEPT: usize = 256;

/// A station came to a port, or left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// Which one.
    pub station: Station,
    /// Which port.
    pub port: PortId,
    /// Whether the station left.
    pub has_left: bool,
    /// Whether the station is at other ports as well.
    pub is_contested: bool,
}

/// Notes that were not taken yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// The oldest first.
    pub kept: Vec<Note>,
    /// How many there were besides.
    pub left_out: u64,
}

impl Notes {
    /// Adds one, or counts it.
    pub fn add(&mut self, note: Note) {
        if self.kept.len() < KEPT {
            self.kept.push(note);
        } else {
            self.left_out += 1;
        }
    }

    /// Takes all, if there are some.
    pub fn take(&mut self) -> Option<Notes> {
        (!self.kept.is_empty()).then(|| std::mem::take(self))
    }
}
