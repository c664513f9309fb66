//! Why a request is refused, and as which error number (errno(3)).

use crate::p4::P4Refused;
use control_protocol::RequestError;
use control_protocol::data_plane::VERSION;
use control_protocol::rules::MAX_DRAFTS;
use flow::{BadActions, ListId, MAX_METERS, PortId};
use rustix::io::Errno;
use vnic::MAX_FRAME;

/// A request was refused. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("protocol version {0}, this data plane speaks {VERSION}")]
    Version(u32),
    #[error("port number {0} is not below {limit}", limit = PortId::LIMIT)]
    PortNumber(PortId),
    #[error("port number {0} is another controller's")]
    ForeignPort(PortId),
    #[error("there are {0} switches already")]
    Switches(usize),
    #[error("there are {MAX_METERS} meters already")]
    Meters,
    #[error("the data plane was started without leave to send by queues of devices: restart the service")]
    NoQueues,
    #[error("port {0} is no device's, or its socket has no virtio-net header of 10 or 12 bytes")]
    Queue(PortId),
    #[error("a meter's rate is not 0")]
    MeterRate,
    #[error("a bandwidth is out of range")]
    Rate,
    #[error("list {0} is another controller's")]
    ForeignList(ListId),
    #[error("list {0} has no draft")]
    NoDraft(ListId),
    #[error("there are {MAX_DRAFTS} drafts already")]
    Drafts,
    #[error("{0} in one request, of which {1} is the most")]
    TooMany(usize, usize),
    #[error("there is no rule {0}")]
    NoRule(u32),
    #[error("rule {0}: {1}")]
    Rule(u32, #[source] rule_list::Refused),
    #[error(transparent)]
    Rules(#[from] rule_list::Refused),
    #[error(transparent)]
    P4(#[from] P4Refused),
    #[error("port {0} exists")]
    PortExists(PortId),
    #[error("port {0} does not exist")]
    NoPort(PortId),
    #[error("{0} needs a descriptor")]
    NoDescriptor(&'static str),
    #[error("a frame has 14 to {MAX_FRAME} bytes, not {0}")]
    FrameLength(usize),
    #[error("the frame cannot be parsed")]
    BadFrame,
    #[error("the port is captured {0} times already")]
    Captures(usize),
    #[error("a mirror copies at least 14 bytes, with a VLAN from 1 to 4094, to another port than its own")]
    Mirror,
    #[error(transparent)]
    Flow(#[from] classifier::Refused),
    #[error(transparent)]
    Actions(#[from] BadActions),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Refusal {
    fn errno(&self) -> Errno {
        match self {
            Refusal::Version(_) => Errno::PROTO,
            Refusal::PortNumber(_)
            | Refusal::BadFrame
            | Refusal::Actions(_)
            | Refusal::MeterRate
            | Refusal::Mirror
            | Refusal::Queue(_)
            | Refusal::Rate => Errno::INVAL,
            Refusal::Meters => Errno::FBIG,
            Refusal::NoDraft(_) | Refusal::NoRule(_) => Errno::NOENT,
            Refusal::Drafts => Errno::NOSPC,
            Refusal::TooMany(..) => Errno::TOOBIG,
            Refusal::Rule(_, refused) | Refusal::Rules(refused) => errno_of_rules(refused),
            Refusal::P4(refused) => errno_of_p4(refused),
            Refusal::ForeignPort(_) | Refusal::ForeignList(_) | Refusal::NoQueues => Errno::PERM,
            Refusal::Switches(_) => Errno::NOSPC,
            Refusal::PortExists(_) => Errno::EXIST,
            Refusal::NoPort(_) => Errno::NODEV,
            Refusal::NoDescriptor(_) => Errno::BADF,
            Refusal::FrameLength(_) => Errno::MSGSIZE,
            Refusal::Captures(_) => Errno::BUSY,
            Refusal::Flow(refused) => errno_of_flow(refused),
            Refusal::Io(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
        }
    }
}

fn errno_of_p4(refused: &P4Refused) -> Errno {
    match refused {
        P4Refused::NoDraft(_) | P4Refused::NoSwitch(_) => Errno::NOENT,
        P4Refused::OtherVersion => Errno::STALE,
        P4Refused::Bytes(..) => Errno::TOOBIG,
        P4Refused::Drafts(_)
        | P4Refused::Switches(_)
        | P4Refused::Links(_)
        | P4Refused::Joined(_)
        | P4Refused::Stages(_)
        | P4Refused::Limit { .. } => Errno::NOSPC,
        P4Refused::PlaceTaken(..) => Errno::EXIST,
        P4Refused::Decode(_)
        | P4Refused::Engine(_)
        | P4Refused::Failed(_)
        | P4Refused::NoPlace(_)
        | P4Refused::NoCell { .. }
        | P4Refused::LinkedTwice(..)
        | P4Refused::StagedTwice(_)
        | P4Refused::Filters(_)
        | P4Refused::Trace(_) => Errno::INVAL,
    }
}

fn errno_of_flow(refused: &classifier::Refused) -> Errno {
    use classifier::Refused;
    match refused {
        Refused::Actions(_) | Refused::NoSuchStage(_) => Errno::INVAL,
        Refused::Exists(_) => Errno::EXIST,
        Refused::Missing(_) => Errno::NOENT,
        Refused::Flows { .. } | Refused::Bytes { .. } | Refused::Share { .. } | Refused::Masks { .. } => {
            Errno::NOSPC
        }
    }
}

fn errno_of_rules(refused: &rule_list::Refused) -> Errno {
    use rule_list::Refused;
    match refused {
        Refused::TooManyRules
        | Refused::TooManyRulesOfAll
        | Refused::TooManyLoggingRules
        | Refused::TooManyLists
        | Refused::TooManySets
        | Refused::TooManyMembersOfSet
        | Refused::TooManySetsOfList
        | Refused::TooManyMembers
        | Refused::TooManyFlagConditions => Errno::NOSPC,
        Refused::SameNumber(_) | Refused::SetExists(_) => Errno::EXIST,
        Refused::NoSuchSet(_) | Refused::NoSuchList(_) => Errno::NOENT,
        Refused::SetInUse(_) => Errno::BUSY,
        Refused::BadPrefix
        | Refused::BadRange
        | Refused::BadFlags
        | Refused::BadPort
        | Refused::Contradiction
        | Refused::NeedsProtocol
        | Refused::NoConnections
        | Refused::WrongKind { .. } => Errno::INVAL,
    }
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        RequestError {
            errno: refusal.errno().raw_os_error(),
            text: refusal.to_string(),
        }
    }
}
