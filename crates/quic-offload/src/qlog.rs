//! What connections did, event by event (qlog, draft-ietf-quic-qlog-quic-events-12): packets sent, received and lost, windows, round trips,
//! timers; for qvis and its like.

use core::fmt;
use core::net::SocketAddr;
use noq_proto::{ConnectionId, QlogConfig, QlogFactory, Side, TransportConfig};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Says where the events of each connection are written, as JSON-SEQ. Times in it are milliseconds on the endpoint's clock, so that
/// those of both ends of a testbed can be laid beside each other.
///
/// ```
/// use quic_offload::{Config, Qlog, QlogConnection};
///
/// let clients = |of: &QlogConnection| -> Option<Box<dyn std::io::Write + Send + Sync>> {
///     of.is_client.then(|| Box::new(std::io::sink()) as _)
/// };
/// let config = Config::default().with(|config| config.qlog = Some(Qlog::new(clients)));
/// assert!(config.qlog.is_some());
/// ```
#[derive(Clone)]
pub struct Qlog(Arc<Open>);

type Open = dyn Fn(&QlogConnection) -> Option<Box<dyn Write + Send + Sync>> + Send + Sync;

/// A connection whose events may be written.
///
/// ```
/// let of = quic_offload::QlogConnection { is_client: true, remote: ([192, 0, 2, 1], 443).into(), name: "0a1b".into() };
/// assert_eq!(of.file_name(), "client-0a1b.sqlog");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QlogConnection {
    /// At this end is its client.
    pub is_client: bool,
    /// Where the other end is.
    pub remote: SocketAddr,
    /// The connection ID that its client chose first, in hexadecimal digits: the same at both ends.
    pub name: String,
}

impl QlogConnection {
    /// What a file with its events may be called.
    pub fn file_name(&self) -> String {
        format!("{}-{}.sqlog", if self.is_client { "client" } else { "server" }, self.name)
    }
}

impl Qlog {
    /// Asks `open` for each connection; `None`: nothing is written.
    pub fn new(open: impl Fn(&QlogConnection) -> Option<Box<dyn Write + Send + Sync>> + Send + Sync + 'static) -> Qlog {
        Qlog(Arc::new(open))
    }

    /// A file for each connection in a folder that is there. A connection whose file cannot be made goes on without.
    pub fn folder(folder: impl Into<PathBuf>) -> Qlog {
        let folder = folder.into();
        Qlog::new(move |of| {
            let file = File::create(folder.join(of.file_name())).ok()?;
            Some(Box::new(BufWriter::new(file)))
        })
    }

    pub(crate) fn apply(&self, epoch: Instant, transport: &mut TransportConfig) {
        transport.qlog_factory(Arc::new(Factory { open: self.0.clone(), epoch }));
    }
}

impl fmt::Debug for Qlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Qlog(..)")
    }
}

struct Factory {
    open: Arc<Open>,
    epoch: Instant,
}

impl QlogFactory for Factory {
    fn for_connection(&self, side: Side, remote: SocketAddr, cid: ConnectionId, _: Instant) -> Option<QlogConfig> {
        let of = QlogConnection { is_client: side.is_client(), remote, name: cid.to_string() };
        let mut config = QlogConfig::new((self.open)(&of)?);
        config.start_time(self.epoch);
        Some(config)
    }
}
