//! Results of handshakes: server name, application protocol, certificates, exported keys; and decisions of the
//! application about clients.

use crate::rig::{self, QuicTestbed, connect, nic};
use bytes::Bytes;
use core::time::Duration;
use offload_testbed::identity::{self, Randomness};
use offload_wire::LinkConfig;
use quic_offload::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quic_offload::rustls::server::WebPkiClientVerifier;
use quic_offload::rustls::{self, RootCertStore};
use quic_offload::{ClientTls, Closed, Config, Offload, ServerTls};
use std::sync::Arc;

/// Creates a client's certificate and key.
fn client_identity() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let signed = rcgen::generate_simple_self_signed(["client.test".into()]).unwrap();
    (signed.cert.der().clone(), PrivateKeyDer::Pkcs8(signed.signing_key.serialize_der().into()))
}

/// Returns configurations of a server that requires a certificate signed by `trusted`, and of a client that presents
/// `shown`.
fn tls(
    trusted: &CertificateDer<'static>,
    shown: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
) -> (ServerTls, ClientTls) {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
    let mut server = identity::server_config(Randomness::System, None);
    let resolver = server.cert_resolver.clone();
    server = rustls::ServerConfig::builder_with_provider(server.crypto_provider().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(resolver);
    server.alpn_protocols = vec![b"other".to_vec(), b"test/1".to_vec()];
    let mut client = identity::client_config(Randomness::System, None);
    client.alpn_protocols = vec![b"test/1".to_vec()];
    if let Some((certificate, key)) = shown {
        let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
        let certified = Arc::new(rustls::sign::CertifiedKey::new(vec![certificate], key));
        client.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    }
    (ServerTls::new(server).unwrap(), ClientTls::new(client).unwrap())
}

#[test]
fn both_ends_see_the_results_of_the_handshake() {
    for offload in [Offload::Both, Offload::None] {
        let (certificate, key) = client_identity();
        // The client presents a certificate that the server trusts.
        let (server_tls, client_tls) = tls(&certificate, Some((certificate.clone(), key)));
        let mut world = QuicTestbed::new(3, [nic(), nic()], LinkConfig::default());
        let config = |name| world.config(name).with(|c| c.offload = offload);
        let (client, _driver) = world.client(config("near"));
        let (server, _server_driver) = rig::start(&world.far, rig::PORT, config("far"), Some(server_tls));
        let to = world.to(false);
        let far = world.far.spawn("server", async move {
            let connection = server.accept().await.unwrap();
            let data = connection.handshake_data();
            let key: [u8; 48] = connection.export_keying_material(b"label", b"context").unwrap();
            connection.close(0, "");
            server.drained().await;
            (data.clone(), key, connection.handshake_data() == data, connection.statistics())
        });
        let near = world.near.spawn("client", async move {
            let connection = connect(&client, &client_tls, to).await.unwrap();
            let data = connection.handshake_data();
            let key: [u8; 48] = connection.export_keying_material(b"label", b"context").unwrap();
            assert_ne!(connection.export_keying_material(b"label", b"other"), Ok(key));
            assert!(connection.statistics().window > 0);
            let closed = connection.closed().await;
            assert_eq!(connection.export_keying_material::<1>(b"label", b""), Err(closed));
            (data, key)
        });
        let ((near, near_key), (far, far_key, stays, last)) = world.bed.run(async move { (near.await, far.await) });
        assert_eq!((near.alpn.as_deref(), near.server_name), (Some(&b"test/1"[..]), None));
        assert_eq!((far.alpn, far.server_name.as_deref()), (near.alpn, Some("server.nic-offload.test")));
        assert_eq!(far.certificates, [certificate]);
        assert!(!near.certificates.is_empty() && near.certificates != far.certificates);
        assert_eq!(near_key, far_key);
        assert!(stays && last.sent > 0, "the data outlive the connection: {last:?}");
    }
}

#[test]
fn client_without_a_trusted_certificate_is_refused() {
    for offload in [Offload::Both, Offload::None] {
        for shows_another in [true, false] {
            let (server_tls, client_tls) = tls(&client_identity().0, shows_another.then(client_identity));
            let mut world = QuicTestbed::new(4, [nic(), nic()], LinkConfig::default());
            let config = |name| world.config(name).with(|c| c.offload = offload);
            let (client, _driver) = world.client(config("near"));
            let (server, _server_driver) = rig::start(&world.far, rig::PORT, config("far"), Some(server_tls));
            let to = world.to(false);
            // In TLS 1.3 the client's handshake ends before the server has checked the certificate.
            let near = world.near.spawn("client", async move {
                match connect(&client, &client_tls, to).await {
                    Ok(connection) => connection.closed().await,
                    Err(closed) => closed,
                }
            });
            let closed = world.bed.run(near);
            assert!(matches!(closed, Closed::PeerFound(_)), "{closed:?}");
            assert_eq!(server.counters().connections, 0);
        }
    }
}

/// Returns a server's configuration that leaves decisions to the application.
fn deciding(world: &QuicTestbed) -> Config {
    world.config("far").with(|c| c.decides = true)
}

#[test]
fn application_decides_about_clients() {
    let mut world = QuicTestbed::new(5, [nic(), nic()], LinkConfig::default());
    let (client, _driver) = world.client(world.config("near"));
    let (server, _server_driver) = world.server(deciding(&world));
    let (tls, to, from) = (world.client_tls(), world.to(false), world.near.address());
    let counted = server.clone();
    let far = world.far.spawn("server", async move {
        server.incoming().await.unwrap().refuse();
        drop(server.incoming().await.unwrap());
        for validated in [false, true] {
            let incoming = server.incoming().await.unwrap();
            assert_eq!((incoming.is_validated(), incoming.remote_addr().ip()), (validated, from.into()));
            incoming.retry();
        }
        let third = server.accept().await.unwrap();
        server.incoming().await.unwrap().accept();
        let fourth = server.accept().await.unwrap();
        (third.closed().await, fourth.closed().await)
    });
    let near = world.near.spawn("client", async move {
        let mut ends = Vec::new();
        for code in 0..4 {
            ends.push(connect(&client, &tls, to).await.map(|connection| connection.close(code, "")).is_ok());
        }
        ends
    });
    let (ends, (third, fourth)) = world.bed.run(async move { (near.await, far.await) });
    assert_eq!(ends, [false, false, true, true]);
    let by = |code| Closed::ByPeer { code, reason: Bytes::new() };
    assert_eq!((third, fourth), (by(2), by(3)));
    let counters = counted.counters();
    assert_eq!((counters.refused, counters.retries, counters.connections), (2, 1, 2));
}

#[test]
fn undecided_clients_are_refused_when_the_endpoint_closes() {
    let mut world = QuicTestbed::new(6, [nic(), nic()], LinkConfig::default());
    let (client, _driver) = world.client(world.config("near"));
    let (server, server_driver) = world.server(deciding(&world));
    let (tls, to, host) = (world.client_tls(), world.to(false), world.far.clone());
    let far = world.far.spawn("server", async move {
        host.runtime().sleep(Duration::from_millis(1)).await;
        drop(server);
        server_driver.await.unwrap();
    });
    let near = world.near.spawn("client", async move { connect(&client, &tls, to).await.map(|_| ()) });
    let closed = world.bed.run(async move {
        far.await;
        near.await
    });
    assert!(matches!(closed, Err(Closed::PeerFound(_))), "{closed:?}");
}
