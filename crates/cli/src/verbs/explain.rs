//! `why`, `tree` and `endpoint`.

use std::io::Read;

use clap::Args;
use runway_client::source::{self, Admission, Place, Source};
use runway_client::target::{Kind, Target};
use runway_client::text::{self, Format, Look};
use runway_client::{endpoint, explain, tree, why};
use runway_operator::client::ClientArgs;
use serde::Serialize;

use crate::answer::{Answer, Error, screens};

/// Arguments of `why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Name of the ModelDeployment, or KIND/NAME; optional with -f
    #[arg(value_name = "NAME", required_unless_present = "files")]
    pub target: Option<Target>,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Output format
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `tree` and `endpoint`.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Name of the ModelDeployment, or KIND/NAME
    #[arg(value_name = "NAME")]
    pub target: Target,
    /// Source of the objects.
    #[command(flatten)]
    pub place: Place,
    /// Output format; text for people if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// `why`.
///
/// # Errors
/// The objects cannot be read.
pub async fn why(args: &WhyArgs, client: &ClientArgs, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::First).await?;
    let namespace = source.namespace(&args.place, false);
    if let Some(target) = args.target.as_ref().filter(|t| t.kind != Kind::ModelDeployment) {
        let found = source.explanations(target, namespace.as_ref()).await?;
        let data = match args.output {
            Some(format) => text::documents(&found, format)?,
            None => screens(found.iter().map(|explained| explain::screen(explained, look))),
        };
        return Ok(Answer::new(data, source.said));
    }
    let name = args.target.as_ref().map(|target| &target.name);
    let found = source.deployments(namespace.as_ref(), name).await?;
    let providers = source.providers().await?;
    let explained = found.iter().map(|md| why::explain(md, &providers, args.place.now()));
    let data = match args.output {
        Some(format) => text::documents(&explained.collect::<Vec<_>>(), format)?,
        None => explained
            .map(|why| why::screen(&why, look))
            .collect::<Vec<_>>()
            .join("\n"),
    };
    Ok(Answer::new(data, source.said))
}

/// `tree`.
///
/// # Errors
/// The objects cannot be read.
pub async fn tree(args: &TargetArgs, client: &ClientArgs, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::Past).await?;
    let namespace = source.namespace(&args.place, false);
    let trees = source.trees(&args.target, namespace.as_ref(), args.place.now()).await?;
    let data = match args.output {
        Some(format) => text::documents(&trees, format)?,
        None => screens(trees.iter().map(|tree| tree::screen(tree, look))),
    };
    Ok(Answer::new(data, source.said))
}

/// `endpoint`.
///
/// # Errors
/// The objects cannot be read, or have no endpoint yet.
pub async fn endpoint(args: &TargetArgs, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::Past).await?;
    let namespace = source.namespace(&args.place, false);
    let (namespace, target) = (namespace.as_ref(), &args.target);
    let data = match target.kind {
        Kind::ModelDeployment => {
            let mut found = Vec::new();
            for md in source.deployments(namespace, Some(&target.name)).await? {
                found.push(endpoint::access(&md).ok_or_else(|| super::Error::no_endpoint(&md))?);
            }
            shown(&found, args.output, endpoint::screen)?
        }
        Kind::LlamaStackDistribution => {
            let mut found = Vec::new();
            for llsd in source.named(target, namespace).await? {
                found.push(endpoint::server(&llsd).ok_or_else(|| super::Error::no_server(&llsd))?);
            }
            shown(&found, args.output, endpoint::server_screen)?
        }
        Kind::AsyncActor => {
            let actors = source.named(target, namespace).await?;
            let found: Vec<_> = actors.iter().map(endpoint::queue).collect();
            shown(&found, args.output, endpoint::queue_screen)?
        }
        Kind::InferenceProviderConfig => return Err(source::Error::NothingBelow(target.clone()).into()),
    };
    Ok(Answer::new(data, source.said))
}

/// Documents in the given format, or a screen for each object.
fn shown<T: Serialize>(all: &[T], output: Option<Format>, screen: fn(&T) -> String) -> Result<String, text::Error> {
    match output {
        Some(format) => text::documents(all, format),
        None => Ok(screens(all.iter().map(screen))),
    }
}
