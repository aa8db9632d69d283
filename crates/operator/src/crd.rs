//! A CustomResourceDefinition reduced to what controllers need: served versions, and the types of fields. Some schemas are
//! megabytes as text and ten times that as Kubernetes' own types, which a process would keep in memory.

use std::fmt;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::core::{NotUsed, Object};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

/// A reduced CustomResourceDefinition.
pub type Crd = Object<Spec, NotUsed>;

/// The part of the spec that is read.
#[derive(Clone, Debug, Deserialize)]
pub struct Spec {
    /// Versions of the kind.
    pub versions: Vec<Version>,
    #[serde(default)]
    conversion: Option<Conversion>,
}

#[derive(Clone, Debug, Deserialize)]
struct Conversion {
    strategy: String,
}

/// A version of a kind.
#[derive(Clone, Debug, Deserialize)]
pub struct Version {
    /// Name, such as `v1beta1`.
    pub name: String,
    /// Whether the API server serves it.
    pub served: bool,
    /// Whether objects are stored in it.
    pub storage: bool,
    #[serde(default)]
    schema: Option<Schema>,
}

#[derive(Clone, Debug, Deserialize)]
struct Schema {
    #[serde(rename = "openAPIV3Schema")]
    root: Option<Field>,
}

/// A field of a kind.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Field {
    #[serde(default, rename = "type")]
    kind: Option<Box<str>>,
    #[serde(default)]
    properties: Option<Fields>,
    #[serde(default)]
    items: Option<Box<Self>>,
    #[serde(default)]
    additional_properties: Values,
    #[serde(default, rename = "x-kubernetes-preserve-unknown-fields")]
    keeps_unknown: bool,
    #[serde(default, rename = "x-kubernetes-int-or-string")]
    int_or_string: bool,
}

/// Fields by name. A list needs less memory: a map of one entry has room for eleven.
#[derive(Clone, Debug, Default)]
struct Fields(Box<[(Box<str>, Field)]>);

/// Type of a map's values, if it is a map.
#[derive(Clone, Debug, Default)]
struct Values(Option<Box<Field>>);

impl Spec {
    /// Whether a webhook converts objects between versions. Without one, the API server changes only `apiVersion`, and drops the
    /// fields that the storage version lacks.
    pub fn has_conversion_webhook(&self) -> bool {
        self.conversion.as_ref().is_some_and(|c| c.strategy == "Webhook")
    }
}

impl Version {
    /// Root of the schema, if the version has one.
    pub fn root(&self) -> Option<&Field> {
        self.schema.as_ref()?.root.as_ref()
    }
}

impl Field {
    /// Type, such as `string`; `any` without a type.
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref().filter(|_| !self.int_or_string && !self.is_open())
    }

    /// Whether it preserves unknown fields.
    pub fn is_open(&self) -> bool {
        self.keeps_unknown && self.properties.is_none()
    }

    /// The field of this name.
    pub fn field(&self, name: &str) -> Option<&Self> {
        let Fields(fields) = self.properties.as_ref()?;
        fields.iter().find(|(n, _)| **n == *name).map(|(_, field)| field)
    }

    /// Type of a list's items.
    pub fn items(&self) -> Option<&Self> {
        self.items.as_deref()
    }

    /// Type of a map's values.
    pub fn values(&self) -> Option<&Self> {
        self.additional_properties.0.as_deref()
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("fields by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    fields.push(entry);
                }
                Ok(Fields(fields.into()))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SchemaOrBool;
        impl<'de> Visitor<'de> for SchemaOrBool {
            type Value = Values;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a schema, true or false")
            }

            fn visit_bool<E>(self, _: bool) -> Result<Values, E> {
                Ok(Values(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Values, A::Error> {
                let field = Field::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Values(Some(field.into())))
            }
        }
        deserializer.deserialize_any(SchemaOrBool)
    }
}

/// Reduces a complete definition.
impl From<&CustomResourceDefinition> for Spec {
    fn from(crd: &CustomResourceDefinition) -> Self {
        let versions = crd.spec.versions.iter().map(|version| Version {
            name: version.name.clone(),
            served: version.served,
            storage: version.storage,
            schema: version.schema.as_ref().map(|schema| Schema {
                root: schema.open_api_v3_schema.as_ref().map(Field::from),
            }),
        });
        Self {
            versions: versions.collect(),
            conversion: crd.spec.conversion.as_ref().map(|conversion| Conversion {
                strategy: conversion.strategy.clone(),
            }),
        }
    }
}

impl From<&JSONSchemaProps> for Field {
    fn from(schema: &JSONSchemaProps) -> Self {
        let boxed = |schema: &JSONSchemaProps| Box::new(Self::from(schema));
        Self {
            kind: schema.type_.as_deref().map(Into::into),
            properties: schema.properties.as_ref().map(|properties| {
                let fields = properties
                    .iter()
                    .map(|(name, field)| (name.as_str().into(), field.into()));
                Fields(fields.collect())
            }),
            items: schema.items.as_ref().and_then(|items| match items {
                JSONSchemaPropsOrArray::Schema(item) => Some(boxed(item)),
                JSONSchemaPropsOrArray::Schemas(items) => items.first().map(boxed),
            }),
            additional_properties: Values(schema.additional_properties.as_ref().and_then(|values| match values {
                JSONSchemaPropsOrBool::Schema(value) => Some(boxed(value)),
                JSONSchemaPropsOrBool::Bool(_) => None,
            })),
            keeps_unknown: schema.x_kubernetes_preserve_unknown_fields == Some(true),
            int_or_string: schema.x_kubernetes_int_or_string == Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_ways_lead_to_the_same_fields() {
        let schema = json!({ "type": "object", "description": "not kept", "properties": {
            "list": { "type": "array", "items": { "type": "integer" } },
            "map": { "type": "object", "additionalProperties": { "type": "string" } },
            "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
            "either": { "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] },
            "closed": { "type": "object", "additionalProperties": false },
        }});
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": "things.acme.example" },
            "spec": {
                "group": "acme.example", "scope": "Namespaced", "names": { "kind": "Thing", "plural": "things" },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
                "conversion": { "strategy": "Webhook" },
            },
            "status": { "storedVersions": ["v1"] },
        });
        let lean: Crd = serde_json::from_value(crd.clone()).unwrap();
        let whole: CustomResourceDefinition = serde_json::from_value(crd).unwrap();
        for spec in [lean.spec, Spec::from(&whole)] {
            assert!(spec.has_conversion_webhook());
            let [version] = spec.versions.as_slice() else {
                panic!("{spec:?}")
            };
            let root = version.root().unwrap();
            let kind = |field: Option<&Field>| field.and_then(Field::kind).map(str::to_owned);
            assert!(version.served && version.storage && root.kind() == Some("object"));
            assert_eq!(
                kind(root.field("list").and_then(Field::items)).as_deref(),
                Some("integer")
            );
            assert_eq!(
                kind(root.field("map").and_then(Field::values)).as_deref(),
                Some("string")
            );
            assert!(root.field("free").is_some_and(Field::is_open));
            assert!(root.field("either").is_some_and(|either| either.kind().is_none()));
            assert!(root.field("closed").is_some_and(|closed| closed.values().is_none()));
            assert!(root.field("nothing").is_none());
        }
    }
}
