//! Options with units, shared by the examples and `nicbench`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use core::ops::RangeInclusive;
use core::str::FromStr;
use core::time::Duration;
use nic_sim::wire::impairment::{Burst, Impairments, Reorder, Share};
use nic_sim::wire::{LinkConfig, Overflow};
use offload_base::Seed;
use offload_base::text::bits_per_second;
use offload_bench_tls::choice::Choice;

/// The wire between two hosts, and the clock.
///
/// ```
/// use clap::Parser;
/// use offload_cli::options::WireOptions;
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     wire: WireOptions,
/// }
///
/// let options = Options::parse_from(["demo", "--rate", "10G", "--delay", "50us", "--loss", "0.01"]);
/// assert_eq!(options.wire.link().rate, Some(10_000_000_000));
/// assert!(Options::try_parse_from(["demo", "--loss", "1.5"]).is_err());
/// ```
#[derive(Args, Clone, Debug, PartialEq)]
#[command(next_display_order = WIRE_IN_HELP)]
pub struct WireOptions {
    /// Virtual time: one thread, the same run every time (the default)
    #[arg(long = "virtual", conflicts_with = "real")]
    pub virtual_time: bool,
    /// Real time: hosts and devices on as many threads as there are cores
    #[arg(long)]
    pub real: bool,
    /// Seed of everything random. Default: 1. A host with a real peer takes its secrets from the system instead;
    /// with --seed they repeat, and its connections can be guessed
    #[arg(long)]
    pub seed: Option<u64>,
    /// Line rate in bits per second: 100G, 2.5G, 400M, or `unlimited`. Default: 100G, in real time unlimited
    #[arg(long)]
    pub rate: Option<WireRate>,
    /// One-way delay: 5us, 10ms. Default: 5us, in real time none
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub delay: Option<Duration>,
    /// Largest IP packet: 1500, 9000, 9KiB
    #[arg(long, value_name = "SIZE", default_value = "1500", value_parser = size::<u16>(576..=9216))]
    pub mtu: u16,
    /// Share of packets lost; 0.01 is 1 %
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub loss: Share,
    /// Share of packets lost in bursts of four on average, or of four milliseconds where packets are fewer
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub burst_loss: Share,
    /// Share of packets marked "congestion experienced" (ECN), or lost if they may not be
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub mark: Share,
    /// Share of packets held back for four times the delay (20 us at least), so that others overtake them
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub reorder: Share,
    /// Share of packets that arrive twice
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub duplicate: Share,
    /// Share of packets in which one bit is flipped
    #[arg(long, value_name = "SHARE", default_value = "0")]
    pub corrupt: Share,
}

impl WireOptions {
    /// Returns the seed of the run; 1 by default.
    pub fn seed(&self) -> Seed {
        Seed(self.seed.unwrap_or(1))
    }

    /// Returns whether any of the options was given, so that a run without a wire can refuse them.
    pub fn are_given(&self) -> bool {
        #[derive(clap::Parser)]
        struct Usual {
            #[command(flatten)]
            wire: WireOptions,
        }
        // Parsing an empty command line yields clap's defaults, which then need no second list here.
        *self != <Usual as clap::Parser>::parse_from([""]).wire
    }

    /// Returns the configuration of each direction. In real time the defaults are an unlimited rate and no delay.
    pub fn link(&self) -> LinkConfig {
        // In real time the machine itself has delays and a limited rate; modelled ones would be added to them.
        let usual = if self.real {
            LinkConfig { rate: None, delay: Duration::ZERO, ..LinkConfig::default() }
        } else {
            LinkConfig::default()
        };
        let rate = self.rate.map_or(usual.rate, |rate| rate.0);
        let delay = self.delay.unwrap_or(usual.delay);
        // Packets can only overtake if the hold exceeds the gap to the next packet, even on a wire without delay.
        let hold = (delay * HOLD_DELAYS).max(SHORTEST_HOLD);
        LinkConfig {
            rate,
            delay,
            overflow: Overflow::HoldBack,
            impairments: Impairments {
                loss: self.loss,
                burst_loss: Some(Burst { share: self.burst_loss, mean_length: 4.0 }),
                mark: self.mark,
                duplicate: self.duplicate,
                corrupt: self.corrupt,
                jitter: Duration::ZERO,
                reorder: Some(Reorder { share: self.reorder, hold }),
            },
            ..usual
        }
    }
}

impl WireOptions {
    /// Returns the options that a repeated run needs, by name.
    pub fn facts(&self) -> [(&'static str, String); 9] {
        let link = self.link();
        [
            ("mtu", self.mtu.to_string()),
            ("rate_bps", link.rate.map_or("unlimited".into(), |rate| rate.to_string())),
            ("delay_ns", link.delay.as_nanos().to_string()),
            ("loss", self.loss.as_f64().to_string()),
            ("burst_loss", self.burst_loss.as_f64().to_string()),
            ("mark", self.mark.as_f64().to_string()),
            ("reorder", self.reorder.as_f64().to_string()),
            ("duplicate", self.duplicate.as_f64().to_string()),
            ("corrupt", self.corrupt.as_f64().to_string()),
        ]
    }
}

/// Positions in the help: the options of the wire follow all other options, after the options of the paths' own wires.
pub(crate) const OWN_WIRES_IN_HELP: usize = 400;
const WIRE_IN_HELP: usize = 500;
/// Hold time of a reordered packet, in delays of the wire.
const HOLD_DELAYS: u32 = 4;
const SHORTEST_HOLD: Duration = Duration::from_micros(20);

/// A rate in bits per second. `None` for no limit.
///
/// ```
/// use offload_cli::options::{InvalidRate, WireRate};
///
/// assert_eq!("2.5G".parse(), Ok(WireRate(Some(2_500_000_000))));
/// assert_eq!("unlimited".parse(), Ok(WireRate(None)));
/// assert_eq!("fast".parse::<WireRate>(), Err(InvalidRate));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireRate(pub Option<u64>);

/// A text that is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a rate is a number of bits per second with k, M, G or T behind it, 1k at least, or `unlimited`")]
pub struct InvalidRate;

impl FromStr for WireRate {
    type Err = InvalidRate;
    fn from_str(text: &str) -> Result<WireRate, InvalidRate> {
        if text == "unlimited" {
            return Ok(WireRate(None));
        }
        bits_per_second(text).filter(|bits| *bits >= 1000).map(|bits| WireRate(Some(bits))).ok_or(InvalidRate)
    }
}

/// Parses a number of bytes in a human-readable form: `256MiB`, `1GB`, `4096`; at most a TiB.
///
/// # Errors
/// A message, if the text is not a size.
pub fn bytes(text: &str) -> Result<u64, String> {
    let size = text.parse::<bytesize::ByteSize>().map(|size| size.as_u64());
    size.ok().filter(|bytes| *bytes <= 1 << 40).ok_or_else(|| "a size is 256MiB, 1GB, 4096; at most 1TiB".into())
}

/// Returns a parser of a number of bytes within `range`: `16KiB`, `1400`.
///
/// ```
/// let size = offload_cli::options::size::<u16>(1..=16_384);
/// assert_eq!((size("16KiB"), size("1400")), (Ok(16_384), Ok(1400)));
/// assert_eq!(size("17KiB"), Err("a size from 1 to 16384 bytes, for example 16KiB or 16384".into()));
/// ```
pub fn size<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let (least, most) = (range.start(), range.end());
        let within = bytes(text).ok().filter(|size| range.contains(size));
        within.and_then(|size| T::try_from(size).ok()).ok_or_else(|| {
            // The example is the largest unit that expresses the limit exactly.
            let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
            let unit = units.iter().find(|(bytes, _)| most % bytes == 0);
            let example = unit.map_or(String::new(), |(bytes, unit)| format!("{}{unit} or ", most / bytes));
            let example = format!("{example}{most}");
            format!("a size from {least} to {most} bytes, for example {example}")
        })
    }
}

/// Parses a time span in a human-readable form: `5us`, `10ms`; at most a minute.
///
/// # Errors
/// A message, if the text is not a time span.
pub fn time(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).ok().filter(|span| *span <= Duration::from_secs(60));
    span.ok_or_else(|| "a time is 5us, 10ms, 1s; at most 60s".into())
}

/// Parses a number of bytes of at least 1, because zero bytes have no cost per byte.
///
/// # Errors
/// A message, if the text is not a size, or 0.
pub fn some_bytes(text: &str) -> Result<u64, String> {
    bytes(text).and_then(|size| if size > 0 { Ok(size) } else { Err("1 byte at least".into()) })
}

/// Parses a time span of at least 1 ns.
///
/// # Errors
/// A message, if the text is not a time span, or 0.
pub fn some_time(text: &str) -> Result<Duration, String> {
    time(text).and_then(|time| if time.is_zero() { Err("1ns at least".into()) } else { Ok(time) })
}

/// Parses the area of a services device, in AES-128 instances.
///
/// ```
/// assert_eq!(offload_cli::options::area("2.5"), Ok(2.5));
/// assert!(offload_cli::options::area("nan").is_err());
/// ```
pub fn area(text: &str) -> Result<f64, String> {
    let area = text.parse().ok().filter(|area| (0.1..=1e6).contains(area));
    area.ok_or_else(|| "takes a number from 0.1 to 1000000".to_owned())
}

/// Returns a parser of a choice by name; help lists all names.
///
/// ```
/// use clap::Parser;
/// use offload_cli::options::choice;
/// use offload_bench_tls::bulk::Mode;
///
/// #[derive(Parser)]
/// struct Options {
///     #[arg(long, value_parser = choice::<Mode>())]
///     mode: Mode,
/// }
///
/// assert_eq!(Options::parse_from(["demo", "--mode", "tls-nic"]).mode, Mode::TlsNic);
/// assert!(Options::try_parse_from(["demo", "--mode", "rot13"]).is_err());
/// ```
pub fn choice<C: Choice>() -> impl TypedValueParser<Value = C> {
    let about = |choice: &C| choice.about().trim_end_matches('.');
    let values = C::all().iter().map(|choice| PossibleValue::new(choice.name()).help(about(choice)));
    let unknown = "a name that is not listed";
    PossibleValuesParser::new(values).try_map(move |name| C::named(&name).ok_or(unknown))
}

/// The values of a type by name, each with a line of help.
///
/// ```
/// use clap::Parser;
/// use offload_api::TlsSuite;
/// use offload_cli::tls_options::SUITES;
///
/// #[derive(Parser)]
/// struct Options {
///     #[arg(long, value_parser = SUITES.parser())]
///     suite: TlsSuite,
/// }
///
/// let options = Options::parse_from(["demo", "--suite", "aes-256-gcm"]);
/// assert_eq!(SUITES.name(&options.suite), "aes-256-gcm");
/// assert!(Options::try_parse_from(["demo", "--suite", "rot13"]).is_err());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Names<T: 'static>(pub &'static [(&'static str, &'static str, T)]);

impl<T: Clone + PartialEq + Send + Sync> Names<T> {
    /// Returns a parser of the names; help lists all of them.
    pub fn parser(self) -> impl TypedValueParser<Value = T> {
        let values = self.0.iter().map(|(name, about, _)| PossibleValue::new(*name).help(*about));
        let value = move |name: String| self.0.iter().find(|value| value.0 == name).map(|value| value.2.clone());
        PossibleValuesParser::new(values).try_map(move |name| value(name).ok_or("a name that is not listed"))
    }

    /// Returns the name of `value`; empty if it has no name.
    pub fn name(self, value: &T) -> String {
        self.0.iter().find(|named| named.2 == *value).map_or(String::new(), |named| named.0.to_owned())
    }
}

/// Returns the name of a choice in options, tables and results.
pub fn name(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
