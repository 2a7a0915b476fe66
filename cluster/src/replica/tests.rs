//! A copy among others, step by step.
