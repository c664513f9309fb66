//! `hyperswitch events`: what happened lately, and what happens from now on.

use super::{ClientError, Reply, Request, Session};
use crate::output;
use anyhow::{Result, bail};
use management::{Event, EventMark, Events};
use std::time::{Duration, UNIX_EPOCH};

/// Time between two looks for new events.
const INTERVAL: Duration = Duration::from_millis(250);

/// Shows events.
///
/// # Errors
/// When the instance goes away, or output fails; when it only goes away for a moment, what happens later is
/// shown.
pub fn run(session: &mut Session<'_>, follow: bool) -> Result<()> {
    if !follow {
        return session.show(Request::Events { after: None });
    }
    let mut mark = None;
    loop {
        let events = latest(session, mark)?;
        for event in &events.events {
            match session.json {
                true => output::json_line(event)?,
                false => output::print(&line(event))?,
            }
        }
        if let Some(last) = events.events.last() {
            let (log, number) = (events.log, last.number);
            mark = Some(EventMark { log, number });
        }
        std::thread::sleep(INTERVAL);
    }
}

fn latest(session: &mut Session<'_>, after: Option<EventMark>) -> Result<Events> {
    match session.call(&Request::Events { after }) {
        Ok(Reply::Events(events)) => Ok(events),
        // The control process is being started again.
        Err(ClientError::NoAnswer { .. }) => Ok(Events::default()),
        Ok(_) => bail!("the running instance gave another answer than asked for: is it of another version?"),
        Err(error) => Err(error.into()),
    }
}

/// Events as lines.
pub fn text(events: &[Event]) -> String {
    events.iter().map(line).collect()
}

fn line(event: &Event) -> String {
    let mut line = String::new();
    telemetry::push_time(&mut line, UNIX_EPOCH + Duration::from_millis(event.time_ms));
    format!("{line} {}\n", event.what)
}
