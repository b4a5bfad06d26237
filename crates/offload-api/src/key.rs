//! Steering keys: the parts of received packets by which a device finds contexts.

use crate::unit::Layer;
use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use offload_formats::FlowKey;

/// A steering key. A received packet goes to the contexts that have its keys.
///
/// ```
/// use offload_api::{FlowKey, Key, KeyBytes, Layer, engines};
///
/// let flow = FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:5000".parse().unwrap());
/// let of_tls = Key::Flow(flow, Layer::FIRST);
/// let of_esp = Key::Engine(engines::ESP, KeyBytes::from_addresses(0x1001, [10, 0, 0, 2].into(), [10, 0, 0, 1].into()));
/// assert_ne!(of_tls, of_esp);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The flow as its receiver sees it, and the layer of the context in the flow.
    Flow(FlowKey, Layer),
    /// A key of an engine's own kind, with the number of the engine.
    Engine(u8, KeyBytes),
}

/// An engine's key for packets, for example a port and a connection ID.
///
/// ```
/// use offload_api::KeyBytes;
///
/// let key = KeyBytes::from_addresses(0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
/// assert_eq!(key, KeyBytes::from_parts(&[&[0, 0, 0x10, 0x01], &[10, 0, 0, 1], &[10, 0, 0, 2]]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBytes {
    len: u8,
    bytes: [u8; KeyBytes::MAX],
}

/// Hashes only the used bytes, because most keys have a third of the maximum length.
impl Hash for KeyBytes {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Unused bytes are zero. Keys that differ only in the number of trailing zeros collide here and are told apart
        // by `eq`.
        state.write(&self.bytes[..self.len.into()]);
    }
}

impl KeyBytes {
    /// Maximum length in bytes.
    pub const MAX: usize = 39;

    /// Concatenates `parts` to a key.
    ///
    /// # Panics
    /// If `parts` are longer than [`MAX`](Self::MAX) together.
    pub fn from_parts(parts: &[&[u8]]) -> KeyBytes {
        let mut key = KeyBytes { len: 0, bytes: [0; KeyBytes::MAX] };
        for part in parts {
            let at = usize::from(key.len);
            key.bytes[at..at + part.len()].copy_from_slice(part);
            key.len += part.len() as u8;
        }
        key
    }

    /// Makes a key of a number, such as a security parameters index, and two addresses.
    pub fn from_addresses(number: u32, source: IpAddr, destination: IpAddr) -> KeyBytes {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                // Two IPv4 addresses keep their short form: the IPv6 form would triple the bytes to hash for the common
                // case.
                KeyBytes::from_parts(&[&number.to_be_bytes(), &source.octets(), &destination.octets()])
            }
            (source, destination) => {
                let octets = |address| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                KeyBytes::from_parts(&[&number.to_be_bytes(), &octets(source), &octets(destination)])
            }
        }
    }
}
