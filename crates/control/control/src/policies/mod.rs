//! Policies as they run: rule lists and sets that the data plane has, and those that it should have.
//!
//! Crate `policy` says what is wanted; here is how the data plane gets there. Changes are *steps*, one
//! set or list each, and the next step begins when the one before was answered. A list that differs is
//! changed by its rules that differ. What a new data plane has is asked for first: lists outlive this
//! process, and a list with the wanted tag stays as it is.
//!
//! | order of steps | so that |
//! |---|---|
//! | sets, then lists that name them | no list names a set that is missing |
//! | lists, then filters of ports | no port's packets are dropped because its list is on the way |
//! | filters, then lists and sets that nobody needs | no port is without its list |
//!
//! A port that is new has its filters with the request that adds it. Until its lists are there, the data
//! plane lets nothing pass. What the data plane refuses stays as it was, and is a warning of `status`.
//!
//! Nothing is asked of a data plane as long as nothing is wanted and no port has a list.
//!
//! | module | contents |
//! |---|---|
//! | `held` | lists and sets, and the steps from those that are there to those that should be |
//! | `find` | what a new data plane has |
//! | `join` | requests and answers, ports' filters, users who wait |
//! | `tell` | lists and rules for users |
//! | `rule_log`, `records` | packets that rules noted, kept for users; how they come |

mod find;
mod held;
mod join;
mod records;
mod rule_log;
mod tell;

pub(crate) use rule_log::RuleLog;

use crate::data_plane::DataPlane;
use control_protocol::data_plane::Request;
use control_protocol::rules::{RuleAnswer, RuleRequest};
use find::Finding;
use flow::PortId;
use held::{Effect, Held, Step, Subject, Wanted};
use rule_list::{ListId, Member};
use std::collections::{BTreeMap, VecDeque};

/// Lists and sets on their way to the data plane.
#[derive(Debug, Default)]
pub(crate) struct PolicyRun {
    wanted: Wanted,
    /// What the data plane has; `None` while that is not known.
    held: Option<Held>,
    finding: Option<Finding>,
    steps: VecDeque<Step>,
    /// Steps are to be planned anew.
    is_stale: bool,
    current: Option<Current>,
    /// What was refused, until something else is wanted.
    refused: BTreeMap<Subject, String>,
}

/// Requests that are not answered.
#[derive(Debug)]
struct Current {
    unanswered: usize,
    /// Of a step that is about a list or set.
    effect: Option<Effect>,
    error: Option<String>,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Requests that are to be sent.
    Ask(Vec<RuleRequest>),
    /// Filters of ports are to be set, and [`PolicyRun::sent`] is to be told how many.
    Filters,
    /// Answers are missing.
    Wait,
    /// The data plane has what is wanted.
    Settled,
}

impl PolicyRun {
    /// Whether anything is wanted or known to be there.
    pub fn is_needed(&self) -> bool {
        !self.wanted.is_empty() || self.held.as_ref().is_some_and(|held| !held.is_empty())
    }

    /// Changes what is wanted.
    pub fn want(&mut self, wanted: Wanted) {
        if self.wanted != wanted {
            self.wanted = wanted;
            self.refused.clear();
        }
        self.is_stale = true;
    }

    /// The data plane is gone, with whatever it had.
    pub fn lose(&mut self) {
        self.held = None;
        self.finding = None;
        self.steps.clear();
        self.is_stale = true;
        self.current = None;
        self.refused.clear();
    }

    /// A port's number is free from now on: no rule about the port may hold for the next one with that
    /// number.
    pub fn forget_port(&mut self, port: PortId, data_plane: &mut DataPlane) {
        for (set, members) in self.held.iter_mut().flat_map(|held| &mut held.sets) {
            if members.remove_port(port) {
                let (set, remove, add) = (*set, vec![Member::Port(port)], Vec::new());
                data_plane
                    .client
                    .tell(Request::Rules(RuleRequest::SetChange { set, remove, add }));
            }
        }
    }

    /// Whether a list is as it is wanted, for users.
    pub fn state_of(&self, list: ListId) -> String {
        if let Some(error) = self.refused.get(&Subject::List(list)) {
            return format!("refused: {error}");
        }
        let tag = self.wanted.tag_of(list);
        let is_there = tag.is_some() && self.held.as_ref().and_then(|held| held.tag_of(list)) == tag;
        if is_there { "in force" } else { "on its way" }.into()
    }

    /// What was refused, for users.
    pub fn refused(&self) -> impl Iterator<Item = String> {
        self.refused.iter().map(|(subject, error)| {
            let name = self
                .wanted
                .name_of(*subject)
                .unwrap_or("that is not wanted any more");
            format!("policy {name}: the data plane refused it: {error}")
        })
    }

    /// What is to be done.
    pub fn next(&mut self) -> Next {
        if self.current.is_some() {
            return Next::Wait;
        }
        let Some(held) = &self.held else {
            if !self.is_needed() {
                return Next::Settled;
            }
            let request = self.finding.get_or_insert_default().request();
            self.sent(1);
            return Next::Ask(vec![request]);
        };
        if std::mem::take(&mut self.is_stale) {
            self.steps = held::steps(held, &self.wanted);
            self.steps
                .retain(|step| step.subject().is_none_or(|it| !self.refused.contains_key(&it)));
        }
        match self.steps.pop_front() {
            None => Next::Settled,
            Some(Step::Filters) => Next::Filters,
            Some(Step::Change { effect, requests }) => {
                self.current = Some(Current {
                    unanswered: requests.len(),
                    effect: Some(effect),
                    error: None,
                });
                Next::Ask(requests)
            }
        }
    }

    /// So many requests were sent that are no step's.
    pub fn sent(&mut self, requests: usize) {
        if requests > 0 {
            self.current = Some(Current {
                unanswered: requests,
                effect: None,
                error: None,
            });
        }
    }

    /// The data plane has answered one of the requests. Returns what was refused, if this was the last answer
    /// to a step of which anything was.
    pub fn answered(&mut self, answer: Result<Option<RuleAnswer>, String>) -> Option<String> {
        let current = self.current.as_mut()?;
        current.unanswered = current.unanswered.saturating_sub(1);
        match answer {
            Ok(answer) => {
                if let (Some(finding), Some(answer)) = (&mut self.finding, answer) {
                    finding.take(answer, &self.wanted);
                }
            }
            Err(error) => {
                // What follows the first error is refused for its sake.
                current.error.get_or_insert(error);
            }
        }
        if current.unanswered > 0 {
            return None;
        }
        let Current { effect, error, .. } = self.current.take()?;
        if let Some(finding) = &mut self.finding {
            if error.is_some() {
                finding.give_up();
            }
            if let Some(held) = finding.found() {
                self.held = Some(held);
                self.finding = None;
                self.is_stale = true;
            }
            return error;
        }
        match (effect, error, &mut self.held) {
            (Some(effect), None, Some(held)) => held.take(effect),
            (Some(effect), Some(error), _) => {
                let subject = effect.subject();
                let name = self.wanted.name_of(subject).unwrap_or("policy").to_owned();
                self.refused.insert(subject, error.clone());
                return Some(format!("{name}: {error}"));
            }
            (None, Some(error), _) => return Some(error),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests;
