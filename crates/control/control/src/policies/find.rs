//! What a new data plane has: its lists, its sets, and the members of those sets that are wanted.
//!
//! Answers are not trusted: pages that are not in order, or hold more than there can be, end the search, and
//! what was found by then counts. What is missed that way is stated anew, or refused as being there already.

use super::held::{Held, HeldList, Members, Wanted};
use control_protocol::rules::{RuleAnswer, RuleRequest};
use rule_list::{ListId, MAX_LISTS, MAX_MEMBERS_PER_SET, MAX_SETS, Member, SetId};
use std::collections::VecDeque;

/// A search that goes on until all is known.
#[derive(Debug, Default)]
pub(crate) struct Finding {
    held: Held,
    at: At,
    /// Sets whose members are to be asked for.
    open: VecDeque<SetId>,
}

/// The page that is asked for.
#[derive(Debug, Default)]
enum At {
    #[default]
    Lists,
    ListsAfter(ListId),
    Sets,
    SetsAfter(SetId),
    Members(SetId, Option<Member>),
    Done,
}

impl Finding {
    /// The request for the next page.
    pub fn request(&self) -> RuleRequest {
        match &self.at {
            At::Lists => RuleRequest::Lists { after: None },
            At::ListsAfter(list) => RuleRequest::Lists { after: Some(*list) },
            At::Sets | At::Done => RuleRequest::Sets { after: None },
            At::SetsAfter(set) => RuleRequest::Sets { after: Some(*set) },
            At::Members(set, after) => RuleRequest::Members {
                set: *set,
                after: *after,
            },
        }
    }

    /// All that is known, when nothing is left to ask for.
    pub fn found(&mut self) -> Option<Held> {
        matches!(self.at, At::Done).then(|| std::mem::take(&mut self.held))
    }

    /// Ends the search.
    pub fn give_up(&mut self) {
        self.at = At::Done;
    }

    /// Takes a page.
    pub fn take(&mut self, answer: RuleAnswer, wanted: &Wanted) {
        self.at = match (&self.at, answer) {
            (At::Lists | At::ListsAfter(_), RuleAnswer::Lists { lists, more }) => {
                let last = lists.last().map(|info| info.list);
                let before = self.held.lists.len();
                for info in lists {
                    let list = wanted.list(info.list, info.tag);
                    self.held
                        .lists
                        .insert(info.list, HeldList { tag: info.tag, list });
                }
                let grows = (before + 1..=MAX_LISTS).contains(&self.held.lists.len());
                match last.filter(|_| more && grows) {
                    Some(last) => At::ListsAfter(last),
                    None => At::Sets,
                }
            }
            (At::Sets | At::SetsAfter(_), RuleAnswer::Sets { sets, more }) => {
                let last = sets.last().map(|info| info.set);
                let before = self.held.sets.len();
                for info in sets {
                    if wanted.kind_of(info.set) == Some(info.kind) && info.members > 0 {
                        self.open.push_back(info.set);
                    }
                    self.held.sets.insert(info.set, Members::none(info.kind));
                }
                let grows = (before + 1..=MAX_SETS).contains(&self.held.sets.len());
                match last.filter(|_| more && grows) {
                    Some(last) => At::SetsAfter(last),
                    None => self.next_set(),
                }
            }
            (At::Members(set, _), RuleAnswer::Members { members, more }) => {
                let set = *set;
                let last = members.last().copied();
                let mut grows = false;
                if let Some(known) = self.held.sets.get_mut(&set) {
                    members
                        .into_iter()
                        .for_each(|member| grows |= known.insert(member));
                    grows &= known.len() <= MAX_MEMBERS_PER_SET;
                }
                match last.filter(|_| more && grows) {
                    Some(last) => At::Members(set, Some(last)),
                    None => self.next_set(),
                }
            }
            _ => At::Done,
        };
    }

    fn next_set(&mut self) -> At {
        match self.open.pop_front() {
            Some(set) => At::Members(set, None),
            None => At::Done,
        }
    }
}
