//! The limits of a web server against clients that waste time, connections or memory, in virtual time.

use core::net::SocketAddr;
use core::time::Duration;
use ktls_offload::InPlace;
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use offload_base::Seed;
use offload_host_stack::{TcpConfig, TcpStream};
use offload_programs::web::Mode;
use offload_programs::web::limits::{Capacity, WebLimits};
use offload_programs::web::pin::trust;
use offload_programs::web::server::Server;
use offload_programs::web::site::Site;
use offload_testbed::identity::{self, Randomness};
use offload_testbed::{BedHost, Testbed};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

#[test]
fn a_handshake_has_its_time() {
    for mode in [Mode::HttpsCpu, Mode::HttpsNic] {
        for sent in [&[][..], &HALF_A_CLIENT_HELLO] {
            let seconds = over(mode, WebLimits::default(), async |bed: LimitsBed| {
                let mut stream = bed.connect().await?;
                stream.write_all(sent).await?;
                ended(stream).await;
                Ok(bed.seconds())
            });
            assert_eq!(seconds, 10, "{mode}, after {} bytes", sent.len());
        }
    }
}

#[test]
fn idle_connection_is_closed_after_its_timeout() {
    let seconds = over(Mode::Http, WebLimits::default(), async |bed: LimitsBed| {
        ended(bed.connect().await?).await;
        // A connection without any byte is idle, not in a handshake.
        Ok(bed.seconds())
    });
    assert_eq!(seconds, 60, "no request at all");
    for mode in Mode::ALL {
        let seconds = over(mode, WebLimits::default(), async |bed: LimitsBed| {
            let mut stream = bed.open().await?;
            for _ in 0..3 {
                bed.sleep(50).await;
                stream.write_all(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n").await?;
                read_until(&mut stream, b"0123456789").await?;
            }
            ended(stream).await;
            Ok(bed.seconds())
        });
        assert_eq!(seconds, 3 * 50 + 60, "{mode}: from the last answer on");
    }
}

#[test]
fn a_header_that_trickles_in_has_its_time() {
    for mode in Mode::ALL {
        let seconds = over(mode, WebLimits::default(), async |bed: LimitsBed| {
            let mut stream = bed.open().await?;
            bed.sleep(30).await;
            for byte in b"GET /small HTTP/1.1\r\nHost: a" {
                let sent = stream.write_all(&[*byte]).await;
                if sent.is_err() || stream.flush().await.is_err() || bed.server.open() == 0 {
                    break;
                }
                bed.sleep(1).await;
            }
            // The header's deadline counts from its first byte, not from the connection's start.
            assert_eq!(bed.counted("http_timed_out").await, 1);
            Ok(bed.seconds())
        });
        assert!((40..=42).contains(&seconds), "{mode}: {seconds} s, 30 of them without a request");
    }
}

#[test]
fn a_body_has_time_for_each_of_its_parts() {
    for mode in Mode::ALL {
        for (bytes_a_second, seconds) in [(1, 29), (400, 29), (600, 100)] {
            let last = over(mode, WebLimits::default(), async |bed: LimitsBed| {
                let mut stream = bed.open().await?;
                stream.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n").await?;
                stream.flush().await?;
                bed.sleep(1).await;
                let mut last = 0;
                // 400 bytes per second are less than 16 KiB in 30 s, and 600 are more.
                for _ in 0..100 {
                    let sent = stream.write_all(&vec![7; bytes_a_second]).await;
                    if sent.is_err() || stream.flush().await.is_err() || bed.server.open() == 0 {
                        break;
                    }
                    bed.sleep(1).await;
                    last += 1;
                }
                Ok(last)
            });
            assert!((seconds..=seconds + 1).contains(&last), "{mode}, {bytes_a_second} bytes a second: {last} s");
        }
    }
}

#[test]
fn connection_with_unread_answer_is_aborted() {
    for mode in Mode::ALL {
        for file in ["large", "middle"] {
            let (seconds, timed_out) = over(mode, WebLimits::default(), async |bed: LimitsBed| {
                let mut stream = bed.open().await?;
                stream.write_all(format!("GET /{file} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await?;
                bed.sleep(1).await;
                bed.server.idle().await;
                Ok((bed.seconds(), bed.counted("http_timed_out").await))
            });
            // The bytes that fit the client's window are soon acknowledged; after that, nothing is.
            assert!((60..=61).contains(&seconds), "{mode}, {file}: {seconds} s");
            assert_eq!(timed_out, 1, "{mode}, {file}");
        }
    }
}

/// A few acknowledged bytes now and then satisfy TCP's own timeout.
#[test]
fn connection_of_a_trickling_reader_is_aborted() {
    for (file, most) in [("large", 190), ("middle", 190)] {
        let (seconds, charged) = over(Mode::Http, WebLimits::default(), async |bed: LimitsBed| {
            let (mut stream, host) = (bed.connect().await?, bed.client.clone());
            stream.write_all(format!("GET /{file} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await?;
            let _reads_on = bed.client.spawn("reader", async move {
                while stream.read_exact(&mut [0; 3000]).await.is_ok() {
                    host.runtime().sleep(Duration::from_secs(20)).await;
                }
            });
            bed.sleep(1).await;
            bed.server.idle().await;
            Ok((bed.seconds(), bed.limits.capacity.charged()))
        });
        assert!((60..=most).contains(&seconds), "{file}: {seconds} s");
        assert_eq!(charged, 0);
    }
}

#[test]
fn slow_reader_receives_the_whole_answer() {
    for mode in Mode::ALL {
        let (read, seconds) = over(mode, WebLimits::default(), async |bed: LimitsBed| {
            let mut stream = bed.open().await?;
            stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
            let (mut read, mut buffer) = (0, vec![0; 32 << 10]);
            loop {
                match stream.read(&mut buffer).await? {
                    0 => break,
                    bytes => read += bytes,
                }
                // 32 KiB in 2 s are slow, but faster than the minimum.
                bed.sleep(2).await;
            }
            Ok((read, bed.seconds()))
        });
        assert!(read > LARGE && read < LARGE + 1000, "{mode}: {read}");
        assert!(seconds > 500, "{mode}: {seconds} s for {read} bytes is not slow");
    }
}

#[test]
fn surplus_connections_take_slots_of_idle_ones() {
    for mode in Mode::ALL {
        let limits = WebLimits { capacity: Capacity::new(2, usize::MAX), ..WebLimits::default() };
        let (ended, refused) = over(mode, limits, async |bed: LimitsBed| {
            // One client sends nothing, not even a handshake; the other has received its answer.
            let mut silent = bed.connect().await?;
            let mut idle = bed.open().await?;
            idle.write_all(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n").await?;
            read_until(&mut idle, b"0123456789").await?;
            let (mut stalled, mut ended) = (Vec::new(), [0; 2]);
            for ended in &mut ended {
                bed.sleep(1).await;
                let mut new = bed.open().await?;
                new.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await?;
                read_until(&mut new, b"HTTP/1.1 200").await?;
                *ended = bed.counted("http_refused").await;
                // The client stops reading in the middle of its answer.
                stalled.push(new);
            }
            let third = bed.connect().await?.read(&mut [0]).await;
            assert_eq!(third.map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionReset), "{mode}");
            assert!(bed.seconds() < 10, "{mode}: nobody was too late");
            // The connection may end by a close or by a reset.
            let silent = silent.read(&mut [0]).await.unwrap_or(0);
            let idle = idle.read(&mut [0]).await.unwrap_or(0);
            assert_eq!((silent, idle), (0, 0), "{mode}");
            Ok((ended, bed.counted("http_refused").await))
        });
        assert_eq!((ended, refused), ([1, 2], 3), "{mode}");
    }
}

#[test]
fn clients_that_do_not_read_share_the_memory_there_is() {
    const MOST: usize = 1 << 20;
    for mode in Mode::ALL {
        let limits = WebLimits { capacity: Capacity::new(100, MOST), ..WebLimits::default() };
        let (charged, left) = over(mode, limits, async |bed: LimitsBed| {
            let mut streams = Vec::new();
            for _ in 0..STALLED {
                let mut stream = bed.open().await?;
                stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await?;
                bed.sleep(1).await;
                streams.push(stream);
            }
            let charged = bed.limits.capacity.charged();
            bed.server.idle().await;
            Ok((charged, bed.limits.capacity.charged()))
        });
        // Each stalled connection may exceed the limit by a piece that was already read.
        assert!(charged > MOST / 2 && charged < MOST + STALLED * (256 << 10), "{mode}: {charged}");
        assert_eq!(left, 0, "{mode}: memory of dropped answers is still charged");
    }
}

#[test]
fn acknowledged_answer_is_not_charged() {
    for mode in Mode::ALL {
        let charged = over(mode, WebLimits::default(), async |bed: LimitsBed| {
            let mut stream = bed.open().await?;
            stream.write_all(b"GET /middle HTTP/1.1\r\nHost: a\r\n\r\n").await?;
            read_until(&mut stream, b"\r\n\r\n").await?;
            let before = bed.limits.capacity.charged();
            stream.read_exact(&mut vec![0; MIDDLE]).await?;
            bed.sleep(1).await;
            Ok((before > 1 << 20, bed.limits.capacity.charged()))
        });
        assert_eq!(charged, (true, 0), "{mode}: and the connection is still there");
    }
}

#[test]
fn reader_is_served_while_stalled_clients_hold_the_memory() {
    let limits = WebLimits { capacity: Capacity::new(100, 1 << 20), ..WebLimits::default() };
    for mode in Mode::ALL {
        let read = over(mode, limits.clone(), async |bed: LimitsBed| {
            let mut streams = Vec::new();
            for _ in 0..4 {
                let mut stream = bed.open().await?;
                stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await?;
                streams.push(stream);
            }
            bed.sleep(1).await;
            assert!(bed.limits.capacity.charged() >= 1 << 20);
            let mut reader = bed.open().await?;
            reader.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
            let mut answer = Vec::new();
            reader.read_to_end(&mut answer).await?;
            assert!(bed.seconds() < 30, "before the others are given up");
            Ok(answer.len())
        });
        assert!(read > LARGE, "{mode}: {read}");
    }
}

#[test]
fn closing_server_finishes_current_answers() {
    for mode in Mode::ALL {
        let (read, idle, late) = over(mode, WebLimits::default(), async |bed: LimitsBed| {
            let mut idle = bed.open().await?;
            idle.write_all(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n").await?;
            read_until(&mut idle, b"0123456789").await?;
            let mut busy = bed.open().await?;
            busy.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await?;
            read_until(&mut busy, b"\r\n\r\n").await?;
            let server = bed.server.clone();
            let closing = bed.host.spawn("closing", async move { server.close().await });
            let idle = idle.read(&mut [0]).await?;
            let late = bed.connect().await.is_ok();
            let mut answer = Vec::new();
            busy.read_to_end(&mut answer).await?;
            closing.await;
            assert!(bed.seconds() < 5, "{mode}: the server waits for an idle client");
            Ok((answer.len(), idle, late))
        });
        assert!(read + 20_000 > LARGE, "{mode}: {read} bytes of the answer under way");
        assert_eq!((idle, late), (0, false), "{mode}");
    }
}

/// A server of three files, and the host of hostile clients.
struct LimitsBed {
    host: BedHost,
    client: BedHost,
    server: Server,
    mode: Mode,
    limits: WebLimits,
}

impl LimitsBed {
    async fn connect(&self) -> io::Result<TcpStream> {
        self.client.stack().connect(None, SocketAddr::from((self.host.address(), self.mode.port()))).await
    }

    /// Connects, with TLS if the mode has it.
    async fn open(&self) -> io::Result<Box<dyn Stream>> {
        let stream = self.connect().await?;
        if !self.mode.is_secure() {
            return Ok(Box::new(stream));
        }
        let mut config = identity::client_config(Randomness::Seeded(Seed(2)), None);
        trust(&mut config, vec![identity::authority()], None).unwrap();
        Ok(Box::new(ktls_offload::connect(stream, Arc::new(config), identity::server_name()).await?))
    }

    async fn sleep(&self, seconds: u64) {
        self.client.runtime().sleep(Duration::from_secs(seconds)).await;
    }

    /// Returns the seconds since the start.
    fn seconds(&self) -> u64 {
        (self.client.now() - offload_base::Instant::ZERO).as_secs()
    }

    /// Returns a counter after all connections have ended.
    async fn counted(&self, name: &str) -> u64 {
        self.sleep(1).await;
        self.server.counters().value(name)
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Runs `story` with a server in `mode`.
fn over<T: Send + 'static>(mode: Mode, limits: WebLimits, story: impl AsyncFnOnce(LimitsBed) -> io::Result<T>) -> T {
    let folder = LimitsFolder::new();
    let mut bed = Testbed::builder(Seed(1))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .build()
        .unwrap();
    let (host, client) = (bed.host(0).clone(), bed.host(1).clone());
    let site = Site::new(&folder.0, Arc::new(InPlace)).unwrap();
    let server = Server::new(site, mode, identity::server_config(Randomness::Seeded(Seed(1)), None))
        .without_dates()
        .with_limits(limits.clone());
    let _listens_on = server.listen(&host, mode.port()).unwrap();
    let story = story(LimitsBed { host, client, server, mode, limits });
    bed.run_within(Duration::from_secs(3600), story).unwrap()
}

/// Reads until the peer ends the connection, by a close or by a reset.
async fn ended(mut stream: impl AsyncRead + Unpin) {
    while matches!(stream.read(&mut [0; 4096]).await, Ok(1..)) {}
}

async fn read_until(stream: &mut (impl AsyncRead + Unpin + ?Sized), end: &[u8]) -> io::Result<()> {
    let mut read = Vec::new();
    while !read.ends_with(end) {
        read.push(stream.read_u8().await?);
    }
    Ok(())
}

/// The served folder, deleted on drop.
struct LimitsFolder(PathBuf);

impl LimitsFolder {
    fn new() -> LimitsFolder {
        use core::sync::atomic::{AtomicUsize, Ordering};
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nic-offload-limits-{number}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("small"), "0123456789").unwrap();
        for (name, bytes) in [("middle", MIDDLE), ("large", LARGE)] {
            File::create(path.join(name)).unwrap().set_len(bytes as u64).unwrap();
        }
        LimitsFolder(path)
    }
}

impl Drop for LimitsFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A record header that announces more bytes than follow.
const HALF_A_CLIENT_HELLO: [u8; 9] = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc];
/// `MIDDLE` is less than a send buffer, `LARGE` is more.
const MIDDLE: usize = 2 << 20;
const LARGE: usize = 9 << 20;
const STALLED: usize = 12;
