//! Requests and messages to the kernel.

use super::state::{self, identifier, named_info, to_xfrm_address};
use super::{attribute, kind};
use crate::netlink::{DUMP, REPLACE, REQUEST, message};
use crate::sa::change::{KernelSaId, KernelSaUse};

/// Builds a request for all SAs, including keys.
pub(crate) fn dump_sas(sequence: u32) -> Vec<u8> {
    message(kind::GET_SA, REQUEST | DUMP, sequence, &[], &[])
}

/// Builds a request for all policies.
pub(crate) fn dump_policies(sequence: u32) -> Vec<u8> {
    message(kind::GET_POLICY, REQUEST | DUMP, sequence, &[], &[])
}

/// Builds a request for the default actions (since Linux 5.14).
pub(crate) fn defaults(sequence: u32) -> Vec<u8> {
    message(kind::GET_DEFAULT, REQUEST, sequence, &[0; 4], &[])
}

/// Builds a message with the use of an SA. `added` and `used_at` are the times of its creation and last use, in seconds
/// since 1970.
pub(crate) fn use_message(sequence: u32, name: KernelSaId, used: KernelSaUse, added: u64, used_at: u64) -> Vec<u8> {
    let mut event = [0; EVENT];
    event[..state::ID].copy_from_slice(&identifier(name));
    event[24..40].copy_from_slice(&to_xfrm_address(name.source).0);
    event[40..44].copy_from_slice(&EVENT_LIFETIME.to_ne_bytes());
    let mut lifetime = [0; 32];
    for (place, value) in lifetime.chunks_exact_mut(8).zip([used.bytes, used.packets, added, used_at]) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
    message(kind::NEW_EVENT, REQUEST | REPLACE, sequence, &event, &[(attribute::LIFETIME, &lifetime)])
}

/// Builds a message that tells the kernel, and so the daemon, that an SA needs a successor. `hard` means that the SA is
/// dead.
pub(crate) fn expire(sequence: u32, name: KernelSaId, hard: bool) -> Vec<u8> {
    let mut expire = [0; state::INFO + 8];
    expire[..state::INFO].copy_from_slice(&named_info(name));
    expire[state::INFO] = hard.into();
    message(kind::EXPIRE, REQUEST, sequence, &expire, &[])
}

/// Length of `struct xfrm_aevent_id`.
const EVENT: usize = 48;
/// `XFRM_AE_LVAL`.
const EVENT_LIFETIME: u32 = 4;
