//! Arbitrary bytes from an agent to a mirror of filters, in pieces: the resulting rules are valid for a switch, and the
//! mirror's messages are valid.

use linux_mirror::tc::{FilterLine, FilterMirror, LineReader};
use nic_switch::{Switch, SwitchConfig, SwitchMode};
use offload_base::Instant;

/// Runs one input, which begins with the length of the pieces.
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
    // An agent without filters, after which all mirrored ones must be gone.
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
