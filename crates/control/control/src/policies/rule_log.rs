//! Packets that rules noted: the last ones of each rule.
//!
//! The data plane bounds how often a rule notes a packet. Here each rule keeps its last [`PER_RULE`] records,
//! and the rules that noted something last keep theirs. So neither a rule that notes much nor many rules take
//! more room.

use flow::ListId;
use management::{PolicyLog, PolicyRecord};
use std::collections::{HashMap, VecDeque};

/// Records that are kept of a rule.
const PER_RULE: usize = 8;

/// Rules of which records are kept.
const MAX_RULES: usize = 1024;

/// Records in an answer to a user.
const PER_PAGE: usize = 256;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct RuleLog {
    rules: HashMap<(ListId, u32), VecDeque<PolicyRecord>>,
    /// Number of the last record.
    last: u64,
}

impl RuleLog {
    /// Keeps a record, and gives it a number: the time in microseconds, so that numbers of a later control
    /// process are greater.
    pub fn keep(&mut self, rule: (ListId, u32), mut record: PolicyRecord, now_us: u64) {
        self.last = now_us.max(self.last + 1);
        record.number = self.last;
        if !self.rules.contains_key(&rule) && self.rules.len() == MAX_RULES {
            let last = |records: &VecDeque<PolicyRecord>| records.back().map(|record| record.number);
            let oldest = self.rules.iter().min_by_key(|(_, records)| last(records));
            if let Some(oldest) = oldest.map(|(rule, _)| *rule) {
                self.rules.remove(&oldest);
            }
        }
        let records = self.rules.entry(rule).or_default();
        if records.len() == PER_RULE {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// The first records behind the one with that number, or of all.
    pub fn page(&self, after: Option<u64>) -> PolicyLog {
        let all = self.rules.values().flatten();
        let mut records: Vec<&PolicyRecord> = all
            .filter(|record| after.is_none_or(|after| record.number > after))
            .collect();
        records.sort_by_key(|record| record.number);
        PolicyLog {
            more: records.len() > PER_PAGE,
            records: records.into_iter().take(PER_PAGE).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::tests::record;
    use super::*;

    #[test]
    fn each_rule_keeps_its_last_records_whatever_others_note() {
        let mut log = RuleLog::default();
        let list = ListId(1);
        log.keep((list, 7), record("quiet"), 5);
        (0..10_000).for_each(|_| log.keep((list, 8), record("noisy"), 6));
        let page = log.page(None);
        assert_eq!(page.records.len(), 1 + PER_RULE);
        assert_eq!(page.records[0].origin, "quiet");
        let numbers: Vec<u64> = page.records.iter().map(|record| record.number).collect();
        assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
        let last = numbers[PER_RULE];
        assert_eq!(log.page(Some(last)).records, []);
        assert_eq!(log.page(Some(last - 1)).records.len(), 1);
    }

    #[test]
    fn many_rules_take_no_more_room() {
        let mut log = RuleLog::default();
        (0..10_000).for_each(|rule| log.keep((ListId(1), rule), record("rule"), rule.into()));
        assert_eq!(log.rules.len(), MAX_RULES);
        let (mut seen, mut after) = (0, None);
        loop {
            let page = log.page(after);
            seen += page.records.len();
            after = page.records.last().map(|record| record.number);
            if !page.more {
                break;
            }
        }
        assert_eq!(seen, MAX_RULES);
        assert!(!log.rules.contains_key(&(ListId(1), 0)), "the oldest go");
    }
}
