//! COPY: this server fetches a file from another server, or sends one to it, at a client's request (third-party copy,
//! HTTP-TPC of WLCG).
//!
//! ```text
//! COPY /name, Source: https://other/name         this server reads there and writes here; needs the right to write
//! COPY /name, Destination: https://other/name    this server reads here and writes there; needs the right to read
//! ```
//! The response is a 202 and begins at once. Its body has a performance marker every few seconds, and a last line that
//! begins with `success:` or `failure:`. `TransferHeaderAuthorization` carries the token for the other server. If the
//! client disconnects, the copy ends; received bytes are kept, and the next COPY of the file resumes. An existing file
//! is replaced, unless it has the source's hash.
//!
//! ```text
//! Overwrite: F                             an existing file stays, and the copy fails
//! RequireChecksumVerification: true        the copy fails unless the other server tells the file's digest
//! ```

use super::Server;
use super::declared::single_value;
use super::refusal::Refusal;
use super::write::{self, connection, refuse_folder};
use crate::body::Body;
use crate::copy::{Copy, CopyLocation, CopyOutcome, SyncMode};
use crate::dial::Dial;
use crate::name::Name;
use crate::protocol::TRANSFER_AUTHORIZATION;
use crate::storage::FileKind;
use crate::tokens::{Grant, Right};
use crate::watch::ProgressDeadline;
use bytes::Bytes;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use core::time::Duration;
use http_body_util::BodyExt;
use http_rules::Preconditions;
use hyper::body::{Body as HttpBody, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Resources for copies between servers.
pub(super) struct ThirdPartyAccess {
    /// The connector, restricted to the allowed hosts.
    pub(super) dial: Arc<dyn Dial>,
    /// Permits for concurrent copies.
    pub(super) places: Arc<tokio::sync::Semaphore>,
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq)]
enum CopyDirection {
    Pull,
    Push,
}

pub(super) async fn copy(
    server: &Server,
    request: &Request<()>,
    name: Name,
    grant: &Arc<Grant>,
    watch: &ProgressDeadline,
) -> Result<Response<Body>, Refusal> {
    let fields = request.headers();
    let bad = |text: &str| Refusal::new(StatusCode::BAD_REQUEST, text);
    let Some(third_party) = &server.0.third_party else {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "this server copies from and to no other: --tpc-allow names those it may",
        ));
    };
    let (way, other) = match (single_value(fields, "source")?, single_value(fields, "destination")?) {
        (Some(source), None) => (CopyDirection::Pull, source),
        (None, Some(destination)) => (CopyDirection::Push, destination),
        _ => return Err(bad("COPY needs either Source or Destination, a URL that begins with https://")),
    };
    // The token's rights are about the local file.
    let needs = if way == CopyDirection::Pull { Right::Write } else { Right::Read };
    if !grant.may(needs) || !grant.reaches(&name) {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "the token has no such right here"));
    }
    if name == Name::root() || !other.starts_with("https://") {
        return Err(bad("COPY is for a file, and for another server by a URL that begins with https://"));
    }
    refuse_folder(request.uri().path())?;
    // davs:// and http:// are refused: the former is another protocol, the latter is not encrypted.
    let token = match single_value(fields, TRANSFER_AUTHORIZATION)? {
        None => None,
        Some(value) => {
            let token = value.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer "));
            Some(token.ok_or_else(|| bad("TransferHeaderAuthorization has to be a bearer token"))?.1.trim())
        }
    };
    let place = CopyLocation::parse(other, token).map_err(|error| bad(&error.to_string()))?;
    // The operator's list protects hosts inside the network from requests through this server.
    if !place.server().is_some_and(|(host, port)| third_party.dial.may_reach(host, port)) {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "this server may not copy from or to that host"));
    }
    if place.has_slash() {
        return Err(bad("COPY is for a file: the URL of a folder is none"));
    }
    let streams = match single_value(fields, "x-number-of-streams")?.map(str::parse) {
        None => DEFAULT_STREAMS,
        Some(Ok(streams @ 1..=MAX_STREAMS)) => streams,
        Some(_) => return Err(bad("X-Number-Of-Streams is 1 to 64")),
    };
    let replaces = match single_value(fields, "overwrite")? {
        None => true,
        Some(value) if value.eq_ignore_ascii_case("T") => true,
        Some(value) if value.eq_ignore_ascii_case("F") => false,
        Some(_) => return Err(bad("Overwrite is T or F")),
    };
    let proves = match single_value(fields, "requirechecksumverification")? {
        None => false,
        Some(value) if value.eq_ignore_ascii_case("true") => true,
        Some(value) if value.eq_ignore_ascii_case("false") => false,
        Some(_) => return Err(bad("RequireChecksumVerification is true or false")),
    };
    // The preconditions are about the local file, which a pull writes and a push reads.
    let preconditions = Preconditions::from_fields(request.method(), fields);
    write::evaluate(server, &name, &preconditions).await?;
    // A waiting request would hold a connection, and the client can ask again.
    let Ok(permit) = third_party.places.clone().try_acquire_owned() else {
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many copies are under way: ask again later"));
    };
    let mut copy = Copy::new(server.0.shell.clone(), third_party.dial.clone()).streams(streams);
    // An interrupted COPY is resumed. Only an equal hash shows that the destination file is the same.
    copy = copy.resume(true).sync(SyncMode::Hash).replaces(replaces).proves(proves);
    copy = copy.shared_pace(grant.pace().cloned()).retries(RETRIES);
    copy = match way {
        CopyDirection::Pull => copy.preconditions(preconditions),
        CopyDirection::Push => copy.source_preconditions(preconditions),
    };
    // The other server may take any time.
    watch.expect(None);
    let here = CopyLocation::in_folder(server.0.folder.clone(), name.clone());
    if way == CopyDirection::Pull {
        let (folder, at) = (server.0.folder.clone(), name.clone());
        let found = server.0.shell.blocking(move || Ok(folder.about(&at).ok())).await?;
        match found {
            // This check gives an early refusal. The rename at the end decides.
            Some(_) if !replaces => return Err(is_there()),
            Some(about) if about.kind != FileKind::File => {
                return Err(Refusal::new(StatusCode::CONFLICT, "this is a folder, or no file: COPY is for a file"));
            }
            _ => {}
        }
        // An abandoned upload of the same user would lock the name.
        server.0.uploads.free_name(&name, grant.name(), &connection(request))?;
    } else if !replaces {
        let found = copy.is_there(&place).await;
        if found.map_err(|error| Refusal::new(StatusCode::BAD_GATEWAY, error.to_string()))? {
            return Err(is_there());
        }
    }
    let places = if way == CopyDirection::Pull { (place, here) } else { (here, place) };
    let (lines, heard) = mpsc::channel(2);
    server.0.shell.spawn(report_progress(server.clone(), copy, name, places, lines, permit));
    let mut response = Response::new(Markers(heard).boxed_unsync());
    *response.status_mut() = StatusCode::ACCEPTED;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/perf-marker-stream"));
    Ok(response)
}

/// Performs the copy and reports its progress, until it ends or the client is gone.
async fn report_progress(
    server: Server,
    copy: Copy,
    name: Name,
    (from, to): (CopyLocation, CopyLocation),
    lines: mpsc::Sender<String>,
    permit: OwnedSemaphorePermit,
) {
    let (shell, progress) = (&server.0.shell, copy.progress());
    let mut copying = pin!(copy.run_file(&from, &to));
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut copying => break ended,
            // The client is gone. Dropping the copy keeps its journal for the next COPY.
            () = lines.closed() => return,
            () = shell.sleep(BETWEEN_MARKERS) => {}
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        // Retransmitted blocks count once. A slow reader misses markers.
        let _ = lines.try_send(marker(now, (progress.bytes() + progress.skipped()).min(progress.all_bytes())));
    };
    drop(permit);
    server.0.digests.forget(&name);
    let last = match ended {
        Ok(outcome) => final_line(&outcome),
        Err(error) => failure(&error.to_string()),
    };
    // The client may be gone.
    let _ = lines.send(last).await;
}

/// Formats a performance marker with one stripe: this server.
fn marker(seconds: u64, bytes: u64) -> String {
    format!(
        "Perf Marker\n    Timestamp: {seconds}\n    Stripe Index: 0\n    Stripe Bytes Transferred: {bytes}\n    Total Stripe Count: 1\nEnd\n"
    )
}

fn final_line(outcome: &CopyOutcome) -> String {
    match outcome.failed.first() {
        Some((_, error)) => failure(error),
        None if outcome.copied + outcome.present == 1 => "success: Created\n".into(),
        None => failure("nothing was copied"),
    }
}

/// Returns the last line, with `why` on one line: a line break in it could begin another result.
fn failure(why: &str) -> String {
    format!("failure: {}\n", why.lines().collect::<Vec<_>>().join(" "))
}

fn is_there() -> Refusal {
    Refusal::new(StatusCode::PRECONDITION_FAILED, "there is a file of this name")
}

/// A body of lines from a channel.
struct Markers(mpsc::Receiver<String>);

impl HttpBody for Markers {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|line| line.map(|line| Ok(Frame::data(line.into()))))
    }
}

const BETWEEN_MARKERS: Duration = Duration::from_secs(5);
const DEFAULT_STREAMS: usize = 8;
const MAX_STREAMS: usize = 64;
/// Retries per block. Few, because the client should learn of failures soon and can ask again.
const RETRIES: u32 = 4;
