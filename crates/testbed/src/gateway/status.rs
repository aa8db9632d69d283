//! Statuses as a Gateway's controller writes them. Pure.

use kube::core::DynamicObject;
use serde_json::{Value, json};

/// Name of the controller in statuses.
pub(super) const CONTROLLER: &str = "testbed.local/simulator";

/// Desired status of an object.
pub(super) struct Status {
    pub(super) object: DynamicObject,
    pub(super) wanted: Value,
}

/// Outcome of a check: reason and message, if it failed.
pub(super) type Verdict = Result<(), (&'static str, String)>;

impl Status {
    /// The status with this time in its conditions, if the object has another.
    pub(super) fn changed(&self, now: &str) -> Option<Value> {
        let mut wanted = self.wanted.clone();
        let mut current = self.object.data["status"].clone();
        set_times(&mut current, now);
        set_times(&mut wanted, now);
        let fields = wanted.as_object()?;
        let differs = fields.iter().any(|(name, value)| current[name] != *value);
        differs.then_some(wanted)
    }
}

/// Status of a route or a pool: the answer of this controller to one parent.
pub(super) fn answer(object: &DynamicObject, parent: &Value, accepted: &Verdict, resolved: &Verdict) -> Value {
    json!({ "parents": [{
        "parentRef": parent,
        "controllerName": CONTROLLER,
        "conditions": [condition(object, "Accepted", accepted), condition(object, "ResolvedRefs", resolved)],
    }] })
}

/// A condition. Its reason is its type unless the check has failed.
pub(super) fn condition(object: &DynamicObject, type_: &str, verdict: &Verdict) -> Value {
    let (status, reason, message) = match verdict {
        Ok(()) => ("True", type_, ""),
        Err((reason, message)) => ("False", *reason, message.as_str()),
    };
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "observedGeneration": object.metadata.generation, "lastTransitionTime": null,
    })
}

fn set_times(value: &mut Value, now: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "lastTransitionTime" {
                    *value = now.into();
                } else {
                    set_times(value, now);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| set_times(item, now)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_written_once() {
        let object = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": { "name": "a", "namespace": "b", "generation": 2 },
        });
        let mut object: DynamicObject = serde_json::from_value(object).unwrap();
        let refused = Err(("NotAllowedByListeners", "no".to_owned()));
        let wanted = answer(&object, &json!({ "name": "g" }), &refused, &Ok(()));
        let status = |object: &DynamicObject| Status {
            object: object.clone(),
            wanted: wanted.clone(),
        };
        let written = status(&object).changed("2026-01-01T00:00:00Z").unwrap();
        assert_eq!(
            written["parents"][0]["conditions"][0],
            json!({
                "type": "Accepted", "status": "False", "reason": "NotAllowedByListeners", "message": "no",
                "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        );
        object.data["status"] = written;
        assert_eq!(status(&object).changed("2026-01-02T00:00:00Z"), None);
    }
}
