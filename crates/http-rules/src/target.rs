//! Request targets and `Host` of HTTP/1.1 (RFC 9112 section 3).

use core::net::Ipv6Addr;
use http::header::HOST;
use http::{Method, Request, Version};

/// A fault of a request's target or `Host`. The answer is status 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// An HTTP/1.1 request has no `Host`.
    #[error("a request of HTTP/1.1 needs a Host")]
    NoHost,
    /// The request has more than one `Host`.
    #[error("the request has more than one Host")]
    ManyHosts,
    /// The `Host` is not a host with an optional port.
    #[error("the Host is not a name or an address with an optional port")]
    Host,
    /// The target is not a path that the method allows.
    #[error("the request target is not a path that begins with a slash")]
    Target,
}

/// Checks the target and `Host` of an HTTP/1.0 or HTTP/1.1 request. Use [`http3::check_head`](crate::http3::check_head)
/// for HTTP/3.
///
/// ```
/// use http_rules::http::Request;
/// use http_rules::{BadTarget, check_target};
///
/// let request = Request::get("/file").header("host", "example.org:8080").body(())?;
/// assert_eq!(check_target(&request), Ok(()));
/// assert_eq!(check_target(&Request::get("/file").body(())?), Err(BadTarget::NoHost));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Errors
/// If the target or `Host` is malformed, or an HTTP/1.1 request has no `Host`.
pub fn check_target<B>(request: &Request<B>) -> Result<(), BadTarget> {
    // RFC 9112 3.2: `Host` is also required if the target contains an authority, which then takes precedence.
    let mut hosts = request.headers().get_all(HOST).iter();
    match hosts.next() {
        None if request.version() == Version::HTTP_10 => {}
        None => return Err(BadTarget::NoHost),
        Some(host) if !is_authority(host.as_bytes()) => return Err(BadTarget::Host),
        Some(_) => {}
    }
    if hosts.next().is_some() {
        return Err(BadTarget::ManyHosts);
    }
    let uri = request.uri();
    let is_connect = *request.method() == Method::CONNECT;
    match (uri.scheme(), uri.authority()) {
        (None, None) => check_path(request.method(), uri.path()),
        (Some(_), Some(authority)) if !is_authority(authority.as_str().as_bytes()) => Err(BadTarget::Host),
        // RFC 9112 3.2.2: a target without a path means the root.
        (Some(_), _) => Ok(()),
        // RFC 9112 3.2.3: a bare authority is only valid for CONNECT.
        (None, Some(_)) if is_connect => Ok(()),
        (None, Some(_)) => Err(BadTarget::Target),
    }
}

/// Checks that a path begins with a slash, or is the `*` of OPTIONS.
pub(crate) fn check_path(method: &Method, path: &str) -> Result<(), BadTarget> {
    let is_star = path == "*" && *method == Method::OPTIONS;
    if path.starts_with('/') || is_star { Ok(()) } else { Err(BadTarget::Target) }
}

/// Tests for a non-empty `uri-host [":" port]` without user information (RFC 9110 section 7.2, RFC 3986 section 3.2.2).
pub(crate) fn is_authority(text: &[u8]) -> bool {
    let Ok(text) = core::str::from_utf8(text) else { return false };
    let (is_host, port) = if let Some(literal) = text.strip_prefix('[') {
        let Some((address, port)) = literal.split_once(']') else { return false };
        (address.parse::<Ipv6Addr>().is_ok(), port)
    } else {
        let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        (is_name(name.as_bytes()), port)
    };
    let is_port = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(digits) => {
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number && (digits.is_empty() || digits.parse::<u16>().is_ok())
        }
    };
    is_host && is_port
}

/// Tests for a non-empty reg-name: unreserved characters, sub-delims, and percent signs with two hexadecimal digits.
fn is_name(name: &[u8]) -> bool {
    let mut rest = name;
    while let [first, behind @ ..] = rest {
        rest = match (first, behind) {
            (b'%', [high, low, behind @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => behind,
            (byte, _) if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(byte) => behind,
            _ => return false,
        };
    }
    !name.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Uri};

    fn check(version: Version, method: &str, target: &str, hosts: &[&[u8]]) -> Result<(), BadTarget> {
        let mut request = Request::new(());
        *request.version_mut() = version;
        *request.method_mut() = method.parse().unwrap();
        *request.uri_mut() = target.parse::<Uri>().unwrap();
        for host in hosts {
            request.headers_mut().append(HOST, HeaderValue::from_bytes(host).unwrap());
        }
        check_target(&request)
    }

    #[test]
    fn one_valid_host_is_needed() {
        let one = |host: &str| check(Version::HTTP_11, "GET", "/file", &[host.as_bytes()]);
        for good in
            ["a", "example.org", "example.org:8080", "10.0.0.1", "[::1]", "[fd77::1]:80", "a:", "a:0", "a_b", "%41"]
        {
            assert_eq!(one(good), Ok(()), "{good}");
        }
        for bad in [
            "", "a b", "a/b", "a?b", "user@a", "a:b", "a:1:2", "a:65536", "a:-1", "a:+1", "::1", "[::1", "[::1]x",
            "[]", "[g::1]", "a, b", "%4", "%zz", "http://a", "a\"", ":80", "a\tb",
        ] {
            assert_eq!(one(bad), Err(BadTarget::Host), "{bad:?}");
        }
        assert_eq!(check(Version::HTTP_11, "GET", "/", &[b"\xff"]), Err(BadTarget::Host));
        for version in [Version::HTTP_10, Version::HTTP_11] {
            assert_eq!(check(version, "GET", "/", &[b"a", b"b"]), Err(BadTarget::ManyHosts));
            assert_eq!(check(version, "GET", "/", &[b"a", b"a"]), Err(BadTarget::ManyHosts));
            assert_eq!(check(version, "GET", "/", &[b"a b"]), Err(BadTarget::Host));
        }
        assert_eq!(check(Version::HTTP_11, "GET", "/", &[]), Err(BadTarget::NoHost));
        assert_eq!(check(Version::HTTP_10, "GET", "/", &[]), Ok(()));
    }

    #[test]
    fn targets_are_paths_except_for_their_methods() {
        let check = |method: &str, target: &str| check(Version::HTTP_11, method, target, &[b"a"]);
        for (method, target) in [
            ("GET", "/a/b?c"),
            ("GET", "http://other/a"),
            ("GET", "http://other"),
            ("OPTIONS", "*"),
            ("OPTIONS", "/"),
            ("CONNECT", "a:443"),
        ] {
            assert_eq!(check(method, target), Ok(()), "{method} {target}");
        }
        for (method, target) in [("GET", "*"), ("PUT", "*"), ("GET", "file"), ("GET", "a:443")] {
            assert_eq!(check(method, target), Err(BadTarget::Target), "{method} {target}");
        }
        assert_eq!(check("GET", "http://user@other/"), Err(BadTarget::Host));
    }
}
