//! Lines as an SVG picture that stands by itself.

use super::{Curves, Line};
use core::error::Error;
use plotters::prelude::*;

/// Draws ours as lines, published ones as dotted lines with open marks. Places on the horizontal axis stand evenly,
/// whatever lies between them.
///
/// ```
/// use offload_bench::report::{Curves, Line, Value, plot};
///
/// let value = |median| Some(Value { median, least: median, most: median, runs: 1 });
/// let line = Line { name: "tcp".into(), values: vec![value(1.0), value(2.0)] };
/// let curves = Curves { field: "goodput_gbps".into(), x_name: "loss".into(), x: vec!["0".into(), "1".into()], lines: vec![line] };
/// assert!(plot::svg(&curves, &[])?.starts_with("<svg"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If there is nothing to draw.
pub fn svg(curves: &Curves, published: &[Line]) -> Result<String, Box<dyn Error>> {
    let all = || curves.lines.iter().chain(published).flat_map(|line| line.values.iter().flatten());
    if all().next().is_none() {
        return Err("no run has this field".into());
    }
    let top = all().map(|value| value.most).fold(0.0, f64::max);
    let bottom = all().map(|value| value.least).fold(0.0, f64::min);
    let top = if top > bottom { top + (top - bottom) * 0.08 } else { bottom + 1.0 };
    let mut picture = String::new();
    {
        let root = SVGBackend::with_string(&mut picture, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let last = curves.x.len().saturating_sub(1) as f64;
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(-0.3..last + 0.3, bottom..top)?;
        let label = |x: &f64| {
            let at = x.round();
            let near = (x - at).abs() < 0.01 && at >= 0.0;
            near.then(|| curves.x.get(at as usize).cloned()).flatten().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels(4 * curves.x.len())
            .x_label_formatter(&label)
            .y_label_formatter(&|y| super::page::short(*y))
            .x_desc(&curves.x_name)
            .y_desc(&curves.field)
            .label_style(("sans-serif", FONT))
            .draw()?;
        for (number, line) in curves.lines.iter().enumerate() {
            let color = COLORS[number % COLORS.len()];
            let points = points(line);
            chart
                .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
                .label(line.name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, color.filled())))?;
            let spread = line.values.iter().enumerate().filter_map(|(at, value)| value.map(|value| (at as f64, value)));
            let spread = spread.filter(|(_, value)| value.least < value.most);
            chart.draw_series(
                spread.map(|(x, value)| PathElement::new([(x, value.least), (x, value.most)], color.stroke_width(1))),
            )?;
        }
        for line in published {
            let number = curves.lines.iter().position(|ours| ours.name == line.name).unwrap_or(0);
            let color = COLORS[number % COLORS.len()];
            let points = points(line);
            let dotted = DashedLineSeries::new(points.clone(), 3, 5, color.stroke_width(1));
            chart
                .draw_series(dotted)?
                .label(format!("{}, published", line.name))
                .legend(move |(x, y)| Circle::new((x + 9, y), 4, color.stroke_width(1)));
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, color.stroke_width(1))))?;
        }
        chart
            .configure_series_labels()
            .position(emptiest_corner(&curves.lines, published, top))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .label_font(("sans-serif", FONT))
            .draw()?;
        root.present()?;
    }
    Ok(picture)
}

/// Where a legend hides least.
fn emptiest_corner(ours: &[Line], published: &[Line], top: f64) -> SeriesLabelPosition {
    use SeriesLabelPosition::{LowerLeft, LowerRight, UpperLeft, UpperRight};
    let hidden = |right: bool, upper: bool| {
        let values = ours.iter().chain(published).flat_map(|line| {
            let middle = line.values.len() as f64 / 2.0;
            line.values
                .iter()
                .enumerate()
                .filter_map(move |(at, value)| value.map(|value| ((at as f64 + 0.5 > middle), value.median)))
        });
        values.filter(|(to_the_right, value)| *to_the_right == right && (*value > top * 0.4) == upper).count()
    };
    let corners =
        [(UpperRight, true, true), (UpperLeft, false, true), (LowerRight, true, false), (LowerLeft, false, false)];
    let emptiest = corners.into_iter().min_by_key(|(_, right, upper)| hidden(*right, *upper));
    emptiest.map_or(UpperRight, |(corner, _, _)| corner)
}

fn points(line: &Line) -> Vec<(f64, f64)> {
    let values = line.values.iter().enumerate();
    values.filter_map(|(at, value)| value.map(|value| (at as f64, value.median))).collect()
}

const WIDTH: u32 = 640;
const HEIGHT: u32 = 400;
const FONT: u32 = 15;
/// Told apart by people who see colours differently (after Okabe and Ito), on white.
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 86, 86),
    RGBColor(150, 110, 0),
];
