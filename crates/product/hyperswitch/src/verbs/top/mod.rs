//! `hyperswitch top`: what happens now, on a terminal or as plain text.
//!
//! All is asked at the socket for queries, one question for each interval, so whoever may use that socket may
//! watch, and nothing can be changed by mistake.
//!
//! | module | contents |
//! |---|---|
//! | `figures` | rates between two readings |
//! | `screen` | lines of text |
//! | `terminal` | the terminal, and keys |

mod figures;
mod screen;
mod terminal;

use super::{Instance, Reply, Request};
use crate::cli::{SortBy, TopArgs};
use crate::output;
use anyhow::{Result, bail};
use figures::Figures;
use management::{Client, Snapshot};
use screen::Choice;
use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime};
use terminal::{Key, Terminal};

/// Shows figures until the user ends it, or as often as was asked for.
///
/// # Errors
/// When there is no instance, or output fails.
pub fn run(args: &TopArgs, instance: Instance<'_>) -> Result<()> {
    let mut watch = Watch {
        client: Client::connect_to_view(instance.run_dir, instance.timeout)?,
        figures: Figures::default(),
        read: Instant::now(),
        interval: args.interval,
    };
    watch.read()?;
    let choice = Choice {
        sort: args.sort,
        filter: args.filter.clone().unwrap_or_default(),
        ..Choice::default()
    };
    match std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        true => on_terminal(watch, choice, args.count),
        false => as_text(watch, &choice, args.count),
    }
}

/// What is read, and how often.
struct Watch {
    client: Client,
    figures: Figures,
    /// When it was read last.
    read: Instant,
    interval: Duration,
}

impl Watch {
    fn read(&mut self) -> Result<()> {
        let snapshot = match self.client.call(&Request::Snapshot)? {
            Reply::Snapshot(snapshot) => *snapshot,
            _ => bail!("the running instance gave another answer than asked for: is it of another version?"),
        };
        self.take(snapshot);
        Ok(())
    }

    fn take(&mut self, snapshot: Snapshot) {
        let now = Instant::now();
        self.figures.take(snapshot, now - self.read);
        self.read = now;
    }

    /// Time until the next reading.
    fn left(&self) -> Duration {
        self.interval.saturating_sub(self.read.elapsed())
    }
}

fn as_text(mut watch: Watch, choice: &Choice, count: Option<u32>) -> Result<()> {
    for _ in 0..count.unwrap_or(u32::MAX) {
        std::thread::sleep(watch.left());
        watch.read()?;
        output::print(&(screen::text(&watch.figures, choice, SystemTime::now()) + "\n"))?;
    }
    Ok(())
}

fn on_terminal(mut watch: Watch, mut choice: Choice, count: Option<u32>) -> Result<()> {
    let mut terminal = Terminal::open()?;
    let mut left = count.unwrap_or(u32::MAX);
    loop {
        let size = terminal.size();
        terminal.draw(&screen::lines(&watch.figures, &choice, size, SystemTime::now()))?;
        match terminal.key(watch.left())? {
            Some(Key::End) => return Ok(()),
            Some(key) if !press(key, &mut choice, &watch.figures) => return Ok(()),
            Some(_) => continue,
            None => {}
        }
        if choice.is_paused {
            watch.read = Instant::now();
            continue;
        }
        // Processes that are being started again are no reason to end.
        choice.trouble = watch.read().err().map(|error| format!("{error:#}"));
        if choice.trouble.is_some() {
            watch.read = Instant::now();
        }
        left -= 1;
        if left == 0 {
            return Ok(());
        }
    }
}

/// Does what a key means; false to end.
fn press(key: Key, choice: &mut Choice, figures: &Figures) -> bool {
    if choice.is_typing {
        match key {
            Key::Character(c) => choice.filter.push(c),
            Key::Erase => drop(choice.filter.pop()),
            Key::Escape => (choice.is_typing, choice.filter) = (false, String::new()),
            Key::Enter => choice.is_typing = false,
            _ => {}
        }
        return true;
    }
    let shown = figures.sorted(choice.sort, &choice.filter);
    let last = shown.len().saturating_sub(1);
    choice.selected = choice.selected.min(last);
    match key {
        Key::Character('q') | Key::End => return false,
        Key::Character('p' | ' ') => choice.is_paused = !choice.is_paused,
        Key::Character('s') => choice.sort = next(choice.sort),
        Key::Character('/') if choice.port.is_none() => choice.is_typing = true,
        Key::Escape if choice.port.is_some() => choice.port = None,
        Key::Escape => choice.filter.clear(),
        Key::Enter => choice.port = shown.get(choice.selected).map(|port| port.figures.name.clone()),
        Key::Move(by) => choice.selected = choice.selected.saturating_add_signed(by).min(last),
        Key::Character(_) | Key::Erase | Key::Other => {}
    }
    true
}

fn next(sort: SortBy) -> SortBy {
    match sort {
        SortBy::Name => SortBy::Rx,
        SortBy::Rx => SortBy::Tx,
        SortBy::Tx => SortBy::Drops,
        SortBy::Drops => SortBy::Name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_filter_select_and_pause() {
        let mut figures = Figures::default();
        figures.take(figures::tests::reading(12, 1), Duration::from_secs(1));
        let mut choice = Choice::default();
        let mut press = |key| press(key, &mut choice, &figures).then(|| format!("{choice:?}"));
        let mut is = |key, part: &str| {
            let now = press(key).unwrap_or_else(|| "end".into());
            assert!(now.contains(part), "{key:?}: {part} is not in {now}");
        };
        is(Key::Character('s'), "sort: Rx");
        is(Key::Move(-1), "selected: 0");
        is(Key::Move(20), "selected: 11");
        is(Key::Character('/'), "is_typing: true");
        is(Key::Character('q'), "filter: \"q\"");
        is(Key::Erase, "filter: \"\"");
        is(Key::Character('1'), "filter: \"1\"");
        is(Key::Enter, "is_typing: false");
        // vm1, vm10, vm11 and vm12 are left.
        is(Key::Move(0), "selected: 3");
        is(Key::Enter, "port: Some(\"vm12\")");
        is(Key::Character(' '), "is_paused: true");
        is(Key::Escape, "port: None");
        is(Key::Escape, "filter: \"\"");
        is(Key::Character('q'), "end");
    }
}
