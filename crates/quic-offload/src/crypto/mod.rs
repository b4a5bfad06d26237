//! Cryptography for the QUIC state machine: handshakes by rustls, and 1-RTT packets by `offload-quic` or a NIC.
//!
//! - `session`: the TLS handshake of a connection;
//! - `keyring`: the 1-RTT keys of a connection, shared by the state machine and the endpoint;
//! - `acknowledgements`, `asked`: the delay of a peer's acknowledgments;
//! - `level`: handshake keys; `tokens`: address validation and stateless resets.

pub(crate) mod ack_delay;
pub(crate) mod acknowledgements;
pub(crate) mod keyring;
mod level;
pub(crate) mod session;
pub(crate) mod tokens;

use noq_proto::PathId;
use noq_proto::coding::Encodable;

/// Returns a path's number. The state machine exposes the number only in its wire format, a variable-length integer
/// (RFC 9000 16).
pub(crate) fn number_of(path: PathId) -> u32 {
    let mut bytes = [0; 8];
    path.encode(&mut &mut bytes[..]);
    let len = 1 << (bytes[0] >> 6);
    bytes[1..len].iter().fold(u32::from(bytes[0] & 0x3f), |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_ids_convert_to_their_numbers() {
        assert_eq!((number_of(PathId::ZERO), number_of(PathId::MAX)), (0, u32::MAX));
        let mut path = PathId::ZERO;
        for number in 0..20_000 {
            assert_eq!(number_of(path), number);
            path = path.saturating_add(1u8);
        }
    }
}
