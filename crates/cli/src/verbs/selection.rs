//! Objects that a verb applies to: names, kinds with names, labels, or manifests, as kubectl takes them.

use std::path::PathBuf;

use clap::Args;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::{ModelDeployment, Name, Namespace};
use runway_client::cluster::{self, Cluster};
use runway_client::documents::Documents;
use runway_client::target::{Kind, Subject, Target, name_of};
use runway_operator::telemetry::chain;

use super::Error;
use crate::terminal::Terminal;

/// Arguments that select objects.
#[derive(Debug, Args)]
pub struct Selection {
    /// Names of ModelDeployments, KIND/NAME, or a kind followed by names
    #[arg(value_name = "NAME|KIND|KIND/NAME", required_unless_present = "files")]
    pub targets: Vec<Subject>,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Label selector for objects of the given kind, such as team=a
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with_all = ["files", "all"])]
    pub selector: Option<String>,
    /// Select all objects of the given kind in the namespace
    #[arg(long, conflicts_with = "files")]
    pub all: bool,
    /// Manifests that name the objects: a file, a directory, or - for standard input; repeatable
    #[arg(short, long = "file", value_name = "FILE", conflicts_with = "targets")]
    pub files: Vec<PathBuf>,
}

/// Arguments that select one ModelDeployment, those of a namespace, or all.
#[derive(Debug, Args)]
pub struct Models {
    /// Name of a ModelDeployment; all of the namespace if omitted
    #[arg(value_parser = name_of::<ModelDeployment>)]
    pub name: Option<Name>,
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// Select all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "name"])]
    pub all_namespaces: bool,
}

impl Models {
    /// The namespace; `None` for all.
    pub fn namespace<'a>(&'a self, cluster: &'a Cluster) -> Option<&'a Namespace> {
        let namespace = self.namespace.as_ref().unwrap_or(&cluster.namespace);
        (!self.all_namespaces).then_some(namespace)
    }
}

/// An object in a cluster.
pub struct Selected {
    /// Kind and name.
    pub target: Target,
    /// Namespace.
    pub namespace: Namespace,
    /// The object.
    pub object: DynamicObject,
}

impl Selection {
    /// Reads the selected objects. Every one has to exist.
    ///
    /// # Errors
    /// The arguments contradict each other, or an object does not exist or cannot be read.
    pub async fn read(&self, cluster: &Cluster, terminal: &mut Terminal<'_>) -> Result<Vec<Selected>, Error> {
        let here = self.namespace.as_ref().unwrap_or(&cluster.namespace);
        if self.all || self.selector.is_some() {
            return self.of_kind(cluster, here).await;
        }
        let named = if self.files.is_empty() {
            let named = named(&self.targets)?;
            named.into_iter().map(|target| (target, here.clone())).collect()
        } else {
            self.in_files(here, terminal)?
        };
        let mut all = Vec::new();
        for (target, namespace) in named {
            let object = cluster.get(&target, &namespace).await?;
            all.push(Selected {
                target,
                namespace,
                object,
            });
        }
        Ok(all)
    }

    async fn of_kind(&self, cluster: &Cluster, namespace: &Namespace) -> Result<Vec<Selected>, Error> {
        let [Subject::Kind(kind)] = self.targets[..] else {
            let text = "--all and -l select objects of one kind: name it instead of objects, such as md, asya or llsd";
            return Err(Error::Usage(text.to_owned()));
        };
        let mut all = Vec::new();
        let found = cluster
            .selected(kind, Some(namespace), self.selector.as_deref())
            .await?;
        for object in found {
            let name = object.name_any().parse().map_err(cluster::Error::Name)?;
            all.push(Selected {
                target: Target { kind, name },
                namespace: namespace.clone(),
                object,
            });
        }
        Ok(all)
    }

    fn in_files(&self, here: &Namespace, terminal: &mut Terminal<'_>) -> Result<Vec<(Target, Namespace)>, Error> {
        let documents = Documents::read(&self.files, terminal.stdin);
        // Nothing is changed before every document is read.
        if let Some(error) = documents.errors.first() {
            return Err(Error::Usage(chain(error)));
        }
        let mut named = Vec::new();
        for document in documents.found {
            let Some(kind) = Kind::known_as(document.kind()) else {
                terminal.say(&format!(
                    "warning: {}: skipped: not a kind of KubeAIRunway",
                    document.subject()
                ));
                continue;
            };
            let name = document.name().parse().map_err(cluster::Error::Name)?;
            let namespace = document.namespace().map(str::parse).transpose();
            let namespace = namespace.map_err(cluster::Error::Name)?.unwrap_or_else(|| here.clone());
            named.push((Target { kind, name }, namespace));
        }
        if named.is_empty() {
            return Err(Error::Usage(
                "no object of KubeAIRunway is in the given files".to_owned(),
            ));
        }
        Ok(named)
    }
}

/// The objects of `NAME…`, `KIND NAME…` and `KIND/NAME…`.
fn named(subjects: &[Subject]) -> Result<Vec<Target>, Error> {
    let (kind, rest) = match subjects {
        [Subject::Kind(kind)] => {
            return Err(Error::Usage(format!(
                "'{}' is a kind: add names, --all or -l LABELS, or use md/NAME for a ModelDeployment of that name",
                kind.as_str()
            )));
        }
        [Subject::Kind(kind), rest @ ..] => (Some(*kind), rest),
        all => (None, all),
    };
    let each = rest.iter().map(|subject| match (subject, kind) {
        (Subject::Object(target), None) => Ok(target.clone()),
        (Subject::Object(target), Some(kind)) if target.kind == Kind::ModelDeployment => Ok(Target {
            kind,
            name: target.name.clone(),
        }),
        (Subject::Object(target), Some(_)) => Err(Error::Usage(format!(
            "a kind cannot be combined with '{}': use KIND/NAME for each object",
            target.short()
        ))),
        (Subject::Kind(kind), _) => Err(Error::Usage(format!(
            "only the first word can be a kind: use KIND/NAME instead of {}",
            kind.as_str()
        ))),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_before_names_holds_for_all_of_them() {
        let of = |words: &[&str]| {
            let subjects: Vec<Subject> = words.iter().map(|word| word.parse().unwrap()).collect();
            let named = named(&subjects).map_err(|error| error.to_string());
            named.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        for (words, wanted) in [
            (&["a", "asya/b"][..], "ModelDeployment/a AsyncActor/b"),
            (&["asya", "a", "b"], "AsyncActor/a AsyncActor/b"),
            (
                &["modeldeployment.kubeairunway.ai/a", "asyncactor.asya.sh/b"],
                "ModelDeployment/a AsyncActor/b",
            ),
            (&["modeldeployments.kubeairunway.ai", "a"], "ModelDeployment/a"),
            (&["md/asya"], "ModelDeployment/asya"),
        ] {
            assert_eq!(of(words).unwrap(), wanted);
        }
        for words in [&["md"][..], &["a", "md"], &["md", "asya/b"]] {
            assert!(of(words).is_err(), "{words:?}");
        }
    }
}
