//! A configuration file with its policies.

use crate::compile::compile;
use crate::shadow;
use configuration::{CheckError, Config, ConfigError, error_at};

/// Parses and checks a configuration with its policies; `file` is for messages only.
///
/// # Errors
/// The first thing that is wrong, with file, line and column.
pub fn parse(text: &str, file: &str) -> Result<Config, ConfigError> {
    let config = configuration::parse(text, file)?;
    match compile(&config) {
        Ok(_) => Ok(config),
        Err(CheckError { path, message }) => Err(error_at(text, file, &path, message)),
    }
}

/// What a file that [`parse`] has taken says without effect, each with file, line and column.
pub fn findings(config: &Config, text: &str, file: &str) -> Vec<ConfigError> {
    let found = shadow::findings(config).into_iter();
    found
        .map(|CheckError { path, message }| error_at(text, file, &path, message))
        .collect()
}
