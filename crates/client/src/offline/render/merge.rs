//! Server-side apply of a status: fields that a manager owned and no longer sends are removed, fields that it sends are set,
//! other fields are kept. Conditions are a list-map by `type`; every other list is atomic.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A status after a manager that owned `owned` of it has applied `sent`.
pub(super) fn apply<S: Serialize + DeserializeOwned>(
    live: &S,
    owned: &S,
    sent: &Value,
) -> Result<S, serde_json::Error> {
    let mut status = serde_json::to_value(live)?;
    take_out(&mut status, &serde_json::to_value(owned)?, sent);
    put_in(&mut status, sent);
    serde_json::from_value(status)
}

/// Takes out what was owned and is not sent.
fn take_out(live: &mut Value, owned: &Value, sent: &Value) {
    let (Value::Object(live), Value::Object(owned)) = (live, owned) else {
        return;
    };
    for (key, owned) in owned {
        let (Some(here), sent) = (live.get_mut(key), &sent[key.as_str()]) else {
            continue;
        };
        match (here, owned) {
            (here @ Value::Object(_), Value::Object(_)) => {
                take_out(here, owned, sent);
                if here.as_object().is_some_and(Map::is_empty) {
                    live.remove(key);
                }
            }
            (Value::Array(here), Value::Array(owned)) if key == "conditions" => {
                here.retain(|c| !has_type_of(owned, c) || sent.as_array().is_some_and(|sent| has_type_of(sent, c)));
            }
            _ if sent.is_null() => {
                live.remove(key);
            }
            _ => {}
        }
    }
}

fn put_in(live: &mut Value, sent: &Value) {
    match (live, sent) {
        (Value::Object(live), Value::Object(sent)) => {
            for (key, sent) in sent {
                match (live.get_mut(key), sent) {
                    (Some(Value::Array(here)), Value::Array(sent)) if key == "conditions" => {
                        put_conditions_in(here, sent);
                    }
                    (Some(here), sent) => put_in(here, sent),
                    (None, sent) => {
                        live.insert(key.clone(), sent.clone());
                    }
                }
            }
        }
        (live, sent) => live.clone_from(sent),
    }
}

fn put_conditions_in(live: &mut Vec<Value>, sent: &[Value]) {
    for condition in sent {
        match live.iter_mut().find(|c| c["type"] == condition["type"]) {
            Some(here) => here.clone_from(condition),
            None => live.push(condition.clone()),
        }
    }
}

fn has_type_of(conditions: &[Value], condition: &Value) -> bool {
    conditions.iter().any(|c| c["type"] == condition["type"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn applied(live: &Value, owned: &Value, sent: &Value) -> Value {
        apply::<Value>(live, owned, sent).unwrap()
    }

    #[test]
    fn owned_fields_that_are_not_applied_are_removed() {
        let live = json!({"phase": "Running", "provider": {"name": "a", "resourceName": "x"}});
        let rest = json!({"provider": {"name": "a", "resourceName": "x"}});
        assert_eq!(applied(&live, &json!({"phase": "Running"}), &json!({})), rest);
        let mine = json!({"provider": {"resourceName": "x"}});
        let rest = json!({"phase": "Running", "message": "m", "provider": {"name": "a"}});
        assert_eq!(applied(&live, &mine, &json!({"message": "m"})), rest);
    }

    #[test]
    fn an_object_that_is_empty_now_goes() {
        let live = json!({"provider": {"name": "a"}});
        assert_eq!(applied(&live, &live, &json!({})), json!({}));
    }

    #[test]
    fn conditions_of_others_stay_in_place() {
        let live = json!({"conditions": [
            {"type": "Mine", "status": "True"}, {"type": "Theirs", "status": "True"}, {"type": "Old"},
        ]});
        let owned = json!({"conditions": [{"type": "Mine"}, {"type": "Old"}]});
        let sent = json!({"conditions": [{"type": "New"}, {"type": "Mine", "status": "False"}]});
        let expected = json!({"conditions": [
            {"type": "Mine", "status": "False"}, {"type": "Theirs", "status": "True"}, {"type": "New"},
        ]});
        assert_eq!(applied(&live, &owned, &sent), expected);
    }

    #[test]
    fn other_lists_are_replaced() {
        let live = json!({"provider": {"candidates": [{"name": "a"}, {"name": "b"}]}});
        let sent = json!({"provider": {"candidates": [{"name": "c"}]}});
        assert_eq!(applied(&live, &live, &sent), sent);
    }
}
