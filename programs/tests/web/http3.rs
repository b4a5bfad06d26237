//! The same site over HTTP/3: crate `h3`'s client over our QUIC, with packets protected by the CPU and by the NIC.

use super::WebFolder;
use bytes::{Buf, Bytes};
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;
use core::time::Duration;
use h3::client::SendRequest;
use h3::error::{Code, StreamError};
use hyper::{Request, StatusCode};
use ktls_offload::InPlace;
use nic_sim::NicConfig;
use nic_sim::wire::{Impairments, LinkConfig};
use offload_base::counters::CounterSet;
use offload_base::{RandomSource, Seed};
use offload_host_stack::TcpConfig;
use offload_programs::web::hexadecimal;
use offload_programs::web::http3::Mode;
use offload_programs::web::http3::server::Server;
use offload_programs::web::limits::{Capacity, WebLimits};
use offload_programs::web::site::Site;
use offload_testbed::identity::{self, Randomness};
use offload_testbed::{BedHost, Testbed};
use quic_offload::http3::{ALPN, H3Connection};
use quic_offload::{ClientTls, Closed, Config, Connection, Endpoint};
use sha2::{Digest, Sha256};
use std::sync::Arc;

#[test]
fn every_byte_arrives_in_both_modes() {
    let folder = WebFolder::new("http3", &[("empty", 0), ("small", 700), ("large", 1_500_001)]);
    let file = |name| std::fs::read(folder.0.join(name)).unwrap();
    let (large, small) = (file("large"), file("small"));
    let hash = format!("{} {}\n", large.len(), hexadecimal(&Sha256::digest(&large))).into_bytes();
    for (mode, loss) in Mode::ALL.into_iter().flat_map(|mode| [(mode, "0"), (mode, "0.01")]) {
        let sent = Bytes::from(large.clone());
        let (said, counters) = over(&folder, mode, loss, WebLimits::default(), async move |client: Client| {
            let (_connection, requests) = client.connect().await;
            // A large transfer runs at the same time on its own stream.
            let mut one = requests.clone();
            let first =
                client.host.spawn("first", async move { ask(&mut one, "GET", "/large", None, Bytes::new()).await });
            let mut all = Vec::new();
            for (method, path, range, body) in [
                ("PUT", "/", None, sent),
                ("GET", "/empty", None, Bytes::new()),
                ("HEAD", "/large", None, Bytes::new()),
                ("GET", "/large", Some("bytes=700000-1400001"), Bytes::new()),
                ("GET", "/none", None, Bytes::new()),
                ("GET", "/../Cargo.toml", None, Bytes::new()),
                ("DELETE", "/small", None, Bytes::new()),
                ("GET", "/small", None, Bytes::new()),
            ] {
                all.push(ask(&mut requests.clone(), method, path, range, body).await.unwrap());
            }
            all.push(first.await.unwrap());
            all
        });
        let expected = [
            (200, hash.clone()),
            (200, Vec::new()),
            (200, Vec::new()),
            (206, large[700_000..=1_400_001].to_vec()),
            (404, b"not found\n".to_vec()),
            (404, b"not found\n".to_vec()),
            (405, b"GET, HEAD, PUT or POST\n".to_vec()),
            (200, small.clone()),
            (200, large.clone()),
        ];
        for (at, (said, expected)) in said.iter().zip(&expected).enumerate() {
            assert!(said == expected, "{mode}, loss {loss}, {at}: {} with {} bytes", said.0, said.1.len());
        }
        assert_eq!((said.len(), counters.value("http_requests")), (9, 9), "{mode}");
        assert_eq!(counters.value("http_cut_off") + counters.value("http_timed_out"), 0, "{mode}");
        // In mode `Nic` the device must have done the work, or the test would compare the CPU with itself.
        let by_nic = [counters.value("QuicSealedDevice") > 1000, counters.value("QuicOpenedDevice") > 1000];
        assert_eq!(by_nic, [mode == Mode::Nic; 2], "{mode}: {counters:?}");
    }
}

#[test]
fn idle_and_trickling_http3_clients_time_out() {
    let folder = WebFolder::new("http3-limits", &[("small", 700)]);
    let seconds = |limits: WebLimits, does: fn(Client, Connection, Requests) -> Doing| {
        let (seconds, counters) = over(&folder, Mode::Nic, "0", limits, async move |client: Client| {
            let (connection, requests) = client.connect().await;
            let began = client.host.now();
            does(client.clone(), connection, requests).await;
            (client.host.now() - began).as_secs_f64().round()
        });
        (seconds, counters.value("http_timed_out"))
    };
    let idle = seconds(WebLimits::default(), |client, connection, mut requests| {
        Box::pin(async move {
            // Requests keep the connection alive for a minute; afterwards it is idle.
            for _ in 0..3 {
                client.host.runtime().sleep(Duration::from_secs(20)).await;
                ask(&mut requests, "GET", "/small", None, Bytes::new()).await.unwrap();
            }
            assert!(matches!(connection.closed().await, Closed::ByPeer { .. } | Closed::TimedOut));
        })
    });
    assert_eq!(idle.0, 60. + 60.);
    let header = seconds(WebLimits::default(), |_, connection, requests| {
        Box::pin(async move {
            let _keeps_the_connection_open = requests;
            // The first byte of a HEADERS frame, without the rest.
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.send(Bytes::from_static(&[1])).await.unwrap();
            assert!(receive.receive(1).await.is_err(), "no answer");
        })
    });
    assert_eq!(header, (10., 1));
    let body = seconds(WebLimits::default(), |client, _connection, mut requests| {
        Box::pin(async move {
            let request = Request::put("https://server.nic-offload.test/").body(()).unwrap();
            // 100 bytes per second are less than the minimum of 16 KiB in 30 s.
            let mut stream = requests.send_request(request).await.unwrap();
            while stream.send_data(Bytes::from_static(&[7; 100])).await.is_ok() {
                client.host.runtime().sleep(Duration::from_secs(1)).await;
            }
        })
    });
    assert!((30. ..=32.).contains(&body.0), "{body:?}");
}

/// A malformed request is a stream error (RFC 9114 4.1.2), and the connection goes on.
#[test]
fn malformed_requests_are_reset() {
    let folder = WebFolder::new("http3-malformed", &[("small", 700)]);
    type Case = (&'static str, &'static [(&'static str, &'static str)], &'static [u8], Result<u16, u64>);
    const CASES: [Case; 14] = [
        ("GET", &[("te", "trailers")], b"", Ok(200)),
        ("GET", &[("te", "gzip")], b"", MALFORMED),
        ("GET", &[("connection", "close")], b"", MALFORMED),
        ("PUT", &[("transfer-encoding", "chunked")], b"text", MALFORMED),
        ("GET", &[("upgrade", "h2c")], b"", MALFORMED),
        ("GET", &[("content-length", "4")], b"", MALFORMED),
        ("GET", &[("content-length", "0")], b"text", MALFORMED),
        ("GET", &[("content-length", "4")], b"text", Ok(200)),
        ("PUT", &[("content-length", "5"), ("content-length", "4")], b"text", MALFORMED),
        ("PUT", &[("content-length", "3")], b"text", MALFORMED),
        ("PUT", &[("content-length", "5")], b"text", MALFORMED),
        ("PUT", &[("content-length", "4")], b"text", Ok(200)),
        ("GET", &[("if-none-match", "*")], b"", Ok(304)),
        ("PUT", &[("if-match", "\"stale\"")], b"text", Ok(412)),
    ];
    const MALFORMED: Result<u16, u64> = Err(Code::H3_MESSAGE_ERROR.value());
    let (said, _) = over(&folder, Mode::Nic, "0", WebLimits::default(), async |client: Client| {
        let (_connection, requests) = client.connect().await;
        let mut said = Vec::new();
        for (method, fields, body, _) in CASES {
            said.push(match ask_with(&mut requests.clone(), method, "/small", fields, body.into()).await {
                Ok((status, _)) => Ok(status),
                Err(StreamError::RemoteTerminate { code, .. }) => Err(code.value()),
                Err(error) => panic!("{method} {fields:?}: {error}"),
            });
        }
        said
    });
    for ((method, fields, _, expected), said) in CASES.iter().zip(said) {
        assert_eq!(said, *expected, "{method} {fields:?}");
    }
}

#[test]
fn there_is_room_for_so_many() {
    let folder = WebFolder::new("http3-room", &[("small", 700)]);
    let limits = WebLimits { capacity: Capacity::new(1, 1 << 20), ..WebLimits::default() };
    let (closed, counters) = over(&folder, Mode::Nic, "0", limits, async |client: Client| {
        let (first, mut requests) = client.connect().await;
        // The request stays pending because its body does not arrive.
        let request = Request::put("https://server.nic-offload.test/").body(()).unwrap();
        let mut stream = requests.send_request(request).await.unwrap();
        stream.send_data(Bytes::from_static(&[7; 100])).await.unwrap();
        let refused = client.quic().await.closed().await;
        stream.finish().await.unwrap();
        let _answer = stream.recv_response().await.unwrap();
        while stream.recv_data().await.unwrap().is_some() {}
        client.host.runtime().sleep(Duration::from_secs(1)).await;
        // The connection is idle now and loses its slot.
        let (second, _requests) = client.connect().await;
        let ended = first.closed().await;
        let is_open = second.remote_addr().is_ok();
        (refused, ended, is_open)
    });
    let excess = || Closed::ByPeer { code: Code::H3_EXCESSIVE_LOAD.value(), reason: Bytes::new() };
    assert_eq!(closed, (excess(), excess(), true));
    assert_eq!(counters.value("http_refused"), 2);
}

/// As many clients as the programs have places begin a handshake and fall silent: other clients are served, and the
/// half-open connections are gone after their deadline.
#[test]
fn half_open_connections_shut_out_no_client() {
    let folder = WebFolder::new("http3-strangers", &[("small", 700)]);
    let (said, counters) = over(&folder, Mode::Nic, "0", WebLimits::default(), async |client: Client| {
        for _ in 0..1100 {
            let socket = client.host.stack().bind_udp(None).unwrap();
            let (stranger, mut driver) = Endpoint::new(socket, client.host.runtime(), Config::default(), None).unwrap();
            let name = identity::server_name();
            let _hello = stranger.connect(&client.tls, client.to, &name.to_str()).unwrap();
            // One poll sends the first Initial packet; without further polls the client stays silent.
            poll_fn(|cx| Poll::Ready(Pin::new(&mut driver).poll(cx).is_pending())).await;
            client.host.runtime().sleep(Duration::from_micros(1)).await;
        }
        let (_connection, mut requests) = client.connect().await;
        let first = ask(&mut requests, "GET", "/small", None, Bytes::new()).await.unwrap().0;
        client.host.runtime().sleep(WebLimits::default().handshake).await;
        (first, ask(&mut requests, "GET", "/small", None, Bytes::new()).await.unwrap().0)
    });
    assert_eq!(said, (200, 200));
    let values = ["QuicRefused", "QuicConnections", "QuicHandshakesTimedOut"].map(|name| counters.value(name));
    assert_eq!(values, [0, 1, 256]);
    assert_eq!(counters.value("QuicRetries"), 1100 - 256 + 1);
}

type Requests = SendRequest<H3Connection, Bytes>;
type Doing = core::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// The client's host and endpoint.
#[derive(Clone)]
struct Client {
    host: BedHost,
    endpoint: Endpoint,
    tls: ClientTls,
    to: core::net::SocketAddr,
}

impl Client {
    async fn quic(&self) -> Connection {
        let name = identity::server_name();
        self.endpoint.connect(&self.tls, self.to, &name.to_str()).unwrap().await.unwrap()
    }

    async fn connect(&self) -> (Connection, Requests) {
        let connection = self.quic().await;
        let mut builder = h3::client::builder();
        let (mut driver, requests) = builder.send_grease(false).build(H3Connection(connection.clone())).await.unwrap();
        let _ends_with_the_connection = self.host.spawn("h3", async move { driver.wait_idle().await });
        (connection, requests)
    }
}

/// Runs `does` on a client of a server of `folder`, and returns its result and the server's counters.
fn over<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    folder: &WebFolder,
    mode: Mode,
    loss: &str,
    limits: WebLimits,
    does: impl FnOnce(Client) -> F,
) -> (T, CounterSet) {
    let impairments = Impairments { loss: loss.parse().unwrap(), ..Impairments::default() };
    let mut bed = Testbed::builder(Seed(1))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig { impairments, ..LinkConfig::default() })
        .build()
        .unwrap();
    let (host, near) = (bed.host(0).clone(), bed.host(1).clone());
    let config = |end| Config::default().with(|c| c.random = Some(RandomSource::from(Seed(2).derive(end))));
    let tls = identity::server_config(Randomness::Seeded(Seed(3)), None);
    let site = Site::new(&folder.0, Arc::new(InPlace)).unwrap();
    // The default limit of the programs.
    let config_of_server = config("server").with(|c| c.max_connections = 1024);
    let server = Server::new(site, mode, tls, config_of_server).unwrap().with_limits(limits);
    let _serves = server.listen(&host, mode.port()).unwrap();
    let socket = near.stack().bind_udp(None).unwrap();
    // The client's idle timeout is longer, so that the server's expires first.
    let patient = config("client").with(|c| c.idle = Duration::from_secs(300));
    let (endpoint, driver) = Endpoint::new(socket, near.runtime(), patient, None).unwrap();
    let _runs = near.spawn("quic", driver);
    let mut tls = identity::client_config(Randomness::Seeded(Seed(4)), None);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = ClientTls::new(tls).unwrap();
    let client = Client { host: near.clone(), endpoint, tls, to: (host.address(), mode.port()).into() };
    let done = near.spawn("client", does(client));
    let closing = server.clone();
    let done = bed.run(async move {
        let done = done.await;
        closing.close().await;
        done
    });
    (done, server.counters())
}

async fn ask(
    requests: &mut Requests,
    method: &str,
    path: &str,
    range: Option<&str>,
    body: Bytes,
) -> Result<(u16, Vec<u8>), StreamError> {
    let fields = range.map(|range| ("range", range));
    ask_with(requests, method, path, fields.as_slice(), body).await
}

async fn ask_with(
    requests: &mut Requests,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: Bytes,
) -> Result<(u16, Vec<u8>), StreamError> {
    let mut request = Request::builder().method(method).uri(format!("https://server.nic-offload.test{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let mut stream = requests.send_request(request.body(()).unwrap()).await?;
    // The server may have stopped the stream already: its code is checked below.
    if !body.is_empty() {
        let _heard_below = stream.send_data(body).await;
    }
    let _heard_below = stream.finish().await;
    let status: StatusCode = stream.recv_response().await?.status();
    let mut said = Vec::new();
    while let Some(mut data) = stream.recv_data().await? {
        said.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    Ok((status.as_u16(), said))
}
