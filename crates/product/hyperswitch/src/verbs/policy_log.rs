//! `hyperswitch policy log`: packets that rules noted, once or as they come.

use super::{Reply, Request, Session};
use crate::output;
use anyhow::{Result, bail};
use management::PolicyRecord;
use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

/// Time between two questions about further records.
const INTERVAL: Duration = Duration::from_millis(500);

/// Shows what is kept, or with `follow` what comes.
///
/// # Errors
/// When the instance goes away.
pub fn run(session: &mut Session<'_>, port: Option<&str>, follow: bool) -> Result<()> {
    let mut after = None;
    loop {
        let records = further(session, &mut after)?;
        let records: Vec<PolicyRecord> = records
            .into_iter()
            .filter(|record| port.is_none_or(|port| record.port == port))
            .collect();
        if !session.json {
            output::print(&lines(&records))?;
        } else if !follow {
            output::json(&records)?;
        } else {
            for record in &records {
                output::json_line(record)?;
            }
        }
        if !follow {
            return Ok(());
        }
        std::thread::sleep(INTERVAL);
    }
}

/// All records behind the one with that number.
fn further(session: &mut Session<'_>, after: &mut Option<u64>) -> Result<Vec<PolicyRecord>> {
    let mut all = Vec::new();
    loop {
        let Reply::PolicyLog(page) = session.call(&Request::PolicyLog { after: *after })? else {
            bail!("the running instance gave another answer than asked for: is it of another version?");
        };
        let last = page.records.last().map(|record| record.number);
        let goes_on = page.more && last > *after;
        *after = last.max(*after);
        all.extend(page.records);
        if !goes_on {
            return Ok(all);
        }
    }
}

/// One line for each record.
pub fn lines(records: &[PolicyRecord]) -> String {
    let mut text = String::new();
    for record in records {
        let PolicyRecord {
            time_ms,
            origin,
            action,
            trial,
            port,
            direction,
            sender,
            source,
            destination,
            packet,
            bytes,
            skipped,
            ..
        } = record;
        telemetry::push_time(&mut text, UNIX_EPOCH + Duration::from_millis(*time_ms));
        let trial = if *trial { " (trial)" } else { "" };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            " {action}{trial} {direction} {port}: {origin}: {source} > {destination}"
        );
        let _ = write!(text, " bytes {bytes} sender={sender},{packet}");
        if *skipped > 0 {
            let _ = write!(text, " ({skipped} more before it)");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> PolicyRecord {
        PolicyRecord {
            number: 1,
            time_ms: 951_827_696_007,
            policy: "to: acl office".into(),
            origin: "acl office rule 1".into(),
            action: "drop".into(),
            trial: true,
            port: "web".into(),
            direction: "to".into(),
            sender: "client".into(),
            source: "10.0.0.2:4000".into(),
            destination: "10.0.0.1:23".into(),
            packet: "ip_proto=6".into(),
            bytes: 60,
            skipped: 12,
        }
    }

    #[test]
    fn a_line_has_time_verdict_port_rule_and_addresses() {
        let expected = "2000-02-29T12:34:56.007Z drop (trial) to web: acl office rule 1: 10.0.0.2:4000 > \
                        10.0.0.1:23 bytes 60 sender=client,ip_proto=6 (12 more before it)\n";
        assert_eq!(lines(&[record()]), expected);
    }

    #[test]
    fn the_line_of_the_document_is_of_this_form() {
        let line = lines(&[PolicyRecord {
            time_ms: 1_795_819_201_123,
            trial: false,
            source: "10.0.0.2:40122".into(),
            packet: "eth_type=0x0800,ip_proto=6".into(),
            bytes: 74,
            skipped: 981,
            ..record()
        }]);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/policies.md");
        let document = std::fs::read_to_string(path).unwrap();
        let (head, rest) = document.split_once("\n```\n20").unwrap();
        let (found, tail) = rest.split_once("```\n").unwrap();
        if std::env::var_os("HYPERSWITCH_UPDATE").is_some() {
            std::fs::write(path, format!("{head}\n```\n{line}```\n{tail}")).unwrap();
            return;
        }
        assert_eq!(format!("20{found}"), line, "docs/policies.md");
    }
}
