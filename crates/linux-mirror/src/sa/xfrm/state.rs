//! SAs: `struct xfrm_usersa_info` and its attributes.

use super::attribute;
use crate::netlink::{INET, INET6, NetlinkBytes, attributes};
use crate::sa::change::{KernelSaId, KernelSaUse, MirroredSa, SaChange, UnsupportedSa};
use core::net::IpAddr;
use core::time::Duration;
use offload_api::ipsec::Limits;
use offload_api::{Direction, DontFragment, EspKey, EspMode, EspSuite, Lifetime, SaParams, UdpEncapsulation};
use offload_formats::protocol::ESP;

/// An SA parsed from a message: the content for the mirror, and the creation time for the kernel's counters.
pub(crate) struct ParsedSa {
    pub(crate) name: KernelSaId,
    /// Creation time, in seconds since 1970.
    pub(crate) added: u64,
    /// The SA. `None` if it has no algorithm yet, because a daemon has only reserved its SPI.
    pub(crate) sa: Option<Result<Box<MirroredSa>, UnsupportedSa>>,
}

impl ParsedSa {
    /// Returns the change for the mirror.
    pub(crate) fn into_change(self) -> Option<SaChange> {
        Some(match self.sa? {
            Ok(sa) => SaChange::Sa(sa),
            Err(why) => SaChange::SaUnsupported(self.name, why),
        })
    }
}

/// Parses `struct xfrm_usersa_info` and the attributes after it. `now` is in seconds since 1970. Returns `None` if the
/// message is invalid.
pub(crate) fn read(payload: &[u8], now: u64) -> Option<ParsedSa> {
    let info = NetlinkBytes(payload.get(..INFO)?);
    let name = name_of(info)?;
    let added = info.u64(LIFETIME_NOW + 16)?;
    let sa = match params(info, &payload[INFO..], name, now.saturating_sub(added)) {
        Ok(sa) => sa?.map(Box::new).map(Ok),
        Err(why) => Some(Err(why)),
    };
    Some(ParsedSa { name, added, sa })
}

/// Parses the identifier of a deleted SA: `struct xfrm_usersa_id`, followed by XFRMA_SA. The inner `None` means an SA
/// of another protocol than ESP, which may have the same SPI.
pub(crate) fn read_deleted(payload: &[u8]) -> Option<Option<KernelSaId>> {
    let (_, info) = attributes(payload.get(ID..)?).find(|(kind, _)| *kind == attribute::SA)?;
    esp_name_of(info)
}

/// Parses `struct xfrm_user_expire`. Returns the SA if it is an ESP SA, and whether it is dead.
pub(crate) fn read_expired(payload: &[u8]) -> Option<(Option<KernelSaId>, bool)> {
    let bytes = NetlinkBytes(payload);
    Some((esp_name_of(bytes)?, bytes.u8(INFO)? != 0))
}

fn esp_name_of(info: NetlinkBytes<'_>) -> Option<Option<KernelSaId>> {
    let name = name_of(info)?;
    Some((info.u8(IDENTIFIER + 20)? == ESP).then_some(name))
}

/// Parses `struct xfrm_usersa_flush`. Returns whether ESP SAs are deleted.
pub(crate) fn is_flush_of_esp(payload: &[u8]) -> Option<bool> {
    Some(matches!(payload.first()?, 0 | &ESP | &u8::MAX))
}

/// Parses the identifier of an SA of any protocol.
fn name_of(info: NetlinkBytes<'_>) -> Option<KernelSaId> {
    let family = info.u16(FAMILY)?;
    Some(KernelSaId {
        source: info.address(SOURCE, family)?,
        destination: info.address(IDENTIFIER, family)?,
        spi: info.spi(IDENTIFIER + 16)?,
    })
}

/// Parses an SA's parameters. The outer `None` means that the message is too short, the inner one that there is no
/// algorithm yet.
fn params(
    info: NetlinkBytes<'_>,
    rest: &[u8],
    name: KernelSaId,
    age: u64,
) -> Result<Option<Option<MirroredSa>>, UnsupportedSa> {
    // The attributes come first, because an unsupported one decides regardless of the structure.
    let mut read = SaAttributes::default();
    for (kind, value) in attributes(rest) {
        read.attribute(kind, value)?;
    }
    let Some(base) = SaInfo::read(info) else { return Ok(None) };
    if base.protocol != ESP {
        return Err(UnsupportedSa::Protocol(base.protocol));
    }
    let Some(algorithm) = read.algorithm else { return Ok(Some(None)) };
    let key = algorithm?;
    if base.flags & !KNOWN_FLAGS != 0 {
        return Err(UnsupportedSa::Flags((base.flags & !KNOWN_FLAGS).into()));
    }
    if base.narrows && base.reqid == 0 {
        return Err(UnsupportedSa::SaSelector);
    }
    let flag = |flag| base.flags & flag != 0;
    let window = read.esn_window.unwrap_or(base.replay_window.into());
    let mut lifetime = base.lifetime;
    // Time limits become remaining times. The kernel reports the soft one. The hard one also ends the SA here, in case
    // the agent is gone by then.
    lifetime.soft.time = None;
    lifetime.hard.time = lifetime.hard.time.map(|time| time.saturating_sub(Duration::from_secs(age)));
    let params = SaParams {
        mode: base.mode?,
        reqid: base.reqid,
        esn: flag(FLAG_ESN),
        // A kernel's SA may have no window, and a sender needs none. Windows here have 32 to 4096 packets.
        replay_window: if window == 0 { 64 } else { window.max(32) },
        encapsulation: read.encapsulation,
        keep_alive: read.keep_alive,
        lifetime,
        dont_fragment: if flag(FLAG_NO_PMTU_DISCOVERY) { DontFragment::Clear } else { DontFragment::Copy },
        dscp: read.clears_dscp.then_some(0),
        dscp_out: flag(FLAG_DECAP_DSCP),
        ecn: !flag(FLAG_NO_ECN),
        ..SaParams::new(Direction::Transmit, name.spi, name.source, name.destination, key)
    };
    let MirroredNumbers { sent, received } = read.numbers;
    Ok(Some(Some(MirroredSa { params, direction: read.direction, sent, received, used: base.used })))
}

/// The fields of the structure itself.
struct SaInfo {
    protocol: u8,
    reqid: u32,
    mode: Result<EspMode, UnsupportedSa>,
    replay_window: u8,
    flags: u8,
    lifetime: Lifetime,
    used: KernelSaUse,
    /// Whether the SA has a selector of its own with ports, a protocol or an interface.
    narrows: bool,
}

impl SaInfo {
    fn read(info: NetlinkBytes<'_>) -> Option<SaInfo> {
        let limits = |at: usize, seconds: usize| {
            let finite = |at| info.u64(at).map(|limit| Some(limit).filter(|limit| *limit != u64::MAX));
            let time = info.u64(seconds)?;
            Some(Limits {
                bytes: finite(at)?,
                packets: finite(at + 16)?,
                time: Some(time).filter(|time| *time != 0 && *time != u64::MAX).map(Duration::from_secs),
            })
        };
        let mode = info.u8(MODE)?;
        Some(SaInfo {
            protocol: info.u8(IDENTIFIER + 20)?,
            reqid: info.u32(REQID)?,
            mode: match mode {
                0 => Ok(EspMode::Transport),
                1 => Ok(EspMode::Tunnel),
                _ => Err(UnsupportedSa::Mode(mode)),
            },
            replay_window: info.u8(REPLAY_WINDOW)?,
            flags: info.u8(FLAGS)?,
            lifetime: Lifetime { soft: limits(LIMITS, LIMITS + 32)?, hard: limits(LIMITS + 8, LIMITS + 40)? },
            used: KernelSaUse { bytes: info.u64(LIFETIME_NOW)?, packets: info.u64(LIFETIME_NOW + 8)? },
            // Port masks, protocol and interface. Addresses add nothing to the SA or the policy.
            narrows: info.u16(34)? | info.u16(38)? != 0 || info.u8(44)? != 0 || info.u32(48)? != 0,
        })
    }
}

/// The SA's attributes.
#[derive(Default)]
struct SaAttributes {
    algorithm: Option<Result<EspKey, UnsupportedSa>>,
    direction: Option<Direction>,
    encapsulation: Option<UdpEncapsulation>,
    keep_alive: Option<Duration>,
    esn_window: Option<u32>,
    clears_dscp: bool,
    numbers: MirroredNumbers,
}

#[derive(Clone, Copy, Default)]
struct MirroredNumbers {
    sent: u64,
    received: u64,
}

impl SaAttributes {
    /// Applies an attribute. Truncated values are ignored.
    fn attribute(&mut self, kind: u16, value: NetlinkBytes<'_>) -> Result<(), UnsupportedSa> {
        match kind {
            attribute::AEAD => self.algorithm = key(value),
            attribute::AUTH | attribute::CRYPT | attribute::COMP | attribute::AUTH_TRUNCATED => {
                self.algorithm = name_of_algorithm(value).map(|name| Err(UnsupportedSa::Algorithm(name)));
            }
            attribute::ENCAP => match value.u16(0) {
                Some(ESP_IN_UDP) => {
                    let ports = value.port(2).zip(value.port(4));
                    self.encapsulation =
                        ports.map(|(source_port, destination_port)| UdpEncapsulation { source_port, destination_port });
                }
                other => return Err(UnsupportedSa::Encapsulation(other.unwrap_or(0))),
            },
            attribute::REPLAY => {
                let number = |at| value.u32(at).map_or(0, u64::from);
                self.numbers = MirroredNumbers { sent: number(0), received: number(4) };
            }
            attribute::REPLAY_ESN => {
                let number =
                    |low, high| (value.u32(high).unwrap_or(0) as u64) << 32 | value.u32(low).unwrap_or(0) as u64;
                self.numbers = MirroredNumbers { sent: number(4, 12), received: number(8, 16) };
                self.esn_window = value.u32(20);
            }
            attribute::EXTRA_FLAGS => match value.u32(0).unwrap_or(0) {
                0 => {}
                EXTRA_DONT_ENCAP_DSCP => self.clears_dscp = true,
                other => return Err(UnsupportedSa::Flags(other)),
            },
            attribute::DIRECTION => {
                self.direction = match value.u8(0) {
                    Some(1) => Some(Direction::Receive),
                    Some(2) => Some(Direction::Transmit),
                    _ => None,
                }
            }
            attribute::KEEP_ALIVE => {
                let seconds = value.u32(0).filter(|seconds| *seconds != 0);
                self.keep_alive = seconds.map(|seconds| Duration::from_secs(seconds.into()));
            }
            attribute::MARK | attribute::INTERFACE | attribute::SET_MARK | attribute::SET_MARK_MASK => {
                if value.0.iter().any(|byte| *byte != 0) {
                    return Err(UnsupportedSa::Mark);
                }
            }
            attribute::PADDING if value.u32(0) == Some(0) => {}
            // Times, thresholds and identifiers that the structure contains, too.
            attribute::LIFETIME
            | attribute::REPLAY_THRESHOLD
            | attribute::EVENT_TIMER
            | attribute::SOURCE
            | attribute::LAST_USED
            | attribute::PROTOCOL
            | attribute::PAD
            | attribute::OFFLOAD
            | attribute::MAPPING_TIMER => {}
            // An unknown attribute may change the packets, so the SA must not be used without it.
            other => return Err(UnsupportedSa::Attribute(other)),
        }
        Ok(())
    }
}

/// Parses the key of `struct xfrm_algo_aead`.
fn key(value: NetlinkBytes<'_>) -> Option<Result<EspKey, UnsupportedSa>> {
    let name = name_of_algorithm(value)?;
    let (bits, icv) = (value.u32(ALGORITHM_NAME)?, value.u32(ALGORITHM_NAME + 4)?);
    let suites: &[EspSuite] = match &name[..] {
        "rfc4106(gcm(aes))" => &[EspSuite::Aes128Gcm, EspSuite::Aes256Gcm],
        "rfc4543(gcm(aes))" => &[EspSuite::Aes128Gmac, EspSuite::Aes256Gmac],
        "rfc7539esp(chacha20,poly1305)" => &[EspSuite::ChaCha20Poly1305],
        _ => return Some(Err(UnsupportedSa::Algorithm(name))),
    };
    let material = value.from(ALGORITHM_NAME + 8).0.get(..bits as usize / 8)?;
    // The key length selects among the suites of an algorithm.
    let key = suites.iter().find_map(|suite| EspKey::new(*suite, material)).filter(|_| icv == 128);
    Some(key.ok_or(UnsupportedSa::Algorithm(name)))
}

/// Returns the algorithm name at the start of `value`, made printable.
fn name_of_algorithm(value: NetlinkBytes<'_>) -> Option<String> {
    (value.0.len() >= ALGORITHM_NAME).then(|| value.text(ALGORITHM_NAME))
}

/// Builds the identifier of an SA for the kernel: `struct xfrm_usersa_id`.
pub(crate) fn identifier(name: KernelSaId) -> [u8; ID] {
    let mut bytes = [0; ID];
    let (address, family) = to_xfrm_address(name.destination);
    bytes[..16].copy_from_slice(&address);
    bytes[16..20].copy_from_slice(&name.spi.to_be_bytes());
    bytes[20..22].copy_from_slice(&family.to_ne_bytes());
    bytes[22] = ESP;
    bytes
}

/// Builds a `struct xfrm_usersa_info` with only the fields that identify an SA.
pub(crate) fn named_info(name: KernelSaId) -> [u8; INFO] {
    let mut bytes = [0; INFO];
    let ((destination, family), (source, _)) = (to_xfrm_address(name.destination), to_xfrm_address(name.source));
    bytes[IDENTIFIER..][..16].copy_from_slice(&destination);
    bytes[IDENTIFIER + 16..][..4].copy_from_slice(&name.spi.to_be_bytes());
    bytes[IDENTIFIER + 20] = ESP;
    bytes[SOURCE..][..16].copy_from_slice(&source);
    bytes[FAMILY..][..2].copy_from_slice(&family.to_ne_bytes());
    bytes
}

/// Returns the `xfrm_address_t` of an address, and its family.
pub(crate) fn to_xfrm_address(address: IpAddr) -> ([u8; 16], u16) {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            (bytes, INET)
        }
        IpAddr::V6(address) => (address.octets(), INET6),
    }
}

/// Length of `struct xfrm_usersa_info`.
pub(crate) const INFO: usize = 224;
/// Offset of the destination, SPI and protocol.
const IDENTIFIER: usize = 56;
/// Offset of the source address.
const SOURCE: usize = 80;
/// Offset of the lifetime limits.
const LIMITS: usize = 96;
/// Offset of the current lifetime.
const LIFETIME_NOW: usize = 160;
/// Offset of the reqid.
const REQID: usize = 208;
/// Offset of the address family.
const FAMILY: usize = 212;
/// Offset of the mode.
const MODE: usize = 214;
/// Offset of the replay window.
const REPLAY_WINDOW: usize = 215;
/// Offset of the flags.
const FLAGS: usize = 216;
/// Length of `struct xfrm_usersa_id`.
pub(crate) const ID: usize = 24;
/// Length of an algorithm's name, which its key lengths and key follow.
const ALGORITHM_NAME: usize = 64;

const FLAG_NO_ECN: u8 = 1;
const FLAG_DECAP_DSCP: u8 = 2;
const FLAG_NO_PMTU_DISCOVERY: u8 = 4;
const FLAG_AF_UNSPEC: u8 = 32;
const FLAG_ESN: u8 = 128;
const KNOWN_FLAGS: u8 = FLAG_NO_ECN | FLAG_DECAP_DSCP | FLAG_NO_PMTU_DISCOVERY | FLAG_AF_UNSPEC | FLAG_ESN;
const EXTRA_DONT_ENCAP_DSCP: u32 = 1;
const ESP_IN_UDP: u16 = 2;
