//! Secrets of this process: in a variable, or in a file.
//!
//! **Invariant:** a secret is no option, so it is in no list of processes; and no error shows it.

use std::path::Path;

use crate::exit::{FAILURE, Failure, USAGE};
use crate::{file, variables};

const BYTES_MIN: usize = 16;
/// A larger file cannot hold a secret.
const BYTES_MAX: usize = 4096;

/// The secret in this variable, or in the file that `option` names. `what` it is, for errors.
pub(crate) fn read(
    what: &str,
    variable: &str,
    option: &str,
    file: Option<&Path>,
) -> Result<Option<String>, Failure> {
    let (secret, place) = match (variables::get(variable), file) {
        (Some(_), Some(_)) => {
            let error = format!("{variable} and {option} cannot be used together");
            return Err(
                Failure::new(USAGE, error).hint(format!("use only one of them for the {what}"))
            );
        }
        (Some(secret), None) => (secret.into_encoded_bytes(), variable.to_owned()),
        (None, Some(path)) => {
            let read = file::read(path).map_err(|error| {
                Failure::new(FAILURE, format!("cannot read {}: {error}", path.display()))
                    .hint("is the path right, and may this user read it?")
            })?;
            (read.trim_ascii().to_vec(), path.display().to_string())
        }
        (None, None) => return Ok(None),
    };
    let printable = secret.iter().all(u8::is_ascii_graphic);
    match String::from_utf8(secret) {
        Ok(secret) if printable && (BYTES_MIN..=BYTES_MAX).contains(&secret.len()) => {
            Ok(Some(secret))
        }
        _ => Err(Failure::new(
            USAGE,
            format!(
                "the {what} in {place} must have at least {BYTES_MIN} bytes, letters, digits and \
                 signs only"
            ),
        )
        .hint("`openssl rand -hex 16` makes a good one")),
    }
}
