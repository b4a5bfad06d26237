//! Tables of many SAs and policies, and lookups in them: for a bench and for a profiler.

use core::net::{IpAddr, Ipv4Addr};
use ipsec::{Sad, Spd};
use offload_api::ipsec::Packet;
use offload_api::{Action, Direction, EspKey, EspSuite, Policy, Prefix, SaParams, Selector, Template};
use offload_base::Instant;

/// The databases of a host with an SA in each direction, and a transmit policy, for each of many peers.
///
/// ```
/// use offload_bench::sa_tables::SaTables;
///
/// let tables = SaTables::for_peers(100);
/// assert_eq!(tables.to_send_by(7), Some(0x1007));
/// assert_eq!(tables.received_by(7), Some(0x1007));
/// assert_eq!(tables.received_by(100), None);
/// ```
#[derive(Debug, Default)]
pub struct SaTables {
    sad: Sad,
    spd: Spd,
}

impl SaTables {
    /// Creates the databases for `sas` peers, up to 65,536.
    ///
    /// # Panics With more peers, because their addresses would collide with this host's.
    pub fn for_peers(sas: u32) -> SaTables {
        assert!(sas <= 1 << 16, "peers have 16 bits of address");
        let SaTables { mut sad, mut spd } = SaTables::default();
        for number in 0..sas {
            // The keys of both directions differ, as they must for AES-GCM.
            for direction in [Direction::Transmit, Direction::Receive] {
                let key = EspKey::new(EspSuite::Aes128Gcm, &[7 + direction as u8; 20]);
                let key = key.expect("as long as its suite wants");
                sad.add(Instant::ZERO, sa(direction, number, key)).expect("they are different");
            }
            let selector = Selector { destination: Some(Prefix::host(peer(number))), ..Selector::ANY };
            let action = Action::Protect(Template::transport(0));
            spd.add(Policy { direction: Direction::Transmit, selector, priority: 0, action }).expect("so are these");
        }
        SaTables { sad, spd }
    }

    /// Looks up the policy of a packet to peer `number`, and returns the SPI of the required SA.
    #[inline(never)]
    pub fn to_send_by(&self, number: u32) -> Option<u32> {
        let (source, destination) = (HERE.into(), peer(number));
        let packet = Packet { source, destination, protocol: 17, ports: Some((5000, 9)) };
        let Some(Action::Protect(template)) = self.spd.action(&packet) else { return None };
        self.sad.find_wanted(&template, &packet).and_then(|id| self.sad.find(id)).map(|sa| sa.params.spi)
    }

    /// Returns the SPI of the SA of a packet received with the SPI of peer `number`.
    #[inline(never)]
    pub fn received_by(&self, number: u32) -> Option<u32> {
        let found = self.sad.find_received(FIRST_SPI + number, HERE.into(), peer(number));
        found.and_then(|id| self.sad.find(id)).map(|sa| sa.params.spi)
    }
}

/// Returns the parameters of an SA with peer `number`.
pub fn sa(direction: Direction, number: u32, key: EspKey) -> SaParams {
    SaParams::new(direction, FIRST_SPI + number, HERE.into(), peer(number), key)
}

fn peer(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a01_0000 + number).into()
}

/// Distance between successive peers, so that no neighbouring entry is in the cache already. A prime number, and
/// coprime to any round number of SAs.
pub const STEP: u32 = 3_571;
/// The SPI of peer 0.
pub const FIRST_SPI: u32 = 0x1000;
const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
