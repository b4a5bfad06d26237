//! Malformed requests of HTTP/3 (RFC 9114 section 4.1.2), as far as the types of crate `http` show the fault.
//!
//! A server resets the stream of a malformed request with H3_MESSAGE_ERROR. The types do not show order and repetition
//! of pseudo-header fields.

use crate::target::{check_path, is_authority};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, Method, Request};

/// The fault of a malformed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRequest {
    /// A field that is specific to HTTP/1.1 connections (section 4.2).
    #[error("the request has a field that only HTTP/1.1 connections have")]
    ConnectionField,
    /// A `TE` with another value than `trailers` (section 4.2).
    #[error("the request's TE is not `trailers`")]
    Te,
    /// More than one `Content-Length`, or a value that is not a number.
    #[error("the request's Content-Length is not one number")]
    Length,
    /// A body with a length that differs from `Content-Length`.
    #[error("the length of the request's body differs from Content-Length")]
    BodyLength,
    /// A malformed path, authority or `Host` (section 4.3.1).
    #[error("the request's path or authority is malformed")]
    Target,
}

/// The expected length of a request's body.
///
/// See [`check_head`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyLength {
    /// Number in `Content-Length`. `None` if any length is allowed.
    declared: Option<u64>,
    received: u64,
}

impl BodyLength {
    /// Returns the number in `Content-Length`, if the request has one.
    pub fn declared(&self) -> Option<u64> {
        self.declared
    }

    /// Counts bytes of the body.
    ///
    /// # Errors
    /// If the body is longer than declared.
    pub fn count(&mut self, bytes: usize) -> Result<(), MalformedRequest> {
        self.received = self.received.saturating_add(bytes as u64);
        if self.declared.is_some_and(|declared| self.received > declared) {
            Err(MalformedRequest::BodyLength)
        } else {
            Ok(())
        }
    }

    /// Checks the length at the body's end.
    ///
    /// # Errors
    /// If the body is shorter than declared.
    pub fn check_end(&self) -> Result<(), MalformedRequest> {
        if self.declared.is_some_and(|declared| self.received != declared) {
            Err(MalformedRequest::BodyLength)
        } else {
            Ok(())
        }
    }
}

/// Checks the head of a request. Returns the expected length of its body.
///
/// ```
/// use http_rules::http::Request;
/// use http_rules::http3::{MalformedRequest, check_head};
///
/// let request = Request::put("https://example.org/file").header("content-length", "5").body(())?;
/// let mut length = check_head(&request).unwrap();
/// length.count(4).unwrap();
/// assert_eq!(length.check_end(), Err(MalformedRequest::BodyLength));
///
/// let request = Request::get("https://example.org/file").header("connection", "close").body(())?;
/// assert_eq!(check_head(&request), Err(MalformedRequest::ConnectionField));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Errors
/// If the request is malformed.
pub fn check_head<B>(request: &Request<B>) -> Result<BodyLength, MalformedRequest> {
    let fields = request.headers();
    check_fields(fields)?;
    let uri = request.uri();
    // RFC 9114 4.4: CONNECT has an authority and no path.
    if *request.method() != Method::CONNECT {
        check_path(request.method(), uri.path()).map_err(|_| MalformedRequest::Target)?;
    }
    let is_valid = |text: &str| is_authority(text.as_bytes());
    if !uri.authority().is_none_or(|authority| is_valid(authority.as_str())) || fields.get_all(HOST).iter().count() > 1
    {
        return Err(MalformedRequest::Target);
    }
    let mut lengths = fields.get_all(CONTENT_LENGTH).iter();
    let declared = match (lengths.next(), lengths.next()) {
        (None, _) => None,
        (Some(length), None) => Some(number(length.as_bytes()).ok_or(MalformedRequest::Length)?),
        _ => return Err(MalformedRequest::Length),
    };
    Ok(BodyLength { declared, received: 0 })
}

/// Checks the trailers of a request.
///
/// # Errors
/// If the trailers are malformed.
pub fn check_trailers(fields: &HeaderMap) -> Result<(), MalformedRequest> {
    check_fields(fields)
}

fn check_fields(fields: &HeaderMap) -> Result<(), MalformedRequest> {
    let own = [CONNECTION, TRANSFER_ENCODING, UPGRADE, KEEP_ALIVE, PROXY_CONNECTION];
    if own.iter().any(|name| fields.contains_key(name)) {
        return Err(MalformedRequest::ConnectionField);
    }
    let is_trailers = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"trailers");
    if fields.get_all(TE).iter().all(is_trailers) { Ok(()) } else { Err(MalformedRequest::Te) }
}

/// Parses a number of decimal digits only.
fn number(text: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(text).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, target: &str, lines: &[(&str, &str)]) -> Result<Option<u64>, MalformedRequest> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        check_head(&request.body(()).unwrap()).map(|length| length.declared())
    }

    #[test]
    fn http1_connection_fields_are_malformed() {
        for (lines, expected) in [
            (&[("connection", "close")][..], Err(MalformedRequest::ConnectionField)),
            (&[("connection", "")], Err(MalformedRequest::ConnectionField)),
            (&[("transfer-encoding", "chunked")], Err(MalformedRequest::ConnectionField)),
            (&[("keep-alive", "timeout=5")], Err(MalformedRequest::ConnectionField)),
            (&[("proxy-connection", "close")], Err(MalformedRequest::ConnectionField)),
            (&[("upgrade", "h2c")], Err(MalformedRequest::ConnectionField)),
            (&[("te", "gzip")], Err(MalformedRequest::Te)),
            (&[("te", "trailers, gzip")], Err(MalformedRequest::Te)),
            (&[("te", "trailers"), ("te", "gzip")], Err(MalformedRequest::Te)),
            (&[("te", "trailers")], Ok(None)),
            (&[("content-length", "5"), ("content-length", "3")], Err(MalformedRequest::Length)),
            (&[("content-length", "5"), ("content-length", "5")], Err(MalformedRequest::Length)),
            (&[("content-length", "5, 5")], Err(MalformedRequest::Length)),
            (&[("content-length", "+5")], Err(MalformedRequest::Length)),
            (&[("content-length", "-1")], Err(MalformedRequest::Length)),
            (&[("content-length", "")], Err(MalformedRequest::Length)),
            (&[("content-length", "18446744073709551616")], Err(MalformedRequest::Length)),
            (&[("content-length", "18446744073709551615")], Ok(Some(u64::MAX))),
            (&[("host", "a"), ("host", "a")], Err(MalformedRequest::Target)),
            (&[("host", "a")], Ok(None)),
            (&[], Ok(None)),
        ] {
            assert_eq!(check("PUT", "https://a/file", lines), expected, "{lines:?}");
            let trailers: HeaderMap =
                lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            let is_field = matches!(expected, Err(MalformedRequest::ConnectionField));
            assert_eq!(
                check_trailers(&trailers).is_err(),
                is_field || expected == Err(MalformedRequest::Te),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn targets_need_a_path_and_a_valid_host() {
        for (method, target, expected) in [
            ("GET", "https://a/", Ok(None)),
            ("GET", "https://[::1]:80/a", Ok(None)),
            ("OPTIONS", "*", Ok(None)),
            ("GET", "*", Err(MalformedRequest::Target)),
            ("GET", "https://user@a/", Err(MalformedRequest::Target)),
            ("CONNECT", "a:443", Ok(None)),
        ] {
            assert_eq!(check(method, target, &[]), expected, "{method} {target}");
        }
    }

    #[test]
    fn bodies_have_the_declared_length() {
        for (declared, received, expected) in [
            (None, 7, (Ok(()), Ok(()))),
            (Some(7), 7, (Ok(()), Ok(()))),
            (Some(8), 7, (Ok(()), Err(MalformedRequest::BodyLength))),
            (Some(6), 7, (Err(MalformedRequest::BodyLength), Err(MalformedRequest::BodyLength))),
            (Some(0), 7, (Err(MalformedRequest::BodyLength), Err(MalformedRequest::BodyLength))),
        ] {
            let mut length = BodyLength { declared, received: 0 };
            assert_eq!((length.count(received), length.check_end()), expected, "{declared:?}");
        }
    }
}
