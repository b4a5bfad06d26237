//! The same server and copy on emulated hosts, in virtual time. The NICs encrypt and decrypt AES-256-GCM over a wire
//! that loses and reorders packets: TLS records, or the packets of HTTP/3.

mod http3;

use core::time::Duration;
use ktls_offload::{InPlace, Offload};
use offload_api::{TlsSuite, TlsVersion};
use offload_reservoir::copy::{Copy, CopyLocation};
use offload_reservoir::dial::{Dial, DialFuture, DialStream};
use offload_reservoir::name::Name;
use offload_reservoir::rooted::Rooted;
use offload_reservoir::{Server, ServerLimits, Shell, Task};
use offload_testbed::identity::{Agreement, Randomness, server_name};
use offload_testbed::wire::LinkConfig;
use offload_testbed::wire::impairment::{Impairments, Share};
use offload_testbed::{BedHost, NicConfig, Runtime, Seed, TcpConfig, Testbed};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

const AGREEMENT: Agreement = Agreement { version: TlsVersion::Tls13, suite: TlsSuite::Aes256Gcm };

#[test]
fn nics_encrypt_and_decrypt_a_copy() {
    let loss = Impairments { loss: Share::new(0.001).unwrap(), ..Impairments::default() };
    let mut bed = bed(LinkConfig { impairments: loss, ..LinkConfig::default() });
    let files = CopyFiles::new();
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let to = SocketAddr::from((server.address(), 443));
    serve(&server, &files.path().join("store"));
    files.there_and_back(&mut bed, Arc::new(NicDialer { host: client.clone(), to }));
    // The NICs did the work, and lost packets made them resynchronize.
    let counters = bed.counters();
    let (sealed, opened) = (counters.value("tx_tls_encrypted_packets"), counters.value("rx_tls_decrypted_packets"));
    assert!(sealed > 1000 && opened > 1000, "{:?}", counters.moved().collect::<Vec<_>>());
    assert!(counters.value("tx_tls_dump_packets") > 0, "nothing was lost");
}

/// A long path carries more than a block of a stream per round trip. Blocks are requested and sent before the earlier
/// blocks have arrived. Forty blocks one by one would take forty round trips in each direction.
#[test]
fn a_stream_does_not_wait_a_round_trip_for_each_block() {
    let mut bed = bed(LinkConfig { delay: ROUND_TRIP / 2, ..LinkConfig::default() });
    let files = CopyFiles::new();
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let to = SocketAddr::from((server.address(), 443));
    serve(&server, &files.path().join("store"));
    for round_trips in files.by_one_stream(&mut bed, Arc::new(NicDialer { host: client.clone(), to })) {
        // Handshakes, and a dozen doublings of the congestion window.
        assert!(round_trips < 30.0, "{round_trips} round trips");
    }
}

fn bed(wire: LinkConfig) -> Testbed {
    bed_of(NicConfig::default(), wire)
}

fn bed_of(nic: NicConfig, wire: LinkConfig) -> Testbed {
    let builder = Testbed::builder(Seed(1)).host("server", nic.clone(), TcpConfig::default());
    builder.host("client", nic, TcpConfig::default()).wire(0, 1, wire).build().unwrap()
}

/// Three files of different sizes in `from`, and a folder `store` for a server.
struct CopyFiles(tempfile::TempDir);

impl CopyFiles {
    fn new() -> CopyFiles {
        let folder = tempfile::tempdir().unwrap();
        for name in ["from", "store"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        for (name, bytes) in [("large", 5_000_000), ("small", 1000), ("empty", 0)] {
            std::fs::write(folder.path().join("from").join(name), content(name, bytes)).unwrap();
        }
        CopyFiles(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn place(&self, name: &str) -> CopyLocation {
        CopyLocation::in_folder(Arc::new(Rooted::open(self.path()).unwrap()), Name::from_url(name).unwrap())
    }

    /// Copies from the second host to the first host and back.
    fn there_and_back(&self, bed: &mut Testbed, dial: Arc<dyn Dial>) {
        let copy = Copy::new(shell(bed.host(1)), dial).streams(4).verify(true).block(1 << 20).unwrap();
        let up = bed.run(copy.run(&[self.place("/from")], &url("/"))).unwrap();
        assert_eq!((up.copied, &up.failed[..]), (3, &[][..]));
        let down = bed.run(copy.run(&[url("/from/")], &self.place("/back"))).unwrap();
        assert_eq!((down.copied, &down.failed[..]), (3, &[][..]));
        for name in ["large", "small", "empty"] {
            let read = |in_folder: &str| std::fs::read(self.path().join(in_folder).join(name)).unwrap();
            assert!(read("from") == read("store/from") && read("from") == read("back"), "{name} differs");
        }
    }

    /// Copies forty blocks there and back. Returns the number of round trips for each direction.
    fn by_one_stream(&self, bed: &mut Testbed, dial: Arc<dyn Dial>) -> [f64; 2] {
        let content = content("file", 40 << 18);
        std::fs::write(self.path().join("file"), &content).unwrap();
        let copy = Copy::new(shell(bed.host(1)), dial).streams(1).block(1 << 18).unwrap();
        let took = [(self.place("/file"), url("/file")), (url("/file"), self.place("/back"))].map(|(from, to)| {
            let began = bed.now();
            let outcome = bed.run(copy.run(&[from], &to)).unwrap();
            assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]));
            (bed.now() - began).as_secs_f64() / ROUND_TRIP.as_secs_f64()
        });
        // `assert_eq` would print ten megabytes.
        assert!(std::fs::read(self.path().join("back")).unwrap() == content);
        took
    }
}

fn content(name: &str, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    Seed(1).stream(name).fill(&mut content);
    content
}

fn url(path: &str) -> CopyLocation {
    CopyLocation::parse(&format!("https://server.nic-offload.test{path}"), None).unwrap()
}

/// The round-trip time of a long path.
const ROUND_TRIP: Duration = Duration::from_millis(100);

fn shell(host: &BedHost) -> Shell {
    let runtime: Arc<dyn Runtime> = host.runtime();
    let timers = runtime.clone();
    Shell::new(timers, Arc::new(InPlace), Arc::new(move |task: Task| runtime.spawn_task("reservoir".into(), task)))
}

/// Serves a folder at port 443 of a host with TLS offload to the NIC.
fn serve(host: &BedHost, folder: &Path) {
    let server =
        Server::new(Arc::new(Rooted::open(folder).unwrap()), shell(host), ServerLimits::default()).open_to_all();
    let mut listener = host.stack().listen(443, 16).unwrap();
    let config = Arc::new(AGREEMENT.server_config(Randomness::Seeded(Seed(2)), None).unwrap());
    let shell = shell(host);
    shell.clone().spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let (server, config) = (server.clone(), config.clone());
            shell.spawn(async move {
                let mut stream = ktls_offload::accept(stream, config).await.unwrap();
                stream.offload(Offload::BOTH);
                server.serve(stream, "client").await;
            });
        }
    });
}

/// Connects from a host with TLS offload to the NIC.
struct NicDialer {
    host: BedHost,
    to: SocketAddr,
}

impl Dial for NicDialer {
    fn dial<'a>(&'a self, _: &'a str, _: u16) -> DialFuture<'a> {
        Box::pin(async move {
            let stream = self.host.stack().connect(None, self.to).await?;
            let config = Arc::new(AGREEMENT.client_config(Randomness::Seeded(Seed(3)), None).unwrap());
            let connected = ktls_offload::connect(stream, config, server_name()).await;
            let mut stream = connected.map_err(std::io::Error::other)?;
            stream.offload(Offload::BOTH);
            Ok(Box::new(stream) as Box<dyn DialStream>)
        })
    }
}
