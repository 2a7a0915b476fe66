//! Nothing lives here: cargo wants a target in every package. The tests are in `main.rs`.
