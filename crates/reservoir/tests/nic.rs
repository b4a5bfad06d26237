//! The same server and the same copy over emulated hosts whose NICs seal and open the TLS records, in virtual time: AES-256-GCM, over
//! a wire that loses and reorders.

use core::time::Duration;
use ktls_offload::{InPlace, Offload};
use offload_api::{TlsSuite, TlsVersion};
use offload_reservoir::copy::{Copy, Place};
use offload_reservoir::name::Name;
use offload_reservoir::remote::{Dial, Dialed, Wire};
use offload_reservoir::rooted::Rooted;
use offload_reservoir::{Limits, Server, Shell, Task};
use offload_testbed::identity::{Agreement, Randomness, server_name};
use offload_testbed::wire::LinkConfig;
use offload_testbed::wire::impairment::{Impairments, Share};
use offload_testbed::{BedHost, NicConfig, Runtime, Seed, TcpConfig, Testbed};
use std::net::SocketAddr;
use std::sync::Arc;

const AGREEMENT: Agreement = Agreement { version: TlsVersion::Tls13, suite: TlsSuite::Aes256Gcm };

#[test]
fn nics_seal_and_open_what_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["from", "store", "back"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    for (name, bytes) in [("large", 5_000_000), ("small", 1000), ("empty", 0)] {
        let mut content = vec![0; bytes];
        Seed(1).stream(name).fill(&mut content);
        std::fs::write(folder.path().join("from").join(name), content).unwrap();
    }
    let loss = Impairments { loss: Share::new(0.001).unwrap(), ..Impairments::default() };
    let mut bed = Testbed::builder(Seed(1))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig { impairments: loss, ..LinkConfig::default() })
        .build()
        .unwrap();
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let to = SocketAddr::from((server.address(), 443));
    serve(&server, &folder.path().join("store"));

    let copy = Copy::new(shell(&client), Arc::new(OverNic { host: client.clone(), to })).streams(4).verify(true);
    let copy = copy.block(1 << 20).unwrap();
    let place =
        |name: &str| Place::in_folder(Arc::new(Rooted::open(folder.path()).unwrap()), Name::from_url(name).unwrap());
    let url = |path: &str| Place::parse(&format!("https://server.nic-offload.test{path}"), None).unwrap();
    let up = bed.run(copy.run(&[place("/from")], &url("/"))).unwrap();
    assert_eq!((up.copied, &up.failed[..]), (3, &[][..]));
    let down = bed.run(copy.run(&[url("/from/")], &place("/back"))).unwrap();
    assert_eq!((down.copied, &down.failed[..]), (3, &[][..]));
    for name in ["large", "small", "empty"] {
        let read = |in_folder: &str| std::fs::read(folder.path().join(in_folder).join(name)).unwrap();
        assert!(read("from") == read("store/from") && read("from") == read("back"), "{name} differs");
    }
    // The NICs did the work, and lost their places on the way.
    let counters = bed.counters();
    let (sealed, opened) = (counters.value("tx_tls_encrypted_packets"), counters.value("rx_tls_decrypted_packets"));
    assert!(sealed > 1000 && opened > 1000, "{:?}", counters.moved().collect::<Vec<_>>());
    assert!(counters.value("tx_tls_dump_packets") > 0, "nothing was lost");
}

/// A long path carries more than a block of a stream in a round trip: blocks are asked for, and sent, before those ahead of them have
/// come. One by one, forty of them would take forty round trips each way.
#[test]
fn a_stream_does_not_wait_a_round_trip_for_each_block() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("store")).unwrap();
    let mut content = vec![0; 40 << 18];
    Seed(1).stream("file").fill(&mut content);
    std::fs::write(folder.path().join("file"), &content).unwrap();
    let round_trip = Duration::from_millis(100);
    let mut bed = Testbed::builder(Seed(1))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig { delay: round_trip / 2, ..LinkConfig::default() })
        .build()
        .unwrap();
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let to = SocketAddr::from((server.address(), 443));
    serve(&server, &folder.path().join("store"));
    let copy = Copy::new(shell(&client), Arc::new(OverNic { host: client.clone(), to })).streams(1);
    let copy = copy.block(1 << 18).unwrap();
    let place =
        |name: &str| Place::in_folder(Arc::new(Rooted::open(folder.path()).unwrap()), Name::from_url(name).unwrap());
    let url = Place::parse("https://server.nic-offload.test/file", None).unwrap();
    for (from, to) in [(place("/file"), url.clone()), (url, place("/back"))] {
        let began = bed.now();
        let outcome = bed.run(copy.run(&[from], &to)).unwrap();
        assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]));
        // Handshakes and a dozen doublings of the window.
        let round_trips = (bed.now() - began).as_secs_f64() / round_trip.as_secs_f64();
        assert!(round_trips < 30.0, "{round_trips} round trips");
    }
    assert!(std::fs::read(folder.path().join("back")).unwrap() == content);
}

fn shell(host: &BedHost) -> Shell {
    let runtime: Arc<dyn Runtime> = host.runtime();
    let timers = runtime.clone();
    Shell::new(timers, Arc::new(InPlace), Arc::new(move |task: Task| runtime.spawn_task("reservoir".into(), task)))
}

/// Serves a folder at port 443 of a host; its NIC does the TLS.
fn serve(host: &BedHost, folder: &std::path::Path) {
    let server = Server::new(Arc::new(Rooted::open(folder).unwrap()), shell(host), Limits::default()).open_to_all();
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

/// Connects from a host whose NIC does the TLS.
struct OverNic {
    host: BedHost,
    to: SocketAddr,
}

impl Dial for OverNic {
    fn dial<'a>(&'a self, _: &'a str, _: u16) -> Dialed<'a> {
        Box::pin(async move {
            let stream = self.host.stack().connect(None, self.to).await?;
            let config = Arc::new(AGREEMENT.client_config(Randomness::Seeded(Seed(3)), None).unwrap());
            let connected = ktls_offload::connect(stream, config, server_name()).await;
            let mut stream = connected.map_err(std::io::Error::other)?;
            stream.offload(Offload::BOTH);
            Ok(Box::new(stream) as Box<dyn Wire>)
        })
    }
}
