//! Arbitrary PDUs to a PDCP entity without integrity protection, so that they get far: SDUs are delivered once each, in
//! order, and each data PDU is counted by its fate.

use crate::input::Input;
use bytes::BytesMut;
use core::time::Duration;
use offload_base::Instant;
use pdcp::crypto::{Algorithm, Direction, Key};
use pdcp::{BearerKind, Config, Entity, IncomingPdu, Security, SnLen};

/// Runs one input: the kind of bearer and the length of numbers, then operations.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.byte();
    let kind = if choice & 1 == 0 { BearerKind::Unacknowledged } else { BearerKind::Acknowledged };
    let numbers = if choice & 2 == 0 { SnLen::Twelve } else { SnLen::Eighteen };
    let security = |direction, number: u8| {
        let key = Key::new(Algorithm::Aes128, &[number; 16]).expect("16 bytes");
        Security::new(3, direction).expect("a bearer").ciphered(key)
    };
    let sent = |number| security(Direction::Downlink, number);
    let received = |number| security(Direction::Uplink, number);
    let mut entity = Entity::new(Config::data(kind, numbers), sent(0), received(0)).expect("as RRC has it");
    let (mut now, mut last, mut keys) = (Instant::ZERO, None, 0);
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0 => now += Duration::from_millis(input.byte().into()),
            1 => {
                keys = u8::wrapping_add(keys, 1);
                entity.reestablish(sent(keys), received(keys)).expect("another key than the last");
                // Reestablishment resets the COUNT of an unacknowledged bearer.
                if kind == BearerKind::Unacknowledged {
                    core::iter::from_fn(|| entity.poll_sdu()).for_each(drop);
                    last = None;
                }
            }
            2 => {
                let count = u32::from_be_bytes(input.array());
                entity.receive(now, [IncomingPdu::Opened { count, pdu: BytesMut::from(input.take_some()) }]);
            }
            3 => {
                let _refused = entity.send(now, input.take_some().to_vec().into());
                let _exhausted = entity.take(4);
            }
            _ => entity.receive(now, [IncomingPdu::Pdu(BytesMut::from(input.take_some()))]),
        }
        while entity.next_event().is_some_and(|due| due <= now) {
            let _discarded = entity.handle_timeout(now);
            if entity.next_event().is_some_and(|due| due <= now) {
                panic!("an expired timer is due again");
            }
        }
        while let Some(sdu) = entity.poll_sdu() {
            assert!(last < Some(sdu.count), "{last:?}, then {}", sdu.count);
            last = Some(sdu.count);
        }
    }
}
