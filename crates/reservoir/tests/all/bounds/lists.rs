//! Limits of folder lists.

use super::{BoundsTestbed, head_of};
use core::sync::atomic::Ordering;
use core::time::Duration;
use offload_reservoir::ServerLimits;
use offload_reservoir::copy::CopyLocation;
use std::sync::Arc;
use tokio::io::AsyncReadExt;

#[test]
fn list_is_read_no_further_than_its_client_reads() {
    let mut bed = BoundsTestbed::new(ServerLimits::default());
    let mut readers: Vec<_> = (0..20).map(|_| bed.ask("GET /")).collect();
    for reader in &mut readers {
        bed.executor.block_on(async { tokio::io::AsyncWriteExt::write_all(reader, b"\r\n").await }).unwrap();
    }
    bed.executor.run_for(Duration::from_secs(5));
    let listed = bed.folders.listed.load(Ordering::Relaxed);
    assert!((20 * 512..20 * 64_000).contains(&listed), "{listed} entries");
    bed.executor.run_for(Duration::from_secs(5));
    assert_eq!(bed.folders.listed.load(Ordering::Relaxed), listed, "nobody has read");
    // One client reads, and its list continues. The other clients disconnect, and their lists end.
    assert_eq!(Arc::strong_count(&bed.folders.lists), 21);
    readers.truncate(1);
    let mut read = vec![0; 4 << 20];
    bed.executor.block_on(readers[0].read_exact(&mut read)).unwrap();
    assert!(bed.folders.listed.load(Ordering::Relaxed) > listed + 50_000);
    assert_eq!(Arc::strong_count(&bed.folders.lists), 2);
    drop(readers);
    bed.executor.run_for(Duration::from_secs(1));
    assert_eq!(Arc::strong_count(&bed.folders.lists), 1);
}

/// A client must not take a list that breaks off for a shorter list.
#[test]
fn list_that_fails_half_way_is_reported_as_cut_off() {
    let mut bed = BoundsTestbed::new(ServerLimits::default());
    let there = tempfile::tempdir().unwrap();
    let source = CopyLocation::parse("https://server/broken", Some("abc")).unwrap();
    let copy = bed.copy();
    let listed = bed.executor.block_on(copy.list(&[source], &CopyLocation::local(there.path()).unwrap()));
    assert!(listed.is_err(), "{} files", listed.unwrap().len());
    let mut stream = bed.ask("GET /broken");
    let text = bed.executor.block_on(async {
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"\r\n").await.unwrap();
        assert!(head_of(&mut stream).await.contains("transfer-encoding: chunked"));
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await.unwrap();
        text
    });
    assert!(text.len() > 10_000 && !text.ends_with(b"0\r\n\r\n"));
}

#[test]
fn client_refuses_a_list_without_an_end() {
    let mut bed = BoundsTestbed::new(ServerLimits::default());
    let there = tempfile::tempdir().unwrap();
    let source = CopyLocation::parse("https://server/", Some("abc")).unwrap();
    let copy = bed.copy();
    let listed = bed.executor.block_on(copy.list(&[source], &CopyLocation::local(there.path()).unwrap()));
    assert!(listed.err().unwrap().to_string().contains("more than a million entries"));
    let listed = bed.folders.listed.load(Ordering::Relaxed);
    assert!((1_000_000..1_100_000).contains(&listed), "{listed} entries");
}
