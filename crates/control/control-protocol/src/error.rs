//! Why a request was refused, for programs and for users.

use serde::{Deserialize, Serialize};

/// The refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct RequestError {
    /// An error number of Linux (errno(3)), above 0.
    pub errno: i32,
    /// A sentence for users.
    pub text: String,
}
