//! Copies files between places: folders of this machine and servers, over many streams, block by block.
//!
//! - `place`: where files are; `list`: what is to be copied; `exclude`: what is not;
//! - `work`: who copies which block when; `packs`: many small files at once;
//! - `file`: one file from its first block to its name; `source`, `target`: its two ends, by traits; `local`, `upload`, `request`, `multipart`
//!   (feature `s3`), `third_party` (feature of that name): the targets;
//! - `presence`: whether a file is at its destination already; `hash`: whether two files are the same;
//! - `progress`: how far it is; [`plan`]: a copy in parts, for several machines.

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

pub use exclude::Pattern;
pub use list::Item;
pub use place::{Place, Plain};
pub use progress::Progress;

use crate::attributes::Preserve;
use crate::blocks::USUAL_BLOCK;
use crate::credentials::ServerTokens;
use crate::dial::Dial;
use crate::pace::{Pace, Rate};
use crate::remote::RemoteError;
#[cfg(feature = "third-party")]
use crate::remote::ThirdParty;
#[cfg(feature = "s3")]
use crate::s3::Account;
use crate::shell::Shell;
use crate::tls::Host;
use core::time::Duration;
use http_rules::Preconditions;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Without the feature `third-party`, no copy has a value.
#[cfg(not(feature = "third-party"))]
type ThirdParty = core::convert::Infallible;

/// A copy that is to be made.
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
    sync: Sync,
    exclude: Vec<Pattern>,
    retries: u32,
    #[cfg(feature = "s3")]
    account: Option<Account>,
    tokens: Arc<ServerTokens>,
    stripe: Vec<Host>,
    /// Preconditions of files that arrive in a folder of this machine.
    preconditions: Preconditions,
    /// Preconditions of files of this machine that are read.
    source_preconditions: Preconditions,
    sparse: bool,
    preserve: Preserve,
    direct: bool,
    third_party: Option<ThirdParty>,
    replaces: bool,
    proves: bool,
    progress: Arc<Progress>,
}

/// Which files are left as they are at the destination.
///
/// ```
/// assert_eq!("size-time".parse(), Ok(offload_reservoir::copy::Sync::SizeTime));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sync {
    /// None: all are copied.
    Nothing,
    /// Those of the same size.
    Size,
    /// Those of the same size that were modified in the same second.
    SizeTime,
    /// Those of the same size and hash. A server that tells no hash has none of them.
    Hash,
}

impl core::str::FromStr for Sync {
    type Err = String;

    fn from_str(text: &str) -> Result<Sync, String> {
        match text {
            "size" => Ok(Sync::Size),
            "size-time" => Ok(Sync::SizeTime),
            "hash" => Ok(Sync::Hash),
            _ => Err("size, size-time or hash".into()),
        }
    }
}

/// What came of a copy.
///
/// See [`Server`](crate::Server) for an example.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// Files that are there now.
    pub copied: u64,
    /// Files that were there already.
    pub present: u64,
    /// Empty folders that exist at the destination now.
    pub folders: u64,
    /// Files of which this part has done its own; others have the rest.
    pub left_to_others: u64,
    /// Bytes that went through here, or between servers that were asked.
    pub bytes: u64,
    /// Bytes of blocks that were there from an earlier run.
    pub resumed: u64,
    /// Blocks that the medium had wrong, and that were sent again.
    pub healed: u64,
    /// Files that failed, and why.
    pub failed: Vec<(String, String)>,
}

/// Why a copy, or a file of it, fails.
///
/// See [`Place`] for an example.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A server, or the way there.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A file that arrives here.
    #[error(transparent)]
    Landing(#[from] crate::landing::LandingError),
    /// A name that cannot be.
    #[error("{0}")]
    Name(#[from] crate::name::BadName),
    /// A place that cannot be used.
    #[error("{}: {error}", .path.display())]
    Local {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The source was written to.
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
    /// What was written is not what was read.
    #[error("{0}: block {1} differs from what its source says it is")]
    Differs(String, u64),
    /// Reading it again found other bytes, again and again.
    #[error("{0}: the destination's disk does not give back what was written: {1} blocks differ, after three attempts")]
    Unhealed(String, u64),
    /// What was asked for cannot be done.
    #[error("{0}")]
    Unusable(String),
}

impl Copy {
    /// A copy over eight streams, by usual blocks; servers are reached by `dial`.
    pub fn new(shell: Shell, dial: Arc<dyn Dial>) -> Copy {
        Copy {
            shell,
            dial,
            streams: 8,
            block: USUAL_BLOCK,
            pace: None,
            resume: false,
            verify: false,
            sync: Sync::Nothing,
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

    /// Over so many streams.
    #[must_use]
    pub fn streams(mut self, streams: usize) -> Copy {
        self.streams = streams.clamp(1, 1024);
        self
    }

    /// By blocks of so many bytes, a power of two from 1024.
    ///
    /// # Errors
    /// If these are no power of two.
    pub fn block(mut self, bytes: u64) -> Result<Copy, String> {
        crate::blocks::Blocks::new(0, bytes).ok_or("a block has a power of two of bytes, from 1 KiB to 1 GiB")?;
        self.block = bytes;
        Ok(self)
    }

    /// No faster than this, all streams together.
    #[must_use]
    pub fn rate(mut self, rate: Option<Rate>) -> Copy {
        self.pace = rate.map(|rate| Arc::new(Pace::new(rate)));
        self
    }

    /// Takes up what an earlier copy left unfinished.
    #[must_use]
    pub fn resume(mut self, resume: bool) -> Copy {
        self.resume = resume;
        self
    }

    /// Reads each file again from the destination's medium before it gets its name.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Copy {
        self.verify = verify;
        self
    }

    /// Leaves files as they are that are there already.
    #[must_use]
    pub fn sync(mut self, sync: Sync) -> Copy {
        self.sync = sync;
        self
    }

    /// Leaves out what fits one of these.
    #[must_use]
    pub fn exclude(mut self, patterns: Vec<Pattern>) -> Copy {
        self.exclude = patterns;
        self
    }

    /// Tries a block so many times more, with longer and longer waits.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Copy {
        self.retries = retries;
        self
    }

    /// Asks for buckets as this account.
    #[cfg(feature = "s3")]
    #[must_use]
    pub fn account(mut self, account: Option<Account>) -> Copy {
        self.account = account;
        self
    }

    /// Sets the tokens for servers. The token of a [`Place`] goes before these.
    #[must_use]
    pub fn tokens(mut self, tokens: ServerTokens) -> Copy {
        self.tokens = Arc::new(tokens);
        self
    }

    /// Each server has the same files as these, at port 443 where none is named: streams read from them by turns, and write to them, a small
    /// file to one. For servers of one file system; to read, for copies of one as well.
    #[must_use]
    pub fn stripe(mut self, others: Vec<Host>) -> Copy {
        self.stripe = others;
        self
    }

    /// Has runs of zeros become holes at the destination, where its medium has such.
    #[must_use]
    pub fn sparse(mut self, sparse: bool) -> Copy {
        self.sparse = sparse;
        self
    }

    /// Has these go with files, between folders and our servers.
    #[must_use]
    pub fn preserve(mut self, preserve: Preserve) -> Copy {
        self.preserve = preserve;
        self
    }

    /// Has large reads and writes of this machine's files go past the page cache, as [`Rooted::direct`](crate::rooted::Rooted::direct) has it.
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Copy {
        self.direct = direct;
        self
    }

    /// How far it is.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Copies what is at `sources` to `to`: into it, if it is a folder, ends with a slash, or there are several sources.
    ///
    /// # Errors
    /// If nothing can be copied. Files that fail by themselves are in the outcome.
    pub async fn run(&self, sources: &[Place], to: &Place) -> Result<Outcome, CopyError> {
        let items = self.list(sources, to).await?;
        Ok(self.copy(items).await)
    }

    /// What [`run`](Self::run) copies, and where to.
    ///
    /// # Errors
    /// If a source is not there, or cannot be listed.
    pub async fn list(&self, sources: &[Place], to: &Place) -> Result<Vec<Item>, CopyError> {
        list::list(self, sources, to).await
    }

    /// Copies what was listed. What fails is in the outcome.
    pub async fn copy(&self, items: Vec<Item>) -> Outcome {
        work::copy(self, items).await
    }

    /// Waits until so many bytes may go.
    async fn take_turn(&self, bytes: usize) {
        if let Some(pace) = &self.pace
            && let Some(turn) = pace.wait_after(self.shell.now(), bytes as u64)
        {
            self.shell.sleep_until(turn).await;
        }
    }
}

/// How many streams fill a path of this rate and round-trip time, if each may have `window` bytes on the way: TCP's window ends at
/// 1 GiB, and often before. Four at least, so that one loss does not stop all.
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
