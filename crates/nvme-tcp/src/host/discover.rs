//! Discovery: the list of subsystems that a host may connect to.

use super::connector::Connector;
use super::error::{HostError, Unsuitable};
use super::link::QueueLink;
use super::{HostConfig, session};
use crate::core::queue::{Buffer, CommandData};
use crate::wire::{DISCOVERY_NQN, DiscoveryEntry, DiscoveryLog, commands, page};
use core::time::Duration;
use offload_base::Timers;
use std::sync::Arc;

/// Reads the log of a discovery controller. `config` supplies the host's identity and the digests.
///
/// ```
/// use nvme_tcp::host::{Connector, HostConfig, HostIdentity, discover};
/// use offload_base::Timers;
/// use std::sync::Arc;
///
/// async fn names(
///     connector: &dyn Connector,
///     timers: &Arc<dyn Timers>,
///     identity: HostIdentity,
/// ) -> Result<Vec<String>, Box<dyn std::error::Error>> {
///     let log = discover(connector, timers, &HostConfig::new("", identity)).await?;
///     Ok(log.entries.into_iter().map(|entry| entry.subsystem).collect())
/// }
/// ```
///
/// # Errors
/// If the controller cannot be reached or refuses, or if the log keeps changing while it is read.
pub async fn discover(
    connector: &dyn Connector,
    timers: &Arc<dyn Timers>,
    config: &HostConfig,
) -> Result<DiscoveryLog, HostError> {
    let subsystem = DISCOVERY_NQN.to_owned();
    let config = HostConfig { subsystem, keep_alive: Duration::ZERO, ..config.clone() };
    let (mut link, _) = session::open_admin(connector, timers, &config).await?;
    for _ in 0..ATTEMPTS {
        let mut log = read(&mut link, 0, DiscoveryLog::HEADER as u32).await?;
        let (generation, count) = DiscoveryLog::parse_header(&log).ok_or(UNREADABLE)?;
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX_ENTRIES).ok_or(UNREADABLE)?;
        let mut left = count * DiscoveryEntry::LEN;
        while left > 0 {
            let part = left.min(PART);
            log.extend(read(&mut link, log.len() as u64, part as u32).await?);
            left -= part;
        }
        // The log may have changed while it was read in parts, so its header is compared.
        let again = read(&mut link, 0, DiscoveryLog::HEADER as u32).await?;
        if DiscoveryLog::parse_header(&again) == Some((generation, count as u64)) {
            link.finish(true).await;
            return DiscoveryLog::parse(&log).ok_or(UNREADABLE);
        }
    }
    Err(HostError::TimedOut("reading a discovery log that keeps changing"))
}

async fn read(link: &mut QueueLink, offset: u64, bytes: u32) -> Result<Vec<u8>, HostError> {
    let command = commands::log_page(page::DISCOVERY, offset, bytes).with_namespace(0);
    let buffer = CommandData::Read(Buffer::zeroed(bytes as usize));
    match link.execute("the discovery log", command, buffer).await?.submission.payload {
        CommandData::Read(buffer) => Ok(buffer.to_vec()),
        CommandData::None | CommandData::Write(_) | CommandData::Encrypt(..) => Err(UNREADABLE),
    }
}

const UNREADABLE: HostError = HostError::Unsuitable(Unsuitable::DiscoveryLog);
/// Bytes of one part.
const PART: usize = 16 << 10;
/// Maximum number of entries.
const MAX_ENTRIES: usize = 4096;
/// Maximum number of attempts to read a log that changes.
const ATTEMPTS: usize = 8;
