//! Reader of the two files of an external provider: `lls-provider-spec.yaml` from its image, and `crd-config.yaml` with its
//! part of the custom resource.

use super::error::{Error, Fault, Who};
use super::yaml::{Document, NodeId};
use super::{File, Unfit, write};

/// APIs that external providers may serve: the name in run.yaml and metadata, and the field of `externalProviders`.
pub const APIS: [(&str, &str); 12] = [
    ("inference", "inference"),
    ("safety", "safety"),
    ("agents", "agents"),
    ("vector_io", "vectorIo"),
    ("datasetio", "datasetIo"),
    ("scoring", "scoring"),
    ("eval", "eval"),
    ("tool_runtime", "toolRuntime"),
    ("post_training", "postTraining"),
    ("responses", "responses"),
    ("files", "files"),
    ("batches", "batches"),
];

/// The two files of one provider, in its directory below `metadata/`.
#[derive(Clone, Debug)]
pub struct ProviderFiles {
    /// Name of the directory: the providerId.
    pub directory: String,
    /// `lls-provider-spec.yaml`, from the provider's image.
    pub spec: File,
    /// `crd-config.yaml`, from the custom resource.
    pub crd_config: File,
}

/// A provider as it goes into run.yaml.
#[derive(Clone, Debug)]
pub(super) struct External {
    pub(super) who: Who,
    /// As run.yaml names it.
    pub(super) api: &'static str,
    /// As the custom resource names it.
    pub(super) section: &'static str,
    pub(super) provider_type: String,
    pub(super) module: String,
    /// In flow style.
    pub(super) config: Option<String>,
    /// Position in the custom resource.
    pub(super) order: Option<u64>,
    pub(super) warnings: Vec<String>,
}

impl External {
    pub(super) fn id_and_module(&self) -> (String, String) {
        (self.who.provider_id.clone(), self.module.clone())
    }
}

/// Reads one provider.
///
/// # Errors
/// All errors in its metadata, not only the first.
pub(super) fn read(files: &ProviderFiles, has_file: &dyn Fn(&str) -> bool) -> Result<External, Error> {
    let unnamed = Who {
        provider_id: files.directory.clone(),
        image: None,
    };
    let placed = crd_config(files, &unnamed)?;
    let declared = metadata(&files.spec, &placed.who)?;
    if declared.api != placed.api {
        return Err(Error::Placement {
            section: field(&declared.api).unwrap_or(&declared.api).to_owned(),
            who: placed.who,
            declared: declared.api,
            placed: placed.section.to_owned(),
        });
    }
    let mut warnings = declared.warnings;
    let (module, warning) = importable(declared.package, &placed.who, has_file);
    warnings.extend(warning);
    Ok(External {
        who: placed.who,
        api: placed.api,
        section: placed.section,
        provider_type: declared.provider_type,
        module,
        config: placed.config,
        order: placed.order,
        warnings,
    })
}

fn field(api: &str) -> Option<&'static str> {
    APIS.iter().find(|(name, _)| *name == api).map(|(_, field)| *field)
}

struct Placed {
    who: Who,
    api: &'static str,
    section: &'static str,
    config: Option<String>,
    order: Option<u64>,
}

/// crd-config.yaml. The operator wrote it, so what is wrong with it is not the user's doing.
fn crd_config(files: &ProviderFiles, unnamed: &Who) -> Result<Placed, Error> {
    const AGAIN: &str = "This file is written when the provider is installed. Delete the pod, so that it is written \
                         again; if that does not help, operator and pod are of different versions.";
    let reader = Reader::open(&files.crd_config, unnamed, AGAIN)?;
    let wrong = |path: &str, reason: &str| reader.error(vec![reader.wrong(path, reason)]);
    let required = |path: &str| reader.required(path).map_err(|fault| reader.error(vec![fault]));
    let api = required("api")?;
    let Some((api, section)) = APIS.iter().find(|(name, field)| *name == api || *field == api) else {
        let known = APIS.map(|(name, _)| name).join(", ");
        return Err(wrong("api", &format!("'{api}' is none of {known}")));
    };
    let config = match reader.value("config").filter(|node| !reader.document.is_null(*node)) {
        None => None,
        Some(node) => Some(
            write::flow(&reader.document, node)
                .map_err(|_| wrong("config", "grows beyond 1 MiB when its aliases are written out"))?,
        ),
    };
    Ok(Placed {
        who: Who {
            provider_id: required("providerId")?.to_owned(),
            image: reader.scalar("image").map(str::to_owned),
        },
        api,
        section,
        config,
        order: reader.scalar("order").and_then(|order| order.parse().ok()),
    })
}

struct Declared {
    api: String,
    provider_type: String,
    package: String,
    warnings: Vec<String>,
}

/// lls-provider-spec.yaml, by the rules of its schema.
fn metadata(file: &File, who: &Who) -> Result<Declared, Error> {
    const REBUILD: &str = "Correct lls-provider-spec.yaml, build the provider image again, and refer to the new image.";
    let reader = Reader::open(file, who, REBUILD)?;
    let mut faults = Vec::new();
    let mut warnings = Vec::new();
    let mut required = |path: &str, check: &dyn Fn(&str) -> Result<Option<String>, String>| {
        let value = reader.required(path).and_then(|value| match check(value) {
            Ok(warning) => {
                warnings.extend(warning);
                Ok(value.to_owned())
            }
            Err(reason) => Err(reader.wrong(path, &reason)),
        });
        value.map_err(|fault| faults.push(fault)).unwrap_or_default()
    };
    required("apiVersion", &|value| is(value, "llamastack.io/v1alpha1"));
    required("kind", &|value| is(value, "ProviderPackage"));
    for path in ["metadata.name", "metadata.version", "metadata.vendor", "spec.wheelPath"] {
        required(path, &|_| Ok(None));
    }
    let package = required("spec.packageName", &dotted_identifiers);
    let provider_type = required("spec.providerType", &|value| provider_type(value, who));
    let api = required("spec.api", &known_api);
    if let Some(wheels) = reader.value("spec.dependencyWheels")
        && !reader.document.is_null(wheels)
    {
        let items = reader.document.items(wheels);
        let paths = items
            .iter()
            .all(|item| reader.document.scalar(*item).is_some_and(|path| !path.is_empty()));
        if reader.document.describe(wheels) != "a list" || !paths {
            faults.push(reader.wrong("spec.dependencyWheels", "must be a list of paths of wheel files"));
        }
    }
    if !faults.is_empty() {
        return Err(reader.error(faults));
    }
    Ok(Declared {
        api,
        provider_type,
        package,
        warnings,
    })
}

type Checked = Result<Option<String>, String>;

fn is(value: &str, wanted: &str) -> Checked {
    if value == wanted {
        Ok(None)
    } else {
        Err(format!("must be '{wanted}', not '{value}'"))
    }
}

fn known_api(value: &str) -> Checked {
    if field(value).is_some() {
        return Ok(None);
    }
    Err(format!(
        "'{value}' is none of {}",
        APIS.map(|(name, _)| name).join(", ")
    ))
}

fn dotted_identifiers(value: &str) -> Checked {
    let identifier = |part: &str| {
        part.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    if value.split('.').all(identifier) {
        return Ok(None);
    }
    Err(format!(
        "'{value}' is not a Python module path, such as my_org.custom_vllm"
    ))
}

/// The specification's pattern; `_` and `.` are let through, for providers in use have them.
fn provider_type(value: &str, who: &Who) -> Checked {
    let name = ["remote::", "inline::"]
        .iter()
        .find_map(|kind| value.strip_prefix(kind));
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    match name {
        Some(name) if !name.is_empty() && name.chars().all(allowed) => Ok(name.contains(['_', '.']).then(|| {
            format!(
                "Provider '{}': providerType '{value}' has characters outside (remote|inline)::[a-z0-9-]+",
                who.provider_id
            )
        })),
        _ => Err(format!("'{value}' does not match (remote|inline)::[a-z0-9-]+")),
    }
}

/// The server imports `<module>.provider`. Where a package was named by that submodule, name the package instead;
/// without installed packages to look at, the name stays as it is.
fn importable(package: String, who: &Who, has_file: &dyn Fn(&str) -> bool) -> (String, Option<String>) {
    let is_module = |name: &str| {
        let path = name.replace('.', "/");
        has_file(&format!("{path}.py")) || has_file(&format!("{path}/__init__.py"))
    };
    match package.strip_suffix(".provider") {
        Some(parent) if is_module(&package) && !is_module(&format!("{package}.provider")) => {
            let warning = format!(
                "Provider '{}': packageName '{package}' is written as module '{parent}', because the server appends \
                 '.provider' itself",
                who.provider_id
            );
            (parent.to_owned(), Some(warning))
        }
        _ => (package, None),
    }
}

/// A file of a provider that is a YAML mapping, and how to complain about it.
struct Reader<'a> {
    document: Document<'a>,
    root: NodeId,
    path: &'a str,
    who: &'a Who,
    resolution: &'static str,
}

impl<'a> Reader<'a> {
    fn open(file: &'a File, who: &'a Who, resolution: &'static str) -> Result<Self, Error> {
        let complain = |at, reason: String| Error::Provider {
            who: who.clone(),
            path: file.path.clone(),
            faults: vec![Fault { at, reason }],
            resolution: resolution.to_owned(),
        };
        let text = file
            .text
            .as_ref()
            .map_err(|unfit| match (unfit, who.image.as_deref()) {
                (Unfit::Missing, Some(image)) => complain(
                    None,
                    format!("Missing /lls-provider/lls-provider-spec.yaml in image {image}"),
                ),
                _ => complain(None, unfit.to_string()),
            })?;
        let document = Document::parse(text).map_err(|unreadable| {
            complain(
                Some((unreadable.line, unreadable.column)),
                format!("YAML parse error: {}", unreadable.reason),
            )
        })?;
        match document.root() {
            Some(root) if document.describe(root) == "a mapping" => Ok(Self {
                document,
                root,
                path: &file.path,
                who,
                resolution,
            }),
            other => {
                let found = other.map_or("empty", |root| document.describe(root));
                Err(complain(
                    Some((1, 1)),
                    format!("The file must be a mapping, but is {found}"),
                ))
            }
        }
    }

    fn error(&self, faults: Vec<Fault>) -> Error {
        Error::Provider {
            who: self.who.clone(),
            path: self.path.to_owned(),
            faults,
            resolution: self.resolution.to_owned(),
        }
    }

    fn value(&self, path: &str) -> Option<NodeId> {
        path.split('.')
            .try_fold(self.root, |node, key| self.document.get(node, key))
    }

    fn scalar(&self, path: &str) -> Option<&str> {
        let value = self.value(path).filter(|node| !self.document.is_null(*node))?;
        self.document.scalar(value).filter(|text| !text.trim().is_empty())
    }

    fn required(&self, path: &str) -> Result<&str, Fault> {
        self.scalar(path).ok_or_else(|| match self.value(path) {
            None => self.wrong(path, "is missing"),
            Some(node) => match self.document.describe(node) {
                found @ ("a list" | "a mapping") => self.wrong(path, &format!("must be text, but is {found}")),
                _ => self.wrong(path, "is empty"),
            },
        })
    }

    /// At the value; where that is missing, at what should hold it.
    fn wrong(&self, path: &str, reason: &str) -> Fault {
        let mut at = self.root;
        for key in path.split('.') {
            at = self.document.get(at, key).unwrap_or(at);
        }
        let node = self.document.written(at);
        Fault {
            at: Some((node.line, node.column + 1)),
            reason: format!("{path} {reason}"),
        }
    }
}
