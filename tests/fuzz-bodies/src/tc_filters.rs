//! Arbitrary bytes as netlink datagrams of a kernel: parsed rules are valid for a switch, and agent and mirror exchange
//! them without loss.

use linux_mirror::tc::{FilterChange, FilterLine, FilterWatcher, LineReader};

/// Runs one input: datagrams, each after its length in two bytes.
pub fn run(mut data: &[u8]) {
    let mut watcher = FilterWatcher::new();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let (datagram, after) = rest.split_at(rest.len().min(u16::from_le_bytes(*length).into()));
        data = after;
        // Requests have sequence numbers counted from one, which an input can guess, so that answers are accepted.
        while watcher.poll_request().is_some() {}
        let mut changes = Vec::new();
        if watcher.handle_datagram(datagram, |change| changes.push(change)).is_err() {
            return;
        }
        changes.into_iter().for_each(said_and_heard);
    }
}

fn said_and_heard(change: FilterChange) {
    let said = match change {
        FilterChange::There(rule, why) => {
            assert_eq!(rule.check(), Ok(()), "{why:?}");
            FilterLine::There(rule)
        }
        FilterChange::Gone(selection) => FilterLine::Gone(selection),
        _ => return,
    };
    let mut heard = Vec::new();
    LineReader::new().read(format!("{said}\n").as_bytes(), |line| heard.push(line));
    let shown: Vec<_> = heard.iter().map(|line| line.as_ref().map(ToString::to_string)).collect();
    assert_eq!(shown, [Ok(said.to_string())]);
}
