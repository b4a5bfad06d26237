//! Arbitrary bytes as netlink datagrams of a kernel: agent and mirror exchange the parsed changes without loss.

use linux_mirror::sa::{FrameDecoder, Message, SaChange, SaWatcher, encode};

/// Runs one input: datagrams, each after its length in two bytes.
pub fn run(mut data: &[u8]) {
    let mut watcher = SaWatcher::new();
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let (datagram, after) = rest.split_at(rest.len().min(u16::from_le_bytes(*length).into()));
        data = after;
        // Requests have sequence numbers counted from one, which an input can guess, so that answers are accepted.
        while watcher.poll_request().is_some() {}
        let mut changes = Vec::new();
        if watcher.handle_datagram(NOW, datagram, |change| changes.push(change)).is_err() {
            return;
        }
        changes.into_iter().for_each(said_and_heard);
    }
}

fn said_and_heard(change: SaChange) {
    let said = Message::Change(change);
    let mut heard = Vec::new();
    FrameDecoder::new().decode(&encode(&said), |message| heard.push(message.expect("it was said")));
    let [heard] = &heard[..] else { panic!("{said:?} is heard as {heard:?}") };
    assert_eq!(format!("{said:?}"), format!("{heard:?}"));
    if let (Message::Change(SaChange::Sa(said)), Message::Change(SaChange::Sa(heard))) = (&said, heard) {
        assert!(said.params.key.is_same_as(&heard.params.key));
    }
}

const NOW: u64 = 1_800_000_000;
