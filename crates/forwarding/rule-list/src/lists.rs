//! All lists and sets of a data plane, with their bounds.

use crate::list::{Answer, RuleList};
use crate::refused::Refused;
use crate::sets::Sets;
use crate::{MAX_LISTS, MAX_LOGGING_RULES, MAX_RULES_OF_ALL};
use flow::{FlowKey, ListId, Unseen};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lists and the sets that they name. A set that a list names cannot go away, so no rule ever stands on a
/// set that is missing.
#[derive(Debug, Default)]
pub struct RuleLists {
    lists: BTreeMap<ListId, Arc<RuleList>>,
    sets: Sets,
    /// Rules of all lists.
    rules: usize,
    /// Rules of all lists that log.
    logging: usize,
}

impl RuleLists {
    /// Puts a list in the place of its former version, which is returned.
    ///
    /// # Errors
    ///
    /// A set that a rule names does not exist or has members of another kind, or there are too many lists
    /// or rules.
    pub fn put(&mut self, id: ListId, list: RuleList) -> Result<Option<Arc<RuleList>>, Refused> {
        let former = self.lists.get(&id);
        if former.is_none() && self.lists.len() == MAX_LISTS {
            return Err(Refused::TooManyLists);
        }
        let rules = self.rules - former.map_or(0, |former| former.rules().len()) + list.rules().len();
        if rules > MAX_RULES_OF_ALL {
            return Err(Refused::TooManyRulesOfAll);
        }
        let logging = self.logging - former.map_or(0, |former| logging(former)) + logging(&list);
        if logging > MAX_LOGGING_RULES {
            return Err(Refused::TooManyLoggingRules);
        }
        for (set, wanted) in list.sets() {
            let kind = self.sets.kind(set)?;
            if kind != wanted {
                return Err(Refused::WrongKind { set, kind });
            }
        }
        list.sets().for_each(|(set, _)| self.sets.count_list(set, 1));
        let former = self.lists.insert(id, Arc::new(list));
        if let Some(former) = &former {
            former.sets().for_each(|(set, _)| self.sets.count_list(set, -1));
        }
        (self.rules, self.logging) = (rules, logging);
        Ok(former)
    }

    /// Removes a list.
    pub fn remove(&mut self, id: ListId) -> Option<Arc<RuleList>> {
        let list = self.lists.remove(&id)?;
        list.sets().for_each(|(set, _)| self.sets.count_list(set, -1));
        self.rules -= list.rules().len();
        self.logging -= logging(&list);
        Some(list)
    }

    /// The list with this number.
    pub fn get(&self, id: ListId) -> Option<&Arc<RuleList>> {
        self.lists.get(&id)
    }

    /// All lists, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&ListId, &Arc<RuleList>)> {
        self.lists.iter()
    }

    /// What a list says about a packet. `None` if there is no such list, in which case the packet must not
    /// pass.
    pub fn look_up(&self, id: ListId, key: &FlowKey, unseen: Unseen) -> Option<Answer> {
        Some(self.get(id)?.look_up(&self.sets, key, unseen))
    }

    /// The sets.
    pub fn sets(&self) -> &Sets {
        &self.sets
    }

    /// The sets, to change them. What is done here keeps every set that a list names.
    pub fn sets_mut(&mut self) -> &mut Sets {
        &mut self.sets
    }
}

/// Rules of a list that log.
fn logging(list: &RuleList) -> usize {
    list.rules().iter().filter(|rule| rule.log).count()
}
