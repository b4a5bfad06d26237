//! A refused upload releases its name only after its bytes are gone.

use super::medium::RamDisk;
use super::shell;
use core::time::Duration;
use offload_base::Seed;
use offload_reservoir::{Server, ServerLimits};
use offload_testbed::VirtualTime;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// The medium has no extended attributes, so the server refuses the first upload. A concurrent upload of the same name
/// is not harmed.
#[test]
fn a_name_is_free_once_the_bytes_are_gone() {
    let medium = RamDisk::new(Seed(1));
    let mut executor = VirtualTime::new();
    let shell = shell(Arc::new(executor.handle()));
    let server = Server::new(Arc::new(medium.mount(None)), shell.clone(), ServerLimits::default()).open_to_all();
    let connect = || {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let server = server.clone();
        shell.spawn(async move { server.serve(theirs, "client").await });
        ours
    };
    let (mut first, mut second) = (connect(), connect());
    let (refused, other, third) = executor.block_on(async {
        let head = "PUT /new HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n";
        first.write_all(format!("{head}reservoir-attributes: user.a=b\r\n\r\nfirst").as_bytes()).await.unwrap();
        second.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
        let refused = status(&mut first).await;
        second.write_all(b"other").await.unwrap();
        let other = status(&mut second).await;
        shell.sleep(Duration::from_secs(1)).await;
        let mut third = connect();
        third.write_all(format!("{head}\r\nthird").as_bytes()).await.unwrap();
        (refused, other, status(&mut third).await)
    });
    // The second upload came while the first still had the name, and the third after its end.
    assert_eq!((refused, other, third), (422, 423, 201));
    assert_eq!(medium.paths().len(), 1, "{:?}", medium.paths());
}

async fn status(stream: &mut DuplexStream) -> u16 {
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    str::from_utf8(&line[9..]).unwrap().parse().unwrap()
}
