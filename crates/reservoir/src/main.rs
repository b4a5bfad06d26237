//! `reservoir`: serves folders over HTTPS and copies between them, disk to disk, encrypted.
//!
//! - `serve`: serves a folder over TLS on kernel TCP; `emulated`: serves on an emulated host with TLS on its NIC;
//!   `copy`: copies between paths and URLs; `plan`: a copy in parts; `manual`: manual pages;
//! - `progress`: progress of a copy on a terminal or in a log; `warnings`: warnings of the library.

#![forbid(unsafe_code)]

#[path = "cli/copy.rs"]
mod copy;
#[path = "cli/emulated.rs"]
mod emulated;
#[path = "cli/manual.rs"]
mod manual;
#[path = "cli/progress.rs"]
mod progress;
#[path = "cli/serve.rs"]
mod serve;
#[path = "cli/warnings.rs"]
mod warnings;

use clap::{CommandFactory, Parser, Subcommand};
use offload_console::write_out;
use std::process::ExitCode;

/// Encrypted bulk transfer from disk to disk over HTTPS: many streams, blocks with checksums, a journal that survives kills.
///
/// On the machine that keeps the data: `reservoir serve --root /srv/data --cert cert.pem --key key.pem --tokens tokens.toml`. On the other, with the token in
/// RESERVOIR_TOKEN: `reservoir copy run-7 https://store.example.org:8443/`, and the same with --resume after a kill or a lost line.
///
/// Exit status: 0 if all is well; 1 if it failed; 2 if an option is bad; 3 if some files failed and others did not.
#[derive(Debug, Parser)]
#[command(name = "reservoir", version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeOptions),
    Copy(copy::CopyOptions),
    Plan(copy::PlanOptions),
    Manual(manual::ManualOptions),
}

fn main() -> ExitCode {
    let options = Options::parse();
    warnings::show();
    if let Command::Manual(options) = &options.command {
        return manual::run(options, Options::command());
    }
    if let Command::Serve(options) = &options.command
        && options.host.is_asked_for()
    {
        // A testbed needs its own runtime.
        return emulated::run(options);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start the runtime: {error}"), FAILED),
    };
    let code = runtime.block_on(async {
        match options.command {
            Command::Serve(options) => serve::run(options).await,
            Command::Copy(options) => copy::run(options).await,
            Command::Plan(options) => copy::plan(options).await,
            Command::Manual(_) => unreachable!("answered before"),
        }
    });
    // Blocking work is abandoned: the journal covers it.
    runtime.shutdown_background();
    code
}

/// Writes to standard output. Errors are ignored, because a server must go on without its output.
fn print(text: &str) {
    let _ = write_out(text);
}

/// Writes the results of a command to standard output, and returns the exit status.
fn show(text: &str, status: ExitCode) -> ExitCode {
    match write_out(text) {
        Ok(()) => status,
        Err(error) => fail(&format!("standard output: {error}"), FAILED),
    }
}

/// Reports an error in one line.
fn fail(message: &str, status: u8) -> ExitCode {
    offload_console::say!("reservoir: {message}");
    ExitCode::from(status)
}

/// Exit status: the command failed.
const FAILED: u8 = 1;
/// Exit status: an option is invalid, or a file cannot be used.
const UNUSABLE: u8 = 2;
/// Exit status: some files failed.
const PARTLY: u8 = 3;
