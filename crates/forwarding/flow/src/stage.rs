//! Stages: the lists of flows in which a packet is looked up, in their order.

use crate::PortId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most ingress filters of a port, and most egress filters.
pub const MAX_FILTERS: u8 = 4;

/// A list of flows, by its place on a packet's way. A packet passes the ingress filters of the port it came
/// from, then [`Forward`](Self::Forward), then, for each port that it is sent to, that port's egress filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// An ingress filter by number, below [`MAX_FILTERS`].
    Ingress(u8),
    /// The forwarding stage, which decides where a packet goes.
    #[default]
    Forward,
    /// An egress filter of a port, by number.
    Egress(PortId, u8),
}

/// How many filters a port has. Most have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Filters {
    /// For packets that come from the port; at most [`MAX_FILTERS`].
    pub ingress: u8,
    /// For packets sent to it; at most [`MAX_FILTERS`].
    pub egress: u8,
}

impl Stage {
    /// The first stage of packets from a port with these filters.
    pub const fn first(filters: Filters) -> Stage {
        if filters.ingress > 0 {
            Stage::Ingress(0)
        } else {
            Stage::Forward
        }
    }

    /// The stage that follows for packets from a port with these filters, as
    /// [`Action::Continue`](crate::Action::Continue) means it; `None` after forwarding and after the last
    /// egress filter. `filters` are those of the sender for ingress stages, and of the receiver for egress
    /// stages.
    pub const fn next(self, filters: Filters) -> Option<Stage> {
        match self {
            Stage::Ingress(number) if number + 1 < filters.ingress => Some(Stage::Ingress(number + 1)),
            Stage::Ingress(_) => Some(Stage::Forward),
            Stage::Egress(port, number) if number + 1 < filters.egress => {
                Some(Stage::Egress(port, number + 1))
            }
            Stage::Forward | Stage::Egress(..) => None,
        }
    }

    /// Whether there may be such a stage.
    pub const fn is_valid(self) -> bool {
        match self {
            Stage::Ingress(number) => number < MAX_FILTERS,
            Stage::Forward => true,
            Stage::Egress(port, number) => port.0 < PortId::LIMIT && number < MAX_FILTERS,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Ingress(number) => write!(f, "ingress({number})"),
            Stage::Forward => f.write_str("forward"),
            Stage::Egress(port, number) => write!(f, "egress({port},{number})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_each_other_up_to_the_last() {
        let filters = Filters {
            ingress: 2,
            egress: 2,
        };
        assert_eq!(Stage::first(Filters::default()), Stage::Forward);
        let mut seen = vec![Stage::first(filters)];
        while let Some(next) = seen[seen.len() - 1].next(filters) {
            seen.push(next);
        }
        assert_eq!(seen, [Stage::Ingress(0), Stage::Ingress(1), Stage::Forward]);
        let port = PortId(3);
        assert_eq!(Stage::Egress(port, 0).next(filters), Some(Stage::Egress(port, 1)));
        assert_eq!(Stage::Egress(port, 1).next(filters), None);
        assert!(!Stage::Ingress(MAX_FILTERS).is_valid());
    }
}
