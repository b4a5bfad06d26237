//! The NICs' model as data: values of `NicConfig` by name, from a file or from the command line.
//!
//! A file consists of TOML lines `key = value` and `[section]`, and comments. The parser is hand-written, because the
//! crate `toml` would lengthen the build of the first example:
//!
//! ```toml
//! context_cache_bytes = "1MiB"
//! lro = false
//! [delays]
//! dma = "900ns"
//! [tls]
//! contexts = 4096
//! ```

use crate::options::{self, Names, WireRate};
use crate::tls_options::{RESYNCS, TRANSMIT_RESYNCS};
use clap::{Args, ValueHint};
use core::ops::RangeInclusive;
use core::str::FromStr;
use core::time::Duration;
use nic_sim::NicConfig;
use std::collections::BTreeMap;

/// The options that set values of the NICs. An option overrides the same value of a file.
///
/// ```
/// use clap::Parser;
/// use nic_sim::NicConfig;
/// use offload_cli::nic_options::NicOptions;
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     nic: NicOptions,
/// }
///
/// let options = Options::parse_from(["demo", "--nic-set", "delays.dma=2us", "--nic-set", "lro=false"]);
/// let nic = options.nic.apply(NicConfig::default());
/// assert!(nic.delays.dma.as_micros() == 2 && !nic.lro);
/// assert!(Options::try_parse_from(["demo", "--nic-set", "colour=red"]).is_err());
/// ```
#[derive(Args, Clone, Debug, Default)]
pub struct NicOptions {
    /// Take values of all NICs from a file, such as `context_cache_bytes = "1MiB"`. In real time delays, line_rate and
    /// receive_ring have no effect
    #[arg(id = "nic", long, value_name = "FILE", value_parser = read_file, value_hint = ValueHint::FilePath)]
    file: Option<NicModel>,
    /// Set one value of all NICs, such as delays.dma=2us; may be given several times
    #[arg(id = "nic_set", long = "nic-set", value_name = "KEY=VALUE")]
    values: Vec<NicValue>,
}

impl NicOptions {
    /// Returns `nic` with the values of the file, and with those of the options.
    pub fn apply(&self, nic: NicConfig) -> NicConfig {
        let of_file = self.file.iter().flat_map(|model| &model.0);
        of_file.chain(&self.values).fold(nic, |mut nic, value| {
            // The value was validated when it was parsed.
            let _tried = (value.key.set)(&mut nic, &value.text);
            nic
        })
    }
}

/// The values of a file.
///
/// ```
/// use offload_cli::nic_options::NicModel;
///
/// assert!("[delays]\ndma = \"2us\" # slow".parse::<NicModel>().is_ok());
/// let error = "lro = false\n[delays]\ndna = \"2us\"".parse::<NicModel>().unwrap_err();
/// assert_eq!(error, "line 3: a NIC has no value `delays.dna`");
/// ```
#[derive(Clone, Debug, Default)]
pub struct NicModel(Vec<NicValue>);

impl FromStr for NicModel {
    type Err = String;
    fn from_str(text: &str) -> Result<NicModel, String> {
        let (mut section, mut values) = (String::new(), Vec::<NicValue>::new());
        for (number, line) in text.lines().enumerate() {
            let at_line = |error: String| format!("line {}: {error}", number + 1);
            let line = without_comment(line).trim();
            if line.is_empty() {
                continue;
            }
            if let Some(name) = line.strip_prefix('[') {
                let name = name.strip_suffix(']').map(str::trim);
                // A misspelled section is reported itself, instead of each of its keys.
                let is_known =
                    |name: &&str| KEYS.iter().any(|key| key.name.split_once('.').is_some_and(|of| of.0 == *name));
                let unknown = || at_line(format!("a NIC has no section `{line}`"));
                section = format!("{}.", name.filter(is_known).ok_or_else(unknown)?);
                continue;
            }
            let (key, value) = line.split_once('=').ok_or_else(|| at_line(format!("`{line}` is not `key = value`")))?;
            let name = format!("{section}{}", key.trim());
            let value = plain(value.trim()).ok_or_else(|| {
                at_line(format!("{name}: a value is a number, true, false or a text in double quotes"))
            })?;
            // Values are checked here, where the line number is known.
            let value = NicValue::new(&name, &value).map_err(at_line)?;
            // TOML forbids duplicate keys; the later value would win silently.
            if values.iter().any(|other| other.key.name == name) {
                return Err(at_line(format!("`{name}` is set twice")));
            }
            values.push(value);
        }
        Ok(NicModel(values))
    }
}

/// Reads a file of values. An error names the line; clap adds the file.
fn read_file(path: &str) -> Result<NicModel, String> {
    std::fs::read_to_string(path).map_err(|error| error.to_string())?.parse()
}

fn without_comment(line: &str) -> &str {
    // A `#` inside of a quoted text does not start a comment.
    let mut in_text = false;
    let is_comment = |letter: char| {
        in_text ^= letter == '"';
        letter == '#' && !in_text
    };
    line.split(is_comment).next().unwrap_or(line)
}

/// Removes a TOML value's quotes, or the underscores of a number.
fn plain(value: &str) -> Option<String> {
    if let Some(text) = value.strip_prefix('"') {
        return text.strip_suffix('"').filter(|text| !text.contains(['"', '\\'])).map(str::to_owned);
    }
    let number = value.replace('_', "");
    (number.parse::<u64>().is_ok() || number.parse::<bool>().is_ok()).then_some(number)
}

/// A value of a NIC: `key=value`.
///
/// ```
/// use offload_cli::nic_options::NicValue;
///
/// assert!("tls.contexts=64".parse::<NicValue>().is_ok());
/// assert_eq!("tls.context=64".parse::<NicValue>().unwrap_err(), "a NIC has no value `tls.context`");
/// assert!("lro=perhaps".parse::<NicValue>().unwrap_err().starts_with("lro: "));
/// ```
#[derive(Clone, Debug)]
pub struct NicValue {
    key: &'static Key,
    text: String,
}

impl NicValue {
    /// Parses the value of a key.
    ///
    /// # Errors
    /// A message, if the key is unknown or the value is invalid.
    pub fn new(name: &str, text: &str) -> Result<NicValue, String> {
        let key = KEYS.iter().find(|key| key.name == name).ok_or_else(|| format!("a NIC has no value `{name}`"))?;
        (key.set)(&mut NicConfig::default(), text).map_err(|error| format!("{name}: {error}"))?;
        Ok(NicValue { key, text: text.to_owned() })
    }
}

impl FromStr for NicValue {
    type Err = String;
    fn from_str(text: &str) -> Result<NicValue, String> {
        let (name, value) = text.split_once('=').ok_or("takes KEY=VALUE")?;
        NicValue::new(name, value)
    }
}

/// Returns all values of a NIC by name, in the form of a file.
///
/// ```
/// let values = offload_cli::nic_options::values(&nic_sim::NicConfig::default());
/// assert_eq!((&values["delays.dma"][..], &values["line_rate"][..]), ("600ns", "100000000000"));
/// ```
pub fn values(nic: &NicConfig) -> BTreeMap<String, String> {
    KEYS.iter().map(|key| (key.name.to_owned(), (key.show)(nic))).collect()
}

/// A value that a file can set.
#[derive(Debug)]
struct Key {
    name: &'static str,
    set: fn(&mut NicConfig, &str) -> Result<(), String>,
    show: fn(&NicConfig) -> String,
}

/// Lists keys, each with its field of `NicConfig`, a function that parses a value, and one that formats it.
macro_rules! keys {
    ($($name:literal: $($field:ident).+, $read:expr, $show:expr;)+) => {
        &[$(Key {
            name: $name,
            set: |nic, text| { nic.$($field).+ = $read(text)?; Ok(()) },
            show: |nic| $show(&nic.$($field).+),
        }),+]
    };
}

const KEYS: &[Key] = keys! {
    "line_rate": line_rate, rate, show_rate;
    "send_ring": send_ring, number(ENTRIES), ToString::to_string;
    "receive_ring": receive_ring, number(ENTRIES), ToString::to_string;
    "control_ring": control_ring, number(ENTRIES), ToString::to_string;
    "send_queue_bytes": send_queue_bytes, options::size(64 << 10..=1 << 30), ToString::to_string;
    "tso_max_bytes": tso_max_bytes, options::size(0..=512 << 10), ToString::to_string;
    "udp_segmentation": udp_segmentation, flag, ToString::to_string;
    "pacing": pacing, flag, ToString::to_string;
    "checksum_offload": checksum_offload, flag, ToString::to_string;
    "lro": lro, flag, ToString::to_string;
    "lro_datagrams": lro_datagrams, flag, ToString::to_string;
    "lro_max_bytes": lro_max_bytes, options::size(9216..=512 << 10), ToString::to_string;
    "lro_wait": lro_wait, options::time, show_time;
    "context_cache_bytes": context_cache_bytes, options::size(208..=1 << 40), ToString::to_string;
    "pcie_rate": costs.pcie_rate, rate, show_rate;
    "context_fetch": costs.context_fetch, options::time, show_time;
    "crypto_rate": costs.crypto_rate, rate, show_rate;
    "delays.doorbell": delays.doorbell, options::time, show_time;
    "delays.dma": delays.dma, options::time, show_time;
    "delays.engine": delays.engine, options::time, show_time;
    "delays.interrupt": delays.interrupt, options::time, show_time;
    "tls.contexts": engines.tls.contexts, number(CONTEXTS), ToString::to_string;
    "tls.context_pool": engines.tls.context_pool, number(0..=1 << 20), ToString::to_string;
    "tls.resync": engines.tls.resync, named(RESYNCS), |value| RESYNCS.name(value);
    "tls.transmit_resync": engines.tls.transmit_resync, named(TRANSMIT_RESYNCS), |value| TRANSMIT_RESYNCS.name(value);
    "nvme.contexts": engines.nvme_tcp.contexts, number(CONTEXTS), ToString::to_string;
    "nvme.io_threshold": engines.nvme_tcp.io_threshold, options::size(0..=1 << 40), ToString::to_string;
    "nvme.transmit_resync": engines.nvme_tcp.transmit_resync, named(TRANSMIT_RESYNCS), |value| TRANSMIT_RESYNCS.name(value);
    "esp.sas": engines.esp.sas, number(CONTEXTS), ToString::to_string;
    "quic.contexts": engines.quic.contexts, number(CONTEXTS), ToString::to_string;
};

const ENTRIES: RangeInclusive<u64> = 64..=65_536;
const CONTEXTS: RangeInclusive<u64> = 1..=1 << 24;

fn number<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> {
    move |text| {
        let within = text.parse().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        within.and_then(|number| T::try_from(number).ok()).ok_or_else(|| format!("a number from {least} to {most}"))
    }
}

fn flag(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "true or false".into())
}

fn rate(text: &str) -> Result<Option<u64>, String> {
    text.parse::<WireRate>().map(|rate| rate.0).map_err(|error| error.to_string())
}

fn show_rate(rate: &Option<u64>) -> String {
    rate.map_or_else(|| "unlimited".into(), |rate| rate.to_string())
}

fn show_time(time: &Duration) -> String {
    humantime::format_duration(*time).to_string()
}

fn named<T: Clone>(names: Names<T>) -> impl Fn(&str) -> Result<T, String> {
    move |text| {
        let known = names.0.iter().find(|named| named.0 == text).map(|named| named.2.clone());
        known.ok_or_else(|| format!("one of {}", names.0.iter().map(|named| named.0).collect::<Vec<_>>().join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `values` can be read again and changes nothing.
    #[test]
    fn every_value_is_read_as_it_is_printed() {
        let all = values(&NicConfig::default());
        let file = all.iter().fold(String::new(), |file, (name, value)| format!("{file}{name} = \"{value}\"\n"));
        let options = NicOptions { file: Some(file.parse().unwrap()), values: Vec::new() };
        assert_eq!(values(&options.apply(NicConfig::default())), all);
    }

    #[test]
    fn options_win_over_the_file() {
        let file = "context_cache_bytes = 1_024 # five\n[tls]\nresync = \"core-hint\"\ncontexts = 8";
        let options = NicOptions { file: Some(file.parse().unwrap()), values: vec!["tls.contexts=9".parse().unwrap()] };
        let nic = options.apply(NicConfig::default());
        assert_eq!((nic.context_cache_bytes, nic.engines.tls.contexts), (1024, 9));
        assert_eq!(RESYNCS.name(&nic.engines.tls.resync), "core-hint");
    }

    #[test]
    fn errors_name_line_and_key() {
        let error = |text: &str| text.parse::<NicModel>().unwrap_err();
        assert_eq!(error("\ncolour = 1"), "line 2: a NIC has no value `colour`");
        assert_eq!(error("[bus]"), "line 1: a NIC has no section `[bus]`");
        assert_eq!(error("[tls]\ncontexts = 0"), "line 2: tls.contexts: a number from 1 to 16777216");
        assert_eq!(error("lro = true\nlro = false"), "line 2: `lro` is set twice");
        assert!(error("[delays]\ndma = 2us").starts_with("line 2: delays.dma: a value is"));
        assert!(error("[delays]\ndma = \"2 parsecs\"").starts_with("line 2: delays.dma: a time is"));
        assert!(error("lro").starts_with("line 1: `lro` is not"));
    }
}
