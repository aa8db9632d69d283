//! Components to install: built-in ones, and manifests of third parties.

use std::path::PathBuf;
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::name::{Invalid, Namespace, Segment};
use runway_client::documents::Documents;
use runway_manifests::{self as manifests, Component};
use runway_operator::telemetry::chain;
use runway_provider::Provider;

use super::{Error, kinds};
use crate::terminal::Terminal;

/// A built-in provider.
///
/// # Errors
/// There is no provider of this name.
pub(super) fn built_in_provider(name: &str) -> Result<Arc<dyn Provider>, Error> {
    let providers = manifests::built_in_providers();
    let found = providers.iter().find(|p| p.name() == name);
    found.cloned().ok_or_else(|| Error::UnknownProvider {
        name: name.to_owned(),
        known: providers.iter().map(|p| p.name()).collect(),
    })
}

/// The component of a built-in provider.
///
/// # Errors
/// The provider is not built in.
pub(super) fn built_in(name: &str) -> Result<Component, Error> {
    built_in_provider(name).map(|provider| manifests::provider(provider.as_ref()))
}

/// Objects of a third-party manifest, in apply order.
///
/// # Errors
/// A file cannot be read, or an object has an invalid name.
pub(super) fn read_manifest(files: &[PathBuf], terminal: &mut Terminal<'_>) -> Result<Vec<DynamicObject>, Error> {
    let documents = Documents::read(files, terminal.stdin);
    if let Some(error) = documents.errors.first() {
        return Err(Error::File(chain(error)));
    }
    let mut objects = Vec::new();
    for document in &documents.found {
        let mut object: DynamicObject = document.parse().map_err(|error| Error::File(chain(&error)))?;
        if object.namespace().is_none() && kinds::is_namespaced(&object) == Some(true) {
            object.metadata.namespace = Some(manifests::NAMESPACE.to_owned());
        }
        named(&object).map_err(|invalid| Error::File(format!("{}: {invalid}", document.subject())))?;
        objects.push(object);
    }
    objects.sort_by_key(|o| kinds::rank(kinds::kind(o)));
    Ok(objects)
}

/// Checks name, namespace and API version. Not every kind's names are subdomains: `system:node` is a role.
fn named(object: &DynamicObject) -> Result<(), Invalid> {
    object.name_any().parse::<Segment>()?;
    object
        .namespace()
        .map_or(Ok(()), |namespace| namespace.parse::<Namespace>().map(drop))?;
    let mut group_and_version = object.types.iter().flat_map(|types| types.api_version.split('/'));
    group_and_version.try_for_each(|part| part.parse::<Segment>().map(drop))
}

/// Names of components.
pub(super) fn names(components: &[Component]) -> Vec<String> {
    components.iter().map(|c| c.name.clone()).collect()
}
