//! Who may connect to the sockets that the switch makes.
//!
//! A group has a name, which the control process looks up in `/etc/group` when it starts, or a number. The
//! safe direction of error is a socket of the owner alone: a group that is not found gets nothing.

use crate::InvalidValue;
use crate::value::text;
use schemars::JsonSchema;
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

text! {
    /// A group of users: its name, or its number.
    Group(String),
    "a group: its name, of at most 32 of the characters a-z A-Z 0-9 . _ -, or its number",
    parse_group
}

impl Group {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The number of no group: system calls take it for "as it is" (chown(2)).
const NO_GROUP: u32 = u32::MAX;

fn parse_group(text: &str) -> Option<String> {
    let is_name = (1..=32).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && !text.starts_with('-');
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_group = is_name && (!is_number || text.parse::<u32>().is_ok_and(|number| number != NO_GROUP));
    is_group.then(|| text.to_owned())
}

text! {
    /// The permissions of a socket.
    SocketMode(u32), "\"0600\" (the owner), \"0660\" (also the group) or \"0666\" (everybody)", parse_mode
}

impl Copy for SocketMode {}

impl SocketMode {
    /// The bits, as in `chmod`.
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl Default for SocketMode {
    fn default() -> Self {
        SocketMode(0o660)
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:04o}", self.0))
    }
}

fn parse_mode(text: &str) -> Option<u32> {
    match text {
        "0600" => Some(0o600),
        "0660" => Some(0o660),
        "0666" => Some(0o666),
        _ => None,
    }
}

/// Who may connect to the switch's sockets, but for `control.sock`, which is the owner's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Group of the sockets of vhost-user ports; default: that of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// Permissions of the sockets of vhost-user ports.
    pub socket_mode: SocketMode,
    /// Group of `view.sock`, which answers queries only; default: that of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view_group: Option<Group>,
    /// Permissions of `view.sock`.
    pub view_mode: SocketMode,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_or_numbers() {
        for text in ["kvm", "_apt", "libvirt-qemu", "0", "4294967294", "a.b"] {
            assert!(
                text.parse::<Group>().is_ok_and(|group| group.to_string() == text),
                "{text}"
            );
        }
        for text in [
            "",
            "-1",
            "-x",
            "4294967295",
            "99999999999",
            "a:b",
            "a b",
            &"x".repeat(33),
        ] {
            assert!(text.parse::<Group>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_mode_is_one_of_three() {
        for text in ["0600", "0660", "0666"] {
            assert!(
                text.parse::<SocketMode>()
                    .is_ok_and(|mode| mode.to_string() == text)
            );
        }
        for text in ["660", "0777", "4660", ""] {
            assert!(text.parse::<SocketMode>().is_err(), "{text}");
        }
        assert_eq!(SocketMode::default().bits(), 0o660);
    }
}
