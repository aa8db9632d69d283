//! The `kubeairunway` command.
fn main() {}
