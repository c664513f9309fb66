//! Logs of rules: packets that a rule has decided about, on their way to the controller of its list.
//!
//! A rule that logs has a log of its own, bounded in records that wait and in records per second. Packets
//! beyond are counted, and the next record says how many there were. Logs with records are emptied in turns.
//! So a rule that matches a flood hides no packet of another rule, and is read no more often than that one.
//!
//! Numbers of logs are never used again: a decision that has just ended may still be applied by another
//! thread, and its packet is not to be noted for another rule.
//!
//! Safe direction of error: a packet that is counted as one without a record.

use crate::entry::RuleOrigin;
use flow::{ControllerId, ListId};
use pacing::{TokenBucket, Turns};
use parking_lot::{Mutex, RwLock};
use rule_list::{LogRecord, LoggedPacket};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Records of a rule that may come at once after a pause, and that may wait.
pub const RECORDS_AT_ONCE: u32 = 4;

/// Records of a rule per second.
pub const RECORDS_PER_SECOND: u32 = 1;

/// Time in which a log that has taken all it may is not asked again, in milliseconds.
const FULL_MS: u64 = 50;

/// All logs.
#[derive(Debug, Default)]
pub struct RuleLogs {
    logs: RwLock<HashMap<u32, Arc<RuleLog>>>,
    next: AtomicU32,
    /// Logs with records, by controller.
    ready: Mutex<[Turns<u32>; ControllerId::LIMIT as usize]>,
}

/// The log of one rule.
#[derive(Debug)]
struct RuleLog {
    list: ListId,
    rule: u32,
    origin: RuleOrigin,
    /// Until then it takes no record, in milliseconds of the callers' clock.
    full_until_ms: AtomicU64,
    /// Packets since the last record.
    skipped: AtomicU64,
    records: Mutex<Records>,
}

#[derive(Debug)]
struct Records {
    bucket: TokenBucket,
    waiting: VecDeque<LogRecord>,
}

impl RuleLogs {
    /// Makes a log for a rule, and returns its number.
    pub(crate) fn add(&self, list: ListId, origin: &RuleOrigin) -> u32 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let log = RuleLog {
            list,
            // Defaults have no log.
            rule: origin.number.unwrap_or_default(),
            origin: *origin,
            full_until_ms: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            records: Mutex::new(Records {
                bucket: TokenBucket::new(RECORDS_AT_ONCE, RECORDS_PER_SECOND),
                waiting: VecDeque::new(),
            }),
        };
        self.logs.write().insert(number, Arc::new(log));
        number
    }

    /// Removes a log, with records that nobody has taken.
    pub(crate) fn remove(&self, log: u32) {
        self.logs.write().remove(&log);
    }

    /// Whether the log takes a record of a packet now, which [`note`](Self::note) has to be called for. If
    /// not, the packet is counted.
    pub fn admit(&self, log: u32, now_ms: u64) -> bool {
        let logs = self.logs.read();
        let Some(log) = logs.get(&log) else {
            return false;
        };
        if log.full_until_ms.load(Ordering::Relaxed) <= now_ms {
            let mut records = log.records.lock();
            let has_room = records.waiting.len() < RECORDS_AT_ONCE as usize;
            if has_room && records.bucket.take(Duration::from_millis(now_ms)) {
                return true;
            }
            log.full_until_ms.store(now_ms + FULL_MS, Ordering::Relaxed);
        }
        log.skipped.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Notes a packet that was [admitted](Self::admit). True if the log's controller has to be told that
    /// there are records.
    pub fn note(&self, log: u32, packet: LoggedPacket) -> bool {
        let Some(found) = self.logs.read().get(&log).cloned() else {
            return false;
        };
        let record = LogRecord {
            list: found.list,
            rule: found.rule,
            verdict: found.origin.verdict,
            trial: found.origin.trial,
            packet,
            skipped: found.skipped.swap(0, Ordering::Relaxed),
        };
        found.records.lock().waiting.push_back(record);
        let mut ready = self.ready.lock();
        let Some(turns) = ready.get_mut(usize::from(found.list.controller().0)) else {
            return false;
        };
        let is_first = turns.is_empty();
        turns.add(log);
        is_first
    }

    /// Whether there are records for a controller.
    pub fn has_records(&self, of: ControllerId) -> bool {
        let ready = self.ready.lock();
        ready
            .get(usize::from(of.0))
            .is_some_and(|turns| !turns.is_empty())
    }

    /// Takes up to `most` records for a controller, one of each log in its turn.
    pub fn take(&self, of: ControllerId, most: usize) -> Vec<LogRecord> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let mut ready = self.ready.lock();
            let next = ready.get_mut(usize::from(of.0)).and_then(Turns::take);
            drop(ready);
            let Some(number) = next else { break };
            let Some(log) = self.logs.read().get(&number).cloned() else {
                continue;
            };
            let mut records = log.records.lock();
            taken.extend(records.waiting.pop_front());
            let has_more = !records.waiting.is_empty();
            if !has_more {
                // Rules that note seldom keep no room.
                records.waiting = VecDeque::new();
            }
            drop(records);
            if has_more {
                self.ready.lock()[usize::from(of.0)].add(number);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{FlowKey, Stage};
    use rule_list::Verdict;

    const OWNER: ControllerId = ControllerId::BUILT_IN;

    fn packet(number: u64) -> LoggedPacket {
        LoggedPacket {
            time_ns: number,
            stage: Stage::Ingress(0),
            key: FlowKey::default(),
            bytes: 64,
        }
    }

    fn log(logs: &RuleLogs, rule: u32) -> u32 {
        let origin = RuleOrigin {
            number: Some(rule),
            verdict: Verdict::Drop,
            trial: false,
            log: true,
        };
        logs.add(OWNER.list(7).unwrap(), &origin)
    }

    /// Offers packets, and returns for how many the controller had to be told.
    fn offer(logs: &RuleLogs, log: u32, packets: u64, now_ms: u64) -> usize {
        let told = (0..packets).filter(|number| logs.admit(log, now_ms) && logs.note(log, packet(*number)));
        told.count()
    }

    #[test]
    fn a_flood_against_one_rule_hides_no_packet_of_another() {
        let logs = RuleLogs::default();
        let (noisy, quiet) = (log(&logs, 1), log(&logs, 2));
        assert_eq!(offer(&logs, noisy, 1_000_000, 10_000), 1, "told once");
        offer(&logs, quiet, 1, 10_000);
        // Only the first two are read: a record of each rule.
        let taken = logs.take(OWNER, 2);
        let rules: Vec<u32> = taken.iter().map(|record| record.rule).collect();
        assert_eq!(rules, [1, 2]);
        assert_eq!(logs.take(OWNER, 100).len(), RECORDS_AT_ONCE as usize - 1);
        assert!(!logs.has_records(OWNER) && logs.take(OWNER, 100).is_empty());
        // What came without a record is in the next one.
        offer(&logs, noisy, 1, 12_000);
        let skipped: Vec<u64> = logs.take(OWNER, 9).iter().map(|it| it.skipped).collect();
        assert_eq!(skipped, [1_000_000 - u64::from(RECORDS_AT_ONCE)]);
    }

    #[test]
    fn what_nobody_reads_takes_no_more_room() {
        let logs = RuleLogs::default();
        let log = log(&logs, 1);
        for second in 0..100 {
            offer(&logs, log, 10, second * 1000);
        }
        assert_eq!(logs.take(OWNER, 1000).len(), RECORDS_AT_ONCE as usize);
    }

    #[test]
    fn a_rule_that_is_gone_notes_nothing_and_its_number_is_no_other_rules() {
        let logs = RuleLogs::default();
        let first = log(&logs, 1);
        offer(&logs, first, 1, 0);
        logs.remove(first);
        assert!(!logs.admit(first, 0) && !logs.note(first, packet(0)));
        assert!(logs.take(OWNER, 9).is_empty());
        assert_ne!(log(&logs, 2), first);
    }
}
