//! P4 switches as they run: the versions that the data plane has, and those that it should have.
//!
//! A version is bytes to this process; the data plane reads and checks them. What a new data plane has is
//! asked for first, since P4 switches outlive this process: one with the wanted tag stays as it is. Changes
//! are made one after the other, and the next one begins when the one before was answered.
//!
//! A version that differs from the one before in entries alone is its bytes and those of a batch of changes;
//! a data plane that has the one before gets the batch.
//!
//! A version that a user loads is on *trial* until the data plane has answered: only then is it the user's
//! intent, and ports are bound. When it is refused, nothing has changed. A port that is bound is no port of
//! the learning switch: it is disconnected there.
//!
//! | module | contents |
//! |---|---|
//! | `file` | programs of the configuration file |
//! | `join` | requests and answers, bindings of ports, users who wait |
//! | `links` | port maps changed, and ports of P4 switches joined |
//! | `stages` | P4 switches that become stages, or other ones |
//! | `devices` | the process for P4Runtime: what it may ask for |
//! | `tell` | P4 switches for users |

mod devices;
mod file;
mod join;
mod links;
mod stages;
mod tell;

pub(crate) use file::{differences, read};
pub(crate) use join::free_number;

use crate::intent::P4Intent;
use crate::users::Token;
use control_protocol::p4::{MAX_PIECE, P4Answer, P4Binding, P4CellWrite, P4Request};
use flow::P4Id;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// A program with its entries, as the data plane takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// By which the data plane's version is known.
    pub tag: u64,
    /// Most operations of a pass that it is allowed, if more than usual.
    operations: Option<u32>,
    bytes: Arc<[u8]>,
    last: Option<LastBatch>,
    /// Cells that get values when it comes into force first.
    writes: Vec<P4CellWrite>,
}

/// A batch of changes of entries at the end of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastBatch {
    /// The tag of the version without it, which the data plane may have.
    from: u64,
    /// Where it begins.
    start: usize,
}

/// P4 switches on their way to the data plane.
#[derive(Debug, Default)]
pub(crate) struct P4Run {
    wanted: BTreeMap<P4Id, Version>,
    /// Tags of the versions that the data plane has; `None` while that is not known.
    held: Option<BTreeMap<P4Id, u64>>,
    current: Option<Current>,
    /// What was refused, until something else is wanted.
    refused: BTreeMap<P4Id, String>,
    trial: Option<Trial>,
    /// Links that the data plane was told of; `None` while it was told of none.
    links: Option<Vec<[P4Binding; 2]>>,
}

/// Requests that are not answered.
#[derive(Debug)]
struct Current {
    unanswered: usize,
    effect: Effect,
    error: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    Found,
    Put(P4Id, u64),
    Removed(P4Id),
}

/// A version that a user loads.
#[derive(Debug)]
pub(crate) struct Trial {
    pub token: Token,
    pub name: String,
    pub intent: P4Intent,
    pub former: Option<Version>,
}

impl Version {
    pub fn new(bytes: Vec<u8>, operations: Option<u32>) -> Version {
        let mut hasher = DefaultHasher::new();
        (&bytes, operations).hash(&mut hasher);
        Version {
            tag: hasher.finish(),
            operations,
            bytes: bytes.into(),
            last: None,
            writes: Vec::new(),
        }
    }

    /// A version that the store has under its tag.
    pub fn stored(tag: u64, bytes: Vec<u8>, operations: Option<u32>) -> Version {
        Version {
            tag,
            operations,
            bytes: bytes.into(),
            last: None,
            writes: Vec::new(),
        }
    }

    /// The version with a further batch of changes of entries, which stands behind it.
    pub fn changed(&self, batch: &[u8], operations: Option<u32>) -> Version {
        let mut hasher = DefaultHasher::new();
        (self.tag, batch, operations).hash(&mut hasher);
        Version {
            tag: hasher.finish(),
            operations,
            bytes: [&self.bytes[..], batch].concat().into(),
            last: Some(LastBatch {
                from: self.tag,
                start: self.bytes.len(),
            }),
            writes: Vec::new(),
        }
    }

    /// The version, with cells that get values when it comes into force. It is another one then.
    pub fn with(mut self, writes: Vec<P4CellWrite>) -> Version {
        if !writes.is_empty() {
            let mut hasher = DefaultHasher::new();
            (self.tag, format!("{writes:?}")).hash(&mut hasher);
            self.tag = hasher.finish();
        }
        Version { writes, ..self }
    }

    /// The batch that makes this version of the one with a tag.
    fn batch_behind(&self, held: Option<u64>) -> Option<(u64, &[u8])> {
        let last = self.last.filter(|last| held == Some(last.from))?;
        Some((last.from, &self.bytes[last.start..]))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl P4Run {
    /// Wants a version from now on, or none.
    pub fn want(&mut self, switch: P4Id, version: Option<Version>) {
        self.refused.remove(&switch);
        match version {
            Some(version) => drop(self.wanted.insert(switch, version)),
            None => drop(self.wanted.remove(&switch)),
        }
    }

    /// Tries a version for a user. False if another one is on trial.
    pub fn begin_trial(
        &mut self,
        (token, name): (Token, String),
        intent: P4Intent,
        version: Version,
    ) -> bool {
        if self.trial.is_some() {
            return false;
        }
        let switch = P4Id(intent.number);
        let former = self.wanted.get(&switch).cloned();
        self.want(switch, Some(version));
        self.trial = Some(Trial {
            token,
            name,
            intent,
            former,
        });
        true
    }

    /// Ends the trial of a version that the data plane has already.
    pub fn take_settled(&mut self) -> Option<Trial> {
        let (wanted, held) = (&self.wanted, self.held.as_ref()?);
        self.trial.take_if(|trial| {
            let switch = P4Id(trial.intent.number);
            let tag = wanted.get(&switch).map(|version| version.tag);
            tag.is_some() && held.get(&switch).copied() == tag
        })
    }

    /// Ends a trial that failed.
    pub fn give_up(&mut self) -> Option<Token> {
        let trial = self.trial.take()?;
        self.want(P4Id(trial.intent.number), trial.former);
        Some(trial.token)
    }

    /// Whether a version is on trial.
    pub fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// The P4 switch of which a version is on trial.
    pub fn on_trial(&self) -> Option<P4Id> {
        self.trial.as_ref().map(|trial| P4Id(trial.intent.number))
    }

    /// P4 switches of which a version is wanted, or that the data plane has.
    pub fn numbers(&self) -> BTreeSet<P4Id> {
        let held = self.held.iter().flat_map(BTreeMap::keys);
        held.chain(self.wanted.keys()).copied().collect()
    }

    /// Whether the version that is wanted will be in force later.
    pub fn is_on_its_way(&self, switch: P4Id) -> bool {
        let wanted = self.wanted.get(&switch).map(|version| version.tag);
        let held = self.held.as_ref().and_then(|held| held.get(&switch)).copied();
        wanted.is_some() && wanted != held && !self.refused.contains_key(&switch)
    }

    /// The tag of the version that is wanted of a P4 switch.
    pub fn tag(&self, switch: P4Id) -> Option<u64> {
        self.wanted.get(&switch).map(|version| version.tag)
    }

    /// The version that is wanted of a P4 switch.
    pub fn wanted(&self, switch: P4Id) -> Option<&Version> {
        self.wanted.get(&switch)
    }

    /// The data plane is gone, with whatever it had.
    pub fn lose(&mut self) {
        self.held = None;
        self.links = None;
        self.current = None;
        self.refused.clear();
    }

    /// The next requests, if some are to be sent now.
    pub fn next(&mut self) -> Vec<P4Request> {
        if self.current.is_some() || self.held.is_none() && self.wanted.is_empty() {
            return Vec::new();
        }
        let Some((requests, effect)) = self.step() else {
            return Vec::new();
        };
        self.current = Some(Current {
            unanswered: requests.len(),
            effect,
            error: None,
        });
        requests
    }

    fn step(&self) -> Option<(Vec<P4Request>, Effect)> {
        let Some(held) = &self.held else {
            return Some((vec![P4Request::List], Effect::Found));
        };
        let differs = |(switch, version): &(&P4Id, &Version)| {
            held.get(switch) != Some(&version.tag) && !self.refused.contains_key(switch)
        };
        if let Some((&switch, version)) = self.wanted.iter().find(differs) {
            let mut requests = vec![P4Request::Begin { switch }];
            let allowed = version.operations;
            requests.extend(allowed.map(|operations| P4Request::Allow { switch, operations }));
            let batch = version.batch_behind(held.get(&switch).copied());
            let bytes = batch.map_or(&version.bytes[..], |(_, batch)| batch);
            requests.extend(bytes.chunks(MAX_PIECE).map(|piece| P4Request::Add {
                switch,
                bytes: piece.to_vec(),
            }));
            let is_tried = |trial: &Trial| P4Id(trial.intent.number) == switch;
            // A data plane that gets the version later begins with cells at zero anyway.
            if self.trial.as_ref().is_some_and(is_tried) && !version.writes.is_empty() {
                let writes = version.writes.clone();
                requests.push(P4Request::Set { switch, writes });
            }
            let tag = version.tag;
            requests.push(match batch {
                Some((from, _)) => P4Request::CommitChanges { switch, from, tag },
                None => P4Request::Commit { switch, tag },
            });
            return Some((requests, Effect::Put(switch, tag)));
        }
        let idle = held.keys().find(|switch| !self.wanted.contains_key(switch))?;
        Some((vec![P4Request::Delete { switch: *idle }], Effect::Removed(*idle)))
    }

    /// The data plane has answered one of the requests. Returns the trial that has ended with that, and how.
    pub fn answered(
        &mut self,
        answer: Result<Option<P4Answer>, String>,
    ) -> Option<Result<Trial, (Token, String)>> {
        let current = self.current.as_mut()?;
        current.unanswered = current.unanswered.saturating_sub(1);
        match answer {
            Ok(Some(P4Answer::Switches(switches))) => {
                self.held = Some(switches.iter().map(|info| (info.switch, info.tag)).collect());
            }
            // Cells are asked for by users.
            Ok(None | Some(P4Answer::Cells { .. })) => {}
            Err(error) => {
                // What follows the first error is refused for its sake.
                current.error.get_or_insert(error);
            }
        }
        if current.unanswered > 0 {
            return None;
        }
        let Current { effect, error, .. } = self.current.take()?;
        match (effect, error) {
            (Effect::Put(switch, tag), None) => {
                self.held.get_or_insert_default().insert(switch, tag);
                let trial = self.trial.take_if(|trial| P4Id(trial.intent.number) == switch);
                trial.map(Ok)
            }
            (Effect::Put(switch, _), Some(error)) => {
                if self
                    .trial
                    .as_ref()
                    .is_some_and(|trial| P4Id(trial.intent.number) == switch)
                {
                    return self.give_up().map(|token| Err((token, error)));
                }
                log::error!("P4 switch {switch}: {error}");
                self.refused.insert(switch, error);
                None
            }
            (Effect::Removed(switch), _) => {
                // A P4 switch that the data plane refuses to remove is not asked for again.
                self.held.get_or_insert_default().remove(&switch);
                None
            }
            (Effect::Found, Some(error)) => {
                log::error!("P4 switches of the data plane: {error}");
                self.held.get_or_insert_default();
                None
            }
            (Effect::Found, None) => None,
        }
    }

    /// Whether the data plane has what is wanted of a P4 switch, for users.
    pub fn state_of(&self, switch: P4Id) -> String {
        if let Some(error) = self.refused.get(&switch) {
            return format!("refused: {error}");
        }
        let Some(version) = self.wanted.get(&switch) else {
            return "lost: load it again".into();
        };
        let held = self.held.as_ref().and_then(|held| held.get(&switch));
        let is_there = held == Some(&version.tag);
        if is_there { "in force" } else { "on its way" }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control_protocol::p4::{P4Counts, P4Info};

    const ONE: P4Id = P4Id(1);

    fn info(switch: P4Id, tag: u64) -> P4Info {
        P4Info {
            switch,
            tag,
            operations: 1,
            memory: 1,
            counts: P4Counts::default(),
        }
    }

    fn found(run: &mut P4Run, switches: Vec<P4Info>) {
        assert_eq!(run.next(), [P4Request::List]);
        assert!(run.next().is_empty(), "one after the other");
        run.answered(Ok(Some(P4Answer::Switches(switches))));
    }

    fn all_done(run: &mut P4Run, requests: usize) -> Option<Result<Trial, (Token, String)>> {
        let mut answers = (0..requests).map(|_| run.answered(Ok(None)));
        answers
            .by_ref()
            .take(requests - 1)
            .for_each(|ended| assert!(ended.is_none()));
        answers.next().flatten()
    }

    #[test]
    fn a_version_that_is_there_stays_and_others_are_put_and_removed() {
        let version = Version::new(vec![7; MAX_PIECE + 1], Some(40_000));
        let mut run = P4Run::default();
        assert!(run.next().is_empty(), "nothing is asked while nothing is wanted");
        run.want(ONE, Some(version.clone()));
        found(&mut run, vec![info(ONE, version.tag)]);
        assert!(run.next().is_empty());
        run.lose();
        found(&mut run, vec![info(P4Id(9), 9)]);
        let requests = run.next();
        assert_eq!(requests.len(), 5, "two pieces");
        let operations = 40_000;
        assert_eq!(
            requests[1],
            P4Request::Allow {
                switch: ONE,
                operations
            }
        );
        assert_eq!(run.state_of(ONE), "on its way");
        all_done(&mut run, 5);
        assert_eq!(run.state_of(ONE), "in force");
        assert_eq!(run.next(), [P4Request::Delete { switch: P4Id(9) }]);
        all_done(&mut run, 1);
        assert!(run.next().is_empty());
    }

    #[test]
    fn a_data_plane_that_has_the_version_before_gets_the_changes_alone() {
        let first = Version::new(vec![1; 5], None);
        let second = first.changed(&[2, 2], None);
        assert_eq!(second.bytes(), [1, 1, 1, 1, 1, 2, 2]);
        assert_ne!(second.tag, first.changed(&[2, 3], None).tag);
        let mut run = P4Run::default();
        run.want(ONE, Some(second.clone()));
        found(&mut run, vec![info(ONE, first.tag)]);
        let bytes_of = |requests: &[P4Request]| match requests {
            [P4Request::Begin { .. }, P4Request::Add { bytes, .. }, _] => bytes.clone(),
            other => panic!("{other:?}"),
        };
        let requests = run.next();
        assert_eq!(bytes_of(&requests), [2, 2]);
        let (switch, from, tag) = (ONE, first.tag, second.tag);
        assert_eq!(requests[2], P4Request::CommitChanges { switch, from, tag });
        // Another data plane has neither.
        run.lose();
        found(&mut run, vec![]);
        let requests = run.next();
        assert_eq!(bytes_of(&requests), second.bytes());
        assert_eq!(requests[2], P4Request::Commit { switch, tag });
    }

    #[test]
    fn a_trial_that_fails_leaves_what_was_wanted() {
        let (good, bad) = (Version::new(vec![1], None), Version::new(vec![2], None));
        let mut run = P4Run::default();
        run.want(ONE, Some(good.clone()));
        found(&mut run, vec![info(ONE, good.tag)]);
        let intent = P4Intent {
            number: 1,
            ..P4Intent::default()
        };
        let user = |token| (token, "one".to_owned());
        assert!(run.begin_trial(user(Token::default()), intent.clone(), bad.clone()));
        assert!(!run.begin_trial(user(Token::default()), intent.clone(), bad));
        assert_eq!(run.next().len(), 3);
        assert!(run.answered(Ok(None)).is_none());
        assert!(run.answered(Ok(None)).is_none());
        let ended = run.answered(Err("too much".into()));
        assert!(matches!(ended, Some(Err((_, error))) if error == "too much"));
        assert!(run.next().is_empty(), "the former one is there");
        assert_eq!(run.wanted(ONE), Some(&good));
        let again = intent.clone();
        assert!(run.begin_trial(user(Token::default()), intent, Version::new(vec![3], None)));
        assert!(run.take_settled().is_none());
        run.next();
        assert!(matches!(all_done(&mut run, 3), Some(Ok(trial)) if trial.name == "one"));
        assert_eq!(run.wanted(ONE), Some(&Version::new(vec![3], None)));
        // What is there already is no work for the data plane.
        assert!(run.begin_trial(user(Token::default()), again, Version::new(vec![3], None)));
        assert!(run.next().is_empty() && run.take_settled().is_some() && !run.is_trying());
    }
}
