//! Log events of a host and a target report connections and offloads, and contain no data.

use crate::bed::{Layers, NvmeNetwork, blocks};
use core::time::Duration;
use nvme_tcp::host::Offload;
use nvme_tcp::target::TransportConfig;
use offload_api::EventLog;

#[test]
fn log_events_report_connections_and_offloads() {
    let ((), lines) = EventLog::collect(|| {
        let mut bed = NvmeNetwork::new(7, TransportConfig::default(), Layers::TlsNic, 0.0);
        let mut config = bed.host_config();
        (config.data_digest, config.offload) = (true, Offload::PlaceAndCheck);
        let host = bed.connect(config);
        let (runtime, cutter) = (bed.runtime(), bed.cutter([20]));
        bed.run(async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            disk.write(0, [blocks(1)]).await.unwrap();
            cutter.await;
            // The host needs time to notice the cut and to connect again.
            runtime.sleep(Duration::from_millis(10)).await;
            assert_eq!(disk.read(0, disk.buffer(1)).await.unwrap().to_vec(), blocks(1));
            assert_eq!(host.stats().connects, 2);
        });
    });
    let told = [
        "handshake done",
        "transmit direction offloaded",
        "receive direction offloaded",
        "NVMe/TCP context installed",
        "stream accepted",
        "connected",
        "queue lost",
        "reconnect after a pause",
    ];
    for event in told {
        assert!(lines.iter().any(|line| line.contains(event)), "{event:?} is missing: {lines:#?}");
    }
    let installed =
        |span: &str| lines.iter().any(|line| line.contains("NVMe/TCP context installed") && line.contains(span));
    assert!(installed("queue=1 ") && installed("connection="), "contexts without their span: {lines:#?}");
    assert!(lines.iter().all(|line| line.len() < 300), "an event contains data: {lines:#?}");
}
