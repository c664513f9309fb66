//! Why a request, or a part of one, failed: a canonical code of gRPC, and a text for people.

use std::fmt;
use tonic::Code;

/// See the module's description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// The canonical code.
    pub code: Code,
    /// What is wrong, with the place.
    pub text: String,
}

/// A result of something that may fail.
pub type Done<T> = Result<T, Failure>;

impl Failure {
    /// A failure with a code and a text.
    pub fn new(code: Code, text: impl fmt::Display) -> Failure {
        let text = text.to_string();
        Failure { code, text }
    }

    /// The request makes no sense.
    pub fn invalid(text: impl fmt::Display) -> Failure {
        Failure::new(Code::InvalidArgument, text)
    }

    /// What the request names does not exist.
    pub fn missing(text: impl fmt::Display) -> Failure {
        Failure::new(Code::NotFound, text)
    }

    /// The client may not do that.
    pub fn denied(text: impl fmt::Display) -> Failure {
        Failure::new(Code::PermissionDenied, text)
    }

    /// Not offered here.
    pub fn unimplemented(text: impl fmt::Display) -> Failure {
        Failure::new(Code::Unimplemented, text)
    }

    /// A limit is reached.
    pub fn exhausted(text: impl fmt::Display) -> Failure {
        Failure::new(Code::ResourceExhausted, text)
    }

    /// The failure of a part of what is named.
    #[must_use]
    pub fn within(self, place: impl fmt::Display) -> Failure {
        Failure::new(self.code, format_args!("{place}: {}", self.text))
    }
}
