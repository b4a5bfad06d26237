//! The protocol between agent and mirror: lines of text, in the syntax of `tc` where it applies.
//!
//! A peer that joins in the middle of a stream, such as an agent that returns on a virtio-serial port, finds the next
//! line. Bounds: a line has at most [`MAX_LINE_BYTES`] bytes, and a reader holds at most one line.

use core::fmt;
use nic_switch::{Change, Device, Rule, RuleFile, Selection};

/// Identifier of a rule: device, chain, priority and handle.
///
/// ```
/// use nic_switch::{Device, Vport};
/// use linux_mirror::tc::RuleId;
///
/// let place = RuleId { device: Device::Port(Vport::Uplink), chain: 0, priority: 3, handle: 1 };
/// assert_eq!(place.to_string(), "dev p0 chain 0 prio 3 handle 1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId {
    /// Device at which the rule's frames arrive.
    pub device: Device,
    /// Chain of the rule.
    pub chain: u32,
    /// Priority of the rule.
    pub priority: u16,
    /// Handle of the rule.
    pub handle: u32,
}

impl RuleId {
    /// Returns the identifier of a rule. `None` if the rule has no handle.
    pub fn from_rule(rule: &Rule) -> Option<RuleId> {
        let Rule { device, chain, priority, handle, .. } = *rule;
        Some(RuleId { device, chain, priority, handle: handle? })
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuleId { device, chain, priority, handle } = self;
        write!(f, "dev {device} chain {chain} prio {priority} handle {handle}")
    }
}

/// Use of a rule in the switch.
///
/// ```
/// let used = linux_mirror::tc::RuleUse { packets: 3, bytes: 180, idle: Some(20) };
/// assert_eq!(used.to_string(), "packets 3 bytes 180 idle 20");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleUse {
    /// Number of matched frames.
    pub packets: u64,
    /// Bytes of the matched frames.
    pub bytes: u64,
    /// Time since the last match in milliseconds. `None` if the rule never matched.
    pub idle: Option<u64>,
}

impl fmt::Display for RuleUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "packets {} bytes {}", self.packets, self.bytes)?;
        self.idle.map_or(Ok(()), |idle| write!(f, " idle {idle}"))
    }
}

/// A line of the protocol.
///
/// ```
/// use linux_mirror::tc::{FilterLine, LineReader};
///
/// let mut said = Vec::new();
/// LineReader::new().read(b"tc-mirror 1\nbegin\ntc filter del dev p0 ingress prio 1 handle 2 flower\nend\n", |line| said.push(line));
/// assert_eq!((&said[0], &said[1]), (&Ok(FilterLine::Hello(1)), &Ok(FilterLine::Begins)));
/// assert_eq!(said[2].as_ref().unwrap().to_string(), "tc filter del dev p0 ingress prio 1 handle 2 flower");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterLine {
    /// From the agent: it is present, and speaks this protocol version. A snapshot follows.
    Hello(u16),
    /// From the mirror: it is present, speaks this protocol version, and requests a snapshot.
    Ask(u16),
    /// Start of a snapshot: all existing filters follow.
    Begins,
    /// End of a snapshot. A filter not named since its start does not exist.
    Ends,
    /// A filter exists, with this rule.
    There(Box<Rule>),
    /// The selected filters are deleted.
    Gone(Selection),
    /// The filter with this identifier is left to the kernel, for this reason.
    Refused(RuleId, String),
    /// From the mirror: the use of a rule so far.
    Used(RuleId, RuleUse),
}

impl fmt::Display for FilterLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterLine::Hello(version) => write!(f, "tc-mirror {version}"),
            FilterLine::Ask(version) => write!(f, "ask {version}"),
            FilterLine::Begins => f.write_str("begin"),
            FilterLine::Ends => f.write_str("end"),
            FilterLine::There(rule) => Change::Replace(Rule::clone(rule)).fmt(f),
            FilterLine::Gone(selection) => Change::Delete(*selection).fmt(f),
            FilterLine::Refused(place, why) => write!(f, "refused {place}: {why}"),
            FilterLine::Used(place, used) => write!(f, "used {place} {used}"),
        }
    }
}

/// Error of a malformed line.
///
/// ```
/// use linux_mirror::tc::{LineError, LineReader};
///
/// let mut said = Vec::new();
/// LineReader::new().read(b"what?\n", |line| said.extend(line.err()));
/// assert_eq!(said, [LineError("the protocol has no such line".into())]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this line cannot be read: {0}: use an agent and a mirror of one release")]
pub struct LineError(pub String);

/// A parser from bytes to lines.
///
/// See [`FilterLine`] for an example.
#[derive(Debug, Default)]
pub struct LineReader {
    line: Vec<u8>,
    too_long: bool,
}

impl LineReader {
    /// Returns a parser, which may start in the middle of a stream.
    pub fn new() -> LineReader {
        LineReader::default()
    }

    /// Processes the next bytes of the stream, and passes complete lines to `take`.
    pub fn read(&mut self, bytes: &[u8], mut take: impl FnMut(Result<FilterLine, LineError>)) {
        for byte in bytes {
            if *byte != b'\n' {
                self.too_long |= self.line.len() == MAX_LINE_BYTES;
                if !self.too_long {
                    self.line.push(*byte);
                }
                continue;
            }
            let line = core::mem::take(&mut self.line);
            if core::mem::take(&mut self.too_long) {
                take(Err(LineError(format!("it has more than {MAX_LINE_BYTES} bytes"))));
            } else if !line.is_empty() {
                take(parse(&line));
            }
        }
    }
}

fn parse(line: &[u8]) -> Result<FilterLine, LineError> {
    let line = core::str::from_utf8(line).ok().filter(|line| line.bytes().all(|byte| (b' '..0x7f).contains(&byte)));
    let line = line.ok_or_else(|| LineError("it is not ASCII text".into()))?;
    let none = || LineError("the protocol has no such line".into());
    if line.starts_with("tc ") {
        // Filters have the syntax of rule files, so the switch's own parser reads them.
        let file = RuleFile::parse("it", line).map_err(|error| LineError(error.to_string()))?;
        let mut changes = file.changes.into_iter();
        return match (changes.next(), changes.next()) {
            (Some(Change::Replace(rule)), None) if rule.handle.is_some() => Ok(FilterLine::There(Box::new(rule))),
            (Some(Change::Delete(selection)), None) => Ok(FilterLine::Gone(selection)),
            _ => Err(none()),
        };
    }
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let read = match (word, rest) {
        ("tc-mirror", version) => version.parse().ok().map(FilterLine::Hello),
        ("ask", version) => version.parse().ok().map(FilterLine::Ask),
        ("begin", "") => Some(FilterLine::Begins),
        ("end", "") => Some(FilterLine::Ends),
        ("refused", rest) => rest.split_once(": ").and_then(|(place, why)| {
            let (place, rest) = parse_id(place)?;
            rest.is_empty().then(|| FilterLine::Refused(place, why.into()))
        }),
        ("used", rest) => parse_id(rest).and_then(|(place, rest)| Some(FilterLine::Used(place, parse_use(&rest)?))),
        _ => None,
    };
    read.ok_or_else(none)
}

/// Parses a rule identifier. Returns it with the words after it.
fn parse_id(text: &str) -> Option<(RuleId, Vec<&str>)> {
    // The identifier always has eight words.
    let words: Vec<&str> = text.split(' ').collect();
    let (place, rest) = words.split_at_checked(8)?;
    let ["dev", device, "chain", chain, "prio", priority, "handle", handle] = place else { return None };
    let place = RuleId {
        device: device.parse().ok()?,
        chain: chain.parse().ok()?,
        priority: priority.parse().ok()?,
        handle: handle.parse().ok()?,
    };
    Some((place, rest.to_vec()))
}

fn parse_use(words: &[&str]) -> Option<RuleUse> {
    let (packets, bytes, idle) = match words {
        ["packets", packets, "bytes", bytes] => (packets, bytes, None),
        ["packets", packets, "bytes", bytes, "idle", idle] => (packets, bytes, Some(idle.parse().ok()?)),
        _ => return None,
    };
    Some(RuleUse { packets: packets.parse().ok()?, bytes: bytes.parse().ok()?, idle })
}

/// Version of the protocol.
pub const VERSION: u16 = 1;
/// Maximum length of a line in bytes.
pub const MAX_LINE_BYTES: usize = 4096;
