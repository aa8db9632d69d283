//! Tokens of ServiceAccounts.

use anyhow::{Context as _, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};

/// A new token of a ServiceAccount, for these audiences; for the API server if there are none.
pub async fn token(client: &Client, namespace: &str, account: &str, audiences: &[&str]) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: audiences.iter().map(ToString::to_string).collect(),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let params = PostParams::default();
    let answer = accounts.create_token_request(account, &params, &request).await?;
    Ok(answer.status.context("no token")?.token)
}
