//! The certificate of the listener.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use crate::traffic::TlsFigures;

/// The settings of TLS, for [`crate::serve`].
#[derive(Debug)]
pub struct TlsSettings {
    pub(crate) config: Arc<ServerConfig>,
    /// The handshakes, and the end of the certificate.
    pub figures: Arc<TlsFigures>,
}

/// Returns the end of the certificate of `chain` that ends first, in seconds since the Unix epoch.
/// `None`: none of them can be parsed.
#[must_use]
pub fn chain_expiry_s(chain: &[CertificateDer<'_>]) -> Option<u64> {
    let expiry = |certificate: &CertificateDer<'_>| {
        let parsed = Certificate::from_der(certificate).ok()?;
        let end = parsed.tbs_certificate().validity().not_after;
        // 0 means an unknown end.
        Some(end.to_unix_duration().as_secs().max(1))
    };
    chain.iter().filter_map(expiry).min()
}

/// The reason why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is no PEM file.
    #[error("{}: {source}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The defect.
        source: pem::Error,
    },
    /// The certificate and the key do not fit.
    #[error("{}: {source}", path.display())]
    Certificate {
        /// The file of the certificate.
        path: PathBuf,
        /// The defect.
        source: rustls::Error,
    },
}

/// Reads a certificate with its chain, and its private key, both PEM.
///
/// # Errors
///
/// A file cannot be read, or the two do not fit.
pub fn tls_settings(certificates: &Path, key: &Path) -> Result<TlsSettings, TlsError> {
    let pem_error = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Pem { path, source }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect)
        .map_err(pem_error(certificates))?;
    let figures = Arc::<TlsFigures>::default();
    figures.set_expiry(chain_expiry_s(&chain));
    let private = PrivateKeyDer::from_pem_file(key).map_err(pem_error(key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut settings = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|source| TlsError::Certificate { path: certificates.to_owned(), source })?;
    settings.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsSettings { config: Arc::new(settings), figures })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate that ends when this year begins.
    fn ending(year: i32) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["node".to_owned()]).expect("a name");
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().clone()
    }

    #[test]
    fn chain_ends_with_its_first_certificate_that_ends() {
        // X.509 writes years up to 2049 with two digits, later ones with four.
        let (early, late) = (ending(2041), ending(4096));
        assert_eq!(chain_expiry_s(&[late.clone(), early.clone()]), Some(2_240_611_200));
        assert_eq!(chain_expiry_s(std::slice::from_ref(&late)), Some(67_090_118_400));
        assert_eq!(chain_expiry_s(&[ending(1970)]), Some(1));
        let broken = CertificateDer::from(early[..early.len() - 1].to_vec());
        assert_eq!(chain_expiry_s(&[broken.clone(), late]), Some(67_090_118_400));
        assert_eq!(chain_expiry_s(&[broken]), None);
        assert_eq!(chain_expiry_s(&[]), None);
    }
}
