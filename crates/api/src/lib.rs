//! CRD types, conditions, label and name types. No I/O, no tokio, no client.
