//! Errors, and their places in the program.

use crate::json::{Json, JsonError};
use p4_ir::CheckError;

/// Why a program is not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// More bytes than [`crate::limits::TEXT`].
    #[error("{0} bytes are more than {limit}", limit = crate::limits::TEXT)]
    TooLong(usize),
    /// No JSON.
    #[error("no JSON: {0}")]
    Json(JsonError),
    /// JSON, but not a program: element and problem.
    #[error(transparent)]
    Program(#[from] At),
    /// P4Info that cannot be read, or that contradicts the program.
    #[error("P4Info: {0}")]
    P4Info(At),
    /// A program, but not a sound one.
    #[error(transparent)]
    Unsound(#[from] CheckError),
}

// By hand: `#[from]` would make the JSON error a source as well, so that a printed chain says the error
// twice.
impl From<JsonError> for LoadError {
    fn from(error: JsonError) -> Self {
        Self::Json(error)
    }
}

/// An element by its path, and the error in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct At {
    /// Place in the file, such as `actions "ingress.forward", primitives[2], parameters[0]`.
    pub path: String,
    /// The error.
    pub problem: String,
    /// The file may be right, but uses what is not supported.
    pub unsupported: bool,
}

/// The result of readers.
pub(crate) type Read<T> = Result<T, At>;

/// A problem of the element that is being read.
pub(crate) fn wrong<T>(problem: impl Into<String>) -> Read<T> {
    Err(At {
        path: String::new(),
        problem: problem.into(),
        unsupported: false,
    })
}

/// Something that may be right but is not supported.
pub(crate) fn unsupported<T>(what: impl std::fmt::Display) -> Read<T> {
    Err(At {
        path: String::new(),
        problem: format!("{what} is not supported"),
        unsupported: true,
    })
}

/// Adds the name of the element to an error in it.
pub(crate) trait Within<T> {
    fn within(self, element: impl FnOnce() -> String) -> Read<T>;
}

impl<T> Within<T> for Read<T> {
    fn within(self, element: impl FnOnce() -> String) -> Read<T> {
        self.map_err(|inner| {
            let element = element();
            let path = if inner.path.is_empty() {
                element
            } else {
                format!("{element}, {}", inner.path)
            };
            At { path, ..inner }
        })
    }
}

/// Members of objects, with errors that name them.
pub(crate) trait Members {
    /// An array; nothing there is an empty one.
    fn list(&self, name: &'static str) -> Read<&[Json]>;
    /// A text.
    fn string(&self, name: &'static str) -> Read<&str>;
    /// A number that is not negative and fits.
    fn size<T: TryFrom<i64>>(&self, name: &'static str) -> Read<T>;
    /// A bool; nothing there is false.
    fn flag(&self, name: &'static str) -> Read<bool>;
}

impl Members for Json {
    fn list(&self, name: &'static str) -> Read<&[Json]> {
        let value = self.get(name);
        if value.is_null() {
            return Ok(&[]);
        }
        value
            .elements()
            .map_or_else(|| wrong(format!("{name:?} is no array")), Ok)
    }

    fn string(&self, name: &'static str) -> Read<&str> {
        self.get(name)
            .text()
            .map_or_else(|| wrong(format!("{name:?} is no text")), Ok)
    }

    fn size<T: TryFrom<i64>>(&self, name: &'static str) -> Read<T> {
        let number = self.get(name).number().filter(|number| *number >= 0);
        match number.and_then(|number| T::try_from(number).ok()) {
            Some(number) => Ok(number),
            None => wrong(format!("{name:?} is no number that could be here")),
        }
    }

    fn flag(&self, name: &'static str) -> Read<bool> {
        match self.get(name) {
            Json::Null => Ok(false),
            value => value
                .bool()
                .map_or_else(|| wrong(format!("{name:?} is neither true nor false")), Ok),
        }
    }
}
