//! UDP on an emulated host whose wire ends outside: an echo, and bursts that its NIC cuts into datagrams.
//!
//! `cargo run --release --features tap --example udp_echo -- --tap nic0` answers this machine, and prints what to do there.

use bytes::{Bytes, BytesMut};
use clap::Parser;
use core::num::NonZeroU16;
use nicbench::options::WireOptions;
use nicbench::program;
use offload_examples::outside::{Outside, OutsideOptions, keyed_until_interrupted, listed, stop};
use offload_host_stack::UdpSocket;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

/// UDP on an emulated host: at port 7, whatever comes is sent back (RFC 862). To `COUNT SIZE` at port 19 it answers with
/// so many datagrams of that size, the first eight bytes of each its number, as large sends that the NIC cuts. The source
/// address of a request may be forged, so do not open this port to networks with strangers.
///
/// Exit status: 0; 1 if the TAP was deleted; 2 if an option is bad or the wire's end cannot be opened.
#[derive(Debug, Parser)]
#[command(name = "udp_echo", version, allow_negative_numbers = true)]
struct Options {
    #[command(flatten)]
    outside: OutsideOptions,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    program::main(NAME, execute)
}

fn execute(options: &Options) -> ExitCode {
    match answer(options) {
        Ok(text) => program::write_out(NAME, &text),
        Err((message, status)) => program::fail(NAME, &message, status),
    }
}

/// Answers the peer at the other end of the wire until it is interrupted, and tells what was counted.
fn answer(options: &Options) -> Result<String, (String, u8)> {
    options.outside.check(&options.wire).map_err(unusable)?;
    let outside = Outside::open(&options.outside).map_err(unusable)?;
    let mut bed = outside.bed("host", &options.outside, &options.wire, None, None).map_err(unusable)?;
    let host = bed.host(0).clone();
    let ended = bed.run(async {
        let echo = host.spawn("echo", echo(host.stack().bind_udp(Some(ECHO_PORT))?));
        let bursts = host.spawn("bursts", bursts(host.stack().bind_udp(Some(BURST_PORT))?));
        // Whoever does not want to read this may want to be answered.
        let _written = program::write_out(NAME, &instructions(options));
        let interrupted = keyed_until_interrupted(&outside, &host, &options.outside).await;
        // They answer for as long as they are asked.
        let _end_with_the_host = (echo, bursts);
        interrupted
    });
    ended.map_err(stop)?;
    let mut counters = bed.counters();
    outside.count(&mut counters);
    Ok(listed(&counters))
}

fn unusable(message: impl ToString) -> (String, u8) {
    (message.to_string(), program::UNUSABLE)
}

/// What to do at the other end.
fn instructions(options: &Options) -> String {
    format!(
        "{} answer at UDP ports {ECHO_PORT} and {BURST_PORT}. At the other end, as root:\n{}then\n  \
         socat - UDP:{}:{ECHO_PORT}\nCtrl-C ends it and shows what was counted.\n",
        options.outside.host(),
        options.outside.set_up(options.wire.mtu),
        options.outside.address
    )
}

async fn echo(socket: UdpSocket) -> io::Result<()> {
    loop {
        let (data, from) = socket.recv_from().await?;
        may_fail(socket.send_to(data.freeze(), from).await)?;
    }
}

async fn bursts(socket: UdpSocket) -> io::Result<()> {
    loop {
        let (asked, from) = socket.recv_from().await?;
        let Some((count, size)) = asked_for(&asked) else { continue };
        let a_send = (MOST_BYTES / usize::from(size.get())).clamp(1, MOST_DATAGRAMS);
        for first in (0..count).step_by(a_send) {
            let data = numbered(first..count.min(first + a_send), size);
            if socket.send_segmented(data, size, from).await.is_err() {
                // No way there, or none for datagrams of that size.
                break;
            }
        }
    }
}

/// How many datagrams, and of which size.
fn asked_for(text: &[u8]) -> Option<(usize, NonZeroU16)> {
    let (count, size) = core::str::from_utf8(text).ok()?.trim().split_once(' ')?;
    let (count, size): (usize, NonZeroU16) = (count.parse().ok()?, size.parse().ok()?);
    (count <= MOST_ASKED && usize::from(size.get()) >= NUMBER_BYTES).then_some((count, size))
}

fn numbered(numbers: core::ops::Range<usize>, size: NonZeroU16) -> Bytes {
    let mut data = BytesMut::with_capacity(numbers.len() * usize::from(size.get()));
    for number in numbers {
        let end = data.len() + usize::from(size.get());
        data.extend_from_slice(format!("{number:0width$}", width = NUMBER_BYTES).as_bytes());
        data.resize(end, b'.');
    }
    data.freeze()
}

/// That one cannot be answered is nobody else's affair.
fn may_fail(sent: io::Result<()>) -> io::Result<()> {
    sent.or_else(|error| match error.kind() {
        ErrorKind::HostUnreachable | ErrorKind::InvalidInput => Ok(()),
        _ => Err(error),
    })
}

const NAME: &str = "udp_echo";
/// RFC 862, RFC 864.
const ECHO_PORT: u16 = 7;
const BURST_PORT: u16 = 19;
/// What one send may hold.
const MOST_DATAGRAMS: usize = 128;
const MOST_BYTES: usize = 65_000;
/// What one request may ask for.
const MOST_ASKED: usize = 100_000;
const NUMBER_BYTES: usize = 8;
