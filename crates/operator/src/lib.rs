//! Shared runtime of the controllers: functions to call, not a framework. No domain words.
//!
//! | module | what |
//! |---|---|
//! | [`process`] | process of a controller: arguments and shared parts |
//! | [`client`] | client with its command line arguments |
//! | `kubeconfig` | kubeconfigs, read as kubectl reads them |
//! | [`breaker`] | circuit breaker of all clients of a process |
//! | [`plan`] | result of a pure planner: objects, deletions, status, Events |
//! | [`apply`] | the only writer |
//! | [`autoscaler`] | kinds of autoscalers, and the state of a ScaledObject |
//! | [`echo`] | our writes that the watch has not delivered yet |
//! | `failing` | writes that the API server keeps failing |
//! | [`crd`] | evaluation of CustomResourceDefinitions |
//! | [`scope`] | namespaces that a process watches |
//! | [`watch`] | watches that one invalid object cannot stop |
//! | [`object`] | objects created for another one: kinds, owner, deletion, comparison with the live object |
//! | [`store`], [`packed`] | the objects of a watch, each kept in the least form; an object as compressed text |
//! | [`controller`] | runs a reconcile function with backoff per object, and executes its plans |
//! | [`lease`] | leader election |
//! | [`listen`] | arguments of a server for callers |
//! | [`audit`] | audit log of a server |
//! | [`admin`], [`metrics`] | `/healthz`, `/readyz` and `/metrics` |
//! | [`webhook`] | TLS for webhooks: authority, leaf, CA bundle, server |
//! | [`access`] | RBAC rules |
//! | [`address`] | URLs that users name: none may lead to credentials |
//! | [`destination`] | addresses of Services that a program may connect to for a user |
//! | [`kubelet`] | state of a pod and why it is not ready |
//! | [`services`] | bounded HTTP requests to Services |
//! | [`json`] | containment, size and stable hashes of JSON |
//! | [`quantity`] | canonical quantities of memory and CPU |
//! | [`trace`] | one trace per object |
//! | [`clock`], [`telemetry`], [`shutdown`] | time, logs and signals of a process |

pub mod access;
pub mod address;
pub mod admin;
pub mod apply;
pub mod audit;
pub mod autoscaler;
pub mod breaker;
pub mod client;
pub mod clock;
pub mod controller;
pub mod crd;
pub mod destination;
pub mod echo;
pub mod events;
mod failing;
pub mod health;
pub mod json;
mod kubeconfig;
pub mod kubelet;
pub mod lease;
pub mod listen;
pub mod metrics;
pub mod object;
pub mod packed;
pub mod plan;
pub mod process;
pub mod quantity;
pub mod scope;
pub mod services;
pub mod shutdown;
pub mod store;
pub mod telemetry;
pub mod trace;
pub mod watch;
pub mod webhook;
