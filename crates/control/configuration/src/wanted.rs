//! What each key of a file wants, for users who gave something else.
//!
//! Values with types of their own say that themselves (`value`). Tables, lists and plain values do not: the
//! parser's words for them are those of its programming language. Their shapes are checked first, since the
//! parser takes a list for a table.

use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Wrong at a place of the file.
pub(crate) struct Wrong {
    pub at: usize,
    pub message: String,
}

const OF_GROUP: &str = "a list of rules: [{ protocol = \"tcp\", destination-port = 443 }, ...]";

/// Tables and lists of tables, and how they are written.
const SHAPES: [(&str, Shape, &str); 16] = [
    (
        "switch",
        Shape::Tables,
        "a list of tables: each switch begins with [[switch]]",
    ),
    (
        "port",
        Shape::Tables,
        "a list of tables: each port begins with [[switch.port]], below its switch",
    ),
    (
        "host",
        Shape::Table,
        "a table: [switch.host], or { interface = \"NAME\", addresses = [...] }",
    ),
    (
        "vlan",
        Shape::Table,
        "a table: { access = N }, { trunk = [N, ...], native = N } or { primary = N, isolated = N }",
    ),
    (
        "set",
        Shape::Tables,
        "a list of tables: each set begins with [[set]]",
    ),
    (
        "acl",
        Shape::Tables,
        "a list of tables: each list begins with [[acl]]",
    ),
    (
        "rule",
        Shape::Tables,
        "a list of tables: rule = [{ action = \"allow\", protocol = \"tcp\" }, ...], or [[acl.rule]] below the list",
    ),
    (
        "security-group",
        Shape::Tables,
        "a list of tables: each group begins with [[security-group]]",
    ),
    (
        "mirror",
        Shape::Tables,
        "a list of tables: each mirror begins with [[mirror]]",
    ),
    (
        "p4",
        Shape::Tables,
        "a list of tables: each program begins with [[p4]]",
    ),
    ("to", Shape::Tables, OF_GROUP),
    ("from", Shape::Tables, OF_GROUP),
    ("placement", Shape::Table, "a table: [placement]"),
    ("ovs", Shape::Table, "a table: [ovs]"),
    ("p4runtime", Shape::Table, "a table: [p4runtime]"),
    (
        "device",
        Shape::Tables,
        "a list of tables: each device begins with [[p4runtime.device]]",
    ),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Table,
    Tables,
}

const ACTIONS: &str = "\"allow\", \"drop\" or \"reject\"";

/// Plain values. Keys of the same name want the same, but for `mode` and `type`, whose tables have other
/// names.
const PLAIN: &[(&str, &str, &str)] = &[
    // A `vlan` has a key of this name, which is no table.
    ("", "access", "a table: [access]"),
    ("", "view", "a table: [view]"),
    ("switch", "type", "\"private\", \"internal\" or \"external\""),
    ("port", "type", "\"vhost-user\" or \"tap\""),
    ("port", "mode", "\"server\" or \"client\""),
    (
        "placement",
        "mode",
        "\"hyperswitch\", \"poll\", \"thread-per-vnic\" or \"driver-domain\"",
    ),
    (
        "placement",
        "priority",
        "\"auto\", \"realtime\", \"nice\", \"slice\" or \"normal\"",
    ),
    (
        "placement",
        "dedicated-cores",
        "a list of CPU numbers, 0 to 65535",
    ),
    ("placement", "copy-limit", "a number from 1 to 1024"),
    ("switch", "contested-macs", "\"deliver\" or \"drop\""),
    (
        "port",
        "guards",
        "a list of \"spoof\", \"dhcp\", \"router\" and \"bpdu\"",
    ),
    ("port", "security-groups", "a list of names of security groups"),
    (
        "port",
        "address-source",
        "\"configuration\", \"dhcp\" or \"first-use\"",
    ),
    ("vlan", "promiscuous", "a list of VLAN identifiers, 1 to 4094"),
    (
        "port",
        "allowed-pairs",
        "a list like [{ mac = \"52:54:00:00:00:01\", address = \"10.0.0.9\" }]",
    ),
    (
        "set",
        "addresses",
        "a list of IP addresses and networks like [\"10.0.0.0/8\", \"fd00::1\"]",
    ),
    (
        "set",
        "macs",
        "a list of MAC addresses and blocks like [\"52:54:00:00:00:00/24\"]",
    ),
    ("set", "ports", "a list of names of ports"),
    ("mirror", "sources", "a list of names of ports"),
    ("mirror", "packets", "a list of \"from\", \"to\" and \"dropped\""),
    ("p4", "program", "the path of a file, in quotes"),
    ("p4", "p4info", "the path of a file, in quotes"),
    ("p4", "entries", "a list of paths of files"),
    ("p4", "ports", "a list like [\"1=web\", \"2=db\"]"),
    ("acl", "default", ACTIONS),
    ("rule", "action", ACTIONS),
    ("rule", "priority", "a number from 0 to 65535"),
    ("rule", "fragments", "\"none\", \"first\" or \"later\""),
    ("port", "socket", "the path of a socket, in quotes"),
    ("ovs", "database", "the path of a socket, in quotes"),
    (
        "p4runtime",
        "listen",
        "an address and a port like \"127.0.0.1:9559\"",
    ),
    ("device", "cpu-port", "a number from 0 to 510"),
    ("device", "ports", "a list like [\"1=web\", \"2=db\"]"),
    (
        "port",
        "static-macs",
        "a list of unicast MAC addresses like [\"52:54:00:00:00:01\"]",
    ),
    (
        "port",
        "addresses",
        "a list of IP addresses with prefix length like [\"10.0.0.1/24\"]",
    ),
    (
        "host",
        "addresses",
        "a list of IP addresses with prefix length like [\"10.0.0.1/24\"]",
    ),
];

/// Words of the parser that mean nothing to users.
const FOREIGN: [&str; 9] = [
    "expected struct",
    "expected u16",
    "expected u32",
    "expected a sequence",
    "expected path string",
    "expected a boolean",
    "expected a string",
    "__toml_private",
    "wanted ",
];

/// The first table or list of tables that is something else.
pub(crate) fn misshapen(table: &DeTable<'_>) -> Option<Wrong> {
    table.iter().find_map(|(key, value)| {
        let key = key.get_ref().as_ref();
        // Rules and mirrors are about a tag, and have no tables; nor have P4 programs.
        let has_no_tables = matches!(key, "rule" | "to" | "from" | "mirror" | "p4");
        let below = |tables: Vec<_>| tables.into_iter().find_map(misshapen);
        of_wrong_shape(key, value).or_else(|| (!has_no_tables).then(|| below(children(value)))?)
    })
}

fn of_wrong_shape(key: &str, value: &Spanned<DeValue<'_>>) -> Option<Wrong> {
    let (_, shape, wanted) = SHAPES.iter().find(|(name, ..)| *name == key)?;
    let is_right = match (shape, value.get_ref()) {
        (Shape::Table, DeValue::Table(_)) => true,
        (Shape::Tables, DeValue::Array(all)) => {
            all.iter().all(|one| matches!(one.get_ref(), DeValue::Table(_)))
        }
        _ => false,
    };
    (!is_right).then(|| Wrong {
        at: value.span().start,
        message: says(key, value.get_ref(), wanted),
    })
}

/// The tables in a value.
fn children<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Vec<&'a DeTable<'i>> {
    match value.get_ref() {
        DeValue::Table(table) => vec![table],
        DeValue::Array(all) => all.iter().filter_map(|one| one.get_ref().as_table()).collect(),
        _ => Vec::new(),
    }
}

/// The parser's message about what lies at `offset`, in words of users.
pub(crate) fn reworded(tree: &Spanned<DeTable<'_>>, offset: usize, message: &str) -> String {
    if !FOREIGN.iter().any(|word| message.contains(word)) {
        return plain_words(message);
    }
    let Some(found) = innermost("", tree.get_ref(), offset) else {
        return plain_words(message);
    };
    match wanted(&found.table, &found.key) {
        Some(wanted) => says(&found.key, found.value, wanted),
        None => plain_words(message),
    }
}

fn says(key: &str, value: &DeValue<'_>, wanted: &str) -> String {
    format!("`{key}` is {}, expected {wanted}", kind(value))
}

fn wanted(table: &str, key: &str) -> Option<&'static str> {
    let of = |(in_table, name, _): &&(&str, &str, &str)| *in_table == table && *name == key;
    if let Some((.., wanted)) = PLAIN.iter().find(of) {
        return Some(wanted);
    }
    if key.ends_with("-us") {
        return Some("a number of microseconds, 0 to 10000");
    }
    // What is left are switches.
    (table != "vlan").then_some("true or false")
}

fn kind(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string {text:?}"),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".into(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

fn plain_words(message: &str) -> String {
    message
        .replace("type: map,", "type: table,")
        .replace("type: sequence,", "type: list,")
        .replace("` as i128,", "`,")
        .replace(" element,", " value,")
}

/// A key with its value, and the name of the table that it is in.
struct Found<'a, 'i> {
    table: String,
    key: String,
    value: &'a DeValue<'i>,
}

/// The key whose value is the smallest one around a place.
fn innermost<'a, 'i>(name: &str, table: &'a DeTable<'i>, offset: usize) -> Option<Found<'a, 'i>> {
    for (key, value) in table {
        let key = key.get_ref().as_ref();
        let below = children(value)
            .into_iter()
            .find_map(|child| innermost(key, child, offset));
        if below.is_some() {
            return below;
        }
        if is_in(&value.span(), offset) {
            return Some(Found {
                table: name.into(),
                key: key.into(),
                value: value.get_ref(),
            });
        }
    }
    None
}

fn is_in(span: &Range<usize>, offset: usize) -> bool {
    span.start <= offset && offset < span.end.max(span.start + 1)
}
