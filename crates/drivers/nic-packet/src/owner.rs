//! Whose a device is: an instance of the switch marks the devices that it makes with their aliases.
//!
//! Several instances run side by side in one network namespace. Each is known by its run directory, which
//! stays the same when its processes, or the service, are started again. A device of another instance is
//! neither used nor removed, also while no process has it open, since its process may be about to come back.
//! Aliases of earlier versions name no instance: such a device is used if it is asked for by name and idle,
//! and never removed for being idle.

use crate::NicError;
use std::path::Path;

/// Kinds of devices that are made, as their aliases begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// A port of a switch.
    Tap,
    /// A device that stands for a port of Open vSwitch.
    Placeholder,
    /// A bridge that hides an interface.
    Hiding,
}

impl Made {
    const ALL: [Made; 3] = [Made::Tap, Made::Placeholder, Made::Hiding];

    fn text(self) -> &'static str {
        match self {
            Made::Tap => "hyperswitch",
            Made::Placeholder => "hyperswitch placeholder",
            Made::Hiding => "hyperswitch hides",
        }
    }
}

/// An instance, as the maker of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner(String);

impl Owner {
    /// The instance with this run directory, which exists.
    pub fn new(run_dir: &Path) -> Owner {
        let path = run_dir.canonicalize().unwrap_or_else(|_| run_dir.to_owned());
        Owner(path.to_string_lossy().into_owned())
    }

    /// The alias of a device that this instance makes.
    pub(crate) fn alias(&self, made: Made) -> String {
        format!("{} of {}", made.text(), self.0)
    }

    /// Whether a device with this alias was made as one of that kind by this instance, or by an earlier
    /// version.
    ///
    /// # Errors
    ///
    /// The device is another instance's.
    pub(crate) fn has_made(&self, made: Made, name: &str, alias: &str) -> Result<bool, NicError> {
        for kind in Made::ALL {
            let rest = alias.strip_prefix(kind.text());
            if let Some(other) = rest.and_then(|rest| rest.strip_prefix(" of "))
                && other != self.0
            {
                return Err(NicError::Foreign {
                    name: name.into(),
                    owner: other.into(),
                });
            }
        }
        Ok(alias == self.alias(made) || alias == made.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_knows_its_own_devices_and_those_of_others() {
        let owner = Owner::new(Path::new("/no/such/run"));
        let made = |kind, alias: &str| {
            owner
                .has_made(kind, "vm1", alias)
                .map_err(|error| error.to_string())
        };
        for kind in Made::ALL {
            assert_eq!(made(kind, &owner.alias(kind)), Ok(true));
            assert_eq!(made(kind, kind.text()), Ok(true), "of an earlier version");
            assert_eq!(made(kind, ""), Ok(false));
            assert_eq!(made(kind, "uplink of rack 7"), Ok(false), "a user's");
            let other = Owner::new(Path::new("/no/such/run2"));
            for theirs in Made::ALL {
                let error = made(kind, &other.alias(theirs)).unwrap_err();
                assert!(error.contains("/no/such/run2"), "{error}");
            }
        }
        assert_eq!(made(Made::Tap, &owner.alias(Made::Placeholder)), Ok(false));
    }
}
