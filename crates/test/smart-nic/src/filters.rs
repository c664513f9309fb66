//! Which frames come to which VI, and which a VI may send.

use accelerator::{Filter, FilterId, Match, MatchKinds};

/// Filters that there may be at once.
pub(crate) const FILTERS: usize = 64;

/// What there are filters for.
pub(crate) const KINDS: MatchKinds = MatchKinds {
    mac: true,
    vlan: true,
    tunnel: false,
    flow: false,
};

/// Where the addresses lie in a frame.
const DESTINATION: usize = 0;
const SOURCE: usize = 6;

/// Types of a tag: of a VLAN, and of tags that are no filter's.
const VLAN: u16 = 0x8100;
const OTHER_TAGS: [u16; 3] = [0x88a8, 0x9100, 0x9200];

/// From whom a VI may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// From everybody: the switch has decided about each frame.
    Any,
    /// From these addresses of a guest, and to nobody on this host.
    Only(Vec<Match>),
}

/// The address and VLAN for which a frame is, or from whom it is; `None` for frames that are too short or
/// have another tag.
pub fn address_of(frame: &[u8], is_source: bool) -> Option<Match> {
    let at = if is_source { SOURCE } else { DESTINATION };
    let mac: [u8; 6] = frame.get(at..at + 6)?.try_into().ok()?;
    let half = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    match half(12)? {
        VLAN => Some(Match::Vlan(mac, half(14)? & 0xfff)),
        kind if OTHER_TAGS.contains(&kind) => None,
        _ => Some(Match::Mac(mac)),
    }
}

/// The filters. Set by the control driver only.
#[derive(Debug, Default)]
pub struct Filters {
    all: Vec<(FilterId, Filter)>,
    last: u64,
}

impl Filters {
    /// Adds a filter; `None` if it cannot be, there is no room, or the frames are somebody's already.
    pub fn add(&mut self, filter: &Filter) -> Option<FilterId> {
        let is_free = self.queue_of(filter.what).is_none();
        if !KINDS.has(&filter.what) || !is_free || self.all.len() >= FILTERS {
            return None;
        }
        self.last += 1;
        let id = FilterId(self.last);
        self.all.push((id, *filter));
        Some(id)
    }

    /// Removes a filter, if there is one.
    pub fn remove(&mut self, id: FilterId) {
        self.all.retain(|(other, _)| *other != id);
    }

    /// Removes the filters of a VI.
    pub fn remove_all(&mut self, vi: u32) {
        self.all.retain(|(_, filter)| filter.queue != vi);
    }

    /// The VI that gets frames for an address.
    pub fn queue_of(&self, what: Match) -> Option<u32> {
        let found = self.all.iter().find(|(_, filter)| filter.what == what);
        found.map(|(_, filter)| filter.queue)
    }
}
