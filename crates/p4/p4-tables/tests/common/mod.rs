//! Short forms to make layouts, patterns and entries.

use p4_tables::{Entry, KeyField, KeyLayout, Match, MatchKind, Pattern, Target};

pub fn layout(fields: &[(MatchKind, u32)]) -> KeyLayout {
    let fields: Vec<KeyField> = fields
        .iter()
        .map(|&(kind, width)| KeyField { kind, width })
        .collect();
    KeyLayout::new(&fields).unwrap()
}

pub fn action(action: u32, argument: u64) -> Target {
    Target::Action {
        action,
        arguments: [argument].as_slice().into(),
    }
}

pub fn entry(pattern: Pattern, target: Target) -> Entry {
    Entry {
        pattern,
        priority: 0,
        target,
        idle_timeout_ns: 0,
    }
}

pub fn exact(layout: &KeyLayout, value: u64) -> Pattern {
    layout.pattern(&[Match::Exact(&[value])]).unwrap()
}
