//! P4Info: a program's description for controllers - names, numbers, widths, kinds of match.
//!
//! P4Info is a protobuf message (`p4/config/v1/p4info.proto` of the P4Runtime specification), as text or
//! binary. Both are read into one small tree, of which only what the form of the program has a place for is
//! taken. Where the JSON and P4Info speak of the same, they must agree.

mod join;
mod text;
mod wire;

use crate::error::{At, LoadError, Read, Within, wrong};
use std::collections::HashMap;

/// Levels of nesting in a message.
const DEPTH: usize = 32;

/// Objects of all kinds, and parts of one object. The largest known program has 400 and 40.
const OBJECTS_AT_MOST: usize = 8192;
const PARTS_AT_MOST: usize = 2048;

/// A message: fields in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Message {
    fields: Vec<(String, Field)>,
}

/// A field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Number(u64),
    Text(String),
    /// An enum's value, `true`, `false`.
    Word(String),
    Message(Message),
}

impl Message {
    fn all<'m>(&'m self, name: &'m str) -> impl Iterator<Item = &'m Field> {
        self.fields
            .iter()
            .filter(move |(other, _)| other == name)
            .map(|(_, field)| field)
    }

    fn messages<'m>(&'m self, name: &'m str) -> impl Iterator<Item = &'m Message> {
        self.all(name).filter_map(|field| {
            if let Field::Message(message) = field {
                Some(message)
            } else {
                None
            }
        })
    }

    fn number(&self, name: &str) -> Read<u32> {
        match self.all(name).last() {
            None => Ok(0),
            Some(Field::Number(number)) => {
                u32::try_from(*number).or_else(|_| wrong(format!("{name:?} is too large")))
            }
            Some(_) => wrong(format!("{name:?} is no number")),
        }
    }

    /// A size; those that are not given (or -1, for "any") are `None`.
    fn size(&self, name: &str) -> Option<u32> {
        match self.all(name).last() {
            Some(Field::Number(number)) => u32::try_from(*number).ok(),
            _ => None,
        }
    }

    fn text<'m>(&'m self, name: &'m str) -> &'m str {
        match self.all(name).last() {
            Some(Field::Text(text) | Field::Word(text)) => text,
            _ => "",
        }
    }
}

/// Number, name and short name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Preamble {
    /// Unique among all objects of the program.
    pub id: u32,
    /// The full name.
    pub name: String,
    /// The short one.
    pub alias: String,
}

/// Something with a number, a name and a width: a key, a parameter, a field of packet-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Unique in its object.
    pub id: u32,
    /// The name.
    pub name: String,
    /// Width in bits; 0 if P4Info has none.
    pub width: u32,
    /// `EXACT`, `LPM`, `TERNARY`, `RANGE`, `OPTIONAL`; empty for elements that are no keys.
    pub kind: String,
    /// The width is that of a controller's own type (`@p4runtime_translation`), not the program's.
    pub translated: bool,
    /// A field of packet-in or packet-out that is only there to fill a byte (`@padding`).
    pub padding: bool,
}

/// A table, as controllers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TableInfo {
    preamble: Preamble,
    keys: Vec<Part>,
    actions: Vec<(u32, String)>,
}

/// Any other object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Object {
    preamble: Preamble,
    parts: Vec<Part>,
    size: Option<u32>,
    max_group_size: u32,
    unit: String,
    /// The table to which a direct counter or meter belongs.
    table: Option<u32>,
}

/// P4Info.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct P4Info {
    tables: Vec<TableInfo>,
    /// By kind: the name of the field in `P4Info`.
    objects: HashMap<&'static str, Vec<Object>>,
}

/// Kinds of objects but tables, and the field that holds their parts.
const OBJECTS: [(&str, &str); 10] = [
    ("actions", "params"),
    ("action_profiles", ""),
    ("counters", ""),
    ("direct_counters", ""),
    ("meters", ""),
    ("direct_meters", ""),
    ("registers", ""),
    ("digests", ""),
    ("value_sets", "match"),
    ("controller_packet_metadata", "metadata"),
];

impl TableInfo {
    fn of(table: &Message, preamble: Preamble) -> Read<Self> {
        let action = |action: &Message| Ok((action.number("id")?, action.text("scope").to_owned()));
        Ok(TableInfo {
            preamble,
            keys: table.messages("match_fields").map(part).collect::<Read<_>>()?,
            actions: table.messages("action_refs").map(action).collect::<Read<_>>()?,
        })
    }
}

impl Object {
    /// An object whose parts are called `parts` in P4Info.
    fn of(object: &Message, preamble: Preamble, parts: &str) -> Read<Self> {
        let spec = object.messages("spec").next();
        Ok(Object {
            preamble,
            parts: object.messages(parts).map(part).collect::<Read<_>>()?,
            size: object.size("size"),
            max_group_size: object.number("max_group_size")?,
            unit: spec.map_or("", |spec| spec.text("unit")).to_owned(),
            table: object.size("direct_table_id"),
        })
    }
}

impl P4Info {
    /// Reads text or binary: whichever it is.
    ///
    /// # Errors
    ///
    /// The bytes are neither, or something in it is no P4Info.
    pub fn parse(bytes: &[u8]) -> Result<Self, LoadError> {
        if bytes.len() > crate::limits::TEXT {
            return Err(LoadError::TooLong(bytes.len()));
        }
        // Text has no control characters; the binary form is full of them, as tags and lengths.
        let binary = bytes.iter().any(|byte| matches!(byte, 0..=8 | 14..=31));
        let message = if binary {
            wire::parse(bytes)
        } else {
            text::parse(bytes)
        };
        message
            .and_then(|message| Self::of(&message))
            .map_err(LoadError::P4Info)
    }

    fn of(message: &Message) -> Result<Self, At> {
        let mut info = Self::default();
        let many = |message: &Message, most: usize| message.fields.len() > most;
        if many(message, OBJECTS_AT_MOST) {
            return wrong("too many objects");
        }
        for (kind, object) in &message.fields {
            if matches!(object, Field::Message(object) if many(object, PARTS_AT_MOST)) {
                return wrong("an object with too many parts").within(|| kind.clone());
            }
        }
        for table in message.messages("tables") {
            let preamble = preamble(table)?;
            let name = preamble.name.clone();
            let table = TableInfo::of(table, preamble);
            info.tables.push(table.within(|| format!("tables {name:?}"))?);
        }
        for (kind, parts) in OBJECTS {
            let mut objects = Vec::new();
            for object in message.messages(kind) {
                let preamble = preamble(object).within(|| kind.to_owned())?;
                let name = preamble.name.clone();
                let object = Object::of(object, preamble, parts);
                objects.push(object.within(|| format!("{kind} {name:?}"))?);
            }
            info.objects.insert(kind, objects);
        }
        info.unique()?;
        Ok(info)
    }

    /// No two objects have one number.
    fn unique(&self) -> Read<()> {
        let mut ids = std::collections::HashSet::new();
        let objects = self.objects.values().flatten().map(|object| &object.preamble);
        for preamble in self.tables.iter().map(|table| &table.preamble).chain(objects) {
            if !ids.insert(preamble.id) {
                return wrong(format!("another object has number {}, too", preamble.id))
                    .within(|| format!("{:?}", preamble.name));
            }
        }
        Ok(())
    }
}

fn preamble(object: &Message) -> Read<Preamble> {
    let Some(preamble) = object.messages("preamble").next() else {
        return wrong("an object without a preamble");
    };
    let (id, name) = (preamble.number("id")?, preamble.text("name").to_owned());
    if id == 0 || name.is_empty() {
        return wrong("a preamble without number or name");
    }
    let alias = preamble.text("alias");
    let alias = if alias.is_empty() {
        name.clone()
    } else {
        alias.to_owned()
    };
    Ok(Preamble { id, name, alias })
}

fn part(part: &Message) -> Read<Part> {
    Ok(Part {
        id: part.number("id")?,
        name: part.text("name").to_owned(),
        width: part.number("bitwidth")?,
        kind: part.text("match_type").to_owned(),
        translated: part.messages("type_name").next().is_some(),
        padding: part
            .all("annotations")
            .any(|one| matches!(one, Field::Text(text) if text.starts_with("@padding"))),
    })
}
