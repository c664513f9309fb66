//! One pair of axes with lines and their bands.

use super::{Canvas, Drawn};
use crate::record::Spread;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use std::ops::Range;

/// What is drawn besides lines.
pub(super) struct Panel<'a> {
    /// Labels along the axis.
    pub points: Vec<&'a str>,
    pub title: String,
    /// Of values.
    pub unit: String,
    pub rule: Option<Rule>,
}

/// A level that matters.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    pub at: f64,
}

/// What was measured of one contender, by place along the axis.
pub(super) struct Line {
    pub colour: RGBColor,
    pub values: Vec<(usize, Spread)>,
}

/// An axis with so many points, each in the middle of its share.
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

impl Panel<'_> {
    /// Values begin at zero, so that what looks twice as high is twice as much.
    pub(super) fn draw(&self, area: &Canvas, lines: &[Line]) -> Drawn {
        let tops = lines.iter().flat_map(|line| &line.values);
        let least = self.rule.map_or(0.0, |rule| 1.5 * rule.at);
        let highest = tops.map(|(_, spread)| spread.upper).fold(least, f64::max);
        let count = self.points.len();
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 13))
            .margin(8)
            .x_label_area_size(24)
            .y_label_area_size(58)
            .build_cartesian_2d(Axis { count }, 0.0..highest.max(1e-9) * 1.08)?;
        let label = |index: &usize| self.points[*index].to_owned();
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .x_labels(count)
            .x_label_style(("sans-serif", 11))
            .y_label_style(("sans-serif", 11))
            .x_label_formatter(&label)
            .y_labels(6)
            .y_desc(&self.unit)
            .draw()?;
        if let Some(rule) = self.rule {
            let ends = vec![(0, rule.at), (count - 1, rule.at)];
            chart.draw_series([PathElement::new(ends, BLACK.mix(0.6))])?;
        }
        for line in lines {
            let colour = line.colour;
            let back = line.values.iter().rev().map(|(at, spread)| (*at, spread.lower));
            let band = line.values.iter().map(|(at, spread)| (*at, spread.upper));
            let band: Vec<_> = band.chain(back).collect();
            chart.draw_series([Polygon::new(band, colour.mix(0.13))])?;
        }
        for line in lines {
            let colour = line.colour;
            let medians = line.values.iter().map(|(at, spread)| (*at, spread.median));
            let marks = medians.clone().map(|at| Circle::new(at, 3, colour.filled()));
            chart.draw_series(LineSeries::new(medians, colour.stroke_width(2)))?;
            chart.draw_series(marks)?;
            // A band of one place has no width.
            if let [(at, spread)] = line.values[..] {
                let ends = vec![(at, spread.lower), (at, spread.upper)];
                chart.draw_series([PathElement::new(ends, colour)])?;
            }
        }
        Ok(())
    }
}
