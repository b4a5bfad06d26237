//! Connections without a token, with a token, and of one user.

use super::{BoundsTestbed, head_of};
use core::net::IpAddr;
use core::time::Duration;
use offload_reservoir::ServerLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

impl BoundsTestbed {
    /// Opens a connection from `address`. Returns `None` if the server has no slot for the connection.
    fn enter(&mut self, address: [u8; 4]) -> Option<DuplexStream> {
        let slot = self.server.enter(IpAddr::from(address))?;
        let (ours, theirs) = tokio::io::duplex(1 << 12);
        let (server, peer) = (self.server.clone(), format!("{}:1", IpAddr::from(address)));
        self.shell.spawn(async move { server.serve_in(slot, theirs, &peer).await });
        Some(ours)
    }

    /// Returns the status of the answer to a request with a token.
    fn status(&mut self, stream: &mut DuplexStream, target: &str, token: &str) -> u16 {
        let request = format!("GET {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
        let head = self.executor.block_on(async {
            stream.write_all(request.as_bytes()).await.unwrap();
            head_of(stream).await
        });
        head[9..12].parse().unwrap()
    }

    /// Counts the connections that have ended.
    fn ended(&mut self, streams: &mut [DuplexStream]) -> usize {
        self.executor.run_for(Duration::from_millis(10));
        let ended = streams.iter_mut().filter_map(|stream| {
            let mut bytes = [0; 256];
            let read = self.executor.block_on(async {
                tokio::select! {
                    biased;
                    read = stream.read(&mut bytes) => Some(read),
                    () = core::future::ready(()) => None,
                }
            });
            read.filter(|read| read.as_ref().is_ok_and(|bytes| *bytes == 0))
        });
        ended.count()
    }
}

fn limited(connections: usize) -> BoundsTestbed {
    BoundsTestbed::new(ServerLimits { connections, ..ServerLimits::default() })
}

const ONE: [u8; 4] = [192, 0, 2, 1];
const OTHER: [u8; 4] = [192, 0, 2, 2];

#[test]
fn connections_without_a_token_leave_slots_to_others() {
    let mut bed = limited(8);
    let mut strangers: Vec<_> = (0..20).map(|_| bed.enter(ONE).unwrap()).collect();
    // An invalid token has the same effect as no token.
    let last = strangers.len() - 1;
    assert_eq!(bed.status(&mut strangers[last], "/small", "guess"), 401);
    for from in [OTHER, ONE] {
        let mut known = bed.enter(from).unwrap();
        assert_eq!(bed.status(&mut known, "/small", "abc"), 200);
    }
    assert_eq!(bed.ended(&mut strangers), 14);
}

#[test]
fn idle_connection_gives_way_and_a_busy_one_does_not() {
    let mut bed = limited(2);
    let [mut idle, mut busy] = [ONE, OTHER].map(|from| bed.enter(from).unwrap());
    assert_eq!(bed.status(&mut busy, "/huge", "abc"), 200);
    assert_eq!(bed.status(&mut idle, "/none", "abc"), 404);
    let mut rest = [0; 10];
    bed.executor.block_on(idle.read_exact(&mut rest)).unwrap();
    bed.executor.run_for(Duration::from_millis(10));
    let mut new = bed.enter(OTHER).unwrap();
    assert_eq!((bed.ended(&mut [idle]), bed.status(&mut new, "/huge", "test")), (1, 200));
    assert!(bed.enter(ONE).is_none(), "two downloads are under way");
    let mut read = vec![0; 1 << 20];
    bed.executor.block_on(busy.read_exact(&mut read)).unwrap();
    drop(busy);
    bed.executor.run_for(Duration::from_millis(10));
    assert!(bed.enter(ONE).is_some());
}

#[test]
fn one_user_leaves_slots_to_others() {
    let mut bed = limited(128);
    let mut readers: Vec<_> = (0..127).map(|_| bed.enter(ONE).unwrap()).collect();
    let statuses: Vec<u16> = readers.iter_mut().map(|stream| bed.status(stream, "/huge", "abc")).collect();
    assert_eq!(statuses, [vec![200; 126], vec![503]].concat());
    let mut other = bed.enter(ONE).unwrap();
    assert_eq!(bed.status(&mut other, "/huge", "test"), 200);
    // The end of a download frees a slot.
    drop(readers.remove(0));
    bed.executor.run_for(Duration::from_millis(10));
    let mut again = bed.enter(ONE).unwrap();
    assert_eq!(bed.status(&mut again, "/huge", "abc"), 200);
}
