//! Clients that stop sending: the server closes their connections after a while and removes their files.

use super::medium::RamDisk;
use super::shell;
use core::time::Duration;
use offload_base::Seed;
use offload_reservoir::{Server, ServerLimits};
use offload_testbed::VirtualTime;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The bytes that a client sends before it stops, and the range of seconds in which the server ends the connection.
const STILL: [(&str, u64, u64); 4] = [
    ("", 60, 61),
    ("GET /file HTT", 10, 11),
    ("PUT /new HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nsome", 60, 61),
    ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", 60, 61),
];

#[test]
fn a_client_that_stands_still_is_given_up() {
    for (sent, least, most) in STILL {
        let medium = RamDisk::new(Seed(1));
        let mut executor = VirtualTime::new();
        let shell = shell(Arc::new(executor.handle()));
        let mounted = Arc::new(medium.mount(None));
        let server = Server::new(mounted, shell.clone(), ServerLimits::default()).open_to_all();
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        shell.spawn(async move { server.serve(theirs, "client").await });
        let began = shell.now();
        executor.block_on(async {
            ours.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            ours.read_to_end(&mut answer).await.unwrap();
        });
        let took = (shell.now() - began).as_secs();
        assert!((least..=most).contains(&took), "{sent:?}: after {took} s");
        // The server removes the files after it has closed the connection.
        executor.run_for(Duration::from_secs(1));
        assert_eq!(medium.paths().len(), 0, "{sent:?}: {:?}", medium.paths());
    }
}

/// One byte per second counts as no progress, and keeps its place for one minute.
#[test]
fn a_client_that_trickles_is_given_up() {
    let medium = RamDisk::new(Seed(1));
    let mut executor = VirtualTime::new();
    let shell = shell(Arc::new(executor.handle()));
    let server = Server::new(Arc::new(medium.mount(None)), shell.clone(), ServerLimits::default()).open_to_all();
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    shell.spawn(async move { server.serve(theirs, "client").await });
    let sleeper = shell.clone();
    let seconds = executor.block_on(async move {
        ours.write_all(b"PUT /new HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n").await.unwrap();
        let mut seconds = 0;
        while ours.write_all(b"x").await.is_ok() {
            sleeper.sleep(Duration::from_secs(1)).await;
            seconds += 1;
        }
        seconds
    });
    assert!((60..=62).contains(&seconds), "{seconds}");
}
