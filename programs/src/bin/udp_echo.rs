//! UDP on an emulated host with a wire to the outside: an echo service, and bursts that the NIC cuts into datagrams.
//!
//! `cargo run --release --features tap --bin udp_echo -- --tap nic0` answers this machine and prints the commands to
//! run there.

use bytes::{Bytes, BytesMut};
use clap::Parser;
use core::num::NonZeroU16;
use offload_cli::options::WireOptions;
use offload_cli::program;
use offload_cli::trace_options::TraceOptions;
use offload_host_stack::UdpSocket;
use offload_programs::outside::{OutsideHost, OutsideOptions, RunFiles, Stop, listed, told};
use std::io::{self, ErrorKind};
use std::process::ExitCode;

/// UDP on an emulated host. Port 7 returns each datagram (RFC 862). To `COUNT SIZE`, port 19 answers with COUNT
/// datagrams of SIZE bytes, each beginning with its number in eight bytes, in large sends that the NIC cuts. The source
/// address of a request may be forged, so do not open this port to untrusted networks.
///
/// Exit status: 0; 1 if the TAP was deleted; 2 if an option is bad or the wire's end cannot be opened.
#[derive(Debug, Parser)]
#[command(name = "udp_echo", version, allow_negative_numbers = true)]
struct Options {
    #[command(flatten)]
    outside: OutsideOptions,
    #[command(flatten)]
    trace: TraceOptions,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    program::main(NAME, |options| told(NAME, answer(options)))
}

/// Answers the peer at the other end of the wire until interrupted and returns the counters as text.
fn answer(options: &Options) -> Result<String, Stop> {
    let files = RunFiles::new(&options.trace);
    let mut outside = OutsideHost::open(NAME, "host", &options.outside, &options.wire, &files)?;
    let ended = outside.until_interrupted(
        &instructions(options),
        |host| {
            let echo = host.spawn("echo", echo(host.stack().bind_udp(Some(ECHO_PORT))?));
            let bursts = host.spawn("bursts", bursts(host.stack().bind_udp(Some(BURST_PORT))?));
            Ok((echo, bursts))
        },
        core::future::ready(()),
    );
    let counters = outside.end()?;
    ended?;
    Ok(listed(&counters))
}

/// Returns the commands to run at the other end.
fn instructions(options: &Options) -> String {
    format!(
        "{} answer at UDP ports {ECHO_PORT} and {BURST_PORT}. At the other end, as root:\n{}then\n  \
         socat - UDP:{}:{ECHO_PORT}\nCtrl-C ends it and prints the counters.\n",
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
        // The stack refuses a segmented send of more datagrams or bytes than these limits.
        let a_send = (MAX_BYTES / usize::from(size.get())).clamp(1, MAX_DATAGRAMS);
        for first in (0..count).step_by(a_send) {
            let data = numbered(first..count.min(first + a_send), size);
            if socket.send_segmented(data, size, from).await.is_err() {
                // The peer is unreachable, or datagrams of that size do not pass.
                break;
            }
        }
    }
}

/// Parses a request: the number of datagrams and their size.
fn asked_for(text: &[u8]) -> Option<(usize, NonZeroU16)> {
    let (count, size) = core::str::from_utf8(text).ok()?.trim().split_once(' ')?;
    let (count, size): (usize, NonZeroU16) = (count.parse().ok()?, size.parse().ok()?);
    (count <= MAX_ASKED && usize::from(size.get()) >= NUMBER_BYTES).then_some((count, size))
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

/// Ignores errors that concern only one peer, so that the service goes on for the other peers.
fn may_fail(sent: io::Result<()>) -> io::Result<()> {
    sent.or_else(|error| match error.kind() {
        ErrorKind::HostUnreachable | ErrorKind::InvalidInput => Ok(()),
        _ => Err(error),
    })
}

const NAME: &str = "udp_echo";
/// Ports of RFC 862 and RFC 864.
const ECHO_PORT: u16 = 7;
const BURST_PORT: u16 = 19;
/// Limits of one send.
const MAX_DATAGRAMS: usize = 128;
const MAX_BYTES: usize = 65_000;
/// Limit of one request.
const MAX_ASKED: usize = 100_000;
const NUMBER_BYTES: usize = 8;
