//! TLS 1.3 with AES-256-GCM over the kernel's TCP, by rustls.

use crate::pin::{Pin, trust};
use crate::remote::{Dial, Dialed, Wire};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// rustls' provider, with AES-256-GCM alone.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    let suites = vec![ring::cipher_suite::TLS13_AES_256_GCM_SHA384];
    Arc::new(rustls::crypto::CryptoProvider { cipher_suites: suites, ..ring::default_provider() })
}

/// A server with this certificate, the chain up to its authority, and its key.
///
/// # Errors
/// If they do not belong together.
pub fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// A client that trusts these authorities, and of what they signed only what `pin` names, if there is one.
///
/// ```
/// use offload_reservoir::tls::{Tls, client_config, server_config};
/// use std::sync::Arc;
///
/// let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
/// let certificate = signed.cert.der().clone();
/// let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
/// server_config(vec![certificate.clone()], key.into())?;
/// let _dials_servers_with_that = Tls::new(Arc::new(client_config(vec![certificate], None)?));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
///
/// # Errors
/// If one of the authorities is none.
pub fn client_config(
    authorities: Vec<CertificateDer<'static>>,
    pin: Option<Pin>,
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let mut config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    trust(&mut config, authorities, pin)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificates of a file in PEM.
///
/// # Errors
/// In words, if it cannot be read, or has none.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(format!("{}: has no certificate in PEM", path.display())),
        read => read.map_err(|error| format!("{}: {error}", path.display())),
    }
}

/// The key of a file in PEM.
///
/// # Errors
/// In words, if it cannot be read, or has none.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Connects by TLS over the kernel's TCP.
///
/// See [`client_config`] for an example.
pub struct Tls(TlsConnector);

impl Tls {
    /// With this configuration.
    pub fn new(config: Arc<ClientConfig>) -> Tls {
        Tls(config.into())
    }
}

impl Dial for Tls {
    fn dial<'a>(&'a self, host: &'a str, port: u16) -> Dialed<'a> {
        Box::pin(async move {
            let name = ServerName::try_from(host.to_owned());
            let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(self.0.connect(name, stream).await?) as Box<dyn Wire>)
        })
    }
}
