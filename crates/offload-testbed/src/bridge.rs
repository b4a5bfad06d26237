//! Relays between the kernel's sockets and emulated hosts: byte streams cross the boundary, so that ordinary programs
//! can talk to emulated hosts.
//!
//! ```text
//!  program -- kernel TCP --> [bridge on a host] -- emulated TCP: stack, NIC, wire --> host    inward
//!  host -- emulated TCP: wire, NIC, stack --> [bridge on a host] -- kernel TCP --> program    outward
//! ```
//!
//! Invariant: each side sees the other side's actions. Bytes arrive in order, the end of one direction ends only that
//! direction, and a connection lost on one side is reset on the other.
//!
//! Works in real time only, because the kernel's sockets know no virtual time.

use crate::bed::BedHost;
use core::convert::Infallible;
use core::net::SocketAddr;
use offload_api::SegmentStream;
use offload_host_stack::{TcpListener, TcpStream};
use std::io;
use tokio::io::copy_bidirectional;
use tokio::net;

/// Accepts connections at a kernel's `listener` and relays each to `to` from the emulated `host`, concurrently.
///
/// If the far connection fails, the accepted connection is reset.
///
/// ```
/// use offload_host_stack::TcpConfig;
/// use nic_sim::NicConfig;
/// use nic_sim::wire::LinkConfig;
/// use offload_base::Seed;
/// use std::io::Write;
/// use offload_testbed::{ClockKind, Testbed, bridge};
/// use tokio::io::AsyncReadExt;
///
/// let mut bed = Testbed::builder(Seed(1))
///     .clock(ClockKind::Real)
///     .host("server", NicConfig::default(), TcpConfig::default())
///     .host("client", NicConfig::default(), TcpConfig::default())
///     .wire(0, 1, LinkConfig::default())
///     .build()?;
/// let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
///
/// let mut port = server.stack().listen(7, 8)?;
/// let kernel = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let address = kernel.local_addr()?;
/// let to = (server.address(), 7).into();
/// client.spawn("bridge", bridge::inward(kernel, client.clone(), to));
///
/// // Any program:
/// std::net::TcpStream::connect(address)?.write_all(b"hello")?;
///
/// let mut heard = String::new();
/// bed.run(async { port.accept().await?.read_to_string(&mut heard).await })?;
/// assert_eq!(heard, "hello");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If no more connections can be accepted; `Unsupported` outside of real time.
pub async fn inward(listener: std::net::TcpListener, host: BedHost, to: SocketAddr) -> io::Result<Infallible> {
    real_time()?;
    listener.set_nonblocking(true)?;
    let listener = net::TcpListener::from_std(listener)?;
    loop {
        let (kernel, _) = listener.accept().await?;
        // The connection is started here, so that its task only waits for it.
        let dialing = host.stack().connect(None, to);
        let _runs_on = host.spawn("bridged connection", async move {
            match dialing.await {
                Ok(emulated) => carry(kernel, emulated).await.map(drop),
                Err(error) => kernel.set_zero_linger().and(Err(error)),
            }
        });
    }
}

/// Accepts connections at an emulated `listener` and relays each to `to`, a socket of the kernel, concurrently. The
/// time is charged to `host`.
///
/// If the far connection fails, the accepted connection is reset. [`inward`] has an example of the other direction.
///
/// # Errors
/// If no more connections can be accepted; `Unsupported` outside of real time.
pub async fn outward(mut listener: TcpListener, host: BedHost, to: SocketAddr) -> io::Result<Infallible> {
    real_time()?;
    loop {
        let mut emulated = listener.accept().await?;
        let _runs_on = host.spawn("bridged connection", async move {
            match net::TcpStream::connect(to).await {
                Ok(kernel) => carry(kernel, emulated).await.map(drop),
                Err(error) => {
                    emulated.abort();
                    Err(error)
                }
            }
        });
    }
}

/// Relays bytes both ways until both directions have ended. Returns the number of bytes into the emulation and out of
/// it.
///
/// # Errors
/// If either side fails; the other side has then been reset.
pub async fn carry(mut kernel: net::TcpStream, mut emulated: TcpStream) -> io::Result<(u64, u64)> {
    // The original sender has applied Nagle's algorithm already.
    kernel.set_nodelay(true)?;
    emulated.set_nodelay(true);
    let carried = copy_bidirectional(&mut kernel, &mut emulated).await;
    if carried.is_err() {
        emulated.abort();
        // If the kernel refuses, the socket closes in order, and the peer notices the loss only by its own protocol.
        let _ = kernel.set_zero_linger();
    }
    carried
}

/// Checks that tokio, which serves the kernel's sockets, runs this task.
fn real_time() -> io::Result<()> {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "a bridge to the kernel's sockets needs real time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::{ClockKind, Testbed};
    use nic_sim::NicConfig;
    use nic_sim::wire::LinkConfig;
    use offload_base::Seed;
    use offload_host_stack::TcpConfig;
    use std::io::{Read, Write};
    use std::net;
    use std::thread;
    use tokio::io::AsyncReadExt;

    fn bed(clock: ClockKind) -> (Testbed, BedHost, BedHost) {
        let bed = Testbed::builder(Seed(1))
            .clock(clock)
            .host("server", NicConfig::default(), TcpConfig::default())
            .host("client", NicConfig::default(), TcpConfig::default())
            .wire(0, 1, LinkConfig::default())
            .build()
            .expect("threads");
        let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
        (bed, server, client)
    }

    fn kernel() -> (net::TcpListener, SocketAddr) {
        let listener = net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        (listener, address)
    }

    fn error(result: io::Result<usize>) -> io::ErrorKind {
        result.expect_err("the connection is lost").kind()
    }

    #[test]
    fn directions_end_one_by_one() {
        let (mut bed, server, client) = bed(ClockKind::Real);
        let mut listener = server.stack().listen(7, 4).expect("free");
        let (port, address) = kernel();
        let _runs_on = client.spawn("bridge", inward(port, client.clone(), (server.address(), 7).into()));
        let program = thread::spawn(move || {
            let mut socket = net::TcpStream::connect(address)?;
            socket.write_all(b"question")?;
            socket.shutdown(net::Shutdown::Write)?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).map(|_| answer)
        });
        let question = bed.run(async {
            let mut stream = listener.accept().await?;
            let mut question = String::new();
            stream.read_to_string(&mut question).await?;
            stream.send("answer".into(), offload_api::TxTag::PLAIN);
            stream.finish();
            io::Result::Ok(question)
        });
        assert_eq!(question.expect("all of it"), "question");
        assert_eq!(program.join().expect("no panic").expect("all of it"), "answer");
    }

    #[test]
    fn reset_crosses_the_bridge() {
        let (mut bed, server, client) = bed(ClockKind::Real);
        let mut listener = server.stack().listen(7, 4).expect("free");
        let (port, address) = kernel();
        let _runs_on = client.spawn("bridge", inward(port, client.clone(), (server.address(), 7).into()));

        // A reset inside the emulation.
        let mut socket = net::TcpStream::connect(address).expect("somebody listens");
        bed.run(listener.accept()).expect("a connection").abort();
        assert_eq!(error(socket.read(&mut [0])), io::ErrorKind::ConnectionReset);

        // A reset outside: the kernel resets a connection that closes with unread data.
        let socket = net::TcpStream::connect(address).expect("somebody listens");
        let heard = bed.run(async {
            let mut stream = listener.accept().await?;
            stream.send("unheard".into(), offload_api::TxTag::PLAIN);
            stream.flush();
            tokio::task::spawn_blocking(move || {
                socket.peek(&mut [0]).expect("it is there");
                drop(socket);
            })
            .await?;
            stream.read(&mut [0]).await
        });
        assert_eq!(error(heard), io::ErrorKind::ConnectionReset);

        // No host listens.
        let (port, address) = kernel();
        let _runs_on = client.spawn("bridge", inward(port, client.clone(), (server.address(), 8).into()));
        let mut socket = net::TcpStream::connect(address).expect("the bridge listens");
        assert_eq!(error(socket.read(&mut [0])), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn missing_listener_outside_resets_inside() {
        let (mut bed, server, client) = bed(ClockKind::Real);
        let listener = server.stack().listen(7, 4).expect("free");
        let (port, address) = kernel();
        drop(port);
        let _runs_on = server.spawn("bridge", outward(listener, server.clone(), address));
        let heard = bed.run(async {
            let mut stream = client.stack().connect(None, (server.address(), 7).into()).await?;
            stream.read(&mut [0]).await
        });
        assert_eq!(error(heard), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn virtual_time_has_no_kernel() {
        let (mut bed, server, client) = bed(ClockKind::Virtual);
        let to = (server.address(), 7).into();
        let refused = bed.run(inward(kernel().0, client, to));
        assert_eq!(refused.expect_err("no tokio runs this").kind(), io::ErrorKind::Unsupported);
    }
}
