//! What can go wrong, and whose fault it is.

use crate::core::queue::{Buffer, QueueError};
use crate::wire::Status;
use std::io;
use std::sync::Arc;

/// A host is not connected to its controller.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The stream could not be opened, or was lost.
    #[error("the stream failed: {0}")]
    Stream(Arc<io::Error>),
    /// A connection ended.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The controller refused a command without which nothing goes on.
    #[error("the controller refuses {command}: {status} (result {result:#x})")]
    Refused {
        /// Which.
        command: &'static str,
        /// Why.
        status: Status,
        /// What it said beside it.
        result: u64,
    },
    /// The target has no subsystem of this name for this host.
    #[error("there is no subsystem `{subsystem}` at the target: check the NQN, or list those that exist by discovery")]
    NoSubsystem {
        /// The NQN that was asked for.
        subsystem: String,
        /// The answer to Connect.
        status: Status,
    },
    /// The controller cannot be used by this host.
    #[error("the controller cannot be used: {0}")]
    Unsuitable(Unsuitable),
    /// It took too long.
    #[error("{0} took too long")]
    TimedOut(&'static str),
    /// The caller's wish.
    #[error("the host was closed")]
    Closed,
    /// One of the host's tasks was dropped, or has panicked: nothing can be done any more.
    #[error("a task of the host is gone")]
    TaskLost,
}

/// Why a host cannot use a controller.
///
/// ```
/// use nvme_tcp::host::{HostError, Unsuitable};
///
/// let error = HostError::Unsuitable(Unsuitable::NoKeepAlive);
/// assert!(error.to_string().ends_with("set `HostConfig::keep_alive` to zero"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsuitable {
    /// IOCCSZ or IORCSZ.
    #[error("its capsules are too small for commands")]
    SmallCapsules,
    /// SGLS.
    #[error("it does not know SGLs")]
    NoSgls,
    /// ICDOFF.
    #[error("data in its capsules do not follow the command")]
    DataOffset,
    /// CAP.MQES.
    #[error("its queues have no room")]
    NoRoom,
    /// CSTS.CFS: it has to be reset by those who look after it.
    #[error("it has failed")]
    Failed,
    /// Its answer to Identify is no structure of 4096 bytes.
    #[error("it does not identify itself")]
    Unidentified,
    /// CNTLID.
    #[error("it is not the controller that was connected to")]
    Another,
    /// KAS.
    #[error("it knows no keep-alive: set `HostConfig::keep_alive` to zero")]
    NoKeepAlive,
    /// AUTHREQ.
    #[error("it demands authentication, which this host does not support")]
    Authentication,
    /// A log page of another format, or shorter than it says.
    #[error("its discovery log cannot be parsed")]
    DiscoveryLog,
}

impl HostError {
    /// Trying again would come to the same.
    pub(super) fn is_final(&self) -> bool {
        match self {
            HostError::Refused { status, .. } | HostError::NoSubsystem { status, .. } => status.do_not_retry(),
            HostError::Unsuitable(_) | HostError::Closed | HostError::TaskLost => true,
            _ => false,
        }
    }
}

impl HostError {
    /// It may be that the other side has not noticed.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            HostError::Queue(error) => matches!(error, QueueError::TimedOut),
            // What a system says of a peer that does not answer has many names, a router's or a neighbour's for some.
            HostError::Stream(error) => !was_told(error.kind()),
            HostError::TimedOut(_) => true,
            _ => false,
        }
    }
}

/// Whether a stream that ended so ended at both sides: by the other one, or by a reset that was sent to it.
fn was_told(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | UnexpectedEof)
}

impl From<io::Error> for HostError {
    fn from(error: io::Error) -> HostError {
        HostError::Stream(Arc::new(error))
    }
}

/// A command failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The controller says so.
    #[error("{0}")]
    Status(Status),
    /// The controller is out of reach, and the host has given up. Whether a command that was under way was carried out is
    /// not known.
    #[error("the controller is out of reach: {0}")]
    Lost(HostError),
    /// The connection was lost under the command, which must not be carried out twice, or is not to be sent to another
    /// controller while the first may carry it out: it was not sent again. Without a keep-alive, it may still be carried out
    /// after this.
    #[error("whether the command was carried out is not known, so it was not sent again: {0}")]
    Uncertain(HostError),
    /// Behind a new connection, or since the controller told of a change, the namespace is another than before, or not
    /// there: the command was not sent, or not sent again. [`Host::disk`](super::Host::disk) tells what is there now.
    #[error("namespace {namespace} was replaced by another: look at it again with `Host::disk`")]
    NamespaceChanged {
        /// Its number.
        namespace: u32,
    },
    /// The caller's wish. The command cannot be carried out any more; whether it was is not told.
    #[error("the command was cancelled")]
    Cancelled,
    /// The command is about a volume that was erased. It may have been under way: then what it was to write is there or is not,
    /// or is zeros.
    #[error("the volume was erased: nobody has its key any more")]
    Erased,
    /// The caller's fault: the command was not sent.
    #[error("{0}")]
    Invalid(&'static str),
}

/// A command that was to fill a buffer failed.
///
/// ```
/// use nvme_tcp::Disk;
/// use nvme_tcp::host::{Buffer, CommandError, Failed};
///
/// /// Reads the first block, and once more if the controller says that it may be read again.
/// async fn first_block(disk: &Disk) -> Result<Buffer, CommandError> {
///     match disk.read(0, disk.buffer(1)).await {
///         Err(Failed { error: CommandError::Status(status), buffer }) if !status.do_not_retry() => {
///             disk.read(0, buffer).await.map_err(|failed| failed.error)
///         }
///         read => read.map_err(|failed| failed.error),
///     }
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    /// Why.
    pub error: CommandError,
    /// The buffer; what is in it means nothing.
    pub buffer: Buffer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_cannot_be_reached_may_not_have_noticed() {
        use io::ErrorKind::*;
        let is_silence = |kind: io::ErrorKind| HostError::from(io::Error::from(kind)).is_silence();
        let silent = [TimedOut, HostUnreachable, NetworkUnreachable, NetworkDown, Other];
        assert!(silent.into_iter().all(is_silence));
        assert!(![ConnectionReset, BrokenPipe, UnexpectedEof, ConnectionRefused].into_iter().any(is_silence));
        assert!(HostError::TimedOut("a test").is_silence() && !HostError::Closed.is_silence());
    }
}
