//! Results as one self-contained page: a plot and a table for each field of each study, beside published figures.
//!
//! [`Curves`] sorts rows into lines; [`label`] names them; [`plot`] draws them; [`csv`] lists them; [`page`] puts all
//! into HTML, with a first screen by [`summary`].

pub(crate) mod csv;
pub(crate) mod label;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod summary;

use crate::results::{ResultRow, is_timed};
use crate::sweep::{Plot, Setting};
use offload_bench::published::Figure;
use std::collections::BTreeMap;

/// The rows of one study.
#[derive(Clone, Debug)]
pub(crate) struct StudyRows<'a> {
    /// Name of the study.
    pub(crate) name: &'a str,
    /// Title of the study.
    pub(crate) title: &'a str,
    /// The plot of the study.
    pub(crate) plot: &'a Plot,
    /// Rows in the order of the grid; rows of one point in the order of the file.
    pub(crate) rows: Vec<&'a ResultRow>,
}

/// Groups rows by study, with studies in the order of first appearance. The result does not depend on the order in
/// which runs ended.
pub(crate) fn studies(rows: &[ResultRow]) -> Vec<StudyRows<'_>> {
    let mut studies: Vec<StudyRows<'_>> = Vec::new();
    for row in rows {
        match studies.iter_mut().find(|study| study.name == row.study) {
            Some(study) => study.rows.push(row),
            None => studies.push(StudyRows {
                name: &row.study,
                title: if row.title.is_empty() { &row.study } else { &row.title },
                plot: &row.plot,
                rows: vec![row],
            }),
        }
    }
    studies.iter_mut().for_each(|study| study.rows.sort_by_key(|row| row.point));
    studies
}

/// One field of a study, as lines over the horizontal axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curves {
    /// The field.
    pub(crate) field: String,
    /// The option along the horizontal axis.
    pub(crate) x_name: String,
    /// Values on the axis, as text.
    pub(crate) x: Vec<String>,
    /// Values on the axis as numbers. `None` for a value that is no number.
    pub(crate) places: Vec<Option<f64>>,
    /// The lines.
    pub(crate) lines: Vec<PlotLine>,
}

/// A line: an optional value for each position on the axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlotLine {
    /// Name of the line.
    pub(crate) name: String,
    /// The machine of the values. `None` unless the values are CPU times from several machines.
    pub(crate) machine: Option<String>,
    /// Values by position on the axis.
    pub(crate) values: Vec<Option<Spread>>,
}

/// Statistics of a point's repeated runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// The median.
    pub(crate) median: f64,
    /// The minimum.
    pub(crate) least: f64,
    /// The maximum.
    pub(crate) most: f64,
    /// Number of runs.
    pub(crate) runs: usize,
}

impl Curves {
    /// Returns the lines of a field, or the ratios of a [`Relation`].
    pub(crate) fn from_study(study: &StudyRows<'_>, field: &str) -> Curves {
        let plain = Relation::parse(field).map_or(field, |relation| relation.field);
        let mut curves = Curves::of_runs(study, plain);
        if let Some(relation) = Relation::parse(field) {
            curves.field = field.to_string();
            curves.relate(&relation);
        }
        curves
    }

    /// Replaces every other line by its ratio to the relation's line, per machine.
    fn relate(&mut self, relation: &Relation<'_>) {
        let (bases, others) = core::mem::take(&mut self.lines).into_iter().partition(|line| line.name == relation.line);
        let bases: Vec<PlotLine> = bases;
        self.lines = others;
        for line in &mut self.lines {
            // A ratio of CPU times is meaningful only within one machine.
            let base = bases.iter().find(|base| base.machine == line.machine);
            for (at, value) in line.values.iter_mut().enumerate() {
                let base = base.and_then(|base| base.values[at]);
                let ratio = value.zip(base).map(|(value, base)| relation.ratio(value.median, base.median));
                *value = ratio.filter(|ratio| ratio.is_finite()).map(|ratio| Spread::from_values(&[ratio]));
            }
        }
    }

    fn of_runs(study: &StudyRows<'_>, field: &str) -> Curves {
        let plot = study.plot;
        let mut x: Vec<&Setting> = Vec::new();
        let mut names: Vec<(String, Option<String>)> = Vec::new();
        // CPU times of different machines must not be mixed.
        let apart = is_timed(field) && study.rows.iter().any(|row| row.machine != study.rows[0].machine);
        let mut points: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
        for row in &study.rows {
            // Rows of an older grid may lack an option of the plot.
            let (Some(at), Some(series)) = (row.settings.get(&plot.x), row.settings.get(&plot.series)) else {
                continue;
            };
            // Some modes lack some fields; their lines have a gap.
            let Some(value) = row.number(field) else { continue };
            let column = place(&mut x, at);
            let line = place(&mut names, (series.text(), apart.then(|| row.machine.to_string())));
            points.entry((line, column)).or_default().push(value);
        }
        // Columns are in the order of the rows, except that numbers are sorted: a grid may list its values in any order.
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.sort_by(|one, other| match (x[*one].number(), x[*other].number()) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => one.cmp(other),
        });
        let line = |line: usize| {
            order.iter().map(|column| points.get(&(line, *column)).map(|all| Spread::from_values(all))).collect()
        };
        Curves {
            field: field.to_string(),
            x_name: plot.x.clone(),
            x: order.iter().map(|column| x[*column].text()).collect(),
            places: order.iter().map(|column| x[*column].number()).collect(),
            lines: names
                .into_iter()
                .enumerate()
                .map(|(at, (name, machine))| PlotLine { name, machine, values: line(at) })
                .collect(),
        }
    }

    /// Returns the lines of a published figure that have the names of our lines, over our axis.
    pub(crate) fn beside(&self, figure: &Figure) -> Vec<PlotLine> {
        let values = |name: &str| {
            let at = |place: &Option<f64>| place.and_then(|x| figure.value(name, x));
            self.places.iter().map(|place| at(place).map(|value| Spread::from_values(&[value]))).collect()
        };
        let ours = self.lines.iter().filter(|line| figure.series.contains_key(&line.name));
        let mut theirs: Vec<PlotLine> = Vec::new();
        for line in ours {
            // CPU times have one of our lines for each machine, but the published line is drawn once.
            if theirs.iter().all(|known| known.name != line.name) {
                theirs.push(PlotLine { name: line.name.clone(), machine: None, values: values(&line.name) });
            }
        }
        theirs
    }
}

impl PlotLine {
    /// Returns the label for readers.
    pub(crate) fn label(&self) -> String {
        self.machine.as_ref().map_or_else(|| self.name.clone(), |machine| format!("{}, {machine}", self.name))
    }
}

/// A field that stands for a ratio between lines: `F, times less than L` for costs, `F, times more than L` for speeds,
/// where F is a field of runs and L the name of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relation<'a> {
    /// The field of runs.
    pub(crate) field: &'a str,
    /// The reference line.
    pub(crate) line: &'a str,
    less: bool,
}

impl<'a> Relation<'a> {
    /// Parses a relation. Returns `None` for a plain field.
    pub(crate) fn parse(field: &'a str) -> Option<Relation<'a>> {
        let of = |word: &str, less| field.split_once(word).map(|(field, line)| Relation { field, line, less });
        of(", times less than ", true).or_else(|| of(", times more than ", false))
    }

    /// Returns whether the relation is `times less`.
    pub(crate) fn less(&self) -> bool {
        self.less
    }

    /// Returns how many times `value` is less, or more, than `base`.
    pub(crate) fn ratio(&self, value: f64, base: f64) -> f64 {
        if self.less { base / value } else { value / base }
    }
}

impl Spread {
    /// Summarizes at least one number.
    fn from_values(numbers: &[f64]) -> Spread {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let median = (low + high) / 2.0;
        Spread { median, least: sorted[0], most: sorted[sorted.len() - 1], runs: sorted.len() }
    }
}

/// Returns the index of `item` in `known`, and appends a new item.
fn place<T: PartialEq>(known: &mut Vec<T>, item: T) -> usize {
    known.iter().position(|other| *other == item).unwrap_or_else(|| {
        known.push(item);
        known.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Build;
    use crate::results::MachineInfo;
    use crate::results::read_rows;

    #[test]
    fn lines_keep_the_order_of_the_grid() {
        let row = |point: usize, mode: &str| {
            serde_json::json!({
                "study": "a", "title": "", "plot": { "x": "size", "series": "mode", "y": ["us"] }, "point": point,
                "settings": { "size": "4KiB", "mode": mode }, "arguments": [], "seed": 1, "clock": "virtual", "version": "0",
                "machine": { "processor": "", "cores": 1, "system": "" }, "run": { "us": 1.0 }
            })
            .to_string()
                + "\n"
        };
        let rows = read_rows(&(row(1, "nic") + &row(0, "tcp"))).unwrap().rows;
        let curves = Curves::from_study(&studies(&rows)[0], "us");
        assert_eq!(curves.lines.iter().map(|line| &line.name[..]).collect::<Vec<_>>(), ["tcp", "nic"]);
        assert_eq!(curves.places, [Some(4096.0)]);
    }

    #[test]
    fn relation_replaces_other_lines_by_ratios() {
        let field = "us, times less than cpu";
        let row = |mode: &str, size: u64, us: f64| {
            serde_json::json!({
                "study": "a", "title": "", "plot": { "x": "size", "series": "mode", "y": [field] },
                "settings": { "size": size, "mode": mode }, "arguments": [], "seed": 1, "clock": "virtual", "version": "0",
                "machine": { "processor": "", "cores": 1, "system": "" }, "run": { "us": us }
            })
            .to_string()
                + "\n"
        };
        let text = row("tcp", 1, 2.0) + &row("cpu", 1, 9.0) + &row("nic", 1, 3.0) + &row("nic", 2, 4.0);
        let rows = read_rows(&text).unwrap().rows;
        let curves = Curves::from_study(&studies(&rows)[0], field);
        let shown: Vec<_> = curves
            .lines
            .iter()
            .map(|line| (&line.name[..], line.values.iter().map(|value| value.map(|v| v.median)).collect::<Vec<_>>()))
            .collect();
        assert_eq!(shown, [("tcp", vec![Some(4.5), None]), ("nic", vec![Some(3.0), None])]);
    }

    /// Results of virtual time form one line, from any machines.
    #[test]
    fn cpu_times_of_two_machines_make_two_lines() {
        let row = |processor: &str, mode: &str, us: f64| {
            serde_json::json!({
                "study": "a", "title": "", "plot": { "x": "size", "series": "mode", "y": ["packets"] },
                "settings": { "size": 1, "mode": mode }, "arguments": [], "seed": 1, "clock": "virtual", "version": "0",
                "machine": { "processor": processor, "cores": 2, "system": "linux" },
                "run": { "packets": 7, "server_us_per_request": us }
            })
            .to_string()
                + "\n"
        };
        let text = row("P", "cpu", 4.0) + &row("P", "nic", 2.0) + &row("Q", "cpu", 9.0) + &row("Q", "nic", 3.0);
        let rows = read_rows(&text).unwrap().rows;
        let lines = |field: &str| {
            let curves = Curves::from_study(&studies(&rows)[0], field);
            curves.lines.iter().map(|line| (line.label(), line.values[0].unwrap().median)).collect::<Vec<_>>()
        };
        assert_eq!(lines("packets"), [("cpu".into(), 7.0), ("nic".into(), 7.0)]);
        let of_two = lines("server_us_per_request, times less than cpu");
        assert_eq!(of_two, [("nic, P, 2 cores, linux".into(), 2.0), ("nic, Q, 2 cores, linux".into(), 3.0)]);
    }

    #[test]
    fn repetitions_are_drawn_as_median() {
        let row = |seed: u64, loss: f64, gbps: f64| {
            let plot = Plot {
                x: "loss".into(),
                series: "mode".into(),
                y: vec!["goodput_gbps".into()],
                published: BTreeMap::new(),
            };
            let settings = BTreeMap::from([
                ("loss".into(), Setting::Float(loss)),
                ("mode".into(), Setting::Text("tcp".into())),
                ("seed".into(), Setting::Integer(seed as i64)),
            ]);
            ResultRow {
                study: "a".into(),
                title: String::new(),
                plot,
                point: 0,
                settings,
                arguments: Vec::new(),
                seed,
                clock: "virtual".into(),
                nic: BTreeMap::new(),
                build: Build::default(),
                machine: MachineInfo::this(),
                seconds: 0.0,
                run: serde_json::json!({ "goodput_gbps": gbps }),
            }
        };
        let rows = [row(1, 0.0, 9.0), row(2, 0.0, 10.0), row(3, 0.0, 90.0), row(1, 0.5, 1.0)];
        let curves = Curves::from_study(&studies(&rows)[0], "goodput_gbps");
        assert_eq!(curves.x, ["0", "0.5"]);
        assert_eq!(curves.lines[0].values[0].unwrap().median, 10.0);
    }

    #[test]
    fn relation_names_a_field_and_a_line() {
        let gain = Relation::parse("server_us_per_request, times less than tls-cpu").unwrap();
        assert_eq!((gain.field, gain.line), ("server_us_per_request", "tls-cpu"));
        assert_eq!(gain.ratio(2.0, 6.0), 3.0);
        assert!(Relation::parse("goodput_gbps").is_none());
    }
}
