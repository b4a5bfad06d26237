//! Tells packet by packet what NICs, drivers and TLS do about a packet that is lost and one that is overtaken.
//!
//! `cargo run --release --example resync_story -- [--svg FILE]`

use clap::Parser;
use offload_api::TlsResync;
use offload_bench::program;
use offload_examples::story::course::Course;
use offload_examples::story::{picture, table};
use std::path::PathBuf;
use std::process::ExitCode;

/// One TLS connection through two emulated NICs, one packet lost and one overtaken: tells packet by packet what the
/// NICs, the drivers and the TLS layer did. In virtual time: the same options tell the same story.
///
/// Exit status: 0; 1 if the connection was lost; 2 if an option is bad or a file cannot be written.
#[derive(Debug, Parser)]
#[command(name = "resync_story", version)]
struct Options {
    /// The packet that is lost, counted from 1; 0: none
    #[arg(long, value_name = "PACKET", default_value_t = 12)]
    lose: usize,
    /// The packet that the next one overtakes; 0: none
    #[arg(long, value_name = "PACKET", default_value_t = 4)]
    hold_back: usize,
    /// How many records the server sends
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=100))]
    records: u64,
    /// How many more when the client has them all
    #[arg(long, value_name = "RECORDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=100))]
    more: u64,
    /// Content bytes of a record
    #[arg(long, value_name = "BYTES", default_value_t = 4000, value_parser = clap::value_parser!(u16).range(1..=16384))]
    record_size: u16,
    /// How the client's NIC finds its place again: asks its driver, waits for hints, or asks for headers that TLS notes
    #[arg(long, value_enum, default_value_t = Resync::DriverRequest)]
    resync: Resync,
    /// Draw it
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Resync {
    DriverRequest,
    CoreHint,
    Asynchronous,
}

fn main() -> ExitCode {
    let options: Options = match program::options(NAME) {
        Ok(options) => options,
        Err(status) => return status,
    };
    let resync = match options.resync {
        Resync::DriverRequest => TlsResync::DriverRequest,
        Resync::CoreHint => TlsResync::CoreHint,
        Resync::Asynchronous => TlsResync::Asynchronous,
    };
    let some = |packet: usize| (packet > 0).then_some(packet);
    let course = Course {
        records: options.records,
        more: options.more,
        record_size: options.record_size,
        lose: some(options.lose),
        hold_back: some(options.hold_back),
        resync,
    };
    let story = match course.run() {
        Ok(story) => story,
        Err(error) => return program::fail(NAME, &format!("the connection: {error}"), program::FAILED),
    };
    if let Some(file) = &options.svg
        && let Err(error) = std::fs::write(file, picture::of(&story))
    {
        return program::fail(NAME, &format!("{}: {error}", file.display()), program::UNUSABLE);
    }
    program::write_out(NAME, &table::of(&story))
}

const NAME: &str = "resync_story";
