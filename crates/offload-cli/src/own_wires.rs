//! Options that give each path of a connection its own wire.

use crate::options::{OWN_WIRES_IN_HELP, WireOptions, WireRate, time};
use clap::Args;
use core::fmt::Display;
use core::str::FromStr;
use core::time::Duration;
use nic_sim::wire::impairment::Share;
use nic_sim::wire::{LinkConfig, Overflow};

/// Separate wires for the paths of a connection, and their differences.
///
/// ```
/// use clap::Parser;
/// use offload_cli::{options::WireOptions, own_wires::OwnWires};
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     wire: WireOptions,
///     #[command(flatten)]
///     own: OwnWires,
/// }
///
/// let options = Options::parse_from(["demo", "--delay-on", "1=40ms", "--cut", "0@20ms"]);
/// let wires = options.own.links(2, &options.wire)?;
/// assert_eq!((wires.len(), wires[1].delay.as_millis()), (2, 40));
/// assert!(options.own.links(1, &options.wire).is_err(), "there is no wire 1");
/// # Ok::<(), String>(())
/// ```
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_display_order = OWN_WIRES_IN_HELP)]
pub struct OwnWires {
    /// A separate wire for each path, at most three: the first for IPv4, the second for IPv6, the third for link-local
    /// addresses. The four options below imply this
    #[arg(long)]
    pub own_wires: bool,
    /// The rate of one wire: 1=10G
    #[arg(long, value_name = "WIRE=RATE", value_parser = on_wire::<WireRate>)]
    pub rate_on: Vec<(usize, WireRate)>,
    /// The delay of one wire: 1=40ms
    #[arg(long, value_name = "WIRE=TIME", value_parser = delay_on_wire)]
    pub delay_on: Vec<(usize, Duration)>,
    /// The share of packets lost on one wire: 1=0.01
    #[arg(long, value_name = "WIRE=SHARE", value_parser = on_wire::<Share>)]
    pub loss_on: Vec<(usize, Share)>,
    /// Cut one wire this long after the start of the transfer: 1@20ms
    #[arg(long, value_name = "WIRE@TIME", value_parser = time_of_cut)]
    pub cut: Vec<(usize, Duration)>,
}

impl OwnWires {
    /// Returns a wire for each of `paths` paths, or no wires if the paths share one. Each wire has a switch in front,
    /// which queues a round trip's bytes and drops the rest. A wire that held its sender back would delay the other
    /// paths too.
    ///
    /// # Errors
    /// A message, if there are fewer addresses than paths, or an option names a missing wire.
    pub fn links(&self, paths: u32, wire: &WireOptions) -> Result<Vec<LinkConfig>, String> {
        if *self == OwnWires::default() {
            return Ok(Vec::new());
        }
        // A wire is chosen by the kind of the destination address, so there are no more wires than kinds.
        let paths = paths as usize;
        if paths > WIRES_MAX {
            return Err(format!("{paths} paths cannot have a wire each: at most {WIRES_MAX} wires join two hosts"));
        }
        let delays = self.delay_on.iter().chain(&self.cut).map(|of| of.0);
        let named = self.rate_on.iter().map(|of| of.0).chain(self.loss_on.iter().map(|of| of.0)).chain(delays);
        if let Some(beyond) = named.filter(|wire| *wire >= paths).max() {
            return Err(format!("there is no wire {beyond} (the first is 0): ask for --paths {}", beyond + 1));
        }
        let mut links = vec![wire.link(); paths];
        self.rate_on.iter().for_each(|(wire, rate)| links[*wire].rate = rate.0);
        self.delay_on.iter().for_each(|(wire, delay)| links[*wire].delay = *delay);
        self.loss_on.iter().for_each(|(wire, loss)| links[*wire].impairments.loss = *loss);
        // The queue must hold a round trip, or a single flow could not fill the wire.
        for link in &mut links {
            let round_trip = 2.0 * link.delay.as_secs_f64() * link.rate.unwrap_or_default() as f64 / 8.0;
            (link.overflow, link.queue_limit) = (Overflow::Drop, link.queue_limit.max(round_trip as usize));
        }
        Ok(links)
    }

    /// Returns the options that a repeated run needs, by name.
    pub fn fact(&self) -> (&'static str, String) {
        ("own_wires", if *self == OwnWires::default() { "false".into() } else { format!("{self:?}") })
    }
}

fn on_wire<T: FromStr<Err: Display>>(text: &str) -> Result<(usize, T), String> {
    of_wire(text, '=', |value| value.parse::<T>().map_err(|error| error.to_string()))
}

fn delay_on_wire(text: &str) -> Result<(usize, Duration), String> {
    of_wire(text, '=', time)
}

fn time_of_cut(text: &str) -> Result<(usize, Duration), String> {
    of_wire(text, '@', time)
}

fn of_wire<T>(text: &str, between: char, read: impl Fn(&str) -> Result<T, String>) -> Result<(usize, T), String> {
    let parts = text.split_once(between).and_then(|(wire, value)| Some((wire.parse().ok()?, value)));
    let (wire, value) = parts
        .filter(|(wire, _)| *wire < WIRES_MAX)
        .ok_or_else(|| format!("name the wire, from 0 to {}, in front of the value: 1{between}VALUE", WIRES_MAX - 1))?;
    Ok((wire, read(value)?))
}

/// Maximum number of wires between two hosts: one for each kind of address.
const WIRES_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_its_wire() {
        assert_eq!(on_wire::<WireRate>("1=10G"), Ok((1, WireRate(Some(10_000_000_000)))));
        assert_eq!(time_of_cut("0@20ms"), Ok((0, Duration::from_millis(20))));
        for bad in ["10G", "3=10G", "=10G", "1@10G", "1=", "x=10G"] {
            on_wire::<WireRate>(bad).expect_err(bad);
        }
    }
}
