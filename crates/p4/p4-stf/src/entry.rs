//! Makes entries from a script's commands.
//!
//! A key that is not given is zero if it is exact, and anything otherwise. The digits that are written decide
//! masks and prefix lengths: `0xc0a8****` is 16 bits of prefix, and in a ternary key 16 bits of mask.

use p4_ir::{Action, Bits, Key, KeyMatch, MatchKind, Program, Table};
use p4_tables::{KeyLayout, Match, Pattern, Target, Words};

use crate::error::{CommandError, NameError};
use crate::names;
use crate::number::{Digits, and, ones};
use crate::script::{Add, KeyValue};

/// The pattern for an entry of a table with this layout.
pub(crate) fn pattern(table: &Table, layout: &KeyLayout, add: &Add) -> Result<Pattern, CommandError> {
    let mut given: Vec<Option<&KeyValue>> = vec![None; table.keys.len()];
    for (name, value) in &add.keys {
        let key = names::key(table, name)?;
        if given[key].replace(value).is_some() {
            return Err(CommandError::RepeatedKey(name.clone()));
        }
    }
    let values = table
        .keys
        .iter()
        .zip(given)
        .map(|(key, value)| meaning(key, value));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    let matches: Vec<Match<'_>> = values.iter().map(Meaning::as_match).collect();
    layout.pattern(&matches).map_err(|error| match error.key_field() {
        // Tables know keys by number, people by name.
        Some(field) => CommandError::Key {
            key: table.keys[field].name.clone(),
            problem: error.to_string().replacen(&format!("key field {field}"), "", 1),
        },
        None => error.into(),
    })
}

/// The keys of an entry of a table, as a program has them. Values that are too large for a key are cut:
/// [`pattern`] finds them.
pub(crate) fn keys(table: &Table, add: &Add) -> Result<Vec<KeyMatch>, CommandError> {
    let given = |key: &Key| {
        let named = |(name, _): &&(String, KeyValue)| {
            let position = names::key(table, name);
            position.is_ok_and(|position| std::ptr::eq(&table.keys[position], key))
        };
        add.keys.iter().find(named).map(|(_, value)| value)
    };
    let keys = table.keys.iter().map(|key| {
        let width = key.width;
        Ok(match meaning(key, given(key))? {
            Meaning::Exact(value) => KeyMatch::Exact(bits(&value, width)),
            Meaning::Lpm(value, length) => {
                KeyMatch::Lpm(bits(&value, width), length.min(width.into()) as u16)
            }
            Meaning::Ternary(value, mask) => {
                KeyMatch::Ternary(bits(&and(&value, &mask), width), bits(&mask, width))
            }
            Meaning::Range(low, high) => KeyMatch::Range(bits(&low, width), bits(&high, width)),
            Meaning::Optional(value) => KeyMatch::Optional(value.map(|value| bits(&value, width))),
        })
    });
    keys.collect()
}

/// The low `width` bits of a number of 64-bit words, the least significant first.
pub(crate) fn bits(words: &[u64], width: u16) -> Bits {
    let bytes: Vec<u8> = words.iter().rev().flat_map(|word| word.to_be_bytes()).collect();
    Bits::from_bytes(width, &bytes)
}

/// The action that an entry of a table names, with its arguments.
pub(crate) fn target(program: &Program, table: &Table, add: &Add) -> Result<Target, CommandError> {
    let number = names::action(program, table, &add.action)?;
    let action = &program.actions[number];
    let mut values: Vec<Option<&Digits>> = vec![None; action.parameters.len()];
    for (name, value) in &add.arguments {
        let position = action
            .parameters
            .iter()
            .position(|parameter| parameter.name == *name);
        let position = position.ok_or_else(|| no_parameter(action, name))?;
        if values[position].replace(value).is_some() {
            return Err(CommandError::RepeatedArgument(name.clone()));
        }
    }
    let mut arguments = Words::new();
    for (parameter, value) in action.parameters.iter().zip(values) {
        let value = value.ok_or_else(|| CommandError::MissingArgument(parameter.name.clone()))?;
        let width = u32::from(parameter.width);
        let value = fitted(&value.value, width).ok_or_else(|| CommandError::ArgumentTooLarge {
            name: parameter.name.clone(),
            width,
        })?;
        arguments.extend(value);
    }
    Ok(Target::Action {
        action: number as u32,
        arguments,
    })
}

fn no_parameter(action: &Action, name: &str) -> NameError {
    let parameters = action.parameters.iter();
    NameError::UnknownParameter {
        action: action.identity.name.clone(),
        name: name.to_owned(),
        known: parameters.map(|parameter| parameter.name.clone()).collect(),
    }
}

/// A number in as many words as its width has; `None` if it does not fit.
pub(crate) fn fitted(value: &[u64], width: u32) -> Option<Words> {
    let all = ones(width);
    let mut words = and(value, &all);
    let fits = value
        .iter()
        .enumerate()
        .all(|(index, &word)| words.get(index).copied().unwrap_or(0) == word);
    words.resize(all.len(), 0);
    fits.then_some(words)
}

/// A command's match of a key, with the values to which a [`Match`] refers.
enum Meaning {
    Exact(Words),
    Lpm(Words, u32),
    Ternary(Words, Words),
    Optional(Option<Words>),
    Range(Words, Words),
}

impl Meaning {
    fn as_match(&self) -> Match<'_> {
        match self {
            Meaning::Exact(value) => Match::Exact(value),
            Meaning::Lpm(value, length) => Match::Lpm {
                value,
                length: *length,
            },
            Meaning::Ternary(value, mask) => Match::Ternary { value, mask },
            Meaning::Optional(value) => Match::Optional(value.as_deref()),
            Meaning::Range(low, high) => Match::Range { low, high },
        }
    }
}

fn meaning(key: &Key, value: Option<&KeyValue>) -> Result<Meaning, CommandError> {
    let width = u32::from(key.width);
    let any = || Meaning::Range(Words::new(), ones(width));
    let wrong = || Err(CommandError::WrongKind(key.name.clone()));
    Ok(match (key.kind, value) {
        (MatchKind::Exact, None) => Meaning::Exact(Words::new()),
        (MatchKind::Lpm, None) => Meaning::Lpm(Words::new(), 0),
        (MatchKind::Ternary, None) => Meaning::Ternary(Words::new(), Words::new()),
        (MatchKind::Optional, None) => Meaning::Optional(None),
        (MatchKind::Range, None) => any(),
        (MatchKind::Range, Some(KeyValue::Range(low, high))) => {
            Meaning::Range(low.value.clone(), high.value.clone())
        }
        (MatchKind::Lpm, Some(KeyValue::Prefix(value, length))) => Meaning::Lpm(value.value.clone(), *length),
        (kind, Some(KeyValue::Digits(digits))) => match kind {
            MatchKind::Exact if digits.has_gaps() => return wrong(),
            MatchKind::Exact => Meaning::Exact(digits.value.clone()),
            MatchKind::Lpm if digits.bits == 0 => Meaning::Lpm(digits.value.clone(), width),
            MatchKind::Lpm => Meaning::Lpm(
                digits.value.clone(),
                (digits.known as u32 * digits.bits).min(width),
            ),
            MatchKind::Ternary if digits.bits == 0 => Meaning::Ternary(digits.value.clone(), ones(width)),
            MatchKind::Ternary => Meaning::Ternary(digits.value.clone(), and(&digits.mask, &ones(width))),
            MatchKind::Optional if digits.known == 0 => Meaning::Optional(None),
            MatchKind::Optional if digits.has_gaps() => return wrong(),
            MatchKind::Optional => Meaning::Optional(Some(digits.value.clone())),
            MatchKind::Range if digits.known == 0 => any(),
            MatchKind::Range if digits.has_gaps() => return wrong(),
            MatchKind::Range => Meaning::Range(digits.value.clone(), digits.value.clone()),
        },
        _ => return wrong(),
    })
}
