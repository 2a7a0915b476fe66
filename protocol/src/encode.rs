//! The entry to encoding: the outcome of a command becomes a reply in the form of its request.
//!
//! Not here: the forms themselves (`text_reply`, `meta`).

use crate::meta;
use crate::reply::Outcome;
use crate::request::{Command, Form};
use crate::text_reply::{encode_native, encode_text};

/// Appends the reply to `command`, or nothing if `form` suppresses it.
pub fn encode(out: &mut Vec<u8>, command: &Command<'_>, form: &Form<'_>, outcome: &Outcome<'_>) {
    match form {
        Form::Text { quiet: true } | Form::Native { quiet: true } => {}
        Form::Text { quiet: false } => encode_text(out, command, outcome),
        Form::Meta { .. } => meta::encode(out, command, form, outcome),
        Form::Native { quiet: false } => encode_native(out, command, outcome),
    }
}
