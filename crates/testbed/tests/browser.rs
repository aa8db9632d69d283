//! The web console in a real browser, against a real API server with our controllers, and the upstream simulator in place of
//! the operators. What is clicked and looked at is in `crates/testbed/browser`.
//!
//! `UPDATE_PICTURES=1` takes the pictures of the docs anew.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, CustomResourceExt, ResourceExt};
use runway_api::AsyncActor;
use runway_product_testbed::served::Served;
use runway_product_testbed::*;
use runway_provider_dynamo::Dynamo;
use runway_provider_kuberay::KubeRay;
use runway_testbed::{EXAMPLES, browser, crds, eventually};
use serde_json::Value;

/// Examples beside the models.
const OTHERS: [&str; 2] = ["asya/standalone", "llama-stack/starter"];
/// Models of the long list.
const MANY: usize = 5000;

#[tokio::test(flavor = "multi_thread")]
async fn people_use_the_console_in_a_browser() -> Result<()> {
    let folder = root().join("crates/testbed/browser");
    let Some(browser) =
        tokio::task::spawn_blocking(move || browser::prepare("the console in a browser", &folder)).await??
    else {
        return Ok(());
    };
    let bed = Bed::start_with(Upstream::All, true).await?;
    let controllers = [
        bed.core().await?,
        bed.kaito().await?,
        bed.provider(Dynamo::default()).await?,
        bed.provider(KubeRay::default()).await?,
        bed.llama_stack().await?,
    ];
    let _simulator = bed.simulator().await?;
    crds::install_crd(&bed.admin, AsyncActor::crd()).await?;
    bed.admission_is_up().await?;
    for example in EXAMPLES.iter().chain(&OTHERS) {
        bed.apply(&read_example(example)?).await?;
    }
    bed.apply(&gemma_simulated("too-big", "fail")).await?;
    for name in EXAMPLES {
        bed.running(name).await?;
    }
    let served = Served::start(&bed.cluster, None).await?;
    let pictures = root().join("docs/pictures");
    let mut environment = vec![("CONSOLE_URL", served.url.as_str())];
    if std::env::var_os("UPDATE_PICTURES").is_some() {
        std::fs::create_dir_all(&pictures)?;
        environment.push(("PICTURES", pictures.to_str().context("an odd path")?));
    }
    if let Err(error) = browser.run("console.test.mjs", &environment).await {
        let models = bed.deployments().list(&ListParams::default()).await?.items;
        let left = models.iter().filter(|md| !EXAMPLES.contains(&md.name_any().as_str()));
        return Err(error.context(serde_json::to_string_pretty(&left.collect::<Vec<_>>())?));
    }

    // No controller may act on these: the test is about the list.
    drop(controllers);
    without_webhooks(&bed).await?;
    let there = bed.deployments().list(&ListParams::default()).await?.items.len();
    let api = bed.deployments();
    let make = async |n: usize| -> Result<()> {
        let md = serde_json::from_value(gemma(&format!("many-{n:05}")))?;
        // An API server on a busy machine asks for patience.
        eventually(PATIENCE, async || match api.create(&PostParams::default(), &md).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            made => Ok(made.map(drop)?),
        })
        .await
    };
    stream::iter(there..MANY)
        .map(make)
        .buffer_unordered(8)
        .try_collect::<()>()
        .await?;
    let count = MANY.to_string();
    let environment = [("CONSOLE_URL", served.url.as_str()), ("COUNT", &count)];
    browser.run("many.test.mjs", &environment).await
}

/// An example of the docs.
fn read_example(name: &str) -> Result<Value> {
    let path = root().join("deploy/examples").join(format!("{name}.yaml"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(serde_saphyr::from_str(&text)?)
}

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

async fn without_webhooks(bed: &Bed) -> Result<()> {
    use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(bed.admin.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(bed.admin.clone());
    let all = ListParams::default();
    mutating.delete_collection(&DeleteParams::default(), &all).await?;
    validating.delete_collection(&DeleteParams::default(), &all).await?;
    Ok(())
}
