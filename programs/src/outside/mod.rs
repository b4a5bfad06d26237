//! An emulated host in real time with a wire that ends outside the emulation: at a TAP of this machine, or at a QEMU network
//! card.
//!
//! `serving`: common work of all programs with such a host; `mirroring`: SAs from the keying daemon of a Linux machine;
//! `tcp`: options of TCP.

mod mirroring;
mod serving;
mod tcp;

pub use serving::{OutsideHost, RunFiles, Stop, begin_capture, kernel_until_interrupted, told, unusable};

use clap::Args;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use ipsec::{KeyedDevice, SecureDevice};
use ktls_offload::tls_stat;
use mirroring::MirrorOffload;
use nic_sim::wire::Port;
use nic_sim::{Delays, NicConfig};
use offload_api::Direction;
use offload_base::counters::CounterSet;
use offload_bench::keys;
use offload_cli::options::WireOptions;
use offload_cli::trace_options::TraceOptions;
use offload_console::say;
use offload_host_stack::Ipv6Config;
use offload_testbed::attach::{DgramPort, End, Gate, KeyingFront};
use offload_testbed::bed::{BedHost, Builder, ClockKind};
use offload_testbed::{Capture, Testbed, Tracer};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tcp::TcpOptions;

/// The end of the wire, and the addresses at both ends.
#[derive(Args, Clone, Debug)]
pub struct OutsideOptions {
    /// End the wire at this TAP, which is created if absent
    #[arg(long, value_name = "NAME", group = "end")]
    pub tap: Option<String>,
    /// End the wire at a QEMU `-netdev dgram`: the socket of this end and the socket of the other end
    #[arg(long, value_names = ["OURS", "THEIRS"], num_args = 2, group = "end")]
    pub dgram: Vec<PathBuf>,
    /// End the wire at a QEMU `-netdev stream`, which connects to this socket
    #[arg(long, value_name = "PATH", group = "end")]
    pub stream: Option<PathBuf>,
    /// Address of the emulated host
    #[arg(long, default_value = "10.77.0.1")]
    pub address: Ipv4Addr,
    /// Address that the printed instructions give to the other end
    #[arg(long, default_value = "10.77.0.2")]
    pub peer: Ipv4Addr,
    /// IPv6 address of the emulated host, in addition to the IPv4 one
    #[arg(long, value_name = "ADDRESS", default_value = "fd77::1")]
    pub address6: Ipv6Addr,
    /// IPv6 address that the printed instructions give to the other end
    #[arg(long, value_name = "PEER", default_value = "fd77::2")]
    pub peer6: Ipv6Addr,
    /// Next hop of the emulated host to other IPv4 networks
    #[arg(long, value_name = "ADDRESS", requires = "end")]
    pub gateway: Option<Ipv4Addr>,
    /// Next hop of the emulated host to other IPv6 networks
    #[arg(long, value_name = "ADDRESS", requires = "end", conflicts_with = "autoconf")]
    pub gateway6: Option<Ipv6Addr>,
    /// Derive the emulated host's IPv6 addresses from router advertisements, and check each for duplicates before use
    #[arg(long, requires = "end", conflicts_with = "address6")]
    pub autoconf: bool,
    /// Protect the packets of the emulated host with ESP, by SAs and policies in the syntax of `ip xfrm`
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// The store of the numbers of ESP packets.
    #[command(flatten)]
    pub numbers: NumberOptions,
    /// At each SIGHUP, read this file and apply its changes to SAs and policies: `state rekey`, `state delete` and the
    /// like. Not for https_client, which ends by itself
    #[arg(long, value_name = "FILE", requires = "keys")]
    pub key_changes: Option<PathBuf>,
    /// Take SAs and policies from a Linux machine with a keying daemon that negotiates for the emulated host: `linux-mirror
    /// sa` there sends them to this socket, which only this user may open. Not for programs that end by themselves
    #[arg(long, value_name = "SOCKET", conflicts_with = "keys")]
    pub mirror: Option<PathBuf>,
    /// The network card of that Linux machine, at a QEMU `-netdev dgram`: the socket of this end and the socket of the
    /// other end. The card has the emulated host's addresses and receives IKE; only IKE leaves it
    #[arg(long, value_names = ["OURS", "THEIRS"], num_args = 2, requires = "mirror")]
    pub daemon: Vec<PathBuf>,
    /// The NIC's share of the work for mirrored SAs
    #[arg(long, value_name = "KIND", default_value = "packet", requires = "mirror")]
    pub mirror_offload: MirrorOffload,
    /// Whether mirrored SAs belong to the switch of the host's NIC instead of the host.
    #[arg(skip)]
    pub lends: bool,
    #[command(flatten)]
    tcp: TcpOptions,
}

/// The store of the numbers of ESP packets, so that no key is used with the same number twice.
#[derive(Args, Clone, Debug, Default)]
pub struct NumberOptions {
    /// Folder for the used numbers of keys. Numbers are stored by key: the name of the key file does not matter.
    /// [default: $XDG_STATE_HOME/nic-offload; else /var/lib/nic-offload for root, ~/.local/state/nic-offload for
    /// others]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Declare that the keys of --keys were never used. Otherwise keys older than the folder of --state, and without an entry there, are refused
    #[arg(long, requires = "keys")]
    pub new_keys: bool,
}

impl NumberOptions {
    fn folder(&self) -> Result<PathBuf, String> {
        self.state.clone().map_or_else(keys::default_store, Ok)
    }
}

/// The end of a wire as one word: `tap:NAME`, `dgram:OURS,THEIRS` or `stream:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndAt {
    /// A TAP of this machine.
    Tap(String),
    /// A QEMU `-netdev dgram`, or another program of this project: our socket and the peer's.
    Dgram([PathBuf; 2]),
    /// A QEMU `-netdev stream`.
    Stream(PathBuf),
}

impl FromStr for EndAt {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<EndAt, &'static str> {
        let unknown = "the end of a wire is tap:NAME, dgram:OURS,THEIRS or stream:PATH";
        let (kind, at) = text.split_once(':').filter(|(_, at)| !at.is_empty()).ok_or(unknown)?;
        match (kind, at.split_once(',')) {
            ("tap", _) => Ok(EndAt::Tap(at.into())),
            ("dgram", Some((ours, theirs))) => Ok(EndAt::Dgram([ours.into(), theirs.into()])),
            ("stream", _) => Ok(EndAt::Stream(at.into())),
            _ => Err(unknown),
        }
    }
}

impl OutsideOptions {
    /// Returns whether any end was requested.
    pub fn is_asked_for(&self) -> bool {
        self.tap.is_some() || self.stream.is_some() || !self.dgram.is_empty()
    }

    /// Returns the default options for a wire with this end.
    pub fn ending_at(end: &EndAt) -> OutsideOptions {
        #[derive(clap::Parser)]
        struct DefaultOutside {
            #[command(flatten)]
            outside: OutsideOptions,
        }
        let usual = <DefaultOutside as clap::Parser>::parse_from([""]).outside;
        match end.clone() {
            EndAt::Tap(name) => OutsideOptions { tap: Some(name), ..usual },
            EndAt::Dgram([ours, theirs]) => OutsideOptions { dgram: vec![ours, theirs], ..usual },
            EndAt::Stream(path) => OutsideOptions { stream: Some(path), ..usual },
        }
    }

    /// Rejects options that contradict a wire with an outside end, or that need one if there is none.
    ///
    /// # Errors The reason as text.
    pub fn check(&self, wire: &WireOptions) -> Result<(), &'static str> {
        if wire.virtual_time {
            return Err("a wire to the outside needs real time: leave out --virtual");
        }
        if !self.is_asked_for() && wire.are_given() {
            return Err(NO_END);
        }
        Ok(())
    }

    /// Returns the name of the network device at the other end. Without a TAP, that is a guest's first device.
    fn device(&self) -> &str {
        self.tap.as_deref().unwrap_or("eth0")
    }

    /// Returns the emulated host's addresses as text.
    pub fn host(&self) -> String {
        match self.autoconf {
            true => format!("{} and IPv6 addresses from routers", self.address),
            false => format!("{} and {}", self.address, self.address6),
        }
    }

    /// Checks the options like [`check`](Self::check), for a program that may run without an emulated host. Without a
    /// host there is no timeline and no capture.
    ///
    /// # Errors The reason as text.
    pub fn check_with(&self, wire: &WireOptions, trace: &TraceOptions) -> Result<(), &'static str> {
        self.check(wire)?;
        if !self.is_asked_for() && (trace.trace.is_some() || trace.pcap.is_some()) {
            return Err(
                "--trace and --pcap show an emulated host, and its wire needs an end outside: --tap, --dgram or --stream",
            );
        }
        Ok(())
    }

    /// Returns whether keys may change while the program runs.
    pub fn changes_keys(&self) -> bool {
        self.key_changes.is_some() || self.mirror.is_some()
    }

    /// Returns the files of used numbers, if there are keys: the store, and the files of earlier versions.
    fn number_files(&self) -> Result<Vec<PathBuf>, String> {
        let Some(keyed_by) = self.keys.as_deref().or(self.mirror.as_deref()) else { return Ok(Vec::new()) };
        // Earlier versions stored the numbers beside the key file.
        let mut earlier = keyed_by.as_os_str().to_owned();
        earlier.push(".numbers");
        let store = self.numbers.folder()?;
        Ok(vec![store.join("numbers"), store.join("numbers.spent"), earlier.into()])
    }

    fn addresses(&self) -> [IpAddr; 2] {
        [self.address.into(), self.address6.into()]
    }

    /// Checks that the key file can be read, if there is one.
    fn check_keys(&self) -> Result<(), String> {
        self.keys.as_deref().map_or(Ok(()), |path| keys::read(path, &self.addresses()).map(drop))
    }

    fn ipv6(&self) -> Ipv6Config {
        match (self.autoconf, self.gateway6) {
            (true, _) => Ipv6Config::unassigned().with_router_discovery().with_duplicate_detection(),
            (false, Some(gateway)) => Ipv6Config::new(self.address6).with_gateway(gateway),
            (false, None) => Ipv6Config::new(self.address6),
        }
    }

    /// Returns the commands that set up the other end, one per line.
    pub fn set_up(&self, mtu: u16) -> String {
        let (peer, peer6, device) = (self.peer, self.peer6, self.device());
        format!(
            "  ip addr add {peer}/24 dev {device}\n  ip addr add {peer6}/64 dev {device} nodad\n  \
             ip link set {device} mtu {mtu} up\n"
        )
    }
}

/// The opened end of a wire.
struct Outside {
    end: End,
    /// The port of `end`, or of `front` if there is one.
    port: Arc<Mutex<dyn Port>>,
    front: Option<Arc<Mutex<Front>>>,
    /// Holds a keying daemon's messages: at the front, or wherever else the messages pass.
    gate: Gate,
}

/// The front of an emulated host with a Linux machine beside it that negotiates its keys.
type Front = KeyingFront<Arc<Mutex<dyn Port>>, DgramPort>;

impl Outside {
    /// Opens the requested end.
    ///
    /// # Errors The reason as text.
    fn open(options: &OutsideOptions) -> Result<Outside, String> {
        let end = Outside::end(options)?;
        let mut outside = Outside { port: end.port(), end, front: None, gate: Gate::default() };
        if let [ours, theirs] = &options.daemon[..] {
            let daemon = DgramPort::bind(ours, theirs).map_err(|error| format!("{}: {error}", ours.display()))?;
            let front = KeyingFront::new(outside.port, daemon);
            outside.gate = front.gate();
            let front = Arc::new(Mutex::new(front));
            (outside.port, outside.front) = (front.clone(), Some(front));
        }
        Ok(outside)
    }

    /// Opens the end itself, without a front.
    fn end(options: &OutsideOptions) -> Result<End, String> {
        if let [ours, theirs] = &options.dgram[..] {
            return End::dgram(ours, theirs).map_err(|error| format!("{}: {error}", ours.display()));
        }
        if let Some(path) = &options.stream {
            return End::stream(path).map_err(|error| format!("{}: {error}", path.display()));
        }
        match &options.tap {
            Some(name) => End::tap(name).map_err(|error| error.to_string()),
            None => Err(NO_END.into()),
        }
    }

    /// Completes when the end of the wire is gone for good, with the error to report.
    async fn gone(&self) -> io::Error {
        self.end.gone().await
    }

    /// Builds a testbed of one host, called `host`, with this end on the other side of its wire. `behind` may add to
    /// the host.
    ///
    /// # Errors If the testbed cannot be started.
    fn bed(
        &self,
        host: &str,
        options: &OutsideOptions,
        wire: &WireOptions,
        (capture, tracer): (Option<&Capture>, Option<&Tracer>),
        behind: impl FnOnce(Builder) -> io::Result<Builder>,
    ) -> io::Result<Testbed> {
        let nic = NicConfig {
            mtu: wire.mtu,
            delays: Delays::NONE,
            line_rate: None,
            // A delayed host thread must not cost packets.
            receive_ring: 8192,
            ..NicConfig::default()
        };
        // The peer outside has a real clock.
        let wire = WireOptions { real: true, ..wire.clone() };
        let mut builder = Testbed::builder(wire.seed());
        if let Some(seed) = wire.seed {
            say!(
                "{host}: warning: with --seed {seed}, whoever knows the seed can guess sequence numbers, ports and cookies, \
                 and break into connections. Leave --seed out unless all peers are trusted"
            );
            builder = builder.guessable();
        }
        let mut builder = builder
            .clock(ClockKind::Real)
            .traced(tracer)
            .host(host, nic, options.tcp.config())
            .address(options.address)
            .ipv6(options.ipv6());
        if let Some(gateway) = options.gateway {
            builder = builder.gateway(gateway);
        }
        builder = behind(builder)?;
        if let Some(path) = &options.keys {
            let addresses = options.addresses();
            let keys = keys::read(path, &addresses).map_err(io::Error::other)?;
            // Keys of unknown age are refused, because a repeated packet number breaks AES-GCM.
            let to_check = (!options.numbers.new_keys).then_some(&keys);
            let store = options.numbers.folder().map_err(io::Error::other)?;
            let memory = keys::memory(&store, path, to_check).map_err(io::Error::other)?;
            for refused in keys::refused_after(&keys, &addresses, &memory).map_err(io::Error::other)? {
                say!("{host}: {refused}");
            }
            for (destinations, way) in keys::routes(keys.policies()) {
                builder = builder.route(destinations, way);
            }
            builder = builder.layer(move |queues| keys::tried(&keys, queues, &addresses, memory.clone()));
        }
        if let Some(path) = &options.mirror {
            let store = options.numbers.folder().map_err(io::Error::other)?;
            let memory = keys::memory(&store, path, None).map_err(io::Error::other)?;
            builder = builder.layer(move |queues| SecureDevice::for_queues_with(queues, memory.clone()));
        }
        let mut builder = builder.attach(0, self.end.name(), self.port.clone(), wire.link());
        if let Some(capture) = capture {
            builder = builder.captured(capture);
        }
        builder.build()
    }

    /// Adds the end's counters to `set`.
    fn count(&self, set: &mut CounterSet) {
        set.add(&self.end.counters());
        if let Some(front) = &self.front {
            let front = front.lock().unwrap_or_else(PoisonError::into_inner);
            set.add(&front.counters());
            set.add(&front.gate_counters());
        }
    }
}

/// Sets the host's routes to match its current policies.
fn route_by_policies(host: &BedHost) {
    let policies = host.stack().with_device(|device| Some(device.keying()?.policies(Direction::Transmit)));
    host.set_routes(&keys::routes(&policies.unwrap_or_default()));
}

/// Returns the path of the authority's certificate, relative to the current directory if possible.
pub fn authority_file() -> String {
    let in_project = Path::new("crates/offload-testbed/identity/ca.pem");
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let file = project.join(in_project).canonicalize().unwrap_or(in_project.to_owned());
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    // A relative path is shorter to type; outside the project the absolute one remains.
    let file = here.ok().and_then(|here| file.strip_prefix(here).ok().map(Path::to_owned)).unwrap_or(file);
    file.display().to_string()
}

/// Returns the counters that moved, one per line. TLS counters come first, in the format of Linux'
/// `/proc/net/tls_stat`.
pub fn listed(counters: &CounterSet) -> String {
    let is_tls = |name: &str| name.starts_with("Tls");
    let tls =
        if counters.moved().any(|(name, _)| is_tls(name)) { tls_stat(counters).to_string() } else { String::new() };
    let others = counters.moved().filter(|(name, _)| !is_tls(name));
    tls + &others.map(|(name, value)| format!("{name:32}\t{value}\n")).collect::<String>()
}

const NO_END: &str = "the wire needs an end outside: --tap NAME, --dgram OURS THEIRS or --stream PATH";
