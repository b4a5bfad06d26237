//! ESP and the device.

use nic_sim::{NicConfig, nic};
use offload_api::{DropReason, EspAsk, Handle, NetDevice, NoRecords, Sent, TxAsk, TxPacket};
use offload_base::Instant;
use offload_base::counters::CounterSet;

#[test]
fn what_a_device_cannot_protect_does_not_leave() {
    let (_device, mut driver) = nic(NicConfig::default());
    let finish = EspAsk::Finish { sa: Handle { index: 0, generation: 0 }, at: 34, number: 1, next_header: 6 };
    for ask in [EspAsk::Protect, finish] {
        let header = [0u8; 70].into_iter().collect();
        let packet = TxPacket { header, ask: TxAsk { esp: Some(ask), ..TxAsk::default() }, ..TxPacket::default() };
        let sent = driver.transmit(Instant::ZERO, packet, &NoRecords);
        assert_eq!(sent, Sent::Dropped(DropReason::Unsupported));
    }
    let mut counters = CounterSet::default();
    driver.count(&mut counters);
    assert_eq!(counters.value("tx_drop_unsupported"), 2);
}
