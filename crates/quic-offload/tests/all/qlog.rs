//! Event logs of connections, as other programs read them.

use crate::rig::{QuicTestbed, nic};
use offload_wire::LinkConfig;
use quic_offload::Qlog;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

type QlogFiles = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

struct OneFile(String, QlogFiles);

impl Write for OneFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.lock().unwrap().entry(self.0.clone()).or_default().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn run() -> BTreeMap<String, Vec<u8>> {
    let mut world = QuicTestbed::new(21, [nic(), nic()], LinkConfig::default());
    let files = QlogFiles::default();
    let to = files.clone();
    let qlog = Qlog::new(move |of| Some(Box::new(OneFile(of.file_name(), to.clone()))));
    let config = |name| world.config(name).with(|c| c.qlog = Some(qlog.clone()));
    let configs = [config("near"), config("far")];
    let done = world.transfer(configs, false, 300_000, 1000);
    assert!(done.server.opened_by_device > 100);
    drop(world);
    core::mem::take(&mut *files.lock().unwrap())
}

/// Both ends log packets that a device sealed and opened, and equal runs write equal logs.
#[test]
fn events_of_both_ends_are_written() {
    let files = run();
    let [(client, of_client), (server, of_server)] = files.iter().collect::<Vec<_>>()[..] else { panic!("{files:?}") };
    assert_eq!(client.strip_prefix("client-"), server.strip_prefix("server-"));
    for events in [of_client, of_server] {
        let records: Vec<_> = events.split(|byte| *byte == 0x1e).filter(|record| !record.is_empty()).collect();
        let count = |name: &str| {
            let name = format!("\"quic:{name}\"");
            records.iter().filter(|record| String::from_utf8_lossy(record).contains(&name)).count()
        };
        let (sent, received) = (count("packet_sent"), count("packet_received"));
        assert!(sent.min(received) > 15 && sent.max(received) > 200, "{sent} sent, {received} received");
        assert!(records.iter().all(|record| record.starts_with(b"{") && record.ends_with(b"}\n")));
    }
    assert!(run() == files, "the same run tells the same");
}
