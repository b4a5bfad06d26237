//! Finds policies and SAs among many, over and over, for a profiler to count what one look-up takes:
//!
//! ```text
//! cargo build --release -p ipsec --example lookup
//! valgrind --tool=callgrind --cache-sim=yes --toggle-collect='*to_send_by*' target/release/examples/lookup 10000
//! ```
//!
//! and `*received_by*` likewise. The sum, divided by the number that is printed, is what one of them takes. Given `one`, it asks
//! for the same SA each time: what is left of cache misses then is not the table's size.

use core::hint::black_box;
use core::net::{IpAddr, Ipv4Addr};
use ipsec::{Sad, Spd};
use offload_api::ipsec::Packet;
use offload_api::{Action, Direction, EspKey, EspSuite, Policy, Prefix, SaParams, Selector, Template};
use offload_base::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let sas: u32 =
        arguments.next().and_then(|sas| sas.parse().ok()).filter(|sas| (1..=60_000).contains(sas)).unwrap_or(1);
    let step = if arguments.next().as_deref() == Some("one") { 0 } else { STEP };
    let (mut sad, mut spd) = (Sad::default(), Spd::default());
    for number in 0..sas {
        for direction in [Direction::Transmit, Direction::Receive] {
            let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).expect("as long as its suite wants");
            let sa = SaParams::new(direction, 0x1000 + number, HERE.into(), there(number), key);
            sad.add(Instant::ZERO, sa).expect("they are different");
        }
        let selector = Selector { destination: Some(Prefix::host(there(number))), ..Selector::ANY };
        let action = Action::Protect(Template::transport(0));
        spd.add(Policy { direction: Direction::Transmit, selector, priority: 0, action }).expect("so are these");
    }
    let mut found = 0;
    for turn in 0..LOOKUPS {
        let number = turn.wrapping_mul(step) % sas;
        found += u32::from(to_send_by(&spd, &sad, black_box(number)) == Some(0x1000 + number));
        found += u32::from(received_by(&sad, black_box(number)) == Some(0x1000 + number));
    }
    assert_eq!(found, 2 * LOOKUPS, "each finds its own");
    println!("{LOOKUPS} look-ups of each kind");
}

/// The policy of a packet, and the SA that it wants.
#[inline(never)]
fn to_send_by(spd: &Spd, sad: &Sad, number: u32) -> Option<u32> {
    let packet = Packet { source: HERE.into(), destination: there(number), protocol: 17, ports: Some((5000, 9)) };
    let Some(Action::Protect(template)) = spd.action(&packet) else { return None };
    sad.find_wanted(&template, &packet).and_then(|id| sad.find(id)).map(|sa| sa.params.spi)
}

#[inline(never)]
fn received_by(sad: &Sad, number: u32) -> Option<u32> {
    let found = sad.find_received(0x1000 + number, HERE.into(), there(number));
    found.and_then(|id| sad.find(id)).map(|sa| sa.params.spi)
}

fn there(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a01_0000 + number).into()
}

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const LOOKUPS: u32 = 20_000;
/// Prime, and far apart.
const STEP: u32 = 3_571;
