//! Errors of requests.

use crate::name::Name;
use hyper::{Method, StatusCode};

/// Error of a request.
///
/// See [`Dial`](crate::dial::Dial) for an example of a failing connector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The connection cannot be established, or broke.
    #[error("{host}: {error}")]
    Connection {
        /// The server.
        host: String,
        /// The reason.
        error: String,
    },
    /// The server is not the requested one, or does not support TLS 1.3 with AES-256-GCM.
    #[error("{host}: no secure connection: {error}: trust its authority by --cacert, if it is the right one")]
    Untrusted {
        /// The server.
        host: String,
        /// The reason.
        error: String,
    },
    /// The server refused the request.
    #[error("{method} {name}: the server says {status}: {text}")]
    Refused {
        /// The method.
        method: Method,
        /// The file.
        name: Name,
        /// The status.
        status: StatusCode,
        /// The server's text.
        text: String,
        /// The number of missing blocks of the upload, if that is the reason.
        missing: Option<u64>,
    },
    /// The file has changed since the start of the copy.
    #[error("{0} was changed on the server while it was copied: copy it again")]
    Changed(Name),
    /// The request cannot be formed.
    #[error(
        "{0} cannot be asked for: the token, the host or the name has characters that HTTP, or a bucket, does not carry"
    )]
    Unaskable(Name),
    /// The server was asked to copy a file from or to another server, and failed.
    #[error("{name}: {host}, which was asked to copy it, says: {why}")]
    ThirdParty {
        /// The file.
        name: Name,
        /// The server.
        host: String,
        /// The server's text.
        why: String,
    },
    /// The response violates HTTP or does not match the request.
    #[error("{name}: the server's answer {what}")]
    Answer {
        /// The file.
        name: Name,
        /// The fault.
        what: &'static str,
    },
}

impl RemoteError {
    /// Returns whether the same request may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            RemoteError::Connection { .. } => true,
            RemoteError::Refused { status, missing, text, .. } => {
                // S3 reports a slow request this way.
                let too_slow = *status == StatusCode::BAD_REQUEST && text.starts_with("RequestTimeout");
                missing.is_none()
                    && (too_slow
                        || matches!(
                            *status,
                            StatusCode::CONFLICT
                                | StatusCode::REQUEST_TIMEOUT
                                // The upload that holds the name may end soon.
                                | StatusCode::LOCKED
                                | StatusCode::TOO_MANY_REQUESTS
                                | StatusCode::INTERNAL_SERVER_ERROR
                                | StatusCode::BAD_GATEWAY
                                | StatusCode::SERVICE_UNAVAILABLE
                                | StatusCode::GATEWAY_TIMEOUT
                        ))
            }
            RemoteError::Answer { .. } => true,
            // The server has already retried.
            RemoteError::ThirdParty { .. } => false,
            RemoteError::Untrusted { .. } | RemoteError::Changed(_) | RemoteError::Unaskable(_) => false,
        }
    }
}

pub(super) fn refused(
    method: Method,
    name: &Name,
    status: StatusCode,
    text: &str,
    missing: Option<u64>,
    remedy: Option<String>,
) -> RemoteError {
    let text = super::bucket::refusal(text).unwrap_or_else(|| text.lines().next().unwrap_or_default().to_owned());
    let text = match (text.escape_debug().to_string(), remedy) {
        (text, None) => text,
        (text, Some(remedy)) if text.is_empty() => remedy,
        (text, Some(remedy)) => format!("{text}: {remedy}"),
    };
    RemoteError::Refused { method, name: name.clone(), status, text, missing }
}
