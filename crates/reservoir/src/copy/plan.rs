//! Plans: a copy divided into parts for several machines or scheduler tasks, in one file.
//!
//! Invariant: the parts of a plan together contain each block exactly once. Large files are divided only if the
//! destination is a reservoir server, which assembles blocks from any client.

use super::list::{CopyItem, FoundEntry};
use super::place::{CopyEnd, CopyLocation};
use super::{Copy, CopyError};
use crate::credentials::ServerAddress;
use crate::mtime::{self, Resolution};
use crate::name::Name;
use crate::remote::RemoteFileVersion;
use crate::storage::{FileInfo, FileKind};
use core::ops::Range;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::SystemTime;

/// The parts of a large copy, one for each machine.
///
/// ```
/// use offload_reservoir::Shell;
/// use offload_reservoir::copy::plan::CopyPlan;
/// use offload_reservoir::copy::{Copy, CopyLocation, PlainDialer};
/// use std::io;
/// use std::sync::Arc;
///
/// # let there = tempfile::tempdir()?;
/// # let there = there.path();
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn planned(there: &std::path::Path) -> Result<(), Box<dyn core::error::Error>> {
/// std::fs::create_dir(there.join("run"))?;
/// (0..10).try_for_each(|number| std::fs::write(there.join(format!("run/{number}")), [7; 1000]))?;
/// let nowhere = PlainDialer::new(|_: &str, _| Err::<tokio::io::DuplexStream, _>(io::ErrorKind::NotFound.into()));
/// let copy = Copy::new(Shell::tokio(), Arc::new(nowhere));
/// let items = copy.list(&[CopyLocation::local(&there.join("run"))?], &CopyLocation::local(&there.join("copy"))?).await?;
/// let text = CopyPlan::new(&copy, &items, 3).await?.to_text();
///
/// // Elsewhere, later:
/// let plan = CopyPlan::read(&text)?;
/// let mine = plan.part(&copy, 2)?;
/// assert_eq!((plan.parts(), mine.len()), (3, 3));
/// # Ok(())
/// # }
/// # planned(there)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CopyPlan {
    head: PlanHead,
    lines: Vec<PlanLine>,
}

/// The first line.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PlanHead {
    #[serde(rename = "reservoir-plan")]
    version: u32,
    parts: u32,
    block: u64,
    files: usize,
}

/// A file, or a run of its blocks.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PlanLine {
    part: u32,
    /// A folder or server, and the escaped name in it.
    from: (String, String),
    to: (String, String),
    size: u64,
    /// Seconds since 1970, with a fraction if the source tells one. `None` if the source tells no time.
    modified: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// Whether the source is a reservoir server.
    reservoir: bool,
    /// Whether the line is an empty folder.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    folder: bool,
    /// First block and end of the run. `None` for the whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blocks: Option<(u64, u64)>,
}

impl CopyPlan {
    /// Distributes files over `parts` of about equal size.
    ///
    /// # Errors
    /// If a server does not answer, or one of `items` cannot be copied.
    pub async fn new(copy: &Copy, items: &[CopyItem], parts: u32) -> Result<CopyPlan, CopyError> {
        if let Some((item, why)) = items.iter().find_map(|item| Some((item, item.refused.as_ref()?))) {
            return Err(CopyError::Unusable(format!("{}: {why}", item.source())));
        }
        // Queries may be signatures, which do not belong in a file for many readers.
        if let Some(item) = items.iter().find(|item| item.has_query()) {
            let text = format!("{}: a plan has no URLs with a query: copy it without a plan", item.source());
            return Err(CopyError::Unusable(text));
        }
        let all: u64 = items.iter().map(CopyItem::size).sum();
        // At least four runs per part, for balance.
        let most = (all / u64::from(parts.max(1)) / 4).max(copy.block);
        let mut pieces = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let count = item.size().div_ceil(copy.block);
            let cut = parts > 1 && item.size() > most && can_be_cut(item).await?;
            let run = if cut { (most / copy.block).max(1) } else { count.max(1) };
            let runs = (0..count.max(1)).step_by(usize::try_from(run).unwrap_or(usize::MAX));
            pieces.extend(runs.map(|first| (at, first..count.min(first + run), cut)));
        }
        let bytes = |piece: &(usize, Range<u64>, bool)| match piece.2 {
            true => (piece.1.end - piece.1.start) * copy.block,
            // Even an empty file takes some time.
            false => items[piece.0].size() + PRICE_OF_A_FILE,
        };
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_by_key(|at| (Reverse(bytes(&pieces[*at])), *at));
        // The largest piece goes to the least loaded part.
        let mut loads: BinaryHeap<Reverse<(u64, u32)>> = (1..=parts.max(1)).map(|part| Reverse((0, part))).collect();
        let mut homes = vec![1; pieces.len()];
        for at in order {
            let Some(Reverse((load, part))) = loads.pop() else { break };
            homes[at] = part;
            loads.push(Reverse((load + bytes(&pieces[at]), part)));
        }
        let lines = pieces.iter().zip(homes).map(|((at, blocks, cut), part)| {
            let item = &items[*at];
            let text = item.modified().map(mtime::to_text);
            let whole_seconds = |text: String| text.split('.').next().unwrap_or_default().to_owned();
            PlanLine {
                part,
                from: (item.from.0.root(), item.from.1.to_url()),
                to: (item.to.0.root(), item.to.1.to_url()),
                size: item.size(),
                modified: if item.resolution == Resolution::Seconds { text.map(whole_seconds) } else { text },
                tag: item.tag.clone(),
                reservoir: item.is_reservoir,
                folder: item.about.kind == FileKind::Folder,
                blocks: cut.then_some((blocks.start, blocks.end)),
            }
        });
        let head = PlanHead { version: VERSION, parts: parts.max(1), block: copy.block, files: items.len() };
        Ok(CopyPlan { head, lines: lines.collect() })
    }

    /// Formats the plan: a line of JSON for the head, and for each file or run.
    pub fn to_text(&self) -> String {
        let json = |value: Result<String, serde_json::Error>| value.expect("strings and numbers") + "\n";
        let mut text = json(serde_json::to_string(&self.head));
        self.lines.iter().for_each(|line| text += &json(serde_json::to_string(line)));
        text
    }

    /// Parses a plan.
    ///
    /// # Errors
    /// A text for the user, with the line number.
    pub fn read(text: &str) -> Result<CopyPlan, String> {
        let mut lines = text.lines().enumerate();
        let wrong = |at: usize, error: serde_json::Error| format!("line {}: {error}", at + 1);
        let (_, head) = lines.next().ok_or("an empty file is no plan: `reservoir plan` makes one")?;
        let head: PlanHead = serde_json::from_str(head).map_err(|error| wrong(0, error))?;
        if head.version != VERSION || !(1..=offload_base::part::MAX_PARTS).contains(&head.parts) {
            return Err(format!(
                "version {} with {} parts is no plan that this version reads",
                head.version, head.parts
            ));
        }
        crate::blocks::Blocks::new(0, head.block).ok_or("line 1: the block is no power of two from 1 KiB to 1 GiB")?;
        let mut plan = CopyPlan { head, lines: Vec::new() };
        for (at, text) in lines {
            let line: PlanLine = serde_json::from_str(text).map_err(|error| wrong(at, error))?;
            // A plan is a file that users can edit, so its numbers must not overflow later sums.
            let fits = line.size < 1 << 62
                && line.blocks.is_none_or(|(first, end)| first < end && end <= line.size.div_ceil(plan.head.block));
            let is_time = line.modified.as_deref().is_none_or(|text| mtime::from_text(text).is_some());
            if !(1..=plan.head.parts).contains(&line.part) || !fits || !is_time {
                return Err(format!("line {}: the part, the blocks or the time are out of range", at + 1));
            }
            plan.lines.push(line);
        }
        Ok(plan)
    }

    /// Returns the number of parts.
    pub fn parts(&self) -> u32 {
        self.head.parts
    }

    /// Returns the block size in bytes, which every part must use.
    pub fn block(&self) -> u64 {
        self.head.block
    }

    /// Returns the servers of the plan.
    ///
    /// # Errors
    /// If a place cannot be used here.
    pub fn servers(&self) -> Result<BTreeSet<ServerAddress>, CopyError> {
        let roots: BTreeSet<&str> = self.lines.iter().flat_map(|line| [&*line.from.0, &*line.to.0]).collect();
        let mut servers = BTreeSet::new();
        for root in roots {
            // Folders of this machine have no server.
            servers.extend(CopyLocation::root(root)?.server().map(|(host, port)| (host.to_owned(), port)));
        }
        Ok(servers)
    }

    /// Returns the items of one part.
    ///
    /// # Errors
    /// If a place cannot be used here.
    pub fn part(&self, copy: &Copy, part: u32) -> Result<Vec<CopyItem>, CopyError> {
        let mut sides = super::place::CopyEnds::new(copy);
        let mut known = std::collections::HashMap::<String, CopyEnd>::new();
        let mut open = |(root, name): &(String, String)| {
            // All files of one root share a side, and so its connections.
            let side = match known.get(root) {
                Some(side) => side.clone(),
                None => {
                    let side = sides.open(&CopyLocation::root(root)?)?.0;
                    known.insert(root.clone(), side.clone());
                    side
                }
            };
            Ok::<_, CopyError>((side, Name::from_url(name)?))
        };
        let mine = self.lines.iter().filter(|line| line.part == part);
        let mut items: Vec<CopyItem> = Vec::new();
        let mut last: Option<&PlanLine> = None;
        for line in mine {
            let run = line.blocks.map(|(first, end)| first..end);
            match (items.last_mut().and_then(|item| item.blocks.as_mut()), run) {
                // Runs of one file are consecutive.
                (Some(runs), Some(run)) if last.is_some_and(|last| last.to == line.to) => runs.push(run),
                (_, run) => {
                    // The text also tells the resolution of the time.
                    let text = line.modified.as_deref();
                    let resolution = text.map_or(Resolution::Unknown, Resolution::from_text);
                    let modified = text.and_then(mtime::from_text).unwrap_or(SystemTime::UNIX_EPOCH);
                    let kind = if line.folder { FileKind::Folder } else { FileKind::File };
                    let about = FileInfo::without_inode(kind, line.size, modified);
                    let (tag, is_reservoir) = (line.tag.clone(), line.reservoir);
                    let found = FoundEntry { about, resolution, tag, is_reservoir };
                    let (from, to) = (open(&line.from)?, open(&line.to)?);
                    let blocks = run.map(|run| vec![run]);
                    items.push(CopyItem::new(from, to, found, blocks));
                }
            }
            last = Some(line);
        }
        Ok(items)
    }
}

/// Returns whether several parts may copy blocks of the file.
async fn can_be_cut(item: &CopyItem) -> Result<bool, CopyError> {
    // Without a strong tag, the parts might read different versions of the source.
    let is_one_version =
        matches!(&item.from.0, CopyEnd::Local(..)) || RemoteFileVersion::from_tag(item.tag.as_deref()).is_strong();
    match &item.to.0 {
        CopyEnd::Remote(server, _) if is_one_version => Ok(server.is_reservoir().await?),
        _ => Ok(false),
    }
}

/// The format version. Times in version 1 could not precede 1970.
const VERSION: u32 = 2;
/// The cost of a file besides its bytes, in bytes of equal transfer time.
const PRICE_OF_A_FILE: u64 = 256 << 10;
