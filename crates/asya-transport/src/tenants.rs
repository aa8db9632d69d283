//! Users of namespaces at RabbitMQ: names, passwords, and permissions. A user reads the queues of its namespace only, and publishes
//! only through an exchange to which no other queue is bound. With the default exchange, each user could write to each queue.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use crate::queues;
use crate::settings::{NoSecret, RabbitMq, Tenants};

/// Shortest key, in bytes.
const SHORTEST_KEY: usize = 32;

/// The credentials of a namespace cannot be derived.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The key is missing.
    #[error(transparent)]
    NoSecret(#[from] NoSecret),
    /// The key is too short.
    #[error(
        "tenants.keySecretRef: the key has {0} characters, and needs {SHORTEST_KEY}: use a random one, such as from `openssl rand -base64 32`"
    )]
    ShortKey(usize),
}

/// User of a namespace, with its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the user.
    pub username: String,
    /// Password of the user.
    pub password: String,
}

/// Omits the password.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Credentials");
        shown.field("username", &self.username).finish_non_exhaustive()
    }
}

/// Permissions of a user in the virtual host, as regular expressions of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Queues and exchanges that it may create and delete.
    pub configure: String,
    /// Exchanges to which it may publish.
    pub write: String,
    /// Queues from which it may consume.
    pub read: String,
}

impl Permissions {
    /// Permissions of the user of a namespace.
    pub fn of(namespace: &str) -> Self {
        Self {
            configure: "^$".to_owned(),
            write: format!("^({}|{})$", queues::exchange(namespace), queues::REPLIES),
            read: format!("^asya-{namespace}_"),
        }
    }
}

impl Tenants {
    /// Name of the user of a namespace.
    pub fn user(&self, namespace: &str) -> String {
        format!("{}{namespace}", self.user_prefix)
    }

    /// User and password of a namespace. `secrets` is the folder with mounted Secrets.
    ///
    /// # Errors
    /// The key is missing or too short.
    pub fn credentials(&self, broker: &RabbitMq, namespace: &str, secrets: &Path) -> Result<Credentials, Error> {
        let key = self.key_secret_ref.read(secrets)?;
        if key.len() < SHORTEST_KEY {
            return Err(Error::ShortKey(key.len()));
        }
        let username = self.user(namespace);
        let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
        let password = hmac::sign(&key, format!("{}/{}/{username}", broker.host, broker.vhost).as_bytes());
        Ok(Credentials {
            username,
            password: URL_SAFE_NO_PAD.encode(password),
        })
    }

    /// Reason why these settings cannot be used.
    pub(crate) fn obstacle(&self, broker: &RabbitMq) -> Option<&'static str> {
        let is_taken = [&broker.username, &self.username]
            .iter()
            .any(|name| name.starts_with(&self.user_prefix));
        if broker.management_port().is_none() {
            Some("users are created through the management API: remove managementPort 0")
        } else if !broker.queues.auto_create {
            Some("the users cannot create queues: remove queues.autoCreate false")
        } else if is_taken {
            // A namespace could be named so that its user has this name.
            Some("username begins with userPrefix, and could be the user of a namespace: set another userPrefix")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(more: &str) -> Result<RabbitMq, String> {
        let text = format!(
            r#"{{"transports": {{"t": {{"type": "rabbitmq", "config": {{"host": "h", "username": "asya", {more}
                "tenants": {{"username": "admin", "passwordSecretRef": {{"name": "s", "key": "p"}}, "keySecretRef": {{"name": "s", "key": "k"}}}}}}}}}}}}"#
        );
        let all = crate::settings::Transports::parse(&text).map_err(|error| error.to_string())?;
        match all.get("t") {
            Ok(crate::settings::Transport::RabbitMq(rabbit)) => Ok(rabbit.clone()),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn password_depends_on_the_key_and_the_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = folder.path();
        let broker = broker("").unwrap();
        let tenants = broker.tenants.as_ref().unwrap();
        let of = |namespace: &str| tenants.credentials(&broker, namespace, secrets);
        assert!(of("a").unwrap_err().to_string().contains("mount it there"));
        std::fs::create_dir(secrets.join("s")).unwrap();
        std::fs::write(secrets.join("s/k"), "short").unwrap();
        assert!(of("a").unwrap_err().to_string().contains("the key has 5 characters"));
        std::fs::write(secrets.join("s/k"), "0123456789abcdef0123456789abcdef\n").unwrap();
        let first = of("team-a").unwrap();
        assert_eq!((&*first.username, first.password.len()), ("asya_team-a", 43));
        assert_eq!(of("team-a").unwrap(), first);
        assert_ne!(of("team-b").unwrap().password, first.password);
        assert!(!format!("{first:?}").contains(&first.password));
        std::fs::write(secrets.join("s/k"), "0123456789abcdef0123456789abcdeX").unwrap();
        assert_ne!(of("team-a").unwrap().password, first.password);
    }

    #[test]
    fn settings_with_which_users_cannot_be_kept_apart_are_rejected() {
        assert!(broker("").is_ok());
        for (more, why) in [
            (r#""managementPort": 0,"#, "remove managementPort 0"),
            (r#""queues": {"autoCreate": false},"#, "remove queues.autoCreate"),
        ] {
            let error = broker(more).unwrap_err();
            assert!(
                error.starts_with("ASYA_TRANSPORT_CONFIG: transports.t.config.tenants: ") && error.contains(why),
                "{error}"
            );
        }
        let mut taken = broker("").unwrap();
        taken.username = "asya_payments".to_owned();
        let why = taken.tenants.as_ref().and_then(|tenants| tenants.obstacle(&taken));
        assert!(why.is_some_and(|why| why.contains("set another userPrefix")), "{why:?}");
    }
}
