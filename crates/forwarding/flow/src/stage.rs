//! Stages: the lists of flows in which a packet is looked up, in their order.

use crate::{ListId, PortId};
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

/// A place for a filter in the order of a port's stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Filter {
    /// No filter: packets go on to the next stage.
    #[default]
    Absent,
    /// Flows of the stage. A packet that matches none of them is a miss of the stage.
    Flows,
    /// A rule list. Packets that it allows go on to the next stage; as long as there is no such list, all are
    /// dropped as [`DropReason::NoRules`](crate::DropReason::NoRules).
    Rules(ListId),
}

impl Filter {
    /// Whether the filter is a rule list.
    pub fn is_rules(&self) -> bool {
        matches!(self, Filter::Rules(_))
    }
}

/// The filters of a port, by number. Most ports have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Filters {
    /// For packets that come from the port.
    pub ingress: [Filter; MAX_FILTERS as usize],
    /// For packets sent to the port.
    pub egress: [Filter; MAX_FILTERS as usize],
}

impl Filters {
    /// Filters that consist of flows, numbered from 0 on; [`MAX_FILTERS`] at most in each direction.
    pub fn of_flows(ingress: u8, egress: u8) -> Filters {
        let first = |count: u8| {
            let filter = |place| {
                if place < count.into() {
                    Filter::Flows
                } else {
                    Filter::Absent
                }
            };
            std::array::from_fn(filter)
        };
        Filters {
            ingress: first(ingress),
            egress: first(egress),
        }
    }

    /// The filter of a stage; absent for stages that are no filters.
    pub fn of_stage(&self, stage: Stage) -> Filter {
        let (filters, number) = match stage {
            Stage::Ingress(number) => (&self.ingress, number),
            Stage::Egress(_, number) => (&self.egress, number),
            Stage::Forward => return Filter::Absent,
        };
        filters.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// The first stage of packets sent to `port`, whose filters these are; `None` if it has no egress filter.
    pub fn first_egress(&self, port: PortId) -> Option<Stage> {
        next(&self.egress, 0).map(|number| Stage::Egress(port, number))
    }

    /// Whether an ingress filter is a rule list.
    pub fn has_ingress_rules(&self) -> bool {
        self.ingress.iter().any(Filter::is_rules)
    }

    /// Whether an egress filter is a rule list.
    pub fn has_egress_rules(&self) -> bool {
        self.egress.iter().any(Filter::is_rules)
    }

    /// The rule lists among the filters, each with its stage. `port` is the port whose filters these are.
    pub fn lists(&self, port: PortId) -> impl Iterator<Item = (Stage, ListId)> {
        let ingress = (0..)
            .zip(self.ingress)
            .map(|(number, filter)| (Stage::Ingress(number), filter));
        let egress = (0..).zip(self.egress);
        let egress = egress.map(move |(number, filter)| (Stage::Egress(port, number), filter));
        ingress.chain(egress).filter_map(|(stage, filter)| match filter {
            Filter::Rules(list) => Some((stage, list)),
            Filter::Absent | Filter::Flows => None,
        })
    }
}

/// The number of the first filter that is there, from `number` on.
fn next(filters: &[Filter], number: u8) -> Option<u8> {
    (number..MAX_FILTERS).find(|&number| filters[usize::from(number)] != Filter::Absent)
}

impl Stage {
    /// The first stage of packets from a port with these filters.
    pub fn first(filters: &Filters) -> Stage {
        next(&filters.ingress, 0).map_or(Stage::Forward, Stage::Ingress)
    }

    /// The stage that follows for packets from a port with these filters, as
    /// [`Action::Continue`](crate::Action::Continue) means it; `None` after forwarding and after the last
    /// egress filter. `filters` are those of the sender for ingress stages, and of the receiver for egress
    /// stages.
    pub fn next(self, filters: &Filters) -> Option<Stage> {
        match self {
            Stage::Ingress(number) => {
                Some(next(&filters.ingress, number.saturating_add(1)).map_or(Stage::Forward, Stage::Ingress))
            }
            Stage::Egress(port, number) => {
                next(&filters.egress, number.saturating_add(1)).map(|number| Stage::Egress(port, number))
            }
            Stage::Forward => None,
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
        let filters = Filters::of_flows(2, 2);
        assert_eq!(Stage::first(&Filters::default()), Stage::Forward);
        let mut seen = vec![Stage::first(&filters)];
        while let Some(next) = seen[seen.len() - 1].next(&filters) {
            seen.push(next);
        }
        assert_eq!(seen, [Stage::Ingress(0), Stage::Ingress(1), Stage::Forward]);
        let port = PortId(3);
        assert_eq!(filters.first_egress(port), Some(Stage::Egress(port, 0)));
        assert_eq!(
            Stage::Egress(port, 0).next(&filters),
            Some(Stage::Egress(port, 1))
        );
        assert_eq!(Stage::Egress(port, 1).next(&filters), None);
        assert!(!Stage::Ingress(MAX_FILTERS).is_valid());
        assert_eq!(Stage::Egress(port, u8::MAX).next(&filters), None);
    }

    #[test]
    fn places_without_a_filter_are_passed_over() {
        let (port, list) = (PortId(3), ListId(7));
        let mut filters = Filters::default();
        filters.ingress[1] = Filter::Rules(list);
        filters.ingress[3] = Filter::Flows;
        filters.egress[2] = Filter::Rules(list);
        let first = Stage::first(&filters);
        assert_eq!(
            (first, first.next(&filters)),
            (Stage::Ingress(1), Some(Stage::Ingress(3)))
        );
        assert_eq!(Stage::Ingress(3).next(&filters), Some(Stage::Forward));
        let egress = filters.first_egress(port);
        assert_eq!(egress, Some(Stage::Egress(port, 2)));
        assert_eq!(egress.and_then(|stage| stage.next(&filters)), None);
        assert_eq!(filters.of_stage(first), Filter::Rules(list));
        assert_eq!(filters.of_stage(Stage::Forward), Filter::Absent);
        let lists: Vec<_> = filters.lists(port).collect();
        assert_eq!(lists, [(Stage::Ingress(1), list), (Stage::Egress(port, 2), list)]);
    }
}
