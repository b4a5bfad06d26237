//! `--json` and `--csv`: the form of the results.

use crate::scenario::Made;
use clap::Args;
use serde_json::Value;
use std::collections::BTreeMap;

/// The form of the results.
///
/// ```
/// use clap::Parser;
/// use offload_cli::output::OutputOptions;
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     output: OutputOptions,
/// }
///
/// assert!(Options::parse_from(["demo", "--csv"]).output.csv);
/// assert!(Options::try_parse_from(["demo", "--csv", "--json"]).is_err());
/// ```
#[derive(Args, Clone, Copy, Debug, Default)]
#[group(multiple = false)]
pub struct OutputOptions {
    /// Print the facts as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print the facts as CSV: a heading, and a line for each run
    #[arg(long)]
    pub csv: bool,
}

impl OutputOptions {
    /// Returns the runs in the requested form.
    pub fn shown(&self, made: &Made) -> String {
        match self {
            OutputOptions { json: true, .. } => made.facts.to_json() + "\n",
            OutputOptions { csv: true, .. } => csv(&made.facts.runs),
            _ => made.text.clone(),
        }
    }
}

/// Formats runs as CSV: a heading with all fields that any run has, and a line for each run. Dots join the names of
/// nested fields.
///
/// ```
/// let runs = [serde_json::json!({ "mode": "tcp", "cost": { "total": 0.5 } }), serde_json::json!({ "mode": "a,b" })];
/// assert_eq!(offload_cli::output::csv(&runs), "cost.total,mode\n0.5,tcp\n,\"a,b\"\n");
/// ```
pub fn csv(runs: &[Value]) -> String {
    let rows: Vec<BTreeMap<String, String>> = runs
        .iter()
        .map(|run| {
            let mut row = BTreeMap::new();
            flatten(run, String::new(), &mut row);
            row
        })
        .collect();
    // Runs of different modes have different fields; each line has a cell for all of them.
    let mut columns: Vec<&String> = rows.iter().flat_map(BTreeMap::keys).collect();
    columns.sort();
    columns.dedup();
    let line = |cells: Vec<String>| cells.join(",") + "\n";
    let heading = line(columns.iter().map(|name| cell(name)).collect());
    let lines = rows
        .iter()
        .map(|row| line(columns.iter().map(|name| row.get(*name).map_or(String::new(), |text| cell(text))).collect()));
    heading + &lines.collect::<String>()
}

fn flatten(value: &Value, name: String, row: &mut BTreeMap<String, String>) {
    let below = |key: &str| if name.is_empty() { key.to_string() } else { format!("{name}.{key}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| flatten(value, below(key), row)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| flatten(value, below(&at.to_string()), row))
        }
        Value::String(text) => drop(row.insert(name, text.clone())),
        Value::Null => drop(row.insert(name, String::new())),
        other => drop(row.insert(name, other.to_string())),
    }
}

/// Formats a CSV field: quoted if it contains a comma, a quote or a line break (RFC 4180 2).
///
/// ```
/// assert_eq!(offload_cli::output::cell("1,448"), "\"1,448\"");
/// ```
pub fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
