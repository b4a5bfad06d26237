//! Lines as a self-contained SVG picture.

use super::{Curves, PlotLine, label};
use core::error::Error;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Draws our lines solid and published lines dotted with open marks. The legend is above the plot, where it hides
/// nothing. Positions on the horizontal axis are evenly spaced, regardless of their values. `caption` names the plot.
///
/// # Errors
/// If there is nothing to draw.
pub(crate) fn svg(curves: &Curves, published: &[PlotLine], caption: Option<&str>) -> Result<String, Box<dyn Error>> {
    let all = || curves.lines.iter().chain(published).flat_map(|line| line.values.iter().flatten());
    if all().next().is_none() {
        return Err("no run has this field".into());
    }
    // Both folds include 0, so that the axis starts at 0 and bars of different plots can be compared by eye.
    let top = all().map(|value| value.most).fold(0.0, f64::max);
    let bottom = all().map(|value| value.least).fold(0.0, f64::min);
    // Equal values at 0 would give an empty axis range.
    let top = if top > bottom { top + (top - bottom) * 0.08 } else { bottom + 1.0 };
    let legend = Legend::for_curves(curves, published, caption);
    let mut picture = String::new();
    {
        let root = SVGBackend::with_string(&mut picture, (WIDTH, HEIGHT + legend.height())).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically(legend.height());
        legend.draw(&above)?;
        let last = curves.x.len().saturating_sub(1) as f64;
        let mut chart = ChartBuilder::on(&below)
            .margin(10)
            .margin_right(18)
            .x_label_area_size(58)
            .y_label_area_size(66)
            .build_cartesian_2d(-0.3..last + 0.3, bottom..top)?;
        // Positions are indices: only labels at whole numbers name a value.
        let name = |x: &f64| {
            let at = x.round();
            let near = (x - at).abs() < 0.01 && at >= 0.0;
            near.then(|| curves.x.get(at as usize).cloned()).flatten().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            // The library may use fewer labels than allowed; four per position make it keep one at each whole number.
            .x_labels(4 * curves.x.len())
            .x_label_formatter(&name)
            .y_label_formatter(&|y| compact(*y))
            .x_desc(label::option(&curves.x_name))
            .label_style(("sans-serif", FONT))
            .draw()?;
        for (number, line) in curves.lines.iter().enumerate() {
            let (color, points) = (color(number), points(line));
            chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?;
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, color.filled())))?;
            let spread = line.values.iter().enumerate().filter_map(|(at, value)| value.map(|value| (at as f64, value)));
            // A single run has no spread and gets no bar.
            let spread = spread.filter(|(_, value)| value.least < value.most);
            chart.draw_series(
                spread.map(|(x, value)| PathElement::new([(x, value.least), (x, value.most)], color.stroke_width(1))),
            )?;
        }
        for line in published {
            // The published line has the colour of our line of the same name.
            let (color, points) = (color(of_ours(curves, line)), points(line));
            chart.draw_series(DashedLineSeries::new(points.clone(), 3, 5, color.stroke_width(1)))?;
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, color.stroke_width(1))))?;
        }
        root.present()?;
    }
    Ok(picture)
}

/// The text above the plot: a caption, and the lines' names.
struct Legend {
    caption: Option<String>,
    /// Name, colour, whether the line is published; row by row.
    rows: Vec<Vec<(String, RGBColor, bool)>>,
}

impl Legend {
    fn for_curves(curves: &Curves, published: &[PlotLine], caption: Option<&str>) -> Legend {
        let ours = curves.lines.iter().enumerate().map(|(at, line)| (line.label(), color(at), false));
        let theirs =
            published.iter().map(|line| (format!("{}, published", line.name), color(of_ours(curves, line)), true));
        let mut rows = vec![Vec::new()];
        let mut right = MARGIN;
        for entry in ours.chain(theirs) {
            right += width(&entry.0);
            if right > WIDTH as i32 - MARGIN {
                rows.push(Vec::new());
                right = MARGIN + width(&entry.0);
            }
            rows.last_mut().expect("there is one row at least").push(entry);
        }
        Legend { caption: caption.map(String::from), rows }
    }

    fn height(&self) -> u32 {
        (self.rows.len() + usize::from(self.caption.is_some())) as u32 * ROW + 6
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
        let style = ("sans-serif", FONT).into_text_style(area);
        let mut y = 8;
        if let Some(caption) = &self.caption {
            area.draw_text(caption, &style, (MARGIN, y))?;
            y += ROW as i32;
        }
        for row in &self.rows {
            let mut x = MARGIN;
            for (name, color, published) in row {
                let middle = y + FONT as i32 / 2;
                if *published {
                    area.draw(&Circle::new((x + 9, middle), 4, color.stroke_width(1)))?;
                } else {
                    area.draw(&PathElement::new([(x, middle), (x + 18, middle)], color.stroke_width(2)))?;
                    area.draw(&Circle::new((x + 9, middle), 4, color.filled()))?;
                }
                area.draw_text(name, &style, (x + 24, y))?;
                x += width(name);
            }
            y += ROW as i32;
        }
        Ok(())
    }
}

/// Returns the width of a legend entry, estimated by wide letters.
fn width(name: &str) -> i32 {
    24 + name.chars().count() as i32 * FONT as i32 * 6 / 10 + 16
}

/// Formats a number with few digits and a unit letter, because an axis has little room.
fn compact(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    super::page::short(value) + unit
}

fn of_ours(curves: &Curves, published: &PlotLine) -> usize {
    curves.lines.iter().position(|ours| ours.name == published.name).unwrap_or(0)
}

fn color(number: usize) -> RGBColor {
    COLORS[number % COLORS.len()]
}

fn points(line: &PlotLine) -> Vec<(f64, f64)> {
    let values = line.values.iter().enumerate();
    values.filter_map(|(at, value)| value.map(|value| (at as f64, value.median))).collect()
}

const WIDTH: u32 = 640;
/// Height without the legend.
const HEIGHT: u32 = 370;
const MARGIN: i32 = 14;
/// Legible on a phone with 390 pixels, which shows the picture at six tenths.
const FONT: u32 = 18;
const ROW: u32 = 26;
/// Distinguishable by people with colour blindness (after Okabe and Ito), on white.
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 86, 86),
    RGBColor(150, 110, 0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Spread;

    #[test]
    fn an_axis_has_few_letters() {
        assert_eq!([0.0, 0.25, 9500.0, 12_000.0, 1_400_000.0].map(compact), ["0", "0.25", "9500", "12k", "1.4M"]);
    }

    #[test]
    fn a_legend_of_many_lines_has_many_rows() {
        let line = |number: usize| PlotLine {
            name: format!("a line with a long name {number}"),
            machine: None,
            values: Vec::new(),
        };
        let curves = |lines: usize| Curves {
            field: String::new(),
            x_name: String::new(),
            x: Vec::new(),
            places: Vec::new(),
            lines: (0..lines).map(line).collect(),
        };
        assert_eq!(Legend::for_curves(&curves(1), &[], None).rows.len(), 1);
        let legend = Legend::for_curves(&curves(4), &[line(0), line(1)], Some("what"));
        assert_eq!((legend.rows.len(), legend.height()), (6, 7 * ROW + 6));
    }

    #[test]
    fn picture_labels_its_axis() {
        let value = |median| Some(Spread { median, least: median, most: median, runs: 1 });
        let line = PlotLine { name: "tcp".into(), machine: None, values: vec![value(1.0), value(2.0)] };
        let curves = Curves {
            field: "goodput_gbps".into(),
            x_name: "loss".into(),
            x: vec!["0".into(), "1".into()],
            places: vec![Some(0.0), Some(1.0)],
            lines: vec![line],
        };
        let picture = svg(&curves, &[], Some("goodput, Gb/s")).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("share of packets lost"));
    }
}
