//! Packets, acknowledgments and runs per message of 64 KiB, by number of connections. The counts come from virtual
//! time, so they are equal on every machine. The bench `tcp` measures the CPU cost.

#[path = "../../benches/tcp/ours.rs"]
mod ours;

use core::fmt::Write;
use nic_sim::NicConfig;
use ours::StackPair;

/// Returns runs, packets sent and packets received per hundred messages, of the sender and of the receiver.
fn counts_per_message(connections: usize, config: &NicConfig) -> [[u64; 3]; 2] {
    let mut ours = StackPair::new(connections, config);
    ours.messages(ours::WARM_EACH * connections as u64 + 500);
    let before = ours.done();
    ours.messages(MESSAGES);
    let after = ours.done();
    [0, 1].map(|side| [0, 1, 2].map(|what| (after[side][what] - before[side][what]) * 100 / MESSAGES))
}

/// Returns the table for NICs with `config`; and for each number of connections the packets sent, acknowledgments
/// received and packets received.
fn count(config: &NicConfig) -> (String, Vec<(u64, u64, u64)>) {
    let mut table = String::from(
        "of each 100 messages      sender                      receiver\n\
         connections      turns  packets     acks      turns  packets     acks\n",
    );
    let mut all = Vec::new();
    for connections in [1, 10, 100, 1000] {
        let [[turns, packets, acks], [turns_there, acks_there, packets_there]] =
            counts_per_message(connections, config);
        let _ = writeln!(
            table,
            "{connections:11} {turns:10} {packets:8} {acks:8} {turns_there:10} {packets_there:8} {acks_there:8}"
        );
        all.push((packets, acks, packets_there));
    }
    (table, all)
}

#[test]
fn message_cost_hardly_depends_on_connections() {
    let (table, all) = count(&NicConfig::default());
    insta::assert_snapshot!("what_a_message_takes", table);
    // With one connection, the end of a message shares a packet with the start of the next, and two messages share an
    // acknowledgment. More connections need at most one more packet of each kind.
    let [(packets, acks, packets_there), .., most] = all[..] else { panic!("four numbers of connections") };
    assert!(most.0 <= packets + 100 && most.1 <= acks + 100 && most.2 <= packets_there + 100, "{most:?}");
}

/// With one connection, several messages share a packet. With many, a message is one packet, hardly ever split, and
/// needs one acknowledgment.
#[test]
fn large_nic_message_is_one_packet_and_one_ack() {
    let (table, all) = count(&ours::large_nic());
    insta::assert_snapshot!("what_a_message_takes_with_larger_nics", table);
    let [.., (packets, acks, packets_there)] = all[..] else { panic!("four numbers of connections") };
    assert!(packets <= 102 && acks <= 115 && packets_there <= 115, "{packets} {acks} {packets_there}");
}

const MESSAGES: u64 = 1000;
