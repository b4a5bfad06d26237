//! The values of a plot as CSV (RFC 4180), a row for each point of each line.

use super::{Curves, PlotLine};
use offload_cli::output;

/// Formats a plot's values. Repeated runs have a median, a minimum and a maximum; a published value has no spread.
pub(crate) fn csv(curves: &Curves, published: &[PlotLine]) -> String {
    let head = [&curves.x_name[..], "line", "machine", "median", "least", "most", "runs", "published"];
    let mut text = record(head.map(String::from));
    for line in &curves.lines {
        let theirs = published.iter().find(|theirs| theirs.name == line.name);
        for (at, value) in line.values.iter().enumerate() {
            let published = theirs.and_then(|theirs| theirs.values[at]).map(|value| value.median.to_string());
            // A missing value has no record: an empty cell would read as zero in some programs.
            let Some(value) = value else { continue };
            let numbers = [value.median, value.least, value.most].map(|number| number.to_string());
            let [median, least, most] = numbers;
            let (machine, published) = (line.machine.clone().unwrap_or_default(), published.unwrap_or_default());
            let x = curves.places[at].map_or_else(|| curves.x[at].clone(), |place| place.to_string());
            text += &record([x, line.name.clone(), machine, median, least, most, value.runs.to_string(), published]);
        }
    }
    text
}

fn record(fields: [String; 8]) -> String {
    fields.map(|field| output::cell(&field)).join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Spread;

    #[test]
    fn each_point_of_a_line_is_a_record() {
        let value = |median, published: bool| {
            Some(Spread { median, least: median, most: median + 1.0, runs: if published { 1 } else { 3 } })
        };
        let line = |name: &str, values| PlotLine { name: name.into(), machine: None, values };
        let curves = Curves {
            field: "goodput_gbps".into(),
            x_name: "loss".into(),
            x: vec!["0%".into(), "0.01".into()],
            places: vec![None, Some(0.01)],
            lines: vec![
                line("say \"tls, nic\"", vec![value(2.5, false), None]),
                line("tcp", vec![None, value(4.0, false)]),
            ],
        };
        let text = csv(&curves, &[line("tcp", vec![None, value(3.0, true)])]);
        let expected = "loss,line,machine,median,least,most,runs,published\n\
                        0%,\"say \"\"tls, nic\"\"\",,2.5,2.5,3.5,3,\n\
                        0.01,tcp,,4,4,5,3,3\n";
        assert_eq!(text, expected);
    }
}
