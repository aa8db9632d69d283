//! Kubeconfigs, read as kubectl reads them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError};
use secrecy::ExposeSecret;

use crate::telemetry::message;

/// A kubeconfig file that cannot be read or merged.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read the kubeconfig {}: {}; select another with --kubeconfig or KUBECONFIG",
    path.display(),
    message(source.as_ref())
)]
pub struct Unreadable {
    path: PathBuf,
    source: Box<KubeconfigError>,
}

/// The files of `KUBECONFIG`, or `~/.kube/config` if it exists.
pub(crate) fn default_paths() -> Vec<PathBuf> {
    match std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
        Some(list) => std::env::split_paths(&list).collect(),
        None => std::env::home_dir()
            .map(|home| home.join(".kube/config"))
            .filter(|path| path.exists())
            .into_iter()
            .collect(),
    }
}

/// Reads files and merges them: the first file that sets a value wins. Empty paths and files that do not exist are skipped.
///
/// # Errors
/// A file cannot be read or is not a kubeconfig.
pub(crate) fn read_all(paths: Vec<PathBuf>) -> Result<Kubeconfig, Unreadable> {
    let mut all = Kubeconfig::default();
    for path in paths {
        match load(&path).and_then(|file| std::mem::take(&mut all).merge(file)) {
            Ok(merged) => all = merged,
            Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => {
                return Err(Unreadable {
                    path,
                    source: Box::new(source),
                });
            }
        }
    }
    Ok(all)
}

/// Reads a file.
///
/// # Errors
/// The file cannot be read or is not a kubeconfig.
pub(crate) fn read(path: &Path) -> Result<Kubeconfig, Unreadable> {
    load(path).map_err(|source| Unreadable {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// kube keeps empty values, which kubectl treats like values that are not set.
fn load(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let mut file = Kubeconfig::read_from(path)?;
    let directory = path.parent().unwrap_or_else(|| Path::new(""));
    forget_unset(&mut file.current_context);
    for context in file.contexts.iter_mut().filter_map(|named| named.context.as_mut()) {
        forget_unset(&mut context.user);
        forget_unset(&mut context.namespace);
    }
    for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        clean_cluster(cluster, directory);
    }
    for user in file.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        clean_user(user, directory);
    }
    Ok(file)
}

fn forget_unset(value: &mut Option<String>) {
    value.take_if(|value| value.is_empty());
}

/// Removes an empty path, which `read_from` resolved to the directory of the file.
fn forget_unset_path(path: &mut Option<String>, directory: &Path) {
    path.take_if(|path| path.is_empty() || Path::new(path) == directory);
}

fn clean_cluster(cluster: &mut Cluster, directory: &Path) {
    for value in [
        &mut cluster.server,
        &mut cluster.certificate_authority_data,
        &mut cluster.proxy_url,
        &mut cluster.tls_server_name,
    ] {
        forget_unset(value);
    }
    forget_unset_path(&mut cluster.certificate_authority, directory);
}

fn clean_user(user: &mut AuthInfo, directory: &Path) {
    for value in [
        &mut user.username,
        &mut user.client_certificate_data,
        &mut user.impersonate,
        &mut user.impersonate_uid,
    ] {
        forget_unset(value);
    }
    for secret in [&mut user.token, &mut user.client_key_data] {
        secret.take_if(|secret| secret.expose_secret().is_empty());
    }
    for path in [&mut user.client_certificate, &mut user.client_key, &mut user.token_file] {
        forget_unset_path(path, directory);
    }
    if user.username.is_some() {
        user.password.get_or_insert_default();
    }
}

/// Prefers `tokenFile` over `token`, and removes white space around its token, as client-go does. kube prefers `token`, and
/// cannot send the white space.
///
/// A token with white space around it is read only once; it becomes `token`.
pub(crate) fn prefer_token_file(user: &mut AuthInfo) {
    let text = user
        .token_file
        .as_ref()
        .and_then(|file| std::fs::read_to_string(file).ok());
    if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
        user.token = Some(text.trim()).filter(|token| *token != text).map(Into::into);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kube::Config;
    use tempfile::TempDir;

    use super::*;
    use crate::client::ClientArgs;

    /// A kubeconfig with one context, and with more fields of its context, cluster and user.
    fn text(context: &str, cluster: &str, user: &str) -> String {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "here",
                "contexts": [{{"name": "here", "context": {{"cluster": "one", "user": "me"{context}}}}}],
                "clusters": [{{"name": "one", "cluster": {{"server": "https://one.example"{cluster}}}}}],
                "users": [{{"name": "me", "user": {{{user}}}}}]}}"#
        )
    }

    async fn config(directory: &TempDir, text: &str) -> Config {
        let path = directory.path().join("config");
        fs::write(&path, text).unwrap();
        let args = ClientArgs {
            kubeconfig: Some(path),
            context: None,
        };
        args.config().await.unwrap()
    }

    fn token(config: &Config) -> Option<&str> {
        config.auth_info.token.as_ref().map(ExposeSecret::expose_secret)
    }

    #[tokio::test]
    async fn empty_values_are_not_set() {
        let directory = TempDir::new().unwrap();
        let empty = |names: &[&str]| {
            let fields: Vec<_> = names.iter().map(|name| format!(r#", "{name}": """#)).collect();
            fields.concat()
        };
        let cluster = [
            "certificate-authority",
            "certificate-authority-data",
            "proxy-url",
            "tls-server-name",
        ];
        let user = [
            "client-certificate",
            "client-certificate-data",
            "client-key",
            "client-key-data",
            "token",
            "tokenFile",
            "username",
            "password",
            "as",
            "as-uid",
        ];
        let user = empty(&user).trim_start_matches(',').to_owned();
        let config = config(&directory, &text(&empty(&["namespace"]), &empty(&cluster), &user)).await;
        assert_eq!(config.default_namespace, "default");
        assert_eq!((config.root_cert, config.tls_server_name), (None, None));
        let found = serde_json::to_value(&config.auth_info).unwrap();
        let sent: Vec<_> = found
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| *name != "password")
            .collect();
        assert_eq!(sent, [""; 0], "{found}");
    }

    #[tokio::test]
    async fn token_file_is_used_beside_an_empty_token() {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("token"), "fresh").unwrap();
        for token_field in ["", "stale"] {
            let user = format!(r#""token": "{token_field}", "tokenFile": "token""#);
            let config = config(&directory, &text("", "", &user)).await;
            assert_eq!(token(&config), None);
            assert!(
                config
                    .auth_info
                    .token_file
                    .is_some_and(|path| Path::new(&path).is_absolute())
            );
        }
    }

    #[tokio::test]
    async fn token_is_used_while_its_file_cannot_be_read() {
        let directory = TempDir::new().unwrap();
        let user = r#""token": "given", "tokenFile": "absent""#;
        assert_eq!(token(&config(&directory, &text("", "", user)).await), Some("given"));
    }

    #[tokio::test]
    async fn token_file_may_end_with_a_line_break() {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("token"), "fresh\n").unwrap();
        let config = config(&directory, &text("", "", r#""tokenFile": "token""#)).await;
        assert_eq!(token(&config), Some("fresh"));
    }

    #[test]
    fn files_are_merged() {
        let directory = TempDir::new().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        // `kubectl config unset current-context` leaves an empty name.
        let first = write(
            "first",
            r#"{"current-context": "", "users": [{"name": "me", "user": {"token": "first"}}]}"#,
        );
        let second = write("second", &text("", "", r#""token": "second""#));
        let merged = read_all(vec![PathBuf::new(), directory.path().join("absent"), first, second]).unwrap();
        assert_eq!(merged.current_context.as_deref(), Some("here"));
        let tokens = merged
            .auth_infos
            .iter()
            .map(|user| user.auth_info.as_ref()?.token.as_ref());
        let tokens: Vec<_> = tokens.map(|token| token.map(ExposeSecret::expose_secret)).collect();
        assert_eq!(tokens, [Some("first")]);
    }

    #[test]
    fn errors_name_the_file() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("config");
        fs::write(&path, "clusters: 5").unwrap();
        let error = read_all(vec![path.clone()]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("cannot read the kubeconfig {}: line 1 column", path.display())),
            "{text}"
        );
    }
}
