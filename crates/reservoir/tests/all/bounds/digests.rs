//! Requests for digests of whole files.

use super::{BoundsTestbed, head_of};
use core::sync::atomic::Ordering;
use core::time::Duration;
use offload_reservoir::ServerLimits;
use offload_reservoir::copy::{Copy, CopyLocation, PlainDialer, SyncMode};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const SHA256: &str = "want-repr-digest: sha-256=1\r\n\r\n";

fn ask_digest(bed: &mut BoundsTestbed, token: &str, target: &str) -> DuplexStream {
    let mut stream = bed.ask_with(token, &format!("HEAD {target}"));
    bed.executor.block_on(async { stream.write_all(SHA256.as_bytes()).await }).unwrap();
    stream
}

#[test]
fn small_file_digest_passes_huge_file_digests() {
    let mut bed = BoundsTestbed::new(ServerLimits::default());
    // One user requests a hundred digests of two huge files.
    let _huge_requests: Vec<_> = (0..100).map(|n| ask_digest(&mut bed, "abc", ["/huge", "/other"][n % 2])).collect();
    bed.executor.run_for(Duration::from_millis(40));
    for token in ["test", "abc"] {
        let began = bed.shell.now();
        let mut small = ask_digest(&mut bed, token, "/small");
        let head = bed.executor.block_on(head_of(&mut small));
        assert!(head.contains("repr-digest: sha-256=:"), "{head}");
        let took = bed.shell.now() - began;
        assert!(took < Duration::from_millis(200), "{token}: {took:?}");
    }
}

#[test]
fn equal_requests_share_one_computation() {
    let mut bed = BoundsTestbed::new(ServerLimits::default());
    let mut equal: Vec<_> = (0..20).map(|_| ask_digest(&mut bed, "abc", "/huge")).collect();
    bed.executor.run_for(Duration::from_millis(40));
    let read = bed.folders.read.load(Ordering::Relaxed);
    // Twenty separate computations would read more than 50 pieces.
    assert!((20..=50).contains(&read), "{read} pieces of a millisecond each in 40 ms");
    // The computation continues for one request, and ends with the last request.
    equal.truncate(1);
    bed.executor.run_for(Duration::from_millis(40));
    let more = bed.folders.read.load(Ordering::Relaxed);
    assert!(more >= read + 20, "{more} pieces");
    drop(equal);
    bed.executor.run_for(Duration::from_millis(10));
    let ended = bed.folders.read.load(Ordering::Relaxed);
    bed.executor.run_for(Duration::from_secs(1));
    assert_eq!(bed.folders.read.load(Ordering::Relaxed), ended);
}

/// The answer leaves the digest out if the computation would take days. HTTP allows that.
#[test]
fn digest_that_takes_too_long_is_left_out() {
    let mut bed = BoundsTestbed::new(ServerLimits::default());
    let began = bed.shell.now();
    let mut stream = ask_digest(&mut bed, "abc", "/huge");
    bed.executor.run_for(Duration::from_millis(10));
    bed.blocked.store(86_400_000, Ordering::Relaxed);
    let head = bed.executor.block_on(head_of(&mut stream));
    assert!(head.starts_with("HTTP/1.1 200") && !head.contains("repr-digest"), "{head}");
    // The digest would take six days at 16 MiB per second.
    let days = (bed.shell.now() - began).as_secs() / 86_400;
    assert!((6..=9).contains(&days), "{days} days");
    bed.executor.run_for(Duration::from_secs(86_400));
    let read = bed.folders.read.load(Ordering::Relaxed);
    bed.executor.run_for(Duration::from_secs(864_000));
    assert_eq!(bed.folders.read.load(Ordering::Relaxed), read, "nobody waits for it");
}

#[test]
fn copy_by_hash_ends_without_a_hash_from_the_server() {
    let mut bed = BoundsTestbed::new(ServerLimits::default());
    let there = tempfile::tempdir().unwrap();
    std::fs::write(there.path().join("file"), "abc").unwrap();
    let spawner = bed.shell.clone();
    let dial = PlainDialer::new(move |_: &str, _| {
        let (ours, theirs) = tokio::io::duplex(1 << 12);
        spawner.spawn(async move { answer_without_digests(theirs).await });
        Ok(ours)
    });
    let copy = Copy::new(bed.shell.clone(), Arc::new(dial)).sync(SyncMode::Hash).retries(1);
    let to = CopyLocation::parse("https://server/file", None).unwrap();
    let began = bed.shell.now();
    let outcome =
        bed.executor.block_on(copy.run(&[CopyLocation::local(&there.path().join("file")).unwrap()], &to)).unwrap();
    assert_eq!((outcome.copied, outcome.failed.len()), (1, 0), "{outcome:?}");
    // After two minutes without a digest, the client copies the file.
    assert!((120..130).contains(&(bed.shell.now() - began).as_secs()));
}

/// Serves files of three bytes, and never answers a request for a digest.
async fn answer_without_digests(mut stream: DuplexStream) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(byte);
        }
        let head = String::from_utf8(head).unwrap();
        if head.contains("Want-Repr-Digest") {
            return core::future::pending().await;
        }
        if head.starts_with("PUT") {
            stream.read_exact(&mut [0; 3]).await.unwrap();
        }
        let length = if head.starts_with("HEAD") { 3 } else { 0 };
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}
