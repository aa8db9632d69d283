//! The pages: each reads its objects, converts them to values, and fills its template.

pub mod actions;
pub mod actors;
pub mod admin;
pub mod chat;
pub mod dead_letters;
pub mod deployment;
pub mod deployments;
pub mod diff;
pub mod edit;
pub mod entries;
pub mod list;
pub mod login;
pub mod logs;
pub mod manifest;
pub mod objects;
pub mod overview;
pub mod providers;
pub mod stacks;
pub mod tokens;
pub mod usage;
