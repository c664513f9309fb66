//! Entries of tables: from the form of P4Runtime to that of programs, and back.
//!
//! What a client may not say is an `INVALID_ARGUMENT` that names the field. A key that matches anything is
//! left out in P4Runtime, so that each entry has one form.

use crate::bytestring;
use crate::failure::{Done, Failure};
use crate::proto::{
    self, ExactMatch, FieldMatch, FieldMatchType, LpmMatch, OptionalMatch, Param, RangeMatch, TernaryMatch,
};
pub use p4_ir::changes::EntryKey;
use p4_ir::{ActionId, Bits, EntryAction, Key, KeyMatch, MatchKind, Program, Table};

/// Whether the entries of a table have priorities.
#[must_use]
pub fn has_priorities(table: &Table) -> bool {
    let by_priority = |key: &Key| {
        matches!(
            key.kind,
            MatchKind::Ternary | MatchKind::Range | MatchKind::Optional
        )
    };
    table.keys.iter().any(by_priority)
}

/// Reads the key of an entry.
///
/// # Errors
/// A field is wrong, missing, there twice, or no key of the table; or the priority is.
pub fn read_key(table: &Table, fields: &[FieldMatch], priority: i32) -> Done<EntryKey> {
    let priority = match (u32::try_from(priority), has_priorities(table)) {
        (Ok(0), true) | (Err(_), true) => return Err(Failure::invalid("the priority must be above 0")),
        (Ok(priority), true) => priority,
        (Ok(0), false) => 0,
        (_, false) => return Err(Failure::invalid("entries of this table have no priority")),
    };
    let keys = read_matches(&table.keys, fields)?;
    Ok(EntryKey { keys, priority })
}

/// Reads the matches of keys, or of a value set's parts.
///
/// # Errors
/// A field is wrong, missing, there twice, or no key.
pub fn read_matches(keys: &[Key], fields: &[FieldMatch]) -> Done<Vec<KeyMatch>> {
    let is_known = |field: &&FieldMatch| keys.iter().any(|key| key.id == field.field_id);
    if let Some(field) = fields.iter().find(|field| !is_known(field)) {
        let id = field.field_id;
        return Err(Failure::invalid(format_args!("there is no key {id}")));
    }
    let key = |key: &Key| {
        let mut given = fields.iter().filter(|field| field.field_id == key.id);
        let name = format_args!("key {}", key.name).to_string();
        match (given.next(), given.next()) {
            (_, Some(_)) => Err(Failure::invalid("it is given twice")),
            (None, None) => anything(key),
            (Some(field), None) => read_match(key, field.field_match_type.as_ref()),
        }
        .map_err(|failure| failure.within(name))
    };
    keys.iter().map(key).collect()
}

/// The match of a key that is left out.
fn anything(key: &Key) -> Done<KeyMatch> {
    let (zero, ones) = (Bits::zero(key.width), Bits::ones(key.width));
    Ok(match key.kind {
        MatchKind::Exact => return Err(Failure::invalid("an exact key cannot be left out")),
        MatchKind::Lpm => KeyMatch::Lpm(zero, 0),
        MatchKind::Ternary => KeyMatch::Ternary(zero.clone(), zero),
        MatchKind::Range => KeyMatch::Range(zero, ones),
        MatchKind::Optional => KeyMatch::Optional(None),
    })
}

fn read_match(key: &Key, given: Option<&FieldMatchType>) -> Done<KeyMatch> {
    let read = |bytes: &[u8]| bytestring::read(bytes, key.width);
    let left_out = "a match of any value must be left out";
    Ok(match (key.kind, given) {
        (MatchKind::Exact, Some(FieldMatchType::Exact(given))) => KeyMatch::Exact(read(&given.value)?),
        (MatchKind::Optional, Some(FieldMatchType::Optional(given))) => {
            KeyMatch::Optional(Some(read(&given.value)?))
        }
        (MatchKind::Lpm, Some(FieldMatchType::Lpm(given))) => {
            let length = u16::try_from(given.prefix_len)
                .ok()
                .filter(|length| *length <= key.width);
            let length = length.ok_or_else(|| Failure::invalid("the prefix is longer than the key"))?;
            if length == 0 {
                return Err(Failure::invalid(left_out));
            }
            let value = read(&given.value)?;
            require_within(&value, &Bits::prefix(key.width, length))?;
            KeyMatch::Lpm(value, length)
        }
        (MatchKind::Ternary, Some(FieldMatchType::Ternary(given))) => {
            let (value, mask) = (read(&given.value)?, read(&given.mask)?);
            if mask == Bits::zero(key.width) {
                return Err(Failure::invalid(left_out));
            }
            require_within(&value, &mask)?;
            KeyMatch::Ternary(value, mask)
        }
        (MatchKind::Range, Some(FieldMatchType::Range(given))) => {
            let (low, high) = (read(&given.low)?, read(&given.high)?);
            // Both have the same number of bytes.
            if low.bytes() > high.bytes() {
                return Err(Failure::invalid("the range ends before it begins"));
            }
            if low == Bits::zero(key.width) && high == Bits::ones(key.width) {
                return Err(Failure::invalid(left_out));
            }
            KeyMatch::Range(low, high)
        }
        (kind, _) => {
            return Err(Failure::invalid(format_args!(
                "a match of kind {kind:?} is wanted"
            )));
        }
    })
}

/// No bit of the value may be outside of the mask.
fn require_within(value: &Bits, mask: &Bits) -> Done<()> {
    let mut pairs = value.bytes().iter().zip(mask.bytes());
    match pairs.all(|(value, mask)| value & !mask == 0) {
        true => Ok(()),
        false => Err(Failure::invalid("the value has bits that its mask does not have")),
    }
}

/// Writes the key of an entry.
#[must_use]
pub fn write_key(table: &Table, keys: &[KeyMatch]) -> Vec<FieldMatch> {
    write_matches(&table.keys, keys)
}

/// Writes matches of keys, or of a value set's parts.
#[must_use]
pub fn write_matches(keys: &[Key], own: &[KeyMatch]) -> Vec<FieldMatch> {
    let field = |(key, own): (&Key, &KeyMatch)| {
        Some(FieldMatch {
            field_id: key.id,
            field_match_type: Some(write_match(own)?),
        })
    };
    keys.iter().zip(own).filter_map(field).collect()
}

/// Writes a match; none if it matches anything.
fn write_match(own: &KeyMatch) -> Option<FieldMatchType> {
    let write = bytestring::write;
    let is_zero = |bits: &Bits| bits.bytes().iter().all(|byte| *byte == 0);
    Some(match own {
        KeyMatch::Exact(value) => FieldMatchType::Exact(ExactMatch { value: write(value) }),
        KeyMatch::Lpm(_, 0) | KeyMatch::Optional(None) => return None,
        KeyMatch::Lpm(value, length) => FieldMatchType::Lpm(LpmMatch {
            value: write(value),
            prefix_len: i32::from(*length),
        }),
        KeyMatch::Ternary(_, mask) if is_zero(mask) => return None,
        KeyMatch::Ternary(value, mask) => FieldMatchType::Ternary(TernaryMatch {
            value: write(value),
            mask: write(mask),
        }),
        KeyMatch::Range(low, high) if is_zero(low) && *high == Bits::ones(high.width()) => return None,
        KeyMatch::Range(low, high) => FieldMatchType::Range(RangeMatch {
            low: write(low),
            high: write(high),
        }),
        KeyMatch::Optional(Some(value)) => FieldMatchType::Optional(OptionalMatch { value: write(value) }),
    })
}

/// Reads an action with its arguments, of an entry or of the table's default.
///
/// # Errors
/// The table has no such action, or not there; an argument is wrong, missing, there twice, or unknown.
pub fn read_action(
    program: &Program,
    table: &Table,
    given: &proto::Action,
    default: bool,
) -> Done<EntryAction> {
    let id = given.action_id;
    let is_meant = |action: ActionId| program.actions[action.index()].identity.id == Some(id);
    let mut found = table.actions.iter().filter(|own| is_meant(own.action));
    let allowed = |own: &&p4_ir::TableAction| !(if default { own.table_only } else { own.default_only });
    let own = match (found.clone().find(allowed), found.next()) {
        (Some(own), _) => own,
        (None, Some(_)) if default => return Err(Failure::denied(format_args!("action {id} is no default"))),
        (None, Some(_)) => {
            return Err(Failure::denied(format_args!(
                "action {id} is for the default only"
            )));
        }
        (None, None) => return Err(Failure::invalid(format_args!("the table has no action {id}"))),
    };
    let action = &program.actions[own.action.index()];
    let is_known = |param: &&Param| action.parameters.iter().any(|own| own.id == param.param_id);
    if let Some(param) = given.params.iter().find(|param| !is_known(param)) {
        let (name, id) = (&action.identity.name, param.param_id);
        return Err(Failure::invalid(format_args!(
            "action {name} has no parameter {id}"
        )));
    }
    let argument = |own: &p4_ir::Parameter| {
        let mut meant = given.params.iter().filter(|param| param.param_id == own.id);
        match (meant.next(), meant.next()) {
            (Some(param), None) => bytestring::read(&param.value, own.width),
            (Some(_), Some(_)) => Err(Failure::invalid("it is given twice")),
            (None, _) => Err(Failure::invalid("it is missing")),
        }
        .map_err(|failure| failure.within(format_args!("parameter {}", own.name)))
    };
    Ok(EntryAction {
        action: own.action,
        arguments: action.parameters.iter().map(argument).collect::<Done<_>>()?,
    })
}

/// Writes an action; none if P4Info does not have it.
#[must_use]
pub fn write_action(program: &Program, own: &EntryAction) -> Option<proto::Action> {
    let action = &program.actions[own.action.index()];
    let params = action.parameters.iter().zip(&own.arguments);
    Some(proto::Action {
        action_id: action.identity.id?,
        params: params
            .map(|(parameter, value)| Param {
                param_id: parameter.id,
                value: bytestring::write(value),
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn field(field_id: u32, kind: FieldMatchType) -> FieldMatch {
        let field_match_type = Some(kind);
        FieldMatch {
            field_id,
            field_match_type,
        }
    }

    fn lpm(value: &[u8], prefix_len: i32) -> FieldMatchType {
        let value = value.to_vec();
        FieldMatchType::Lpm(LpmMatch { value, prefix_len })
    }

    fn ternary(value: &[u8], mask: &[u8]) -> FieldMatchType {
        let (value, mask) = (value.to_vec(), mask.to_vec());
        FieldMatchType::Ternary(TernaryMatch { value, mask })
    }

    fn range(low: &[u8], high: &[u8]) -> FieldMatchType {
        let (low, high) = (low.to_vec(), high.to_vec());
        FieldMatchType::Range(RangeMatch { low, high })
    }

    fn exact(value: &[u8]) -> FieldMatchType {
        FieldMatchType::Exact(ExactMatch {
            value: value.to_vec(),
        })
    }

    fn optional(value: &[u8]) -> FieldMatchType {
        FieldMatchType::Optional(OptionalMatch {
            value: value.to_vec(),
        })
    }

    /// A table with one key of a kind, 12 bits wide.
    fn table(kind: MatchKind) -> Table {
        let (_, program) = testing::program("router");
        let mut table = program.tables[0].clone();
        table.keys.truncate(1);
        table.keys[0].kind = kind;
        table.keys[0].width = 12;
        table.keys[0].id = 3;
        table
    }

    #[test]
    fn matches_come_back_as_they_were_given() {
        let cases = [
            (MatchKind::Exact, exact(&[0x0f, 0xff])),
            (MatchKind::Lpm, lpm(&[0x0a, 0xb0], 8)),
            (MatchKind::Ternary, ternary(&[1], &[0x0f, 1])),
            (MatchKind::Range, range(&[0], &[0x0f, 0xfe])),
            (MatchKind::Optional, optional(&[0])),
        ];
        for (kind, given) in cases {
            let (table, priority) = (
                table(kind),
                i32::from(kind != MatchKind::Exact && kind != MatchKind::Lpm),
            );
            let fields = [field(3, given)];
            let key = read_key(&table, &fields, priority).unwrap();
            assert_eq!(write_key(&table, &key.keys), fields);
            if kind != MatchKind::Exact {
                let any = read_key(&table, &[], priority).unwrap();
                assert!(write_key(&table, &any.keys).is_empty(), "{kind:?}");
            }
        }
    }

    #[test]
    fn wrong_matches_are_refused() {
        let cases = [
            (MatchKind::Exact, vec![]),
            (MatchKind::Exact, vec![exact(&[])]),
            (MatchKind::Exact, vec![exact(&[0x10, 0])]),
            (MatchKind::Exact, vec![exact(&[1]), exact(&[1])]),
            (MatchKind::Exact, vec![ternary(&[1], &[1])]),
            (MatchKind::Lpm, vec![lpm(&[0], 0)]),
            (MatchKind::Lpm, vec![lpm(&[0], 13)]),
            (MatchKind::Lpm, vec![lpm(&[0], -1)]),
            (MatchKind::Lpm, vec![lpm(&[0x0a, 0xb1], 8)]),
            (MatchKind::Ternary, vec![ternary(&[0], &[0])]),
            (MatchKind::Ternary, vec![ternary(&[2], &[1])]),
            (MatchKind::Ternary, vec![exact(&[1])]),
            (MatchKind::Range, vec![range(&[2], &[1])]),
            (MatchKind::Range, vec![range(&[0], &[0x0f, 0xff])]),
            (MatchKind::Optional, vec![exact(&[1])]),
        ];
        for (kind, given) in cases {
            let (table, priority) = (
                table(kind),
                i32::from(kind != MatchKind::Exact && kind != MatchKind::Lpm),
            );
            let fields: Vec<_> = given.into_iter().map(|kind| field(3, kind)).collect();
            let failure = read_key(&table, &fields, priority).unwrap_err();
            assert_eq!(failure.code, tonic::Code::InvalidArgument, "{kind:?} {fields:?}");
        }
        let exact_table = table(MatchKind::Exact);
        read_key(&exact_table, &[field(3, exact(&[1]))], 1).unwrap_err();
        read_key(&exact_table, &[field(3, exact(&[1])), field(4, exact(&[1]))], 0).unwrap_err();
        read_key(&table(MatchKind::Ternary), &[], 0).unwrap_err();
        read_key(&table(MatchKind::Ternary), &[], -1).unwrap_err();
    }

    #[test]
    fn actions_come_back_as_they_were_given_and_wrong_ones_are_refused() {
        let (_, program) = testing::program("router");
        let table = testing::table(&program, "next_hops");
        let param = |param_id, value: &[u8]| Param {
            param_id,
            value: value.to_vec(),
        };
        let action_id = testing::action(&program, "send");
        let given = |params: &[Param]| proto::Action {
            action_id,
            params: params.to_vec(),
        };
        let right = given(&[param(1, &[1]), param(2, &[2, 0, 0, 0, 1, 1])]);
        let own = read_action(&program, table, &right, false).unwrap();
        assert_eq!(write_action(&program, &own), Some(right));
        let wrong = [
            given(&[param(1, &[1])]),
            given(&[param(1, &[1]), param(2, &[1]), param(3, &[1])]),
            given(&[param(1, &[1]), param(1, &[1]), param(2, &[1])]),
            given(&[param(1, &[2, 0]), param(2, &[1])]),
            given(&[param(1, &[]), param(2, &[1])]),
            proto::Action::default(),
        ];
        for wrong in wrong {
            let failure = read_action(&program, table, &wrong, false).unwrap_err();
            assert_eq!(failure.code, tonic::Code::InvalidArgument, "{wrong:?}");
        }
        let mut table = table.clone();
        table.actions.iter_mut().for_each(|own| own.default_only = true);
        let right = given(&[param(1, &[1]), param(2, &[1])]);
        let failure = read_action(&program, &table, &right, false).unwrap_err();
        assert_eq!(failure.code, tonic::Code::PermissionDenied);
        read_action(&program, &table, &right, true).unwrap();
    }
}
