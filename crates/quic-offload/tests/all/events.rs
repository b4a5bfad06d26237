//! Events of `tracing`.

use crate::rig::{World, connect, nic};
use core::fmt::{Debug, Write};
use core::time::Duration;
use nic_sim::{NicConfig, QuicEngineConfig};
use offload_wire::LinkConfig;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Collects the events of this workspace's QUIC, a line each, and the fields of their spans.
#[derive(Clone, Default)]
struct Collector {
    lines: Arc<Mutex<Vec<String>>>,
    spans: Arc<Mutex<Vec<String>>>,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("quic_offload")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(String::new());
        span.record(&mut line);
        let mut spans = self.spans.lock().unwrap();
        spans.push(line.0);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let parent =
            event.parent().map_or(String::new(), |id| self.spans.lock().unwrap()[id.into_u64() as usize - 1].clone());
        let mut line = Line(parent);
        event.record(&mut line);
        self.lines.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn life_of_a_connection_is_traced() {
    let events = Collector::default();
    let lines = tracing::subscriber::with_default(events.clone(), || {
        // One context is too few for the client: one of its directions is refused.
        let mut world = World::new(
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
        events.lines.lock().unwrap().join("\n")
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
        let is_found = |line: &str| line.contains(&side) && parts.iter().all(|part| line.contains(part));
        assert!(lines.lines().any(is_found), "no {parts:?} with {side}in:\n{lines}");
    }
}
