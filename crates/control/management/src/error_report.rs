//! Errors as programs read them: the text for users, a word that stays the same, and the place.

use configuration::ConfigError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why something was not done. With `--json`, what a failed command prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ErrorReport {
    /// The text for users, which may change.
    pub error: String,
    /// The kind, for programs.
    pub code: ErrorCode,
    /// Where, if a place is known.
    pub place: Option<Box<ErrorPlace>>,
}

/// Kinds of errors. Later versions may have further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// Wrong usage of the command line; exit status 2.
    Usage,
    /// A configuration that cannot be used.
    Configuration,
    /// A switch, port, policy or P4 switch that does not exist.
    NotFound,
    /// Something that another object, or another request, has already.
    Conflict,
    /// An object of the configuration file, which only the file changes.
    OfFile,
    /// A request that makes no sense.
    Malformed,
    /// A limit of the switch.
    Limit,
    /// A right that the user lacks.
    Forbidden,
    /// No instance with this run directory.
    Unreachable,
    /// A process that is being started or has not answered in time; the request may succeed later.
    Unavailable,
    /// A process that ended, or a connection that broke, before the answer: the request may have been done.
    Unknown,
    /// An instance of another version.
    Version,
    /// A port that cannot be connected.
    Port,
    /// Anything else.
    #[serde(other)]
    Failed,
}

/// Where an error is. Keys without a value are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct ErrorPlace {
    /// Name of the file, as it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line of the file, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Column of the line in characters, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// Name of the switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// Name of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

impl ErrorReport {
    /// An error without a place.
    pub fn new(code: ErrorCode, error: impl Into<String>) -> ErrorReport {
        ErrorReport {
            error: error.into(),
            code,
            place: None,
        }
    }

    /// Adds a place.
    #[must_use]
    pub fn at(self, place: ErrorPlace) -> ErrorReport {
        let place = Some(place).filter(|place| *place != ErrorPlace::default());
        ErrorReport {
            place: place.map(Box::new),
            ..self
        }
    }
}

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl From<&ConfigError> for ErrorPlace {
    fn from(error: &ConfigError) -> ErrorPlace {
        ErrorPlace {
            file: Some(error.file.clone()),
            line: Some(error.line),
            column: Some(error.column),
            ..ErrorPlace::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_stable_and_later_codes_are_read() {
        let place = ErrorPlace {
            port: Some("vm1".into()),
            ..ErrorPlace::default()
        };
        let report = ErrorReport::new(ErrorCode::NotFound, "there is no port vm1").at(place);
        let json = serde_json::to_string(&report).unwrap();
        let expected = r#"{"error":"there is no port vm1","code":"not-found","place":{"port":"vm1"}}"#;
        assert_eq!(json, expected);
        let later: ErrorReport =
            serde_json::from_str(r#"{"error":"x","code":"of-tomorrow","place":{"year":1}}"#).unwrap();
        assert_eq!(later.code, ErrorCode::Failed);
        let nowhere = ErrorReport::new(ErrorCode::Failed, "x").at(ErrorPlace::default());
        assert_eq!(nowhere.place, None);
        let none = ErrorReport::new(ErrorCode::Usage, "x");
        let json = serde_json::to_string(&none).unwrap();
        assert_eq!(json, r#"{"error":"x","code":"usage","place":null}"#);
    }
}
