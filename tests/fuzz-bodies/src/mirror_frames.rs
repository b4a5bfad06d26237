//! Arbitrary bytes from an agent to a mirror, in pieces: the mirror knows every SA and policy that stays, and its own
//! messages are valid.

use ipsec::{KeyedDevice, SecureDevice};
use linux_mirror::sa::{FrameDecoder, Message, SaChange, SaMirror, encode};
use nic_sim::{NicConfig, nic};
use offload_base::Instant;

/// Runs one input, which begins with the length of the pieces.
pub fn run(data: &[u8]) {
    let Some((piece, data)) = data.split_first() else { return };
    let (_device, driver) = nic(NicConfig { receive_ring: 4, ..NicConfig::default() });
    let mut secure = SecureDevice::new(Box::new(driver));
    let keying = secure.keying().expect("an IPsec layer");
    let mut mirror = SaMirror::new(&[[10, 0, 0, 1].into()]).offloaded(offload_api::OffloadKind::Packet);
    mirror.receive(Instant::ZERO, &encode(&Message::hello()), keying);
    for piece in data.chunks(usize::from(*piece).max(1)) {
        mirror.receive(Instant::ZERO, piece, keying);
        mirror.report(keying);
    }
    // An agent that has nothing.
    for message in [Message::hello(), Message::Change(SaChange::AllSasGone), Message::Change(SaChange::AllPoliciesGone)]
    {
        mirror.receive(Instant::ZERO, &encode(&message), keying);
    }
    let counted = mirror.counters();
    // Everything that was added must have been deleted again.
    assert_eq!(counted.sas_added, counted.sas_deleted);
    assert_eq!(counted.policies_added, counted.policies_deleted);
    let mut decoder = FrameDecoder::new();
    while let Some(bytes) = mirror.poll_transmit() {
        decoder.decode(&bytes, |message| {
            assert!(matches!(message, Ok(Message::Ask(_) | Message::Report(_))), "{message:?}");
        });
    }
    while let Some(refusal) = mirror.poll_refusal() {
        assert!(!refusal.to_string().chars().any(char::is_control), "{refusal}");
    }
}
