//! Plots: one measure of one case. A row per kind of traffic, values on the left and how many times better
//! ours is on the right; along the axis what points of a kind differ in, frame bytes for instance. A line is
//! of medians, its band reaches from quartile to quartile. What a table says as well has no plot: one
//! contender, two points, nothing but zeros, or values that are the same for all.

mod panel;
mod scale;

use crate::record::{Better, Measure, Record, Spread};
use anyhow::{Result, anyhow};
use panel::{Line, Panel};
use plotters::prelude::*;

const WIDTH: u32 = 900;
/// Of caption and legend, which has so many names per line.
const HEAD: u32 = 38;
const LEGEND_LINE: u32 = 20;
const LEGEND_NAMES: usize = 4;
/// Of a row.
const ROW: u32 = 250;
/// Sizes of letters: of a label, of a panel's title, of the caption. SVG has four fifths of them as pixels.
const TEXT: u32 = 15;
const TITLE: u32 = 17;
const CAPTION: u32 = 21;

/// A kind with fewer points is left to the table.
const POINTS: usize = 3;
/// More contenders than this are drawn in two rows.
const TOGETHER: usize = 5;
/// A measure by which contenders differ less than by this factor is left to the table.
const DIFFERENCE: f64 = 1.03;

/// Contenders look the same in all plots.
const COLOURS: &[(&str, RGBColor)] = &[
    ("hyperswitch", RGBColor(0, 90, 200)),
    ("hyperswitch-guests-together", RGBColor(90, 170, 240)),
    ("hyperswitch-unbounded", RGBColor(0, 150, 150)),
    ("hyperswitch-normal-priority", RGBColor(70, 70, 110)),
    ("hyperswitch-guarded", RGBColor(100, 210, 210)),
    ("hyperswitch-nice", RGBColor(40, 180, 120)),
    ("hyperswitch-slice", RGBColor(250, 170, 30)),
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
    ("hyperswitch-policies", RGBColor(0, 150, 160)),
    ("hyperswitch-p4", RGBColor(150, 80, 0)),
    ("hyperswitch-af-xdp", RGBColor(250, 120, 120)),
    ("hyperswitch-fast-path", RGBColor(90, 60, 200)),
    ("hyperswitch-watched", RGBColor(200, 60, 120)),
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

/// Contenders with their colours.
fn coloured<'a>(contenders: &[&'a str]) -> Vec<(&'a str, RGBColor)> {
    let colour = |name: &str| COLOURS.iter().find(|(known, _)| *known == name);
    let contenders = contenders.iter().copied();
    contenders
        .map(|name| (name, colour(name).map_or(BLACK, |(_, colour)| *colour)))
        .collect()
}

/// Points of one kind: what they have in common, what they differ in, and label and place along the axis of
/// each.
#[derive(Debug, PartialEq, Eq)]
struct Kind<'a> {
    name: String,
    axis: String,
    points: Vec<(&'a str, String)>,
}

/// What a point is: of which kind, what points of that kind differ in, and where along that axis it is.
/// `axis` is the case's, by what labels begin with: frame sizes are followed by what else there is to say.
/// Bursts are compared by their length, attacks by their rate, tables by what they have.
fn place(label: &str, axis: &str) -> [String; 3] {
    let first = axis.split(", ").next().unwrap_or(axis);
    if let Some((traffic, burst)) = label.split_once(", bursts of ") {
        let kind = match traffic.split_once(' ') {
            Some((bytes, rest)) => format!("{rest}, {first}: {bytes}"),
            None => traffic.to_owned(),
        };
        return [kind, "frames under way".to_owned(), burst.to_owned()];
    }
    if let Some((flows, rate)) = label.split_once(", ")
        && let Some(rate) = rate.strip_suffix("/s")
    {
        let axis = "attack, packets/s".to_owned();
        return [format!("{first}: {flows}"), axis, rate.to_owned()];
    }
    if axis == "tables, flows"
        && let Some((tables, flows)) = label.rsplit_once(", ")
    {
        return [flows, first, tables].map(str::to_owned);
    }
    match label.split_once(' ').filter(|(at, _)| number(at).is_some()) {
        Some((at, rest)) if rest.starts_with('%') => {
            [String::new(), format!("{rest} {first}"), at.to_owned()]
        }
        Some((at, rest)) => [rest, first, at].map(str::to_owned),
        None => ["", axis, label].map(str::to_owned),
    }
}

/// What a label says, if that is a number.
fn number(text: &str) -> Option<f64> {
    let text = text.replace(',', "");
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// All kinds, in the order of the case. Kinds of one point each are put along one axis.
fn kinds<'a>(labels: &[&'a str], axis: &str) -> Vec<Kind<'a>> {
    let mut kinds: Vec<Kind<'a>> = Vec::new();
    for label in labels {
        let [name, axis, at] = place(label, axis);
        match kinds
            .iter_mut()
            .find(|kind| kind.name == name && kind.axis == axis)
        {
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

/// Whether the kind's values, or some of them, are more than zero.
fn has_values(kind: &Kind, record: &Record, measure: &str, contenders: &[&str]) -> bool {
    let mut pairs = kind
        .points
        .iter()
        .flat_map(|(label, _)| contenders.iter().map(move |name| (label, name)));
    pairs.any(|(label, name)| {
        record
            .value(label, name, measure)
            .is_some_and(|spread| spread.upper > 0.0)
    })
}

/// Whether somewhere somebody is better.
fn differs(kinds: &[Kind], record: &Record, measure: &str, contenders: &[&str]) -> bool {
    kinds.iter().flat_map(|kind| &kind.points).any(|(label, _)| {
        let medians = contenders
            .iter()
            .filter_map(|name| record.value(label, name, measure));
        let medians: Vec<f64> = medians.map(|spread| spread.median).collect();
        let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
        medians.iter().any(|median| *median > DIFFERENCE * least)
    })
}

/// Who is drawn together, with what the row says of that: ours with peers, and with its own modes if there
/// are many of both.
fn groups(names: &[&str]) -> Vec<(&'static str, Vec<usize>)> {
    let own = |name: &str| name.starts_with(crate::contender::HYPERSWITCH.name);
    let is = |modes: bool| -> Vec<usize> {
        let wanted = |at: &usize| *at == 0 || own(names[*at]) == modes;
        (0..names.len()).filter(wanted).collect()
    };
    if names.len() <= TOGETHER || !names.first().is_some_and(|name| own(name)) {
        return vec![("", (0..names.len()).collect())];
    }
    vec![("beside others", is(false)), ("beside its own modes", is(true))]
}

/// The plot as SVG; `None` if it would say no more than the table.
pub fn draw(record: &Record, measure: &Measure) -> Result<Option<String>> {
    let names = record.contenders(&measure.name);
    let labels: Vec<&str> = record.points_of(&measure.name).collect();
    let mut kinds = kinds(&labels, &record.axis);
    kinds.retain(|kind| kind.points.len() >= POINTS && has_values(kind, record, &measure.name, &names));
    if names.len() < 2 || !differs(&kinds, record, &measure.name, &names) {
        return Ok(None);
    }
    let contenders = coloured(&names);
    let lines = u32::try_from(contenders.len().div_ceil(LEGEND_NAMES))?;
    let head = HEAD + lines * LEGEND_LINE;
    let height = head + ROW * u32::try_from(kinds.len() * groups(&names).len())?;
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
    let names: Vec<&str> = contenders.iter().map(|(name, _)| *name).collect();
    let groups = groups(&names);
    let rows = rows.split_evenly((kinds.len() * groups.len(), 1));
    let shown = kinds
        .iter()
        .flat_map(|kind| groups.iter().map(move |group| (kind, group)));
    for (row, (kind, (beside, members))) in rows.iter().zip(shown) {
        let members: Vec<_> = members.iter().map(|at| contenders[*at]).collect();
        draw_row(row, record, measure, &members, kind, beside)?;
    }
    root.present()?;
    Ok(())
}

/// Values of one kind, and beside them how many times better ours is.
fn draw_row(
    row: &Canvas,
    record: &Record,
    measure: &Measure,
    contenders: &[(&str, RGBColor)],
    kind: &Kind,
    beside: &str,
) -> Drawn {
    let ours = contenders[0].0;
    let lines = |value: &dyn Fn(&str, &str) -> Option<Spread>, from: usize| -> Vec<Line> {
        contenders[from..]
            .iter()
            .map(|&(name, colour)| Line {
                colour,
                values: values(kind, |label| value(label, name)),
            })
            .collect()
    };
    let beside = if beside.is_empty() {
        String::new()
    } else {
        format!("{ours} {beside}")
    };
    let title = [kind.name.as_str(), &beside]
        .into_iter()
        .find(|part| !part.is_empty());
    let left_panel = Panel {
        points: kind.points.iter().map(|(_, at)| at.as_str()).collect(),
        axis: kind.axis.clone(),
        title: title.unwrap_or(&measure.name).to_owned(),
        // The caption has what follows the comma.
        unit: measure.unit.split(", ").next().unwrap_or_default().to_owned(),
        rule: None,
    };
    let value = |label: &str, name: &str| record.value(label, name, &measure.name);
    if !ours.starts_with(crate::contender::HYPERSWITCH.name) {
        return left_panel.draw(row, &lines(&value, 0));
    }
    let (left, right) = row.split_horizontally(WIDTH / 2);
    left_panel.draw(&left, &lines(&value, 0))?;
    let ratio = |label: &str, name: &str| record.ratio(label, ours, name, &measure.name);
    let right_panel = Panel {
        title: format!("{ours} is better by this factor"),
        unit: String::new(),
        rule: Some(1.0),
        ..left_panel
    };
    right_panel.draw(&right, &lines(&ratio, 1))
}

/// Places along the axis with what was measured there.
fn values(kind: &Kind, value: impl Fn(&str) -> Option<Spread>) -> Vec<(usize, Spread)> {
    let points = kind.points.iter().enumerate();
    points
        .filter_map(|(at, (label, _))| Some((at, value(label)?)))
        .collect()
}

fn legend(area: &Canvas, caption: &str, contenders: &[(&str, RGBColor)]) -> Drawn {
    area.draw(&Text::new(caption.to_owned(), (12, 8), ("sans-serif", CAPTION)))?;
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
            ("sans-serif", TEXT),
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
            let same = COLOURS[..index]
                .iter()
                .find(|other| other.1 == *colour || other.0 == *name);
            assert_eq!(same, None, "{name}");
        }
        for case in cases::ALL.iter().filter(|case| case.name != "ablation") {
            let names: Vec<_> = case.contenders.iter().map(|contender| contender.name).collect();
            let colours = coloured(&names);
            for (index, (name, colour)) in colours.iter().enumerate() {
                assert_ne!(*colour, BLACK, "{name} has no colour");
                for (other, beside) in &colours[..index] {
                    let apart = [(colour.0, beside.0), (colour.1, beside.1), (colour.2, beside.2)]
                        .map(|(one, two)| u32::from(one.abs_diff(two)));
                    assert!(
                        apart.iter().sum::<u32>() >= 90,
                        "{name} looks like {other} in {}",
                        case.name
                    );
                }
            }
        }
    }

    /// Left, top, right and bottom of each text of a plot, as wide as letters are in most fonts.
    fn texts(svg: &str) -> Vec<(String, [f64; 4])> {
        let attribute = |tag: &str, name: &str| -> String {
            let from = tag
                .split_once(&format!(" {name}=\""))
                .map_or("", |(_, rest)| rest);
            from.split('"').next().unwrap_or_default().to_owned()
        };
        let of = |element: &str| {
            let (tag, rest) = element.split_once('>').unwrap();
            let text = rest.split('<').next().unwrap().trim().to_owned();
            let [x, y, size] =
                ["x", "y", "font-size"].map(|name| attribute(tag, name).parse::<f64>().unwrap());
            let wide = 0.58 * size * text.chars().count() as f64;
            let before = match attribute(tag, "text-anchor").as_str() {
                "middle" => wide / 2.0,
                "end" => wide,
                _ => 0.0,
            };
            let above = match attribute(tag, "dy").as_str() {
                "0.76em" => 0.0,
                "0.5ex" => size / 2.0,
                _ => size,
            };
            let frame = if attribute(tag, "transform").starts_with("rotate(270") {
                [x - above, y + before - wide, x - above + size, y + before]
            } else {
                [x - before, y - above, x - before + wide, y - above + size]
            };
            (text, frame)
        };
        svg.split("<text")
            .skip(1)
            .map(of)
            .filter(|(text, _)| !text.is_empty())
            .collect()
    }

    #[test]
    fn no_text_is_cut_off_or_on_top_of_another() {
        let directory = testbed::build_dir::workspace().join("docs/performance");
        let results = super::super::read(&directory).unwrap();
        let mut drawn = 0;
        for record in results.cases.values() {
            for measure in &record.measures {
                let Some(svg) = draw(record, measure).unwrap() else {
                    continue;
                };
                drawn += 1;
                let height: f64 = svg.split('"').nth(3).unwrap().parse().unwrap();
                let found = texts(&svg);
                for (index, (text, [left, top, right, bottom])) in found.iter().enumerate() {
                    let what = format!("{text:?} in {} of {}", measure.name, record.case);
                    assert!(
                        *left >= 0.0 && *top >= 0.0 && *right <= f64::from(WIDTH) && *bottom <= height,
                        "{what} is cut off"
                    );
                    for (other, [from, above, to, below]) in &found[..index] {
                        let apart = right <= from || to <= left || bottom <= above || below <= top;
                        assert!(apart, "{what} is on top of {other:?}");
                    }
                }
            }
        }
        assert!(drawn > 0);
    }

    /// A record of one measure, by point and contender.
    fn record(points: &[(&str, &[(&str, f64)])]) -> Record {
        let points = points.iter().map(|(label, contenders)| {
            let values = contenders
                .iter()
                .map(|(name, value)| format!(r#""{name}": {{"rate": [{value}]}}"#));
            let values: Vec<String> = values.collect();
            format!(
                r#"{{"label": "{label}", "contenders": {{{}}}}}"#,
                values.join(",")
            )
        });
        let points: Vec<String> = points.collect();
        let text = format!(
            r#"{{"case": "", "about": "", "axis": "bytes", "rounds": 1, "commit": "",
            "measures": [{{"name": "rate", "unit": "1/s", "better": "higher"}}], "points": [{}]}}"#,
            points.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn what_the_table_says_as_well_has_no_plot() {
        let drawn = |points: &[(&str, &[(&str, f64)])]| {
            let record = record(points);
            draw(&record, &record.measures[0]).unwrap().is_some()
        };
        let [ours, better]: [&[(&str, f64)]; 2] =
            [&[("hyperswitch", 8.0)], &[("hyperswitch", 8.0), ("bridge", 9.0)]];
        let [same, none]: [&[(&str, f64)]; 2] = [
            &[("hyperswitch", 8.0), ("bridge", 8.1)],
            &[("hyperswitch", 0.0), ("bridge", 0.0)],
        ];
        assert!(drawn(&[("1", same), ("2", better), ("3", same)]));
        assert!(!drawn(&[("1", same), ("2", better)]), "two points");
        assert!(!drawn(&[("1", ours), ("2", ours), ("3", ours)]), "one contender");
        assert!(!drawn(&[("1", same), ("2", same), ("3", same)]), "no difference");
        assert!(!drawn(&[("1", none), ("2", none), ("3", none)]), "zeros");
    }

    #[test]
    fn many_contenders_are_drawn_in_two_rows() {
        let few = ["hyperswitch", "bridge"];
        assert_eq!(groups(&few), [("", vec![0, 1])]);
        let many = [
            "hyperswitch",
            "hyperswitch-a",
            "hyperswitch-b",
            "bridge",
            "hyperswitch-c",
            "ovs-dpdk",
        ];
        let found: Vec<Vec<usize>> = groups(&many).into_iter().map(|(_, members)| members).collect();
        assert_eq!(found, [vec![0, 3, 5], vec![0, 1, 2, 4]]);
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
                kind("io, frame bytes: 64", &["1", "4"]),
                kind("io, 1000 flows", &["64"]),
            ]
        );
        for plain in [
            ["64", "256"],
            ["none", "all, nice 0"],
            ["1, 1,000/s", "1, 10,000/s"],
            ["NORMAL, 1000 flows", "1000 rules, 1000 flows"],
        ] {
            let kinds = kinds(&plain, "tables, flows");
            assert_eq!(kinds.len(), 1, "{plain:?}");
            assert_eq!(kinds[0].points.len(), 2);
        }
        let beside = kinds(&["none", "all, nice 0", "10 % load", "90 % load"], "beside");
        let found: Vec<_> = beside
            .iter()
            .map(|kind| (kind.axis.as_str(), kind.points.len()))
            .collect();
        assert_eq!(found, [("beside", 2), ("% load beside", 2)]);
        let ports = kinds(&["none", "100 unused", "500 connected"], "ports");
        assert_eq!(ports[0].points.len(), 3, "each is a kind of its own: one axis");
    }
}
