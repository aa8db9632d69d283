//! The only entry points of the project.
fn main() {}
