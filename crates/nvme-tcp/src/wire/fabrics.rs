//! Structures of NVMe over Fabrics: Connect data and properties.
//!
//! NVM Express Base Specification 2.0, 6 and 3.1.3.

use super::identify::{put_text, text};
use super::{put, u16_at};

/// The data of a Connect command.
///
/// ```
/// use nvme_tcp::wire::ConnectData;
///
/// let data = ConnectData {
///     host_id: [1; 16],
///     controller: 0xffff,
///     subsystem: "nqn.2026-01.example:disk".into(),
///     host: "nqn.2026-01.example:host".into(),
/// };
/// assert_eq!(ConnectData::parse(&data.to_bytes()), Some(data));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// CNTLID: FFFFh requests a new controller.
    pub controller: u16,
    /// SUBNQN.
    pub subsystem: String,
    /// HOSTNQN.
    pub host: String,
}

impl ConnectData {
    /// Bytes of Connect data.
    pub const LEN: usize = 1024;

    /// Encodes the data.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; ConnectData::LEN];
        put(&mut bytes, 0, &self.host_id);
        put(&mut bytes, 16, &self.controller.to_le_bytes());
        put_text(&mut bytes[256..512], &self.subsystem, 0);
        put_text(&mut bytes[512..768], &self.host, 0);
        bytes
    }

    /// Parses the data; `None` if `bytes` is too short.
    pub fn parse(bytes: &[u8]) -> Option<ConnectData> {
        let bytes = bytes.get(..ConnectData::LEN)?;
        Some(ConnectData {
            host_id: bytes[..16].try_into().ok()?,
            controller: u16_at(bytes, 16),
            subsystem: text(&bytes[256..512]),
            host: text(&bytes[512..768]),
        })
    }
}

/// Offsets of properties.
pub mod property {
    /// Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Configuration.
    pub const CC: u32 = 0x14;
    /// Status.
    pub const CSTS: u32 = 0x1c;
    /// Subsystem reset.
    pub const NSSR: u32 = 0x20;
    /// Ready timeouts.
    pub const CRTO: u32 = 0x68;
}

/// The name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// CC.EN.
pub(crate) const CC_ENABLE: u32 = 1;
/// CC.SHN: kind of shutdown requested.
pub(crate) const CC_SHUTDOWN: u32 = 0b11 << 14;
/// CSTS.RDY.
pub(crate) const CSTS_READY: u32 = 1;
/// CSTS.SHST: shutdown under way.
pub(crate) const CSTS_SHUTTING_DOWN: u32 = 0b01 << 2;
/// CSTS.SHST: shutdown complete.
pub(crate) const CSTS_SHUT_DOWN: u32 = 0b10 << 2;
/// Version of the NVMe specification that this crate implements.
pub(crate) const VERSION: u32 = 0x0002_0000;
/// CATTR bit 2: no flow control of the submission queue.
pub(crate) const NO_FLOW_CONTROL: u8 = 1 << 2;
