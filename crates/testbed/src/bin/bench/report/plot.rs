//! Plots: one measure of one case. A row per kind of traffic, values on the left and how many times better ours is on the right;
//! along the axis what points of a kind differ in, frame bytes for instance. A line is of medians, its band reaches from
//! quartile to quartile.

mod panel;

use crate::record::{Better, Measure, Record, Spread};
use anyhow::{Result, anyhow};
use panel::{Line, Panel};
use plotters::prelude::*;

const WIDTH: u32 = 900;
/// Of caption and legend, which has so many names per line.
const HEAD: u32 = 34;
const LEGEND_LINE: u32 = 18;
const LEGEND_NAMES: usize = 4;
/// Of a row.
const ROW: u32 = 230;

/// Contenders look the same in all plots.
const COLOURS: &[(&str, RGBColor)] = &[
    ("hyperswitch", RGBColor(0, 90, 200)),
    ("hyperswitch-guests-together", RGBColor(90, 170, 240)),
    ("hyperswitch-unbounded", RGBColor(0, 150, 150)),
    ("hyperswitch-normal-priority", RGBColor(70, 70, 110)),
    ("hyperswitch-without-idle-poll", RGBColor(170, 110, 230)),
    ("hyperswitch-poll", RGBColor(140, 60, 160)),
    ("hyperswitch-thread-per-vnic", RGBColor(120, 120, 120)),
    ("hyperswitch-driver-domain", RGBColor(220, 90, 160)),
    ("ovs-dpdk", RGBColor(210, 80, 20)),
    ("ovs-dpdk-learning", RGBColor(180, 150, 0)),
    ("ovs-dpdk-filtered", RGBColor(130, 40, 10)),
    ("ovs-dpdk-ports", RGBColor(240, 150, 60)),
    ("ovs-dpdk-ports-emc", RGBColor(200, 30, 60)),
    ("ovs-dpdk-ports-smc", RGBColor(110, 90, 30)),
    ("ovs-dpdk-ports-batching", RGBColor(90, 60, 90)),
    ("hyperswitch-ports", RGBColor(20, 50, 130)),
    ("hyperswitch-access-to-trunk", RGBColor(110, 60, 20)),
    ("hyperswitch-ovs", RGBColor(0, 120, 60)),
    ("hyperswitch-ovs-filtered", RGBColor(120, 190, 60)),
    ("ovs-dpdk-tables-emc", RGBColor(230, 60, 90)),
    ("ovs-dpdk-tables-smc", RGBColor(140, 120, 60)),
    ("ovs-dpdk-tables-batching", RGBColor(120, 120, 160)),
    ("testpmd-vhost", RGBColor(100, 100, 0)),
    ("bridge", RGBColor(30, 140, 60)),
    ("hyperswitch-without-vm-state", RGBColor(60, 130, 190)),
    ("none", RGBColor(150, 150, 150)),
];

/// Of contenders that are in one case only, in turn.
const OTHERS: &[RGBColor] = &[
    RGBColor(210, 80, 20),
    RGBColor(30, 140, 60),
    RGBColor(140, 60, 160),
    RGBColor(120, 120, 120),
    RGBColor(180, 150, 0),
];

fn known_colour(contender: &str) -> Option<RGBColor> {
    let mut known = COLOURS.iter();
    known
        .find(|(name, _)| *name == contender)
        .map(|(_, colour)| *colour)
}

/// Contenders with their colours.
fn coloured<'a>(contenders: &[&'a str]) -> Vec<(&'a str, RGBColor)> {
    let mut others = OTHERS.iter().cycle();
    let colour = |name: &str| known_colour(name).or_else(|| others.next().copied());
    let colours: Vec<_> = contenders.iter().copied().map(colour).collect();
    let pairs = contenders.iter().copied().zip(colours);
    pairs
        .map(|(name, colour)| (name, colour.unwrap_or(BLACK)))
        .collect()
}

/// Points of one kind: what they have in common, what they differ in, and label and place along the axis of each.
#[derive(Debug, PartialEq, Eq)]
struct Kind<'a> {
    name: String,
    axis: String,
    points: Vec<(&'a str, String)>,
}

/// What a point is: of which kind, what points of that kind differ in, and where along that axis it is. `axis` is the case's, by
/// what labels begin with: frame sizes are followed by what else there is to say. Bursts are compared by their length, attacks by
/// their rate.
fn place(label: &str, axis: &str) -> [String; 3] {
    let first = axis.split(", ").next().unwrap_or(axis);
    let parts = if let Some((traffic, burst)) = label.split_once(", bursts of ") {
        [traffic, "frames under way", burst]
    } else if let Some((flows, rate)) = label.split_once(", ").filter(|(_, rate)| rate.ends_with("/s")) {
        return [format!("{first}: {flows}"), "attack".to_owned(), rate.to_owned()];
    } else {
        match label.split_once(' ').filter(|(number, _)| is_number(number)) {
            Some((number, rest)) => [rest, first, number],
            None => ["", axis, label],
        }
    };
    parts.map(str::to_owned)
}

fn is_number(text: &str) -> bool {
    let text = text.trim_end_matches("/s");
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
}

/// All kinds, in the order of the case. Kinds of one point each are put along one axis.
fn kinds<'a>(labels: &[&'a str], axis: &str) -> Vec<Kind<'a>> {
    let mut kinds: Vec<Kind<'a>> = Vec::new();
    for label in labels {
        let [name, axis, at] = place(label, axis);
        match kinds.iter_mut().find(|kind| kind.name == name) {
            Some(kind) => kind.points.push((label, at)),
            None => kinds.push(Kind {
                name,
                axis,
                points: vec![(label, at)],
            }),
        }
    }
    if kinds.iter().all(|kind| kind.points.len() == 1) {
        let points = labels.iter().map(|label| (*label, (*label).to_owned()));
        return vec![Kind {
            name: String::new(),
            axis: axis.to_owned(),
            points: points.collect(),
        }];
    }
    kinds
}

/// The plot as SVG; `None` if there is nothing to compare along a line.
pub fn draw(record: &Record, measure: &Measure) -> Result<Option<String>> {
    let contenders = coloured(&record.contenders(&measure.name));
    let labels: Vec<&str> = record.points_of(&measure.name).collect();
    if labels.len() < 2 || contenders.is_empty() {
        return Ok(None);
    }
    let kinds = kinds(&labels, &record.axis);
    let lines = u32::try_from(contenders.len().div_ceil(LEGEND_NAMES))?;
    let head = HEAD + lines * LEGEND_LINE;
    let height = head + ROW * u32::try_from(kinds.len())?;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw_all(&root, head, record, measure, &contenders, &kinds)
            .map_err(|error| anyhow!("cannot draw {} of {}: {error}", measure.name, record.case))?;
    }
    Ok(Some(text))
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw_all(
    root: &Canvas,
    head: u32,
    record: &Record,
    measure: &Measure,
    contenders: &[(&str, RGBColor)],
    kinds: &[Kind],
) -> Drawn {
    root.fill(&WHITE)?;
    let (top, rows) = root.split_vertically(head);
    let good = match measure.better {
        Better::Higher => "more",
        Better::Lower => "less",
    };
    let caption = format!(
        "{}: {}, {} ({good} is better)",
        record.case, measure.name, measure.unit
    );
    legend(&top, &caption, contenders)?;
    let ours = contenders[0].0;
    let compares = ours.starts_with(crate::contender::HYPERSWITCH.name) && contenders.len() > 1;
    for (row, kind) in rows.split_evenly((kinds.len(), 1)).iter().zip(kinds) {
        let line = |value: &dyn Fn(&str, &str) -> Option<Spread>, from: usize| -> Vec<Line> {
            contenders[from..]
                .iter()
                .map(|&(name, colour)| Line {
                    colour,
                    values: values(kind, |label| value(label, name)),
                })
                .collect()
        };
        let beneath = Panel {
            points: kind.points.iter().map(|(_, at)| at.as_str()).collect(),
            axis: kind.axis.clone(),
            title: kind.name.clone(),
            unit: measure.unit.clone(),
            rule: None,
        };
        let value = |label: &str, name: &str| record.value(label, name, &measure.name);
        if !compares {
            beneath.draw(row, &line(&value, 0))?;
            continue;
        }
        let (left, right) = row.split_horizontally(WIDTH / 2);
        beneath.draw(&left, &line(&value, 0))?;
        let ratio = |label: &str, name: &str| record.ratio(label, ours, name, &measure.name);
        let beside = Panel {
            title: format!("{ours} is better by this factor"),
            unit: String::new(),
            rule: Some(1.0),
            ..beneath
        };
        beside.draw(&right, &line(&ratio, 1))?;
    }
    root.present()?;
    Ok(())
}

/// Places along the axis with what was measured there.
fn values(kind: &Kind, value: impl Fn(&str) -> Option<Spread>) -> Vec<(usize, Spread)> {
    let points = kind.points.iter().enumerate();
    points
        .filter_map(|(at, (label, _))| Some((at, value(label)?)))
        .collect()
}

fn legend(area: &Canvas, caption: &str, contenders: &[(&str, RGBColor)]) -> Drawn {
    area.draw(&Text::new(caption.to_owned(), (12, 8), ("sans-serif", 17)))?;
    let across = i32::try_from(WIDTH)? / i32::try_from(LEGEND_NAMES)?;
    for (number, (name, colour)) in contenders.iter().enumerate() {
        let x = 12 + across * i32::try_from(number % LEGEND_NAMES)?;
        let y =
            i32::try_from(HEAD)? + 8 + i32::try_from(LEGEND_LINE)? * i32::try_from(number / LEGEND_NAMES)?;
        area.draw(&PathElement::new(
            vec![(x, y), (x + 18, y)],
            colour.stroke_width(3),
        ))?;
        area.draw(&Text::new(
            (*name).to_owned(),
            (x + 23, y - 7),
            ("sans-serif", 13),
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    #[test]
    fn everybody_has_a_colour_of_its_own() {
        for (index, (name, colour)) in COLOURS.iter().enumerate() {
            let same = COLOURS[..index].iter().find(|(_, other)| other == colour);
            assert_eq!(same, None, "{name}");
        }
        for case in cases::ALL.iter().filter(|case| case.name != "ablation") {
            for contender in case.contenders {
                assert!(known_colour(contender.name).is_some(), "{}", contender.name);
            }
            let names: Vec<_> = case.contenders.iter().map(|contender| contender.name).collect();
            let alone: Vec<_> = names.iter().flat_map(|name| coloured(&[name])).collect();
            assert_eq!(
                alone.iter().map(|(_, colour)| *colour).collect::<Vec<_>>(),
                coloured(&names)
                    .iter()
                    .map(|(_, colour)| *colour)
                    .collect::<Vec<_>>()
            );
        }
        assert_eq!(coloured(&["a", "hyperswitch", "b"])[2].1, OTHERS[1]);
    }

    #[test]
    fn kinds_of_traffic_have_panels_and_frame_sizes_an_axis() {
        let labels = [
            "64 io",
            "64 io, bursts of 1",
            "1500 io",
            "64 io, bursts of 4",
            "64 io, 1000 flows",
        ];
        let found: Vec<(String, Vec<String>)> = kinds(&labels, "frame bytes, flows, guest")
            .into_iter()
            .map(|kind| (kind.name, kind.points.into_iter().map(|(_, at)| at).collect()))
            .collect();
        let kind = |name: &str, points: &[&str]| {
            let points = points.iter().map(|point| (*point).to_owned());
            (name.to_owned(), points.collect::<Vec<_>>())
        };
        assert_eq!(
            found,
            [
                kind("io", &["64", "1500"]),
                kind("64 io", &["1", "4"]),
                kind("io, 1000 flows", &["64"]),
            ]
        );
        for plain in [
            ["64", "256"],
            ["none", "all, nice 0"],
            ["1, 1,000/s", "1, 10,000/s"],
        ] {
            let kinds = kinds(&plain, "axis");
            assert_eq!(kinds.len(), 1, "{plain:?}");
            assert_eq!(kinds[0].points.len(), 2);
        }
        let beside = kinds(&["none", "all, nice 0", "10 % load", "90 % load"], "beside");
        let found: Vec<_> = beside
            .iter()
            .map(|kind| (kind.name.as_str(), kind.points.len()))
            .collect();
        assert_eq!(found, [("", 2), ("% load", 2)]);
        let ports = kinds(&["none", "100 unused", "500 connected"], "ports");
        assert_eq!(ports[0].points.len(), 3, "each is a kind of its own: one axis");
    }
}
