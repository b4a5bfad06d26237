//! A folder as a web site. GET returns files, whole or in ranges, and folder listings. PUT and POST accept any bytes,
//! store nothing, and answer with the number and the SHA-256 of the bytes.
//!
//! A pool of threads reads the files, and each piece is lent to a TCP connection, which sends it without copying.

use super::limits::{Capacity, Charge};
use super::{WebFailure, hexadecimal};
use bytes::Bytes;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use http_rules::{CurrentState, FileVersion, Preconditions, UnmetPrecondition};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Version};
use ktls_offload::{Blocking, FilePieces, LentPieces};
use offload_console::say;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The body of an answer.
pub type Body = BoxBody<Bytes, io::Error>;

/// A folder to be served.
///
/// ```
/// use ktls_offload::InPlace;
/// use offload_programs::web::site::Site;
/// use std::sync::Arc;
///
/// let site = Site::new(".".as_ref(), Arc::new(InPlace))?;
/// assert!(site.folder().is_absolute());
/// assert!(Site::new("Cargo.toml".as_ref(), Arc::new(InPlace)).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Site {
    folder: PathBuf,
    /// The opened folder. No path leads out of it.
    dir: Arc<Dir>,
    pool: Arc<dyn Blocking>,
}

impl Site {
    /// Creates a site of `folder`. Threads of `pool` read its files.
    ///
    /// # Errors If the folder is missing or is not a folder.
    pub fn new(folder: &Path, pool: Arc<dyn Blocking>) -> io::Result<Site> {
        let folder = folder.canonicalize()?;
        let dir = Arc::new(Dir::open_ambient_dir(&folder, ambient_authority())?);
        Ok(Site { folder, dir, pool })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Answers a request. Pieces of files are lent to the connection if `lent` is given; read-ahead is charged to
    /// `capacity`.
    pub async fn answer<B: HttpBody<Data = Bytes, Error: Into<WebFailure>> + Unpin>(
        &self,
        request: Request<B>,
        lent: Option<&LentPieces>,
        capacity: &Arc<Capacity>,
    ) -> Response<Body> {
        // The HTTP/3 server has checked its targets already.
        if request.version() < Version::HTTP_2
            && let Err(error) = http_rules::check_target(&request)
        {
            return text(StatusCode::BAD_REQUEST, format!("{error}\n"));
        }
        let (head, body) = request.into_parts();
        let preconditions = Preconditions::from_fields(&head.method, &head.headers);
        let answer = match head.method {
            Method::GET | Method::HEAD => self.give(&head, &preconditions, lent, capacity).await,
            Method::PUT | Method::POST => match self.evaluate(head.uri.path(), preconditions).await {
                Ok(()) => take(body).await,
                Err(refused) => Err(refused),
            },
            _ => {
                let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD, PUT or POST\n");
                refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, PUT, POST"));
                return refusal;
            }
        };
        answer.unwrap_or_else(|refused| match refused {
            NoAnswer::NotFound => text(StatusCode::NOT_FOUND, "not found\n"),
            NoAnswer::BadPath => text(StatusCode::BAD_REQUEST, "no path of a file\n"),
            NoAnswer::Unmet(unmet) => text(unmet.status(), format!("{unmet}\n")),
            NoAnswer::BadBody => text(StatusCode::BAD_REQUEST, "no body\n"),
            NoAnswer::Failed(error) => {
                // System errors are for the server's operator, not for the client.
                say!("{}: {error}", self.folder.display());
                text(StatusCode::SERVICE_UNAVAILABLE, "try again later\n")
            }
        })
    }

    /// Returns the file at a request's path or the requested part of it, or the list of the folder there.
    async fn give(
        &self,
        asked: &Parts,
        preconditions: &Preconditions,
        lent: Option<&LentPieces>,
        capacity: &Arc<Capacity>,
    ) -> Result<Response<Body>, NoAnswer> {
        let (file, metadata) = match self.find(asked.uri.path()).await? {
            SiteEntry::Folder(listing) => {
                return match preconditions.evaluate(CurrentState::Unversioned) {
                    Err(UnmetPrecondition::NotModified) => Ok(empty(StatusCode::NOT_MODIFIED, HeaderMap::new())),
                    evaluated => evaluated.map(|()| text(StatusCode::OK, listing)).map_err(NoAnswer::Unmet),
                };
            }
            SiteEntry::File(file, metadata) => (file, metadata),
        };
        let version = FileVersion::from_metadata(&metadata);
        let reply = http_rules::reply(&asked.method, &asked.headers, &version, SystemTime::now());
        let (status, range) = (reply.status, reply.range);
        let refused = match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => None,
            StatusCode::NOT_MODIFIED => return Ok(empty(status, reply.fields)),
            StatusCode::RANGE_NOT_SATISFIABLE => Some("no such bytes\n"),
            _ => Some("the file is another version now\n"),
        };
        if let Some(refused) = refused {
            let mut refusal = text(status, refused);
            refusal.headers_mut().extend(reply.fields);
            return Ok(refusal);
        }
        // Two pieces are read ahead at most, so the charge is known before the first read.
        let piece = capacity.piece_bytes().min(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
        let pieces = FilePieces::new(self.pool.clone(), file, &metadata, range.clone()).map_err(io::Error::from)?;
        let charge = Charge::new(capacity.clone(), PIECES_AHEAD * piece);
        let pieces = pieces.with_piece_bytes(piece);
        let mut response = Response::new(BodyExt::boxed(FileBody { pieces, lent: lent.cloned(), _charge: charge }));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.extend(reply.fields);
        headers.insert(CONTENT_LENGTH, (range.end - range.start).into());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        Ok(response)
    }

    /// Evaluates the preconditions of a write. The content is dropped, but the answer is that of a server that would
    /// store it.
    async fn evaluate(&self, path: &str, preconditions: Preconditions) -> Result<(), NoAnswer> {
        if preconditions.is_empty() {
            return Ok(());
        }
        let evaluated = match self.find(path).await {
            Ok(SiteEntry::File(_, metadata)) => {
                preconditions.evaluate(CurrentState::Version(&FileVersion::from_metadata(&metadata)))
            }
            Ok(SiteEntry::Folder(_)) => preconditions.evaluate(CurrentState::Unversioned),
            Err(NoAnswer::NotFound) => preconditions.evaluate(CurrentState::Absent),
            Err(error) => return Err(error),
        };
        evaluated.map_err(NoAnswer::Unmet)
    }

    async fn find(&self, path: &str) -> Result<SiteEntry, NoAnswer> {
        let relative = decoded(path).ok_or(NoAnswer::BadPath)?;
        let dir = self.dir.clone();
        Ok(self.pool.call(move || find(&dir, relative.trim_start_matches('/'))).await??)
    }
}

/// The reason why a request is not answered as requested.
#[derive(Debug)]
enum NoAnswer {
    /// Nothing is served at the path. The answer does not reveal whether there is an entry that is not served.
    NotFound,
    /// The path is invalid.
    BadPath,
    /// A precondition of the request is not met.
    Unmet(UnmetPrecondition),
    /// The body does not match its header, or was cut off.
    BadBody,
    /// The server's system failed.
    Failed(io::Error),
}

/// Errors of opening a path: a path that leads nowhere is the client's fault, other errors are the server's.
impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> NoAnswer {
        use io::ErrorKind::{InvalidFilename, IsADirectory, NotADirectory, NotFound, PermissionDenied};
        match error.kind() {
            NotFound | NotADirectory | IsADirectory | PermissionDenied | InvalidFilename => NoAnswer::NotFound,
            _ if error.raw_os_error() == Some(TOO_MANY_LINKS) => NoAnswer::NotFound,
            _ => NoAnswer::Failed(error),
        }
    }
}

/// The entry at a path.
enum SiteEntry {
    File(File, Metadata),
    /// The names in the folder, one per line.
    Folder(String),
}

fn find(dir: &Dir, relative: &str) -> io::Result<SiteEntry> {
    // `.` is the folder itself.
    let relative = if relative.is_empty() { "." } else { relative };
    // Neither `..` nor a link leads out of the folder, even if entries are exchanged meanwhile.
    let kind = dir.metadata(relative)?;
    if kind.is_dir() {
        return listing(dir, relative).map(SiteEntry::Folder);
    }
    if !kind.is_file() {
        // Opening a device may have side effects.
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // The name may be a pipe by now, and opening a pipe would wait for its other end.
    let file =
        dir.open_with(relative, OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32))?.into_std();
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(SiteEntry::File(file, metadata)) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn listing(dir: &Dir, relative: &str) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in dir.read_dir(relative)? {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}\n", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names.concat())
}

/// The body of an answer with a file.
struct FileBody {
    pieces: FilePieces,
    lent: Option<LentPieces>,
    /// The charge for pieces that were read and not yet written.
    _charge: Charge,
}

impl HttpBody for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = ready!(self.pieces.poll_piece(cx));
        let lend = |piece: Bytes| match &self.lent {
            Some(lent) => lent.lend(piece),
            None => piece,
        };
        Poll::Ready(piece.map(|piece| Ok(Frame::data(lend(piece?)))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.remaining() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.remaining())
    }
}

/// Reads a body and answers with its length and hash.
async fn take(
    mut body: impl HttpBody<Data = Bytes, Error: Into<WebFailure>> + Unpin,
) -> Result<Response<Body>, NoAnswer> {
    let (mut bytes, mut hash) = (0, Sha256::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|_| NoAnswer::BadBody)?.into_data() {
            bytes += data.len();
            hash.update(&data);
        }
    }
    Ok(text(StatusCode::OK, format!("{bytes} {}\n", hexadecimal(&hash.finalize()))))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn empty(status: StatusCode, fields: HeaderMap) -> Response<Body> {
    let mut response = Response::new(Full::default().map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}

/// Decodes the percent signs of a URL path (RFC 3986 2.1). Returns `None` if the result is not UTF-8 or not a path.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = path.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok().filter(|path| !path.contains('\0'))
}

/// Pieces of a file that were read and not written: one is read while the HTTP library has another.
const PIECES_AHEAD: usize = 2;
/// Error number ELOOP: too many links, for example a circle.
const TOO_MANY_LINKS: i32 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_decoded_or_none() {
        assert_eq!(decoded("/a%20page.txt").as_deref(), Some("/a page.txt"));
        for bad in ["/%", "/%4", "/%zz", "/%ff", "/%00", "/a\0b"] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }

    /// A folder and a link out of the root, and a file and a pipe, change places all the time: no outside file is
    /// found, and no pipe blocks.
    #[test]
    fn swapped_names_lead_nowhere() {
        use core::sync::atomic::{AtomicBool, Ordering};
        use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
        let outer = std::env::temp_dir().join(format!("nic-offload-swapped-{}", std::process::id()));
        std::fs::create_dir_all(outer.join("out")).unwrap();
        std::fs::create_dir_all(outer.join("site/folder")).unwrap();
        std::fs::write(outer.join("out/f"), "outside").unwrap();
        std::fs::write(outer.join("site/folder/f"), "in").unwrap();
        std::fs::write(outer.join("site/file"), "in").unwrap();
        std::os::unix::fs::symlink("../out", outer.join("site/link")).unwrap();
        mknodat(CWD, outer.join("site/pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let dir = Dir::open_ambient_dir(outer.join("site"), ambient_authority()).unwrap();
        let (done, mut found) = (AtomicBool::new(false), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let at = |name: &str| outer.join("site").join(name);
                while !done.load(Ordering::Relaxed) {
                    for (one, other) in [("folder", "link"), ("file", "pipe")] {
                        renameat_with(CWD, at(one), CWD, at(other), RenameFlags::EXCHANGE).unwrap();
                    }
                }
            });
            for _ in 0..5000 {
                for path in ["folder/f", "file"] {
                    if let Ok(SiteEntry::File(_, metadata)) = find(&dir, path) {
                        found.push(metadata.len());
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(!found.is_empty() && found.iter().all(|length| *length == 2), "a file outside was found");
        std::fs::remove_dir_all(&outer).unwrap();
    }

    #[test]
    fn nothing_outside_the_folder_is_found() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web");
        let folder = Dir::open_ambient_dir(path, ambient_authority()).unwrap();
        assert!(matches!(find(&folder, "site.rs"), Ok(SiteEntry::File(..))));
        assert!(matches!(find(&folder, ""), Ok(SiteEntry::Folder(names)) if names.contains("site.rs\n")));
        let refused = |path: &str| find(&folder, path).err().map(|error| error.kind());
        assert_eq!(refused("../Cargo.toml"), Some(io::ErrorKind::PermissionDenied));
        assert_eq!(refused("none"), Some(io::ErrorKind::NotFound));
    }
}
