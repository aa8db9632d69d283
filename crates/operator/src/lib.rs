//! The small shared runtime of every controller: client, apply, serving, telemetry. No domain words.
