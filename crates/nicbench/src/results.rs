//! A results file: a row of JSON for each run, with all it takes to make it again. In front of those of a part of a sweep
//! stands a line that says which part of which sweep they are.
//! What a kill left of a last row is no row.

use crate::build::Build;
use crate::shard::Part;
use crate::sweep::{Plot, Setting};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// One line of a results file: a run, and all it takes to make it again.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    /// The study it is of.
    pub(crate) study: String,
    /// What a report calls the study.
    pub(crate) title: String,
    /// What a report draws of it.
    pub(crate) plot: Plot,
    /// Which point of the study it is, in the order of the grid: rows come as runs end.
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
    /// The values of the NICs by name, where the command has options for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) nic: BTreeMap<String, String>,
    /// The program that made it. Results of older programs do not tell.
    #[serde(default)]
    pub(crate) build: Build,
    /// The machine.
    pub(crate) machine: Machine,
    /// How long the run took there.
    #[serde(default)]
    pub(crate) seconds: f64,
    /// What the run reported.
    pub(crate) run: Value,
}

impl Row {
    /// The point, in words.
    pub(crate) fn name(&self) -> String {
        format!("{}: {}", self.study, self.arguments.join(" "))
    }

    /// Whether it is the same on every machine, but for [`TIMED`] fields.
    pub(crate) fn is_virtual(&self) -> bool {
        self.clock == "virtual"
    }

    /// Fields in which this run in virtual time is not what another machine made of the same point.
    pub(crate) fn differs(&self, other: &Row) -> Vec<String> {
        let mut fields = Vec::new();
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
        // JSON objects have an order of their own, or none, by what else is compiled.
        fields.sort();
        fields
    }

    /// A field of the run, an inner one with a dot, if it is a number.
    pub(crate) fn number(&self, field: &str) -> Option<f64> {
        let value = field.split('.').try_fold(&self.run, |value, name| value.get(name))?;
        value.as_f64().or_else(|| value.as_bool().map(|flag| f64::from(u8::from(flag))))
    }
}

/// Whether a field of a run is CPU time of the machine that made it, or follows from that. An inner field is what its outermost is.
pub(crate) fn is_timed(field: &str) -> bool {
    TIMED.contains(&field.split('.').next().unwrap_or(field))
}

/// The names of inner fields that are not equal.
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

/// Fields of runs that hold CPU time. A test of the commands finds those that are missing here, and those that no run has.
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

/// Where a run was made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Machine {
    /// The processor, as the system names it.
    pub(crate) processor: String,
    /// How many cores may be used.
    pub(crate) cores: usize,
    /// The system and its architecture.
    pub(crate) system: String,
}

impl core::fmt::Display for Machine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}, {} cores, {}", self.processor, self.cores, self.system)
    }
}

impl Machine {
    /// This one.
    pub(crate) fn this() -> Machine {
        let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = about.lines().find(|line| line.starts_with("model name"));
        let processor = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown").trim().to_string();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Machine { processor, cores, system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH) }
    }
}

/// What a results file holds.
#[derive(Debug)]
pub(crate) struct Results {
    /// Which part of a sweep it is, if it says so.
    pub(crate) part: Option<Part>,
    /// The runs.
    pub(crate) rows: Vec<Row>,
    /// How many bytes of the file hold whole lines.
    pub(crate) whole: usize,
}

/// The first line of a part's file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct FirstLine {
    part: Part,
}

/// The first line of a part's file.
pub(crate) fn first_line(part: &Part) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&FirstLine { part: part.clone() })? + "\n")
}

/// What the text of a results file holds.
///
/// # Errors
/// [`NoRow`], for a line that is not a row although a line follows it.
pub(crate) fn read_rows(text: &str) -> Result<Results, NoRow> {
    let mut results = Results { part: None, rows: Vec::new(), whole: 0 };
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if !line.ends_with('\n') {
            break;
        }
        let none = |error: serde_json::Error| NoRow { line: number + 1, what: error.to_string() };
        if number == 0 && line.starts_with("{\"part\":") {
            results.part = Some(serde_json::from_str::<FirstLine>(line).map_err(none)?.part);
        } else if !line.trim().is_empty() {
            results.rows.push(serde_json::from_str(line).map_err(none)?);
        }
        results.whole += line.len();
    }
    Ok(results)
}

/// A line of a results file that is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not a result: {what}")]
pub(crate) struct NoRow {
    /// Which, from 1.
    pub(crate) line: usize,
    /// What is wrong with it.
    pub(crate) what: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let plot = Plot {
            x: "loss".into(),
            series: "mode".into(),
            y: vec!["goodput_gbps".into()],
            published: BTreeMap::new(),
        };
        Row {
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
            machine: Machine::this(),
            seconds: 0.0,
            run: serde_json::json!({ "goodput_gbps": 2.5, "tx": { "total": 1 } }),
        }
    }

    #[test]
    fn what_a_kill_left_is_no_row() {
        let line = serde_json::to_string(&row()).unwrap() + "\n";
        let Results { part, rows, whole } = read_rows(&(line.clone() + &line[..line.len() / 2])).unwrap();
        assert_eq!(part, None);
        assert_eq!((rows.len(), whole), (1, line.len()));
        assert_eq!((rows[0].number("tx.total"), rows[0].number("rx.total")), (Some(1.0), None));
        assert_eq!(read_rows(&format!("{line}nonsense\n")).unwrap_err().line, 2);
    }

    /// What is merged is what was measured, to the last digit.
    #[test]
    fn numbers_are_read_as_they_were_written() {
        let run = serde_json::json!({ "goodput_gbps": 90.93711668496009 });
        let line = serde_json::to_string(&Row { run, ..row() }).unwrap() + "\n";
        let again = serde_json::to_string(&read_rows(&line).unwrap().rows[0]).unwrap() + "\n";
        assert_eq!(again, line);
    }
    /// CPU times differ from machine to machine, and nothing else does.
    #[test]
    fn facts_of_virtual_time_are_compared() {
        let with = |run| Row { run, ..row() };
        let one =
            with(serde_json::json!({ "packets": 7, "counters": { "a": 1 }, "tx_host_ns_per_byte": { "total": 0.5 } }));
        let two =
            with(serde_json::json!({ "packets": 7, "counters": { "a": 1 }, "tx_host_ns_per_byte": { "total": 0.7 } }));
        assert!(one.differs(&two).is_empty());
        let three = with(serde_json::json!({ "packets": 8, "counters": { "a": 2, "b": 1 } }));
        assert_eq!(one.differs(&three), ["counters.a", "counters.b", "packets"]);
        assert_eq!(Row { seed: 2, ..one.clone() }.differs(&one), ["seed"]);
    }
}
