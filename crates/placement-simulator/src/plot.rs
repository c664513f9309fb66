//! Throughput over pairs of guests as SVG, one picture per machine.

use crate::report::Curve;
use anyhow::Result;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (800, 480);

/// Draws all curves, those of the product's own policy thicker.
///
/// # Errors
/// Those of writing the file.
pub fn draw(path: &Path, title: &str, unit: &str, curves: &[Curve]) -> Result<()> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let most = points().map(|point| point.value).fold(0.0, f64::max);
    let last = points().map(|point| point.pairs).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d((1_f64..last as f64).log_scale().base(2.0), 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("pairs of guests")
        .y_desc(unit)
        .x_label_formatter(&|pairs| format!("{pairs:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for (number, curve) in curves.iter().enumerate() {
        let style = ShapeStyle {
            color: color(number),
            filled: false,
            stroke_width: if number == 0 { 4 } else { 2 },
        };
        let line = curve.points.iter().map(|point| (point.pairs as f64, point.value));
        let series = chart.draw_series(LineSeries::new(line, style))?;
        series
            .label(&curve.contender)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}

/// Colours that differ also for the colour-blind (Okabe and Ito).
fn color(number: usize) -> RGBAColor {
    const PALETTE: [RGBColor; 7] = [
        RGBColor(0, 0, 0),
        RGBColor(86, 180, 233),
        RGBColor(213, 94, 0),
        RGBColor(230, 159, 0),
        RGBColor(0, 114, 178),
        RGBColor(0, 158, 115),
        RGBColor(204, 121, 167),
    ];
    PALETTE[number % PALETTE.len()].to_rgba()
}
