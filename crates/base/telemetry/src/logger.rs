//! The logger behind the `log` facade: lines on standard error.

use crate::fields::Fields;
use crate::journal;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Environment variable that sets the level: `off`, `error`, `warn`, `info` (default), `debug` or `trace`.
pub const LEVEL_VARIABLE: &str = "HYPERSWITCH_LOG";

/// The form of the beginning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Date and time, level. For terminals, files and tests.
    Timed,
    /// `<priority>` as `sd-daemon(3)` wants it; the journal stamps the time itself. Where the journal takes
    /// fields, lines go there with them (`journal`).
    Journal,
    /// `<priority>` and the message alone, for [`relay`].
    Relayed,
}

/// Most bytes of a relayed line, fewer than `PIPE_BUF`, so that a pipe takes the line as a whole or not at
/// all.
const MAX_RELAYED: usize = 2048;

/// The style of this process's own lines, which the lines that it relays get too.
static STYLE: OnceLock<Style> = OnceLock::new();

struct Logger {
    role: String,
    style: Style,
}

/// Sends the log lines of this process to standard error, marked with its role ("supervisor", "data-plane").
/// Later calls do nothing, so tests may call it as often as they like.
pub fn init(role: &str) {
    let style = if stderr_is_the_journal() {
        Style::Journal
    } else {
        Style::Timed
    };
    init_with(role, style);
}

/// As [`init`], in a process whose standard error is read by its supervisor, which calls [`relay`].
pub fn init_child() {
    init_with("", Style::Relayed);
}

fn init_with(role: &str, style: Style) {
    let _ = STYLE.set(style);
    let asked = std::env::var(LEVEL_VARIABLE).ok();
    let level = asked
        .as_deref()
        .map_or(Some(LevelFilter::Info), |text| text.trim().parse().ok());
    if log::set_boxed_logger(Box::new(Logger {
        role: role.to_owned(),
        style,
    }))
    .is_err()
    {
        return;
    }
    log::set_max_level(level.unwrap_or(LevelFilter::Info));
    if level.is_none() {
        let asked = asked.unwrap_or_default();
        log::warn!(
            "{LEVEL_VARIABLE}={asked:?}: allowed are off, error, warn, info, debug, trace; using info"
        );
    }
}

/// Logs a line that a supervised process has written, under that process's name. Takes any bytes: bytes that
/// are not text, and characters that would control a terminal, are replaced. Lines without a level, which
/// libraries write as they end a process, are warnings.
pub fn relay(role: &str, line: &[u8]) {
    let style = STYLE.get().copied().unwrap_or(Style::Timed);
    let (level, message) = parse(line);
    let logger = Logger {
        role: role.to_owned(),
        style,
    };
    let (fields, message) = Fields::split(&String::from_utf8_lossy(message));
    logger.write(level, &message, &fields);
}

/// Level and message of a relayed line.
fn parse(line: &[u8]) -> (Level, &[u8]) {
    match line {
        [b'<', b'3', b'>', message @ ..] => (Level::Error, message),
        [b'<', b'6', b'>', message @ ..] => (Level::Info, message),
        [b'<', b'7', b'>', message @ ..] => (Level::Debug, message),
        [b'<', b'4', b'>', message @ ..] | message => (Level::Warn, message),
    }
}

/// Whether standard error is the stream that the service manager announced in `JOURNAL_STREAM`
/// (`systemd.exec(5)`), which may also be inherited by a process whose standard error went elsewhere.
fn stderr_is_the_journal() -> bool {
    let Ok(announced) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() else {
        return false;
    };
    std::fs::File::from(stderr)
        .metadata()
        .is_ok_and(|metadata| announced == format!("{}:{}", metadata.dev(), metadata.ino()))
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let fields = Fields::of(record.key_values());
            self.write(record.level(), &record.args().to_string(), &fields);
        }
    }

    fn flush(&self) {}
}

impl Logger {
    fn write(&self, level: Level, message: &str, fields: &Fields) {
        let mut line = self.line(SystemTime::now(), level, message);
        match self.style {
            Style::Relayed => {
                let front = line.find('>').map_or(0, |end| end + 1);
                line.insert_str(front, &fields.prefix());
            }
            Style::Journal if journal::send(&line, &self.role, fields) => return,
            Style::Journal | Style::Timed => {}
        }
        // A failure to write the log cannot be logged.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn line(&self, now: SystemTime, level: Level, message: &str) -> String {
        let mut line = String::with_capacity(message.len() + 64);
        match self.style {
            Style::Timed => {
                push_time(&mut line, now);
                let _ = write!(line, " {level:5} ");
            }
            Style::Journal | Style::Relayed => {
                let _ = write!(line, "<{}>", priority(level));
            }
        }
        if self.style != Style::Relayed {
            line.push_str(&self.role);
            line.push_str(": ");
        }
        // One record is one line, also if a guest or a user put a line break into a name.
        line.extend(
            message
                .trim_end()
                .chars()
                .map(|c| if is_safe(c) { c } else { ' ' }),
        );
        if self.style == Style::Relayed {
            line.truncate(line.floor_char_boundary(MAX_RELAYED - 1));
        }
        line.push('\n');
        line
    }
}

/// Whether the character neither controls a terminal nor changes the direction in which the text behind it is
/// read.
pub(crate) fn is_safe(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// Priorities of `syslog(3)`.
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// Appends a time as RFC 3339 has it, in UTC with milliseconds.
pub fn push_time(line: &mut String, now: SystemTime) {
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since_epoch.as_secs() / 86_400, since_epoch.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let ms = since_epoch.subsec_millis();
    let _ = write!(
        line,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z"
    );
}

/// Gregorian date of a day counted from 1970-01-01. Years are counted from 1 March, so that the leap day is
/// the last of its year and month lengths follow from one linear formula.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // from 0000-03-01
    let era_day = days % 146_097; // 400 years
    let year_of_era = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
    let day_of_year = era_day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (days / 146_097 * 400 + year_of_era + carry, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn logger(style: Style) -> Logger {
        Logger {
            role: "control".into(),
            style,
        }
    }

    #[test]
    fn a_line_is_time_level_role_and_message() {
        let now = UNIX_EPOCH + Duration::from_millis(951_827_696_007);
        let line = logger(Style::Timed).line(now, Level::Warn, "port vm1 is gone");
        assert_eq!(line, "2000-02-29T12:34:56.007Z WARN  control: port vm1 is gone\n");
        let line = logger(Style::Journal).line(now, Level::Error, "two\nlines\x1b[m\n");
        assert_eq!(line, "<3>control: two lines [m\n");
    }

    #[test]
    fn a_relayed_line_is_level_and_message_and_returns_as_they_were() {
        for level in [Level::Error, Level::Warn, Level::Info, Level::Debug] {
            let line = logger(Style::Relayed).line(UNIX_EPOCH, level, "port vm1 is gone");
            let line = line.strip_suffix('\n').unwrap();
            assert_eq!(parse(line.as_bytes()), (level, &b"port vm1 is gone"[..]));
        }
        let long = logger(Style::Relayed).line(UNIX_EPOCH, Level::Info, &"\u{e4}".repeat(10_000));
        assert!(long.len() <= MAX_RELAYED && long.ends_with('\n'));
    }

    /// For any bytes that a supervised process writes, the output is one line with its role, without
    /// characters that control a terminal.
    #[test]
    fn what_a_child_writes_reaches_no_terminal_as_it_is() {
        for bytes in [
            &b"\x1b]0;title\x07\x1b[2J\x9b31m"[..],
            b"<3>\x1bPq\x1b\\\r2026-01-01T00:00:00.000Z ERROR supervisor: forged",
            "\u{9b}2J \u{202e}desrever".as_bytes(),
            b"<9>\xff\xfe\0",
            b"",
        ] {
            let (level, message) = parse(bytes);
            let line = logger(Style::Timed).line(UNIX_EPOCH, level, &String::from_utf8_lossy(message));
            let text = line.strip_suffix('\n').unwrap();
            assert!(text.chars().all(is_safe), "{text:?}");
            assert!(text.starts_with("1970-01-01T00:00:00.000Z"), "{text:?}");
            assert!(text.contains(" control: "), "{text:?}");
        }
    }

    /// Twin: counting days one by one.
    #[test]
    fn dates_follow_the_calendar() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for number in 0..150_000 {
            assert_eq!(date(number), (year, month, day), "day {number}");
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }
}
