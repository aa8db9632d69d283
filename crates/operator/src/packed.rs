//! Watched objects kept as compressed text. A tree of maps takes many times the memory of its text (a map of one field has room
//! for eleven), and an object is read only when something about it changes.

use std::fmt::Debug;
use std::marker::PhantomData;

use kube::Resource;
use kube::core::ObjectMeta;
use lz4_flex::block::{DecompressError, compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Compression dictionary: text that most objects contain.
const WORDS: &[u8] = br#"{"apiVersion":"kind":"metadata":{"annotations":{"creationTimestamp":"20finalizers":["generation":1,"labels":{"app.kubernetes.io/managed-by":"name":"namespace":"default","ownerReferences":[{"blockOwnerDeletion":true,"controller":true,"resourceVersion":"uid":"spec":{"provider":{"resources":{"replicas":1,"status":{"phase":"Running","message":"replicas":{"desired":1,"ready":1,"available":1},"endpoint":{"service":"port":8000},"selector":"conditions":[{"lastTransitionTime":"message":"observedGeneration":1,"reason":"status":"True","type":"Ready"}"#;

/// Reason why a text cannot be read. No such error is expected, because this module wrote the text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not what was compressed.
    #[error("the kept text of an object is damaged")]
    Damaged(#[from] DecompressError),
    /// It is not what was written.
    #[error("the kept text of an object is not one of its kind")]
    Unreadable(#[from] serde_json::Error),
}

/// An object, or a part of one, as compressed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(Box<[u8]>);

impl Text {
    /// Compresses what was read as JSON, and can be written as JSON.
    pub fn of(object: &impl Serialize) -> Self {
        let json = serde_json::to_vec(object).unwrap_or_default();
        let compressed = compress_prepend_size_with_dict(&json, WORDS);
        // Copied: its buffer has room for more than the text, and cut off in place would leave a hole beside each text that is
        // kept.
        Self(compressed.as_slice().into())
    }

    /// Reads the object, or a part of it as a type that has only some of its fields.
    ///
    /// # Errors
    ///
    /// If the type does not fit.
    pub fn read<K: DeserializeOwned>(&self) -> Result<K, Error> {
        let json = decompress_size_prepended_with_dict(&self.0, WORDS)?;
        Ok(serde_json::from_slice(&json)?)
    }

    /// The metadata of the object. No tree is made of the rest of it, as reading a `PartialObjectMeta` does.
    pub fn metadata(&self) -> Option<ObjectMeta> {
        #[derive(Deserialize)]
        struct Head {
            metadata: ObjectMeta,
        }
        // It was written by us: none is expected not to be readable.
        let head: Head = self.read().ok()?;
        Some(head.metadata)
    }
}

/// An object as compressed text, for a store whose objects are read one at a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "K", bound = "K: Resource + Serialize + DeserializeOwned")]
pub struct Packed<K> {
    /// Namespace and name; and the resource version, from which a watch is resumed.
    metadata: ObjectMeta,
    text: Text,
    kind: PhantomData<fn() -> K>,
}

impl<K> Packed<K> {
    /// Its text, without the metadata beside it.
    pub fn into_text(self) -> Text {
        self.text
    }

    /// The same without the resource version, for a store that the watch has delivered it to.
    #[must_use]
    pub fn delivered(mut self) -> Self {
        self.metadata.resource_version = None;
        self
    }
}

impl<K: DeserializeOwned> Packed<K> {
    /// The object.
    ///
    /// # Errors
    ///
    /// None is expected: the text was written by us.
    pub fn unpack(&self) -> Result<K, Error> {
        self.read()
    }

    /// A part of the object, as a type that has only some of its fields.
    ///
    /// # Errors
    ///
    /// When the type is not one of them.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.text.read()
    }
}

impl<K: Resource + Serialize> From<K> for Packed<K> {
    /// Drops the managed fields. No controller reads them, and they are a fifth of the text.
    fn from(mut object: K) -> Self {
        object.meta_mut().managed_fields = None;
        let metadata = object.meta();
        Self {
            metadata: ObjectMeta {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
                resource_version: metadata.resource_version.clone(),
                ..ObjectMeta::default()
            },
            text: Text::of(&object),
            kind: PhantomData,
        }
    }
}

impl<K: Resource> Resource for Packed<K> {
    crate::watch::same_kind!(K);

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        let labels: serde_json::Map<_, _> = (0..40)
            .map(|i| (format!("example.org/label-{i}"), json!("same")))
            .collect();
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "ns", "name": "a", "uid": "1-2-3", "resourceVersion": "7", "labels": labels,
                "annotations": {"example.org/long": "x", "kubeairunway.ai/traceparent": "00-1-2-01"},
            },
            "spec": {"containers": [{"name": "main", "image": "i"}]},
            "status": {"phase": "Running"},
        }))
        .unwrap()
    }

    #[test]
    fn unpacked_object_is_the_packed_one() {
        let packed = Packed::from(pod());
        assert_eq!(packed.unpack().unwrap(), pod());
        assert_eq!(packed.meta().name, pod().metadata.name);
        assert_eq!(packed.meta().namespace, pod().metadata.namespace);
        assert_eq!(packed.meta().resource_version, pod().metadata.resource_version);
        assert_eq!(packed.meta().labels, None);
        assert_eq!(packed.delivered().meta().resource_version, None);
    }

    #[test]
    fn a_packed_object_is_smaller_than_its_text() {
        let text = serde_json::to_vec(&pod()).unwrap();
        assert!(Packed::from(pod()).text.0.len() * 3 < text.len());
    }

    #[test]
    fn a_damaged_text_is_an_error() {
        let mut packed = Packed::from(pod());
        packed.text = Text(packed.text.0[..20].into());
        assert!(matches!(packed.unpack(), Err(Error::Damaged(_))));
    }
}
