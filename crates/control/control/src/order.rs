//! The order of names for users: numbers in them count as numbers, so `vm2` is before `vm10`.

use std::cmp::Ordering;

/// Compares two names.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(x), Some(y)) = (left.chars().next(), right.chars().next()) {
        let ordering = match x.is_ascii_digit() && y.is_ascii_digit() {
            true => compare_numbers(take_digits(&mut left), take_digits(&mut right)),
            false => {
                left = &left[x.len_utf8()..];
                right = &right[y.len_utf8()..];
                x.cmp(&y)
            }
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
    // Names that differ in zeros before a number only.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

fn take_digits<'a>(text: &mut &'a str) -> &'a str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    digits
}

/// Numbers of any length.
fn compare_numbers(a: &str, b: &str) -> Ordering {
    let [a, b] = [a, b].map(|digits| digits.trim_start_matches('0'));
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let sorted = [
            "a", "vm", "vm1", "vm01", "vm2", "vm2-a", "vm2a", "vm10", "vm10.2", "vm10.10", "w",
        ];
        for (at, a) in sorted.iter().enumerate() {
            for (other, b) in sorted.iter().enumerate() {
                let expected = match (*a, *b) {
                    // In either order, as long as it is one.
                    ("vm1", "vm01") | ("vm01", "vm1") => continue,
                    _ => at.cmp(&other),
                };
                assert_eq!(natural(a, b), expected, "{a} {b}");
            }
        }
        assert_eq!(natural("vm1", "vm01"), natural("vm01", "vm1").reverse());
        let long = "9".repeat(100);
        assert_eq!(natural(&long, &format!("1{long}")), Ordering::Less);
    }
}
