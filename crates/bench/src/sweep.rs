//! Runs over a grid: a TOML file of studies, each a command with options that stay and options that vary.
//!
//! ```toml
//! [[study]]
//! name = "records"
//! title = "Record size"
//! command = "iperf"
//! fixed = { bytes = "16MiB" }
//! grid = { mode = ["tcp", "tls-cpu", "tls-nic"], record-size = [2048, 16384], seed = [1, 2, 3] }
//! plot = { x = "record-size", series = "mode", y = ["tx_host_ns_per_byte.total"] }
//! ```
//!
//! Every combination is a point: the arguments of one command. What is neither `x` nor `series` of the plot, seeds for
//! one, is repetition, of which reports take the median.

use crate::report::Relation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A file of studies.
///
/// ```
/// use offload_bench::sweep::Sweep;
///
/// let sweep = Sweep::parse(r#"
///     [[study]]
///     name = "loss"
///     command = "iperf"
///     grid = { loss = [0, 0.01], mode = ["tcp"] }
///     plot = { x = "loss", series = "mode", y = ["goodput_gbps"] }
/// "#)?;
/// let points = sweep.studies[0].points();
/// assert_eq!(points[1].arguments(), ["iperf", "--loss", "0.01", "--mode", "tcp"]);
/// # Ok::<(), offload_bench::sweep::InvalidSweep>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The studies, in order.
    #[serde(rename = "study")]
    pub studies: Vec<Study>,
}

/// One command over a grid.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Its name, unique in the file.
    pub name: String,
    /// What a report calls it; its name if there is none.
    #[serde(default)]
    pub title: String,
    /// The command.
    pub command: String,
    /// Options that stay.
    #[serde(default)]
    pub fixed: BTreeMap<String, Setting>,
    /// Options that vary, each with its values.
    pub grid: BTreeMap<String, Vec<Setting>>,
    /// What a report draws.
    pub plot: Plot,
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Setting {
    /// `true` gives the bare option, `false` none.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// Anything else.
    Text(String),
}

impl Setting {
    /// As it stands on a command line.
    pub fn text(&self) -> String {
        match self {
            Setting::Flag(flag) => flag.to_string(),
            Setting::Integer(number) => number.to_string(),
            Setting::Float(number) => number.to_string(),
            Setting::Text(text) => text.clone(),
        }
    }
}

/// What a report draws of a study.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// The option along the horizontal axis.
    pub x: String,
    /// The option that tells lines apart.
    pub series: String,
    /// Fields of a run, a plot each; inner fields with a dot. `F, times less than L`: of what the line L has of the field
    /// F, how many times less the others have; `times more`, likewise.
    pub y: Vec<String>,
    /// Published figures to set beside a field: field, then the figure's identifier.
    #[serde(default)]
    pub published: BTreeMap<String, String>,
}

/// One combination of a study's options.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The command.
    pub command: String,
    /// Options, by name.
    pub settings: BTreeMap<String, Setting>,
}

impl Sweep {
    /// Reads a file's text.
    ///
    /// # Errors
    /// [`InvalidSweep`], when it is no sweep, a name is there twice, or a plot names an option that does not vary.
    pub fn parse(text: &str) -> Result<Sweep, InvalidSweep> {
        let sweep: Sweep = toml::from_str(text).map_err(|error| InvalidSweep::Toml(error.to_string()))?;
        for (number, study) in sweep.studies.iter().enumerate() {
            if sweep.studies[..number].iter().any(|other| other.name == study.name) {
                return Err(InvalidSweep::Twice(study.name.clone()));
            }
            for option in [&study.plot.x, &study.plot.series] {
                if !study.grid.contains_key(option) {
                    return Err(InvalidSweep::DoesNotVary { study: study.name.clone(), option: option.clone() });
                }
            }
            let lines = &study.grid[&study.plot.series];
            for relation in study.plot.y.iter().filter_map(|field| Relation::parse(field)) {
                if lines.iter().all(|line| line.text() != relation.line) {
                    return Err(InvalidSweep::NoSuchLine { study: study.name.clone(), line: relation.line.into() });
                }
            }
            if let Some(option) = study.fixed.keys().find(|option| study.grid.contains_key(*option)) {
                return Err(InvalidSweep::StaysAndVaries { study: study.name.clone(), option: option.clone() });
            }
            let points = study.grid.values().try_fold(1_usize, |all, values| all.checked_mul(values.len()));
            if points.is_none_or(|points| points > MOST_POINTS) {
                return Err(InvalidSweep::TooMany(study.name.clone()));
            }
        }
        Ok(sweep)
    }
}

impl Study {
    /// Every combination, the last option of the grid varying fastest.
    pub fn points(&self) -> Vec<Point> {
        let mut all = vec![self.fixed.clone()];
        for (option, values) in &self.grid {
            let with = |settings: &BTreeMap<String, Setting>, value: &Setting| {
                let mut settings = settings.clone();
                settings.insert(option.clone(), value.clone());
                settings
            };
            all = all.iter().flat_map(|settings| values.iter().map(move |value| with(settings, value))).collect();
        }
        all.into_iter().map(|settings| Point { command: self.command.clone(), settings }).collect()
    }
}

impl Point {
    /// What stands on the command line.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![self.command.clone()];
        for (option, value) in &self.settings {
            match value {
                Setting::Flag(false) => {}
                Setting::Flag(true) => arguments.push(format!("--{option}")),
                value => arguments.extend([format!("--{option}"), value.text()]),
            }
        }
        arguments
    }
}

/// A file that is no sweep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSweep {
    /// It is not what a sweep looks like.
    #[error("{0}")]
    Toml(String),
    /// Two studies have one name.
    #[error("two studies are called `{0}`")]
    Twice(String),
    /// A plot needs an option that the grid has not.
    #[error("study `{study}`: its plot is over `{option}`, which is not in its grid")]
    DoesNotVary {
        /// The study.
        study: String,
        /// The option.
        option: String,
    },
    /// A plot relates its lines to one that there is not.
    #[error("study `{study}`: no line of the plot is called `{line}`")]
    NoSuchLine {
        /// The study.
        study: String,
        /// The line.
        line: String,
    },
    /// An option is in both tables.
    #[error("study `{study}`: `{option}` is both fixed and in the grid")]
    StaysAndVaries {
        /// The study.
        study: String,
        /// The option.
        option: String,
    },
    /// More combinations than anybody means.
    #[error("study `{0}` has more than 100000 points")]
    TooMany(String),
}

const MOST_POINTS: usize = 100_000;

/// One line of a results file: a run, and all it takes to make it again.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    /// The study it is of.
    pub study: String,
    /// What a report calls the study.
    pub title: String,
    /// What a report draws of it.
    pub plot: Plot,
    /// The options of the point.
    pub settings: BTreeMap<String, Setting>,
    /// The command line.
    pub arguments: Vec<String>,
    /// The seed.
    pub seed: u64,
    /// `virtual` or `real`.
    pub clock: String,
    /// The version of this crate.
    pub version: String,
    /// The machine.
    pub machine: Machine,
    /// What the run reported.
    pub run: serde_json::Value,
}

impl Row {
    /// A field of the run, an inner one with a dot, if it is a number.
    pub fn number(&self, field: &str) -> Option<f64> {
        let value = field.split('.').try_fold(&self.run, |value, name| value.get(name))?;
        value.as_f64().or_else(|| value.as_bool().map(|flag| f64::from(u8::from(flag))))
    }
}

/// Where a run was made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Machine {
    /// The processor, as the system names it.
    pub processor: String,
    /// How many cores may be used.
    pub cores: usize,
    /// The system and its architecture.
    pub system: String,
}

impl Machine {
    /// This one.
    pub fn this() -> Machine {
        let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = about.lines().find(|line| line.starts_with("model name"));
        let processor = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown").trim().to_string();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Machine { processor, cores, system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH) }
    }
}

/// The rows of a results file, and how many bytes of it hold whole rows: what a kill left behind them is no row.
///
/// # Errors
/// The number of a line, from 1, that is no row although a line follows it, and what is wrong with it.
pub fn read_rows(text: &str) -> Result<(Vec<Row>, usize), (usize, String)> {
    let (mut rows, mut whole) = (Vec::new(), 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if !line.ends_with('\n') {
            break;
        }
        if !line.trim().is_empty() {
            rows.push(serde_json::from_str(line).map_err(|error| (number + 1, error.to_string()))?);
        }
        whole += line.len();
    }
    Ok((rows, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDY: &str = r#"
        [[study]]
        name = "a"
        command = "iperf"
        fixed = { real = true, ipv6 = false, bytes = "1MiB" }
        grid = { mode = ["tcp", "tls-nic"], loss = [0, 0.5], seed = [1, 2, 3] }
        plot = { x = "loss", series = "mode", y = ["goodput_gbps"] }
    "#;

    #[test]
    fn a_grid_is_every_combination_once() {
        let points = Sweep::parse(STUDY).unwrap().studies[0].points();
        assert_eq!(points.len(), 12);
        for (number, point) in points.iter().enumerate() {
            assert!(!points[..number].contains(point));
        }
        let first = ["iperf", "--bytes", "1MiB", "--loss", "0", "--mode", "tcp", "--real", "--seed", "1"];
        assert_eq!(points[0].arguments(), first);
    }

    #[test]
    fn what_is_no_sweep_is_told() {
        let wrong = |from: &str, to: &str| Sweep::parse(&STUDY.replace(from, to)).unwrap_err().to_string();
        assert!(wrong("x = \"loss\"", "x = \"delay\"").contains("not in its grid"));
        assert!(wrong("bytes = \"1MiB\"", "loss = 0").contains("both fixed and in the grid"));
        assert!(wrong("y = [\"goodput_gbps", "y = [\"goodput_gbps, times more than tcpp").contains("`tcpp`"));
        assert!(wrong("name", "nome").contains("nome"));
        assert!(Sweep::parse(&(STUDY.to_string() + STUDY)).unwrap_err().to_string().contains("two studies"));
    }

    #[test]
    fn our_own_sweeps_draw_what_they_set_published_figures_beside() {
        let figures = crate::published::figures();
        for text in [include_str!("../sweeps/quick.toml"), include_str!("../sweeps/published.toml")] {
            for study in Sweep::parse(text).unwrap().studies {
                for (field, id) in &study.plot.published {
                    assert!(study.plot.y.contains(field), "{}: {field}", study.name);
                    let figure = figures.iter().find(|figure| figure.id == *id).expect(id);
                    // Neither axis nor lines may miss each other by a name.
                    let lines = &study.grid[&study.plot.series];
                    assert!(lines.iter().any(|line| figure.series.contains_key(&line.text())), "{}: {id}", study.name);
                    let places = &study.grid[&study.plot.x];
                    let common = |x: &f64| places.iter().any(|place| place.text().parse() == Ok(*x));
                    assert!(figure.x.iter().any(common), "{}: {id}", study.name);
                }
            }
        }
    }

    #[test]
    fn what_a_kill_left_is_no_row() {
        let row = Row {
            study: "a".into(),
            title: String::new(),
            plot: Sweep::parse(STUDY).unwrap().studies[0].plot.clone(),
            settings: BTreeMap::from([("loss".into(), Setting::Float(0.5))]),
            arguments: vec!["iperf".into()],
            seed: 1,
            clock: "virtual".into(),
            version: "0".into(),
            machine: Machine::this(),
            run: serde_json::json!({ "goodput_gbps": 2.5, "tx": { "total": 1 } }),
        };
        let line = serde_json::to_string(&row).unwrap() + "\n";
        let (rows, whole) = read_rows(&(line.clone() + &line[..line.len() / 2])).unwrap();
        assert_eq!((rows.len(), whole), (1, line.len()));
        assert_eq!((rows[0].number("tx.total"), rows[0].number("rx.total")), (Some(1.0), None));
        assert_eq!(read_rows(&format!("{line}nonsense\n")).unwrap_err().0, 2);
    }
}
