//! TLS streams with keys known to both ends without a handshake: every suite at no cost, and an unlimited number of key
//! changes.

#![allow(dead_code, reason = "each test file uses its own part")]

use ktls_offload::{KeySchedule, KtlsStream, ScheduleError, TrafficKeys};
use offload_api::{TlsKey, TlsSuite, TlsVersion};
use offload_base::Seed;
use offload_host_stack::TcpStream;
use offload_testbed::BedHost;
use std::io;

/// Version and suite of a record protection.
pub(crate) type TlsCipher = (TlsVersion, TlsSuite);

/// The two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamSide {
    Server,
    Client,
}

impl StreamSide {
    pub(crate) const BOTH: [StreamSide; 2] = [StreamSide::Server, StreamSide::Client];

    pub(crate) fn peer(self) -> StreamSide {
        match self {
            StreamSide::Server => StreamSide::Client,
            StreamSide::Client => StreamSide::Server,
        }
    }
}

/// Accepts a connection at port 443 and starts TLS on it at once.
pub(crate) async fn accept(host: &BedHost, seed: u64, cipher: TlsCipher) -> io::Result<KtlsStream<TcpStream>> {
    let stream = host.stack().listen(443, 4)?.accept().await?;
    Ok(keyed(stream, StreamSide::Server, seed, cipher))
}

/// Connects to the end that called [`accept`].
pub(crate) async fn connect(
    host: &BedHost,
    server: &BedHost,
    seed: u64,
    cipher: TlsCipher,
) -> io::Result<KtlsStream<TcpStream>> {
    let stream = host.stack().connect(None, (server.address(), 443).into()).await?;
    Ok(keyed(stream, StreamSide::Client, seed, cipher))
}

fn keyed(stream: TcpStream, side: StreamSide, seed: u64, cipher: TlsCipher) -> KtlsStream<TcpStream> {
    let mut ratchet = Ratchet { side, seed: Seed(seed), cipher, generations: [0, 0] };
    let keys = TrafficKeys { transmit: (0, ratchet.next(side)), receive: (0, ratchet.next(side.peer())) };
    KtlsStream::new(stream, keys, Box::new(ratchet)).expect("the record layer knows the suite")
}

/// A key schedule that derives one key after the other.
struct Ratchet {
    side: StreamSide,
    seed: Seed,
    cipher: TlsCipher,
    /// Number of keys issued so far for each side's sending direction.
    generations: [u32; 2],
}

impl Ratchet {
    fn next(&mut self, sender: StreamSide) -> TlsKey {
        let generation = &mut self.generations[sender as usize];
        let mut secret = [0; 44];
        self.seed.stream(&format!("{sender:?} key {generation}")).fill(&mut secret);
        // Both ends count each direction alike, so they derive the same key without a message.
        *generation += 1;
        let iv = secret[32..].try_into().expect("12 bytes");
        let (version, suite) = self.cipher;
        TlsKey::new(version, suite, &secret[..suite.key_len()], iv).expect("a key's length")
    }
}

impl KeySchedule for Ratchet {
    fn next_transmit_key(&mut self) -> Result<TlsKey, ScheduleError> {
        Ok(self.next(self.side))
    }

    fn next_receive_key(&mut self) -> Result<TlsKey, ScheduleError> {
        Ok(self.next(self.side.peer()))
    }

    fn store_ticket(&mut self, _: &[u8]) -> Result<(), ScheduleError> {
        Err(ScheduleError::NoTickets)
    }
}
