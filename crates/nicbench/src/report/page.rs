//! The report page: self-contained HTML, readable on a phone.

use super::csv::csv;
use super::{Curves, PlotLine, Relation, Spread, StudyRows, label, plot, studies, summary};
use crate::build;
use crate::results::{ResultRow, is_timed};
use core::fmt::Write;
use offload_bench::published::Figure;
use offload_bench_tls::table::noise_in;
use std::collections::BTreeSet;

/// A plot as files beside the page.
#[derive(Clone, Debug)]
pub(crate) struct DrawnPlot {
    /// Study and field, usable as a file name.
    pub(crate) name: String,
    /// The picture. `None` if no run has the field.
    pub(crate) svg: Option<String>,
    /// The values.
    pub(crate) csv: String,
}

/// Builds the page about `rows`, and its plots.
pub(crate) fn page(rows: &[ResultRow], figures: &[Figure]) -> (String, Vec<DrawnPlot>) {
    let mut plots = Vec::new();
    let mut body = String::from("<h1>What offload saves</h1>\n");
    if rows.is_empty() {
        body += "<p>No runs.</p>\n";
    }
    body += &summary::first_screen(&studies(rows));
    for study in studies(rows) {
        let _ = writeln!(body, "<h2 id=\"{0}\">{1}</h2>", escape(study.name), escape(study.title));
        body += &how(&study);
        for field in &study.plot.y {
            let curves = Curves::from_study(&study, field);
            // A results file may name a figure that this program does not know; the field is then drawn alone.
            let figure = study.plot.published.get(field).and_then(|id| figures.iter().find(|figure| figure.id == *id));
            let published = figure.map(|figure| curves.beside(figure)).unwrap_or_default();
            let (what, name) = (label::field(field), file_name(&format!("{}-{field}", study.name)));
            let _ = writeln!(body, "<h3>{} <small><code>{}</code></small></h3>", escape(&what), escape(field));
            // In the page the heading names the plot; the separate picture has a caption.
            let drawn = plot::svg(&curves, &published, None);
            let svg = match drawn.and_then(|inside| Ok((inside, plot::svg(&curves, &published, Some(&what))?))) {
                Ok((inside, svg)) => {
                    let _ = writeln!(body, "<figure>{inside}</figure>");
                    Some(svg)
                }
                // One field without values must not prevent the page.
                Err(error) => {
                    let _ = writeln!(body, "<p>Not drawn: {}.</p>", escape(&error.to_string()));
                    None
                }
            };
            // The CSV file exists even without a picture, so that scripts find every field.
            plots.push(DrawnPlot { name, svg, csv: csv(&curves, &published) });
            body += &table(&curves, &published);
            if let Some(figure) = figure {
                let _ = writeln!(
                    body,
                    "<p class=\"source\">Published: {}, in {}. {}. {}. What differs: {}.</p>",
                    escape(&figure.title),
                    escape(&figure.unit),
                    escape(&figure.source),
                    escape(&figure.setup),
                    escape(&figure.differs)
                );
            }
        }
    }
    (format!("{HEAD}{body}{FOOT}"), plots)
}

/// Describes the conditions of a study's runs.
fn how(study: &StudyRows<'_>) -> String {
    let gather = |of: fn(&ResultRow) -> String| study.rows.iter().map(|row| of(row)).collect::<BTreeSet<_>>();
    let seeds = gather(|row| row.seed.to_string()).into_iter().collect::<Vec<_>>().join(", ");
    let clocks = gather(|row| row.clock.clone()).into_iter().collect::<Vec<_>>().join(" and ");
    let builds = gather(|row| row.build.to_string()).into_iter().collect::<Vec<_>>().join("; ");
    let machines = gather(|row| row.machine.to_string()).into_iter().collect::<Vec<_>>().join("; ");
    let example = study.rows.first().map(|row| row.arguments.join(" ")).unwrap_or_default();
    let warnings = build::warning(study.rows.iter().map(|row| &row.build)).into_iter().chain(noise(study));
    let warnings: String = warnings.map(|text| format!("<p class=\"warning\">Note: {}</p>\n", escape(&text))).collect();
    format!(
        "<p>{} runs, {clocks} time, seeds {seeds}, build {}, on {}. Repeated runs: median (min to max, drawn as a bar). \
         First command: <code>nicbench {}</code></p>\n{warnings}",
        study.rows.len(),
        escape(&builds),
        escape(&machines),
        escape(&example)
    )
}

/// Returns a warning if the study draws CPU times of runs that are too short to measure them.
fn noise(study: &StudyRows<'_>) -> Option<String> {
    let mut fields =
        study.plot.y.iter().map(|field| Relation::parse(field).map_or(&field[..], |relation| relation.field));
    let fewest = study.rows.iter().filter_map(|row| row.number("bytes")).reduce(f64::min)?;
    let warning = if fields.any(is_timed) { noise_in(fewest as u64, &[]) } else { "" };
    (!warning.is_empty()).then(|| warning.trim_end().to_owned())
}

/// Builds a table of medians, with minimum and maximum if repeated runs differ, beside published values and the ratio
/// ours / theirs.
fn table(curves: &Curves, published: &[PlotLine]) -> String {
    let mut text = format!("<div class=\"wide\"><table>\n<tr><th>{}</th>", escape(&label::option(&curves.x_name)));
    for line in &curves.lines {
        let _ = write!(text, "<th>{}</th>", escape(&line.label()));
        if published.iter().any(|theirs| theirs.name == line.name) {
            text += "<th>published</th><th>ratio</th>";
        }
    }
    text += "</tr>\n";
    for (at, x) in curves.x.iter().enumerate() {
        let _ = write!(text, "<tr><td>{}</td>", escape(x));
        for line in &curves.lines {
            let ours = line.values[at];
            let _ = write!(text, "<td>{}</td>", ours.map_or("-".into(), cell));
            if let Some(theirs) = published.iter().find(|theirs| theirs.name == line.name) {
                let value = theirs.values[at];
                let ratio = ours.zip(value).filter(|(_, theirs)| theirs.median != 0.0);
                let ratio = ratio.map_or("-".into(), |(ours, theirs)| short(ours.median / theirs.median));
                let value = value.map_or("-".into(), |value| short(value.median));
                let _ = write!(text, "<td class=\"theirs\">{value}</td><td>{ratio}</td>");
            }
        }
        text += "</tr>\n";
    }
    text + "</table></div>\n"
}

fn cell(value: Spread) -> String {
    if value.least == value.most {
        return short(value.median);
    }
    format!("{}<small>{}..{}</small>", short(value.median), short(value.least), short(value.most))
}

/// Formats a number with four significant digits.
pub(crate) fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_string();
    }
    let (sign, digits) = text.strip_prefix('-').map_or(("", &text[..]), |digits| ("-", digits));
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group));
    let grouped = if digits.len() > 4 { groups.collect::<Vec<_>>().join(",") } else { digits.to_string() };
    sign.to_string() + &grouped
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn file_name(text: &str) -> String {
    text.chars().map(|letter| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' }).collect()
}

const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<title>nicbench</title>
<style>
:root { color-scheme: light dark; --text: #222; --back: #fff; --faint: #555; --line: #ccc; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --back: #1b1b1b; --faint: #aaa; --line: #444; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 54rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3 { line-height: 1.25; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
h3 small { font-weight: normal; }
.lead { font-size: 1.1rem; }
.first { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { figure svg { filter: invert(0.9) hue-rotate(180deg); } }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .2rem .5rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--back); }
th { vertical-align: bottom; }
th:first-child { white-space: normal; min-width: 5rem; }
h3::first-letter { text-transform: uppercase; }
td small { display: block; font-size: .75rem; }
.warning { border-left: 3px solid #c60; padding-left: .6rem; }
.theirs, .source, small { color: var(--faint); }
.source, small { font-size: .85rem; }
code { overflow-wrap: anywhere; }
</style>
</head>
<body>
";
const FOOT: &str = "</body>\n</html>\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Build;
    use crate::results::MachineInfo;
    use crate::sweep::{Plot, Setting};
    use offload_bench::published;
    use std::collections::BTreeMap;

    fn row(x: f64, gbps: f64) -> ResultRow {
        let published = BTreeMap::from([("goodput_gbps".into(), "asplos21-tx-loss".into())]);
        ResultRow {
            study: "a<b".into(),
            title: String::new(),
            plot: Plot { x: "loss".into(), series: "mode".into(), y: vec!["goodput_gbps".into()], published },
            point: 0,
            settings: BTreeMap::from([
                ("loss".into(), Setting::Float(x)),
                ("mode".into(), Setting::Text("tls-nic".into())),
            ]),
            arguments: vec!["iperf".into()],
            seed: 1,
            clock: "virtual".into(),
            nic: BTreeMap::new(),
            build: Build::default(),
            machine: MachineInfo::this(),
            seconds: 0.0,
            run: serde_json::json!({ "goodput_gbps": gbps }),
        }
    }

    #[test]
    fn page_shows_published_values_beside_ours() {
        let (page, plots) = page(&[row(0.01, 26.2), row(0.0, 39.8), row(0.7, 1.0)], &published::figures());
        assert!(page.contains("<tr><td>0</td><td>39.8</td><td class=\"theirs\">39.8</td><td>1</td></tr>"), "{page}");
        assert!(page.contains("<tr><td>0.01</td><td>26.2</td><td class=\"theirs\">13.1</td><td>2</td></tr>"), "{page}");
        assert!(page.contains("<tr><td>0.7</td><td>1</td><td class=\"theirs\">-</td><td>-</td></tr>"), "{page}");
        assert!(page.contains("a&lt;b") && !page.contains("a<b"));
        assert_eq!(plots[0].name, "a_b-goodput_gbps");
    }

    #[test]
    fn a_page_without_runs_says_so() {
        let (page, plots) = page(&[], &[]);
        assert!(page.contains("No runs") && plots.is_empty());
    }

    #[test]
    fn short_runs_and_other_builds_are_flagged() {
        let with = |commit: &str, bytes: u64, field: &str| {
            let mut row = row(0.0, 1.0);
            row.plot.y = vec![field.into()];
            row.build.commit = commit.into();
            row.run =
                serde_json::json!({ "bytes": bytes, "tx_host_ns_per_byte": { "total": 0.5 }, "goodput_gbps": 1.0 });
            row
        };
        let flags = |rows: &[ResultRow]| page(rows, &[]).0.matches("class=\"warning\"").count();
        let cost = "tx_host_ns_per_byte.total";
        assert_eq!(flags(&[with("a", 16 << 20, cost), with("a", 32 << 20, cost)]), 0);
        assert_eq!(flags(&[with("a", (16 << 20) - 1, cost), with("a", 32 << 20, cost)]), 1);
        assert_eq!(flags(&[with("a", 1, "goodput_gbps")]), 0);
        assert_eq!(flags(&[with("a", 16 << 20, cost), with("b", 16 << 20, cost)]), 1);
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!([0.0, 0.012344, 93.7251, 1234567.0].map(short), ["0", "0.01234", "93.73", "1,234,567"]);
    }
}
