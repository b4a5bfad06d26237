//! XFRM messages (`linux/xfrm.h`).
//!
//! `state`: SAs; `policy`: policies; `request`: messages to the kernel. A key is copied only into an
//! [`EspKey`](offload_api::EspKey), which overwrites itself when dropped.

pub(crate) mod policy;
pub(crate) mod request;
pub(crate) mod state;

/// Message types.
pub(crate) mod kind {
    pub(crate) const NEW_SA: u16 = 0x10;
    pub(crate) const DELETE_SA: u16 = 0x11;
    pub(crate) const GET_SA: u16 = 0x12;
    pub(crate) const NEW_POLICY: u16 = 0x13;
    pub(crate) const DELETE_POLICY: u16 = 0x14;
    pub(crate) const GET_POLICY: u16 = 0x15;
    pub(crate) const EXPIRE: u16 = 0x18;
    pub(crate) const UPDATE_POLICY: u16 = 0x19;
    pub(crate) const UPDATE_SA: u16 = 0x1a;
    pub(crate) const POLICY_EXPIRE: u16 = 0x1b;
    pub(crate) const FLUSH_SAS: u16 = 0x1c;
    pub(crate) const FLUSH_POLICIES: u16 = 0x1d;
    pub(crate) const NEW_EVENT: u16 = 0x1e;
    pub(crate) const GET_DEFAULT: u16 = 0x28;
}

/// Attribute types.
pub(crate) mod attribute {
    pub(crate) const AUTH: u16 = 1;
    pub(crate) const CRYPT: u16 = 2;
    pub(crate) const COMP: u16 = 3;
    pub(crate) const ENCAP: u16 = 4;
    pub(crate) const TEMPLATES: u16 = 5;
    pub(crate) const SA: u16 = 6;
    pub(crate) const POLICY: u16 = 7;
    pub(crate) const LIFETIME: u16 = 9;
    pub(crate) const REPLAY: u16 = 10;
    pub(crate) const REPLAY_THRESHOLD: u16 = 11;
    pub(crate) const EVENT_TIMER: u16 = 12;
    pub(crate) const SOURCE: u16 = 13;
    pub(crate) const LAST_USED: u16 = 15;
    pub(crate) const POLICY_TYPE: u16 = 16;
    pub(crate) const AEAD: u16 = 18;
    pub(crate) const AUTH_TRUNCATED: u16 = 20;
    pub(crate) const MARK: u16 = 21;
    pub(crate) const PADDING: u16 = 22;
    pub(crate) const REPLAY_ESN: u16 = 23;
    pub(crate) const EXTRA_FLAGS: u16 = 24;
    pub(crate) const PROTOCOL: u16 = 25;
    pub(crate) const PAD: u16 = 27;
    pub(crate) const OFFLOAD: u16 = 28;
    pub(crate) const SET_MARK: u16 = 29;
    pub(crate) const SET_MARK_MASK: u16 = 30;
    pub(crate) const INTERFACE: u16 = 31;
    pub(crate) const MAPPING_TIMER: u16 = 32;
    pub(crate) const DIRECTION: u16 = 33;
    pub(crate) const KEEP_ALIVE: u16 = 34;
}
