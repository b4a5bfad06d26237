//! `nicbench extcap`: a run that Wireshark captures live.
//!
//! Wireshark asks a program in its extcap folder for interfaces, link types and options, and lets the program write
//! packets into a fifo; the contract is in its developers' guide ("Extcap: Developer Guide", in `doc/extcap.adoc`).
//! Each interface here is a transfer over two emulated NICs. The capture includes the secrets of TLS and QUIC.

use clap::{Args, ValueEnum};
use core::fmt::Write;
use nic_sim::NicConfig;
use offload_bench::quic::{self, QuicBulk};
use offload_bench_tls::bulk::{Bulk, BulkError, Mode};
use offload_bench_tls::observers::Observers;
use offload_bench_tls::payload::Payload;
use offload_cli::nic_options::NicOptions;
use offload_cli::options::{self, WireOptions, name};
use offload_cli::program;
use offload_testbed::Capture;
use offload_testbed::bed::ClockKind;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Lets Wireshark capture a run live, with its secrets: the interface of a program in Wireshark's extcap folder
///
/// Put a script into that folder (Wireshark: Help, About, Folders) that runs `nicbench extcap "$@"`; then its
/// interfaces are in Wireshark's list. Without Wireshark's list: mkfifo wire; nicbench extcap --capture
/// --extcap-interface nicbench-tls-nic --fifo wire & tshark -r - < wire
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct ExtcapOptions {
    /// List the interfaces
    #[arg(long)]
    extcap_interfaces: bool,
    /// The version of the calling program; ignored
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,
    /// The interface to use
    #[arg(long, value_enum, value_name = "NAME")]
    extcap_interface: Option<ExtcapInterface>,
    /// List the interface's link types
    #[arg(long)]
    extcap_dlts: bool,
    /// List the interface's options
    #[arg(long)]
    extcap_config: bool,
    /// Run, and write the traffic of the server's NIC into the fifo
    #[arg(long, requires = "fifo")]
    capture: bool,
    /// The file or fifo for packets and secrets (pcapng)
    #[arg(long, value_name = "FIFO")]
    fifo: Option<PathBuf>,
    /// A capture filter; must be empty, because filters are not supported
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,
    /// Bytes to send
    #[arg(long, value_parser = options::bytes, default_value = "1MiB")]
    size: u64,
    #[command(flatten)]
    nic: NicOptions,
    #[command(flatten)]
    wire: WireOptions,
}

/// The interfaces of the capture.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExtcapInterface {
    #[value(name = "nicbench-tcp")]
    Tcp,
    #[value(name = "nicbench-tls-cpu")]
    TlsCpu,
    #[value(name = "nicbench-tls-nic")]
    TlsNic,
    #[value(name = "nicbench-quic-nic")]
    QuicNic,
}

impl ExtcapInterface {
    fn shown(self) -> &'static str {
        match self {
            ExtcapInterface::Tcp => "nicbench: plain TCP",
            ExtcapInterface::TlsCpu => "nicbench: TLS by the hosts",
            ExtcapInterface::TlsNic => "nicbench: TLS by emulated NICs",
            ExtcapInterface::QuicNic => "nicbench: QUIC by emulated NICs",
        }
    }
}

pub(crate) fn run(options: &ExtcapOptions) -> ExitCode {
    match answer(options) {
        Ok(text) => program::write_out(NAME, &text),
        Err((message, status)) => program::fail(NAME, &message, status),
    }
}

fn answer(options: &ExtcapOptions) -> Result<String, (String, u8)> {
    let unusable = |message: &str| (message.to_owned(), program::UNUSABLE);
    // Wireshark calls the program once for each question; the list of interfaces needs no interface.
    if options.extcap_interfaces {
        return Ok(interfaces());
    }
    if options.extcap_capture_filter.as_ref().is_some_and(|filter| !filter.is_empty()) {
        return Err(unusable("there are no capture filters: use a display filter"));
    }
    let interface = options.extcap_interface.ok_or_else(|| unusable("--extcap-interface is missing: name one"))?;
    match &options.fifo {
        Some(fifo) if options.capture => capture(options, interface, fifo).map(|()| String::new()),
        _ if options.extcap_dlts => Ok("dlt {number=1}{name=EN10MB}{display=Ethernet}\n".into()),
        _ if options.extcap_config => Ok(CONFIG.into()),
        _ => Ok(String::new()),
    }
}

fn interfaces() -> String {
    let mut text = format!("extcap {{version={}}}{{display=nicbench}}\n", env!("CARGO_PKG_VERSION"));
    for interface in ExtcapInterface::value_variants() {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "interface {{value={}}}{{display={}}}", name(*interface), interface.shown());
    }
    text
}

fn capture(options: &ExtcapOptions, interface: ExtcapInterface, fifo: &Path) -> Result<(), (String, u8)> {
    let about = |error: io::Error| (format!("{}: {error}", fifo.display()), program::UNUSABLE);
    // The capture is not buffered, so that an observer sees each frame as it passes.
    let capture = Capture::new(File::options().write(true).open(fifo).map_err(about)?).map_err(about)?;
    let (seed, wire) = (options.wire.seed(), &options.wire);
    let payload = Payload::seeded(seed, options.size);
    let clock = if wire.real { ClockKind::Real } else { ClockKind::Virtual };
    let nic = |usual: NicConfig| options.nic.apply(NicConfig { mtu: wire.mtu, ..usual });
    let bulk = |mode| {
        let usual = Bulk::new(mode, payload.clone());
        let observers = Observers { capture: Some(capture.clone()), ..Observers::default() };
        match (Bulk { clock, seed, link: wire.link(), observers, nic: nic(usual.nic.clone()), ..usual }).run() {
            // The reader has closed the fifo, which ends the run without an error.
            Err(BulkError::Capture(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            run => run.map(drop).map_err(|error| error.to_string()),
        }
    };
    let ran = match interface {
        ExtcapInterface::Tcp => bulk(Mode::Tcp),
        ExtcapInterface::TlsCpu => bulk(Mode::TlsCpu),
        ExtcapInterface::TlsNic => bulk(Mode::TlsNic),
        ExtcapInterface::QuicNic => {
            let usual = QuicBulk::new(quic::QuicMode::QuicNic, payload.clone());
            let observers = Observers { capture: Some(capture.clone()), ..Observers::default() };
            let run =
                QuicBulk { clock, seed, link: wire.link(), observers, nic: nic(usual.nic.clone()), ..usual }.run();
            run.map(drop).map_err(|error| error.to_string())
        }
    };
    ran.map_err(|message| (message, program::FAILED))
}

/// Options that Wireshark shows to its user.
const CONFIG: &str = "\
arg {number=0}{call=--size}{display=Bytes to send}{type=string}{default=1MiB}{tooltip=1MiB, 64KiB, 1000}
arg {number=1}{call=--loss}{display=Share of packets lost}{type=double}{range=0,1}{default=0}
arg {number=2}{call=--reorder}{display=Share of packets that others overtake}{type=double}{range=0,1}{default=0}
arg {number=3}{call=--seed}{display=Seed of everything random}{type=unsigned}{default=1}
arg {number=4}{call=--real}{display=Real time}{type=boolflag}{default=false}
";

const NAME: &str = "nicbench";
