//! POST and PUT: files received whole or by blocks.
//!
//! ```text
//! PUT, no Content-Range                   the whole file; appears after its last byte and its digests were checked
//! POST, Reservoir-Upload, -Blocks         begins or resumes an upload; the response lists the present blocks
//! PUT, Content-Range: bytes A-B/SIZE      bytes of the upload; journaled block by block
//! PUT, Content-Range: bytes */SIZE        completes the upload; Repr-Digest tells the file's digest
//! Reservoir-Share: NUMBER/COUNT           in all but the first: servers of one folder write the file together, each its blocks;
//!                                         the others are ended before number 0, which completes the file
//! ```
//! Without `Reservoir-Upload`, each part declares the digest of the whole file, which identifies the upload. The last
//! byte then completes the upload.

use super::Server;
use super::declared::{DeclaredDigests, DigestHashers, DigestList};
use super::read::{ascii, field, response};
use super::refusal::Refusal;
use super::uploads::{BlockClaim, ClientConnection, OpenUpload, UploadId, UploadWriter};
use crate::attributes::{self, Attributes};
use crate::blocks::{BlockSum, Blocks, DEFAULT_BLOCK};
use crate::body::{self, Body};
use crate::digest::HashAlgorithm;
use crate::landing::{LandingFile, ResumeMode, SyncEpoch};
use crate::mtime;
use crate::name::Name;
use crate::pace::Pace;
use crate::protocol::{
    BLOCKS, CHECK, MAX_SHARES, MISSING, MODE, MTIME, PRESENT, RESUME, SHARE, SPARSE, UPLOAD, VERIFY,
};
use crate::sink::{RangeOutcome, Sink};
use crate::storage;
use crate::tokens::Grant;
use crate::watch::ProgressDeadline;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use http_body_util::BodyExt;
use http_rules::Preconditions;
use http_rules::range::{ContentRange, MAX_FILE_BYTES};
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap};
use hyper::{Request, Response, StatusCode};
use std::sync::Arc;
use std::time::SystemTime;

/// Begins or resumes an upload.
pub(super) async fn begin(
    server: &Server,
    request: &Request<()>,
    name: Name,
    grant: &Arc<Grant>,
    watch: &ProgressDeadline,
) -> Result<Response<Body>, Refusal> {
    let fields = request.headers();
    let Some(writer) = named_writer(fields, grant)? else {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "POST begins an upload: Reservoir-Upload names it"));
    };
    refuse_folder(request.uri().path())?;
    let (attributes, declared) = (attributes(fields)?, without_content(fields)?);
    let preconditions = Preconditions::from_fields(request.method(), fields);
    evaluate(server, &name, &preconditions).await?;
    let begin = if field(fields, RESUME) == Some("?1") { ResumeMode::Resume } else { ResumeMode::Anew };
    // All present blocks are read, which may take any time.
    watch.expect(None);
    let (upload, was_open) = server.0.uploads.enter(&name, writer, begin, connection(request)).await?;
    upload.expect_only(declared.whole);
    if was_open && field(fields, CHECK) == Some("?1") {
        // An open upload was checked when it was opened. The medium may have failed since.
        let landing = upload.landing()?;
        landing.in_turn(&server.0.shell, |landing, _| landing.check()).await?;
    }
    if begin == ResumeMode::Resume && upload.is_first() {
        let (landing, (_, shares)) = (upload.landing()?, shares(fields)?);
        server.0.shell.blocking(move || Ok(landing.gather_beyond(shares))).await??;
    }
    upload.landing()?.require(preconditions);
    if field(fields, SPARSE) == Some("?1") {
        upload.landing()?.leave_holes();
    }
    keep_or_leave(server, &name, &upload, attributes).await?;
    watch.expect(Some(server.0.limits.stall));
    let mut told = HeaderMap::new();
    told.insert(PRESENT, upload.landing()?.present().into());
    Ok(response(StatusCode::OK, told, body::full(upload.landing()?.lines())))
}

/// Returns the attributes that the file is to have, if the request tells them.
fn attributes(fields: &HeaderMap) -> Result<Option<Attributes>, Refusal> {
    let wrong = "Reservoir-Attributes has others than modes to 777 and user. attributes, or too many";
    let read = |text| Attributes::from_text(text).ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, wrong));
    field(fields, attributes::FIELD).map(read).transpose()
}

/// Returns the mode of the source. The file gets the bits that the server's umask leaves.
fn mode(fields: &HeaderMap) -> Result<Option<u32>, Refusal> {
    let read = |text| u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    let wrong = || Refusal::new(StatusCode::BAD_REQUEST, "Reservoir-Mode has other bits than 777, or is not octal");
    field(fields, MODE).map(|text| read(text).ok_or_else(wrong)).transpose()
}

/// Sets the attributes of the unfinished file.
async fn keep(server: &Server, upload: &Arc<OpenUpload>, attributes: Option<Attributes>) -> Result<(), Refusal> {
    let Some(attributes) = attributes else { return Ok(()) };
    let landing = upload.landing()?;
    Ok(server.0.shell.blocking(move || Ok(landing.keep(attributes))).await??)
}

/// Sets the attributes of the unfinished file. If they are not supported, the upload ends.
async fn keep_or_leave(
    server: &Server,
    name: &Name,
    upload: &Arc<OpenUpload>,
    attributes: Option<Attributes>,
) -> Result<(), Refusal> {
    let kept = keep(server, upload, attributes).await;
    if kept.is_err() {
        server.0.uploads.leave(name, upload);
    }
    kept
}

pub(super) async fn put(
    server: &Server,
    request: Request<Body>,
    name: Name,
    grant: &Arc<Grant>,
    watch: &ProgressDeadline,
) -> Result<Response<Body>, Refusal> {
    refuse_folder(request.uri().path())?;
    let preconditions = Preconditions::from_fields(request.method(), request.headers());
    evaluate(server, &name, &preconditions).await?;
    let range = field(request.headers(), CONTENT_RANGE).map(str::parse::<ContentRange>).transpose();
    let put = UploadRequest { server, name, grant, watch, preconditions };
    match range.map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error))? {
        None => put.whole(request).await,
        Some(ContentRange { bytes: Some(bytes), size }) => put.part(request, bytes, size).await,
        Some(ContentRange { bytes: None, size }) => put.finish(request, size).await,
    }
}

/// Evaluates the preconditions of a request for the present state of its target. The file may change before the upload
/// ends, so the landing evaluates them again.
pub(super) async fn evaluate(server: &Server, name: &Name, preconditions: &Preconditions) -> Result<(), Refusal> {
    if preconditions.is_empty() {
        return Ok(());
    }
    let (folder, name, preconditions) = (server.0.folder.clone(), name.clone(), preconditions.clone());
    Ok(server.0.shell.blocking(move || storage::evaluate(&*folder, &name, &preconditions)).await??)
}

struct UploadRequest<'a> {
    server: &'a Server,
    name: Name,
    grant: &'a Arc<Grant>,
    watch: &'a ProgressDeadline,
    preconditions: Preconditions,
}

impl UploadRequest<'_> {
    /// Receives a file in one request.
    async fn whole(self, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        let size = field(request.headers(), CONTENT_LENGTH).and_then(|length| length.parse().ok());
        let size = size.ok_or_else(|| Refusal::new(StatusCode::LENGTH_REQUIRED, "Content-Length is needed"))?;
        if size >= MAX_FILE_BYTES {
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "the declared size is larger than any file"));
        }
        self.request(request, size).await
    }

    /// Receives the file in one request of `size` bytes.
    async fn request(self, request: Request<Body>, size: u64) -> Result<Response<Body>, Refusal> {
        // The request is checked completely before files are created.
        let (attributes, declared) = (attributes(request.headers())?, DeclaredDigests::new(request.headers())?);
        let mode = mode(request.headers())?;
        let blocks = Blocks::new(size, DEFAULT_BLOCK).expect("the usual block is a power of two");
        let upload = UploadId::Request(REQUESTS.fetch_add(1, Ordering::Relaxed));
        let writer = UploadWriter { user: self.grant.name().into(), upload, blocks, share: 0 };
        let entered = self.server.0.uploads.enter(&self.name, writer, ResumeMode::Anew, connection(&request));
        let (upload, _) = entered.await?;
        let landing = upload.landing()?;
        if field(request.headers(), SPARSE) == Some("?1") {
            landing.leave_holes();
        }
        // If this future is dropped, the received bytes are removed.
        let leftovers = Leftovers { put: &self, upload: &upload, landing: &landing, keep: false };
        mode.into_iter().for_each(|mode| landing.inherit(mode));
        keep(self.server, &upload, attributes).await?;
        let modified = modified(request.headers());
        let mut digests = declared.content.clone();
        digests.extend(declared.whole.iter().cloned());
        // The landing computes the file's BLAKE3 hash anyway.
        digests.retain(|(algorithm, _)| *algorithm != HashAlgorithm::Blake3);
        let summers = DigestHashers::new(DeclaredDigests::algorithms(&digests));
        let (written, trailers, mut sums) = self.receive(request, &landing, 0..size, summers, None).await?;
        written.blocks.iter().for_each(|(number, sum)| landing.note(*number, *sum));
        let declared = declared.and(trailers.as_ref())?;
        sums.push((HashAlgorithm::Crc32c, written.crc.to_be_bytes().to_vec()));
        sums.extend(landing.root().map(|root| (HashAlgorithm::Blake3, root.to_vec())));
        if !self.has_digests(&landing, 0..size, &declared.content, sums.clone()).await? {
            return Err(differs(StatusCode::BAD_REQUEST, "the received bytes"));
        }
        if !self.has_digests(&landing, 0..size, &declared.whole, sums).await? {
            return Err(differs(StatusCode::BAD_REQUEST, "the received file"));
        }
        self.complete_upload(leftovers, modified).await
    }

    /// Receives bytes of an upload.
    async fn part(self, request: Request<Body>, bytes: Range<u64>, size: u64) -> Result<Response<Body>, Refusal> {
        let fields = request.headers();
        let (named, declared) = (named_writer(fields, self.grant)?, DeclaredDigests::new(fields)?);
        let is_named = named.is_some();
        let length = field(fields, CONTENT_LENGTH).map(str::parse);
        if length.is_some_and(|length| length != Ok(bytes.end - bytes.start)) {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "Content-Range and Content-Length differ"));
        }
        // A part that is the whole file needs no other requests, so it needs no name or digest either.
        if !is_named && bytes == (0..size) {
            return self.request(request, size).await;
        }
        let writer = named.map_or_else(|| unnamed_writer(&declared, size, self.grant), Ok)?;
        if writer.blocks.size() != size {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "Content-Range and Reservoir-Blocks differ in the size"));
        }
        // Named uploads begin with a POST. Unnamed uploads begin with their first part.
        let begin = if is_named { ResumeMode::Begun } else { ResumeMode::Resume };
        let modified = modified(fields);
        let entered = self.server.0.uploads.enter(&self.name, writer, begin, connection(&request));
        let (upload, _) = entered.await?;
        let landing = upload.landing()?;
        let expected = match self.take_part(request, bytes, &upload, declared).await {
            Ok(expected) => expected,
            Err(refusal) => {
                // A refused first part must not occupy the name.
                if !is_named && upload.is_empty() {
                    drop(Leftovers { put: &self, upload: &upload, landing: &landing, keep: false });
                }
                return Err(refusal);
            }
        };
        if !is_named && landing.present() == landing.blocks().count() {
            let mut leftovers = Leftovers { put: &self, upload: &upload, landing: &landing, keep: true };
            let known = landing.root().map(|root| (HashAlgorithm::Blake3, root.to_vec())).into_iter().collect();
            if !self.has_digests(&landing, 0..size, &expected, known).await? {
                // Any of the parts may be wrong, so all of them must be sent again.
                leftovers.keep = false;
                return Err(differs(StatusCode::BAD_REQUEST, "the received file"));
            }
            return self.complete_upload(leftovers, modified).await;
        }
        let mut told = HeaderMap::new();
        told.insert(PRESENT, landing.present().into());
        Ok(response(StatusCode::ACCEPTED, told, body::empty()))
    }

    /// Receives and checks a part. Returns the required digests of the whole file.
    async fn take_part(
        &self,
        request: Request<Body>,
        bytes: Range<u64>,
        upload: &Arc<OpenUpload>,
        declared: DeclaredDigests,
    ) -> Result<DigestList, Refusal> {
        let landing = upload.landing()?;
        landing.require(self.preconditions.clone());
        let claim = Arc::new(upload.claim(landing.blocks().touched(&bytes))?);
        // The request may fail half way, and then these bytes are neither the old part nor the new one.
        upload.forget_parts(&bytes);
        let summers = DigestHashers::new(DeclaredDigests::algorithms(&declared.content));
        let (written, trailers, mut sums) =
            self.receive(request, &landing, bytes.clone(), summers, Some(claim.clone())).await?;
        let declared = declared.and(trailers.as_ref())?;
        sums.push((HashAlgorithm::Crc32c, written.crc.to_be_bytes().to_vec()));
        // The tree node applies only to a request with exactly one whole block.
        let is_block = match (&declared.sum, &written.blocks[..]) {
            (Some(declared), [(_, sum)]) if written.parts.is_empty() => declared == sum,
            _ => true,
        };
        if !is_block || !self.has_digests(&landing, bytes, &declared.content, sums).await? {
            return Err(differs(StatusCode::CONFLICT, "the received bytes"));
        }
        if let Some(block) = written.differs {
            let text = format!("block {block} is there already, with other bytes: begin a new upload");
            return Err(Refusal::new(StatusCode::CONFLICT, text));
        }
        for (number, sum) in &written.blocks {
            self.done(&landing, *number, *sum, written.epoch).await?;
        }
        if !written.parts.is_empty() {
            // A part counts only on the medium: if a failed sync loses it, its own request must fail.
            let epoch = written.epoch;
            landing.in_turn(&self.server.0.shell, move |landing, enough| landing.sync_to(enough, epoch)).await?;
        }
        for part in &written.parts {
            for number in upload.add_part(part.clone())? {
                // The parts came by different requests, so nothing has hashed the whole block yet.
                if landing.sum(number).is_none() {
                    let (read, epoch) = (landing.clone(), landing.epoch());
                    let sum = self.server.0.shell.blocking(move || read.read_back(number)).await?;
                    self.done(&landing, number, sum, epoch).await?;
                }
            }
        }
        Ok(upload.expect(&declared.whole))
    }

    /// Tests whether the bytes of the landing have all the declared digests. Digests that are not `known` are computed
    /// from the medium.
    async fn has_digests(
        &self,
        landing: &Arc<LandingFile>,
        bytes: Range<u64>,
        declared: &DigestList,
        mut known: DigestList,
    ) -> Result<bool, Refusal> {
        let mut missing: Vec<HashAlgorithm> = declared.iter().map(|(algorithm, _)| *algorithm).collect();
        // Reading the file back is slow, so it is only for algorithms that were not computed on arrival.
        missing.retain(|algorithm| !known.iter().any(|(one, _)| one == algorithm));
        if !missing.is_empty() {
            let landing = landing.clone();
            known.extend(self.server.0.shell.blocking(move || landing.digests(bytes, &missing)).await?);
        }
        Ok(declared.iter().all(|digest| known.contains(digest)))
    }

    /// Completes an upload.
    async fn finish(self, request: Request<Body>, size: u64) -> Result<Response<Body>, Refusal> {
        let declared = without_content(request.headers())?;
        let Some(writer) = named_writer(request.headers(), self.grant)? else {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "Reservoir-Upload has to name the upload"));
        };
        if writer.blocks.size() != size {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "Content-Range and Reservoir-Blocks differ in the size"));
        }
        if writer.share > 0 {
            // The server with the first share gathers the blocks of this share.
            self.server.0.uploads.end_share(&self.name, &writer);
            return Ok(response(StatusCode::NO_CONTENT, HeaderMap::new(), body::empty()));
        }
        let (_, shares) = shares(request.headers())?;
        // Reading the file again may take any time.
        self.watch.expect(None);
        let entered = self.server.0.uploads.enter(&self.name, writer, ResumeMode::Begun, connection(&request));
        let (upload, _) = entered.await?;
        let landing = upload.landing()?;
        let _claim = upload.claim(0..landing.blocks().count())?;
        if shares > 1 {
            let gathering = landing.clone();
            self.server.0.shell.blocking(move || Ok(gathering.gather(shares))).await??;
        }
        if field(request.headers(), VERIFY) == Some("?1") {
            landing.in_turn(&self.server.0.shell, |landing, _| landing.check()).await?;
        }
        let missing = landing.blocks().count() - landing.present();
        if missing > 0 {
            let mut refusal = Refusal::new(StatusCode::CONFLICT, format!("{missing} blocks are missing"));
            refusal.field(hyper::header::HeaderName::from_static(MISSING), missing);
            return Err(refusal);
        }
        let known = landing.root().map(|root| (HashAlgorithm::Blake3, root.to_vec())).into_iter().collect();
        if !self.has_digests(&landing, 0..size, &upload.expect(&declared.whole), known).await? {
            let text = "the file's hash is not the one that was declared: the source has changed meanwhile";
            return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, text));
        }
        keep_or_leave(self.server, &self.name, &upload, attributes(request.headers())?).await?;
        mode(request.headers())?.into_iter().for_each(|mode| landing.inherit(mode));
        let modified = modified(request.headers());
        let leftovers = Leftovers { put: &self, upload: &upload, landing: &landing, keep: true };
        self.complete_upload(leftovers, modified).await
    }

    /// Completes the landing and answers the request.
    async fn complete_upload(
        &self,
        mut leftovers: Leftovers<'_>,
        modified: Option<SystemTime>,
    ) -> Result<Response<Body>, Refusal> {
        let (folder, name, landing) = (self.server.0.folder.clone(), self.name.clone(), leftovers.landing.clone());
        let preconditions = self.preconditions.clone();
        let settled = landing.in_turn(&self.server.0.shell, move |landing, _| {
            landing.require(preconditions);
            let replaces = folder.about(&name).is_ok();
            Ok(landing.finish(modified).map(|()| replaces))
        });
        let replaces = settled.await??;
        leftovers.keep = true;
        self.server.0.digests.forget(&self.name);
        self.server.0.uploads.leave(&self.name, leftovers.upload);
        let mut told = HeaderMap::new();
        if let Some(root) = leftovers.landing.root() {
            told.insert("repr-digest", ascii(&HashAlgorithm::Blake3.field(&root)));
        }
        let status = if replaces { StatusCode::NO_CONTENT } else { StatusCode::CREATED };
        Ok(response(status, told, body::empty()))
    }

    async fn done(
        &self,
        landing: &Arc<LandingFile>,
        number: u64,
        sum: BlockSum,
        epoch: SyncEpoch,
    ) -> Result<(), Refusal> {
        let done = move |landing: &LandingFile, enough| landing.done_to(enough, number, sum, epoch);
        Ok(landing.in_turn(&self.server.0.shell, done).await?)
    }

    /// Receives the body of a request. Also returns its trailers and digests.
    async fn receive(
        &self,
        request: Request<Body>,
        landing: &Arc<LandingFile>,
        range: Range<u64>,
        mut summers: DigestHashers,
        claim: Option<Arc<BlockClaim>>,
    ) -> Result<(RangeOutcome, Option<HeaderMap>, DigestList), Refusal> {
        let shell = &self.server.0.shell;
        let mut sink = Sink::new(shell.clone(), landing.clone(), range);
        if let Some(claim) = claim {
            sink.hold(claim);
        }
        let (mut body, mut trailers) = (request.into_body(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::cut_off())?;
            match frame.into_data() {
                Ok(data) => {
                    if let Some(pace) = self.grant.pace() {
                        take_turn(self.server, self.watch, pace, data.len()).await;
                    }
                    summers.update(&data);
                    sink.push(&data).await?;
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        // From here on the medium is working, not the client.
        self.watch.expect(None);
        Ok((sink.end().await?, trailers, summers.finish()))
    }
}

/// Paces the client: received bytes count, and the next ones must wait.
pub(super) async fn take_turn(server: &Server, watch: &ProgressDeadline, pace: &Pace, bytes: usize) {
    let shell = &server.0.shell;
    if let Some(turn) = pace.wait_after(shell.now(), bytes as u64) {
        watch.expect(None);
        shell.sleep_until(turn).await;
        watch.expect(Some(server.0.limits.stall));
    }
}

/// A guard for the end of a request: frees the name, and removes the received bytes unless `keep` is set.
struct Leftovers<'a> {
    put: &'a UploadRequest<'a>,
    upload: &'a Arc<OpenUpload>,
    landing: &'a Arc<LandingFile>,
    keep: bool,
}

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let server = self.put.server.clone();
        let (name, upload, landing) = (self.put.name.clone(), self.upload.clone(), self.landing.clone());
        // The name is freed after the bytes are removed, because a new writer would otherwise write to them.
        let shell = server.0.shell.clone();
        shell.spawn(async move {
            if let Err(error) = server.0.shell.blocking(move || landing.discard()).await {
                tracing::warn!(%name, %error, "the files of a failed upload cannot be removed");
            }
            server.0.uploads.leave(&name, &upload);
        });
    }
}

fn differs(status: StatusCode, what: &str) -> Refusal {
    Refusal::new(status, format!("{what} and the declared digest differ: send the request again"))
}

/// Returns the writer of the upload that a request names.
fn named_writer(fields: &HeaderMap, grant: &Grant) -> Result<Option<UploadWriter>, Refusal> {
    let Some(upload) = field(fields, UPLOAD) else { return Ok(None) };
    let blocks = field(fields, BLOCKS).and_then(|blocks| {
        let (size, block) = blocks.split_once('/')?;
        let size = size.parse().ok().filter(|size| *size < 1 << 62)?;
        Blocks::new(size, block.parse().ok()?)
    });
    let few = |blocks: &Blocks| blocks.count() <= MAX_BLOCKS;
    let wrong = || {
        let text = "Reservoir-Blocks is written SIZE/BLOCK, with a power of two from 1024 for the block, and at most 4194304 blocks";
        Refusal::new(StatusCode::BAD_REQUEST, text)
    };
    let blocks = blocks.filter(few).ok_or_else(wrong)?;
    if upload.len() > 200 {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "Reservoir-Upload is longer than 200 bytes"));
    }
    let (share, _) = shares(fields)?;
    let upload = UploadId::Named(upload.into());
    Ok(Some(UploadWriter { user: grant.name().into(), upload, blocks, share }))
}

/// Returns the writer of a part without `Reservoir-Upload`, which the file's digests identify.
fn unnamed_writer(declared: &DeclaredDigests, size: u64, grant: &Grant) -> Result<UploadWriter, Refusal> {
    let mut digests = declared.whole.clone();
    if digests.is_empty() {
        // RFC 9110 section 14.5: a part that could belong to another file is refused, and the client sends the whole
        // file.
        let text = "the file of this part is unknown: send the file's Repr-Digest with each part, or name the upload by Reservoir-Upload";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    digests.sort_by_key(|(algorithm, value)| (algorithm.name(), value.clone()));
    digests.dedup();
    let blocks = Blocks::new(size, DEFAULT_BLOCK).expect("the usual block is a power of two");
    Ok(UploadWriter { user: grant.name().into(), upload: UploadId::Digests(digests), blocks, share: 0 })
}

/// Returns the connection that brought a request.
pub(super) fn connection<T>(request: &Request<T>) -> ClientConnection {
    request.extensions().get().cloned().unwrap_or_default()
}

/// Returns the digests of a request without content. Content would be lost, so it is refused.
fn without_content(fields: &HeaderMap) -> Result<DeclaredDigests, Refusal> {
    let declared = DeclaredDigests::new(fields)?;
    if field(fields, CONTENT_LENGTH).is_some_and(|length| length != "0") || !declared.content.is_empty() {
        let text = "this request begins or ends an upload, and has no content";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    Ok(declared)
}

/// Returns the share that a request is for, and the number of shares: one per server that writes the file.
fn shares(fields: &HeaderMap) -> Result<(u16, u16), Refusal> {
    let Some(text) = field(fields, SHARE) else { return Ok((0, 1)) };
    let read = text.split_once('/').and_then(|(share, all)| Some((share.parse().ok()?, all.parse().ok()?)));
    let wrong = || Refusal::new(StatusCode::BAD_REQUEST, "Reservoir-Share is written NUMBER/COUNT, from 0/1 to 63/64");
    read.filter(|(share, all)| share < all && *all <= MAX_SHARES).ok_or_else(wrong)
}

/// Returns the modification time that the client wants: seconds since 1970, as ownCloud's clients and rclone send it.
fn modified(fields: &HeaderMap) -> Option<SystemTime> {
    field(fields, MTIME).and_then(mtime::from_text)
}

/// Refuses names that only a folder can have.
pub(super) fn refuse_folder(path: &str) -> Result<(), Refusal> {
    if path.ends_with('/') { Err(Refusal::new(StatusCode::CONFLICT, "this is a folder")) } else { Ok(()) }
}

/// Number of the next single-request upload; each is a separate upload.
static REQUESTS: AtomicU64 = AtomicU64::new(0);
/// Maximum number of blocks. Each costs some hundred bytes of memory; with the default block size this is 64 TiB.
const MAX_BLOCKS: u64 = 4 << 20;
