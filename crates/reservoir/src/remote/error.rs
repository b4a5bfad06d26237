//! What goes wrong with a request.

use crate::name::Name;
use hyper::{Method, StatusCode};

/// What goes wrong with a request.
///
/// See [`Dial`](crate::dial::Dial) for an example of what fails with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The connection cannot be made, or broke.
    #[error("{host}: {error}")]
    Connection {
        /// The server.
        host: String,
        /// Why.
        error: String,
    },
    /// It is not the server that was asked for, or does not speak TLS 1.3 with AES-256-GCM.
    #[error("{host}: no secure connection: {error}: trust its authority by --cacert, if it is the right one")]
    Untrusted {
        /// The server.
        host: String,
        /// Why.
        error: String,
    },
    /// The server refuses.
    #[error("{method} {name}: the server says {status}: {text}")]
    Refused {
        /// What was asked.
        method: Method,
        /// Of which file.
        name: Name,
        /// Its answer.
        status: StatusCode,
        /// In its words.
        text: String,
        /// How many blocks of the upload it misses, if that is why.
        missing: Option<u64>,
    },
    /// The file is another one than at the beginning.
    #[error("{0} was changed on the server while it was copied: copy it again")]
    Changed(Name),
    /// It cannot be asked for.
    #[error(
        "{0} cannot be asked for: the token, the host or the name has characters that HTTP, or a bucket, does not carry"
    )]
    Unaskable(Name),
    /// It was asked to copy a file from or to another server, and failed.
    #[error("{name}: {host}, which was asked to copy it, says: {why}")]
    ThirdParty {
        /// Its file.
        name: Name,
        /// The server.
        host: String,
        /// In its words.
        why: String,
    },
    /// The answer is not what HTTP or the request allows.
    #[error("{name}: the server's answer {what}")]
    Answer {
        /// The file.
        name: Name,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl RemoteError {
    /// Whether the same request may succeed a little later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            RemoteError::Connection { .. } => true,
            RemoteError::Refused { status, missing, text, .. } => {
                // S3's way to say that a request came too slowly.
                let too_slow = *status == StatusCode::BAD_REQUEST && text.starts_with("RequestTimeout");
                missing.is_none()
                    && (too_slow
                        || matches!(
                            *status,
                            StatusCode::CONFLICT
                                | StatusCode::REQUEST_TIMEOUT
                                // The upload that has the name may end soon.
                                | StatusCode::LOCKED
                                | StatusCode::TOO_MANY_REQUESTS
                                | StatusCode::INTERNAL_SERVER_ERROR
                                | StatusCode::BAD_GATEWAY
                                | StatusCode::SERVICE_UNAVAILABLE
                                | StatusCode::GATEWAY_TIMEOUT
                        ))
            }
            RemoteError::Answer { .. } => true,
            // It has tried again by itself.
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
