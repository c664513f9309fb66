//! Reasons for which a table refuses a flow.

use flow::{BadActions, FlowId, PortId, Stage};
use std::fmt;

/// A flow was refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Actions that cannot be run.
    Actions(BadActions),
    /// There is no such stage.
    NoSuchStage(Stage),
    /// There is a flow with the same identifier or for the same packets.
    Exists(FlowId),
    /// There is no flow to modify.
    Missing(FlowId),
    /// The table holds as many flows as it may.
    Flows {
        /// Greatest number of flows.
        limit: usize,
    },
    /// The compiled actions of the table's flows are as large as they may be.
    Bytes {
        /// How many bytes their compiled actions may take.
        limit: usize,
    },
    /// The input port has as many flows as the table has room for.
    Share {
        /// The port.
        in_port: PortId,
        /// How many flows it has.
        flows: usize,
    },
    /// The input port has as many different masks as it may.
    Masks {
        /// The port, or `None` for flows that do not name one port.
        in_port: Option<PortId>,
        /// Greatest number of masks.
        limit: usize,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Actions(bad) => bad.fmt(f),
            Refused::NoSuchStage(stage) => write!(f, "there is no stage {stage}"),
            Refused::Exists(id) => write!(f, "flow {id} exists"),
            Refused::Missing(id) => write!(f, "flow {id} does not exist"),
            Refused::Flows { limit } => write!(f, "the flow table is full ({limit} flows)"),
            Refused::Bytes { limit } => write!(
                f,
                "the actions of the table's flows would take more than {limit} bytes"
            ),
            Refused::Share { in_port, flows } => write!(
                f,
                "port {in_port} has {flows} flows, and the table has no room for as many others"
            ),
            Refused::Masks {
                in_port: Some(port),
                limit,
            } => write!(
                f,
                "port {port} has flows with {limit} different masks, and may not have more"
            ),
            Refused::Masks { in_port: None, limit } => write!(
                f,
                "flows for any port have {limit} different masks, and may not have more"
            ),
        }
    }
}

impl std::error::Error for Refused {}

impl From<BadActions> for Refused {
    fn from(bad: BadActions) -> Self {
        Refused::Actions(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators read the reason, and which limit it was.
    #[test]
    fn reasons_name_their_limits() {
        let (limit, in_port) = (64, PortId(7));
        let masks = |in_port| Refused::Masks { in_port, limit }.to_string();
        assert_eq!(
            masks(Some(in_port)),
            "port 7 has flows with 64 different masks, and may not have more"
        );
        assert!(masks(None).starts_with("flows for any port have 64 different masks"));
        let share = Refused::Share { in_port, flows: 64 };
        assert!(share.to_string().starts_with("port 7 has 64 flows"));
        assert!(Refused::Flows { limit }.to_string().contains("64 flows"));
        assert!(Refused::Bytes { limit }.to_string().contains("64 bytes"));
        let bad = BadActions::TooLong;
        assert_eq!(Refused::from(bad).to_string(), bad.to_string());
    }
}
