//! Tells packet by packet what NICs, drivers and TLS do about a packet that is lost and one that is overtaken.
//!
//! `cargo run --release --example resync_story -- [--svg FILE]`

use clap::Parser;
use core::time::Duration;
use offload_api::ResyncMode;
use offload_cli::tls_options::RESYNCS;
use offload_cli::{options, program};
use offload_demos::story::course::Course;
use offload_demos::story::{picture, table};
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
    /// How many records follow when the client has all of those
    #[arg(long, value_name = "RECORDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=100))]
    more: u64,
    /// Content bytes of a record
    #[arg(long, value_name = "SIZE", default_value = "4000", value_parser = options::size::<u16>(1..=16384))]
    record_size: u16,
    /// How the client's NIC finds its place again: asks its driver, waits for hints, or announces a question and asks it
    /// later, for which TLS notes the headers
    #[arg(long, value_parser = RESYNCS.parser(), default_value = "driver-request")]
    resync: ResyncMode,
    /// How much later than usual the NIC's question reaches its driver: 40us. Default: none, with `asynchronous` 40us, for
    /// what TLS notes is of use if the question comes after the records
    #[arg(long, value_name = "TIME", value_parser = options::time)]
    question_delay: Option<Duration>,
    /// Draw the story into this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    program::main(NAME, execute)
}

fn execute(options: &Options) -> ExitCode {
    if options.lose == options.hold_back && options.lose > 0 {
        let both = format!("--lose and --hold-back: packet {} cannot be both lost and late", options.lose);
        return program::fail(NAME, &both, program::UNUSABLE);
    }
    let usual_delay = if options.resync == ResyncMode::Asynchronous { LATE } else { Duration::ZERO };
    let some = |packet: usize| (packet > 0).then_some(packet);
    let course = Course {
        records: options.records,
        more: options.more,
        record_size: options.record_size,
        lose: some(options.lose),
        hold_back: some(options.hold_back),
        resync: options.resync,
        question_delay: options.question_delay.unwrap_or(usual_delay),
    };
    let story = match course.run() {
        Ok(story) => story,
        Err(error) => return program::fail(NAME, &format!("the connection: {error}"), program::FAILED),
    };
    if let Err(message) = course.check(&story) {
        return program::fail(NAME, &message, program::UNUSABLE);
    }
    if let Some(file) = &options.svg
        && let Err(error) = std::fs::write(file, picture::of(&story))
    {
        return program::fail(NAME, &format!("{}: {error}", file.display()), program::UNUSABLE);
    }
    program::write_out(NAME, &table::of(&story))
}

const NAME: &str = "resync_story";
/// Later than the retransmission brings the records.
const LATE: Duration = Duration::from_micros(40);
