//! `torrents/add`: torrent files, links, and addresses that torrent files are fetched from.

use std::rc::Rc;

use tokio::task::JoinSet;

use super::form::Form;
use super::{Answer, Fault, Outcome};
use crate::api::Api;
use crate::engine::{NewContent, NewSource, Refusal};
use crate::library::{Entry, Origin, Own};

/// Links in one request.
const LINKS_MAX: usize = 200;
/// Seconds of a minute: what qBittorrent counts times of sharing in.
const MINUTE: u64 = 60;

/// Adds what a request has.
pub(super) async fn add(api: &Rc<Api>, form: Form) -> Outcome {
    let links: Vec<String> = form.list("urls", '\n');
    if links.len() > LINKS_MAX {
        return Err(Fault::bad(format!("more than {LINKS_MAX} links at once")));
    }
    let options = options(&form);
    if let Some(category) = &options.category
        && !api.engine.categories().contains_key(category)
    {
        api.engine.put_category(category, None).await?;
    }
    api.engine.add_tags(&options.tags).await?;
    let sources = links.iter().map(|link| source(link));
    let Form { files, .. } = &form;
    let sources = sources.chain(files.iter().map(|(_, bytes)| NewSource::Torrent(bytes.clone())));
    let dir = Some(form.text("savepath").trim()).filter(|dir| !dir.is_empty());
    let paused = form.flag("stopped").or_else(|| form.flag("paused"));
    // What is fetched from elsewhere takes its time.
    let mut adding = JoinSet::new();
    for source in sources {
        let new = NewContent {
            source,
            dir: dir.map(Into::into),
            paused,
            to_front: form.flag("addToTopOfQueue") == Some(true),
            options: options.clone(),
        };
        let api = Rc::clone(api);
        adding.spawn_local(async move { api.engine.add(new).await });
    }
    let (mut added, mut refused) = (0, None);
    while let Some(outcome) = adding.join_next().await {
        match outcome {
            Ok(Ok(_)) => added += 1,
            Ok(Err(refusal)) => {
                refused.get_or_insert(refusal);
            }
            Err(error) => return Err(Fault::conflict(error.to_string())),
        }
    }
    match refused {
        _ if added > 0 => Ok(Answer::Text("Ok.".into())),
        // qBittorrent says no more of these either.
        None | Some(Refusal::Duplicate(..) | Refusal::Source(_)) => Ok(Answer::Text("Fails.".into())),
        Some(refusal) => Err(refusal.into()),
    }
}

/// What a line means.
fn source(link: &str) -> NewSource {
    let is = |prefix: &str| link.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
    if is("http://") || is("https://") {
        return NewSource::Url(link.to_owned());
    }
    let is_hex = link.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_base32 = link.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match link.len() {
        40 if is_hex => NewSource::Link(format!("magnet:?xt=urn:btih:{link}")),
        32 if is_base32 => NewSource::Link(format!("magnet:?xt=urn:btih:{link}")),
        64 if is_hex => NewSource::Link(format!("magnet:?xt=urn:btmh:1220{link}")),
        _ => NewSource::Link(link.to_owned()),
    }
}

/// How what is added is to be treated. As in qBittorrent, a number that is none is as if it were not there.
fn options(form: &Form) -> Entry {
    let text = |name: &str| Some(form.text(name).trim()).filter(|text| !text.is_empty()).map(str::to_owned);
    let limit =
        |name: &str| form.number::<i64>(name).and_then(|limit| u64::try_from(limit).ok()).filter(|limit| *limit > 0);
    Entry {
        title: text("rename"),
        category: text("category"),
        tags: form.list("tags", ',').into_iter().collect(),
        forced: form.flag("forced") == Some(true),
        sequential: form.flag("sequentialDownload") == Some(true),
        edges_first: form.flag("firstLastPiecePrio") == Some(true),
        limit_down: limit("dlLimit"),
        limit_up: limit("upLimit"),
        ratio_max: form.number("ratioLimit").map_or(Own::Usual, ratio),
        seed_seconds_max: form.number("seedingTimeLimit").map_or(Own::Usual, minutes),
        idle_seconds_max: form.number("inactiveSeedingTimeLimit").map_or(Own::Usual, minutes),
        ..Entry::new(0, Origin::Torrent, String::new(), "".into())
    }
}

/// A limit as qBittorrent writes it: -2 for that of the settings, -1 for none.
pub(super) fn ratio(ratio: f64) -> Own<f64> {
    match ratio {
        ratio if ratio >= 0.0 && ratio.is_finite() => Own::At(ratio),
        -1.0 => Own::None,
        _ => Own::Usual,
    }
}

/// The same in minutes.
pub(super) fn minutes(minutes: i64) -> Own<u64> {
    match u64::try_from(minutes) {
        // As soon as it can be.
        Ok(minutes) => Own::At(minutes.saturating_mul(MINUTE).max(1)),
        Err(_) if minutes == -1 => Own::None,
        Err(_) => Own::Usual,
    }
}
