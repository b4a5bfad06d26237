//! An emulated host on this machine's network: it answers ping, serves a folder over HTTP, and is a server for iperf3.
//!
//! `cargo run --release --features tap --example tap_server -- [FOLDER] --tap nic0` prints what to do on this machine.
//! `https_server` serves the same folder over TLS as well.

use clap::Parser;
use nicbench::options::WireOptions;
use nicbench::program;
use nicbench::trace_options::{TraceFile, TraceOptions};
use offload_examples::iperf3;
use offload_examples::outside::{Outside, OutsideOptions, keyed_until_interrupted, listed, stop, take_leave};
use offload_examples::web::Mode;
use offload_examples::web::comparison::tokio_pool;
use offload_examples::web::limits::LimitOptions;
use offload_examples::web::server::Server;
use offload_examples::web::site::Site;
use offload_testbed::identity::{self, Randomness};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// An emulated host that answers ping, serves a folder over HTTP at port 80, takes what is sent there (and answers with its
/// size and SHA-256), and does at port 5201 what `iperf3 -s` does, for TCP.
///
/// Ctrl-C or SIGTERM ends it; answers under way have ten more seconds, or until a second Ctrl-C.
///
/// Exit status: 0; 1 if the TAP was deleted; 2 if an option is bad, or the folder or the wire's end cannot be opened.
#[derive(Debug, Parser)]
#[command(name = "tap_server", version, allow_negative_numbers = true)]
struct Options {
    /// What to serve
    #[arg(default_value = ".")]
    folder: PathBuf,
    #[command(flatten)]
    outside: OutsideOptions,
    #[command(flatten)]
    limits: LimitOptions,
    #[command(flatten)]
    trace: TraceOptions,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    program::main(NAME, execute)
}

fn execute(options: &Options) -> ExitCode {
    match serve(options) {
        Ok(text) => program::write_out(NAME, &text),
        Err((message, status)) => program::fail(NAME, &message, status),
    }
}

/// Serves the peer at the other end of the wire until it is interrupted, and tells what was counted.
fn serve(options: &Options) -> Result<String, (String, u8)> {
    options.outside.check(&options.wire).map_err(unusable)?;
    let site = Site::new(&options.folder, tokio_pool())
        .map_err(|error| unusable(format!("{}: {error}", options.folder.display())))?;
    let outside = Outside::open(&options.outside).map_err(unusable)?;
    let trace = options.trace.begin().map_err(unusable)?;
    let tracer = trace.as_ref().map(TraceFile::tracer);
    let mut bed = outside.bed("host", &options.outside, &options.wire, None, tracer).map_err(unusable)?;
    let host = bed.host(0).clone();
    let web = Server::new(site.clone(), Mode::Http, identity::server_config(Randomness::System, None))
        .with_limits(options.limits.limits());
    let ended = bed.run(async {
        let listening = (web.listen(&host, Mode::Http.port())?, iperf3::listen(&host, iperf3::PORT)?);
        // Whoever does not want to read this may want to be served.
        let _written = program::write_out(NAME, &instructions(options, site.folder()));
        keyed_until_interrupted(&outside, &host, &options.outside).await?;
        let _end_with_the_host = listening;
        take_leave(&host, [web.close()]).await
    });
    ended.map_err(stop)?;
    let mut counters = bed.counters();
    outside.count(&mut counters);
    counters.add_set(&web.counters());
    if let Some(trace) = trace {
        eprintln!("{NAME}: {}", trace.end().map_err(unusable)?);
    }
    Ok(listed(&counters))
}

fn unusable(message: impl ToString) -> (String, u8) {
    (message.to_string(), program::UNUSABLE)
}

/// What to do at the other end.
fn instructions(options: &Options, folder: &Path) -> String {
    let address = options.outside.address;
    format!(
        "{} serve {}. At the other end, as root:\n{}then\n  ping {address}\n  curl http://{address}/\n  \
         curl -T FILE http://{address}/\n  iperf3 -c {address} --bidir\nCtrl-C ends it and shows what was counted.\n",
        options.outside.host(),
        folder.display(),
        options.outside.set_up(options.wire.mtu)
    )
}

const NAME: &str = "tap_server";
