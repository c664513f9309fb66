//! Why a request was refused, for programs and for users.

use serde::{Deserialize, Serialize};

/// An answer that is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct RequestError {
    /// An error number of Linux (errno(3)), above 0.
    pub errno: i32,
    /// A sentence for users.
    pub text: String,
}
