//! A results file: a row of JSON for each run, with all it takes to make it again.
//! What a kill left of a last row is no row.

use crate::sweep::{Plot, Setting};
use serde::{Deserialize, Serialize};
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
    /// The version of this crate.
    pub(crate) version: String,
    /// The machine.
    pub(crate) machine: Machine,
    /// What the run reported.
    pub(crate) run: serde_json::Value,
}

impl Row {
    /// A field of the run, an inner one with a dot, if it is a number.
    pub(crate) fn number(&self, field: &str) -> Option<f64> {
        let value = field.split('.').try_fold(&self.run, |value, name| value.get(name))?;
        value.as_f64().or_else(|| value.as_bool().map(|flag| f64::from(u8::from(flag))))
    }
}

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

/// The rows of a results file, and how many bytes of it hold whole rows.
///
/// # Errors
/// [`NoRow`], for a line that is not a row although a line follows it.
pub(crate) fn read_rows(text: &str) -> Result<(Vec<Row>, usize), NoRow> {
    let (mut rows, mut whole) = (Vec::new(), 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if !line.ends_with('\n') {
            break;
        }
        if !line.trim().is_empty() {
            let none = |error: serde_json::Error| NoRow { line: number + 1, what: error.to_string() };
            rows.push(serde_json::from_str(line).map_err(none)?);
        }
        whole += line.len();
    }
    Ok((rows, whole))
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
            version: "0".into(),
            machine: Machine::this(),
            run: serde_json::json!({ "goodput_gbps": 2.5, "tx": { "total": 1 } }),
        }
    }

    #[test]
    fn what_a_kill_left_is_no_row() {
        let line = serde_json::to_string(&row()).unwrap() + "\n";
        let (rows, whole) = read_rows(&(line.clone() + &line[..line.len() / 2])).unwrap();
        assert_eq!((rows.len(), whole), (1, line.len()));
        assert_eq!((rows[0].number("tx.total"), rows[0].number("rx.total")), (Some(1.0), None));
        assert_eq!(read_rows(&format!("{line}nonsense\n")).unwrap_err().line, 2);
    }
}
