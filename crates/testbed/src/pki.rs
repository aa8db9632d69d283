//! Certificates of one control plane: a separate authority, and a kubeconfig for any user that a test needs.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// The authority, as files in the control plane's folder, so that another process can go on using it.
pub(crate) struct Authority {
    dir: PathBuf,
}

impl Authority {
    /// Makes an authority that is good for client certificates only.
    pub(crate) fn create_for_clients(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let authority = Self { dir: dir.to_owned() };
        let key = KeyPair::generate()?;
        fs::write(authority.path("ca.crt"), authority_params().self_signed(&key)?.pem())?;
        fs::write(authority.path("ca.key"), key.serialize_pem())?;
        Ok(authority)
    }

    /// Makes the authority, the API server's certificate for its `addresses`, and the key that signs service account
    /// tokens.
    pub(crate) fn create(dir: &Path, addresses: &[Ipv4Addr]) -> Result<Self> {
        let authority = Self::create_for_clients(dir)?;

        let key = KeyPair::generate()?;
        fs::write(authority.path("service-account.key"), key.serialize_pem())?;
        fs::write(authority.path("service-account.pub"), key.public_key_pem())?;

        let (certificate, key) = authority.issue(&server_params(addresses)?)?;
        fs::write(authority.path("apiserver.crt"), certificate)?;
        fs::write(authority.path("apiserver.key"), key)?;
        Ok(authority)
    }

    /// The authority that is already in `dir`.
    pub(crate) fn open(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// A kubeconfig with a client certificate: `user` is its CN, `groups` its Os.
    pub(crate) fn kubeconfig(&self, server: &str, user: &str, groups: &[&str]) -> Result<String> {
        let (certificate, key) = self.issue(&client_params(user, groups)?)?;
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
            "clusters": [{"name": "testbed", "cluster": {
                "server": server,
                "certificate-authority-data": base64(fs::read(self.path("ca.crt"))?),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": base64(certificate.into_bytes()),
                "client-key-data": base64(key.into_bytes()),
            }}],
        });
        Ok(serde_saphyr::to_string(&config)?)
    }

    /// Writes a client certificate and its key, and returns their paths: `user` is its CN, `groups` its Os.
    pub(crate) fn client_pair(&self, user: &str, groups: &[&str]) -> Result<(PathBuf, PathBuf)> {
        let (certificate, key) = self.issue(&client_params(user, groups)?)?;
        let paths = (self.path(&format!("{user}.crt")), self.path(&format!("{user}.key")));
        fs::write(&paths.0, certificate)?;
        fs::write(&paths.1, key)?;
        Ok(paths)
    }

    fn issue(&self, params: &CertificateParams) -> Result<(String, String)> {
        let authority_key = fs::read_to_string(self.path("ca.key"))
            .with_context(|| format!("cannot read the authority's key in {}", self.dir.display()))?;
        let issuer = Issuer::new(authority_params(), KeyPair::from_pem(&authority_key)?);
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name("runway-testbed");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn server_params(addresses: &[Ipv4Addr]) -> Result<CertificateParams> {
    let names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let mut params = CertificateParams::new(names.map(str::to_owned))?;
    let addresses = addresses.iter().map(|address| SanType::IpAddress(IpAddr::V4(*address)));
    params.subject_alt_names.extend(addresses);
    params.distinguished_name = name("kube-apiserver");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

fn client_params(user: &str, groups: &[&str]) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = name(user);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    // rcgen holds one value per attribute type; the same attribute under its number makes room for a second.
    let slots = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    if groups.len() > slots.len() {
        bail!(
            "{user} has {} groups and a test certificate holds two: drop some, or use a ServiceAccount",
            groups.len()
        );
    }
    for (slot, group) in slots.into_iter().zip(groups) {
        params.distinguished_name.push(slot, *group);
    }
    Ok(params)
}

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// Base64 by way of the type that Kubernetes itself uses for bytes in JSON.
fn base64(bytes: Vec<u8>) -> serde_json::Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes)).unwrap_or_default()
}
