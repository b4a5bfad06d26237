//! `nicbench wire`.

use clap::Args;
use core::time::Duration;
use nic_sim::wire::impairment::{Burst, Impairments, Reorder, Share};
use nic_sim::wire::{Link, LinkConfig, Overflow};
use offload_base::Seed;
use offload_base::cost::Domain;
use offload_base::counters::CounterSet;
use offload_cli::options::{self, WireRate};
use offload_cli::program;
use offload_testbed::attach::{TapConfig, TapPort};
use offload_testbed::{RealTime, RealTimeConfig, Runtime, Station, connect};
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

/// The emulated wire as a box between two Linux interfaces, in real time: rate, delay, a queue that drops, losses;
/// until SIGINT or SIGTERM
///
/// Creates two TAPs. Move each into a network namespace (ip link set tapA netns one), give both addresses of one
/// network, and any two programs talk over the wire. It prints a line when both TAPs exist, and its counters at the
/// end.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct WireCommandOptions {
    /// The TAP at one end; give the option twice, once for each end
    #[arg(long = "tap", value_name = "NAME", required = true, num_args = 1)]
    taps: Vec<String>,
    /// One-way delay: 137ms
    #[arg(long, value_name = "TIME", value_parser = options::time, default_value = "0s")]
    delay: Duration,
    /// Line rate in bits per second: 10G, 400M, or `unlimited`
    #[arg(long, default_value = "unlimited")]
    rate: WireRate,
    /// Bytes of the queue in front of the line; further packets are dropped
    #[arg(long, value_name = "SIZE", value_parser = options::size::<u64>(1500..=1 << 30), default_value = "4MiB")]
    queue: u64,
    /// Largest IP packet of both TAPs
    #[arg(long, value_name = "SIZE", default_value = "1500", value_parser = options::size::<u16>(576..=9216))]
    mtu: u16,
    /// Share of packets lost; 0.01 is 1 %
    #[arg(long, value_name = "SHARE", default_value = "0")]
    loss: Share,
    /// Share of packets lost in bursts of four on average
    #[arg(long, value_name = "SHARE", default_value = "0")]
    burst_loss: Share,
    /// Share of packets marked "congestion experienced" (ECN), or lost if they may not be
    #[arg(long, value_name = "SHARE", default_value = "0")]
    mark: Share,
    /// Share of packets held back for a millisecond, so that others overtake them
    #[arg(long, value_name = "SHARE", default_value = "0")]
    reorder: Share,
    /// Share of packets that arrive twice
    #[arg(long, value_name = "SHARE", default_value = "0")]
    duplicate: Share,
    /// Share of packets in which one bit is flipped
    #[arg(long, value_name = "SHARE", default_value = "0")]
    corrupt: Share,
    /// Seed of loss, marking and reordering
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Joins the TAPs until a signal ends the program.
pub(crate) fn run(program: &str, options: &WireCommandOptions) -> ExitCode {
    let [one, other] = options.taps.as_slice() else {
        return program::fail(program, "a wire has two ends: --tap NAME --tap NAME", program::UNUSABLE);
    };
    match options.join(program, one, other) {
        Ok(counters) => {
            let moved = counters.moved().map(|(name, value)| format!("{name:>24} {value}\n"));
            program::write_out(program, &moved.collect::<String>())
        }
        Err(message) => program::fail(program, &message, program::UNUSABLE),
    }
}

impl WireCommandOptions {
    fn join(&self, program: &str, one: &str, other: &str) -> Result<CounterSet, String> {
        let failed = |error: io::Error| error.to_string();
        let signals = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let open = |name: &str| {
            let config = TapConfig { mtu: Some(self.mtu), up: true, ..TapConfig::named(name) };
            TapPort::open(config).map_err(|error| error.to_string())
        };
        let (left, right) = (open(one)?, open(other)?);
        // The signals are taken before the ports move into the wire's tasks.
        let gone = [left.gone(), right.gone()];
        // The wire has its own thread, so that signal handling does not delay frames.
        let threads = RealTime::start("wire", RealTimeConfig::default()).map_err(failed)?;
        let runtime: Arc<dyn Runtime> = Arc::new(threads.handle());
        let seed = Seed(self.seed);
        let link = |name: &str| Link::new(&self.link(), seed.derive(name));
        let station = |name: &str, port| Station::new(name, Domain::Wire, port);
        let cable = connect(&runtime, station(one, left), station(other, right), link("there"), link("back"));
        let ended = signals.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            // The line below promises that signals are handled, so the handlers are installed first.
            let _ = program::write_out(program, &format!("{one} and {other} are joined\n"));
            let [left, right] = &gone;
            tokio::select! {
                biased;
                _ = interrupt.recv() => Ok(()),
                _ = terminate.recv() => Ok(()),
                () = left.wait() => Err(io::Error::other(format!("the interface {one} is gone"))),
                () = right.wait() => Err(io::Error::other(format!("the interface {other} is gone"))),
            }
        });
        let mut counters = CounterSet::default();
        cable.count(&mut counters);
        threads.shutdown();
        ended.map(|()| counters).map_err(failed)
    }

    /// Returns the configuration of each direction.
    fn link(&self) -> LinkConfig {
        LinkConfig {
            rate: self.rate.0,
            delay: self.delay,
            queue_limit: self.queue as usize,
            overflow: Overflow::Drop,
            impairments: Impairments {
                loss: self.loss,
                burst_loss: Some(Burst { share: self.burst_loss, mean_length: 4.0 }),
                mark: self.mark,
                duplicate: self.duplicate,
                corrupt: self.corrupt,
                jitter: Duration::ZERO,
                reorder: Some(Reorder { share: self.reorder, hold: HOLD }),
            },
        }
    }
}

/// Time that a reordered packet is held back.
const HOLD: Duration = Duration::from_millis(1);
