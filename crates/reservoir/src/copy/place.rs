//! Locations of files: folders of this machine, servers and buckets.

use super::{Copy, CopyError};
use crate::dial::{Dial, DialFuture, DialStream};
use crate::name::Name;
use crate::remote::Remote;
use crate::rooted::Rooted;
use crate::storage::Folder;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The location of a source or destination.
///
/// ```
/// use offload_reservoir::copy::{CopyError, CopyLocation};
///
/// let place = CopyLocation::parse("https://store.test:8443/runs/7", Some("secret"))?;
/// assert_eq!(place.to_string(), "https://store.test:8443/runs/7");
/// assert!(matches!(CopyLocation::parse("http://store.test/", None), Err(CopyError::Unusable(_))));
/// # Ok::<(), CopyError>(())
/// ```
#[derive(Clone)]
pub struct CopyLocation {
    at: LocationKind,
    /// Whether the text ends with a slash, which means a folder or its contents.
    slash: bool,
}

#[derive(Clone)]
enum LocationKind {
    Local {
        root: PathBuf,
        name: Name,
        shown: PathBuf,
    },
    Folder {
        folder: Arc<dyn Folder>,
        name: Name,
    },
    Remote {
        host: String,
        port: u16,
        name: Name,
        /// Path and query as written by the user, if there is a query.
        target: Option<String>,
        token: Option<String>,
    },
    /// A bucket of the copy's [account](Copy::account).
    #[cfg(feature = "s3")]
    Bucket {
        bucket: String,
        name: Name,
    },
}

impl CopyLocation {
    /// Returns whether this is a bucket or an object in one.
    pub fn is_bucket(&self) -> bool {
        #[cfg(feature = "s3")]
        let is_bucket = matches!(self.at, LocationKind::Bucket { .. });
        #[cfg(not(feature = "s3"))]
        let is_bucket = false;
        is_bucket
    }

    /// Parses a URL or a path. `https://` URLs are requested with `token`, or else with the copy's token for the server
    /// ([`Copy::tokens`]); `s3://BUCKET/KEY` with the copy's [account](Copy::account). Other texts are paths of this
    /// machine. A URL with a query is one file, and is sent as written.
    ///
    /// # Errors
    /// If the URL has another scheme, a password, a fragment or an invalid path. The message has neither password nor
    /// query.
    pub fn parse(text: &str, token: Option<&str>) -> Result<CopyLocation, CopyError> {
        let unusable = |what: &str| CopyError::Unusable(format!("{}: {what}", without_secrets(text)));
        #[cfg(not(feature = "s3"))]
        if text.starts_with("s3://") {
            return Err(unusable("this program has no buckets: build it with the feature s3"));
        }
        #[cfg(feature = "s3")]
        if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.contains([':', '@']) {
                return Err(unusable("no keys in URLs: use AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
            }
            let slash = path.ends_with('/') || path.is_empty();
            return Ok(CopyLocation {
                at: LocationKind::Bucket { bucket: bucket.into(), name: Name::from_url(path)? },
                slash,
            });
        }
        let Some(rest) = text.strip_prefix("https://") else {
            return match text.split_once("://") {
                Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                    Err(unusable(&format!("only https:// and s3:// are encrypted; there is no {scheme}://")))
                }
                _ => CopyLocation::local(Path::new(text)),
            };
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(unusable("no passwords in URLs: use --token-file"));
        }
        // RFC 3986 section 3.5: a fragment is not sent. Without its fragment, the URL might mean another file.
        if rest.contains('#') {
            return Err(unusable(
                "a fragment (#) is never sent to a server: leave it out, or write %23 for a # in a name",
            ));
        }
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Ok(443), str::parse).map_err(|_| unusable("the port is no number"))?;
        if host.is_empty() {
            return Err(unusable("there is no host"));
        }
        let (name, slash) = (Name::from_url(path)?, path.ends_with('/') || path.is_empty());
        // A signature may cover each byte, so the path is sent as written.
        let path = if path.is_empty() { "/" } else { path };
        let target = query.map(|query| format!("{path}?{query}"));
        let (host, token) = (host.to_ascii_lowercase(), token.map(str::to_owned));
        Ok(CopyLocation { at: LocationKind::Remote { host, port, name, target, token }, slash })
    }

    /// Creates the place of a local path.
    ///
    /// # Errors
    /// If no existing folder contains the path.
    pub fn local(path: &Path) -> Result<CopyLocation, CopyError> {
        let local = |error| CopyError::Local { path: path.to_owned(), error };
        let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        // Links and dots above the root are followed here, with the user's own rights. Below the root they are not.
        let (mut root, mut rest) = (std::path::absolute(path).map_err(local)?, Vec::<OsString>::new());
        let has_dots = root.components().any(|part| part == Component::ParentDir);
        loop {
            match root.canonicalize() {
                Ok(found) => {
                    root = found;
                    break;
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound || has_dots => return Err(local(error)),
                Err(error) => match (root.file_name(), root.parent()) {
                    (Some(part), Some(above)) => {
                        rest.push(part.to_owned());
                        root = above.to_owned();
                    }
                    _ => return Err(local(error)),
                },
            }
        }
        if rest.is_empty()
            && let (Some(part), Some(above)) = (root.file_name(), root.parent())
        {
            rest.push(part.to_owned());
            root = above.to_owned();
        }
        let name = rest.iter().rev().try_fold(Name::root(), |name, part| name.join(part))?;
        Ok(CopyLocation { at: LocationKind::Local { root, name, shown: path.to_owned() }, slash })
    }

    /// Parses a root as formatted by [`CopyEnd::root`]: a folder of this machine, or a server.
    pub(super) fn root(root: &str) -> Result<CopyLocation, CopyError> {
        if root.starts_with("https://") || root.starts_with("s3://") {
            return CopyLocation::parse(root, None);
        }
        let path = PathBuf::from(root);
        Ok(CopyLocation {
            at: LocationKind::Local { root: path.clone(), name: Name::root(), shown: path },
            slash: false,
        })
    }

    /// Creates the place of a name in a folder.
    pub fn in_folder(folder: Arc<dyn Folder>, name: Name) -> CopyLocation {
        CopyLocation { at: LocationKind::Folder { folder, name }, slash: false }
    }

    /// Returns the last component, for the name at the destination.
    pub(super) fn last(&self) -> Option<OsString> {
        match &self.at {
            LocationKind::Local { shown, name, .. } => shown.file_name().or(name.last()).map(ToOwned::to_owned),
            LocationKind::Folder { name, .. } | LocationKind::Remote { name, .. } => name.last().map(ToOwned::to_owned),
            #[cfg(feature = "s3")]
            LocationKind::Bucket { name, .. } => name.last().map(ToOwned::to_owned),
        }
    }

    /// Returns host and port of the server, if the place is on a server.
    pub fn server(&self) -> Option<(&str, u16)> {
        match &self.at {
            LocationKind::Remote { host, port, .. } => Some((host, *port)),
            _ => None,
        }
    }

    pub(crate) fn has_slash(&self) -> bool {
        self.slash
    }

    /// Tests whether the place is a URL with a query.
    pub(super) fn has_query(&self) -> bool {
        matches!(&self.at, LocationKind::Remote { target: Some(_), .. })
    }
}

impl core::fmt::Display for CopyLocation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.at {
            LocationKind::Local { shown, .. } => shown.display().fmt(f),
            LocationKind::Folder { name, .. } => name.fmt(f),
            LocationKind::Remote { host, port, name, .. } => write!(f, "{}{name}", authority(host, *port)),
            #[cfg(feature = "s3")]
            LocationKind::Bucket { bucket, name } => write!(f, "s3://{bucket}{name}"),
        }
    }
}

/// Returns a URL without its user, password and query, for messages.
fn without_secrets(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    // An unescaped password may contain any characters.
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    format!("{scheme}://{}", &rest[..end])
}

/// Formats scheme, host and port as in a URL.
fn authority(host: &str, port: u16) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    if port == 443 { format!("https://{host}") } else { format!("https://{host}:{port}") }
}

/// One end of a copy: a folder or a server, opened once for all its files.
#[derive(Clone)]
pub(super) enum CopyEnd {
    Local(Arc<dyn Folder>, Arc<str>),
    Remote(Arc<Remote>, Arc<str>),
}

impl CopyEnd {
    /// Returns the folder or the server as a text.
    pub(super) fn root(&self) -> String {
        match self {
            CopyEnd::Local(_, root) => root.to_string(),
            CopyEnd::Remote(_, authority) => authority.to_string(),
        }
    }

    /// Returns the full name of a file, for messages and as the identity of a source.
    pub(super) fn shown(&self, name: &Name) -> String {
        match self {
            CopyEnd::Local(_, root) => {
                let root = Path::new(&**root);
                if name == &Name::root() {
                    root.display().to_string()
                } else {
                    root.join(name.path()).display().to_string()
                }
            }
            CopyEnd::Remote(_, authority) => format!("{authority}{name}"),
        }
    }
}

/// Host, port, target with a query, and token of a place.
type ServerKey = (String, u16, Option<String>, Option<String>);

/// Opens sides. Places with the same folder or server share a side.
pub(super) struct CopyEnds<'a> {
    copy: &'a Copy,
    servers: HashMap<ServerKey, Arc<Remote>>,
    #[cfg(feature = "s3")]
    buckets: HashMap<String, Arc<Remote>>,
}

impl CopyEnds<'_> {
    pub(super) fn new(copy: &Copy) -> CopyEnds<'_> {
        CopyEnds {
            copy,
            servers: HashMap::new(),
            #[cfg(feature = "s3")]
            buckets: HashMap::new(),
        }
    }

    pub(super) fn open(&mut self, place: &CopyLocation) -> Result<(CopyEnd, Name), CopyError> {
        match &place.at {
            LocationKind::Local { root, name, .. } => {
                let opened = Rooted::open(root).map_err(|error| CopyError::Local { path: root.clone(), error })?;
                let opened = opened.direct(self.copy.direct);
                Ok((CopyEnd::Local(Arc::new(opened), root.display().to_string().into()), name.clone()))
            }
            // The folder is open already; its path is unknown, and messages show names only.
            LocationKind::Folder { folder, name } => Ok((CopyEnd::Local(folder.clone(), "/".into()), name.clone())),
            LocationKind::Remote { host, port, name, target, token } => {
                let copy = self.copy;
                if target.is_some() && !copy.stripe.is_empty() {
                    let text = format!("{place}: a URL with a query is for one server: leave --stripe out");
                    return Err(CopyError::Unusable(text));
                }
                let key = (host.clone(), *port, target.clone(), token.clone());
                let server = self.servers.entry(key).or_insert_with(|| {
                    let at = |host: &str, port, token: Option<&str>| {
                        // The token of a place is sent to that place's server only.
                        let token = token.or_else(|| copy.tokens.get(host, port)).map(str::to_owned);
                        Remote::new(copy.shell.clone(), copy.dial.clone(), host, port, token)
                    };
                    let others =
                        copy.stripe.iter().map(|other| Arc::new(at(other.name(), other.port().unwrap_or(443), None)));
                    let server = at(host, *port, token.as_deref()).striped(others.collect());
                    Arc::new(server.asked_by(target.clone().map(|target| (name.clone(), target))))
                });
                Ok((CopyEnd::Remote(server.clone(), authority(host, *port).into()), name.clone()))
            }
            #[cfg(feature = "s3")]
            LocationKind::Bucket { bucket, name } => {
                let copy = self.copy;
                let server = match self.buckets.get(bucket) {
                    Some(server) => server.clone(),
                    None => {
                        let account = copy.account.as_ref();
                        let account =
                            account.ok_or_else(|| CopyError::Unusable(format!("s3://{bucket}: {NO_ACCOUNT}")))?;
                        let opened = account.bucket(bucket).map_err(CopyError::Unusable)?;
                        let server = Arc::new(Remote::for_bucket(copy.shell.clone(), copy.dial.clone(), opened));
                        self.buckets.insert(bucket.clone(), server.clone());
                        server
                    }
                };
                Ok((CopyEnd::Remote(server, format!("s3://{bucket}").into()), name.clone()))
            }
        }
    }
}

#[cfg(feature = "s3")]
const NO_ACCOUNT: &str = "a bucket needs a key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";

/// A connector by a function, without TLS, for servers in the same process.
///
/// See [`Server`](crate::Server) for an example.
pub struct PlainDialer<F>(F);

impl<S: DialStream + 'static, F: Fn(&str, u16) -> io::Result<S> + Send + core::marker::Sync> PlainDialer<F> {
    /// Creates a connector that calls `dial`.
    pub fn new(dial: F) -> PlainDialer<F> {
        PlainDialer(dial)
    }
}

impl<S: DialStream + 'static, F: Fn(&str, u16) -> io::Result<S> + Send + core::marker::Sync> Dial for PlainDialer<F> {
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> DialFuture<'a> {
        Box::pin(async move { (self.0)(host, port).map(|stream| Box::new(stream) as Box<dyn DialStream>) })
    }
}
