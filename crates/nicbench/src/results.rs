//! The format of results files: one JSON row for each run, with all that is needed to repeat the run. The file of a part of a sweep
//! begins with a line that identifies part and sweep. An incomplete last line, left by a killed process, is ignored.

use crate::build::Build;
use crate::shard::SweepPart;
use crate::sweep::{Plot, Setting};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A line of a results file: a run, with all that is needed to repeat it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ResultRow {
    /// Name of the study.
    pub(crate) study: String,
    /// Title of the study in reports.
    pub(crate) title: String,
    /// The study's plot.
    pub(crate) plot: Plot,
    /// Number of the point in the order of the study's grid. Rows are in the order in which runs ended.
    #[serde(default)]
    pub(crate) point: usize,
    /// The options of the point.
    pub(crate) settings: BTreeMap<String, Setting>,
    /// The command line.
    pub(crate) arguments: Vec<String>,
    /// The seed.
    pub(crate) seed: u64,
    /// `virtual` or `real`.
    pub(crate) clock: String,
    /// The NICs' values by name, if the command has options for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) nic: BTreeMap<String, String>,
    /// The build of the program that made the row. Unknown for results of older programs.
    #[serde(default)]
    pub(crate) build: Build,
    /// The machine.
    pub(crate) machine: MachineInfo,
    /// Duration of the run, in seconds.
    #[serde(default)]
    pub(crate) seconds: f64,
    /// The reported result.
    pub(crate) run: Value,
}

impl ResultRow {
    /// Returns the point as text.
    pub(crate) fn name(&self) -> String {
        format!("{}: {}", self.study, self.arguments.join(" "))
    }

    /// Returns whether the run is in virtual time, and so equal on every machine except for [`TIMED`] fields.
    pub(crate) fn is_virtual(&self) -> bool {
        self.clock == "virtual"
    }

    /// Compares two runs of one point in virtual time. Returns the names of the fields that differ.
    pub(crate) fn differs(&self, other: &ResultRow) -> Vec<String> {
        let mut fields = Vec::new();
        // Different seeds explain every other difference, so the seed is compared first.
        if self.seed != other.seed {
            fields.push("seed".into());
        }
        let none = serde_json::Map::new();
        let [one, two] = [&self.run, &other.run].map(|run| run.as_object().unwrap_or(&none));
        for field in one.keys().chain(two.keys().filter(|field| !one.contains_key(*field))) {
            if !is_timed(field) {
                differences(field, one.get(field), two.get(field), &mut fields);
            }
        }
        // The key order of JSON objects depends on features that other crates enable.
        fields.sort();
        fields
    }

    /// Returns a numeric field of the run. A dot separates the names of nested fields.
    pub(crate) fn number(&self, field: &str) -> Option<f64> {
        let value = field.split('.').try_fold(&self.run, |value, name| value.get(name))?;
        value.as_f64().or_else(|| value.as_bool().map(|flag| f64::from(u8::from(flag))))
    }
}

/// Returns whether a field holds CPU time of the machine, or a value derived from CPU time. The outermost name decides
/// for nested fields.
pub(crate) fn is_timed(field: &str) -> bool {
    TIMED.contains(&field.split('.').next().unwrap_or(field))
}

/// Collects the names of nested fields that differ.
fn differences(name: &str, one: Option<&Value>, two: Option<&Value>, fields: &mut Vec<String>) {
    match (one, two) {
        (Some(Value::Object(one)), Some(Value::Object(two))) => {
            for inner in one.keys().chain(two.keys().filter(|inner| !one.contains_key(*inner))) {
                differences(&format!("{name}.{inner}"), one.get(inner), two.get(inner), fields);
            }
        }
        _ if one == two => {}
        _ => fields.push(name.to_string()),
    }
}

/// Fields of runs that hold CPU time. A test of the commands finds missing fields and fields that no run has.
pub(crate) const TIMED: [&str; 15] = [
    "client_us_per_request",
    "copy_crc_share",
    "device_ns_per_byte",
    "host_us_per_operation",
    "hypervisors_ns_per_byte",
    "rx_guests_ns_per_byte",
    "rx_host_ns_per_byte",
    "rx_ns_per_packet",
    "rx_packets_per_cpu_second",
    "server_us_per_request",
    "target_us_per_operation",
    "tx_guests_ns_per_byte",
    "tx_host_ns_per_byte",
    "tx_ns_per_packet",
    "tx_packets_per_cpu_second",
];

/// The machine of a run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct MachineInfo {
    /// The processor, as the system names it.
    pub(crate) processor: String,
    /// Number of usable cores.
    pub(crate) cores: usize,
    /// The system and its architecture.
    pub(crate) system: String,
}

impl core::fmt::Display for MachineInfo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}, {} cores, {}", self.processor, self.cores, self.system)
    }
}

impl MachineInfo {
    /// Returns this machine.
    pub(crate) fn this() -> MachineInfo {
        let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = about.lines().find(|line| line.starts_with("model name"));
        let processor = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown").trim().to_string();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        MachineInfo { processor, cores, system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH) }
    }
}

/// The content of a results file.
#[derive(Debug)]
pub(crate) struct ResultsFile {
    /// The part of a sweep that the file holds. `None` for a whole sweep.
    pub(crate) part: Option<SweepPart>,
    /// The runs.
    pub(crate) rows: Vec<ResultRow>,
    /// Length of the complete lines, in bytes.
    pub(crate) whole: usize,
}

/// The first line of a part's file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct FirstLine {
    part: SweepPart,
}

/// Formats the first line of a part's file.
pub(crate) fn first_line(part: &SweepPart) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&FirstLine { part: part.clone() })? + "\n")
}

/// Parses a results file.
///
/// # Errors
/// [`InvalidRow`], if a complete line is not a row.
pub(crate) fn read_rows(text: &str) -> Result<ResultsFile, InvalidRow> {
    let mut results = ResultsFile { part: None, rows: Vec::new(), whole: 0 };
    for (number, line) in text.split_inclusive('\n').enumerate() {
        // A killed process leaves an incomplete last line, which is no error.
        if !line.ends_with('\n') {
            break;
        }
        let none = |error: serde_json::Error| InvalidRow { line: number + 1, what: error.to_string() };
        if number == 0 && line.starts_with("{\"part\":") {
            results.part = Some(serde_json::from_str::<FirstLine>(line).map_err(none)?.part);
        } else if !line.trim().is_empty() {
            results.rows.push(serde_json::from_str(line).map_err(none)?);
        }
        results.whole += line.len();
    }
    Ok(results)
}

/// A line of a results file that is not a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not a result: {what}")]
pub(crate) struct InvalidRow {
    /// Line number, from 1.
    pub(crate) line: usize,
    /// The parser's error.
    pub(crate) what: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> ResultRow {
        let plot = Plot {
            x: "loss".into(),
            series: "mode".into(),
            y: vec!["goodput_gbps".into()],
            published: BTreeMap::new(),
        };
        ResultRow {
            study: "a".into(),
            title: String::new(),
            plot,
            point: 0,
            settings: BTreeMap::from([("loss".into(), Setting::Float(0.5))]),
            arguments: vec!["iperf".into()],
            seed: 1,
            clock: "virtual".into(),
            nic: BTreeMap::new(),
            build: Build::default(),
            machine: MachineInfo::this(),
            seconds: 0.0,
            run: serde_json::json!({ "goodput_gbps": 2.5, "tx": { "total": 1 } }),
        }
    }

    #[test]
    fn incomplete_last_line_is_ignored() {
        let line = serde_json::to_string(&row()).unwrap() + "\n";
        let ResultsFile { part, rows, whole } = read_rows(&(line.clone() + &line[..line.len() / 2])).unwrap();
        assert_eq!(part, None);
        assert_eq!((rows.len(), whole), (1, line.len()));
        assert_eq!((rows[0].number("tx.total"), rows[0].number("rx.total")), (Some(1.0), None));
        assert_eq!(read_rows(&format!("{line}nonsense\n")).unwrap_err().line, 2);
    }

    /// A merge must preserve measured numbers to the last digit.
    #[test]
    fn numbers_survive_reading_and_writing() {
        let run = serde_json::json!({ "goodput_gbps": 90.93711668496009 });
        let line = serde_json::to_string(&ResultRow { run, ..row() }).unwrap() + "\n";
        let again = serde_json::to_string(&read_rows(&line).unwrap().rows[0]).unwrap() + "\n";
        assert_eq!(again, line);
    }
    /// Between machines CPU times differ, and no other field may differ.
    #[test]
    fn rows_of_virtual_time_are_compared() {
        let with = |run| ResultRow { run, ..row() };
        let one =
            with(serde_json::json!({ "packets": 7, "counters": { "a": 1 }, "tx_host_ns_per_byte": { "total": 0.5 } }));
        let two =
            with(serde_json::json!({ "packets": 7, "counters": { "a": 1 }, "tx_host_ns_per_byte": { "total": 0.7 } }));
        assert!(one.differs(&two).is_empty());
        let three = with(serde_json::json!({ "packets": 8, "counters": { "a": 2, "b": 1 } }));
        assert_eq!(one.differs(&three), ["counters.a", "counters.b", "packets"]);
        assert_eq!(ResultRow { seed: 2, ..one.clone() }.differs(&one), ["seed"]);
    }
}
