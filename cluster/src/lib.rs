//! Who owns a key, and how its copies stay equal.
