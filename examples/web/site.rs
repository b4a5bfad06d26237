//! A folder as a web site. GET gives files, whole or in ranges, and lists folders; PUT and POST take any bytes, keep none
//! of them, and answer with their number and SHA-256.
//!
//! Files are read on a pool that may block, and each piece is lent to a TCP connection, which sends it uncopied.

use super::limits::{Capacity, Charge};
use super::range::{Selected, select};
use super::{Failure, hexadecimal};
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_RANGE, RANGE,
};
use hyper::{Method, Request, Response, StatusCode};
use ktls_offload::{Blocking, FilePieces, LentPieces};
use offload_console::say;
use sha2::{Digest, Sha256};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// What an answer says.
pub type Body = BoxBody<Bytes, io::Error>;

/// A folder to be served.
///
/// ```
/// use ktls_offload::InPlace;
/// use offload_examples::web::site::Site;
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
    pool: Arc<dyn Blocking>,
}

impl Site {
    /// Serves `folder`, which `pool` reads.
    ///
    /// # Errors
    /// If it is not a folder, or not there.
    pub fn new(folder: &Path, pool: Arc<dyn Blocking>) -> io::Result<Site> {
        let folder = folder.canonicalize()?;
        if !folder.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Site { folder, pool })
    }

    /// What is served.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Answers a request of a connection that pieces are lent to, if it takes them so; what is read ahead is charged to
    /// `capacity`.
    pub async fn answer<B: HttpBody<Data = Bytes, Error: Into<Failure>> + Unpin>(
        &self,
        request: Request<B>,
        lent: Option<&LentPieces>,
        capacity: &Arc<Capacity>,
    ) -> Response<Body> {
        let answer = match *request.method() {
            Method::GET | Method::HEAD => self.give(request.uri().path(), request.headers(), lent, capacity).await,
            Method::PUT | Method::POST => take(request.into_body()).await,
            _ => {
                let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD, PUT or POST\n");
                refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, PUT, POST"));
                return refusal;
            }
        };
        answer.unwrap_or_else(|refused| match refused {
            NoAnswer::NotFound => text(StatusCode::NOT_FOUND, "not found\n"),
            NoAnswer::BadPath => text(StatusCode::BAD_REQUEST, "no path of a file\n"),
            NoAnswer::BadBody => text(StatusCode::BAD_REQUEST, "no body\n"),
            NoAnswer::Failed(error) => {
                // What the system says is for whoever runs the server.
                say!("{}: {error}", self.folder.display());
                text(StatusCode::SERVICE_UNAVAILABLE, "try again later\n")
            }
        })
    }

    /// The file at `path`, or the part of it that is asked for, or what is in the folder there.
    async fn give(
        &self,
        path: &str,
        asked: &HeaderMap,
        lent: Option<&LentPieces>,
        capacity: &Arc<Capacity>,
    ) -> Result<Response<Body>, NoAnswer> {
        let relative = decoded(path).ok_or(NoAnswer::BadPath)?;
        let folder = self.folder.clone();
        let found = self.pool.call(move || find(&folder, relative.trim_start_matches('/'))).await??;
        let (file, metadata) = match found {
            Found::Folder(listing) => return Ok(text(StatusCode::OK, listing)),
            Found::File(file, metadata) => (file, metadata),
        };
        let (length, tag) = (metadata.len(), entity_tag(&metadata));
        let header = |name| asked.get(name).and_then(|value| HeaderValue::to_str(value).ok());
        // RFC 9110 section 13.1.5: a part of another version than the one that is known would be of no use.
        let same = header(IF_RANGE).is_none_or(|known| known == tag);
        let selected = match header(RANGE) {
            Some(range) if same => select(range, length),
            _ => Selected::Whole,
        };
        let (status, range) = match selected {
            Selected::Whole => (StatusCode::OK, 0..length),
            Selected::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
            Selected::Nothing => {
                let mut refusal = text(StatusCode::RANGE_NOT_SATISFIABLE, "no such bytes\n");
                refusal.headers_mut().insert(CONTENT_RANGE, ascii(format!("bytes */{length}")));
                return Ok(refusal);
            }
        };
        let piece = capacity.piece_bytes().min(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
        let pieces = FilePieces::new(self.pool.clone(), file, &metadata, range.clone()).map_err(io::Error::from)?;
        let charge = Charge::new(capacity.clone(), PIECES_AHEAD * piece);
        let pieces = pieces.with_piece_bytes(piece);
        let mut response = Response::new(BodyExt::boxed(FileBody { pieces, lent: lent.cloned(), _charge: charge }));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_LENGTH, (range.end - range.start).into());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(ETAG, ascii(tag));
        if status == StatusCode::PARTIAL_CONTENT {
            headers.insert(CONTENT_RANGE, ascii(format!("bytes {}-{}/{length}", range.start, range.end - 1)));
        }
        Ok(response)
    }
}

/// Why a request is not answered as asked.
#[derive(Debug)]
enum NoAnswer {
    /// There is nothing at that path that is served: what else may be there is nobody's business.
    NotFound,
    /// The path is none.
    BadPath,
    /// The body is not what its header says, or was cut off.
    BadBody,
    /// The server's system failed.
    Failed(io::Error),
}

/// What the system says of a path, or of a file: that it leads nowhere is the client's affair.
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

/// What there is at a path.
enum Found {
    File(File, Metadata),
    /// What is in it, a line each.
    Folder(String),
}

fn find(folder: &Path, relative: &str) -> io::Result<Found> {
    let found = folder.join(relative).canonicalize()?;
    // Neither `..` nor a link leads out of the folder.
    if !found.starts_with(folder) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let kind = std::fs::metadata(&found)?;
    if kind.is_dir() {
        return listing(&found).map(Found::Folder);
    }
    if !kind.is_file() {
        // To open a pipe would be to wait for its other end.
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let file = File::open(&found)?;
    let metadata = file.metadata()?;
    Ok(Found::File(file, metadata))
}

fn listing(folder: &Path) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}\n", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names.concat())
}

/// Tells versions of a file apart, as far as length and time of modification do.
fn entity_tag(metadata: &Metadata) -> String {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("\"{:x}-{:x}\"", metadata.len(), modified.unwrap_or_default().as_nanos())
}

/// A file on its way out.
struct FileBody {
    pieces: FilePieces,
    lent: Option<LentPieces>,
    /// For pieces that were read and not written yet.
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

/// Counts and hashes what is sent here.
async fn take(mut body: impl HttpBody<Data = Bytes, Error: Into<Failure>> + Unpin) -> Result<Response<Body>, NoAnswer> {
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

fn ascii(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("digits, letters and quotes")
}

/// A path of a URL without its percent signs (RFC 3986 2.1); `None`: it is not UTF-8, or not a path.
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
/// ELOOP: links that lead in circles.
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

    #[test]
    fn nothing_outside_the_folder_is_found() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap().join("web");
        assert!(matches!(find(&folder, "site.rs"), Ok(Found::File(..))));
        assert!(matches!(find(&folder, ""), Ok(Found::Folder(names)) if names.contains("site.rs\n")));
        let refused = |path: &str| find(&folder, path).err().map(|error| error.kind());
        assert_eq!(refused("../Cargo.toml"), Some(io::ErrorKind::PermissionDenied));
        assert_eq!(refused("none"), Some(io::ErrorKind::NotFound));
    }
}
