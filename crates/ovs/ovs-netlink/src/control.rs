//! `nlctrl`: the family that gives other families' numbers (`linux/genetlink.h`).

use crate::attribute::{AttributeSet, Rule, Table, Writer, attributes};
use crate::error::Error;
use crate::family::{self, Family, FamilyMessage};
use crate::message::Header;
use crate::name::Name;

/// Most bytes of a family's name (`GENL_NAMSIZ`, less the zero).
pub const MAX_NAME: usize = 15;
/// Most groups that a reply may name.
pub const MAX_GROUPS: usize = 16;

const NEW: u8 = 1;
const GET: u8 = 3;

const ID: u16 = 1;
const NAME: u16 = 2;
const VERSION: u16 = 3;
const HEADER_SIZE: u16 = 4;
const MAX_ATTRIBUTE: u16 = 5;
const GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;

static SET: AttributeSet<8> = AttributeSet {
    name: "CTRL_ATTR",
    rules: {
        use Rule::{Any, Between, Exactly, Unknown};
        [
            Unknown,
            Exactly(2),
            Between(0, 256),
            Exactly(4),
            Exactly(4),
            Exactly(4),
            Unknown,
            Any,
        ]
    },
};

static GROUP: AttributeSet<3> = AttributeSet {
    name: "CTRL_ATTR_MCAST_GRP",
    rules: [Rule::Unknown, Rule::Between(0, 256), Rule::Exactly(4)],
};

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for the description of the family of this name.
    ByName(Name),
    /// Asks for the description of the family of this number.
    ByNumber(u16),
}

/// The description of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Message type.
    pub number: u16,
    /// Name.
    pub name: Name,
    /// Version.
    pub version: u32,
    /// Bytes between generic netlink header and attributes.
    pub header_size: u32,
    /// Greatest attribute.
    pub max_attribute: u32,
    /// Multicast groups: name and number.
    pub groups: Vec<(Name, u32)>,
}

impl From<Family> for Description {
    fn from(family: Family) -> Self {
        let name = Name::new(family.name()).expect("families have names");
        Self {
            number: family.number(),
            version: u32::from(family.version()),
            header_size: u32::try_from(family.header_size()).expect("a few bytes"),
            max_attribute: family.max_attribute(),
            groups: family
                .group()
                .map(|group| (name.clone(), group))
                .into_iter()
                .collect(),
            name,
        }
    }
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// The command is unknown, or an attribute is wrong or missing.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        if message.command != GET || message.dump {
            return Err(message.unknown());
        }
        let table = Table::read(&SET, message.attributes)?;
        if let Some(other) = table.kinds().find(|kind| !matches!(*kind, ID | NAME)) {
            return Err(table.misplaced(other));
        }
        match (table.bytes(NAME), table.u16(ID)) {
            (Some(name), None) => Ok(Self::ByName(Name::read(SET.name, NAME, name, MAX_NAME)?)),
            (None, Some(number)) => Ok(Self::ByNumber(number)),
            (Some(_), Some(_)) => Err(table.misplaced(ID)),
            (None, None) => Err(table.missing(NAME)),
        }
    }

    /// The family that is asked for, if it is one of ours.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        match self {
            Self::ByName(name) => {
                let is_named = |family: &Family| family.name().as_bytes() == name.as_bytes();
                Family::ALL.into_iter().find(is_named)
            }
            Self::ByNumber(number) => Family::of_number(*number),
        }
    }

    /// Writes the request.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        family::write(writer, header, (Family::Control, GET, 0), |writer| match self {
            Self::ByName(name) => writer.attribute(NAME, &name.terminated()),
            Self::ByNumber(number) => writer.u16(ID, *number),
        });
    }
}

impl Description {
    /// Reads a reply.
    ///
    /// # Errors
    ///
    /// The message is no reply, or an attribute is wrong or missing.
    pub fn read(message: &FamilyMessage<'_>) -> Result<Self, Error> {
        if message.command != NEW {
            return Err(message.unknown());
        }
        let table = Table::read(&SET, message.attributes)?;
        let name = table.required(NAME, table.bytes(NAME))?;
        let groups = table.bytes(GROUPS).map(read_groups).transpose()?;
        Ok(Self {
            number: table.required(ID, table.u16(ID))?,
            name: Name::read(SET.name, NAME, name, MAX_NAME)?,
            version: table.required(VERSION, table.u32(VERSION))?,
            header_size: table.required(HEADER_SIZE, table.u32(HEADER_SIZE))?,
            max_attribute: table.required(MAX_ATTRIBUTE, table.u32(MAX_ATTRIBUTE))?,
            groups: groups.unwrap_or_default(),
        })
    }

    /// Writes the reply.
    pub fn write(&self, header: Header, writer: &mut Writer) {
        family::write(writer, header, (Family::Control, NEW, 0), |writer| {
            writer.attribute(NAME, &self.name.terminated());
            writer.u16(ID, self.number);
            writer.u32(VERSION, self.version);
            writer.u32(HEADER_SIZE, self.header_size);
            writer.u32(MAX_ATTRIBUTE, self.max_attribute);
            if !self.groups.is_empty() {
                writer.nested(GROUPS, |writer| self.write_groups(writer));
            }
        });
    }

    fn write_groups(&self, writer: &mut Writer) {
        for (place, (name, number)) in (1..).zip(&self.groups) {
            writer.nested(place, |writer| {
                writer.u32(GROUP_ID, *number);
                writer.attribute(GROUP_NAME, &name.terminated());
            });
        }
    }
}

/// The groups are an array: nested attributes, whose kinds have no meaning.
fn read_groups(bytes: &[u8]) -> Result<Vec<(Name, u32)>, Error> {
    let mut groups = Vec::new();
    for attribute in attributes(bytes) {
        let table = Table::read(&GROUP, attribute?.value)?;
        let name = table.required(GROUP_NAME, table.bytes(GROUP_NAME))?;
        let name = Name::read(GROUP.name, GROUP_NAME, name, MAX_NAME)?;
        groups.push((name, table.required(GROUP_ID, table.u32(GROUP_ID))?));
        if groups.len() > MAX_GROUPS {
            return Err(Error::TooMany {
                what: "multicast groups",
                limit: MAX_GROUPS,
            });
        }
    }
    Ok(groups)
}
