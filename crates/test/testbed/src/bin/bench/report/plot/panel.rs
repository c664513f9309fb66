//! One pair of axes with what was measured of each contender: lines with bands where the axis has numbers,
//! marks with bars side by side where it has names, between which there is nothing.

use super::scale::{self, Along, Scale, WIDE};
use super::{Canvas, Drawn, TEXT, TITLE, number};
use crate::record::Spread;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Pixels: what is around a panel, of values' labels, of a line of names, and of what a character takes at
/// most.
const MARGIN: u32 = 8;
const LEFT: u32 = 72;
const LINE: i32 = 15;
const CHARACTER: u32 = 7;

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

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Along, Scale>>;

impl Panel<'_> {
    pub(super) fn draw(&self, area: &Canvas, lines: &[Line]) -> Drawn {
        let scale = self.scale(lines);
        let numbers: Option<Vec<f64>> = self.points.iter().map(|point| number(point)).collect();
        let numbers = numbers.filter(|numbers| numbers.len() > 1 && numbers.is_sorted());
        let (wide, _) = area.dim_in_pixel();
        let share = wide.saturating_sub(LEFT + 2 * MARGIN) / u32::try_from(self.points.len())?.max(1);
        let names: Vec<Vec<String>> = match &numbers {
            Some(_) => self
                .points
                .iter()
                .map(|point| vec![(*point).to_owned()])
                .collect(),
            None => self.points.iter().map(|point| wrapped(point, share)).collect(),
        };
        let lines_of_names = u32::try_from(names.iter().map(Vec::len).max().unwrap_or(1))?;
        let along = match &numbers {
            Some(numbers) => Along::numbers(numbers),
            None => Along::names(self.points.len()),
        };
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", TITLE))
            .margin(MARGIN)
            .x_label_area_size(24 + LINE.unsigned_abs() * lines_of_names)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(along.clone(), scale)?;
        let unit = if scale.logarithmic && self.rule.is_none() {
            format!("{}, logarithmic", self.unit)
        } else {
            self.unit.clone()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .label_style(("sans-serif", TEXT))
            .x_label_formatter(&|_| String::new())
            .y_label_formatter(&|value| scale::label(*value))
            .x_desc(&self.axis)
            .y_desc(unit)
            .draw()?;
        write_names(area, &chart, &along, &names)?;
        if let Some(rule) = self.rule {
            chart.draw_series([PathElement::new(vec![(0, rule), (WIDE, rule)], BLACK.mix(0.6))])?;
        }
        if numbers.is_some() {
            for line in lines {
                band(&mut chart, line, &along)?;
            }
            // Ours, the first, on top.
            for line in lines.iter().rev() {
                joined(&mut chart, line, &along)?;
            }
        } else {
            let (count, shares) = (i32::try_from(lines.len())?, i32::try_from(self.points.len())?);
            for (number, line) in (0..).zip(lines) {
                // Within three fifths of the share, so that neighbours keep apart.
                let aside = (2 * number + 1 - count) * WIDE * 3 / (10 * count * shares.max(1));
                bars(&mut chart, line, &along, aside)?;
            }
        }
        Ok(())
    }

    fn scale(&self, lines: &[Line]) -> Scale {
        let of = |lines: &[Line]| -> Vec<f64> {
            let spreads = lines.iter().flat_map(|line| &line.values);
            spreads
                .flat_map(|(_, spread)| [spread.lower, spread.median, spread.upper])
                .collect()
        };
        match self.rule {
            Some(_) => Scale::of_ratios(&of(lines)),
            None => Scale::of_values(&of(lines), &of(&lines[..1])),
        }
    }
}

/// A name in lines, which end where it has a comma, or a space if what is between commas is wider than there
/// is room for.
fn wrapped(name: &str, pixels: u32) -> Vec<String> {
    let most = usize::try_from(pixels / CHARACTER).unwrap_or(usize::MAX);
    let mut lines: Vec<String> = Vec::new();
    for part in name.split_inclusive(", ") {
        let mut begun = false;
        for word in part.split_whitespace() {
            match lines
                .last_mut()
                .filter(|line| begun && line.len() + word.len() < most)
            {
                Some(line) => {
                    line.push(' ');
                    line.push_str(word);
                }
                None => lines.push(word.to_owned()),
            }
            begun = true;
        }
    }
    lines
}

/// Beneath the ticks.
fn write_names(area: &Canvas, chart: &Chart, along: &Along, names: &[Vec<String>]) -> Drawn {
    let style = TextStyle::from(("sans-serif", TEXT).into_font()).pos(Pos::new(HPos::Center, VPos::Top));
    let (left, top) = area.get_base_pixel();
    let (_, bottom) = chart.plotting_area().get_pixel_range();
    for (place, lines) in along.places.iter().zip(names) {
        let (x, _) = chart.backend_coord(&(*place, 0.0));
        for (line, text) in (0..).zip(lines) {
            let at = (x - left, bottom.end - top + 8 + LINE * line);
            area.draw(&Text::new(text.clone(), at, style.clone()))?;
        }
    }
    Ok(())
}

/// From quartile to quartile.
fn band(chart: &mut Chart, line: &Line, along: &Along) -> Drawn {
    let values = line.values.iter();
    let back = values.clone().rev();
    let back = back.map(|(at, spread)| (along.places[*at], spread.lower));
    let there = values.map(|(at, spread)| (along.places[*at], spread.upper));
    let corners: Vec<_> = there.chain(back).collect();
    chart.draw_series([Polygon::new(corners, line.colour.mix(0.13))])?;
    Ok(())
}

fn joined(chart: &mut Chart, line: &Line, along: &Along) -> Drawn {
    let medians = line.values.iter();
    let medians = medians.map(|(at, spread)| (along.places[*at], spread.median));
    chart.draw_series(LineSeries::new(medians, line.colour.stroke_width(2)))?;
    marks(chart, line, along, 0)
}

fn bars(chart: &mut Chart, line: &Line, along: &Along, aside: i32) -> Drawn {
    let bars = line.values.iter().map(|(at, spread)| {
        let at = along.places[*at] + aside;
        PathElement::new(
            vec![(at, spread.lower), (at, spread.upper)],
            line.colour.stroke_width(2),
        )
    });
    chart.draw_series(bars)?;
    marks(chart, line, along, aside)
}

/// A circle at each median.
fn marks(chart: &mut Chart, line: &Line, along: &Along, aside: i32) -> Drawn {
    let circles = line.values.iter().map(|(at, spread)| {
        Circle::new(
            (along.places[*at] + aside, spread.median),
            3,
            line.colour.filled(),
        )
    });
    chart.draw_series(circles)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_wrapped_where_they_pause() {
        assert_eq!(wrapped("all, nice 19", 77), ["all,", "nice 19"]);
        assert_eq!(
            wrapped("meter, group indirect", 77),
            ["meter,", "group", "indirect"]
        );
        assert_eq!(wrapped("busy guest", 77), ["busy guest"]);
    }
}
