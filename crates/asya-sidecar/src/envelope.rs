//! The message in a queue. Unknown fields are kept, and the text of a payload is never re-encoded.
//!
//! Implements `docs/reference/asya-protocol.md` section 2.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde::{Deserialize, de::Error as _};
use serde_json::value::{RawValue, to_raw_value};

use crate::transport::queues;

/// A JSON object that keeps the text and the order of its values.
#[derive(Clone, Debug, Default)]
pub struct Object<'a>(Vec<(Cow<'a, str>, Cow<'a, RawValue>)>);

impl<'a> Object<'a> {
    /// Value of a key. If the key occurs twice, the last value, as in Python and Go.
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        self.0.iter().rfind(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// Keys and values, in order.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Replaces a value in place, or appends it.
    pub fn set(&mut self, key: &'static str, value: Cow<'a, RawValue>) {
        let place = self.0.iter().position(|(name, _)| name == key);
        match place {
            Some(index) => {
                self.0[index].1 = value;
                let mut position = 0;
                self.0.retain(|(name, _)| {
                    position += 1;
                    position <= index + 1 || name != key
                });
            }
            None => self.0.push((Cow::Borrowed(key), value)),
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(name, _)| name != key);
    }

    /// The object as JSON text.
    pub fn to_bytes(&self) -> Vec<u8> {
        let text = self.0.iter().map(|(key, value)| key.len() + value.get().len() + 4);
        let mut bytes = Vec::with_capacity(text.sum::<usize>() + 2);
        // Cannot fail: keys are strings, and values are JSON already.
        let _ = serde_json::to_writer(&mut bytes, self);
        bytes
    }
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Object<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(8);
                while let Some((Key(key), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    entries.push((key, Cow::Borrowed(value)));
                }
                Ok(Object(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Key, borrowed if it has no escapes. Serde deserializes a plain `Cow` only as an owned string.
struct Key<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Route of a message.
#[derive(Clone, Debug, Default)]
pub struct Route<'a> {
    /// Actor names, in order.
    pub actors: Vec<Cow<'a, str>>,
    /// Index of the current actor. The route is finished if it is not less than the number of actors.
    pub current: u64,
    /// All keys of the route, including unknown ones.
    object: Object<'a>,
}

impl<'a> Route<'a> {
    /// The current actor.
    pub fn actor(&self) -> Option<&str> {
        let index = usize::try_from(self.current).ok()?;
        self.actors.get(index).map(|name| &**name)
    }

    fn parse(raw: &'a RawValue) -> Result<Self, serde_json::Error> {
        let object: Object<'a> = serde_json::from_str(raw.get())?;
        let mut route = Route::default();
        for (key, value) in &object.0 {
            // Values are borrowed from the message again.
            let Cow::Borrowed(value) = value else { continue };
            match &**key {
                "actors" => {
                    let actors: Option<Vec<Key<'a>>> = serde_json::from_str(value.get())
                        .map_err(|error| serde_json::Error::custom(format!("route.actors: {error}")))?;
                    route.actors = actors.unwrap_or_default().into_iter().map(|Key(name)| name).collect();
                }
                "current" => {
                    route.current = serde_json::from_str(value.get())
                        .map_err(|error| serde_json::Error::custom(format!("route.current: {error}")))?;
                }
                _ => {}
            }
        }
        route.object = object;
        Ok(route)
    }
}

/// A valid message.
#[derive(Clone, Debug)]
pub struct Envelope<'a> {
    /// Id, not empty.
    pub id: Cow<'a, str>,
    /// The route.
    pub route: Route<'a>,
    /// Time after which the result is useless.
    pub deadline: Option<Timestamp>,
    /// Name of the reply queue that gets the result, instead of the end actors.
    pub reply_to: Option<Cow<'a, str>>,
    /// All fields of the message.
    pub object: Object<'a>,
}

/// Reason why a message is not an envelope.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

impl<'a> Envelope<'a> {
    /// Parses a message.
    ///
    /// # Errors
    /// If a required field is missing or invalid.
    pub fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        let object = parse_object(body)?;
        let id = match text(&object, "id")? {
            Some(id) if !id.is_empty() => id,
            Some(_) => return Err(Malformed("id is empty".to_owned())),
            None => return Err(Malformed("id is missing".to_owned())),
        };
        let route = route(&object)?.ok_or_else(|| Malformed("route is missing".to_owned()))?;
        let deadline = match text(&object, "deadline")? {
            None => None,
            Some(text) if text.is_empty() => None,
            Some(text) => Some(text.parse().map_err(|_| {
                Malformed(format!(
                    "deadline: {text:?} is not an RFC 3339 time, such as 2026-01-02T15:04:05Z"
                ))
            })?),
        };
        Ok(Self {
            id,
            route,
            deadline,
            reply_to: reply_to(&object)?,
            object,
        })
    }
}

impl Envelope<'_> {
    /// Number of items into which earlier actors have split the message, at least 1.
    fn item_count(&self) -> usize {
        let count = self.object.get(ITEM_COUNT);
        let count = count.and_then(|raw| serde_json::from_str(raw.get()).ok());
        count.unwrap_or(1).max(1)
    }
}

/// Name of the reply queue of a message, if it has one.
///
/// # Errors
/// The value is not a string, or not the name of a reply queue.
pub fn reply_to<'a>(object: &Object<'a>) -> Result<Option<Cow<'a, str>>, Malformed> {
    match text(object, "reply_to")? {
        Some(name) if !queues::is_reply_name(&name) => {
            let start: String = name.chars().take(60).collect();
            Err(Malformed(format!(
                "reply_to: {start:?} is not the name of a reply queue: use 1 to 40 lower-case letters, digits and '-'"
            )))
        }
        name => Ok(name),
    }
}

/// Parses a message as a JSON object.
///
/// # Errors
/// The message is not a JSON object.
pub fn parse_object(body: &[u8]) -> Result<Object<'_>, Malformed> {
    serde_json::from_slice(body).map_err(|error| Malformed(format!("not a JSON object: {error}")))
}

/// String value of a key. `null` counts as absent.
///
/// # Errors
/// The value is not a string.
pub fn text<'a>(object: &Object<'a>, key: &str) -> Result<Option<Cow<'a, str>>, Malformed> {
    let Some(raw) = borrowed(object, key) else {
        return Ok(None);
    };
    let text: Option<Key<'a>> =
        serde_json::from_str(raw.get()).map_err(|_| Malformed(format!("{key} is not a string")))?;
    Ok(text.map(|Key(text)| text))
}

/// The value of `route`, if any.
///
/// # Errors
/// It is not a route.
pub fn route<'a>(object: &Object<'a>) -> Result<Option<Route<'a>>, Malformed> {
    borrowed(object, "route")
        .map(|raw| Route::parse(raw).map_err(|error| Malformed(format!("invalid route: {error}"))))
        .transpose()
}

fn borrowed<'a>(object: &Object<'a>, key: &str) -> Option<&'a RawValue> {
    match object.0.iter().rfind(|(name, _)| name == key) {
        Some((_, Cow::Borrowed(raw))) => Some(*raw),
        _ => None,
    }
}

/// Number of items, beginning with the message itself, into which the handlers have split it.
const ITEM_COUNT: &str = "item_count";

/// Place of an item among those of its message.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Index in the response.
    pub index: usize,
    /// Number of items in the response.
    pub of: usize,
}

impl Place {
    /// Number in the ids of an item, beginning with 1; 0 for the message itself. Earlier actors may have used the first numbers.
    pub fn number(self, request: &Envelope<'_>) -> usize {
        match self.index {
            0 => 0,
            index => (request.item_count() - 1).saturating_add(index),
        }
    }
}

/// The next message: the request, with the fields of the response's item replaced.
pub fn next<'a>(request: &Envelope<'a>, item: &Object<'a>, item_route: &Route<'a>, place: Place) -> Vec<u8> {
    let mut message = request.object.clone();
    match place.number(request) {
        0 if place.of > 1 => {
            let count = request.item_count().saturating_add(place.of - 1);
            message.set(ITEM_COUNT, owned(&count));
        }
        0 => {}
        number => {
            message.set("id", owned(&format!("{}-{number}", request.id)));
            message.set("parent_id", owned(&request.id));
            message.remove(ITEM_COUNT);
        }
    }
    message.set("route", merged_route(request, item_route));
    for key in ["headers", "payload"] {
        if let Some(raw) = borrowed(item, key) {
            message.set(key, Cow::Borrowed(raw));
        }
    }
    message.to_bytes()
}

/// A received message with the identity of one that was to be sent for it.
pub fn identified<'a>(received: &'a [u8], sent: &'a [u8]) -> Option<Vec<u8>> {
    let (mut message, sent) = (parse_object(received).ok()?, parse_object(sent).ok()?);
    for key in ["id", "parent_id", ITEM_COUNT] {
        match borrowed(&sent, key) {
            Some(raw) => message.set(key, Cow::Borrowed(raw)),
            None => message.remove(key),
        }
    }
    Some(message.to_bytes())
}

/// `route.metadata` is kept if the response has none.
fn merged_route<'a>(request: &Envelope<'a>, route: &Route<'a>) -> Cow<'a, RawValue> {
    let mut object = route.object.clone();
    if object.get("metadata").is_none()
        && let Some(raw) = borrowed(&request.route.object, "metadata")
    {
        object.set("metadata", Cow::Borrowed(raw));
    }
    owned(&object)
}

/// A value as raw JSON. Cannot fail for strings and objects.
pub fn owned<'a>(value: &(impl Serialize + ?Sized)) -> Cow<'a, RawValue> {
    to_raw_value(value).map_or_else(|_| Cow::Borrowed(RawValue::NULL), Cow::Owned)
}
