//! Shows packet by packet how NICs, drivers and TLS handle a packet that is lost and one that is overtaken.
//!
//! `cargo run --release --example resync_story -- [--svg FILE]`

use clap::Parser;
use core::time::Duration;
use offload_api::ResyncMode;
use offload_cli::tls_options::RESYNCS;
use offload_cli::{options, program};
use offload_demos::story::course::Script;
use offload_demos::story::{picture, table};
use std::path::PathBuf;
use std::process::ExitCode;

/// Sends records over one TLS connection through two emulated NICs, loses one packet and delays another, and shows
/// packet by packet how the NICs, the drivers and the TLS layer handled them. In virtual time: the same options give
/// the same story.
///
/// Exit status: 0; 1 if the connection was lost; 2 if an option is bad or a file cannot be written.
#[derive(Debug, Parser)]
#[command(name = "resync_story", version)]
struct Options {
    /// The packet to lose, counted from 1; 0 for no loss
    #[arg(long, value_name = "PACKET", default_value_t = 12)]
    lose: usize,
    /// The packet to delay, so that the next one overtakes it; 0 for no delay
    #[arg(long, value_name = "PACKET", default_value_t = 4)]
    hold_back: usize,
    /// Number of records that the server sends
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=100))]
    records: u64,
    /// Number of records that follow after the client has received all of them
    #[arg(long, value_name = "RECORDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=100))]
    more: u64,
    /// Content bytes of a record
    #[arg(long, value_name = "SIZE", default_value = "4000", value_parser = options::size::<u16>(1..=16384))]
    record_size: u16,
    /// Resynchronization of the client's NIC: the NIC asks its driver, waits for hints, or announces a question and
    /// asks later, so that TLS notes record headers meanwhile
    #[arg(long, value_parser = RESYNCS.parser(), default_value = "driver-request")]
    resync: ResyncMode,
    /// Additional delay of the NIC's question to its driver: 40us. Default: 0, or 40us with `asynchronous`, because
    /// noted headers are useful only if the question comes after the records
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
    // The wire handles each packet once, so one packet cannot have both fates.
    if options.lose == options.hold_back && options.lose > 0 {
        let both = format!("--lose and --hold-back: packet {} cannot be both lost and late", options.lose);
        return program::fail(NAME, &both, program::UNUSABLE);
    }
    // Only a question that arrives after the records shows the use of noted headers.
    let usual_delay = if options.resync == ResyncMode::Asynchronous { LATE } else { Duration::ZERO };
    let some = |packet: usize| (packet > 0).then_some(packet);
    let course = Script {
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
        && let Err(error) = std::fs::write(file, picture::draw_story(&story))
    {
        return program::fail(NAME, &format!("{}: {error}", file.display()), program::UNUSABLE);
    }
    program::write_out(NAME, &table::format_story(&story))
}

const NAME: &str = "resync_story";
/// A delay after which the retransmission has delivered the records.
const LATE: Duration = Duration::from_micros(40);
