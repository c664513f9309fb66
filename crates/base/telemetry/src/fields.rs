//! Fields of a log line, by which the journal finds it: what the line is about.
//!
//! A supervised process writes them in front of its message, each behind a [`MARK`], which no message has.
//! Only fields of [`NAMES`] pass, so that no process can forge one that says who wrote a line.

use crate::logger::is_safe;
use log::kv::{Error, Key, Source, Value, VisitSource};

/// Begins each field, and the message behind the last one.
pub const MARK: char = '\u{1f}';

/// Names of fields.
const NAMES: [&str; 2] = ["PORT", "SWITCH"];

/// Longest value in characters.
const LONGEST: usize = 128;

/// Fields with their values.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(&'static str, String)>);

impl Fields {
    /// Fields of a record.
    pub fn of(source: &dyn Source) -> Fields {
        let mut fields = Fields::default();
        // The visitor returns no errors.
        let _ = source.visit(&mut fields);
        fields
    }

    fn add(&mut self, name: &str, value: &str) {
        let known = NAMES.into_iter().find(|known| *known == name);
        let is_new = |known: &&str| !self.0.iter().any(|(other, _)| other == known);
        if let Some(name) = known.filter(is_new).filter(|_| !value.is_empty()) {
            let value = value.chars().filter(|c| is_safe(*c)).take(LONGEST).collect();
            self.0.push((name, value));
        }
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// The fields as text in front of a message.
    pub fn prefix(&self) -> String {
        let fields = self.iter().map(|(name, value)| format!("{MARK}{name}={value}"));
        let fields: String = fields.collect();
        match fields.is_empty() {
            true => fields,
            false => fields + &MARK.to_string(),
        }
    }

    /// Fields and message of a text that may have fields in front.
    pub fn split(text: &str) -> (Fields, String) {
        let mut fields = Fields::default();
        let Some(marked) = text.strip_prefix(MARK) else {
            return (fields, text.to_owned());
        };
        let (front, message) = marked.rsplit_once(MARK).unwrap_or(("", marked));
        for (name, value) in front.split(MARK).filter_map(|field| field.split_once('=')) {
            fields.add(name, value);
        }
        (fields, message.to_owned())
    }
}

impl<'a> VisitSource<'a> for Fields {
    fn visit_pair(&mut self, name: Key<'a>, value: Value<'a>) -> Result<(), Error> {
        self.add(name.as_str(), &value.to_string());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_return_as_they_were() {
        let mut fields = Fields::default();
        fields.add("PORT", "vm1");
        fields.add("SWITCH", "a=b");
        let text = format!("{}it is gone", fields.prefix());
        assert_eq!(Fields::split(&text), (fields, "it is gone".to_owned()));
        assert_eq!(Fields::split("plain"), (Fields::default(), "plain".to_owned()));
    }

    #[test]
    fn no_other_field_passes_and_no_value_ends_early() {
        let text = "\u{1f}ROLE=supervisor\u{1f}PORT=a\nMESSAGE=forged\u{1f}PORT=b\u{1f}_PID=1\u{1f}message";
        let (fields, message) = Fields::split(text);
        let found: Vec<_> = fields.iter().collect();
        assert_eq!(
            (found, message.as_str()),
            (vec![("PORT", "aMESSAGE=forged")], "message")
        );
        let long = format!("\u{1f}PORT={}\u{1f}x", "y".repeat(9_999));
        assert_eq!(Fields::split(&long).0.0[0].1.len(), LONGEST);
    }
}
