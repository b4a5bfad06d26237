//! A test for continuous integration: bad wires from many seeds, a limit of virtual time, and a capture of each failed
//! run.

use offload_testbed::wire::{Impairments, LinkConfig};
use offload_testbed::{Capture, NicConfig, Seed, TcpConfig, Testbed};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Sends 200 kB over a wire that loses and duplicates packets. The seed determines all random choices.
fn transfer(seed: u64, capture: &Capture) {
    let share = "0.02".parse().unwrap();
    let impairments = Impairments { loss: share, duplicate: share, ..Impairments::default() };
    let mut bed = Testbed::builder(Seed(seed))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig { impairments, ..LinkConfig::default() })
        .captured(capture)
        .build()
        .unwrap();
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let mut listener = server.stack().listen(80, 8).unwrap();
    let address = (server.address(), 80).into();
    server.spawn("server", async move {
        let mut stream = listener.accept().await?;
        stream.write_all(&vec![7; 200_000]).await?; // your protocol's server here
        stream.shutdown().await
    });
    let received = bed.run_within(Duration::from_secs(60), async move {
        let mut stream = client.stack().connect(None, address).await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap(); // and its client here
        received
    });
    assert_eq!(received, vec![7; 200_000]);
}

/// Runs `test` with each seed. `SEED=7` in the environment repeats one run. The capture of a run that panics is kept.
fn with_seeds(name: &str, seeds: Range<u64>, test: impl Fn(u64, &Capture)) {
    let given: Option<u64> = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    for seed in given.map_or(seeds, |seed| seed..seed + 1) {
        let path = capture_path(name, seed);
        println!("SEED={seed}, capture {}", path.display()); // shown if the test fails
        let capture = Capture::create(&path).unwrap();
        test(seed, &capture);
        capture.finish().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

fn capture_path(name: &str, seed: u64) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}.pcapng"))
}

#[test]
fn transfer_survives_loss() {
    with_seeds("transfer", 0..8, transfer);
}

#[test]
fn failed_run_leaves_its_capture() {
    let failed = std::panic::catch_unwind(|| {
        with_seeds("failed", 1000..1001, |seed, capture| {
            transfer(seed, capture);
            panic!("on purpose");
        });
    });
    assert!(failed.is_err());
    let seed = std::env::var("SEED").map_or(1000, |seed| seed.parse().unwrap());
    let path = capture_path("failed", seed);
    assert!(std::fs::metadata(&path).unwrap().len() > 200_000);
    std::fs::remove_file(path).unwrap();
}
