//! Which table, action, key or counter a name in a script means: the whole name, or its end.

use p4_ir::{Program, Table};

use crate::error::NameError;

/// The thing whose name is `name`; else the only one whose name ends with `.name`; else the only one whose
/// name ends with it.
///
/// # Errors
///
/// Nothing has that name, or several have.
pub(crate) fn find<'a>(
    what: &str,
    name: &str,
    all: impl Iterator<Item = (usize, &'a str)> + Clone,
) -> Result<usize, NameError> {
    let component = format!(".{name}");
    let rules: [&dyn Fn(&str) -> bool; 3] = [
        &|other| other == name,
        &|other| other.ends_with(&component),
        &|other| other.ends_with(name),
    ];
    for rule in rules {
        let mut matching = all.clone().filter(|(_, other)| rule(other));
        match (matching.next(), matching.next()) {
            (Some((index, _)), None) => return Ok(index),
            (Some((_, one)), Some((_, other))) => {
                return Err(ambiguous(what, name, one, other));
            }
            _ => {}
        }
    }
    Err(NameError::Unknown {
        what: what.to_owned(),
        name: name.to_owned(),
    })
}

fn ambiguous(what: &str, name: &str, one: &str, other: &str) -> NameError {
    NameError::Ambiguous {
        what: what.to_owned(),
        name: name.to_owned(),
        candidates: [one.to_owned(), other.to_owned()],
    }
}

/// The position of a table.
pub(crate) fn table(program: &Program, name: &str) -> Result<usize, NameError> {
    let all = program
        .tables
        .iter()
        .enumerate()
        .map(|(index, table)| (index, table.identity.name.as_str()));
    find("table", name, all)
}

/// The position of an action in the program, among those of a table.
pub(crate) fn action(program: &Program, table: &Table, name: &str) -> Result<usize, NameError> {
    let actions = table.actions.iter().map(|action| action.action.index());
    let all = actions.map(|index| (index, program.actions[index].identity.name.as_str()));
    find(&format!("action of table `{}`", table.identity.name), name, all)
}

/// The position of a key in a table: by its name, that of its validity, or the end of its name.
pub(crate) fn key(table: &Table, name: &str) -> Result<usize, NameError> {
    let name = with_brackets(name);
    let stem = name.strip_suffix(".valid").unwrap_or(&name);
    let mut exact = vec![name.clone(), format!("{name}$"), format!("{name}.$valid$")];
    if stem != name {
        exact.push(format!("{stem}.$valid$"));
        exact.push(format!("{stem}.isValid()"));
    }
    let position = |wanted: &str| table.keys.iter().position(|key| key.name == wanted);
    if let Some(index) = exact.iter().find_map(|wanted| position(wanted)) {
        return Ok(index);
    }
    let ends: Vec<String> = exact.iter().map(|wanted| format!(".{wanted}")).collect();
    for end in ends {
        let mut matching = (0..table.keys.len()).filter(|&index| table.keys[index].name.ends_with(&end));
        match (matching.next(), matching.next()) {
            (Some(index), None) => return Ok(index),
            (Some(one), Some(other)) => {
                let (one, other) = (&table.keys[one].name, &table.keys[other].name);
                let what = format!("key of table `{}`", table.identity.name);
                return Err(ambiguous(&what, &name, one, other));
            }
            _ => {}
        }
    }
    Err(NameError::UnknownKey {
        table: table.identity.name.clone(),
        known: table.keys.iter().map(|key| key.name.clone()).collect(),
        name,
    })
}

/// `extra$0.h` is written for `extra[0].h`.
fn with_brackets(name: &str) -> String {
    let mut parts = name.split('$');
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.chars().take_while(char::is_ascii_digit).count();
        if digits > 0 {
            result.push_str(&format!("[{}]{}", &part[..digits], &part[digits..]));
        } else {
            result.push('$');
            result.push_str(part);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ends_and_what_is_ambiguous() {
        let all = ["a.t", "b.t", "b.xt", "c.u", "u"];
        let find =
            |name| find("table", name, all.iter().copied().enumerate()).map_err(|error| error.to_string());
        assert_eq!(find("a.t"), Ok(0));
        assert_eq!(find("u"), Ok(4));
        assert_eq!(find("xt"), Ok(2));
        assert_eq!(find(".xt"), Ok(2));
        assert_eq!(find("t"), Err("table `t` may be `a.t` or `b.t`".to_owned()));
        assert_eq!(find("v"), Err("there is no table `v`".to_owned()));
    }

    #[test]
    fn stack_elements_are_written_with_dollars() {
        assert_eq!(with_brackets("extra$0.h"), "extra[0].h");
        assert_eq!(with_brackets("a$12"), "a[12]");
        assert_eq!(with_brackets("h.$valid$"), "h.$valid$");
    }
}
