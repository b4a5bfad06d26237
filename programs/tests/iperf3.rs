//! The iperf3 server against a client written after the behaviour of iperf3 itself, in virtual time.

use core::future::poll_fn;
use core::pin::pin;
use core::time::Duration;
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use offload_api::SegmentStream;
use offload_base::{Instant, Seed};
use offload_host_stack::{TcpConfig, TcpStream};
use offload_programs::iperf3;
use offload_testbed::{BedHost, Testbed};
use serde_json::{Value, json};
use std::io::{self, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn a_sender_keeps_to_its_rate() {
    for len in [1, 8192, 1 << 20] {
        served(async |client, server| {
            let mut control = Control::begin(&client, &server, COOKIE).await?;
            let asked = json!({"tcp": true, "parallel": 1, "len": len, "reverse": true, "bandwidth": 10_000_000});
            control.ask(&asked).await?;
            assert_eq!(control.step().await?, CREATE_STREAMS);
            let mut stream = connect(&client, &server, COOKIE).await?;
            assert_eq!((control.step().await?, control.step().await?), (TEST_START, TEST_RUNNING));
            let (mut received, mut buffer) = (0, vec![0; 1 << 16]);
            let mut time = pin!(client.runtime().sleep(Duration::from_millis(2050)));
            loop {
                tokio::select! {
                    biased;
                    () = &mut time => break,
                    read = stream.read(&mut buffer) => received += read?,
                }
            }
            // The reader stops after 2.05 s, but bytes in flight still arrive.
            control.tell(TEST_END).await?;
            assert_eq!(control.step().await?, EXCHANGE_RESULTS);
            control.write(&json!({"streams": []})).await?;
            let sent = control.read().await?["streams"][0]["bytes"].as_u64().unwrap() as usize;
            assert!((2_400_000..=2_700_000).contains(&sent), "{len}: 2 s at 10 Mb/s are 2.5 MB, not {sent}");
            assert!(sent.abs_diff(received) <= 30_000, "{len}: {sent} sent, {received} received");
            assert_eq!(control.step().await?, DISPLAY_RESULTS);
            control.tell(DONE).await
        });
    }
}

#[test]
fn queued_bytes_do_not_count_as_sent() {
    let far = LinkConfig { delay: Duration::from_millis(50), ..LinkConfig::default() };
    served_over(far, async |client, server| {
        let mut control = Control::begin(&client, &server, COOKIE).await?;
        control.ask(&json!({"tcp": true, "parallel": 1, "reverse": true})).await?;
        assert_eq!(control.step().await?, CREATE_STREAMS);
        let _stream = connect(&client, &server, COOKIE).await?;
        assert_eq!((control.step().await?, control.step().await?), (TEST_START, TEST_RUNNING));
        client.runtime().sleep(Duration::from_millis(120)).await;
        control.tell(TEST_END).await?;
        assert_eq!(control.step().await?, EXCHANGE_RESULTS);
        control.write(&json!({"streams": []})).await?;
        let sent = control.read().await?["streams"][0]["bytes"].as_u64().unwrap();
        // Slow start has only begun, and 4 MiB wait in the send queue.
        assert!((10_000..500_000).contains(&sent), "{sent}");
        assert_eq!(control.step().await?, DISPLAY_RESULTS);
        control.tell(DONE).await
    });
}

#[test]
fn a_test_that_moves_nothing_gives_way() {
    served(async |client, server| {
        let mut control = Control::begin(&client, &server, COOKIE).await?;
        control.ask(&json!({"tcp": true, "parallel": 1})).await?;
        assert_eq!(control.step().await?, CREATE_STREAMS);
        let _silent = connect(&client, &server, COOKIE).await?;
        assert_eq!((control.step().await?, control.step().await?), (TEST_START, TEST_RUNNING));
        // The server closes the stalled test and accepts the next.
        assert!(control.step().await.is_err());
        assert_eq!((client.now() - Instant::ZERO).as_secs(), 120);
        let mut control = Control::begin(&client, &server, COOKIE).await?;
        control.ask(&json!({"tcp": true, "parallel": 1})).await?;
        assert_eq!(control.step().await?, CREATE_STREAMS);
        Ok(())
    });
}

#[test]
fn a_test_either_way_counts_every_byte() {
    for (asked, up, down) in [
        (json!({"tcp": true, "parallel": 1, "len": 8192}), 1, 0),
        (json!({"tcp": true, "parallel": 3, "len": 8192, "reverse": true, "congestion": "reno"}), 0, 3),
        (json!({"tcp": true, "parallel": 2, "len": 8192, "bidirectional": true}), 2, 2),
    ] {
        served(async |client, server| {
            let mut control = Control::begin(&client, &server, COOKIE).await?;
            control.ask(&asked).await?;
            assert_eq!(control.step().await?, CREATE_STREAMS);
            let (mut sending, mut receiving) = (Vec::new(), Vec::new());
            for _ in 0..up {
                sending.push(connect(&client, &server, COOKIE).await?);
            }
            for _ in 0..down {
                receiving.push(connect(&client, &server, COOKIE).await?);
            }
            assert_eq!((control.step().await?, control.step().await?), (TEST_START, TEST_RUNNING));
            for stream in &mut sending {
                stream.write_all(&[7; SENT]).await?;
                // The sent bytes must be acknowledged before the end, or the server would not have counted them.
                poll_fn(|cx| stream.poll_acked(cx, (COOKIE.len() + SENT) as u64)).await?;
            }
            for stream in &mut receiving {
                stream.read_exact(&mut [0; SENT]).await?;
            }
            control.tell(TEST_END).await?;
            assert_eq!(control.step().await?, EXCHANGE_RESULTS);
            control.write(&json!({"streams": []})).await?;
            let results = control.read().await?;
            let streams = results["streams"].as_array().unwrap();
            let ids: Vec<_> = streams.iter().map(|stream| stream["id"].as_u64().unwrap()).collect();
            assert_eq!(ids, [1, 3, 4, 5][..up + down], "{asked}");
            for (place, stream) in streams.iter().enumerate() {
                let (bytes, again) = (stream["bytes"].as_u64().unwrap(), stream["retransmits"].as_i64().unwrap());
                match place < up {
                    true => assert_eq!((bytes, again), (SENT as u64, -1), "{asked}"),
                    false => assert!(bytes >= SENT as u64 && again >= 0, "{asked}: {stream}"),
                }
            }
            assert_eq!(results["sender_has_retransmits"], if down > 0 { 1 } else { -1 }, "{asked}");
            assert_eq!(control.step().await?, DISPLAY_RESULTS);
            control.tell(DONE).await
        });
    }
}

#[test]
fn unsupported_test_is_refused_and_the_next_one_runs() {
    let refused = [
        json!({"udp": true}),
        json!({"tcp": true, "congestion": "bbr"}),
        json!({"tcp": true, "parallel": 0}),
        json!({"tcp": true, "parallel": 100_000}),
        json!({"tcp": true, "len": 0}),
        json!({"tcp": true, "len": 1_u64 << 40}),
    ];
    served(async |client, server| {
        for asked in &refused {
            let mut control = Control::begin(&client, &server, COOKIE).await?;
            control.ask(asked).await?;
            assert_eq!(control.step().await?, SERVER_ERROR, "{asked}");
            assert_eq!((control.0.read_i32().await?, control.0.read_i32().await?), (13, 0), "{asked}");
            assert_eq!(control.0.read(&mut [0]).await?, 0, "{asked}");
        }
        // Invalid JSON, JSON without an end, an absurd length, a silent client, and a client that leaves.
        for nonsense in [&b"\0\0\0\x04none"[..], b"\0\0\0\x01{", b"\xff\xff\xff\xff", b"", b"\0\0"] {
            let mut control = Control::begin(&client, &server, COOKIE).await?;
            assert_eq!(control.step().await?, PARAMETER_EXCHANGE);
            control.0.write_all(nonsense).await?;
            SegmentStream::flush(&mut control.0);
            // The server must close each of these connections by itself.
            assert_eq!(control.0.read(&mut [0]).await?, 0, "{nonsense:?}");
        }
        drop(connect(&client, &server, &[]).await?);
        let mut control = Control::begin(&client, &server, COOKIE).await?;
        control.ask(&json!({"tcp": true})).await?;
        assert_eq!(control.step().await?, CREATE_STREAMS);
        Ok(())
    });
}

#[test]
fn a_stranger_is_denied_and_disturbs_nothing() {
    served(async |client, server| {
        let mut control = Control::begin(&client, &server, COOKIE).await?;
        control.ask(&json!({"tcp": true})).await?;
        assert_eq!(control.step().await?, CREATE_STREAMS);
        let mut stranger = connect(&client, &server, &[b'x'; 37]).await?;
        assert_eq!(stranger.read_i8().await?, ACCESS_DENIED);
        let _stream = connect(&client, &server, COOKIE).await?;
        assert_eq!((control.step().await?, control.step().await?), (TEST_START, TEST_RUNNING));
        // The server is busy with the test.
        let mut stranger = connect(&client, &server, &[b'x'; 37]).await?;
        assert_eq!(stranger.read_i8().await?, ACCESS_DENIED);
        // The client terminates the test. The server closes the connection and accepts the next client.
        control.tell(CLIENT_TERMINATE).await?;
        assert_eq!(control.0.read(&mut [0]).await?, 0);
        let mut control = Control::begin(&client, &server, COOKIE).await?;
        assert_eq!(control.step().await?, PARAMETER_EXCHANGE);
        Ok(())
    });
}

/// A client's control connection.
struct Control(TcpStream);

impl Control {
    async fn begin(client: &BedHost, server: &BedHost, cookie: &[u8]) -> io::Result<Control> {
        Ok(Control(connect(client, server, cookie).await?))
    }

    async fn ask(&mut self, asked: &Value) -> io::Result<()> {
        assert_eq!(self.step().await?, PARAMETER_EXCHANGE);
        self.write(asked).await
    }

    async fn step(&mut self) -> io::Result<i8> {
        self.0.read_i8().await
    }

    async fn tell(&mut self, step: i8) -> io::Result<()> {
        self.0.write_i8(step).await?;
        AsyncWriteExt::flush(&mut self.0).await
    }

    async fn write(&mut self, value: &Value) -> io::Result<()> {
        let text = value.to_string();
        self.0.write_u32(text.len() as u32).await?;
        self.0.write_all(text.as_bytes()).await?;
        AsyncWriteExt::flush(&mut self.0).await
    }

    async fn read(&mut self) -> io::Result<Value> {
        let length = self.0.read_u32().await?;
        let mut text = vec![0; length as usize];
        self.0.read_exact(&mut text).await?;
        serde_json::from_slice(&text).map_err(|_| ErrorKind::InvalidData.into())
    }
}

async fn connect(client: &BedHost, server: &BedHost, cookie: &[u8]) -> io::Result<TcpStream> {
    let mut stream = client.stack().connect(None, (server.address(), iperf3::PORT).into()).await?;
    stream.write_all(cookie).await?;
    SegmentStream::flush(&mut stream);
    Ok(stream)
}

/// Runs `client` against a server.
fn served(client: impl AsyncFnOnce(BedHost, BedHost) -> io::Result<()>) {
    served_over(LinkConfig::default(), client);
}

fn served_over(link: LinkConfig, client: impl AsyncFnOnce(BedHost, BedHost) -> io::Result<()>) {
    let mut bed = Testbed::builder(Seed(1))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, link)
        .build()
        .unwrap();
    let hosts = (bed.host(1).clone(), bed.host(0).clone());
    let outcome = bed.run_within(Duration::from_secs(600), async {
        let _listening = iperf3::listen(&hosts.1, iperf3::PORT)?;
        client(hosts.0.clone(), hosts.1.clone()).await
    });
    outcome.unwrap();
}

const COOKIE: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz0123456789\0";
const SENT: usize = 300_000;

const TEST_START: i8 = 1;
const TEST_RUNNING: i8 = 2;
const TEST_END: i8 = 4;
const PARAMETER_EXCHANGE: i8 = 9;
const CREATE_STREAMS: i8 = 10;
const CLIENT_TERMINATE: i8 = 12;
const EXCHANGE_RESULTS: i8 = 13;
const DISPLAY_RESULTS: i8 = 14;
const DONE: i8 = 16;
const ACCESS_DENIED: i8 = -1;
const SERVER_ERROR: i8 = -2;
