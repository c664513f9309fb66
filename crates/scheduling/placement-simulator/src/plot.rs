//! Throughput over pairs of guests as SVG, one picture per machine.

use crate::report::Curve;
use anyhow::Result;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (900, 460);
/// Of the chart; the legend is beside it, so that it hides no curve.
const CHART: u32 = 660;
const TEXT: u32 = 15;
const LINE: i32 = 24;

/// A contender's colour, by what its name begins with: the same as in the plots of the benchmark (`bench`'s
/// `plot.rs`).
const COLOURS: [(&str, RGBColor); 5] = [
    ("hyperswitch, paper's criteria", RGBColor(0, 0, 0)),
    ("hyperswitch", RGBColor(0, 90, 200)),
    ("poll", RGBColor(140, 60, 160)),
    ("thread-per-vnic", RGBColor(120, 120, 120)),
    ("driver-domain", RGBColor(220, 90, 160)),
];

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    colour: RGBColor,
    wide: u32,
    dashed: bool,
}

/// The product's own policy is wider; what shares a colour with one before it, on more cores, is dashed.
fn looks(curves: &[Curve]) -> Vec<Look> {
    let mut looks: Vec<Look> = Vec::new();
    for (number, curve) in curves.iter().enumerate() {
        let known = COLOURS.iter().find(|(name, _)| curve.contender.starts_with(name));
        let colour = known.map_or(BLACK, |(_, colour)| *colour);
        looks.push(Look {
            colour,
            wide: if number == 0 { 4 } else { 2 },
            dashed: colour == BLACK || looks.iter().any(|look| look.colour == colour),
        });
    }
    looks
}

/// Draws all curves.
///
/// # Errors
/// The file cannot be written.
pub fn draw(path: &Path, title: &str, unit: &str, curves: &[Curve]) -> Result<()> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("{title}: simulated throughput");
    area.draw(&Text::new(title, (12, 8), ("sans-serif", 21)))?;
    let (left, legend) = area.margin(32, 0, 0, 0).split_horizontally(CHART);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let most = points().map(|point| point.value).fold(0.0, f64::max);
    let last = points().map(|point| point.pairs).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(&left)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d((1_f64..last as f64).log_scale().base(2.0), 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .label_style(("sans-serif", TEXT))
        .x_desc("pairs of guests")
        .y_desc(unit)
        .x_label_formatter(&|pairs| format!("{pairs:.0}"))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for ((at, curve), look) in (0..).zip(curves).zip(looks(curves)) {
        let style = look.colour.stroke_width(look.wide);
        let line = curve.points.iter().map(|point| (point.pairs as f64, point.value));
        let y = 30 + LINE * at;
        let key = [(4, y), (34, y)];
        if look.dashed {
            chart.draw_series(DashedLineSeries::new(line, 6, 4, style))?;
            for x in [4, 15, 26] {
                legend.draw(&PathElement::new([(x, y), (x + 7, y)], style))?;
            }
        } else {
            chart.draw_series(LineSeries::new(line, style))?;
            legend.draw(&PathElement::new(key, style))?;
        }
        let name = Text::new(curve.contender.clone(), (40, y - 7), ("sans-serif", TEXT));
        legend.draw(&name)?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_look_different_and_have_their_colours() {
        let names = [
            "hyperswitch",
            "hyperswitch, paper's criteria",
            "poll, 4 cores",
            "poll, 8 cores",
            "thread-per-vnic",
            "driver-domain, 4 cores",
            "driver-domain, 8 cores",
        ];
        let curves = names.map(|name| Curve {
            contender: name.to_owned(),
            points: Vec::new(),
        });
        let looks = looks(&curves);
        for (index, look) in looks.iter().enumerate() {
            assert!(!looks[..index].contains(look), "{}", names[index]);
        }
        assert_eq!(looks[0].colour, COLOURS[1].1);
        assert_eq!(looks[2].colour, looks[3].colour);
    }
}
