//! Runs over a grid: a TOML file of studies, each a command with fixed and varying options.
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
//! Options that vary together form one option of the grid: its values are tables with a `name`, which is no option:
//! `who = [{ name = "CPU", mode = "tls-cpu", files = "nvme-cpu" }, { name = "NIC", mode = "tls-nic", files = "nvme-nic"
//! }]`.
//!
//! `nic.KEY` is a value of the NICs, named as in a file for `--nic`: `nic.delays.dma = ["600ns", "2us"]`.
//!
//! Every combination is a point: the arguments of one command. Options that are neither `x` nor `series` of the plot,
//! such as seeds, are repetitions; reports show their median.

use crate::report::Relation;
use offload_bench::published::{Figure, toml_error};
use offload_cli::options;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// A file of studies.
///
/// ```
/// use nicbench::sweep::{Plot, Point, SweepStudy, Sweep};
///
/// let sweep = Sweep::parse(r#"
///     [[study]]
///     name = "loss"
///     command = "iperf"
///     grid = { loss = [0, 0.01], mode = ["tcp"] }
///     plot = { x = "loss", series = "mode", y = ["goodput_gbps"] }
/// "#)?;
/// let study: &SweepStudy = &sweep.studies[0];
/// let (plot, points): (&Plot, Vec<Point>) = (&study.plot, study.points());
/// assert_eq!((plot.x.as_str(), points.len()), ("loss", 2));
/// assert_eq!(points[1].arguments(), ["iperf", "--loss", "0.01", "--mode", "tcp"]);
/// # Ok::<(), nicbench::sweep::InvalidSweep>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The studies, in order.
    #[serde(rename = "study")]
    pub studies: Vec<SweepStudy>,
}

/// A command over a grid of options.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepStudy {
    /// Name, unique in the file.
    pub name: String,
    /// Title in reports. If empty, the name is used.
    #[serde(default)]
    pub title: String,
    /// The command.
    pub command: String,
    /// Options with one value.
    #[serde(default)]
    pub fixed: BTreeMap<String, Setting>,
    /// Options with several values; `nic.KEY` is a value of the NICs.
    #[serde(deserialize_with = "grid")]
    pub grid: BTreeMap<String, Vec<Setting>>,
    /// The plot of the study in reports.
    pub plot: Plot,
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Setting {
    /// `true` gives the bare option, `false` omits the option.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
    /// Several options that vary together, with their common `name`.
    Together(BTreeMap<String, Setting>),
}

impl Setting {
    /// Formats the value as on a command line. Several options are shown by their common name.
    pub fn text(&self) -> String {
        match self {
            Setting::Flag(flag) => flag.to_string(),
            Setting::Integer(number) => number.to_string(),
            Setting::Float(number) => number.to_string(),
            Setting::Text(text) => text.clone(),
            Setting::Together(all) => all.get(NAME).map_or_else(String::new, Setting::text),
        }
    }

    /// Returns the command-line arguments for this option.
    fn arguments(&self, option: &str) -> Vec<String> {
        // TOML parses `nic.lro = false` as a table `nic`.
        if let (Setting::Together(all), true) = (self, option == "nic" || option.starts_with("nic.")) {
            return all.iter().flat_map(|(key, value)| value.arguments(&format!("{option}.{key}"))).collect();
        }
        if let (Some(key), false) = (option.strip_prefix("nic."), matches!(self, Setting::Together(_))) {
            return vec!["--nic-set".to_owned(), format!("{key}={}", self.text())];
        }
        match self {
            Setting::Flag(false) => Vec::new(),
            Setting::Flag(true) => vec![format!("--{option}")],
            Setting::Together(all) => {
                let options = all.iter().filter(|(option, _)| *option != NAME);
                options.flat_map(|(option, value)| value.arguments(option)).collect()
            }
            value => vec![format!("--{option}"), value.text()],
        }
    }

    /// Returns the value's position on an axis: the number itself, a size in bytes, or a time in seconds.
    ///
    /// ```
    /// use nicbench::sweep::Setting;
    ///
    /// let place = |text: &str| Setting::Text(text.into()).number();
    /// assert_eq!([place("4KiB"), place("20ms"), place("tls-nic")], [Some(4096.0), Some(0.02), None]);
    /// assert_eq!(Setting::Float(0.5).number(), Some(0.5));
    /// ```
    pub fn number(&self) -> Option<f64> {
        match self {
            Setting::Flag(_) => None,
            Setting::Together(all) => all.get(NAME)?.number(),
            Setting::Integer(number) => Some(*number as f64),
            Setting::Float(number) => Some(*number),
            Setting::Text(text) => {
                let size = options::bytes(text).ok().map(|bytes| bytes as f64);
                size.or_else(|| options::time(text).ok().map(|time| time.as_secs_f64()))
            }
        }
    }
}

/// Deserializes a grid whose options may be in nested tables, because TOML parses `nic.delays.dma = [..]` as nested
/// tables.
fn grid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Vec<Setting>>, D::Error> {
    fn flatten(prefix: &str, table: toml::Table, grid: &mut BTreeMap<String, Vec<Setting>>) -> Result<(), String> {
        for (name, values) in table {
            let name = format!("{prefix}{name}");
            let values = match values {
                toml::Value::Table(table) => {
                    flatten(&format!("{name}."), table, grid)?;
                    continue;
                }
                values => Vec::deserialize(values).map_err(|_| format!("`{name}` takes a list of values"))?,
            };
            if grid.insert(name.clone(), values).is_some() {
                return Err(format!("`{name}` stands twice"));
            }
        }
        Ok(())
    }

    let mut grid = BTreeMap::new();
    flatten("", toml::Table::deserialize(deserializer)?, &mut grid).map_err(D::Error::custom)?;
    Ok(grid)
}

/// The plot of a study in reports.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    /// The option along the horizontal axis.
    pub x: String,
    /// The option that distinguishes the lines.
    pub series: String,
    /// Fields of a run, one plot each; a dot separates nested names. `F, times less than L` plots how many times
    /// smaller the other lines' values of field F are than the values of line L; `times more` likewise.
    pub y: Vec<String>,
    /// Published figures to compare with a field: field, then the figure's identifier.
    #[serde(default)]
    pub published: BTreeMap<String, String>,
}

/// One combination of a study's options.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The command.
    pub command: String,
    /// Options by name.
    pub settings: BTreeMap<String, Setting>,
}

impl Sweep {
    /// Parses a file's text.
    ///
    /// # Errors
    /// [`InvalidSweep`], if the text is no sweep, a name occurs twice, or a plot names an option outside of the grid.
    pub fn parse(text: &str) -> Result<Sweep, InvalidSweep> {
        let sweep: Sweep = toml::from_str(text).map_err(|error| InvalidSweep::Toml(toml_error(text, &error)))?;
        for (number, study) in sweep.studies.iter().enumerate() {
            if sweep.studies[..number].iter().any(|other| other.name == study.name) {
                return Err(InvalidSweep::Twice(study.name.clone()));
            }
            // An option without values would give zero points, and a plot without its axis would be empty.
            let lacks = |option: &String| study.grid.get(option).is_none_or(Vec::is_empty);
            for option in study.grid.keys().chain([&study.plot.x, &study.plot.series]) {
                if lacks(option) {
                    return Err(InvalidSweep::NoValues { study: study.name.clone(), option: option.clone() });
                }
            }
            for field in &study.plot.y {
                let field = Relation::parse(field).map_or(&field[..], |relation| relation.field);
                // Names of nested fields, such as counters, depend on the run; only outer names can be checked before
                // it.
                let outer = field.split('.').next().unwrap_or(field);
                // An unknown command is reported later, with clap's suggestion.
                if fields_of(&study.command).is_some_and(|mut fields| fields.all(|known| known != outer)) {
                    let (command, field) = (study.command.clone(), field.into());
                    return Err(InvalidSweep::NoSuchField { study: study.name.clone(), command, field });
                }
            }
            if let Some(field) = study.plot.published.keys().find(|field| !study.plot.y.contains(field)) {
                return Err(InvalidSweep::NotDrawn { study: study.name.clone(), field: field.clone() });
            }
            // Cannot panic: the loop above has checked that the grid has the series.
            let lines = &study.grid[&study.plot.series];
            for relation in study.plot.y.iter().filter_map(|field| Relation::parse(field)) {
                if lines.iter().all(|line| line.text() != relation.line) {
                    return Err(InvalidSweep::NoSuchLine { study: study.name.clone(), line: relation.line.into() });
                }
            }
            // The option would stand twice on the command line.
            if let Some(option) = study.fixed.keys().find(|option| study.grid.contains_key(*option)) {
                return Err(InvalidSweep::StaysAndVaries { study: study.name.clone(), option: option.clone() });
            }
            // The product may overflow, and every point costs memory before the first run.
            let points = study.grid.values().try_fold(1_usize, |all, values| all.checked_mul(values.len()));
            if points.is_none_or(|points| points > MAX_POINTS) {
                return Err(InvalidSweep::TooMany(study.name.clone()));
            }
        }
        Ok(sweep)
    }

    /// Checks that all published figures named by the sweep are in `figures`.
    ///
    /// # Errors
    /// [`InvalidSweep::NoSuchFigure`] otherwise.
    pub fn check_published(&self, figures: &[Figure]) -> Result<(), InvalidSweep> {
        for study in &self.studies {
            let known = |id: &String| figures.iter().any(|figure| figure.id == *id);
            if let Some(figure) = study.plot.published.values().find(|id| !known(id)) {
                return Err(InvalidSweep::NoSuchFigure { study: study.name.clone(), figure: figure.clone() });
            }
        }
        Ok(())
    }
}

impl SweepStudy {
    /// Returns all combinations; the last option of the grid varies fastest.
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
    /// Returns the command-line arguments.
    pub fn arguments(&self) -> Vec<String> {
        let options = self.settings.iter().flat_map(|(option, value)| value.arguments(option));
        core::iter::once(self.command.clone()).chain(options).collect()
    }
}

/// Reason why a file is not a valid sweep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSweep {
    /// The file is not TOML of a sweep's form.
    #[error("{0}")]
    Toml(String),
    /// Two studies have one name.
    #[error("two studies are called `{0}`: rename one")]
    Twice(String),
    /// An option of the grid has no values, or a plot needs an option that the grid lacks.
    #[error("study `{study}`: its grid has no values of `{option}`")]
    NoValues {
        /// The study.
        study: String,
        /// The option.
        option: String,
    },
    /// A plot names a field that runs of the command lack.
    #[error(
        "study `{study}`, plot.y: runs of `{command}` have no field `{field}`: `nicbench {command} --json` prints theirs"
    )]
    NoSuchField {
        /// The study.
        study: String,
        /// The command.
        command: String,
        /// The field.
        field: String,
    },
    /// A published figure is assigned to a field that is not drawn.
    #[error("study `{study}`: a published figure goes with `{field}`, which is not among `y`")]
    NotDrawn {
        /// The study.
        study: String,
        /// The field.
        field: String,
    },
    /// A published figure is unknown.
    #[error("study `{study}`: no published figure is called `{figure}`")]
    NoSuchFigure {
        /// The study.
        study: String,
        /// The name.
        figure: String,
    },
    /// A plot compares its lines with a line that does not exist.
    #[error("study `{study}`: no line of the plot is called `{line}`")]
    NoSuchLine {
        /// The study.
        study: String,
        /// The line.
        line: String,
    },
    /// An option is both fixed and varying.
    #[error("study `{study}`: `{option}` is both fixed and in the grid")]
    StaysAndVaries {
        /// The study.
        study: String,
        /// The option.
        option: String,
    },
    /// The grid has too many combinations.
    #[error("study `{0}` has more than 100000 points")]
    TooMany(String),
}

/// Returns the outer fields of a command's runs. `None` for an unknown command.
fn fields_of(command: &str) -> Option<impl Iterator<Item = &'static str>> {
    let (_, own) = FIELDS.iter().find(|(known, _)| *known == command)?;
    let common = if matches!(command, "crypto" | "cipher") { "" } else { COMMON_FIELDS };
    Some(common.split(' ').chain(own.split(' ')))
}

/// Outer fields of runs that send data between hosts.
const COMMON_FIELDS: &str = "bytes counters device_ns_per_byte dma_bytes goodput_gbps mode packets rx_host_ns_per_byte sha256_ok tx_host_ns_per_byte";
/// Further outer fields of runs, by command.
const FIELDS: [(&str, &str); 10] = [
    ("cipher", "cipher fastest_ns_per_byte gbps in_flight instructions lanes ns_per_byte ns_per_packet size"),
    (
        "crypto",
        "host_ns_per_byte host_ns_per_job in_flight latency_us megabytes_per_second pcie_bytes_per_byte result_bytes_per_byte size transform units way",
    ),
    (
        "fio",
        "block_bytes copy_crc_share depth host_us_per_operation iops jobs latency_us offload operations pattern placed_share seconds target_us_per_operation",
    ),
    (
        "http",
        "client_us_per_request connections file_bytes files latency_us requests requests_per_second seconds server_us_per_request",
    ),
    ("iperf", "fairness fastest_gbps seconds slowest_gbps streams"),
    (
        "ipsec",
        "datagrams packet_bytes rx_ns_per_packet rx_packets_per_cpu_second sas tx_ns_per_packet tx_packets_per_cpu_second",
    ),
    ("quic", ""),
    (
        "recovery",
        "descriptors dumped full none partial questions resync resyncs retransmitted sealed share told transmit_resync trouble",
    ),
    (
        "reservoir",
        "average_gbps deviation_gbps disks fairness fastest_gbps law_gbps of_law pacing peak_gbps round_trip_s scale seconds_gbps seconds_to_90 slowest_gbps steady_gbps streams transport window",
    ),
    (
        "vms",
        "hypervisors_ns_per_byte mtu protected represented rx_guests_ns_per_byte tx_guests_ns_per_byte vms whole wrapped",
    ),
];
/// The key that names options that vary together; no option itself.
const NAME: &str = "name";
const MAX_POINTS: usize = 100_000;

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
    fn options_that_vary_together_form_one_option() {
        let together = r#"path = [{ name = "274ms", delay = "137ms", sack = true }, { name = "10ms", delay = "5ms" }]"#;
        let sweep =
            Sweep::parse(&STUDY.replace("loss = [0, 0.5]", together).replace("x = \"loss\"", "x = \"path\"")).unwrap();
        let points = sweep.studies[0].points();
        assert_eq!(points.len(), 12);
        let first =
            ["iperf", "--bytes", "1MiB", "--mode", "tcp", "--delay", "137ms", "--sack", "--real", "--seed", "1"];
        assert_eq!(points[0].arguments(), first);
        let path = &points[0].settings["path"];
        assert_eq!((path.text(), path.number()), ("274ms".into(), Some(0.274)));
    }

    #[test]
    fn fixed_values_of_nics_are_set() {
        let sweep = Sweep::parse(&STUDY.replace("ipv6 = false", "nic.lro = false, nic.tls.contexts = 8")).unwrap();
        let arguments = sweep.studies[0].points()[0].arguments();
        let set: Vec<_> = arguments.iter().filter(|argument| argument.contains('=')).collect();
        assert_eq!(set, ["lro=false", "tls.contexts=8"]);
    }

    #[test]
    fn errors_of_a_grid_name_the_option() {
        let wrong = |values: &str| Sweep::parse(&STUDY.replace("loss = [0, 0.5]", values)).unwrap_err().to_string();
        assert!(wrong("loss = 0.5").contains("`loss` takes a list of values"), "{}", wrong("loss = 0.5"));
        let twice = r#""nic.lro" = [true], nic.lro = [false]"#;
        assert!(wrong(twice).contains("`nic.lro` stands twice"), "{}", wrong(twice));
    }

    #[test]
    fn values_of_nics_vary_as_options_do() {
        let values = r#"nic.lro = [false], nic.tls.contexts = [8, 9]"#;
        let sweep = STUDY.replace("loss = [0, 0.5]", values).replace("x = \"loss\"", "x = \"nic.tls.contexts\"");
        let points = Sweep::parse(&sweep).unwrap().studies[0].points();
        assert_eq!(points.len(), 12);
        let arguments = points[0].arguments().join(" ");
        assert!(arguments.contains("--nic-set lro=false --nic-set tls.contexts=8"), "{arguments}");
    }

    #[test]
    fn errors_of_a_sweep_name_the_fault() {
        let wrong = |from: &str, to: &str| Sweep::parse(&STUDY.replace(from, to)).unwrap_err().to_string();
        assert!(wrong("x = \"loss\"", "x = \"delay\"").contains("no values of `delay`"));
        assert!(wrong("seed = [1, 2, 3]", "seed = []").contains("no values of `seed`"));
        assert!(wrong("bytes = \"1MiB\"", "loss = 0").contains("both fixed and in the grid"));
        assert!(wrong("y = [\"goodput_gbps", "y = [\"goodput_gbps, times more than tcpp").contains("`tcpp`"));
        assert!(wrong("goodput_gbps\"]", "goodput_gbps\"], published = { fairness = \"x\" }").contains("`fairness`"));
        let no_field = wrong("y = [\"goodput_gbps", "y = [\"nonsense.total");
        assert!(no_field.contains("study `a`, plot.y: runs of `iperf` have no field `nonsense.total`"), "{no_field}");
        let unknown = wrong("name", "nome");
        assert!(unknown.starts_with("line 3: ") && unknown.contains("`nome`") && unknown.lines().count() == 1);
        assert!(Sweep::parse(&(STUDY.to_string() + STUDY)).unwrap_err().to_string().contains("two studies"));
        let beside = STUDY.replace("goodput_gbps\"]", "goodput_gbps\"], published = { goodput_gbps = \"nobodys\" }");
        let sweep = Sweep::parse(&beside).unwrap();
        let error = sweep.check_published(&offload_bench::published::figures()).unwrap_err().to_string();
        assert!(error.contains("`nobodys`"), "{error}");
    }

    #[test]
    fn built_in_sweeps_match_their_published_figures() {
        let figures = offload_bench::published::figures();
        let ours = [
            include_str!("../sweeps/quick.toml"),
            include_str!("../sweeps/published.toml"),
            include_str!("../sweeps/crypto.toml"),
            include_str!("../sweeps/cipher.toml"),
        ];
        for text in ours {
            let sweep = Sweep::parse(text).unwrap();
            sweep.check_published(&figures).unwrap();
            for study in sweep.studies {
                for (field, id) in &study.plot.published {
                    let figure = figures.iter().find(|figure| figure.id == *id).expect(field);
                    // Axis and lines must match the figure's names, or nothing is drawn side by side.
                    let lines = &study.grid[&study.plot.series];
                    assert!(lines.iter().any(|line| figure.series.contains_key(&line.text())), "{}: {id}", study.name);
                    let places = &study.grid[&study.plot.x];
                    let common = |x: &f64| places.iter().any(|place| place.number() == Some(*x));
                    assert!(figure.x.iter().any(common), "{}: {id}", study.name);
                }
            }
        }
    }
}
