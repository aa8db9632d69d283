//! The transports of an installation, from `ASYA_TRANSPORT_CONFIG`: JSON, or the path of a file with JSON.
//! Unknown fields are rejected, so that a misspelt setting is not ignored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use amq_protocol::uri::{AMQPAuthority, AMQPScheme, AMQPUri, AMQPUserInfo};
use serde::Deserialize;

/// Configured transports by name. Can be empty; then the condition of each actor reports it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transports {
    transports: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default = "yes")]
    enabled: bool,
    /// Namespaces whose actors can use it. Defaults to all.
    namespaces: Option<Vec<String>>,
    #[serde(default)]
    config: serde_json::Value,
    /// Set by [`Transports::parse`].
    #[serde(skip)]
    parsed: Option<Transport>,
}

/// Valid transport.
#[derive(Clone, Debug, PartialEq)]
pub enum Transport {
    /// RabbitMQ broker.
    RabbitMq(RabbitMq),
    /// Amazon SQS, or a server with the same protocol.
    Sqs(Sqs),
}

/// RabbitMQ broker.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RabbitMq {
    /// Host name.
    pub host: String,
    /// AMQP port. Defaults to 5672, with TLS to 5671.
    port: Option<u16>,
    /// User name. Defaults to guest.
    #[serde(default = "guest")]
    pub username: String,
    /// Secret with the password. It must exist in each namespace with actors, and be mounted into the operator.
    pub password_secret_ref: Option<SecretKey>,
    /// Virtual host. Defaults to /.
    #[serde(default = "slash")]
    pub vhost: String,
    /// Topic exchange. Defaults to asya.
    #[serde(default = "asya")]
    pub exchange: String,
    /// Port of the management API, from which KEDA reads the number of messages including unacknowledged ones. Defaults to 15672,
    /// with TLS to 15671. Set 0 if the management API is disabled; KEDA then counts only waiting messages.
    management_port: Option<u16>,
    /// TLS of the connections of the operator, the sidecars and KEDA. Plain by default.
    pub tls: Option<Tls>,
    /// A user of its own for each namespace with actors. By default all actors sign in as `username`, which is that of the operator and
    /// of asya-gateway in any case.
    pub tenants: Option<Tenants>,
    /// Type of the queues that the operator creates. Defaults to quorum. A classic queue does not count deliveries.
    #[serde(default)]
    pub queue_type: QueueType,
    /// Settings of the queues.
    #[serde(default)]
    pub queues: Queues,
}

impl RabbitMq {
    /// AMQP port.
    pub fn port(&self) -> u16 {
        let default = if self.tls.is_some() { 5671 } else { 5672 };
        self.port.unwrap_or(default)
    }

    /// Port of the management API; `None` if it is disabled.
    pub fn management_port(&self) -> Option<u16> {
        let default = if self.tls.is_some() { 15671 } else { 15672 };
        Some(self.management_port.unwrap_or(default)).filter(|port| *port != 0)
    }

    /// Password of the user, from the folder with mounted Secrets.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub fn password(&self, secrets: &Path) -> Result<String, NoSecret> {
        match &self.password_secret_ref {
            None => Ok("guest".to_owned()),
            Some(key) => key.read(secrets),
        }
    }

    /// File with the password of the user, if a Secret has it.
    pub fn password_file(&self, secrets: &Path) -> Option<PathBuf> {
        self.password_secret_ref.as_ref().map(|key| key.path(secrets))
    }

    /// File with the certificates of the authority, if the connections use TLS.
    pub fn authority_file(&self, secrets: &Path) -> Option<PathBuf> {
        self.tls.as_ref().map(|tls| tls.authority().path(secrets))
    }

    /// Certificates of the authority in PEM format, if the connections use TLS.
    ///
    /// # Errors
    /// If their file cannot be read.
    pub fn authority(&self, secrets: &Path) -> Result<Option<String>, NoSecret> {
        self.tls.as_ref().map(|tls| tls.authority().read(secrets)).transpose()
    }

    /// Address of the broker, with user and password.
    ///
    /// # Errors
    /// If the file with the password cannot be read.
    pub fn uri(&self, secrets: &Path) -> Result<AMQPUri, NoSecret> {
        Ok(AMQPUri {
            scheme: if self.tls.is_some() {
                AMQPScheme::AMQPS
            } else {
                AMQPScheme::AMQP
            },
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: self.username.clone(),
                    password: self.password(secrets)?,
                },
                host: self.host.clone(),
                port: self.port(),
            },
            vhost: self.vhost.clone(),
            ..AMQPUri::default()
        })
    }
}

/// Users of namespaces, which the operator creates through the management API. Their passwords are in no namespace but their own: they
/// are derived from a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tenants {
    /// User of the broker with the tag `administrator`. Only the operator uses it, for the users and their permissions.
    pub username: String,
    /// Secret with its password, mounted into the operator.
    pub password_secret_ref: SecretKey,
    /// Secret with the key, at least 32 random characters, mounted into the operator. A new key changes all passwords.
    pub key_secret_ref: SecretKey,
    /// Prefix of the names of users; the rest is the namespace. Defaults to `asya_`.
    #[serde(default = "tenant")]
    pub user_prefix: String,
}

/// Certificate authority of a broker: exactly one of its fields. It must exist in each namespace with actors, and be mounted into
/// the operator beside the passwords.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Tls {
    /// Key of a Secret with certificates in PEM format.
    CaSecretRef(SecretKey),
    /// Key of a ConfigMap with certificates in PEM format.
    CaConfigMapRef(SecretKey),
}

impl Tls {
    /// The key, in whichever object.
    pub fn authority(&self) -> &SecretKey {
        match self {
            Self::CaSecretRef(key) | Self::CaConfigMapRef(key) => key,
        }
    }
}

/// Type of a queue of RabbitMQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueType {
    /// Replicated; counts the deliveries of each message.
    #[default]
    Quorum,
    /// On one node.
    Classic,
}

impl QueueType {
    /// Value of `x-queue-type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// Amazon SQS.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sqs {
    /// AWS region.
    pub region: String,
    /// IAM role of the pods, on EKS.
    pub actor_role_arn: Option<String>,
    /// AWS account, for queue URLs. Required unless `endpoint` is set.
    pub account_id: Option<String>,
    /// URL of another server than AWS, such as `http://elasticmq:9324`.
    pub endpoint: Option<String>,
    /// Visibility timeout in seconds. Defaults to twice the processing timeout.
    pub visibility_timeout: Option<u32>,
    /// Time of one long poll in seconds. Defaults to 20.
    #[serde(default = "long_poll")]
    pub wait_time_seconds: u32,
    /// Static credentials.
    pub credentials: Option<SqsCredentials>,
    /// Settings of the queues.
    #[serde(default)]
    pub queues: Queues,
    /// Tags for queues that the operator creates.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

/// Static credentials for SQS.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SqsCredentials {
    /// Key with the access key id.
    pub access_key_id_secret_ref: SecretKey,
    /// Key with the secret access key.
    pub secret_access_key_secret_ref: SecretKey,
}

/// Key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: String,
    /// Key in the Secret.
    pub key: String,
}

/// The file of a key of a Secret or ConfigMap cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("there is no file {} with the key '{}' of Secret or ConfigMap '{}': mount it there", path.display(), key.key, key.name)]
pub struct NoSecret {
    key: SecretKey,
    path: PathBuf,
}

impl SecretKey {
    /// Path of the key in the folder with mounted Secrets and ConfigMaps.
    fn path(&self, folder: &Path) -> PathBuf {
        folder.join(&self.name).join(&self.key)
    }

    /// Reads the key from the folder with mounted Secrets and ConfigMaps, on each call, because they are rotated.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub fn read(&self, folder: &Path) -> Result<String, NoSecret> {
        let path = self.path(folder);
        let key = self.clone();
        let text = std::fs::read_to_string(&path).map_err(|_| NoSecret { key, path })?;
        Ok(text.trim_end_matches(['\n', '\r']).to_owned())
    }
}

/// Settings of the queues of a transport.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Queues {
    /// Whether the operator creates queues, and deletes empty ones. Defaults to true.
    #[serde(default = "yes")]
    pub auto_create: bool,
    /// Accepted and ignored: a queue with different attributes is reported, and never deleted.
    #[serde(default)]
    pub force_recreate: bool,
    /// Settings of the dead-letter queues.
    #[serde(default)]
    pub dlq: DeadLetters,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            auto_create: true,
            force_recreate: false,
            dlq: DeadLetters::default(),
        }
    }
}

/// Settings of dead-letter queues, which get the messages that cannot be processed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeadLetters {
    /// Whether each queue has a dead-letter queue. Defaults to true.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Attempts after which a message goes to error-end. Defaults to 3. Not counted by classic queues of RabbitMQ. The broker moves a message
    /// to the dead-letter queue after at least 20 returns, which need not be attempts.
    #[serde(default = "three")]
    pub max_retry_count: u32,
    /// Retention of dead letters in days. Defaults to no limit on RabbitMQ, 14 on SQS.
    pub retention_days: Option<u32>,
}

impl Default for DeadLetters {
    fn default() -> Self {
        Self {
            enabled: true,
            max_retry_count: 3,
            retention_days: None,
        }
    }
}

/// Invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading the file failed.
    #[error("ASYA_TRANSPORT_CONFIG: cannot read the file {path}")]
    File {
        /// Path of the file.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
    /// A field is invalid.
    #[error("ASYA_TRANSPORT_CONFIG: {path}: {source}")]
    Content {
        /// Path of the field.
        path: String,
        /// Cause.
        source: serde_json::Error,
    },
    /// The type of a transport is unknown.
    #[error("ASYA_TRANSPORT_CONFIG: transports.{name}.type: unknown type '{kind}': use rabbitmq or sqs")]
    Type {
        /// Name of the transport.
        name: String,
        /// Unknown type.
        kind: String,
    },
    /// The users of namespaces cannot be created, or their names could be those of others.
    #[error("ASYA_TRANSPORT_CONFIG: transports.{name}.config.tenants: {why}")]
    Tenants {
        /// Name of the transport.
        name: String,
        /// Reason and remedy.
        why: &'static str,
    },
    /// An SQS transport has neither an account nor an endpoint.
    #[error(
        "ASYA_TRANSPORT_CONFIG: transports.{name}.config: set accountId or endpoint, from which queue URLs are built"
    )]
    NoAccount {
        /// Name of the transport.
        name: String,
    },
}

/// Reason why an actor cannot use a transport.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It is not configured.
    #[error("spec.transport: '{name}' is not configured on the operator ({})", known_list(known))]
    Unknown {
        /// Name of the transport.
        name: String,
        /// Names of the transports that can be used.
        known: Vec<String>,
    },
    /// It is disabled.
    #[error("spec.transport: '{name}' is disabled on the operator: set transports.{name}.enabled to true")]
    Disabled {
        /// Name of the transport.
        name: String,
    },
    /// It is for other namespaces.
    #[error(
        "spec.transport: '{name}' is not available to namespace '{namespace}': add it to transports.{name}.namespaces in the key transports.json of the ConfigMap asya-transports, or use another transport"
    )]
    OtherNamespaces {
        /// Name of the transport.
        name: String,
        /// Namespace of the actor.
        namespace: String,
    },
}

fn known_list(known: &[String]) -> String {
    if known.is_empty() {
        "no transport is: create the ConfigMap asya-transports in its namespace, or set its ASYA_TRANSPORT_CONFIG"
            .to_owned()
    } else {
        format!("use one of: {}", known.join(", "))
    }
}

impl Transports {
    /// Reads the value of `ASYA_TRANSPORT_CONFIG`: JSON, or the path of a file. An empty value means no transports.
    ///
    /// # Errors
    /// If the file cannot be read, or its content is invalid.
    pub fn load(value: &str) -> Result<Self, Error> {
        let value = value.trim();
        if value.is_empty() {
            return Ok(Self::default());
        }
        if value.starts_with('{') {
            return Self::parse(value);
        }
        let text = std::fs::read_to_string(Path::new(value)).map_err(|source| Error::File {
            path: value.to_owned(),
            source,
        })?;
        Self::parse(&text)
    }

    /// Parses JSON.
    ///
    /// # Errors
    /// If a field is unknown or invalid.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut json = serde_json::Deserializer::from_str(text);
        let mut all: Self = serde_path_to_error::deserialize(&mut json).map_err(|error| Error::Content {
            path: error.path().to_string(),
            source: error.into_inner(),
        })?;
        for (name, entry) in &mut all.transports {
            entry.parsed = Some(entry.parse(name)?);
        }
        let with_tenants = |(_, transport): &(&str, &Transport)| transport.tenants().is_some();
        if let Some((name, _)) = all.iter().filter(with_tenants).nth(1) {
            return Err(Error::Tenants {
                name: name.to_owned(),
                why: "another transport has tenants too: each namespace has one Secret with a user; remove one of the two",
            });
        }
        Ok(all)
    }

    /// The transport with this name.
    ///
    /// # Errors
    /// If it is not configured, or disabled.
    pub fn get(&self, name: &str) -> Result<&Transport, Unusable> {
        match self.transports.get(name) {
            Some(entry) if !entry.enabled => Err(Unusable::Disabled { name: name.to_owned() }),
            Some(Entry {
                parsed: Some(transport),
                ..
            }) => Ok(transport),
            _ => Err(Unusable::Unknown {
                name: name.to_owned(),
                known: self.iter().map(|(name, _)| name.to_owned()).collect(),
            }),
        }
    }

    /// The transport with this name, for actors of a namespace.
    ///
    /// # Errors
    /// If it is not configured, disabled, or only for other namespaces.
    pub fn get_for(&self, name: &str, namespace: &str) -> Result<&Transport, Unusable> {
        let transport = self.get(name)?;
        let namespaces = self.transports.get(name).and_then(|entry| entry.namespaces.as_ref());
        if namespaces.is_some_and(|all| !all.iter().any(|one| one == namespace)) {
            return Err(Unusable::OtherNamespaces {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
            });
        }
        Ok(transport)
    }

    /// Enabled transports, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Transport)> {
        let enabled = self.transports.iter().filter(|(_, entry)| entry.enabled);
        enabled.filter_map(|(name, entry)| Some((name.as_str(), entry.parsed.as_ref()?)))
    }
}

impl Entry {
    fn parse(&self, name: &str) -> Result<Transport, Error> {
        fn read<T: serde::de::DeserializeOwned>(name: &str, config: &serde_json::Value) -> Result<T, Error> {
            serde_path_to_error::deserialize(config).map_err(|error| Error::Content {
                path: format!("transports.{name}.config.{}", error.path()),
                source: error.into_inner(),
            })
        }
        match self.kind.as_str() {
            "rabbitmq" => {
                let rabbit: RabbitMq = read(name, &self.config)?;
                if let Some(why) = rabbit.tenants.as_ref().and_then(|tenants| tenants.obstacle(&rabbit)) {
                    let name = name.to_owned();
                    return Err(Error::Tenants { name, why });
                }
                Ok(Transport::RabbitMq(rabbit))
            }
            "sqs" => {
                let sqs: Sqs = read(name, &self.config)?;
                if sqs.account_id.is_none() && sqs.endpoint.is_none() {
                    return Err(Error::NoAccount { name: name.to_owned() });
                }
                Ok(Transport::Sqs(sqs))
            }
            _ => Err(Error::Type {
                name: name.to_owned(),
                kind: self.kind.clone(),
            }),
        }
    }
}

impl Transport {
    /// Users of namespaces, if it has them.
    pub fn tenants(&self) -> Option<&Tenants> {
        match self {
            Self::RabbitMq(rabbit) => rabbit.tenants.as_ref(),
            Self::Sqs(_) => None,
        }
    }

    /// Settings of the queues.
    pub fn queues(&self) -> &Queues {
        match self {
            Self::RabbitMq(rabbit) => &rabbit.queues,
            Self::Sqs(sqs) => &sqs.queues,
        }
    }
}

impl Sqs {
    /// Region or endpoint, with the credentials.
    ///
    /// # Errors
    /// If a file with credentials cannot be read.
    pub fn place(&self, secrets: &Path) -> Result<runway_sqs::Settings, NoSecret> {
        Ok(runway_sqs::Settings {
            region: self.region.clone(),
            endpoint: self.endpoint.clone(),
            credentials: self.credentials(secrets)?,
        })
    }

    /// Credentials: static ones from the folder with mounted Secrets, or those that AWS's own programs find.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn credentials(&self, secrets: &Path) -> Result<runway_sqs::Credentials, NoSecret> {
        Ok(match &self.credentials {
            None => runway_sqs::Credentials::Found,
            Some(keys) => runway_sqs::Credentials::Static {
                id: keys.access_key_id_secret_ref.read(secrets)?,
                key: keys.secret_access_key_secret_ref.read(secrets)?,
            },
        })
    }

    /// URL of a queue.
    pub fn queue_url(&self, queue: &str) -> String {
        let account = self.account_id.as_deref().unwrap_or("000000000000");
        match &self.endpoint {
            Some(endpoint) => format!("{}/{account}/{queue}", endpoint.trim_end_matches('/')),
            None => format!("https://sqs.{}.amazonaws.com/{account}/{queue}", self.region),
        }
    }
}

fn yes() -> bool {
    true
}
fn three() -> u32 {
    3
}
fn long_poll() -> u32 {
    20
}
fn guest() -> String {
    "guest".to_owned()
}
fn tenant() -> String {
    "asya_".to_owned()
}
fn slash() -> String {
    "/".to_owned()
}
fn asya() -> String {
    "asya".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_is_available_to_the_namespaces_in_its_list() {
        let all = |namespaces: &str| {
            let text =
                format!(r#"{{"transports": {{"t": {{"type": "rabbitmq", {namespaces} "config": {{"host": "h"}}}}}}}}"#);
            Transports::parse(&text).unwrap()
        };
        assert!(all("").get_for("t", "team-a").is_ok());
        let some = all(r#""namespaces": ["team-a"],"#);
        assert!(some.get_for("t", "team-a").is_ok());
        let error = some.get_for("t", "team").unwrap_err().to_string();
        assert_eq!(
            error,
            "spec.transport: 't' is not available to namespace 'team': add it to transports.t.namespaces in the key transports.json of the ConfigMap asya-transports, or use another transport"
        );
        assert!(all(r#""namespaces": [],"#).get_for("t", "team-a").is_err());
    }

    #[test]
    fn documented_configuration_is_parsed() {
        let all = Transports::parse(
            r#"{"transports": {
                "rabbitmq": {"type": "rabbitmq", "enabled": true, "config": {"host": "rabbit.mq", "port": 5673,
                    "username": "u", "passwordSecretRef": {"name": "s", "key": "k"}, "exchange": "x",
                    "queues": {"autoCreate": true, "forceRecreate": false, "dlq": {"enabled": true, "maxRetryCount": 5, "retentionDays": 7}}}},
                "sqs": {"type": "sqs", "enabled": false, "config": {"region": "eu-west-1", "accountId": "1"}}}}"#,
        )
        .unwrap();
        let Transport::RabbitMq(rabbit) = all.get("rabbitmq").unwrap() else {
            panic!()
        };
        assert_eq!((rabbit.port(), rabbit.queues.dlq.max_retry_count), (5673, 5));
        assert_eq!(all.get("sqs"), Err(Unusable::Disabled { name: "sqs".to_owned() }));
        let unknown = all.get("kafka").unwrap_err().to_string();
        assert_eq!(
            unknown,
            "spec.transport: 'kafka' is not configured on the operator (use one of: rabbitmq)"
        );
        assert!(
            Transports::load("")
                .unwrap()
                .get("x")
                .unwrap_err()
                .to_string()
                .contains("ASYA_TRANSPORT_CONFIG")
        );
    }

    #[test]
    fn misspelt_settings_are_rejected_with_their_path() {
        let noted = |text: &str| Transports::parse(text).unwrap_err().to_string();
        let field = noted(r#"{"transports": {"r": {"type": "rabbitmq", "config": {"host": "h", "prot": 1}}}}"#);
        assert!(
            field.contains("transports.r.config") && field.contains("prot"),
            "{field}"
        );
        assert!(noted(r#"{"transports": {"k": {"type": "kafka"}}}"#).contains("use rabbitmq or sqs"));
        assert!(noted(r#"{"transports": {"s": {"type": "sqs", "config": {"region": "r"}}}}"#).contains("accountId"));
        assert!(noted("{").contains("ASYA_TRANSPORT_CONFIG"));
    }
}
