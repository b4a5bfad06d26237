//! Event logs of connections (qlog, draft-ietf-quic-qlog-quic-events-12), for viewers such as qvis: packets sent,
//! received and lost, congestion windows, round-trip times, timers.

use core::fmt;
use core::net::SocketAddr;
use noq_proto::{ConnectionId, QlogConfig, QlogFactory, Side, TransportConfig};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Opens an event log, in JSON-SEQ, for each connection. Times are in milliseconds of the endpoint's clock, so that
/// logs of both ends of a testbed can be compared.
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
pub struct Qlog(Arc<QlogOpener>);

type QlogOpener = dyn Fn(&QlogConnection) -> Option<Box<dyn Write + Send + Sync>> + Send + Sync;

/// A connection that may be logged.
///
/// ```
/// let of = quic_offload::QlogConnection { is_client: true, remote: ([192, 0, 2, 1], 443).into(), name: "0a1b".into() };
/// assert_eq!(of.file_name(), "client-0a1b.sqlog");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QlogConnection {
    /// Whether this end is the client.
    pub is_client: bool,
    /// The other end's address.
    pub remote: SocketAddr,
    /// The first destination connection ID that the client chose, in hexadecimal; the same at both ends.
    pub name: String,
}

impl QlogConnection {
    /// Returns a file name for the log.
    pub fn file_name(&self) -> String {
        format!("{}-{}.sqlog", if self.is_client { "client" } else { "server" }, self.name)
    }
}

impl Qlog {
    /// Creates a log for each connection for which `open` returns a writer.
    pub fn new(open: impl Fn(&QlogConnection) -> Option<Box<dyn Write + Send + Sync>> + Send + Sync + 'static) -> Qlog {
        Qlog(Arc::new(open))
    }

    /// Writes a file per connection into an existing folder. If a file cannot be created, the connection goes on
    /// without a log.
    pub fn folder(folder: impl Into<PathBuf>) -> Qlog {
        let folder = folder.into();
        Qlog::new(move |of| {
            let file = File::create(folder.join(of.file_name())).ok()?;
            Some(Box::new(BufWriter::new(file)))
        })
    }

    pub(crate) fn apply(&self, epoch: Instant, transport: &mut TransportConfig) {
        transport.qlog_factory(Arc::new(EndpointQlogFactory { open: self.0.clone(), epoch }));
    }
}

impl fmt::Debug for Qlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Qlog(..)")
    }
}

struct EndpointQlogFactory {
    open: Arc<QlogOpener>,
    epoch: Instant,
}

impl QlogFactory for EndpointQlogFactory {
    fn for_connection(&self, side: Side, remote: SocketAddr, cid: ConnectionId, _: Instant) -> Option<QlogConfig> {
        let of = QlogConnection { is_client: side.is_client(), remote, name: cid.to_string() };
        let mut config = QlogConfig::new((self.open)(&of)?);
        config.start_time(self.epoch);
        Some(config)
    }
}
