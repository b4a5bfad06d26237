//! A run as an SVG picture for light and dark pages: instances of each service over time, the load, and the 99th
//! percentile of delays.

use crate::study::{RunOutcome, Study};
use core::fmt::Write;

/// Draws a run.
///
/// ```
/// use crypto_services::{Fixed, TrafficLoad, Study, Suite, TransformDirection, picture};
///
/// let study = Study::new(Suite::Aes128Gcm.graph(TransformDirection::Apply));
/// let load: Vec<_> = TrafficLoad::Steady.arrivals(1, 1e8, 0.1).collect();
/// let svg = picture::draw_run(&study, &study.run(&load, &mut Fixed)?, "steady, fixed");
/// assert!(svg.starts_with("<svg") && svg.contains("one of each service"));
/// # Ok::<(), crypto_services::FabricError>(())
/// ```
pub fn draw_run(study: &Study, outcome: &RunOutcome, title: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <style>text{{fill:#222}}line{{stroke:#999}}path{{fill:none;stroke-width:2}}\
         @media(prefers-color-scheme:dark){{text{{fill:#ddd}}line{{stroke:#666}}}}</style>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"16\">{}</text>\n",
        escape(title)
    );
    let windows = &outcome.windows;
    let seconds = windows.len() as f64 * study.window_ns / 1e9;
    let services: Vec<&str> = study.graph.steps().iter().map(|step| step.service.name()).collect();
    let instances = services.iter().enumerate().map(|(place, name)| {
        let values = windows.iter().map(|window| window.instances.get(place).copied().unwrap_or(0).into());
        (*name, values.collect::<Vec<f64>>())
    });
    let grown: Vec<_> = instances.filter(|(_, values)| values.iter().any(|count| *count > 1.0)).collect();
    // Services with a single instance throughout would only clutter the picture.
    let shown = if grown.is_empty() { vec![("one of each service", vec![1.0; windows.len()])] } else { grown };
    panel(&mut svg, 40.0, "instances", &shown, None, seconds);
    let rate = windows.iter().map(|window| window.bits_a_second / 1e9).collect();
    panel(&mut svg, 210.0, "load, Gb/s", &[("came", rate)], None, seconds);
    // Long delays are cut, or the curve around the target would be flat.
    let most = 4.0 * study.target_ns / 1000.0;
    let p99 = windows.iter().map(|window| (window.p99_ns / 1000.0).min(most)).collect();
    let target = Some(study.target_ns / 1000.0);
    panel(&mut svg, 380.0, "p99, us", &[("99 of 100 packets", p99)], target, seconds);
    svg.push_str("</svg>\n");
    svg
}

/// Draws a panel with a step line for each series.
fn panel(svg: &mut String, top: f64, name: &str, series: &[(&str, Vec<f64>)], target: Option<f64>, seconds: f64) {
    let all = series.iter().flat_map(|(_, values)| values.iter().copied()).chain(target);
    // The minimum avoids a division by zero for an empty run.
    let most = all.fold(1e-9, f64::max) * 1.1;
    let y = |value: f64| top + PANEL * (1.0 - value / most);
    let (right, bottom) = (LEFT + PLOT, top + PANEL);
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<line x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\"/><line x1=\"{LEFT}\" y1=\"{top}\" x2=\"{LEFT}\" y2=\"{bottom}\"/>\n\
         <text x=\"{LEFT}\" y=\"{}\">{}</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
         <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text><text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{seconds:.2} s</text>",
        top - 5.0,
        escape(name),
        LEFT - 6.0,
        top + 10.0,
        round(most),
        LEFT - 6.0,
        bottom + 15.0,
    );
    if let Some(target) = target {
        let at = y(target);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke-dasharray=\"4 4\"/>\
             <text x=\"{}\" y=\"{:.1}\">target</text>",
            right + 8.0,
            at + 4.0
        );
    }
    for ((label, values), (number, colour)) in
        series.iter().zip(COLOURS.iter().cycle().enumerate().map(|(n, c)| (n, *c)))
    {
        let step = PLOT / values.len().max(1) as f64;
        let mut path = String::new();
        for (place, value) in values.iter().enumerate() {
            let (x, y) = (LEFT + step * place as f64, y(*value));
            let _ = write!(path, "{}{x:.1} {y:.1}H{:.1}", if place == 0 { "M" } else { "L" }, x + step);
        }
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" stroke=\"{colour}\"/><text x=\"{}\" y=\"{}\" style=\"fill:{colour}\">{}</text>",
            right + 8.0,
            top + 15.0 * number as f64 + 12.0,
            escape(label)
        );
    }
}

fn round(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 540.0;
const LEFT: f64 = 60.0;
const PLOT: f64 = 690.0;
const PANEL: f64 = 120.0;
/// Colours that colour-blind readers can distinguish, on white and on black.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
