//! Any bytes as what an agent says to a mirror of filters, in pieces: a switch can have the rules that come of it, and what the mirror says makes
//! sense.

use linux_mirror::tc::{FilterLine, FilterMirror, LineReader};
use nic_switch::{Switch, SwitchConfig, SwitchMode};
use offload_base::Instant;

/// Runs one input: it begins with how long the pieces are.
pub fn run(data: &[u8]) {
    let Some((piece, data)) = data.split_first() else { return };
    let mut switch = Switch::new(SwitchConfig { rules: 16, ..SwitchConfig::default() });
    switch.set_mode(SwitchMode::Switchdev);
    let mut mirror = FilterMirror::new().with_room_for(16);
    mirror.receive(b"tc-mirror 1\n");
    for piece in data.chunks(usize::from(*piece).max(1)) {
        mirror.receive(piece);
        if let Some(rules) = mirror.poll_rules() {
            switch.replace_rules(rules).expect("a switch can have them");
        }
        mirror.report(Instant::ZERO, &switch.rules().collect::<Vec<_>>());
    }
    // An agent that has nothing.
    mirror.receive(b"\ntc-mirror 1\nbegin\nend\n");
    if let Some(rules) = mirror.poll_rules() {
        assert!(rules.is_empty());
    }
    let counted = mirror.counters();
    assert!(counted.filters_added >= counted.filters_deleted);
    while let Some(bytes) = mirror.poll_transmit() {
        LineReader::new()
            .read(&bytes, |line| assert!(matches!(line, Ok(FilterLine::Ask(_) | FilterLine::Used(..))), "{line:?}"));
    }
    while let Some(refusal) = mirror.poll_refusal() {
        assert!(!refusal.to_string().chars().any(char::is_control), "{refusal}");
    }
}
