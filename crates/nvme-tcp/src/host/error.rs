//! Errors of hosts and of commands.

use crate::core::queue::{Buffer, QueueError};
use crate::wire::Status;
use std::io;
use std::sync::Arc;

/// Reason why a host is not connected to its controller.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The stream could not be opened, or was lost.
    #[error("the stream failed: {0}")]
    Stream(Arc<io::Error>),
    /// A connection ended.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The controller refused a command that is necessary to connect.
    #[error("the controller refuses {command}: {status} (result {result:#x})")]
    Refused {
        /// Name of the command.
        command: &'static str,
        /// Status of the command.
        status: Status,
        /// Result field of the completion.
        result: u64,
    },
    /// The target has no subsystem with this name, or not for this host.
    #[error("there is no subsystem `{subsystem}` at the target: check the NQN, or list those that exist by discovery")]
    NoSubsystem {
        /// The requested NQN.
        subsystem: String,
        /// Status of the Connect.
        status: Status,
    },
    /// The controller is unsuitable for this host.
    #[error("the controller cannot be used: {0}")]
    Unsuitable(Unsuitable),
    /// An operation took too long.
    #[error("{0} took too long")]
    TimedOut(&'static str),
    /// [`Host::close`](super::Host::close) was called, or the last [`Host`](super::Host) was dropped.
    #[error("the host was closed")]
    Closed,
    /// A task of the host was dropped or has panicked. The host cannot continue.
    #[error("a task of the host was dropped or has panicked")]
    TaskLost,
}

/// Reason why a host cannot use a controller.
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
    /// IOCCSZ or IORCSZ is too small.
    #[error("its capsules are too small for commands")]
    SmallCapsules,
    /// SGLS: no support for SGLs.
    #[error("it does not support SGLs")]
    NoSgls,
    /// ICDOFF is not zero.
    #[error("data in its capsules do not follow the command")]
    DataOffset,
    /// CAP.MQES is zero.
    #[error("its queues have no entries")]
    NoRoom,
    /// CSTS.CFS: a fatal controller failure. An administrator has to reset the controller.
    #[error("it has failed")]
    Failed,
    /// The answer to Identify has fewer than 4096 bytes.
    #[error("its answer to Identify is too short")]
    Unidentified,
    /// CNTLID differs from the one in the answer to Connect.
    #[error("Identify describes another controller than the one connected to")]
    Another,
    /// KAS is zero.
    #[error("it does not support keep-alive: set `HostConfig::keep_alive` to zero")]
    NoKeepAlive,
    /// AUTHREQ is set.
    #[error("it requires authentication, which this host does not support")]
    Authentication,
    /// The discovery log has another format, or entries are missing.
    #[error("its discovery log cannot be parsed")]
    DiscoveryLog,
}

impl HostError {
    /// Returns whether another attempt would fail in the same way.
    pub(super) fn is_final(&self) -> bool {
        match self {
            HostError::Refused { status, .. } | HostError::NoSubsystem { status, .. } => status.do_not_retry(),
            HostError::Unsuitable(_) | HostError::Closed | HostError::TaskLost => true,
            _ => false,
        }
    }
}

impl HostError {
    /// Returns whether the peer may not have noticed the loss.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            HostError::Queue(error) => matches!(error, QueueError::TimedOut),
            // System errors for an unreachable peer differ by cause, for example a router or a neighbour. All kinds
            // count except the known ones.
            HostError::Stream(error) => !has_ended_at_both_sides(error.kind()),
            HostError::TimedOut(_) => true,
            _ => false,
        }
    }
}

/// Returns whether a stream that failed with `kind` has ended at both sides.
fn has_ended_at_both_sides(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | UnexpectedEof)
}

impl From<io::Error> for HostError {
    fn from(error: io::Error) -> HostError {
        HostError::Stream(Arc::new(error))
    }
}

/// Reason why a command failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The controller reported this status.
    #[error("{0}")]
    Status(Status),
    /// The controller is out of reach, and the host has given up. A command that was sent may have been executed.
    #[error("the controller is out of reach: {0}")]
    Lost(HostError),
    /// The connection was lost while the command was running, and the command was not sent again, because it must not
    /// be executed twice, or because the lost controller may still execute the first one. Without a keep-alive, that
    /// may happen even after this error.
    #[error("the command may or may not have been executed, and was not sent again: {0}")]
    Uncertain(HostError),
    /// The namespace was replaced or removed, after a reconnect or by a change that the controller reported. The
    /// command was not sent, or not sent again. Call [`Host::disk`](super::Host::disk) for the current namespace.
    #[error("namespace {namespace} was replaced or removed: call `Host::disk` again")]
    NamespaceChanged {
        /// Namespace identifier.
        namespace: u32,
    },
    /// The caller cancelled the command. It may have been executed, and will not be executed any more.
    #[error("the command was cancelled")]
    Cancelled,
    /// The command's volume was erased. If the command was a running write, its blocks hold the old data, the new data,
    /// or zeros.
    #[error("the volume was erased: its key no longer exists")]
    Erased,
    /// The command is invalid and was not sent. A fault of the caller.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Error of a command that reads into a buffer.
///
/// ```
/// use nvme_tcp::Disk;
/// use nvme_tcp::host::{Buffer, CommandError, ReadError};
///
/// /// Reads the first block, and once more if the controller says that it may be read again.
/// async fn first_block(disk: &Disk) -> Result<Buffer, CommandError> {
///     match disk.read(0, disk.buffer(1)).await {
///         Err(ReadError { error: CommandError::Status(status), buffer }) if !status.do_not_retry() => {
///             disk.read(0, buffer).await.map_err(|failed| failed.error)
///         }
///         read => read.map_err(|failed| failed.error),
///     }
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ReadError {
    /// The error.
    pub error: CommandError,
    /// The buffer, with meaningless content.
    pub buffer: Buffer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_peer_counts_as_silent() {
        use io::ErrorKind::*;
        let is_silence = |kind: io::ErrorKind| HostError::from(io::Error::from(kind)).is_silence();
        let silent = [TimedOut, HostUnreachable, NetworkUnreachable, NetworkDown, Other];
        assert!(silent.into_iter().all(is_silence));
        assert!(![ConnectionReset, BrokenPipe, UnexpectedEof, ConnectionRefused].into_iter().any(is_silence));
        assert!(HostError::TimedOut("a test").is_silence() && !HostError::Closed.is_silence());
    }
}
