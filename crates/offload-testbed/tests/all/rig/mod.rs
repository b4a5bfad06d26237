//! A TLS transfer from a server to a client, on a testbed in virtual time. Each variable of the transfer is a field.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod stream;

use bytes::Bytes;
use core::net::IpAddr;
use core::time::Duration;
use ktls_offload::{KtlsStream, Offload, TlsCounters};
use nic_sim::NicConfig;
use nic_sim::wire::tap::RecordedFrame;
use nic_sim::wire::{FrameRecorder, LinkConfig, TapDirection};
use offload_base::Seed;
use offload_base::cost::{CpuMeter, CpuReport};
use offload_base::counters::CounterSet;
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use offload_testbed::{BedHost, Capture, Testbed};
use std::io;
use std::sync::Arc;

/// The place where records are sealed and opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CryptoPlace {
    Cpu,
    Nic,
}

/// The server's action after it has written everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerEnding {
    /// Closes, and reads until the client has closed.
    Close,
    /// Drops the stream at once.
    Drop,
    /// Closes the stream, keeps it, and never polls it again.
    Forget,
}

/// The parameters of a transfer.
#[derive(Clone)]
pub(crate) struct Transfer {
    pub(crate) who: CryptoPlace,
    pub(crate) seed: u64,
    pub(crate) writes: Vec<Bytes>,
    pub(crate) record_size: usize,
    pub(crate) nic: NicConfig,
    pub(crate) link: LinkConfig,
    pub(crate) tcp: TcpConfig,
    /// Whether to use IPv6 instead of IPv4.
    pub(crate) ipv6: bool,
    pub(crate) end: ServerEnding,
    /// Delays of resets of the server's NIC: the first after the first write, each other after the previous reset.
    pub(crate) resets: Vec<Duration>,
    /// Delays of resets of the client's NIC.
    pub(crate) client_resets: Vec<Duration>,
    /// A meter from the client's go to the server's close.
    pub(crate) meter: Option<CpuMeter>,
    /// A capture of a host's NIC, with the secrets.
    pub(crate) capture: Option<(Capture, Host)>,
}

/// The two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Server,
    Client,
}

/// The result of a transfer.
pub(crate) struct TransferOutcome {
    pub(crate) received: Vec<u8>,
    pub(crate) seen: Vec<RecordedFrame>,
    pub(crate) counters: CounterSet,
    pub(crate) server_tls: Option<TlsCounters>,
    pub(crate) client_tls: TlsCounters,
    pub(crate) report: CpuReport,
}

impl Transfer {
    pub(crate) fn new(who: CryptoPlace, seed: u64, writes: Vec<Bytes>) -> Transfer {
        Transfer {
            who,
            seed,
            writes,
            record_size: 16 * 1024,
            nic: NicConfig::default(),
            link: LinkConfig::default(),
            tcp: TcpConfig::default(),
            ipv6: false,
            end: ServerEnding::Close,
            resets: Vec::new(),
            client_resets: Vec::new(),
            meter: None,
            capture: None,
        }
    }

    pub(crate) fn sent(&self) -> Vec<u8> {
        self.writes.concat()
    }

    pub(crate) fn run(&self) -> TransferOutcome {
        let recorder = FrameRecorder::default();
        // The capture and the recorder see the left end of the wire.
        let (left, right) = match &self.capture {
            Some((_, Host::Client)) => (1, 0),
            _ => (0, 1),
        };
        let mut builder = Testbed::builder(Seed(self.seed))
            .host("server", self.nic.clone(), self.tcp.clone())
            .host("client", self.nic.clone(), self.tcp.clone())
            .wire(left, right, self.link.clone())
            .recorded(&recorder);
        if let Some((capture, _)) = &self.capture {
            builder = builder.captured(capture);
        }
        let mut bed = builder.build().unwrap();
        let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
        // The meter is attached after building, so that it measures the transfer alone.
        let attached = self.meter.as_ref().map(CpuMeter::attach);
        let serving = server.spawn("application", serve(self.clone(), server.clone()));
        let fetching = client.spawn("application", fetch(self.clone(), client.clone(), server.clone()));
        let context = format!("seed {}", self.seed);
        let (received, client_tls) = bed.run_within(ENOUGH, fetching).expect(&context);
        // A forgotten stream stays alive until here, although nobody polls it.
        let kept = bed.run_within(ENOUGH, serving).expect(&context);
        drop(attached);
        let server_tls = kept.map(|stream| *stream.counters());
        let report = self.meter.as_ref().map(CpuMeter::take).unwrap_or_default();
        TransferOutcome { received, seen: recorder.take(), counters: bed.counters(), server_tls, client_tls, report }
    }
}

async fn serve(transfer: Transfer, host: BedHost) -> io::Result<Option<KtlsStream<TcpStream>>> {
    let mut listener = host.stack().listen(443, 4)?;
    let stream = listener.accept().await?;
    let randomness = Randomness::Seeded(Seed(transfer.seed).derive("server"));
    let key_log = transfer.capture.clone().map(|(capture, _)| Arc::new(capture) as Arc<dyn rustls::KeyLog>);
    let mut stream = ktls_offload::accept(stream, Arc::new(server_config(randomness, key_log))).await?;
    stream.set_record_size(transfer.record_size);
    offload(&mut stream, transfer.who).await?;
    assert_eq!(stream.next_chunk().await?.as_deref(), Some(&b"!"[..]));
    if let Some(meter) = &transfer.meter {
        // Handshake and offload setup are not part of the measured transfer.
        meter.restart();
    }
    for delay in transfer.resets.clone() {
        reset_after(&host, delay);
    }
    let mut resets = 0;
    for write in &transfer.writes {
        // A reset moves the stream to software; asking again at each write brings it back soon.
        offload_again(&mut stream, transfer.who, &mut resets);
        stream.send_chunk(write.clone()).await?;
    }
    match transfer.end {
        ServerEnding::Drop => return Ok(None),
        ServerEnding::Forget => stream.close().await?,
        ServerEnding::Close => {
            stream.close().await?;
            while stream.next_chunk().await?.is_some() {}
        }
    }
    Ok(Some(stream))
}

async fn fetch(transfer: Transfer, host: BedHost, server: BedHost) -> io::Result<(Vec<u8>, TlsCounters)> {
    let to = if transfer.ipv6 { IpAddr::from(server.ipv6_address()) } else { server.address().into() };
    let stream = host.stack().connect(None, (to, 443).into()).await?;
    let randomness = Randomness::Seeded(Seed(transfer.seed).derive("client"));
    let mut stream = ktls_offload::connect(stream, Arc::new(client_config(randomness, None)), server_name()).await?;
    stream.set_record_size(transfer.record_size);
    offload(&mut stream, transfer.who).await?;
    stream.send_chunk(Bytes::from_static(b"!")).await?;
    for delay in transfer.client_resets.clone() {
        reset_after(&host, delay);
    }
    let (mut received, mut resets) = (Vec::new(), 0);
    loop {
        match stream.next_chunk().await {
            Ok(Some(chunk)) => received.extend_from_slice(&chunk),
            Ok(None) if transfer.end != ServerEnding::Drop => break,
            Ok(None) => return Err(io::Error::other("a stream that was dropped looks like one that was closed")),
            // RFC 8446 6.1: an end without close_notify may be a truncation and must be an error.
            Err(error) if transfer.end == ServerEnding::Drop && error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        offload_again(&mut stream, transfer.who, &mut resets);
    }
    stream.close().await?;
    Ok((received, *stream.counters()))
}

/// Moves both directions back to the device after a reset.
fn offload_again(stream: &mut KtlsStream<TcpStream>, who: CryptoPlace, resets: &mut u64) {
    let seen = stream.counters().device_resets;
    if who == CryptoPlace::Nic && core::mem::replace(resets, seen) != seen {
        stream.offload(Offload::BOTH);
    }
}

async fn offload(stream: &mut KtlsStream<TcpStream>, who: CryptoPlace) -> io::Result<()> {
    if who == CryptoPlace::Nic {
        // Retransmissions must not move the flow to software: the tests want the device to handle them.
        stream.set_retransmit_limit(None);
        stream.offload(Offload::BOTH);
        stream.ready().await?;
    }
    Ok(())
}

fn reset_after(host: &BedHost, delay: Duration) {
    let (host, runtime) = (host.clone(), host.runtime());
    let _runs_on = host.clone().spawn("reset", async move {
        runtime.sleep(delay).await;
        host.reset_device();
    });
}

/// Reassembles each direction of a TCP connection, `[outbound, inbound]`, without SYN and FIN. Bytes that passed twice
/// must be equal.
pub(crate) fn streams(seen: &[RecordedFrame]) -> [Vec<u8>; 2] {
    [TapDirection::Outbound, TapDirection::Inbound].map(|direction| {
        let mut bytes: Vec<Option<u8>> = Vec::new();
        let mut first = None;
        for seen in seen.iter().filter(|seen| seen.direction == direction) {
            let Some((seq, syn, payload)) = tcp(&seen.frame.data) else { continue };
            if syn {
                first = Some(seq.wrapping_add(1));
            }
            let Some(first) = first else { continue };
            let at = seq.wrapping_add(u32::from(syn)).wrapping_sub(first);
            if payload.is_empty() {
                continue;
            }
            let (at, end) = (at as usize, at as usize + payload.len());
            bytes.resize(bytes.len().max(end), None);
            for (sent, byte) in bytes[at..end].iter_mut().zip(payload) {
                let before = sent.replace(*byte);
                assert!(before.is_none_or(|before| before == *byte), "a byte was sent again as another");
            }
        }
        bytes.into_iter().flatten().collect()
    })
}

/// Returns sequence number, SYN flag and payload of a TCP segment over IPv4 if its checksum is right.
pub(crate) fn tcp(frame: &[u8]) -> Option<(u32, bool, &[u8])> {
    use smoltcp::wire::{EthernetFrame, Ipv4Packet, TcpPacket};
    let ip = Ipv4Packet::new_checked(EthernetFrame::new_checked(frame).ok()?.payload()).ok()?;
    let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
    let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
    if !ip.verify_checksum() || !tcp.verify_checksum(&source, &destination) {
        return None;
    }
    let payload = tcp.payload().len();
    let end = 14 + usize::from(ip.total_len());
    Some((tcp.seq_number().0 as u32, tcp.syn(), &frame[end - payload..end]))
}

/// Returns data that repeats a marker too long for ciphertext to contain by chance.
pub(crate) fn marked(bytes: usize) -> Bytes {
    MARKER.iter().copied().cycle().take(bytes).collect()
}

/// Limit of virtual time for all waits: covers timeouts, but catches a wait without an end.
const ENOUGH: Duration = Duration::from_secs(3600);
pub(crate) const MARKER: &[u8] = b"this must never be seen on the wire. ";
