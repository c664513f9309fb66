//! The schema of P4 programs that forward the packets of ports.

use crate::value::{InvalidValue, Name, P4Operations};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A P4 program that forwards the packets of ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct P4Config {
    /// Unique among P4 programs.
    pub name: Name,
    /// What the compiler wrote for BMv2 (JSON), or a program with its entries that was exported. Seen from
    /// the directory of the configuration file.
    pub program: PathBuf,
    /// P4Info of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p4info: Option<PathBuf>,
    /// Files of entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<PathBuf>,
    /// Ports that are bound to it, and links to other programs; they need not exist yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PlacedPort>,
    /// Most operations of one pass that it is allowed; default: 32,768.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations: Option<P4Operations>,
    /// The program is a stage: it sees packets before their forwarder does, and has no ports of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<P4StageConfig>,
}

/// Where a P4 program is a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct P4StageConfig {
    /// Stages of a port see packets in the order of these numbers, 0 to 65535; of equal ones, in the order of
    /// their names.
    #[serde(default)]
    pub at: u16,
    /// All ports of this switch, present and future ones, have the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<Name>,
    /// Ports that have it, with the numbers by which the program knows them; the others of the switch have
    /// number 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PlacedPort>,
}

impl P4StageConfig {
    /// The number of a port, at a switch, that has the stage.
    #[must_use]
    pub fn number_of(&self, port: &str, switch: &str) -> Option<u16> {
        let own = self.ports.iter().find(|place| place.port == port);
        let of_switch = self.switch.as_ref().is_some_and(|own| own.as_str() == switch);
        own.map(|place| place.number).or(of_switch.then_some(0))
    }

    /// What is wrong with it in itself.
    ///
    /// # Errors
    /// A port is there twice or is a link, or no port has the stage.
    pub fn check(&self) -> Result<(), String> {
        let mut taken = BTreeSet::new();
        for place in &self.ports {
            if P4End::of(&place.port).is_some() {
                return Err(format!("a stage has no links, as {} is one", place.port));
            }
            if !taken.insert(&place.port) {
                return Err(format!("port {} has the stage twice", place.port));
            }
        }
        if self.ports.is_empty() && self.switch.is_none() {
            return Err("a stage needs a switch or ports".into());
        }
        Ok(())
    }
}

/// A port at a program, written `NUMBER=PORT`, or a link, written `NUMBER=PROGRAM:NUMBER`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct PlacedPort {
    /// Number by which the program knows it, 0 to 510.
    pub number: u16,
    /// Name of the port, or `PROGRAM:NUMBER`.
    pub port: String,
}

/// A port of a program, as the other end of a link, written `PROGRAM:NUMBER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct P4End {
    /// Name of the program.
    pub program: Name,
    /// Number of the port, 0 to 510.
    pub number: u16,
}

impl P4End {
    /// What a place in a port map names, if it is no port.
    #[must_use]
    pub fn of(port: &str) -> Option<P4End> {
        let (program, number) = port.split_once(':')?;
        Some(P4End {
            program: program.parse().ok()?,
            number: number_of(number)?,
        })
    }
}

impl FromStr for P4End {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        P4End::of(text).ok_or_else(|| InvalidValue {
            value: text.into(),
            expected: "PROGRAM:NUMBER, with a number from 0 to 510",
        })
    }
}

impl fmt::Display for P4End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.program, self.number)
    }
}

/// A port's number, written as [`P4End`] is shown, so that a link has one form.
fn number_of(text: &str) -> Option<u16> {
    let number: u16 = text.parse().ok().filter(|number| *number <= 510)?;
    (number.to_string() == text).then_some(number)
}

impl FromStr for PlacedPort {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let placed = text.split_once('=').and_then(|(number, port)| {
            let number = number.parse().ok().filter(|number| *number <= 510)?;
            let is_right = !port.is_empty() && (!port.contains(':') || P4End::of(port).is_some());
            is_right.then(|| PlacedPort {
                number,
                port: port.into(),
            })
        });
        placed.ok_or_else(|| InvalidValue {
            value: text.into(),
            expected: "NUMBER=PORT or NUMBER=PROGRAM:NUMBER, with numbers from 0 to 510",
        })
    }
}

impl TryFrom<String> for PlacedPort {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

impl From<PlacedPort> for String {
    fn from(placed: PlacedPort) -> String {
        placed.to_string()
    }
}

impl fmt::Display for PlacedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.number, self.port)
    }
}
