//! Certificates for tests: an authority, certificates that it signed, and some that must not be
//! trusted.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use tempfile::TempDir;

/// A folder of PEM files.
#[derive(Debug)]
pub struct Certs {
    dir: TempDir,
}

impl Certs {
    /// Creates `ca`, `server` (for localhost and 127.0.0.1), `client`, `expired` and `elsewhere`
    /// (for another name), all signed by `ca`; and `stranger`, another authority.
    pub fn new() -> Certs {
        let dir = tempfile::Builder::new().prefix("artel-certs-").tempdir().expect("a temp dir");
        let certs = Certs { dir };
        let ca = certs.authority("ca");
        let local = ["localhost", "127.0.0.1"].map(str::to_owned);
        for (name, names) in [("server", local.to_vec()), ("client", vec!["client".to_owned()])] {
            certs.leaf(name, names, &ca, None);
        }
        certs.leaf("elsewhere", vec!["redis.example".to_owned()], &ca, None);
        certs.leaf("expired", local.to_vec(), &ca, Some(2020));
        certs.authority("stranger");
        certs
    }

    /// The file of the certificate with this name.
    pub fn cert(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.pem"))
    }

    /// The file of its key.
    pub fn key(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.key"))
    }

    /// Options of a server that shows this certificate on a TLS port.
    pub fn server_options(&self, name: &str, port: u16, ask_clients: bool) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        vec![
            "--tls-port".to_owned(),
            port.to_string(),
            "--tls-cert-file".to_owned(),
            path(&self.cert(name)),
            "--tls-key-file".to_owned(),
            path(&self.key(name)),
            "--tls-ca-cert-file".to_owned(),
            path(&self.cert("ca")),
            "--tls-auth-clients".to_owned(),
            if ask_clients { "yes" } else { "no" }.to_owned(),
        ]
    }

    fn write(&self, name: &str, cert: &str, key: &KeyPair) {
        std::fs::write(self.cert(name), cert).expect("writes");
        std::fs::write(self.key(name), key.serialize_pem()).expect("writes");
    }

    fn authority(&self, name: &str) -> Issuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).expect("good names");
        params.distinguished_name.push(DnType::CommonName, format!("artel test {name}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let cert = params.self_signed(&key).expect("signs");
        self.write(name, &cert.pem(), &key);
        Issuer::new(params, key)
    }

    fn leaf(
        &self,
        name: &str,
        names: Vec<String>,
        ca: &Issuer<'static, KeyPair>,
        until: Option<i32>,
    ) {
        let mut params = CertificateParams::new(names).expect("good names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(year) = until {
            params.not_before = date_time_ymd(year - 1, 1, 1);
            params.not_after = date_time_ymd(year, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, ca).expect("signs");
        self.write(name, &cert.pem(), &key);
    }
}

impl Default for Certs {
    fn default() -> Certs {
        Certs::new()
    }
}
