//! Which client of a device may write (specification, "Client Arbitration and Controller Replication").
//!
//! A client is a stream. Streams of a device are divided into roles; of each role the stream with the highest
//! election number that was ever seen is the *primary*, all others are backups. A primary that is gone leaves
//! no primary behind: its number stays the highest, so a backup has to ask with another one.
//!
//! The highest number of a role outlives its streams, and ends with the process.

use crate::failure::{Done, Failure};
use crate::proto::{Any, MasterArbitrationUpdate, Role, RoleConfig, Status, Uint128};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use tonic::Code;

/// Most roles of a device.
pub const MAX_ROLES: usize = 32;

/// Most streams of a role.
pub const MAX_STREAMS: usize = 16;

/// Most bytes of a role's name, and of its configuration.
const MAX_NAME: usize = 256;
const MAX_CONFIG: usize = 64 * 1024;

/// A client's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What a role may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    #[default]
    Full,
    /// What its configuration says.
    Part {
        /// Numbers of P4Info that it may write.
        writes: BTreeSet<u32>,
        /// Numbers of P4Info that it may read.
        reads: BTreeSet<u32>,
        /// Whether it may write multicast groups and clone sessions.
        replicates: bool,
        /// Whether it may set programs.
        sets_pipeline: bool,
        /// Whether it may send packets, and gets those of the program.
        has_packets: bool,
    },
}

impl Scope {
    /// Whether the role may write an object of P4Info.
    #[must_use]
    pub fn may_write(&self, id: u32) -> bool {
        match self {
            Scope::Full => true,
            Scope::Part { writes, .. } => writes.contains(&id),
        }
    }

    /// Whether the role may read an object of P4Info.
    #[must_use]
    pub fn may_read(&self, id: u32) -> bool {
        match self {
            Scope::Full => true,
            Scope::Part { writes, reads, .. } => writes.contains(&id) || reads.contains(&id),
        }
    }

    /// Whether the role may write multicast groups and clone sessions.
    #[must_use]
    pub fn may_replicate(&self) -> bool {
        match self {
            Scope::Full => true,
            Scope::Part { replicates, .. } => *replicates,
        }
    }

    /// Whether the role may set programs.
    #[must_use]
    pub fn may_set_pipeline(&self) -> bool {
        match self {
            Scope::Full => true,
            Scope::Part { sets_pipeline, .. } => *sets_pipeline,
        }
    }

    /// Whether the role may send packets, and gets those of the program.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        match self {
            Scope::Full => true,
            Scope::Part { has_packets, .. } => *has_packets,
        }
    }

    fn of(config: Option<&Any>) -> Done<Scope> {
        let Some(config) = config else {
            return Ok(Scope::Full);
        };
        if config.type_url != RoleConfig::TYPE_URL {
            return Err(Failure::invalid(format_args!(
                "a role's configuration is a {}",
                RoleConfig::TYPE_URL
            )));
        }
        if config.value.len() > MAX_CONFIG {
            return Err(Failure::invalid("the role's configuration is too long"));
        }
        let config = RoleConfig::decode(&config.value[..])
            .map_err(|error| Failure::invalid(format_args!("the role's configuration: {error}")))?;
        Ok(Scope::Part {
            writes: config.p4_ids.into_iter().collect(),
            reads: config.read_p4_ids.into_iter().collect(),
            replicates: config.may_replicate,
            sets_pipeline: config.may_set_pipeline,
            has_packets: config.has_packets,
        })
    }
}

/// The roles of a device.
#[derive(Debug, Default)]
pub struct Arbitration {
    roles: BTreeMap<String, Streams>,
}

/// Streams of a role.
#[derive(Debug, Default)]
struct Streams {
    /// As the last primary gave it.
    config: Option<Any>,
    scope: Scope,
    highest: Option<u128>,
    primary: Option<StreamId>,
    elections: BTreeMap<StreamId, Option<u128>>,
}

/// Messages for streams.
pub type Notices = Vec<(StreamId, MasterArbitrationUpdate)>;

impl Arbitration {
    /// A stream asks for a role of the device, again perhaps. Answers to all who have to know.
    ///
    /// # Errors
    /// The stream is to be ended with this.
    pub fn update(&mut self, stream: StreamId, update: &MasterArbitrationUpdate) -> Done<Notices> {
        let (name, config) = asked_role(update)?;
        let election = update.election_id.map(u128::from);
        self.admit(stream, name, election)?;
        let scope = Scope::of(config)?;
        let role = self.roles.entry(name.to_owned()).or_default();
        role.elections.insert(stream, election);
        let to_all = role.elect(stream, election, (config, scope));
        Ok(role.notices(update.device_id, name, (!to_all).then_some(stream)))
    }

    /// Refuses a stream that has another role, an election number that is taken, and what is too much.
    fn admit(&self, stream: StreamId, name: &str, election: Option<u128>) -> Done<()> {
        let mut roles = self.roles.iter();
        let own = roles.find(|(_, role)| role.elections.contains_key(&stream));
        if own.is_some_and(|(own, _)| own != name) {
            let text = "the stream has another role";
            return Err(Failure::new(Code::FailedPrecondition, text));
        }
        let Some(role) = self.roles.get(name) else {
            return match self.roles.len() < MAX_ROLES && name.len() <= MAX_NAME {
                true => Ok(()),
                false => Err(Failure::exhausted(
                    "the device has too many roles, or the role's name is too long",
                )),
            };
        };
        let taken = |(other, number): (&StreamId, &Option<u128>)| {
            election.is_some() && *other != stream && *number == election
        };
        if role.elections.iter().any(taken) {
            return Err(Failure::invalid(
                "another stream of the role has this election number",
            ));
        }
        if own.is_none() && role.elections.len() >= MAX_STREAMS {
            return Err(Failure::exhausted("the role has too many streams"));
        }
        Ok(())
    }

    /// A stream has ended. Messages for those that have to know.
    pub fn remove(&mut self, stream: StreamId, device: u64) -> Notices {
        let own = self
            .roles
            .iter_mut()
            .find(|(_, role)| role.elections.contains_key(&stream));
        let Some((name, role)) = own else {
            return Vec::new();
        };
        role.elections.remove(&stream);
        if role.primary != Some(stream) {
            return Vec::new();
        }
        role.primary = None;
        role.notices(device, name, None)
    }

    /// What the primary of a role may do, if the client that has this election number is it.
    ///
    /// # Errors
    /// There is no such role, or another client is its primary, or none.
    pub fn authorise(&self, role: &str, election: Option<Uint128>) -> Done<&Scope> {
        let found = self.roles.get(role);
        let found = match found {
            Some(found) => found,
            None if role.is_empty() => return Err(Failure::denied("no client is primary")),
            None => return Err(Failure::missing(format_args!("the device has no role {role:?}"))),
        };
        if found.primary.is_none() || election.map(u128::from) != found.highest {
            return Err(Failure::denied("the client is not the primary of its role"));
        }
        Ok(&found.scope)
    }

    /// What a role may do; whoever reads need not be a primary.
    ///
    /// # Errors
    /// There is no such role.
    pub fn scope(&self, role: &str) -> Done<&Scope> {
        const FULL: &Scope = &Scope::Full;
        match self.roles.get(role) {
            Some(found) => Ok(&found.scope),
            None if role.is_empty() => Ok(FULL),
            None => Err(Failure::missing(format_args!("the device has no role {role:?}"))),
        }
    }

    /// What the role may do whose primary the stream is.
    ///
    /// # Errors
    /// The stream is primary of no role.
    pub fn scope_of_primary(&self, stream: StreamId) -> Done<&Scope> {
        let role = self.roles.values().find(|role| role.primary == Some(stream));
        let role = role.ok_or_else(|| Failure::denied("the client is not the primary of its role"))?;
        Ok(&role.scope)
    }

    /// Primaries of roles that may have something.
    pub fn receivers(&self, may_have: impl Fn(&Scope) -> bool) -> Vec<StreamId> {
        let roles = self.roles.values().filter(|role| may_have(&role.scope));
        roles.filter_map(|role| role.primary).collect()
    }

    /// Whether a client is there, primary or not.
    #[must_use]
    pub fn has_streams(&self) -> bool {
        self.roles.values().any(|role| !role.elections.is_empty())
    }
}

/// The name of the role that a stream asks for, and its configuration.
fn asked_role(update: &MasterArbitrationUpdate) -> Done<(&str, Option<&Any>)> {
    let Some(role) = &update.role else {
        return Ok(("", None));
    };
    match role.id != 0 && role.name.is_empty() {
        true => Err(Failure::invalid(
            "roles have names; numbers of roles are those of version 1.3",
        )),
        false => Ok((role.name.as_str(), role.config.as_ref())),
    }
}

impl Streams {
    /// Makes a stream the primary if its number is the highest, or takes that from it; whether all have to
    /// know.
    fn elect(
        &mut self,
        stream: StreamId,
        election: Option<u128>,
        (config, scope): (Option<&Any>, Scope),
    ) -> bool {
        let was_primary = self.primary == Some(stream);
        if election.is_none() || election < self.highest {
            if was_primary {
                self.primary = None;
            }
            return was_primary;
        }
        let is_same = was_primary && self.highest == election && self.config.as_ref() == config;
        self.highest = election;
        self.primary = Some(stream);
        self.config = config.cloned();
        self.scope = scope;
        !is_same
    }

    /// Messages for all streams, or for one.
    fn notices(&self, device_id: u64, name: &str, only: Option<StreamId>) -> Notices {
        let message = |stream: StreamId| {
            let (code, text) = match self.primary {
                Some(primary) if primary == stream => (Code::Ok, "primary"),
                Some(_) => (Code::AlreadyExists, "another client is primary"),
                None => (Code::NotFound, "no client is primary"),
            };
            let role = Role {
                id: 0,
                config: self.config.clone(),
                name: name.to_owned(),
            };
            MasterArbitrationUpdate {
                device_id,
                role: (!name.is_empty() || self.config.is_some()).then_some(role),
                election_id: self.highest.map(Uint128::from),
                status: Some(Status {
                    code: code.into(),
                    message: text.into(),
                    details: Vec::new(),
                }),
            }
        };
        // The primary comes last: whoever has lost hears of it before the other one writes.
        let mut streams: Vec<StreamId> = self.elections.keys().copied().collect();
        streams.sort_by_key(|stream| self.primary == Some(*stream));
        let meant = streams
            .into_iter()
            .filter(|stream| only.is_none_or(|only| only == *stream));
        meant.map(|stream| (stream, message(stream))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(1);
    const B: StreamId = StreamId(2);

    fn asks(election: Option<u64>, role: &str) -> MasterArbitrationUpdate {
        MasterArbitrationUpdate {
            device_id: 1,
            role: (!role.is_empty()).then(|| Role {
                name: role.into(),
                ..Role::default()
            }),
            election_id: election.map(|low| Uint128 { high: 0, low }),
            status: None,
        }
    }

    fn codes(notices: &Notices) -> Vec<(StreamId, i32)> {
        let code = |message: &MasterArbitrationUpdate| message.status.as_ref().unwrap().code;
        notices
            .iter()
            .map(|(stream, message)| (*stream, code(message)))
            .collect()
    }

    fn number(low: u64) -> Option<Uint128> {
        Some(Uint128 { high: 0, low })
    }

    #[test]
    fn the_highest_number_is_primary_and_its_end_leaves_none() {
        let mut roles = Arbitration::default();
        assert_eq!(codes(&roles.update(A, &asks(Some(5), "")).unwrap()), [(A, 0)]);
        roles.authorise("", number(5)).unwrap();
        // A lower one is a backup, and only it is told.
        assert_eq!(codes(&roles.update(B, &asks(Some(4), "")).unwrap()), [(B, 6)]);
        assert_eq!(
            roles.authorise("", number(4)).unwrap_err().code,
            Code::PermissionDenied
        );
        // A higher one takes over; the former one hears of it first, and may not write.
        assert_eq!(
            codes(&roles.update(B, &asks(Some(6), "")).unwrap()),
            [(A, 6), (B, 0)]
        );
        assert_eq!(
            roles.authorise("", number(5)).unwrap_err().code,
            Code::PermissionDenied
        );
        roles.authorise("", number(6)).unwrap();
        assert_eq!(codes(&roles.remove(B, 1)), [(A, 5)]);
        assert_eq!(
            roles.authorise("", number(6)).unwrap_err().code,
            Code::PermissionDenied
        );
        // The number stays the highest.
        assert_eq!(codes(&roles.update(A, &asks(Some(5), "")).unwrap()), [(A, 5)]);
        assert_eq!(codes(&roles.update(A, &asks(Some(6), "")).unwrap()), [(A, 0)]);
    }

    #[test]
    fn a_primary_that_steps_down_tells_all() {
        let mut roles = Arbitration::default();
        roles.update(A, &asks(Some(5), "")).unwrap();
        roles.update(B, &asks(None, "")).unwrap();
        assert_eq!(
            codes(&roles.update(A, &asks(None, "")).unwrap()),
            [(A, 5), (B, 5)]
        );
        assert_eq!(
            roles.authorise("", None).unwrap_err().code,
            Code::PermissionDenied
        );
        assert!(roles.scope_of_primary(A).is_err());
    }

    #[test]
    fn wrong_updates_are_refused_and_change_nothing() {
        let mut roles = Arbitration::default();
        roles.update(A, &asks(Some(5), "")).unwrap();
        let taken = roles.update(B, &asks(Some(5), "")).unwrap_err();
        assert_eq!(taken.code, Code::InvalidArgument);
        let other_role = roles.update(A, &asks(Some(5), "other")).unwrap_err();
        assert_eq!(other_role.code, Code::FailedPrecondition);
        let mut with_config = asks(Some(9), "other");
        with_config.role.as_mut().unwrap().config = Some(Any {
            type_url: "type.googleapis.com/who.Knows".into(),
            value: Vec::new(),
        });
        assert_eq!(
            roles.update(B, &with_config).unwrap_err().code,
            Code::InvalidArgument
        );
        let again = roles.update(A, &asks(Some(5), "")).unwrap();
        assert_eq!(codes(&again), [(A, 0)], "nothing else is known");
    }

    #[test]
    fn roles_have_primaries_of_their_own_and_are_bounded() {
        let mut roles = Arbitration::default();
        roles.update(A, &asks(Some(5), "")).unwrap();
        roles.update(B, &asks(Some(1), "routes")).unwrap();
        roles.authorise("routes", number(1)).unwrap();
        assert_eq!(
            roles.authorise("routes", number(5)).unwrap_err().code,
            Code::PermissionDenied
        );
        assert_eq!(
            roles.authorise("else", number(5)).unwrap_err().code,
            Code::NotFound
        );
        for stream in 0..MAX_STREAMS as u64 - 1 {
            roles.update(StreamId(100 + stream), &asks(None, "")).unwrap();
        }
        let full = roles.update(StreamId(99), &asks(None, "")).unwrap_err();
        assert_eq!(full.code, Code::ResourceExhausted);
        for role in 0..MAX_ROLES as u64 - 2 {
            roles
                .update(StreamId(200 + role), &asks(None, &format!("r{role}")))
                .unwrap();
        }
        let full = roles.update(StreamId(99), &asks(None, "one more")).unwrap_err();
        assert_eq!(full.code, Code::ResourceExhausted);
    }

    #[test]
    fn a_roles_configuration_is_the_primarys() {
        let mut roles = Arbitration::default();
        let config = RoleConfig {
            p4_ids: vec![7],
            read_p4_ids: vec![8],
            ..RoleConfig::default()
        };
        let mut update = asks(Some(5), "routes");
        update.role.as_mut().unwrap().config = Some(Any {
            type_url: RoleConfig::TYPE_URL.into(),
            value: config.encode_to_vec(),
        });
        let notices = roles.update(A, &update).unwrap();
        assert_eq!(notices[0].1.role, update.role);
        let scope = roles.authorise("routes", number(5)).unwrap();
        assert!(scope.may_write(7) && !scope.may_write(8) && scope.may_read(8) && !scope.may_read(9));
        assert!(!scope.may_replicate() && !scope.may_set_pipeline() && !scope.has_packets());
        assert!(roles.receivers(Scope::has_packets).is_empty());
        assert_eq!(roles.scope("").unwrap(), &Scope::Full);
    }
}
