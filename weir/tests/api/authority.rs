//! Certificates for tests of the API.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An authority, and the certificates that it has made.
pub struct Authority {
    certificate: rcgen::Certificate,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        Self { certificate, issuer: rcgen::Issuer::new(parameters, key) }
    }

    /// Writes a certificate and its key, and returns where they are.
    pub fn certify(&self, folder: &Path, file: &str, name: &str) -> (String, String) {
        self.certify_for(folder, file, name, Duration::from_secs(365 * 86_400))
    }

    /// The same, of one that ends so long from now.
    pub fn certify_for(
        &self,
        folder: &Path,
        file: &str,
        name: &str,
        holds: Duration,
    ) -> (String, String) {
        let mut parameters = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + now + holds;
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let path = |ending: &str| folder.join(format!("{file}.{ending}")).display().to_string();
        fs::write(path("pem"), certificate.pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
        (path("pem"), path("key"))
    }

    pub fn write(&self, folder: &Path, file: &str) -> String {
        let path = folder.join(file);
        fs::write(&path, self.certificate.pem()).unwrap();
        path.display().to_string()
    }
}
