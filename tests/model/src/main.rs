//! The model runner.
fn main() {}
