//! The terminal: its own screen while it is open, and keys one by one.

use super::screen::{Line, Style};
use crate::output;
use anyhow::Result;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::{cursor, execute, queue, terminal};
use std::io::{Stdout, Write};
use std::time::Duration;

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Character(char),
    Enter,
    Escape,
    Erase,
    /// So many ports downwards, or upwards.
    Move(isize),
    /// Ctrl-C.
    End,
    /// No key, but the size of the terminal, or one without a meaning.
    Other,
}

/// An open terminal, which is as it was once this is dropped.
pub struct Terminal(Stdout);

impl Terminal {
    /// # Errors
    /// When it is none.
    pub fn open() -> Result<Terminal> {
        terminal::enable_raw_mode()?;
        let mut terminal = Terminal(std::io::stdout());
        execute!(terminal.0, terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(terminal)
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        let (width, height) = terminal::size().unwrap_or((80, 24));
        (width.into(), height.max(1).into())
    }

    /// Shows lines in place of those before.
    ///
    /// # Errors
    /// When writing fails.
    pub fn draw(&mut self, lines: &[Line]) -> Result<()> {
        let to = &mut self.0;
        queue!(to, terminal::BeginSynchronizedUpdate)?;
        for (row, line) in (0..).zip(lines) {
            queue!(to, cursor::MoveTo(0, row))?;
            for (text, style) in line {
                set(to, *style)?;
                queue!(to, Print(output::plain(text)))?;
            }
            set(to, Style::Plain)?;
            queue!(to, terminal::Clear(terminal::ClearType::UntilNewLine))?;
        }
        queue!(to, terminal::EndSynchronizedUpdate)?;
        to.flush()?;
        Ok(())
    }

    /// The next key, if one comes in time.
    ///
    /// # Errors
    /// When reading fails.
    pub fn key(&self, wait: Duration) -> Result<Option<Key>> {
        if !event::poll(wait)? {
            return Ok(None);
        }
        Ok(Some(match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => meaning(key),
            _ => Key::Other,
        }))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // There is nobody to tell.
        let _ = execute!(self.0, terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

fn meaning(key: KeyEvent) -> Key {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::End,
        KeyCode::Char(c) => Key::Character(c),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Erase,
        KeyCode::Up => Key::Move(-1),
        KeyCode::Down => Key::Move(1),
        KeyCode::PageUp => Key::Move(-20),
        KeyCode::PageDown => Key::Move(20),
        KeyCode::Home => Key::Move(-1_000_000),
        KeyCode::End => Key::Move(1_000_000),
        _ => Key::Other,
    }
}

fn set(to: &mut Stdout, style: Style) -> Result<()> {
    queue!(to, SetAttribute(Attribute::Reset))?;
    match style {
        Style::Plain => {}
        Style::Bold => queue!(to, SetAttribute(Attribute::Bold))?,
        Style::Dim => queue!(to, SetAttribute(Attribute::Dim))?,
        Style::Good => queue!(to, SetForegroundColor(Color::Green))?,
        Style::Warning => queue!(to, SetForegroundColor(Color::Red))?,
        Style::Selected => queue!(to, SetAttribute(Attribute::Reverse))?,
    }
    Ok(())
}
