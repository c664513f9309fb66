//! The list that marks packets of a port that is not trusted with their priorities.
//!
//! | stated | packets from the port | get |
//! |---|---|---|
//! | `vlan-priority` | with a VLAN tag | that priority in the outer tag |
//! | `dscp` | of IPv4 and IPv6, behind up to two tags | that codepoint, in the place of their own |
//!
//! Packets that have neither pass as they are. What lies behind a third tag cannot be seen, so with `dscp`
//! such frames are dropped. The two bits behind the codepoint are the sender's: they tell of congestion
//! (RFC 3168). Untagged frames have no priority; the switch gives it to the tag that it adds.

use crate::lists::{List, Origin, Rules};
use crate::rules::{IPV4, IPV6};
use configuration::PortConfig;
use rule_list::{Marks, Match, Verdict, Vlan};

/// Priorities, in the order in which the list asks.
const HIDDEN: u32 = 3;
const BOTH: u32 = 2;
const DSCP: u32 = 1;
const TAGGED: u32 = 0;

const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// The list of a port, if it is not trusted.
pub(crate) fn list(port: &PortConfig) -> Option<List> {
    let marks = Marks {
        vlan_priority: port.vlan_priority.get(),
        dscp: port.dscp.get(),
    };
    if marks == Marks::default() {
        return None;
    }
    let mut rules = Rules::default();
    let of = |eth_type, vlan| Match {
        eth_type,
        vlan,
        ..Match::default()
    };
    let mut mark = |priority, matches, marks| {
        rules.add(priority, matches, Verdict::Mark(marks), Origin::Mark);
    };
    let tagged = Some(Vlan::Tagged);
    if let Some(dscp) = marks.dscp {
        let dscp = Marks {
            dscp: Some(dscp),
            ..Marks::default()
        };
        for kind in [IPV4, IPV6] {
            if marks.vlan_priority.is_some() {
                mark(BOTH, of(Some(kind), tagged), marks);
            }
            mark(DSCP, of(Some(kind), None), dscp);
        }
    }
    if marks.vlan_priority.is_some() {
        let priority = Marks { dscp: None, ..marks };
        mark(TAGGED, of(None, tagged), priority);
    }
    if marks.dscp.is_some() {
        for tag in TAGS {
            rules.add(HIDDEN, of(Some(tag), None), Verdict::Drop, Origin::Hidden);
        }
    }
    Some(rules.into_list(format!("marks: {marks}"), Verdict::Allow))
}
