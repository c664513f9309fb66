//! Families of metrics as text, in Prometheus's format and in OpenMetrics.
//!
//! Both have the same samples. They differ in the names of counters' families, which have no `_total` in
//! OpenMetrics, and in the line that ends the text there.

use crate::http::Format;
use std::fmt::{Display, Write};

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows. The name of each sample ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by upper bound, their number and their sum.
    Histogram,
}

/// A text that grows.
#[derive(Debug)]
pub struct Exposition {
    format: Format,
    text: String,
    /// Name of the present family, with `_total` if it is a counter.
    name: String,
}

impl Exposition {
    /// An empty one.
    pub fn new(format: Format) -> Exposition {
        Exposition {
            format,
            text: String::new(),
            name: String::new(),
        }
    }

    /// Begins a family; its name is without `_total`.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let (kind_name, total) = match kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
            Kind::Histogram => ("histogram", ""),
        };
        self.name = format!("{name}{total}");
        let family = match self.format {
            Format::Text => &self.name,
            Format::OpenMetrics => name,
        };
        let help = help.replace('\\', "\\\\").replace('\n', " ");
        let help = match self.format {
            Format::Text => help,
            Format::OpenMetrics => help.replace('"', "\\\""),
        };
        write(
            &mut self.text,
            format_args!("# HELP {family} {help}\n# TYPE {family} {kind_name}\n"),
        );
    }

    /// Adds a sample to the present family.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.named_sample("", labels, value);
    }

    /// Adds a sample whose name is longer than that of its family.
    pub fn named_sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(&self.name);
        self.text.push_str(suffix);
        for (position, (label, value)) in labels.iter().enumerate() {
            self.text.push(if position == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            value.chars().for_each(|c| self.push_escaped(c));
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        write(&mut self.text, format_args!(" {value}\n"));
    }

    fn push_escaped(&mut self, c: char) {
        match c {
            '\\' => self.text.push_str("\\\\"),
            '"' => self.text.push_str("\\\""),
            '\n' => self.text.push_str("\\n"),
            c => self.text.push(c),
        }
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

fn write(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a String takes all text");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(format: Format) -> String {
        let mut exposition = Exposition::new(format);
        exposition.family("hs_packets", Kind::Counter, "Packets \"in\" C:\\");
        exposition.sample(&[("port", "a\"b\\c\nd"), ("switch", "s")], 3);
        exposition.family("hs_flows", Kind::Gauge, "Flows");
        exposition.sample(&[], 1.5);
        exposition.finish()
    }

    #[test]
    fn formats_differ_in_families_and_end() {
        let sample = "hs_packets_total{port=\"a\\\"b\\\\c\\nd\",switch=\"s\"} 3\n";
        assert_eq!(
            example(Format::Text),
            format!(
                "# HELP hs_packets_total Packets \"in\" C:\\\\\n# TYPE hs_packets_total counter\n{sample}\
                 # HELP hs_flows Flows\n# TYPE hs_flows gauge\nhs_flows 1.5\n"
            )
        );
        assert_eq!(
            example(Format::OpenMetrics),
            format!(
                "# HELP hs_packets Packets \\\"in\\\" C:\\\\\n# TYPE hs_packets counter\n{sample}\
                 # HELP hs_flows Flows\n# TYPE hs_flows gauge\nhs_flows 1.5\n# EOF\n"
            )
        );
    }
}
