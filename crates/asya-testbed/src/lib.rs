//! Asya with its real programs, as processes and on a node. For tests only.
//!
//! | module | content |
//! |---|---|
//! | [`pipeline`] | actors as processes, and a client of RabbitMQ |
//! | [`chaos`] | campaigns of faults against actors |
//! | [`stage`] | a node with all that AsyncActors need: broker, KEDA, operator, images |
#![allow(
    clippy::missing_errors_doc,
    reason = "every step of a test can fail, and its error says what did"
)]

pub mod chaos;
pub mod pipeline;
pub mod stage;
