//! Which content of a daemon is meant: by its number, its hash or the beginning of that, or its name.

use anabranch_daemon::client::Client;
use anabranch_swarm::http::names::url_encoded;
use serde_json::Value;

use super::{all, row};
use crate::exit::Failure;

/// Contents that are shown where a name may mean any of several.
const SHOWN_MAX: usize = 20;

/// The numbers of the contents that are meant, in their order. Where one text means none, or several, nothing is to be done with the others
/// either.
pub(super) async fn numbers(client: &Client, texts: &[String]) -> Result<Vec<String>, Failure> {
    let mut numbers = Vec::new();
    for text in texts {
        numbers.push(number(client, text).await?);
    }
    Ok(numbers)
}

/// The number of the content that is meant.
pub(super) async fn number(client: &Client, text: &str) -> Result<String, Failure> {
    let contents = all(client, &format!("&named={}", url_encoded(text))).await?;
    match contents.as_slice() {
        [content] => Ok(content["id"].to_string()),
        [] => Err(Failure::input(format!(
            "no content has the number, the name or the hash `{text}`: `anabranch list` shows which there are"
        ))),
        several => Err(ambiguous(text, several)),
    }
}

fn ambiguous(text: &str, contents: &[Value]) -> Failure {
    let count = contents.len();
    let mut failure = Failure::input(format!("`{text}` may be any of {count} contents: say which by its number"));
    failure.details = contents.iter().take(SHOWN_MAX).map(row).collect();
    if count > SHOWN_MAX {
        failure.details.push(format!("      and {} more", count - SHOWN_MAX));
    }
    failure
}
