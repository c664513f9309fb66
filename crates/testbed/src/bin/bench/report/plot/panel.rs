//! One pair of axes with what was measured of each contender: lines with bands where the axis has numbers, marks with bars
//! side by side where it has names, between which there is nothing.

use super::{Canvas, Drawn, is_number};
use crate::record::Spread;
use crate::report::table::digits;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use std::ops::Range;

/// Ratios beyond are written beside their marks, so that one does not flatten all others.
const MOST: f64 = 8.0;

/// What is drawn besides lines.
pub(super) struct Panel<'a> {
    /// Labels along the axis.
    pub points: Vec<&'a str>,
    /// What they differ in.
    pub axis: String,
    pub title: String,
    /// Of values; none of ratios.
    pub unit: String,
    /// Of ratios, where neither is better.
    pub rule: Option<f64>,
}

/// What was measured of one contender, by place along the axis.
pub(super) struct Line {
    pub colour: RGBColor,
    pub values: Vec<(usize, Spread)>,
}

/// Places along the axis, in parts of what there is between two of them.
const PARTS: usize = 100;

/// An axis with so many points, each in the middle of its share.
struct Axis {
    count: usize,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = usize;

    fn map(&self, value: &usize, (low, high): (i32, i32)) -> i32 {
        let parts = i32::try_from(self.count * PARTS).unwrap_or(i32::MAX);
        low + (high - low) * i32::try_from(*value).unwrap_or(0) / parts
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<usize> {
        (0..self.count).map(middle).collect()
    }

    fn range(&self) -> Range<usize> {
        0..self.count * PARTS
    }
}

const fn middle(point: usize) -> usize {
    point * PARTS + PARTS / 2
}

type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, plotters::coord::types::RangedCoordf64>>;

impl Panel<'_> {
    /// Values begin at zero, so that what looks twice as high is twice as much.
    pub(super) fn draw(&self, area: &Canvas, lines: &[Line]) -> Drawn {
        let spreads = lines.iter().flat_map(|line| &line.values);
        let least = self.rule.map_or(0.0, |rule| 1.5 * rule);
        let highest = spreads.map(|(_, spread)| spread.upper).fold(least, f64::max);
        let top = self.rule.map_or(highest, |_| highest.min(MOST)).max(1e-9) * 1.08;
        let count = self.points.len();
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 13))
            .margin(8)
            .x_label_area_size(38)
            .y_label_area_size(58)
            .build_cartesian_2d(Axis { count }, 0.0..top)?;
        let label = |at: &usize| self.points[at / PARTS].to_owned();
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .x_labels(count)
            .x_label_style(("sans-serif", 11))
            .y_label_style(("sans-serif", 11))
            .x_label_formatter(&label)
            .y_label_formatter(&|value| digits(*value))
            .y_labels(6)
            .x_desc(&self.axis)
            .y_desc(&self.unit)
            .draw()?;
        if let Some(rule) = self.rule {
            let ends = vec![(0, rule), (count * PARTS, rule)];
            chart.draw_series([PathElement::new(ends, BLACK.mix(0.6))])?;
        }
        let within = |value: f64| value.min(top);
        if count > 1 && self.points.iter().all(|point| is_number(point)) {
            for line in lines {
                band(&mut chart, line, within)?;
            }
            for line in lines {
                joined(&mut chart, line, within)?;
            }
        } else {
            for (number, line) in lines.iter().enumerate() {
                let aside = (number + 1) * PARTS / (lines.len() + 1);
                bars(&mut chart, line, aside, within)?;
            }
        }
        Ok(())
    }
}

/// From quartile to quartile.
fn band(chart: &mut Chart, line: &Line, within: impl Fn(f64) -> f64) -> Drawn {
    let values = line.values.iter();
    let back = values.clone().rev();
    let back = back.map(|(at, spread)| (middle(*at), within(spread.lower)));
    let there = values.map(|(at, spread)| (middle(*at), within(spread.upper)));
    let corners: Vec<_> = there.chain(back).collect();
    chart.draw_series([Polygon::new(corners, line.colour.mix(0.13))])?;
    Ok(())
}

fn joined(chart: &mut Chart, line: &Line, within: impl Fn(f64) -> f64) -> Drawn {
    let medians = line.values.iter();
    let medians = medians.map(|(at, spread)| (middle(*at), within(spread.median)));
    chart.draw_series(LineSeries::new(medians, line.colour.stroke_width(2)))?;
    marks(chart, line, PARTS / 2, within)
}

fn bars(chart: &mut Chart, line: &Line, aside: usize, within: impl Fn(f64) -> f64) -> Drawn {
    let bars = line.values.iter().map(|(at, spread)| {
        let at = at * PARTS + aside;
        let ends = vec![(at, within(spread.lower)), (at, within(spread.upper))];
        PathElement::new(ends, line.colour.stroke_width(2))
    });
    chart.draw_series(bars)?;
    marks(chart, line, aside, within)
}

/// A circle at each median, with the number where it does not fit.
fn marks(chart: &mut Chart, line: &Line, aside: usize, within: impl Fn(f64) -> f64) -> Drawn {
    for (at, spread) in &line.values {
        let place = (at * PARTS + aside, within(spread.median));
        chart.draw_series([Circle::new(place, 3, line.colour.filled())])?;
        if place.1 < spread.median {
            let style = ("sans-serif", 11).into_font().color(&line.colour);
            chart.draw_series([Text::new(digits(spread.median), place, style)])?;
        }
    }
    Ok(())
}
