//! Any bytes as datagrams of a kernel's netlink: the rules that are read of them are ones that a switch can have, and agent and mirror say
//! them to each other without loss.

use linux_mirror::tc::{FilterChange, FilterLine, FilterWatcher, LineReader};

/// Runs one input: datagrams, each behind its length in two bytes.
pub fn run(mut data: &[u8]) {
    let mut watcher = FilterWatcher::new();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let (datagram, after) = rest.split_at(rest.len().min(u16::from_le_bytes(*length).into()));
        data = after;
        // What is asked for has a sequence number that an input can guess: they count from one.
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
