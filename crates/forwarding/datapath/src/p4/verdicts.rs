//! Verdicts of programs that a thread keeps, and when it makes one.
//!
//! To make a verdict, a packet runs while it is noted what decides, which takes tens of times as long as a
//! plain run. So a thread keeps account for each P4 switch: found verdicts save the time of a run, and their
//! making costs what it was measured to cost. A new one is made as long as what was saved covers it. What
//! packets without a verdict cost adds an eighth of it, so a program whose packets are all different, or
//! whose entries change all the time, loses no more than that, and a change for the better is noticed.
//!
//! A thread that loses its core while it makes a verdict takes that for the cost of one, up to [`MOST_NS`].

use super::P4Key;
use p4_interpreter::{Mask, Verdict, Verdicts};
use std::collections::BTreeMap;
use vnic::BURST;

/// What a P4 switch may cost in advance, and have saved at most, in nanoseconds.
const CREDIT_NS: i64 = 2_000_000;

/// The part of a run without a verdict that may be spent on making one is one divided by this.
const PART: i64 = 8;

/// Longest time that making a verdict is taken for, in nanoseconds.
const MOST_NS: i64 = 1_000_000;

/// Time of a run before one was measured, in nanoseconds.
const USUAL_NS: i64 = 200;

/// P4 switches with an account at most; beyond that all begin anew.
const MOST_SWITCHES: usize = 1024;

/// The place of no verdict.
pub(super) const NONE: u32 = u32::MAX;

/// Places of the verdicts about a burst's packets.
pub(super) type Places = [u32; BURST];

/// A thread's verdicts, of all P4 switches.
#[derive(Default)]
pub(crate) struct KeptVerdicts {
    verdicts: Verdicts,
    accounts: BTreeMap<P4Key, Account>,
}

/// A P4 switch's verdicts.
pub(super) struct Own<'a> {
    pub verdicts: &'a mut Verdicts,
    pub account: &'a mut Account,
}

pub(super) struct Account {
    /// The version whose verdicts these are.
    version: u64,
    pub mask: Mask,
    /// Time that was saved and not spent.
    balance_ns: i64,
    /// Average time of a run.
    run_ns: i64,
}

impl KeptVerdicts {
    /// Verdicts of a version of a P4 switch. Those of another version are not found any more.
    pub(super) fn of(&mut self, switch: P4Key, version: u64) -> Own<'_> {
        if self.accounts.len() >= MOST_SWITCHES && !self.accounts.contains_key(&switch) {
            self.accounts.clear();
        }
        let account = self
            .accounts
            .entry(switch)
            .or_insert_with(|| Account::new(version));
        if account.version != version {
            account.version = version;
            account.mask = Mask::default();
        }
        Own {
            verdicts: &mut self.verdicts,
            account,
        }
    }
}

#[cfg(test)]
impl KeptVerdicts {
    /// Has a P4 switch run for each packet.
    pub fn keep_none(&mut self, switch: P4Key) {
        let mut account = Account::new(0);
        account.balance_ns = i64::MIN / 2;
        self.accounts.insert(switch, account);
    }
}

impl Own<'_> {
    pub fn keep(&mut self, port: u16, head: &[u8], verdict: Verdict) {
        self.verdicts
            .keep(&mut self.account.mask, port.into(), head, verdict);
    }
}

impl Account {
    fn new(version: u64) -> Account {
        Account {
            version,
            mask: Mask::default(),
            balance_ns: CREDIT_NS,
            run_ns: USUAL_NS,
        }
    }

    /// Whether a verdict may be made.
    pub fn may_make(&self) -> bool {
        self.balance_ns >= 0
    }

    /// Charges the making of a verdict.
    pub fn charge(&mut self, took_ns: u64) {
        self.balance_ns -= i64::try_from(took_ns).unwrap_or(MOST_NS).min(MOST_NS);
    }

    /// Records how long a run took.
    pub fn record_run(&mut self, took_ns: u64) {
        let took_ns = i64::try_from(took_ns).unwrap_or(MOST_NS).min(MOST_NS);
        self.run_ns += (took_ns - self.run_ns) / 8;
    }

    /// Credits what verdicts have saved, and a part of what runs cost.
    pub fn credit(&mut self, found: usize, run: usize) {
        let (found, run) = (found as i64, run as i64);
        let saved_ns = found * self.run_ns + run * self.run_ns / PART;
        self.balance_ns = (self.balance_ns + saved_ns).min(CREDIT_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTED_NS: u64 = 20_000;

    fn spent(rounds: usize, found: usize, run: usize) -> usize {
        let mut account = Account::new(1);
        let mut made = 0;
        for _ in 0..rounds {
            if account.may_make() {
                account.charge(NOTED_NS);
                made += 1;
            }
            account.credit(found, run);
        }
        made
    }

    #[test]
    fn packets_that_all_differ_cost_an_eighth_more_at_most() {
        let (rounds, packets) = (100_000, 32);
        let runs_ns = rounds * packets * USUAL_NS as usize;
        let made_ns = spent(rounds, 0, packets) * NOTED_NS as usize;
        let most_ns = runs_ns / PART as usize + CREDIT_NS as usize + NOTED_NS as usize;
        assert!(made_ns <= most_ns, "{made_ns} {most_ns}");
        assert!(made_ns > most_ns / 2, "{made_ns}: changes are noticed");
    }

    #[test]
    fn what_verdicts_save_pays_for_others() {
        assert_eq!(spent(10_000, 128, 1), 10_000);
    }

    #[test]
    fn accounts_do_not_grow_and_outlive_versions() {
        let mut kept = KeptVerdicts::default();
        let key = |number| (flow::PortId(1).controller(), flow::P4Id(number));
        for number in 0..3 * MOST_SWITCHES as u32 {
            kept.of(key(number), 1);
        }
        assert!(kept.accounts.len() <= MOST_SWITCHES);
        kept.of(key(1), 1).account.charge(1_000);
        let own = kept.of(key(1), 2);
        assert_eq!(own.account.balance_ns, CREDIT_NS - 1_000);
    }
}
