//! Copies files between places: folders of this machine and servers, over many streams, block by block.
//!
//! - `place`: the location of files; `list`: the files to copy; `exclude`: excluded names;
//! - `work`: the assignment of blocks to streams; `packs`: many small files at once;
//! - `file`: one file from its first block to its name; `source`, `target`: the traits of its two ends; `local`,
//!   `upload`, `request`, `multipart` (feature `s3`), `third_party` (feature of that name): the targets;
//! - `presence`: tests whether a file is at its destination already; `hash`: tests whether two files are equal;
//! - `progress`: the progress of a copy; [`plan`]: a copy in parts, for several machines.

mod exclude;
mod file;
mod hash;
mod list;
mod local;
#[cfg(feature = "s3")]
mod multipart;
mod packs;
mod place;
pub mod plan;
mod presence;
mod progress;
mod request;
mod source;
mod target;
#[cfg(test)]
mod tests;
#[cfg(feature = "third-party")]
mod third_party;
mod upload;
mod work;

pub use exclude::ExcludePattern;
pub use list::CopyItem;
pub use place::{CopyLocation, PlainDialer};
pub use progress::CopyProgress;

use crate::attributes::Preserve;
use crate::blocks::DEFAULT_BLOCK;
use crate::credentials::ServerTokens;
use crate::dial::Dial;
use crate::pace::{Pace, Rate};
use crate::remote::RemoteError;
#[cfg(feature = "third-party")]
use crate::remote::ThirdParty;
#[cfg(feature = "s3")]
use crate::s3::BucketAccount;
use crate::shell::Shell;
use crate::tls::Host;
use core::time::Duration;
use http_rules::Preconditions;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Uninhabited without the feature `third-party`.
#[cfg(not(feature = "third-party"))]
type ThirdParty = core::convert::Infallible;

/// A copy to perform.
///
/// See [`Server`](crate::Server) for an example.
#[derive(Clone)]
pub struct Copy {
    shell: Shell,
    dial: Arc<dyn Dial>,
    streams: usize,
    block: u64,
    pace: Option<Arc<Pace>>,
    resume: bool,
    verify: bool,
    sync: SyncMode,
    exclude: Vec<ExcludePattern>,
    retries: u32,
    #[cfg(feature = "s3")]
    account: Option<BucketAccount>,
    tokens: Arc<ServerTokens>,
    stripe: Vec<Host>,
    /// Preconditions of files received in a folder of this machine.
    preconditions: Preconditions,
    /// Preconditions of files read from this machine.
    source_preconditions: Preconditions,
    sparse: bool,
    preserve: Preserve,
    direct: bool,
    third_party: Option<ThirdParty>,
    replaces: bool,
    proves: bool,
    progress: Arc<CopyProgress>,
}

/// The files at the destination that are left unchanged.
///
/// ```
/// assert_eq!("size-time".parse(), Ok(offload_reservoir::copy::SyncMode::SizeTime));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyncMode {
    /// No files: all are copied.
    Nothing,
    /// Files of equal size.
    Size,
    /// Files of equal size and modification second.
    SizeTime,
    /// Files of equal size and hash. Files of a server without hashes are copied.
    Hash,
}

impl core::str::FromStr for SyncMode {
    type Err = String;

    fn from_str(text: &str) -> Result<SyncMode, String> {
        match text {
            "size" => Ok(SyncMode::Size),
            "size-time" => Ok(SyncMode::SizeTime),
            "hash" => Ok(SyncMode::Hash),
            _ => Err("size, size-time or hash".into()),
        }
    }
}

/// The outcome of a copy.
///
/// See [`Server`](crate::Server) for an example.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CopyOutcome {
    /// Files copied.
    pub copied: u64,
    /// Files that were present already.
    pub present: u64,
    /// Empty folders that exist at the destination now.
    pub folders: u64,
    /// Files of which this part copied its blocks, and other parts copy the rest.
    pub left_to_others: u64,
    /// Bytes copied through this machine, or between servers at its request.
    pub bytes: u64,
    /// Bytes of blocks present from an earlier run.
    pub resumed: u64,
    /// Blocks that the medium had wrong and that were sent again.
    pub healed: u64,
    /// Failed files with their errors.
    pub failed: Vec<(String, String)>,
}

/// Error of a copy, or of a file.
///
/// See [`CopyLocation`] for an example.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A server, or the connection to it, failed.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A file could not be received here.
    #[error(transparent)]
    LandingFile(#[from] crate::landing::LandingError),
    /// A name is invalid.
    #[error("{0}")]
    Name(#[from] crate::name::BadName),
    /// A local path cannot be used.
    #[error("{}: {error}", .path.display())]
    Local {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The source was changed during the copy.
    #[error("{0} was changed while it was copied: copy it again")]
    Changed(String),
    /// The preconditions of the source are not met: another file has its name now.
    #[error("{0}: {1}")]
    Unmet(String, #[source] http_rules::UnmetPrecondition),
    /// The destination exists, and must not be replaced.
    #[error("{0} exists already")]
    Exists(String),
    /// The digests at both ends cannot be compared, or differ.
    #[error("the arrival of {0} is not proved: {1}")]
    Unproved(String, &'static str),
    /// The bytes written differ from the bytes read.
    #[error("{0}: block {1} differs from the checksum of its source")]
    Differs(String, u64),
    /// The medium repeatedly returned other bytes than written.
    #[error("{0}: the destination's disk does not return the bytes written: {1} blocks differ, after three attempts")]
    Unhealed(String, u64),
    /// The request cannot be satisfied.
    #[error("{0}")]
    Unusable(String),
}

impl Copy {
    /// Creates a copy with eight streams and the default block size. `dial` connects to servers.
    pub fn new(shell: Shell, dial: Arc<dyn Dial>) -> Copy {
        Copy {
            shell,
            dial,
            streams: 8,
            block: DEFAULT_BLOCK,
            pace: None,
            resume: false,
            verify: false,
            sync: SyncMode::Nothing,
            exclude: Vec::new(),
            retries: 8,
            #[cfg(feature = "s3")]
            account: None,
            tokens: Arc::default(),
            stripe: Vec::new(),
            preconditions: Preconditions::default(),
            source_preconditions: Preconditions::default(),
            sparse: false,
            preserve: Preserve::default(),
            direct: false,
            third_party: None,
            replaces: true,
            proves: false,
            progress: Arc::default(),
        }
    }

    /// Sets the number of streams.
    #[must_use]
    pub fn streams(mut self, streams: usize) -> Copy {
        // Zero streams would never finish.
        self.streams = streams.clamp(1, 1024);
        self
    }

    /// Sets the block size in bytes, a power of two from 1024.
    ///
    /// # Errors
    /// If `bytes` is not a power of two within the limits.
    pub fn block(mut self, bytes: u64) -> Result<Copy, String> {
        // `Blocks` checks the size, which BLAKE3's tree needs to be a power of two.
        crate::blocks::Blocks::new(0, bytes).ok_or("a block has a power of two of bytes, from 1 KiB to 1 GiB")?;
        self.block = bytes;
        Ok(self)
    }

    /// Limits the rate of all streams together.
    #[must_use]
    pub fn rate(mut self, rate: Option<Rate>) -> Copy {
        self.pace = rate.map(|rate| Arc::new(Pace::new(rate)));
        self
    }

    /// Enables resuming an unfinished earlier copy.
    #[must_use]
    pub fn resume(mut self, resume: bool) -> Copy {
        self.resume = resume;
        self
    }

    /// Enables reading each file back from the destination's medium before it gets its name.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Copy {
        self.verify = verify;
        self
    }

    /// Leaves files unchanged that are at the destination already.
    #[must_use]
    pub fn sync(mut self, sync: SyncMode) -> Copy {
        self.sync = sync;
        self
    }

    /// Excludes names that match one of these patterns.
    #[must_use]
    pub fn exclude(mut self, patterns: Vec<ExcludePattern>) -> Copy {
        self.exclude = patterns;
        self
    }

    /// Sets the number of retries per block. The waits between them increase.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Copy {
        self.retries = retries;
        self
    }

    /// Sets the account for buckets.
    #[cfg(feature = "s3")]
    #[must_use]
    pub fn account(mut self, account: Option<BucketAccount>) -> Copy {
        self.account = account;
        self
    }

    /// Sets the tokens for servers. The token of a [`CopyLocation`] takes precedence.
    #[must_use]
    pub fn tokens(mut self, tokens: ServerTokens) -> Copy {
        self.tokens = Arc::new(tokens);
        self
    }

    /// Sets further servers with the same files, with default port 443. Streams read from all servers in turn, or write
    /// to them; a small file is written by one. For writing, the servers must share a file system; for reading, copies
    /// suffice.
    #[must_use]
    pub fn stripe(mut self, others: Vec<Host>) -> Copy {
        self.stripe = others;
        self
    }

    /// Turns runs of zeros into holes at the destination, if its medium supports holes.
    #[must_use]
    pub fn sparse(mut self, sparse: bool) -> Copy {
        self.sparse = sparse;
        self
    }

    /// Sets the attributes to copy, between folders and reservoir servers.
    #[must_use]
    pub fn preserve(mut self, preserve: Preserve) -> Copy {
        self.preserve = preserve;
        self
    }

    /// Makes large accesses to local files bypass the page cache; see
    /// [`Rooted::direct`](crate::rooted::Rooted::direct).
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Copy {
        self.direct = direct;
        self
    }

    /// Returns the progress.
    pub fn progress(&self) -> Arc<CopyProgress> {
        self.progress.clone()
    }

    /// Copies `sources` to `to`: into it, if `to` is a folder, ends with a slash, or there are several sources.
    ///
    /// # Errors
    /// If nothing can be copied. Errors of single files are in the outcome.
    pub async fn run(&self, sources: &[CopyLocation], to: &CopyLocation) -> Result<CopyOutcome, CopyError> {
        let items = self.list(sources, to).await?;
        Ok(self.copy(items).await)
    }

    /// Lists the files that [`run`](Self::run) would copy, with their destinations.
    ///
    /// # Errors
    /// If a source does not exist, or cannot be listed.
    pub async fn list(&self, sources: &[CopyLocation], to: &CopyLocation) -> Result<Vec<CopyItem>, CopyError> {
        list::list(self, sources, to).await
    }

    /// Copies listed files. Errors are in the outcome.
    pub async fn copy(&self, items: Vec<CopyItem>) -> CopyOutcome {
        work::copy(self, items).await
    }

    /// Waits until `bytes` bytes may be sent.
    async fn take_turn(&self, bytes: usize) {
        if let Some(pace) = &self.pace
            && let Some(turn) = pace.wait_after(self.shell.now(), bytes as u64)
        {
            self.shell.sleep_until(turn).await;
        }
    }
}

/// Returns the number of streams that fill a path of this rate and round-trip time, if each may have `window` bytes in
/// flight. TCP's window is limited to 1 GiB, often to less. At least four, so that one loss does not stop the whole
/// transfer.
///
/// ```
/// use core::time::Duration;
/// use offload_reservoir::copy::streams_for;
/// use offload_reservoir::pace::Rate;
///
/// let (rate, window) = (Rate::bits(40_000_000_000), 512 << 20);
/// assert_eq!(streams_for(rate, Duration::from_millis(806), window), 8);
/// ```
pub fn streams_for(rate: Rate, round_trip: Duration, window: u64) -> usize {
    let on_the_way = u128::from(rate.as_bits()) * round_trip.as_nanos() / 8_000_000_000;
    let streams = on_the_way.div_ceil(u128::from(window.max(1)));
    usize::try_from(streams).unwrap_or(usize::MAX).clamp(4, 64)
}
