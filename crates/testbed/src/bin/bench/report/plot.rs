//! Plots: one measure of one case, a line per contender, points in the order of the case.

use crate::record::{Measure, Record, Spread};
use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use std::ops::Range;

const SIZE: (u32, u32) = (860, 420);

/// Contenders look the same in all plots.
const COLOURS: &[(&str, RGBColor)] = &[
    ("hyperswitch", RGBColor(0, 90, 200)),
    ("hyperswitch-guests-together", RGBColor(90, 170, 240)),
    ("hyperswitch-unbounded", RGBColor(0, 150, 150)),
    ("hyperswitch-normal-priority", RGBColor(70, 70, 110)),
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
    ("hyperswitch-ports", RGBColor(0, 90, 200)),
    ("testpmd-vhost", RGBColor(100, 100, 0)),
    ("bridge", RGBColor(30, 140, 60)),
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

/// An axis with the points of a case, each in the middle of its share.
struct Axis {
    count: usize,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = usize;

    fn map(&self, value: &usize, (low, high): (i32, i32)) -> i32 {
        let at = |count: usize| i32::try_from(count).unwrap_or(i32::MAX / 2);
        low + (high - low) * (2 * at(*value) + 1) / (2 * at(self.count))
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<usize> {
        (0..self.count).collect()
    }

    fn range(&self) -> Range<usize> {
        0..self.count
    }
}

/// The plot as SVG; `None` if there is nothing to compare along a line.
pub fn draw(record: &Record, measure: &Measure) -> Result<Option<String>> {
    let contenders = record.contenders(&measure.name);
    let highest = contenders
        .iter()
        .flat_map(|name| values(record, name, measure))
        .map(|(_, spread)| spread.upper)
        .fold(0.0, f64::max);
    let count = record.points.len();
    if count < 2 || highest <= 0.0 {
        return Ok(None);
    }
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw_chart(&root, record, measure, &contenders, highest * 1.1)
            .map_err(|error| anyhow!("cannot draw {} of {}: {error}", measure.name, record.case))?;
    }
    Ok(Some(text))
}

/// Index of the point and what was measured there.
fn values<'a>(
    record: &'a Record,
    contender: &'a str,
    measure: &'a Measure,
) -> impl Iterator<Item = (usize, Spread)> + Clone + 'a {
    record
        .points
        .iter()
        .enumerate()
        .filter_map(move |(index, point)| {
            Some((index, record.value(&point.label, contender, &measure.name)?))
        })
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_chart(
    root: &Canvas,
    record: &Record,
    measure: &Measure,
    contenders: &[&str],
    top: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let count = record.points.len();
    // Long labels are written upwards.
    let longest = record
        .points
        .iter()
        .map(|point| point.label.len())
        .max()
        .unwrap_or(0);
    let upwards = longest * count > 90;
    let below = if upwards {
        20 + 6 * u32::try_from(longest)?
    } else {
        40
    };
    let mut chart = ChartBuilder::on(root)
        .caption(format!("{}: {}", record.case, measure.name), ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(below)
        .y_label_area_size(70)
        .build_cartesian_2d(Axis { count }, 0.0..top)?;
    let label = |index: &usize| record.points[*index].label.clone();
    let style = ("sans-serif", 12).into_text_style(root);
    let style = if upwards {
        style
            .transform(FontTransform::Rotate270)
            .pos(plotters::style::text_anchor::Pos::new(
                plotters::style::text_anchor::HPos::Right,
                plotters::style::text_anchor::VPos::Center,
            ))
    } else {
        style
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .x_labels(count)
        .x_label_style(style)
        .x_label_formatter(&label)
        .x_desc(if upwards { "" } else { &record.axis })
        .y_desc(&measure.unit)
        .draw()?;
    for (contender, colour) in coloured(contenders) {
        let line = values(record, contender, measure).map(|(index, spread)| (index, spread.median));
        let marks = line
            .clone()
            .map(|position| Circle::new(position, 3, colour.filled()));
        let bars = values(record, contender, measure).map(|(index, spread)| {
            PathElement::new(vec![(index, spread.lower), (index, spread.upper)], colour)
        });
        let legend = move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(2));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(contender)
            .legend(legend);
        chart.draw_series(marks)?;
        chart.draw_series(bars)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    root.present()?;
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
}
