//! Trace events of the crate `tracing`.

use crate::rig::{QuicTestbed, connect, nic};
use core::time::Duration;
use nic_sim::{NicConfig, QuicEngineConfig};
use offload_api::EventLog;
use offload_wire::LinkConfig;

#[test]
fn connection_events_are_traced() {
    let ((), lines) = EventLog::collect(|| {
        // The client's device has one context, so one direction is refused.
        let mut world = QuicTestbed::new(
            7,
            [NicConfig { engines: QuicEngineConfig { contexts: 1 }.into(), ..nic() }, nic()],
            LinkConfig::default(),
        );
        let config = |name| world.config(name).with(|c| c.paths = 2);
        let (client, _driver) = world.client(config("near"));
        let (server, _server_driver) = world.server(config("far"));
        let (tls, to, six) = (world.client_tls(), world.to(false), world.to(true));
        let (from, near, far) = (world.near.ipv6_address(), world.near.clone(), world.far.clone());
        let serving = world.far.spawn("server", async move { server.accept().await.unwrap().closed().await });
        world.bed.run(async move {
            let connection = connect(&client, &tls, to).await.unwrap();
            let path = connection.open_path(six, Some(from.into())).await.unwrap();
            near.runtime().sleep(Duration::from_secs(1)).await;
            connection.close_path(path).unwrap();
            far.reset_device();
            near.runtime().sleep(Duration::from_secs(1)).await;
            connection.close(7, "done");
            serving.await
        });
    });
    let expected: [(bool, &[&str]); 10] = [
        (true, &["connection opened"]),
        (false, &["connection opened"]),
        (true, &["path opened", "path=1"]),
        (true, &["path abandoned", "path=1"]),
        (true, &["offload installed", "direction=Transmit"]),
        (true, &["offload refused", "direction=Receive"]),
        (false, &["offload lost"]),
        (true, &["keys updated", "generation=1"]),
        (true, &["connection closed", "why=this end closed the connection"]),
        (false, &["connection closed", "why=the peer closed the connection with code 7"]),
    ];
    for (is_client, parts) in expected {
        let side = format!("is_client={is_client} ");
        let is_found = |line: &String| line.contains(&side) && parts.iter().all(|part| line.contains(part));
        assert!(lines.iter().any(is_found), "no {parts:?} with {side}in:\n{}", lines.join("\n"));
    }
}
