//! The provider contract: one trait, one reconcile loop, registration, conformance.
