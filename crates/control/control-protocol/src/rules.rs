//! Requests of a controller about rule lists and sets, and their answers.
//!
//! Lists belong to the controller whose number their numbers carry ([`ControllerId::list`]), and sets to the
//! controller that made them; rules name sets of their list's controller. Lists and sets outlive the
//! controller's process, and what is stated here of a controller's process is about the present one.
//!
//! A version of a list is made in a *draft*: [`Begin`](RuleRequest::Begin), any number of
//! [`Add`](RuleRequest::Add) and [`Remove`](RuleRequest::Remove), [`Commit`](RuleRequest::Commit). The former
//! version holds until the commit is answered, and when it is refused. From the answer on, every packet obeys
//! the new version, whatever thread forwards it. The same goes for changes of sets.
//!
//! Answers to commits and to changes of sets may come later than those to requests that were made behind
//! them, as large ones are made in pieces.
//!
//! | refused with | because |
//! |---|---|
//! | `EPERM` | the list belongs to another controller |
//! | `ENOENT` | there is no such list, set or draft |
//! | `EEXIST` | the set is there already, or the number of a rule is taken |
//! | `EBUSY` | a list names the set that is to go, or the list's commit is not answered yet |
//! | `E2BIG` | more rules, numbers or members than a request may have |
//! | `ENOSPC` | too many lists, rules, sets, members, or drafts |
//! | `EINVAL` | a rule or member that cannot be; the text says why, and names the rule by its number |

#[cfg(doc)]
use flow::ControllerId;
use flow::{FlowStats, ListId};
pub use rule_list::LogRecord;
use rule_list::{JudgedPackets, Member, Rule, SetId, SetKind, Verdict};
use serde::{Deserialize, Serialize};

/// Most rules, or numbers of rules, in a request.
pub const MAX_RULES_PER_REQUEST: usize = 256;

/// Most members that a request adds and removes, together.
pub const MAX_MEMBERS_PER_REQUEST: usize = 1024;

/// Most kinds of packets in an answer.
pub const MAX_JUDGED: usize = 64;

/// Most records of rules in a message.
pub const MAX_RECORDS: usize = 64;

/// Most drafts of a controller at a time.
pub const MAX_DRAFTS: usize = 8;

/// A request about rule lists or sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleRequest {
    /// Begins a draft of a version of the list, in the place of a draft that there may be. Answer: `Done`.
    Begin {
        /// The list, which need not exist.
        list: ListId,
        /// The rules of the draft at first.
        base: Base,
        /// What happens to packets that match no rule.
        default: Verdict,
    },
    /// Adds rules to the list's draft, behind those of equal priority. If it is refused, the draft is gone.
    /// Answer: `Done`.
    Add {
        /// The list.
        list: ListId,
        /// [`MAX_RULES_PER_REQUEST`] at most.
        rules: Vec<Rule>,
    },
    /// Removes rules from the list's draft. If there is no such rule, it is refused with `ENOENT`, and the
    /// draft is gone. Answer: `Done`.
    Remove {
        /// The list.
        list: ListId,
        /// Numbers of rules, [`MAX_RULES_PER_REQUEST`] at most.
        rules: Vec<u32>,
    },
    /// Makes a version of the list from its draft, and puts it in the former one's place. Rules of the same
    /// number and verdict keep their statistics. Answer: `Done`, when packets obey it.
    Commit {
        /// The list.
        list: ListId,
        /// Any number, for instance a hash of the rules, by which a later process of the controller knows the
        /// version ([`ListInfo`]).
        tag: u64,
    },
    /// Discards the list's draft; no error if there is none. Answer: `Done`.
    Discard {
        /// The list.
        list: ListId,
    },
    /// Removes the list; no error if there is none. Filters that name it let nothing pass. Answer: `Done`.
    Delete {
        /// The list.
        list: ListId,
    },
    /// Asks for a page of the controller's lists, in the order of their numbers. Answer:
    /// [`RuleAnswer::Lists`].
    Lists {
        /// Lists with higher numbers; all if `None`.
        after: Option<ListId>,
    },
    /// Asks for a page of a list's rules, in the order in which they are tried. Answer:
    /// [`RuleAnswer::Rules`].
    Rules {
        /// The list: any controller's.
        list: ListId,
        /// How many rules to pass over.
        from: u32,
    },
    /// Asks for kinds of packets that cached decisions of a list are about. Answer: [`RuleAnswer::Judged`].
    Judged {
        /// The list.
        list: ListId,
        /// Where to begin: 0, or what the answer before said.
        from: u32,
    },
    /// Makes a set without members. Answer: `Done`.
    SetAdd {
        /// The set.
        set: SetId,
        /// Kind of its members.
        kind: SetKind,
    },
    /// Changes members of a set, [`MAX_MEMBERS_PER_REQUEST`] at most; adding a member that is there, or
    /// removing one that is not, changes nothing. If it is refused, nothing has changed. Answer: `Done`, when
    /// packets obey it.
    SetChange {
        /// The set.
        set: SetId,
        /// Members that leave, before others come.
        remove: Vec<Member>,
        /// Members that come.
        add: Vec<Member>,
    },
    /// Removes a set that no list names; no error if there is none. Answer: `Done`.
    SetDel {
        /// The set.
        set: SetId,
    },
    /// Asks for a page of the controller's sets, in the order of their numbers. Answer: [`RuleAnswer::Sets`].
    Sets {
        /// Sets with higher numbers; all if `None`.
        after: Option<SetId>,
    },
    /// Asks for a page of a set's members, in an order of their own. Answer: [`RuleAnswer::Members`].
    Members {
        /// The set.
        set: SetId,
        /// Members behind this one, which need not be there; all if `None`.
        after: Option<Member>,
    },
}

/// The rules of a draft at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// None.
    Empty,
    /// The rules of the list's present version; refused with `ENOENT` if there is none.
    Present,
}

/// Results of requests about rule lists or sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleAnswer {
    /// To `Lists`.
    Lists {
        /// A page.
        lists: Vec<ListInfo>,
        /// There are more, after the last of these.
        more: bool,
    },
    /// To `Rules`.
    Rules {
        /// Packets that matched no rule.
        default: FlowStats,
        /// A page.
        rules: Vec<(Rule, FlowStats)>,
        /// There are more, behind these.
        more: bool,
    },
    /// To `Judged`.
    Judged {
        /// At most [`MAX_JUDGED`].
        packets: Vec<JudgedPackets>,
        /// How many kinds of packets are left out here.
        further: u32,
        /// Where to go on, if there are more.
        next: Option<u32>,
    },
    /// To `Sets`.
    Sets {
        /// A page.
        sets: Vec<SetInfo>,
        /// There are more, after the last of these.
        more: bool,
    },
    /// To `Members`.
    Members {
        /// A page.
        members: Vec<Member>,
        /// There are more, after the last of these.
        more: bool,
    },
}

/// A list as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListInfo {
    /// Number of the list.
    pub list: ListId,
    /// As given with the commit.
    pub tag: u64,
    /// What happens to packets that match no rule.
    pub default: Verdict,
    /// Number of rules.
    pub rules: u32,
}

/// A set as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetInfo {
    /// Number of the set.
    pub set: SetId,
    /// Kind of its members.
    pub kind: SetKind,
    /// Number of members.
    pub members: u32,
    /// Lists that name the set, once for each field.
    pub lists: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::{Answer, FromDataPlane, Request, ToDataPlane};
    use crate::{Channel, MAX_MESSAGE, encoded_len};
    use flow::PortId;
    use rule_list::{
        Addresses, ConnectionState, Fragment, IpPrefix, MacPrefix, Macs, Match, Ports, Range, TcpFlags,
        Transport, Vlan,
    };
    use std::net::{IpAddr, Ipv6Addr};

    const ADDRESS: IpPrefix = IpPrefix {
        address: IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
        len: 128,
    };
    const MAC: MacPrefix = MacPrefix {
        address: u64::MAX >> 16,
        len: 48,
    };

    /// No rule takes more bytes.
    fn longest_rule() -> Rule {
        Rule {
            number: u32::MAX,
            priority: u32::MAX,
            matches: Match {
                in_port: Some(Ports::One(PortId(u32::MAX))),
                eth_src: Some(Macs::Prefix(MAC)),
                eth_dst: Some(Macs::Prefix(MAC)),
                eth_type: Some(u16::MAX),
                vlan: Some(Vlan::Id(u16::MAX)),
                ip_src: Some(Addresses::Prefix(ADDRESS)),
                ip_dst: Some(Addresses::Prefix(ADDRESS)),
                ip_proto: Some(u8::MAX),
                fragment: Some(Fragment::Later),
                transport: Some(Transport::Ports {
                    source: Range::one(u16::MAX),
                    destination: Range::one(u16::MAX),
                }),
                tcp_flags: Some(TcpFlags {
                    value: u16::MAX,
                    mask: u16::MAX,
                }),
                nd_target: Some(ADDRESS),
                nd_sll: Some(MAC),
                nd_tll: Some(MAC),
                connection: Some(ConnectionState::Invalid),
            },
            verdict: Verdict::Reject,
            trial: true,
            log: true,
        }
    }

    #[test]
    fn the_longest_requests_fit_a_message_and_arrive_whole() {
        let list = ListId(u32::MAX);
        let set = SetId(u32::MAX);
        let (a, b) = Channel::pair().unwrap();
        for request in [
            RuleRequest::Add {
                list,
                rules: vec![longest_rule(); MAX_RULES_PER_REQUEST],
            },
            RuleRequest::Remove {
                list,
                rules: vec![u32::MAX; MAX_RULES_PER_REQUEST],
            },
            RuleRequest::SetChange {
                set,
                remove: vec![Member::Address(ADDRESS); MAX_MEMBERS_PER_REQUEST / 2],
                add: vec![Member::Mac(MAC); MAX_MEMBERS_PER_REQUEST / 2],
            },
        ] {
            let message = ToDataPlane {
                serial: u32::MAX,
                request: Request::Rules(request),
            };
            assert!(encoded_len(&message) < MAX_MESSAGE);
            a.send(&message, &[]).unwrap();
            assert_eq!(b.recv::<ToDataPlane>().unwrap().0, message);
        }
        let stats = FlowStats {
            packets: u64::MAX,
            bytes: u64::MAX,
            idle_ms: Some(u64::MAX),
            tcp_flags: u16::MAX,
        };
        let page = RuleAnswer::Rules {
            default: stats,
            rules: vec![(longest_rule(), stats); MAX_RULES_PER_REQUEST],
            more: true,
        };
        let message = FromDataPlane::Answer {
            serial: u32::MAX,
            result: Ok(Answer::Rules(page)),
        };
        assert!(encoded_len(&message) < MAX_MESSAGE);
        b.send(&message, &[]).unwrap();
        assert_eq!(a.recv::<FromDataPlane>().unwrap().0, message);
    }
}
