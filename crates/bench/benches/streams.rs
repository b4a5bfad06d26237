//! A stream of 64 MiB from end to end, in messages of 256 KiB and records of 16 KiB: our stack over emulated NICs
//! beside tokio-rustls with ring over this machine's own loopback.
//!
//! - `streams/cpu`: CPU time of both hosts together, and (`devices`) of the emulation of the NICs. For kernel sockets,
//!   the time is the whole process's, including copies into and out of the kernel. Seconds per GB are these times
//!   divided by 0.067.
//! - `streams/wall`: time until the last byte, in real time on this machine's cores: hosts and NICs, or two threads and
//!   the kernel. Received data is not checked in either case; an earlier run checked it.
//!
//! Equal in both cases: the bytes, which are read from the same 64 MiB of memory that fit no cache; messages and
//! records; one connection, set up before the clock starts; and an earlier run as warm-up. Different: packets of the
//! loopback have 64 KiB, are not cut, have no checksums, and are copied in and out; ours have the MTU, 1500 bytes
//! except in `mtu-9000`, and are cut, checksummed and joined again. Each of our hosts has a thread of its own with its
//! NIC, if there are two cores, and spins a little before it sleeps; the kernel's two ends have a thread each too,
//! which sleep when idle. Some runs of the kernel take twice as long as others, regardless of core placement: compare
//! ours with its best.
//!
//! Only figures of one run are comparable.

use core::time::Duration;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nic_sim::NicConfig;
use offload_base::Seed;
use offload_bench_tls::bulk::{Bulk, Mode};
use offload_bench_tls::payload::{Checksum, Payload};
use offload_testbed::bed::ClockKind;
use offload_testbed::identity::{self, Randomness};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

fn cpu(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("streams/cpu");
    group.throughput(Throughput::Bytes(BYTES));
    for mode in Mode::ALL {
        group.bench_function(format!("own/{mode}"), |bencher| {
            bencher.iter_custom(|iterations| {
                (0..iterations).map(|_| emulated(mode, ClockKind::Virtual, 1500, true).hosts).sum()
            });
        });
    }
    group.bench_function("own/tls-nic/devices", |bencher| {
        bencher.iter_custom(|iterations| {
            (0..iterations).map(|_| emulated(Mode::TlsNic, ClockKind::Virtual, 1500, true).devices).sum()
        });
    });
    for (name, tls) in [("kernel/tcp", false), ("kernel/tokio-rustls", true)] {
        group.bench_function(name, |bencher| {
            bencher
                .iter_custom(|iterations| (0..iterations).map(|_| kernel(tls).expect("the loopback works").cpu).sum());
        });
    }
}

fn wall(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("streams/wall");
    group.throughput(Throughput::Bytes(BYTES));
    for (mode, mtu) in Mode::ALL.into_iter().map(|mode| (mode, 1500)).chain([(Mode::TlsNic, 9000)]) {
        // A checked run first, which also warms up caches.
        emulated(mode, ClockKind::Real, mtu, true);
        let name = if mtu == 1500 { format!("own/{mode}") } else { format!("own/{mode}/mtu-{mtu}") };
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                (0..iterations).map(|_| emulated(mode, ClockKind::Real, mtu, false).wall).sum()
            });
        });
    }
    for (name, tls) in [("kernel/tcp", false), ("kernel/tokio-rustls", true)] {
        group.bench_function(name, |bencher| {
            bencher
                .iter_custom(|iterations| (0..iterations).map(|_| kernel(tls).expect("the loopback works").wall).sum());
        });
    }
}

/// CPU and wall time of a transfer over emulated NICs.
struct Emulated {
    hosts: Duration,
    devices: Duration,
    wall: Duration,
}

/// The payload of both ends, with its checksum.
static PAYLOAD: LazyLock<(Payload, Checksum)> = LazyLock::new(|| {
    let payload = Payload::seeded(Seed(1), BYTES);
    let checksum = payload.checksum().expect("it is in memory");
    (payload, checksum)
});

fn emulated(mode: Mode, clock: ClockKind, mtu: u16, checked: bool) -> Emulated {
    let (payload, checksum) = PAYLOAD.clone();
    let nic = NicConfig { mtu, ..NicConfig::default() };
    let run = Bulk { clock, nic, checksum: Some(checksum), checked, ..Bulk::new(mode, payload) }.run();
    let run = run.expect("the transfer can be made");
    assert!(run.sha256_ok, "the received data differs from the sent data");
    let spent = |ns_per_byte: f64| Duration::from_secs_f64(ns_per_byte * BYTES as f64 / 1e9);
    Emulated {
        hosts: spent(run.tx_host_ns_per_byte.total + run.rx_host_ns_per_byte.total),
        devices: spent(run.device_ns_per_byte),
        wall: Duration::from_secs_f64(BYTES as f64 * 8.0 / (run.goodput_gbps * 1e9)),
    }
}

/// CPU and wall time of a transfer over the loopback.
struct Kernel {
    cpu: Duration,
    wall: Duration,
}

fn kernel(tls: bool) -> io::Result<Kernel> {
    // The payload is made before the clock starts.
    LazyLock::force(&PAYLOAD);
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let serving = std::thread::spawn(move || on_a_runtime(serve(listener, tls)));
    // The client runs on this thread, the server on its own.
    let measured = on_a_runtime(fetch(address, tls))?;
    serving.join().expect("the server's thread does not panic")?;
    Ok(measured)
}

fn on_a_runtime<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(future)
}

async fn serve(listener: std::net::TcpListener, tls: bool) -> io::Result<()> {
    let (stream, _) = TcpListener::from_std(listener)?.accept().await?;
    stream.set_nodelay(true)?;
    if tls {
        let config = identity::server_config(Randomness::System, None);
        send(TlsAcceptor::from(Arc::new(config)).accept(stream).await?).await
    } else {
        send(stream).await
    }
}

async fn send(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    // The client says `go` after the handshake, so that handshakes are not measured.
    stream.read_exact(&mut [0; 2]).await?;
    for message in PAYLOAD.0.pieces(MESSAGE)? {
        stream.write_all(&message?).await?;
    }
    stream.shutdown().await
}

async fn fetch(address: SocketAddr, tls: bool) -> io::Result<Kernel> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    if tls {
        let config = identity::client_config(Randomness::System, None);
        receive(TlsConnector::from(Arc::new(config)).connect(identity::server_name(), stream).await?).await
    } else {
        receive(stream).await
    }
}

async fn receive(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<Kernel> {
    let mut buffer = vec![0; MESSAGE];
    let (started, cpu_before) = (Instant::now(), process_cpu());
    stream.write_all(b"go").await?;
    stream.flush().await?;
    let mut bytes = 0;
    loop {
        match stream.read(&mut buffer).await? {
            0 => break,
            read => bytes += read as u64,
        }
    }
    assert_eq!(bytes, BYTES, "bytes are missing");
    Ok(Kernel { cpu: process_cpu() - cpu_before, wall: started.elapsed() })
}

fn process_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

const BYTES: u64 = 64 << 20;
const MESSAGE: usize = 256 << 10;

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
    targets = cpu, wall
}
criterion_main!(benches);
