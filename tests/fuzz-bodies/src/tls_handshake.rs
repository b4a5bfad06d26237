//! Arbitrary bytes instead of a client's or a server's handshake: a typed error, never a panic.
use ktls_offload::api::TokioSegments;
use ktls_offload::{accept, connect};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Waker};

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((role, bytes)) = input.split_first() else { return };
    let stream = TokioSegments::new(tokio::io::join(bytes, tokio::io::sink()));
    let mut cx = Context::from_waker(Waker::noop());
    // The input ends, so neither handshake waits.
    if role & 1 == 0 {
        let accepted = pin!(accept(stream, CONFIGS.1.clone())).poll(&mut cx);
        assert!(accepted.map(|result| result.is_err()).is_ready());
    } else {
        let name = "localhost".try_into().expect("a name");
        let connected = pin!(connect(stream, CONFIGS.0.clone(), name)).poll(&mut cx);
        assert!(connected.map(|result| result.is_err()).is_ready());
    }
}

static CONFIGS: LazyLock<(Arc<ClientConfig>, Arc<ServerConfig>)> = LazyLock::new(|| {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("a certificate");
    let mut client = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    client.enable_secret_extraction = true;
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let mut server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.into()], key.into())
        .expect("its own key");
    server.enable_secret_extraction = true;
    (Arc::new(client), Arc::new(server))
});
