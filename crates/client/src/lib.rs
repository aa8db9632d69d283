//! The part of the product that the `kubeairunway` command and the web console share.
//!
//! | folder | content | modules |
//! |---|---|---|
//! | `offline/` | what needs no cluster: render, validate, why, deploy from manifests | [`documents`], [`state`], [`render`](mod@render), [`validate`](mod@validate), [`why`], [`deploy`] |
//! | `view/` | what people see of an object, computed from values | [`get`], [`status`], [`explain`], [`jsonpath`], [`messages`], [`tree`], [`pods`], [`providers`], [`events`], [`endpoint`], [`change`], [`chat`], [`depth`], [`fit_report`], [`token_usage`], [`top`] |
//! | `live/` | requests to a cluster, with the user's permissions | [`cluster`], [`source`], [`access`], [`asya_gateway`], [`components`], [`daily_usage`], [`diff`], [`fitting`], [`operated`], [`proxied`], [`queue`], [`router`], [`talk`], [`usage`] |
//!
//! Each folder uses those above it only. [`target`], [`text`], [`diagnostic`] and [`quantity`] are below all.

mod live;
mod offline;
mod view;

pub mod diagnostic;
pub mod quantity;
pub mod target;
pub mod text;

pub use live::{
    access, asya_gateway, cluster, components, daily_usage, diff, fitting, operated, proxied, queue, router, source,
    talk, usage,
};
pub use offline::render::render;
pub use offline::{deploy, documents, render, state, validate, why};
pub use view::{
    change, chat, depth, endpoint, events, explain, fit_report, get, jsonpath, messages, pods, providers, status,
    token_usage, top, tree,
};
