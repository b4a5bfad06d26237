//! An emulated host on this machine's network that answers ping, serves a folder over HTTP and is a server for iperf3.
//!
//! `cargo run --release --features tap --bin tap_server -- [FOLDER] --tap nic0` prints the commands to run on this
//! machine. `https_server` serves the same folder over TLS as well.

use clap::Parser;
use offload_cli::program;
use offload_programs::iperf3;
use offload_programs::outside::{Stop, listed, told};
use offload_programs::web::Mode;
use offload_programs::web::folder::FolderOptions;
use offload_programs::web::server::Server;
use offload_testbed::identity::{self, Randomness};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// An emulated host that answers ping, serves a folder over HTTP at port 80, accepts uploads (and answers with their
/// size and SHA-256), and is an `iperf3 -s` for TCP at port 5201.
///
/// Ctrl-C or SIGTERM ends the server; pending answers have ten more seconds, or until a second Ctrl-C.
///
/// Exit status: 0; 1 if the TAP was deleted; 2 if an option is bad, or the folder or the wire's end cannot be opened.
#[derive(Debug, Parser)]
#[command(name = "tap_server", version, allow_negative_numbers = true)]
struct Options {
    /// The folder to serve
    #[arg(default_value = ".")]
    folder: PathBuf,
    #[command(flatten)]
    serving: FolderOptions,
}

fn main() -> ExitCode {
    program::main(NAME, |options| told(NAME, serve(options)))
}

/// Serves the peer at the other end of the wire until interrupted and returns the counters as text.
fn serve(options: &Options) -> Result<String, Stop> {
    let (site, mut outside) = options.serving.open(NAME, "host", &options.folder)?;
    let instructions = instructions(options, site.folder());
    let web = Server::new(site, Mode::Http, identity::server_config(Randomness::System, None))
        .with_limits(options.serving.limits.limits());
    let ended = outside.until_interrupted(
        &instructions,
        |host| Ok((web.listen(host, Mode::Http.port())?, iperf3::listen(host, iperf3::PORT)?)),
        web.close(),
    );
    let mut counters = outside.end()?;
    ended?;
    counters.add_set(&web.counters());
    Ok(listed(&counters))
}

/// Returns the commands to run at the other end.
fn instructions(options: &Options, folder: &Path) -> String {
    let address = options.serving.outside.address;
    format!(
        "{}  curl http://{address}/\n  curl -T FILE http://{address}/\n  iperf3 -c {address} --bidir\n\
         Ctrl-C ends it and prints the counters.\n",
        options.serving.instructions(folder)
    )
}

const NAME: &str = "tap_server";
