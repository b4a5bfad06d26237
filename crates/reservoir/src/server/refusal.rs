//! Error responses: a status and a sentence.

use crate::body::{self, Body};
use crate::landing::LandingError;
use crate::name::BadName;
use http_rules::{BadTarget, UnmetPrecondition};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use std::io;

#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    text: String,
    fields: Box<HeaderMap>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into(), fields: Box::default() }
    }

    /// Adds a header field.
    pub(super) fn field(&mut self, name: HeaderName, value: impl TryInto<HeaderValue>) {
        self.fields.extend(value.try_into().ok().map(|value| (name, value)));
    }

    /// Adds header fields.
    #[must_use]
    pub(super) fn with_fields(mut self, fields: HeaderMap) -> Refusal {
        self.fields.extend(fields);
        self
    }

    /// Returns the sentence.
    pub(super) fn text(self) -> String {
        self.text
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(body::full(self.text + "\n"));
        *response.status_mut() = self.status;
        *response.headers_mut() = *self.fields;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }

    /// Creates the response to a truncated or malformed request body.
    pub(super) fn cut_off() -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "the request's body was cut off")
    }
}

impl From<BadName> for Refusal {
    fn from(error: BadName) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl From<BadTarget> for Refusal {
    fn from(error: BadTarget) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl From<UnmetPrecondition> for Refusal {
    fn from(error: UnmetPrecondition) -> Refusal {
        Refusal::new(error.status(), error.to_string())
    }
}

/// Converts errors of the file system.
impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        use io::ErrorKind as Kind;
        use rustix::io::Errno;
        if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) {
            let mut refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server has too many files open");
            refusal.field(RETRY_AFTER, "1");
            return refusal;
        }
        let (status, text) = match error.kind() {
            // The three errors are not distinguished, because a client must not learn where a link leads.
            Kind::NotFound | Kind::NotADirectory | Kind::PermissionDenied => (StatusCode::NOT_FOUND, "not found"),
            Kind::InvalidFilename | Kind::InvalidInput => (StatusCode::NOT_FOUND, "no file of that name can be here"),
            Kind::IsADirectory => (StatusCode::CONFLICT, "this is a folder"),
            Kind::AlreadyExists => (StatusCode::CONFLICT, "something else has this name"),
            Kind::StorageFull | Kind::QuotaExceeded => (StatusCode::INSUFFICIENT_STORAGE, "the server's disk is full"),
            Kind::FileTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the server's disk takes no file of this size"),
            // This is not a temporary error: the disk stays read-only until mounted anew, so clients should not retry
            // soon.
            Kind::ReadOnlyFilesystem => (StatusCode::FORBIDDEN, "the server's disk is read-only"),
            Kind::UnexpectedEof | Kind::InvalidData => return Refusal::new(StatusCode::BAD_REQUEST, error.to_string()),
            Kind::TimedOut => (StatusCode::REQUEST_TIMEOUT, "the request stood still"),
            _ => {
                tracing::warn!(%error, "the storage failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "the server's storage failed")
            }
        };
        Refusal::new(status, text)
    }
}

impl From<LandingError> for Refusal {
    fn from(error: LandingError) -> Refusal {
        match error {
            LandingError::Medium(_, error) => error.into(),
            // RFC 4918 section 9.7.2. This error is permanent.
            LandingError::NoFile(_) => {
                let mut refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, error.to_string());
                refusal.field(ALLOW, METHODS_OF_A_FOLDER);
                refusal
            }
            LandingError::Unmet(_, unmet) => unmet.into(),
            LandingError::Attributes(..) => Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
            LandingError::NotBegun(_) => Refusal::new(StatusCode::GONE, error.to_string()),
            // The lock may belong to a request that was given up and is about to end.
            LandingError::Taken(_) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            other => Refusal::new(StatusCode::CONFLICT, other.to_string()),
        }
    }
}

/// The methods of a folder.
const METHODS_OF_A_FOLDER: &str = "GET, HEAD, OPTIONS, POST";
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_descriptors_is_no_failure_of_the_storage() {
        // EMFILE, ENFILE, EIO.
        for (number, status) in [(24, 503), (23, 503), (5, 500)] {
            let landing = LandingError::Medium(crate::name::Name::root(), io::Error::from_raw_os_error(number));
            for refusal in [Refusal::from(io::Error::from_raw_os_error(number)), landing.into()] {
                let answer = refusal.into_response();
                assert_eq!(answer.status(), status, "{number}");
                assert_eq!(answer.headers().contains_key(RETRY_AFTER), status == 503);
            }
        }
    }
}
