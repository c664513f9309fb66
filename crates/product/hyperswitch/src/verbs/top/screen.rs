//! What is shown, as lines of styled text: a function of the figures and of what the user chose, without a
//! terminal.

use super::super::rate::Rate;
use super::figures::{Core, Figures, Port, REMEMBERED};
use crate::cli::SortBy;
use crate::output::{self, counted};
use flow::DropReason;
use management::{Counters, Process};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Bold,
    Dim,
    Good,
    Warning,
    Selected,
}

/// A line; pieces follow one another.
pub type Line = Vec<(String, Style)>;

/// What the user chose.
#[derive(Debug, Default)]
pub struct Choice {
    pub sort: SortBy,
    /// Ports whose names contain it are shown.
    pub filter: String,
    /// The filter is being typed.
    pub is_typing: bool,
    /// The place of the selected port among those shown.
    pub selected: usize,
    /// The name of a port that is shown in depth.
    pub port: Option<String>,
    pub is_paused: bool,
    /// Why there are no new figures.
    pub trouble: Option<String>,
}

/// Cells of a strip that shows what a core did.
const STRIP: usize = 24;

/// Columns of a port before its recent rates, and their widths.
const COLUMNS: [(&str, usize); 7] = [
    ("STATE", 13),
    ("CORE", 5),
    ("RX/S", 8),
    ("RX BIT/S", 9),
    ("TX/S", 8),
    ("TX BIT/S", 9),
    ("DROPS/S", 8),
];

/// All lines of a screen of that size.
pub fn lines(
    figures: &Figures,
    choice: &Choice,
    (width, height): (usize, usize),
    now: SystemTime,
) -> Vec<Line> {
    let mut lines = head(figures, choice, now);
    match &choice.port {
        Some(name) => lines.extend(depth(figures, name, width)),
        None => {
            let drops = drops(&figures.total);
            let room = height.saturating_sub(lines.len() + drops.len() + 2);
            let cores = cores(figures, room / 2);
            let room = room.saturating_sub(cores.len());
            lines.extend(cores);
            lines.extend(ports(figures, choice, room, width));
            lines.extend(drops);
        }
    }
    lines.truncate(height.saturating_sub(1));
    while lines.len() + 1 < height {
        lines.push(Line::new());
    }
    lines.push(keys(choice));
    lines.into_iter().map(|line| clip(line, width)).collect()
}

/// The lines for a reader that is no terminal: all ports, all cores, in colours of none.
pub fn text(figures: &Figures, choice: &Choice, now: SystemTime) -> String {
    let mut lines = head(figures, choice, now);
    lines.extend(cores(figures, usize::MAX));
    lines.extend(ports(figures, choice, usize::MAX, usize::MAX));
    lines.extend(drops(&figures.total));
    let line = |line: &Line| {
        let text: String = line.iter().map(|(text, _)| text.as_str()).collect();
        text.trim_end().to_owned() + "\n"
    };
    lines.iter().map(line).collect()
}

fn plain(text: impl Into<String>) -> (String, Style) {
    (text.into(), Style::Plain)
}

fn head(figures: &Figures, choice: &Choice, now: SystemTime) -> Vec<Line> {
    let mut time = String::new();
    telemetry::push_time(&mut time, now);
    let Some(latest) = &figures.latest else {
        return vec![vec![plain(time)]];
    };
    let mut first = vec![
        (format!("hyperswitch {}", latest.version), Style::Bold),
        plain(format!("  {time}  {}", counted(latest.ports.len(), "port"))),
    ];
    if latest.warnings > 0 {
        let warnings = counted(latest.warnings, "warning");
        let text = format!("  {warnings}: see `hyperswitch status`");
        first.push((text, Style::Warning));
    }
    if choice.is_paused {
        first.push(("  paused".into(), Style::Selected));
    }
    if let Some(trouble) = &choice.trouble {
        first.push((format!("  {trouble}"), Style::Warning));
    }
    let total = &figures.total;
    let sums = format!(
        "from guests {}/s, {}bit/s   to guests {}/s, {}bit/s   upcalls {}/s   dropped {}/s",
        short(total.received),
        short(total.received_bytes * 8.0),
        short(total.transmitted),
        short(total.transmitted_bytes * 8.0),
        short(total.upcalls),
        short(total.drops()),
    );
    let mut processes: Line = vec![("processes  ".into(), Style::Dim)];
    processes.extend(latest.processes.iter().map(|it| process(it, now)));
    vec![first, vec![plain(sums)], processes]
}

fn process(process: &Process, now: SystemTime) -> (String, Style) {
    if let Some(complaint) = process.complaint() {
        return (format!("{complaint}   "), Style::Warning);
    }
    let since = process.started_ms.and_then(|ms| {
        let since = UNIX_EPOCH + Duration::from_millis(ms);
        now.duration_since(since).ok()
    });
    let up = since.map_or_else(String::new, |up| format!(" {}", output::duration(up.as_secs())));
    let restarts = match process.restarts {
        0 => String::new(),
        restarts => format!(", {restarts} restarts"),
    };
    (format!("{}{up}{restarts}   ", process.role), Style::Good)
}

/// A line for each core: what it did, and for which ports. The busiest ones, if there is no room for all.
fn cores(figures: &Figures, room: usize) -> Vec<Line> {
    let mut cores: Vec<&Core> = figures.cores.iter().collect();
    if cores.len() > room {
        cores.sort_by(|a, b| (b.busy + b.polling).total_cmp(&(a.busy + a.polling)));
        cores.truncate(room);
    }
    let widest = cores.iter().map(|core| core.name.len()).max().unwrap_or(0);
    let line = |core: &&Core| {
        let cells = |part: f64| (part * STRIP as f64).round() as usize;
        let busy = cells(core.busy).min(STRIP);
        let polling = cells(core.polling).min(STRIP - busy);
        vec![
            (format!("{:widest$}  ", core.name), Style::Dim),
            ("#".repeat(busy), Style::Good),
            ("~".repeat(polling), Style::Plain),
            (".".repeat(STRIP - busy - polling), Style::Dim),
            plain(format!(
                "  {:3.0}% busy {:3.0}% polling {:3.0}% asleep  ",
                core.busy * 100.0,
                core.polling * 100.0,
                (1.0 - core.busy - core.polling).max(0.0) * 100.0,
            )),
            (core.ports.join(" "), Style::Bold),
        ]
    };
    cores.iter().map(line).collect()
}

/// A table of the ports, scrolled so that the selected one is shown.
fn ports(figures: &Figures, choice: &Choice, room: usize, width: usize) -> Vec<Line> {
    let ports = figures.sorted(choice.sort, &choice.filter);
    let widest = ports.iter().map(|port| port.figures.name.chars().count()).max();
    let names = widest.unwrap_or(0).clamp(4, 30);
    let mut heading = format!("{:names$}", "PORT");
    for (title, wide) in COLUMNS {
        heading += &format!(" {title:>wide$}");
    }
    heading += "  LATELY";
    let mut lines = vec![vec![(heading, Style::Bold)]];
    let room = room.saturating_sub(1);
    let selected = choice.selected.min(ports.len().saturating_sub(1));
    let first = (selected + 1).saturating_sub(room);
    for (place, port) in ports.iter().enumerate().skip(first).take(room) {
        let is_selected = place == selected && width != usize::MAX;
        lines.push(row(port, names, is_selected, width));
    }
    lines
}

fn row(port: &Port, names: usize, is_selected: bool, width: usize) -> Line {
    let style = match (is_selected, port.figures.has_problem) {
        (true, _) => Style::Selected,
        (false, true) => Style::Warning,
        (false, false) => Style::Plain,
    };
    let name: String = port.figures.name.chars().take(names).collect();
    let rate = &port.rate;
    let cells = [
        port.figures.state.clone(),
        output::or_dash(port.figures.core),
        short(rate.received),
        short(rate.received_bytes * 8.0),
        short(rate.transmitted),
        short(rate.transmitted_bytes * 8.0),
        short(rate.drops()),
    ];
    let mut text = format!("{name:names$}");
    for (cell, (_, wide)) in cells.iter().zip(COLUMNS) {
        text += &format!(" {cell:>wide$}");
    }
    let room = width.saturating_sub(text.chars().count() + 2).min(REMEMBERED);
    let lately: Vec<f64> = port.lately.iter().map(|(from, to)| from + to).collect();
    vec![(text, style), plain("  "), (spark(&lately, room), Style::Good)]
}

/// Drops of all ports by reason.
fn drops(total: &Rate) -> Vec<Line> {
    if total.dropped.is_empty() {
        return Vec::new();
    }
    let mut drops: Vec<_> = total.dropped.iter().collect();
    drops.sort_by(|a, b| b.1.total_cmp(a.1));
    let drops = drops
        .iter()
        .map(|(reason, rate)| format!("{reason} {}/s", short(**rate)));
    let drops: Vec<String> = drops.collect();
    vec![vec![
        ("dropped  ".into(), Style::Dim),
        (drops.join("   "), Style::Warning),
    ]]
}

/// One port, with all that it counts.
fn depth(figures: &Figures, name: &str, width: usize) -> Vec<Line> {
    let Some(port) = figures.ports.iter().find(|port| port.figures.name == name) else {
        return vec![vec![(format!("There is no port {name} now."), Style::Warning)]];
    };
    let figures = &port.figures;
    let about = format!(
        "  switch {}  {}  core {}",
        figures.switch,
        figures.state,
        output::or_dash(figures.core)
    );
    let mut lines = vec![
        Line::new(),
        vec![(format!("port {name}"), Style::Bold), plain(about)],
    ];
    let room = width.saturating_sub(30).min(REMEMBERED);
    for (title, of) in [
        ("from guest", (|it: &(f64, f64)| it.0) as fn(&(f64, f64)) -> f64),
        ("to guest", |it| it.1),
    ] {
        let lately: Vec<f64> = port.lately.iter().map(of).collect();
        let rate = lately.last().copied().unwrap_or(0.0);
        lines.push(vec![
            plain(format!("{title:12}{:>9}/s  ", short(rate))),
            (spark(&lately, room), Style::Good),
        ]);
    }
    let Some(counters) = &figures.counters else {
        return lines;
    };
    lines.push(Line::new());
    for (name, _, of) in Counters::NUMBERS {
        let count = of(counters);
        if count > 0 {
            lines.push(vec![plain(format!("{:20}{count:>16}", name.replace('_', "-")))]);
        }
    }
    for (name, _, of) in Counters::BY_REASON {
        for (reason, count) in of(counters) {
            let known = DropReason::ALL.iter().find(|known| known.name() == reason);
            let meaning = known.map_or("", |known| known.description());
            let what = format!("{}: {reason}", name.replace('_', "-"));
            lines.push(vec![
                (format!("{what:32}{count:>12}  "), Style::Warning),
                (meaning.into(), Style::Dim),
            ]);
        }
    }
    lines
}

fn keys(choice: &Choice) -> Line {
    if choice.is_typing {
        return vec![plain(format!("filter: {}_", choice.filter))];
    }
    let sort = match choice.sort {
        SortBy::Name => "name",
        SortBy::Rx => "rx",
        SortBy::Tx => "tx",
        SortBy::Drops => "drops",
    };
    let filter = match choice.filter.as_str() {
        "" => "none",
        filter => filter,
    };
    let text = match choice.port {
        Some(_) => "q quit  Esc back  p pause".to_owned(),
        None => format!("q quit  s sort: {sort}  / filter: {filter}  Enter one port  p pause"),
    };
    vec![(text, Style::Dim)]
}

/// Bars for values, each as high as its part of the greatest; the last ones, if there is no room for all.
fn spark(values: &[f64], room: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values = &values[values.len().saturating_sub(room)..];
    let greatest = values.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| match *value {
        value if value <= 0.0 => ' ',
        value => BARS[((value / greatest * 8.0).ceil() as usize).clamp(1, 8) - 1],
    };
    values.iter().map(bar).collect()
}

/// A number in at most six characters: `950`, `12.3k`, `4.56M`.
fn short(number: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(size, _)| number >= *size * 0.9995) {
        None => format!("{number:.0}"),
        Some((size, unit)) => {
            let number = number / size;
            let digits = match number {
                number if number < 9.995 => 2,
                number if number < 99.95 => 1,
                _ => 0,
            };
            format!("{number:.digits$}{unit}")
        }
    }
}

/// The first so many characters of a line.
fn clip(line: Line, width: usize) -> Line {
    let mut left = width;
    let piece = |(text, style): (String, Style)| {
        let text: String = text.chars().take(left).collect();
        left -= text.chars().count();
        (text, style)
    };
    line.into_iter().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::reading;
    use super::*;

    fn figures(ports: u32) -> Figures {
        let mut figures = Figures::default();
        for step in 0..4u64 {
            figures.take(reading(ports, 1000 * step * step), Duration::from_secs(1));
        }
        figures
    }

    fn screen(figures: &Figures, choice: &Choice, size: (usize, usize)) -> Vec<String> {
        let lines = lines(figures, choice, size, UNIX_EPOCH);
        assert_eq!(lines.len(), size.1);
        let text = |line: &Line| line.iter().map(|(text, _)| text.as_str()).collect::<String>();
        let texts: Vec<String> = lines.iter().map(text).collect();
        assert!(
            texts.iter().all(|text| text.chars().count() <= size.0),
            "{texts:#?}"
        );
        texts
    }

    #[test]
    fn a_screen_has_ports_cores_processes_and_drops() {
        let all = screen(&figures(4), &Choice::default(), (120, 24)).join("\n");
        for part in [
            "hyperswitch 1.2.3  1970-01-01T00:00:00",
            "4 ports  1 warning: see",
            "data-plane, 2 restarts",
            "worker-0",
            "% asleep  vm4 vm2",
            "vm1        running     1    5.00k",
            "▂▅█",
            "dropped  port-down 50.0k/s",
            "s sort: name",
        ] {
            assert!(all.contains(part), "{part} is not in\n{all}");
        }
    }

    #[test]
    fn the_selected_port_stays_on_the_screen() {
        let figures = figures(300);
        for selected in [0, 20, 150, 299, 1000] {
            let choice = Choice {
                selected,
                ..Choice::default()
            };
            let shown = screen(&figures, &choice, (100, 24));
            let name = format!("vm{} ", selected.min(299) + 1);
            assert!(
                shown.iter().any(|line| line.starts_with(&name)),
                "{name}: {shown:#?}"
            );
        }
    }

    #[test]
    fn any_size_is_drawn() {
        let figures = figures(5);
        for size in [(0, 0), (1, 1), (10, 3), (300, 100)] {
            if size.1 > 0 {
                screen(&figures, &Choice::default(), size);
                let port = Some("vm2".into());
                screen(
                    &figures,
                    &Choice {
                        port,
                        ..Choice::default()
                    },
                    size,
                );
            }
        }
        screen(&Figures::default(), &Choice::default(), (80, 24));
    }

    #[test]
    fn one_port_is_shown_with_what_its_drops_mean() {
        let port = Some("vm3".into());
        let choice = Choice {
            port,
            ..Choice::default()
        };
        let all = screen(&figures(4), &choice, (160, 40)).join("\n");
        for part in [
            "port vm3  switch sw0  running  core 1",
            "from guest      15.0k/s  ▂▅█",
            "dropped: port-down",
            "The receiver is not connected",
        ] {
            assert!(all.contains(part), "{part} is not in\n{all}");
        }
        let gone = Some("gone".into());
        let choice = Choice {
            port: gone,
            ..Choice::default()
        };
        assert!(
            screen(&figures(4), &choice, (80, 24))
                .join("\n")
                .contains("no port gone")
        );
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 999.0, 1000.0, 12_345.0, 999_999.0, 1.5e9].map(short);
        assert_eq!(texts, ["0", "999", "1.00k", "12.3k", "1.00M", "1.50G"]);
        assert_eq!(spark(&[0.0, 1.0, 8.0], 9), " ▁█");
        assert_eq!(spark(&[8.0, 1.0], 1), "█");
    }

    #[test]
    fn text_for_files_has_all_ports() {
        let text = text(&figures(300), &Choice::default(), UNIX_EPOCH);
        assert!(text.contains("\nvm300 ") && text.contains("\nvm1 "), "{text}");
    }
}
