//! What the `kubeairunway` command and the web console share: what is there, what would be made of it, and why.
//!
//! | module | content |
//! |---|---|
//! | [`render`](mod@render) | the offline face of `plan`: pure |
//! | [`validate`](mod@validate) | what would be refused, without a cluster: pure |
//! | [`get`], [`status`], [`why`], [`held`], [`tree`], [`pods`] | what people see of an object: pure |
//! | [`queue`], [`quantity`] | how many messages wait for an actor |
//! | [`diff`], [`operated`], [`change`] | what would change, field by field |
//! | [`bundle`] | what belongs into an archive for who is to help, without secrets |
//! | [`check`] | what is not as it should be in a cluster, and what to do: read, then pure |
//! | [`deploy`] | from a model and a few wishes to a ModelDeployment: pure |
//! | [`target`], [`events`], [`endpoint`], [`chat`], [`talk`] | what a command is about; what was told of it; where it answers, and what |
//! | [`documents`], [`state`] | files become documents, documents become what a cluster holds |
//! | [`source`], [`cluster`], [`access`] | where what is shown is read, and what the user may do there |
//! | [`manifests`] | what must be in a cluster for the control plane to run |
//! | [`text`], [`diagnostic`] | how answers are written, and what goes beside them |

pub mod access;
pub mod bundle;
pub mod change;
pub mod chat;
pub mod check;
pub mod cluster;
pub mod deploy;
pub mod diagnostic;
pub mod diff;
pub mod documents;
pub mod endpoint;
pub mod events;
pub mod get;
pub mod held;
pub mod manifests;
pub mod operated;
pub mod pods;
pub mod quantity;
pub mod queue;
pub mod render;
pub mod source;
pub mod state;
pub mod status;
pub mod talk;
pub mod target;
pub mod text;
pub mod tree;
pub mod validate;
pub mod why;

pub use render::render;
