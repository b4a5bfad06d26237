//! Several paths of one connection (draft-ietf-quic-multipath-21).

use crate::rig::{self, World, nic};
use offload_wire::LinkConfig;
use quic_offload::{Config, PathError};

#[test]
fn a_peer_without_multipath_says_so() {
    let mut world = World::new(9, [nic(), nic()], LinkConfig::default());
    let (client, _driver) = world.client(Config { paths: 3, ..world.config("near") });
    let (server, _server_driver) = world.server(world.config("far"));
    let (tls, to) = (world.client_tls(), world.to(false));
    let near = world.near.spawn("client", async move {
        let connection = rig::connect(&client, &tls, to).await.unwrap();
        connection.open_path(to, None).await
    });
    let opened = world.bed.run(near);
    assert!(matches!(opened, Err(PathError::Refused(_))), "{opened:?}");
    drop(server);
}
