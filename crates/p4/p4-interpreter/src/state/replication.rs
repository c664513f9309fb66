//! Multicast groups and clone sessions, which define the copies of a packet.

use super::State;
use crate::error::Error;
use std::sync::Arc;

/// A copy that a group or a clone session makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The port that it leaves by.
    pub port: u32,
    /// Number of the replica, which egress reads as `egress_rid`.
    pub rid: u16,
}

/// A clone session: the destinations of its clones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloneSession {
    /// The copies.
    pub replicas: Arc<[Replica]>,
    /// A multicast group, whose copies are made too.
    pub group: Option<u64>,
    /// Bytes that a clone is cut to.
    pub max_length: Option<usize>,
}

impl CloneSession {
    pub(crate) fn replicas(&self, state: &State) -> Arc<[Replica]> {
        let of_group = self.group.and_then(|group| state.group(group));
        match of_group {
            Some(group) if self.replicas.is_empty() => group,
            // The session has both. That is rare, and limits bound the length.
            Some(group) => group.iter().chain(self.replicas.iter()).copied().collect(),
            None => Arc::clone(&self.replicas),
        }
    }
}

impl State {
    pub(crate) fn group(&self, group: u64) -> Option<Arc<[Replica]>> {
        self.groups.read().get(&group).cloned()
    }

    pub(crate) fn session(&self, session: u64) -> Option<CloneSession> {
        self.sessions.read().get(&session).cloned()
    }

    /// Makes or replaces a multicast group. Group 0 means "none" and cannot be made.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], [`Error::Wrong`].
    pub fn set_group(&self, group: u64, replicas: &[Replica]) -> Result<(), Error> {
        if group == 0 {
            return Err(Error::Wrong {
                what: "multicast group",
                expected: "1 or more".into(),
            });
        }
        self.check_replicas(replicas)?;
        let mut groups = self.groups.write();
        if groups.len() >= self.limits.groups && !groups.contains_key(&group) {
            return Err(Error::Full {
                what: "multicast groups",
                limit: self.limits.groups,
            });
        }
        groups.insert(group, replicas.into());
        Ok(())
    }

    /// Removes a multicast group. False if there was none.
    pub fn remove_group(&self, group: u64) -> bool {
        self.groups.write().remove(&group).is_some()
    }

    /// Makes or replaces a clone session.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn set_session(&self, number: u64, session: CloneSession) -> Result<(), Error> {
        self.check_replicas(&session.replicas)?;
        let mut sessions = self.sessions.write();
        if sessions.len() >= self.limits.sessions && !sessions.contains_key(&number) {
            return Err(Error::Full {
                what: "clone sessions",
                limit: self.limits.sessions,
            });
        }
        sessions.insert(number, session);
        Ok(())
    }

    /// Removes a clone session. False if there was none.
    pub fn remove_session(&self, number: u64) -> bool {
        self.sessions.write().remove(&number).is_some()
    }

    fn check_replicas(&self, replicas: &[Replica]) -> Result<(), Error> {
        if replicas.len() > self.limits.replicas {
            return Err(Error::Full {
                what: "replicas",
                limit: self.limits.replicas,
            });
        }
        Ok(())
    }
}
