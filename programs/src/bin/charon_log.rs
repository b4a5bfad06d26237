//! Mirrors the SAs of a strongSwan without ESP in its kernel. Plugin `kernel-libipsec` keeps the SAs in the daemon, so
//! this agent reads them from the daemon's log.
//!
//! `cargo run --release --bin charon_log -- LOG SOCKET 10.77.0.1 10.77.0.2` beside a program with `--mirror SOCKET`.

use clap::Parser;
use core::net::IpAddr;
use core::time::Duration;
use linux_mirror::sa::{FrameDecoder, KernelSaId, KernelSaUse, Message, MirroredPolicy, MirroredSa, SaChange, encode};
use offload_api::{
    Action, Direction, EspKey, EspMode, EspSuite, Prefix, SaParams, Selector, Template, UdpEncapsulation,
};
use offload_cli::program;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Reads SAs from strongSwan's log and sends them to a mirror. All traffic between both addresses is protected by
/// AES-256-GCM tunnels in UDP; other traffic is dropped. For tests only: the log group `chd` must be at level 4, and
/// the log then contains keys.
///
/// Exit status: 0 if the mirror closed the connection; 1 if the log cannot be read or nobody listens at the socket; 2
/// if an option is bad.
#[derive(Debug, Parser)]
#[command(name = "charon_log", version)]
struct Options {
    /// The log of the charon that negotiates for LOCAL
    log: PathBuf,
    /// The mirror's socket
    socket: PathBuf,
    /// The emulated host's address
    local: IpAddr,
    /// The peer's address
    remote: IpAddr,
}

fn main() -> ExitCode {
    program::main(NAME, |options: &Options| match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => program::fail(NAME, &error.to_string(), program::FAILED),
    })
}

fn run(options: &Options) -> io::Result<()> {
    let policies = policies(options.local, options.remote);
    let (mut log, mut stream) =
        (opened(&options.log, |path| File::open(path))?, opened(&options.socket, |path| UnixStream::connect(path))?);
    let mut reading = LogReader::default();
    stream.set_read_timeout(Some(BETWEEN_LOOKS))?;
    let (mut line, mut decoder, mut bytes) = (Vec::new(), FrameDecoder::new(), [0; 4096]);
    let snapshot = |reading: &LogReader| {
        let all = reading.sas.values().map(|sa| SaChange::Sa(Box::new(sa.clone())));
        let defaults = SaChange::Defaults { receive: false, transmit: false };
        let policies = policies.iter().cloned().map(SaChange::Policy);
        let begin = [SaChange::SnapshotBegins, defaults].into_iter().chain(all).chain(policies);
        let changes = begin.chain([SaChange::SnapshotEnds]).map(Message::Change);
        [Message::hello()].into_iter().chain(changes).collect::<Vec<_>>()
    };
    let mut say = snapshot(&reading);
    loop {
        // Changes in the log must be sent before the answer to a sync request: the answer confirms all changes that the
        // log had by then.
        let mut more = Vec::new();
        log.read_to_end(&mut more)?;
        for byte in more {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            let changes = reading.read(&String::from_utf8_lossy(&line));
            let at = say.iter().position(|message| matches!(message, Message::Synced(_))).unwrap_or(say.len());
            say.splice(at..at, changes.into_iter().map(Message::Change));
            line.clear();
        }
        for message in say.drain(..) {
            stream.write_all(&encode(&message))?;
        }
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(length) => decoder.decode(&bytes[..length], |message| match message {
                Ok(Message::Sync(number)) => say.push(Message::Synced(number)),
                Ok(Message::Ask(_)) => say = snapshot(&reading),
                _ => {}
            }),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the policies that send all traffic between both addresses through a tunnel.
fn policies(local: IpAddr, remote: IpAddr) -> [MirroredPolicy; 2] {
    let both = [(1, Direction::Transmit, local, remote), (2, Direction::Receive, remote, local)];
    both.map(|(index, direction, from, to)| {
        let ends = Selector { source: Some(Prefix::host(from)), destination: Some(Prefix::host(to)), ..Selector::ANY };
        let action = Action::Protect(Template::tunnel(from, to, REQID));
        MirroredPolicy { index, direction, selector: ends, priority: 1, action: Ok(action) }
    })
}

/// The state of the log's reader.
#[derive(Default)]
struct LogReader {
    /// Exchanges by charon's thread name, because lines of several threads are interleaved.
    threads: HashMap<String, ChildExchange>,
    /// The SAs of each CHILD_SA.
    pairs: HashMap<String, Vec<KernelSaId>>,
    /// Transmit SAs that are not used until the peer deletes their predecessors.
    registered: HashMap<KernelSaId, MirroredSa>,
    sas: BTreeMap<KernelSaId, MirroredSa>,
}

/// The exchange that a thread of charon works on.
#[derive(Default)]
struct ChildExchange {
    /// Whether this end is the initiator.
    asked: bool,
    /// The initiator's key and the responder's key.
    keys: [Vec<u8>; 2],
    /// The index in `keys` of the key that is being read from a hexadecimal dump. `None` outside a dump.
    dumped: Option<usize>,
    /// Whether the next SPI belongs to a receive SA; and, below, whether that SA is installed later.
    receives: bool,
    registers: bool,
    /// SAs added since the last CHILD_SA was established.
    added: Vec<KernelSaId>,
}

impl LogReader {
    /// Parses a line of the log and returns the changes that result.
    fn read(&mut self, line: &str) -> Vec<SaChange> {
        let head_and_text = line.split_once(']').and_then(|(head, text)| Some((head.split_once('[')?.0, text)));
        let Some((thread, text)) = head_and_text else { return Vec::new() };
        let exchange = self.threads.entry(thread.to_owned()).or_default();
        let words: Vec<&str> = text.split_whitespace().collect();
        match &words[..] {
            ["parsed", _, kind @ ("request" | "response"), ..] => exchange.asked = *kind == "response",
            ["encryption", who @ ("initiator" | "responder"), "key", ..] => {
                let which = usize::from(*who == "responder");
                exchange.keys[which].clear();
                exchange.dumped = Some(which);
            }
            [what @ ("adding" | "registering"), way, "ESP", "SA"] => {
                exchange.dumped = None;
                (exchange.receives, exchange.registers) = (*way == "inbound", *what == "registering");
            }
            ["SPI", spi, "src", source, "dst", destination] => {
                let spi = spi.trim_start_matches("0x").trim_end_matches(',');
                let (spi, source, destination) = (u32::from_str_radix(spi, 16), source.parse(), destination.parse());
                let (Ok(spi), Ok(source), Ok(destination)) = (spi, source, destination) else { return Vec::new() };
                return self.add(thread, KernelSaId { source, destination, spi }).into_iter().collect();
            }
            ["CHILD_SA", pair, "established", ..] | ["inbound", "CHILD_SA", pair, "established", ..] => {
                let added = core::mem::take(&mut exchange.added);
                self.pairs.insert((*pair).to_owned(), added);
            }
            // Both SAs of a CHILD_SA end together.
            ["CHILD_SA", pair, "state", "change:", _, "=>", "DESTROYING"] => {
                let gone = self.pairs.remove(*pair).unwrap_or_default();
                gone.iter().for_each(|name| drop(self.sas.remove(name)));
                return gone.into_iter().map(SaChange::SaGone).collect();
            }
            [place, bytes @ ..] if place.ends_with(':') && exchange.dumped.is_some() => {
                // A dump line has at most 16 bytes in hexadecimal, then the same bytes as text.
                let key = &mut exchange.keys[exchange.dumped.unwrap_or(0)];
                let missing = MATERIAL.saturating_sub(key.len()).min(16);
                key.extend(bytes.iter().take(missing).map_while(|byte| u8::from_str_radix(byte, 16).ok()));
            }
            _ => {}
        }
        Vec::new()
    }

    fn add(&mut self, thread: &str, name: KernelSaId) -> Option<SaChange> {
        let exchange = self.threads.get_mut(thread)?;
        if let Some(sa) = self.registered.remove(&name) {
            self.sas.insert(name, sa.clone());
            return Some(SaChange::Sa(Box::new(sa)));
        }
        // The initiator sends with the initiator's key and receives with the responder's.
        let of_initiator = exchange.asked != exchange.receives;
        let key = EspKey::new(EspSuite::Aes256Gcm, &exchange.keys[usize::from(!of_initiator)])?;
        let direction = if exchange.receives { Direction::Receive } else { Direction::Transmit };
        let params = SaParams {
            mode: EspMode::Tunnel,
            reqid: REQID,
            encapsulation: Some(UdpEncapsulation { source_port: PORT, destination_port: PORT }),
            ..SaParams::new(direction, name.spi, name.source, name.destination, key)
        };
        exchange.added.push(name);
        let sa = MirroredSa { params, direction: Some(direction), sent: 0, received: 0, used: KernelSaUse::default() };
        // A registered SA is used for sending only after the peer has deleted its predecessor.
        if exchange.registers {
            self.registered.insert(name, sa);
            return None;
        }
        self.sas.insert(name, sa.clone());
        Some(SaChange::Sa(Box::new(sa)))
    }
}

const REQID: u32 = 1;
/// UDP port of IKE and of ESP in UDP.
const PORT: u16 = 4500;
/// Bytes of an AES-256-GCM key with its salt.
const MATERIAL: usize = 36;
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Opens a file or a socket. Errors contain the path.
fn opened<T>(path: &Path, open: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    open(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

const NAME: &str = "charon_log";
