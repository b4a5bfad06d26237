//! Set Features and Get Features.
//!
//! NVM Express Base Specification 2.0, 5.27. No feature can be saved; a controller reset restores the defaults.

use super::session::Session;
use crate::wire::{Command, Notices, Status, put};
use core::time::Duration;
use offload_base::Instant;

/// Values of the features.
#[derive(Debug)]
pub(super) struct Features {
    arbitration: u32,
    temperature: u32,
    error_recovery: u32,
    write_cache: bool,
    atomicity: u32,
    notices: Notices,
    /// Milliseconds, and the time when the host set them. `None` until then.
    timestamp: Option<(u64, Instant)>,
    behaviour: Vec<u8>,
}

/// The answer to Get Features: double word 0 of the completion, and data.
pub(super) type FeatureValue = (u32, Vec<u8>);

impl Default for Features {
    fn default() -> Features {
        Features {
            arbitration: 0,
            temperature: DEFAULT_TEMPERATURE,
            error_recovery: 0,
            write_cache: true,
            atomicity: 0,
            notices: Notices::default(),
            timestamp: None,
            behaviour: vec![0; BEHAVIOUR_LEN],
        }
    }
}

impl Features {
    /// Returns the notices that the host enabled.
    pub(super) fn notices(&self) -> Notices {
        self.notices
    }

    /// Returns whether writes may stay in a volatile cache.
    pub(super) fn write_cache(&self) -> bool {
        self.write_cache
    }
}

/// Returns the number of data bytes that come with the Set Features `command`.
pub(super) fn data_len(command: &Command) -> u32 {
    match command.u32(10) as u8 {
        id::TIMESTAMP => TIMESTAMP_LEN as u32,
        id::HOST_BEHAVIOUR => BEHAVIOUR_LEN as u32,
        _ => 0,
    }
}

pub(super) fn get(session: &Session, command: &Command, now: Instant, queues: u16) -> Result<FeatureValue, Status> {
    let feature = command.u32(10) as u8;
    let defaults = Features::default();
    let features = match command.u32(10) >> 8 & 7 {
        0 => &session.features,
        1 | 2 => &defaults,
        // SEL 011b asks for capabilities: changeable, neither saveable nor per namespace.
        3 => return current(session, &defaults, feature, now, queues).map(|_| (1 << 2, Vec::new())),
        _ => return Err(Status::INVALID_FIELD),
    };
    current(session, features, feature, now, queues)
}

fn current(
    session: &Session,
    features: &Features,
    feature: u8,
    now: Instant,
    queues: u16,
) -> Result<FeatureValue, Status> {
    let value = match feature {
        // These two features exist on discovery controllers as well; the other features do not.
        id::EVENTS => features.notices.0,
        id::KEEP_ALIVE => u32::try_from(session.keep_alive().as_millis()).unwrap_or(u32::MAX),
        _ if session.is_discovery() => return Err(Status::INVALID_FIELD),
        id::ARBITRATION => features.arbitration,
        id::POWER => 0,
        id::TEMPERATURE => features.temperature,
        id::ERROR_RECOVERY => features.error_recovery,
        id::WRITE_CACHE => u32::from(features.write_cache),
        id::QUEUES => u32::from(queues - 1) | u32::from(queues - 1) << 16,
        id::ATOMICITY => features.atomicity,
        id::TIMESTAMP => {
            let (set, at) = features.timestamp.unwrap_or((0, session.began));
            let mut data = vec![0; TIMESTAMP_LEN];
            let millis = set.wrapping_add((now - at).as_millis() as u64);
            put(&mut data, 0, &millis.to_le_bytes()[..6]);
            // Timestamp Origin: 1 if the host set the timestamp.
            data[6] = u8::from(features.timestamp.is_some()) << 1;
            return Ok((0, data));
        }
        id::HOST_BEHAVIOUR => return Ok((0, features.behaviour.clone())),
        id::HOST_IDENTIFIER => return Ok((0, session.host_id.to_vec())),
        _ => return Err(Status::INVALID_FIELD),
    };
    Ok((value, Vec::new()))
}

pub(super) fn set(
    session: &mut Session,
    command: &Command,
    data: &[u8],
    now: Instant,
    queues: u16,
) -> Result<u32, Status> {
    if command.u32(10) & SAVE != 0 {
        return Err(Status::FEATURE_NOT_SAVEABLE);
    }
    let (feature, value) = (command.u32(10) as u8, command.u32(11));
    let discovery = session.is_discovery();
    match feature {
        id::EVENTS => session.features.notices = Notices(value),
        id::KEEP_ALIVE => session.set_keep_alive(now, Duration::from_millis(u64::from(value))),
        _ if discovery => return Err(Status::INVALID_FIELD),
        id::ARBITRATION => session.features.arbitration = value,
        // The controller has only power state 0.
        id::POWER if value & 0x1f == 0 => {}
        id::TEMPERATURE => session.features.temperature = value,
        id::ERROR_RECOVERY => session.features.error_recovery = value,
        id::WRITE_CACHE => session.features.write_cache = value & 1 != 0,
        id::QUEUES => {
            // NSQR and NCQR are 0's based numbers; FFFFh is reserved.
            let (submission, completion) = (value as u16, (value >> 16) as u16);
            if submission == u16::MAX || completion == u16::MAX {
                return Err(Status::INVALID_FIELD);
            }
            // The smaller number is granted, because each I/O queue has one submission and one completion queue.
            let granted = u32::from(submission.min(completion).min(queues - 1));
            return Ok(granted | granted << 16);
        }
        id::ATOMICITY => session.features.atomicity = value & 1,
        id::TIMESTAMP => {
            let bytes: [u8; 6] = data.get(..6).and_then(|bytes| bytes.try_into().ok()).ok_or(Status::INVALID_FIELD)?;
            let mut millis = [0; 8];
            put(&mut millis, 0, &bytes);
            session.features.timestamp = Some((u64::from_le_bytes(millis), now));
        }
        id::HOST_BEHAVIOUR => {
            session.features.behaviour = data.get(..BEHAVIOUR_LEN).ok_or(Status::INVALID_FIELD)?.to_vec();
        }
        id::HOST_IDENTIFIER => return Err(Status::FEATURE_NOT_CHANGEABLE),
        _ => return Err(Status::INVALID_FIELD),
    }
    Ok(0)
}

mod id {
    pub(super) const ARBITRATION: u8 = 0x01;
    pub(super) const POWER: u8 = 0x02;
    pub(super) const TEMPERATURE: u8 = 0x04;
    pub(super) const ERROR_RECOVERY: u8 = 0x05;
    pub(super) const WRITE_CACHE: u8 = 0x06;
    pub(super) const QUEUES: u8 = 0x07;
    pub(super) const ATOMICITY: u8 = 0x0a;
    pub(super) const EVENTS: u8 = 0x0b;
    pub(super) const TIMESTAMP: u8 = 0x0e;
    pub(super) const KEEP_ALIVE: u8 = 0x0f;
    pub(super) const HOST_BEHAVIOUR: u8 = 0x16;
    pub(super) const HOST_IDENTIFIER: u8 = 0x81;
}

/// SV, bit 31 of double word 10: save the value across resets.
const SAVE: u32 = 1 << 31;
/// Default temperature threshold: 343 K, the warning temperature.
const DEFAULT_TEMPERATURE: u32 = 343;
const TIMESTAMP_LEN: usize = 8;
const BEHAVIOUR_LEN: usize = 512;
