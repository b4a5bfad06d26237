//! `reservoir copy` and `reservoir plan`.

use crate::progress::ProgressDisplay;
use crate::serve::HTTP3_WINDOW;
use crate::{FAILED, PARTLY, UNUSABLE, fail};
use clap::Args;
use offload_base::part::{PartArgument, WorkPart};
use offload_reservoir::Shell;
use offload_reservoir::attributes::Preserve;
use offload_reservoir::blocks::DEFAULT_BLOCK;
use offload_reservoir::copy::plan::CopyPlan;
use offload_reservoir::copy::{Copy, CopyError, CopyItem, CopyLocation, CopyOutcome, ExcludePattern, SyncMode};
use offload_reservoir::credentials::{ServerAddress, ServerTokens};
use offload_reservoir::dial::Dial;
use offload_reservoir::pace::Rate;
use offload_reservoir::pin::Pin;
use offload_reservoir::quic::{self, QuicDialer};
#[cfg(feature = "third-party")]
use offload_reservoir::remote::ThirdParty;
use offload_reservoir::rustls::pki_types::CertificateDer;
#[cfg(feature = "s3")]
use offload_reservoir::s3::BucketAccount;
use offload_reservoir::tls::{self, TlsDialer};
use std::collections::BTreeSet;
use std::env::VarError;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Copy files and folders between paths, HTTPS servers and S3 buckets
///
/// SRC and DST are paths, URLs https://HOST:PORT/PATH (default port 443), or s3://BUCKET/KEY (with the key in
/// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY). Both may be remote. A folder is copied with its contents; with a slash
/// at its end, only the contents are copied. A killed copy continues with --resume: blocks that the journal lists and
/// the medium still has are not sent again.
#[derive(Debug, Args)]
pub(crate) struct CopyOptions {
    /// SRC... DST; omitted with --plan
    #[arg(value_name = "SRC... DST", required_unless_present = "plan", num_args = 2.., conflicts_with = "plan")]
    places: Vec<OsString>,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    choice: FileSelection,
    /// Number of concurrent streams, or `auto`: 8, or the number that --rate and --round-trip require
    #[arg(long, value_name = "COUNT", default_value = "auto")]
    streams: StreamCount,
    /// Round-trip time of the path, for --streams auto: 274ms
    #[arg(long, value_name = "TIME", value_parser = time)]
    round_trip: Option<core::time::Duration>,
    /// Maximum rate of all streams together in bits per second: 9G, 400M. The kernel paces the packets of each stream
    #[arg(long)]
    rate: Option<Rate>,
    /// Resume an earlier copy; complete files at the destination are left unchanged
    #[arg(long)]
    resume: bool,
    /// Read each file back from the destination's medium before it gets its name; blocks that differ are sent again
    #[arg(long)]
    verify: bool,
    /// Leave files unchanged that are at the destination already, compared by `size`, `size-time`, or `hash`
    #[arg(long, value_name = "WHAT")]
    sync: Option<SyncMode>,
    /// Further servers with the same files as the server in SRC or DST, for example on a shared file system: HOST or
    /// HOST:PORT, separated by commas. Streams read from all servers in turn, or write to them; a small file is written
    /// by one server
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    stripe: Vec<tls::Host>,
    /// Turn runs of zeros into holes at the destination, if its file system supports holes
    #[arg(long)]
    sparse: bool,
    /// Bypass the page cache (O_DIRECT) for large files of this machine, if their file system supports it
    #[arg(long)]
    direct: bool,
    /// Attributes to copy besides times, between folders and reservoir servers: `mode`, `xattrs` (names that begin with
    /// user.), or both with a comma
    #[arg(long, value_name = "WHAT")]
    preserve: Option<Preserve>,
    /// Let the servers of SRC and DST copy between them: the server of DST fetches (`pull`), or the server of SRC sends
    /// (`push`). The servers must allow this
    #[cfg(feature = "third-party")]
    #[arg(long, value_name = "WAY", num_args = 0..=1, require_equals = true, default_missing_value = "pull", conflicts_with_all = ["plan", "verify", "sparse", "preserve", "stripe", "direct"])]
    third_party: Option<ThirdParty>,
    /// Number of retries per block
    #[arg(long, value_name = "TIMES", default_value_t = 8)]
    retries: u32,
    /// Copy one part of this plan, made by `reservoir plan`
    #[arg(long, value_name = "FILE", requires = "part")]
    plan: Option<PathBuf>,
    /// The part to copy: a number from 1, or `auto`: the number that Slurm, HyperQueue, Kubernetes, PBS, LSF or SGE
    /// gave this task
    #[arg(long, value_name = "I", requires = "plan")]
    part: Option<PartOption>,
    /// Print the outcome as JSON, and no progress
    #[arg(long)]
    json: bool,
}

/// Divide a copy into parts, one for each machine or task of a scheduler, and print the plan
///
/// Give the plan to `reservoir copy --plan FILE --part I` on each machine, with I from 1. Files are distributed so that
/// the parts are about equal. Large files are divided if the destination is a reservoir server.
#[derive(Debug, Args)]
pub(crate) struct PlanOptions {
    /// SRC... DST
    #[arg(value_name = "SRC... DST", required = true, num_args = 2..)]
    places: Vec<OsString>,
    /// Number of parts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(offload_base::part::MAX_PARTS)))]
    parts: u32,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    choice: FileSelection,
}

/// Options that select the files.
#[derive(Debug, Args)]
struct FileSelection {
    /// Exclude names that match, in folders: `*.tmp`, `cache`, `raw/*`; may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<ExcludePattern>,
    /// Block size in bytes, a power of two
    #[arg(long, value_name = "SIZE", default_value_t = bytesize::ByteSize(DEFAULT_BLOCK))]
    block: bytesize::ByteSize,
}

/// Options for access to servers.
#[derive(Debug, Args)]
struct Access {
    /// File with tokens for servers, in lines `HOST:PORT TOKEN` (default port 443). Requests to a server without a line
    /// carry no token. A token without a server is for a copy with one server. Default: the variable RESERVOIR_TOKEN,
    /// in the same format
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Trusted certificate authorities (PEM). Default: the system's
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// SHA-256 of the only certificate to accept, as `openssl x509 -noout -fingerprint -sha256` prints it
    #[arg(long, value_name = "SHA256")]
    pin: Option<Pin>,
    /// Use HTTP/3: all streams on one QUIC connection, to the UDP port of the same number
    #[arg(long)]
    http3: bool,
    /// Flow-control window of an HTTP/3 connection, for each direction
    #[arg(long, value_name = "SIZE", default_value_t = HTTP3_WINDOW, value_parser = crate::serve::window, requires = "http3")]
    http3_window: bytesize::ByteSize,
    /// Server of s3:// buckets, requested in path style. Default: the variable AWS_ENDPOINT_URL, or else Amazon's
    /// server of the region
    #[cfg(feature = "s3")]
    #[arg(long, value_name = "URL")]
    s3_endpoint: Option<String>,
    /// Region of s3:// buckets. Default: the variable AWS_REGION, or else us-east-1
    #[cfg(feature = "s3")]
    #[arg(long, value_name = "REGION")]
    s3_region: Option<String>,
}

/// The number of streams.
#[derive(Clone, Copy, Debug)]
enum StreamCount {
    Auto,
    Count(usize),
}

impl core::str::FromStr for StreamCount {
    type Err = String;

    fn from_str(text: &str) -> Result<StreamCount, String> {
        match text.parse() {
            _ if text == "auto" => Ok(StreamCount::Auto),
            Ok(count @ 1..=1024) => Ok(StreamCount::Count(count)),
            _ => Err("1 to 1024, or auto".into()),
        }
    }
}

/// The part of a plan to copy.
#[derive(Clone, Copy, Debug)]
enum PartOption {
    Number(u32),
    PartArgument(PartArgument),
}

impl core::str::FromStr for PartOption {
    type Err = String;

    fn from_str(text: &str) -> Result<PartOption, String> {
        match text.parse() {
            Ok(number) => Ok(PartOption::Number(number)),
            Err(_) => text.parse().map(PartOption::PartArgument),
        }
    }
}

impl PartOption {
    /// Returns the part's number in a plan with `parts` parts.
    fn number(self, parts: u32) -> Result<u32, String> {
        let part = match self {
            PartOption::Number(number) => WorkPart { number, of: parts },
            PartOption::PartArgument(PartArgument::Auto(None)) => PartArgument::Auto(Some(parts)).part()?,
            PartOption::PartArgument(asked) => asked.part()?,
        };
        // A scheduler may run more or fewer tasks than the plan has parts.
        if part.of != parts || !(1..=parts).contains(&part.number) {
            return Err(format!("the plan has {parts} parts: there is no part {} of {}", part.number, part.of));
        }
        Ok(part.number)
    }
}

fn time(text: &str) -> Result<core::time::Duration, String> {
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

impl Access {
    /// Reads the tokens for these servers.
    fn tokens(&self, servers: &BTreeSet<ServerAddress>) -> Result<ServerTokens, String> {
        let (from, text) = match &self.token_file {
            Some(file) => {
                let from = file.display().to_string();
                let text = std::fs::read_to_string(file).map_err(|error| format!("{from}: {error}"))?;
                (from, text)
            }
            None => match std::env::var("RESERVOIR_TOKEN") {
                Ok(text) => ("RESERVOIR_TOKEN".into(), text),
                // A server can be open to everybody.
                Err(VarError::NotPresent) => return Ok(ServerTokens::default()),
                Err(VarError::NotUnicode(_)) => return Err("RESERVOIR_TOKEN is not UTF-8 text".into()),
            },
        };
        ServerTokens::read(&text).and_then(|tokens| tokens.bind(servers)).map_err(|error| format!("{from}: {error}"))
    }

    /// Sets the account of a copy, if it `has_buckets`. Without buckets, the environment's keys are not read.
    fn with_account(&self, copy: Copy, has_buckets: bool) -> Result<Copy, String> {
        #[cfg(feature = "s3")]
        if has_buckets {
            return Ok(copy.account(self.account()?));
        }
        let _ = has_buckets;
        Ok(copy)
    }

    /// Returns the account in the environment variables of Amazon's own programs. `None` if no key is set.
    #[cfg(feature = "s3")]
    fn account(&self) -> Result<Option<BucketAccount>, String> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (Some(key), Some(secret)) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) else {
            return Ok(None);
        };
        let region = self.s3_region.clone().or_else(|| variable("AWS_REGION")).unwrap_or_else(|| "us-east-1".into());
        let endpoint = self.s3_endpoint.clone().or_else(|| variable("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        BucketAccount::new(&endpoint, &region, &key, &secret, variable("AWS_SESSION_TOKEN").as_deref()).map(Some)
    }

    /// Creates a connector that limits the total send rate of its `streams` connections to `rate`.
    fn dial(&self, rate: Option<Rate>, streams: usize) -> Result<Arc<dyn Dial>, String> {
        let authorities = authorities(self.cacert.as_deref())?;
        let wrong = |error: offload_reservoir::rustls::Error| format!("authorities: {error}");
        let tls = TlsDialer::new(Arc::new(tls::client_config(authorities.clone(), self.pin).map_err(wrong)?));
        // The kernel paces each connection separately.
        let tls = tls.paced(rate.map(|rate| rate.shared_by(streams)));
        if !self.http3 {
            return Ok(Arc::new(tls));
        }
        let quic = quic::client_tls(authorities, self.pin).map_err(wrong)?;
        Ok(Arc::new(QuicDialer::new(tls, quic, self.http3_window.0 as u32).paced(rate)))
    }
}

/// Reads the certificate authorities of a file, or of the system.
pub(crate) fn authorities(file: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, String> {
    // Distributions keep their authorities in different files.
    let file = file.or_else(|| SYSTEM_AUTHORITIES.iter().map(Path::new).find(|file| file.exists()));
    file.map_or(Ok(Vec::new()), tls::certificates)
}

/// Parses the sources and the destination.
fn places(texts: &[OsString]) -> Result<(Vec<CopyLocation>, CopyLocation), CopyError> {
    let parse = |text: &OsString| match text.to_str() {
        Some(text) => CopyLocation::parse(text, None),
        // A path may contain any bytes, a URL may not.
        None => CopyLocation::local(Path::new(text)),
    };
    let mut places = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let to = places.pop().ok_or_else(|| CopyError::Unusable("there is no destination".into()))?;
    Ok((places, to))
}

/// Returns the servers of a copy.
fn servers<'a>(places: impl IntoIterator<Item = &'a CopyLocation>, stripe: &'a [tls::Host]) -> BTreeSet<ServerAddress> {
    let places = places.into_iter().filter_map(CopyLocation::server);
    let stripe = stripe.iter().map(|host| (host.name(), host.port().unwrap_or(443)));
    // Host names are equal in any case, and tokens are looked up by name.
    places.chain(stripe).map(|(host, port)| (host.to_ascii_lowercase(), port)).collect()
}

pub(crate) async fn plan(options: PlanOptions) -> ExitCode {
    match make_plan(&options).await {
        Ok(text) => crate::show(&text, ExitCode::SUCCESS),
        Err((message, status)) => fail(&message, status),
    }
}

type CopyExitReason = (String, u8);

fn unusable(error: impl ToString) -> CopyExitReason {
    (error.to_string(), UNUSABLE)
}

fn failed(error: impl ToString) -> CopyExitReason {
    (error.to_string(), FAILED)
}

/// Converts an error of listing the sources.
fn unlisted(error: CopyError) -> CopyExitReason {
    // Scripts retry failures, but not wrong command lines.
    let status = if matches!(error, CopyError::Unusable(_)) { UNUSABLE } else { FAILED };
    (error.to_string(), status)
}

async fn make_plan(options: &PlanOptions) -> Result<String, CopyExitReason> {
    let (sources, to) = places(&options.places).map_err(unusable)?;
    let tokens = options.access.tokens(&servers(sources.iter().chain([&to]), &[])).map_err(unusable)?;
    let copy = Copy::new(Shell::tokio(), options.access.dial(None, 1).map_err(unusable)?).tokens(tokens);
    let copy = options.access.with_account(copy, has_buckets(&options.places)).map_err(unusable)?;
    let copy = copy.exclude(options.choice.exclude.clone()).block(options.choice.block.0).map_err(unusable)?;
    let items = copy.list(&sources, &to).await.map_err(unlisted)?;
    Ok(CopyPlan::new(&copy, &items, options.parts).await.map_err(failed)?.to_text())
}

pub(crate) async fn run(options: CopyOptions) -> ExitCode {
    let began = Instant::now();
    match copy(&options).await {
        Ok(outcome) => {
            let text = if options.json {
                json(&outcome, began.elapsed().as_secs_f64()) + "\n"
            } else {
                // Every line is attempted, even if the reader is slow or gone.
                let mut errors = std::io::stderr();
                for line in failures(&outcome.failed) {
                    let _ = writeln!(errors, "reservoir: {line}");
                }
                summary_line(&outcome, began.elapsed().as_secs_f64()) + "\n"
            };
            let status = match outcome.failed.len() {
                0 => ExitCode::SUCCESS,
                _ if outcome.copied + outcome.present + outcome.folders + outcome.left_to_others > 0 => {
                    ExitCode::from(PARTLY)
                }
                _ => ExitCode::from(FAILED),
            };
            crate::show(&text, status)
        }
        Err((message, status)) => fail(&message, status),
    }
}

async fn copy(options: &CopyOptions) -> Result<CopyOutcome, CopyExitReason> {
    let streams = match (options.streams, options.rate, options.round_trip) {
        (StreamCount::Count(count), ..) => count,
        (StreamCount::Auto, Some(rate), Some(round_trip)) => {
            offload_reservoir::copy::streams_for(rate, round_trip, usual_window())
        }
        (StreamCount::Auto, ..) => 8,
    };
    let copy = Copy::new(Shell::tokio(), options.access.dial(options.rate, streams).map_err(unusable)?)
        .streams(streams)
        .rate(options.rate)
        // Repeating a part copies only the remaining files.
        .resume(options.resume || options.plan.is_some())
        .verify(options.verify)
        .stripe(options.stripe.clone())
        .sparse(options.sparse)
        .direct(options.direct)
        .preserve(options.preserve.unwrap_or_default())
        .sync(options.sync.unwrap_or(SyncMode::Nothing))
        .exclude(options.choice.exclude.clone())
        .retries(options.retries);
    #[cfg(feature = "third-party")]
    let copy = copy.third_party(options.third_party);
    let copy = options.access.with_account(copy, has_buckets(&options.places)).map_err(unusable)?;
    let (copy, items) = match (&options.plan, options.part) {
        (Some(file), Some(part)) => select_part(copy, file, part, options)?,
        _ => {
            let copy = copy.block(options.choice.block.0).map_err(unusable)?;
            // Two striped servers would need twice as many tokens and roles; only one end may be striped.
            let is_remote = |place: &OsString| place.as_encoded_bytes().starts_with(b"https://");
            if let (false, Some((to, sources))) = (options.stripe.is_empty(), options.places.split_last())
                && is_remote(to)
                && sources.iter().any(is_remote)
            {
                return Err(unusable("--stripe is for copies from servers or to servers, and not for both"));
            }
            let (sources, to) = places(&options.places).map_err(unusable)?;
            let servers = servers(sources.iter().chain([&to]), &options.stripe);
            let copy = copy.tokens(options.access.tokens(&servers).map_err(unusable)?);
            if options.verify && to.is_bucket() {
                return Err(unusable(
                    "--verify: a bucket's medium cannot be read back; its server compares each part's MD5",
                ));
            }
            let items = copy.list(&sources, &to).await.map_err(unlisted)?;
            (copy, items)
        }
    };
    let shown = ProgressDisplay::new(copy.progress(), options.json);
    let outcome = tokio::select! {
        outcome = copy.copy(items) => outcome,
        never = shown.go_on() => match never {},
    };
    shown.end();
    Ok(outcome)
}

fn select_part(
    copy: Copy,
    file: &PathBuf,
    part: PartOption,
    options: &CopyOptions,
) -> Result<(Copy, Vec<CopyItem>), CopyExitReason> {
    let access = &options.access;
    let about = |error: String| unusable(format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| about(error.to_string()))?;
    let plan = CopyPlan::read(&text).map_err(about)?;
    let number = part.number(plan.parts()).map_err(unusable)?;
    let copy = copy.block(plan.block()).map_err(about)?;
    let copy = access.with_account(copy, text.contains(BUCKETS)).map_err(unusable)?;
    // A plan has no tokens, so each machine brings its own.
    let mut all = plan.servers().map_err(unlisted)?;
    all.extend(servers([], &options.stripe));
    let copy = copy.tokens(access.tokens(&all).map_err(unusable)?);
    let items = plan.part(&copy, number).map_err(unlisted)?;
    Ok((copy, items))
}

fn has_buckets(places: &[OsString]) -> bool {
    places.iter().any(|place| place.to_str().is_some_and(|place| place.starts_with(BUCKETS)))
}

/// URL prefix of buckets.
const BUCKETS: &str = "s3://";

/// Returns half of the largest receive buffer that Linux gives a connection automatically. The other half is
/// bookkeeping.
fn usual_window() -> u64 {
    let read = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default();
    read.split_whitespace().nth(2).and_then(|most| most.parse::<u64>().ok()).unwrap_or(6 << 20) / 2
}

fn summary_line(outcome: &CopyOutcome, seconds: f64) -> String {
    let rate = outcome.bytes as f64 * 8.0 / seconds.max(1e-9) / 1e9;
    let mut text =
        format!("{} files copied, {} bytes in {seconds:.2} s: {rate:.2} Gb/s", outcome.copied, outcome.bytes);
    for (count, what) in [
        (outcome.present, "files were there"),
        (outcome.folders, "empty folders are there"),
        (outcome.left_to_others, "files are finished by other parts"),
        (outcome.resumed, "bytes were there from before"),
        (outcome.healed, "blocks were healed"),
        (outcome.failed.len() as u64, "files failed"),
    ] {
        if count > 0 {
            // Zero counts would only lengthen the line.
            text += &format!("; {count} {what}");
        }
    }
    text
}

/// Returns a line for each failed file, up to [`MAX_SHOWN`]. A long run of files with the same error, such as a full
/// disk, shares a line; `--json` lists all of them.
fn failures(failed: &[(String, String)]) -> Vec<String> {
    let (mut lines, mut shown) = (Vec::new(), 0);
    for files in failed.chunk_by(|(_, one), (_, other)| one == other) {
        let free = MAX_SHOWN.saturating_sub(lines.len());
        match files {
            _ if free == 0 => break,
            [(first, error), .., (last, _)] if files.len() > LONGEST_RUN => {
                lines.push(format!("{first} to {last}, {} files: {error}", files.len()));
                shown += files.len();
            }
            files => {
                lines.extend(files.iter().take(free).map(|(file, error)| failure(file, error)));
                shown += files.len().min(free);
            }
        }
    }
    if shown < failed.len() {
        lines.push(format!("{} more files failed: --json lists all of them", failed.len() - shown));
    }
    lines
}

fn failure(file: &str, error: &str) -> String {
    // Some errors begin with the name of the file.
    let is_named = error.strip_prefix(file).is_some_and(|rest| rest.starts_with([':', ' ']));
    if is_named { error.to_owned() } else { format!("{file}: {error}") }
}

fn json(outcome: &CopyOutcome, seconds: f64) -> String {
    let failed: Vec<_> =
        outcome.failed.iter().map(|(file, error)| serde_json::json!({ "file": file, "error": error })).collect();
    serde_json::json!({
        "copied": outcome.copied,
        "present": outcome.present,
        "folders": outcome.folders,
        "left_to_others": outcome.left_to_others,
        "bytes": outcome.bytes,
        "resumed": outcome.resumed,
        "healed": outcome.healed,
        "seconds": seconds,
        "failed": failed,
    })
    .to_string()
}

/// Maximum number of files with the same error that get separate lines.
const LONGEST_RUN: usize = 16;
/// Maximum number of lines about failed files.
const MAX_SHOWN: usize = 20;
/// The files with trusted authorities in common distributions.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

#[cfg(test)]
mod tests {
    use super::failures;

    #[test]
    fn many_files_that_fail_for_one_reason_share_a_line() {
        let of = |file: &str, error: &str| (file.to_owned(), error.to_owned());
        let full = (0..600).map(|number| of(&format!("f{number}"), "full"));
        let failed: Vec<_> = full.chain([of("d", "locked"), of("e", "full"), of("f", "full")]).collect();
        assert_eq!(failures(&failed), ["f0 to f599, 600 files: full", "d: locked", "e: full", "f: full"]);
        assert!(failures(&[]).is_empty());
    }
}
