//! Rule lists of policies with a name, which belong to the built-in controller, and which other controllers
//! give to their ports.
//!
//! Controllers do not speak with each other. Numbers of these lists follow from the name alone, so that
//! whoever knows the name knows the lists, be they there yet or not: as long as one is not, the data plane
//! lets nothing pass through its filter. Their numbers begin with a bit that is clear in those of all other
//! lists.

use crate::{ControllerId, Filter, Filters, ListId};

/// Filter of a port that its guards fill, for packets from the port.
pub const GUARDS: usize = 1;

/// Filter of a port that its access control list and security groups fill.
pub const ACLS: usize = 2;

/// Filter of a port that marks packets from the port.
pub const MARKS: usize = 3;

/// Bits by which the four lists of a policy differ.
const PART_BITS: u32 = 2;

/// The lists of a policy with a name. All four exist, or the policy does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedPolicy {
    /// Judges packets from the port, in filter [`GUARDS`].
    pub guards: ListId,
    /// Judges packets from the port, in filter [`ACLS`].
    pub from: ListId,
    /// Judges packets to the port, in filter [`ACLS`].
    pub to: ListId,
    /// Marks packets from the port, in filter [`MARKS`].
    pub marks: ListId,
}

impl NamedPolicy {
    /// Bits of the numbers of all other lists of the built-in controller.
    pub const OTHER_BITS: u32 = ControllerId::LIST_BITS - 1;

    /// The lists of the policy with this name. Two names may have the same ones.
    pub fn of(name: &str) -> NamedPolicy {
        // FNV-1a: the same in each process of each version.
        let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, add);
        let bits = NamedPolicy::OTHER_BITS - PART_BITS;
        // The last byte of a name changes the highest bits little: names often differ in a digit there.
        let hash = (hash ^ hash >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (hash >> (u64::BITS - bits)) as u32;
        let list = |part: u32| ListId(1 << NamedPolicy::OTHER_BITS | number << PART_BITS | part);
        NamedPolicy {
            guards: list(0),
            from: list(1),
            to: list(2),
            marks: list(3),
        }
    }

    /// Puts the lists into a port's filters.
    pub fn fill(&self, filters: &mut Filters) {
        filters.ingress[GUARDS] = Filter::Rules(self.guards);
        filters.ingress[ACLS] = Filter::Rules(self.from);
        filters.egress[ACLS] = Filter::Rules(self.to);
        filters.ingress[MARKS] = Filter::Rules(self.marks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stage;

    #[test]
    fn lists_follow_from_the_name_and_are_the_built_in_controllers() {
        let web = NamedPolicy::of("web");
        assert_eq!(web, NamedPolicy::of("web"));
        // Processes of different versions agree.
        assert_eq!(web.guards, ListId(0x00e8_82e8));
        let db = NamedPolicy::of("db");
        let web_lists = [web.guards, web.from, web.to, web.marks];
        let all = [&web_lists[..], &[db.guards, db.from, db.to, db.marks]].concat();
        for (place, list) in all.iter().enumerate() {
            assert_eq!(list.controller(), ControllerId::BUILT_IN);
            assert_eq!(list.0 >> NamedPolicy::OTHER_BITS, 1);
            assert!(!all[..place].contains(list));
        }
    }

    #[test]
    fn names_that_differ_little_have_lists_of_their_own() {
        let names = ["vm", "web-", "tenant-a-"].into_iter();
        let names = names.flat_map(|name| (0..100).map(move |number| format!("{name}{number}")));
        let lists: std::collections::BTreeSet<_> = names.map(|name| NamedPolicy::of(&name).to.0).collect();
        assert_eq!(lists.len(), 300);
    }

    #[test]
    fn guards_are_asked_before_the_rest() {
        let mut filters = Filters::of_flows(1, 1);
        let web = NamedPolicy::of("web");
        web.fill(&mut filters);
        let lists: Vec<_> = filters.lists(crate::PortId(3)).map(|(_, list)| list).collect();
        assert_eq!(lists, [web.guards, web.from, web.marks, web.to]);
        assert_eq!(Stage::first(&filters), Stage::Ingress(0), "limits come first");
    }
}
