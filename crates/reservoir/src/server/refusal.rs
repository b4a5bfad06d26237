//! Why a request is not answered as asked: a status, a sentence.

use crate::body::{self, Body};
use crate::landing::LandingError;
use crate::name::BadName;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use std::io;

#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    text: String,
    field: Option<Box<(HeaderName, HeaderValue)>>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into(), field: None }
    }

    /// With a field.
    pub(super) fn field(&mut self, name: HeaderName, value: impl TryInto<HeaderValue>) {
        self.field = value.try_into().ok().map(|value| Box::new((name, value)));
    }

    /// Its sentence.
    pub(super) fn text(self) -> String {
        self.text
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(body::full(self.text + "\n"));
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.field.map(|field| *field));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }

    /// The body of a request ended before its time, or was not what its head says.
    pub(super) fn cut_off() -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "the request's body was cut off")
    }
}

impl From<BadName> for Refusal {
    fn from(error: BadName) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, error.to_string())
    }
}

/// What the system says of a name, or of a file.
impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        use io::ErrorKind as Kind;
        let (status, text) = match error.kind() {
            // That it leads nowhere is the client's affair; where it may lead is not.
            Kind::NotFound | Kind::NotADirectory | Kind::PermissionDenied => (StatusCode::NOT_FOUND, "not found"),
            Kind::InvalidFilename | Kind::InvalidInput => (StatusCode::NOT_FOUND, "no file of that name can be here"),
            Kind::IsADirectory => (StatusCode::CONFLICT, "this is a folder"),
            Kind::AlreadyExists => (StatusCode::CONFLICT, "something else has this name"),
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => {
                (StatusCode::INSUFFICIENT_STORAGE, "the server's disk is full")
            }
            // It will not pass, so that nobody is to try again.
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
            // RFC 4918 9.7.2. It will not pass.
            LandingError::NoFile(_) => Refusal::new(StatusCode::METHOD_NOT_ALLOWED, error.to_string()),
            LandingError::Attributes(..) => Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
            LandingError::NotBegun(_) => Refusal::new(StatusCode::GONE, error.to_string()),
            // The one that has it may be a request that was given up, and is about to end.
            LandingError::Taken(_) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            other => Refusal::new(StatusCode::CONFLICT, other.to_string()),
        }
    }
}
