//! `torrents/info` and `torrents/count`.

use std::collections::BTreeSet;

use super::field::{Named, write_list, write_object};
use super::form::Form;
use super::row::{Around, fields, state, trackers};
use super::{Answer, Fault, Outcome};
use crate::api::Api;
use crate::engine::Seen;

/// How many there are.
pub(super) fn count(api: &Api) -> usize {
    let mut count = 0;
    api.engine.for_each(|_| count += 1);
    count
}

/// Which are listed.
struct Wanted {
    filter: String,
    category: Option<String>,
    tag: Option<String>,
    ids: Option<BTreeSet<u64>>,
    private: Option<bool>,
}

impl Wanted {
    fn new(api: &Api, form: &Form) -> Self {
        let hashes = form.list("hashes", '|');
        let known = || hashes.iter().filter_map(|hash| api.engine.by_short_hash(hash)).collect();
        let ids = if hashes.is_empty() { None } else { Some(known()) };
        Self {
            filter: form.text("filter").to_owned(),
            category: form.get("category").map(str::to_owned),
            tag: form.get("tag").map(str::to_owned),
            ids,
            private: form.flag("private"),
        }
    }

    /// Whether nothing says which.
    fn is_all(&self) -> bool {
        self.filter.is_empty()
            && self.category.is_none()
            && self.tag.is_none()
            && self.ids.is_none()
            && self.private.is_none()
    }

    fn admits(&self, seen: Seen<'_>) -> bool {
        let entry = seen.entry();
        let is_of = |wanted: &str, category: &str| {
            // A category has those below it.
            category == wanted
                || !wanted.is_empty() && category.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('/'))
        };
        self.ids.as_ref().is_none_or(|ids| ids.contains(&entry.id))
            && self.category.as_ref().is_none_or(|wanted| is_of(wanted, entry.category.as_deref().unwrap_or_default()))
            && self
                .tag
                .as_ref()
                .is_none_or(|tag| if tag.is_empty() { entry.tags.is_empty() } else { entry.tags.contains(tag) })
            && self.private.is_none_or(|wanted| entry.about.as_ref().is_some_and(|about| about.private) == wanted)
            && passes(&self.filter, seen)
    }
}

/// Whether a filter of qBittorrent's lets a torrent through. One that is not known is none.
fn passes(filter: &str, seen: Seen<'_>) -> bool {
    let (state, traffic) = (state(seen), seen.traffic());
    let is_stopped = matches!(state, "stoppedDL" | "stoppedUP");
    let is_active = match state {
        "downloading" | "metaDL" | "forcedMetaDL" | "forcedDL" | "uploading" | "forcedUP" | "moving" => true,
        "stalledDL" => traffic.up_rate > 0,
        _ => false,
    };
    match filter {
        "downloading" => matches!(
            state,
            "downloading"
                | "metaDL"
                | "forcedMetaDL"
                | "stalledDL"
                | "checkingDL"
                | "stoppedDL"
                | "queuedDL"
                | "forcedDL"
        ),
        "seeding" => matches!(state, "uploading" | "stalledUP" | "checkingUP" | "queuedUP" | "forcedUP"),
        "completed" => {
            matches!(state, "uploading" | "stalledUP" | "checkingUP" | "stoppedUP" | "queuedUP" | "forcedUP")
        }
        "stopped" | "paused" => is_stopped,
        "running" | "resumed" => !is_stopped,
        "active" => is_active,
        "inactive" => !is_active,
        "stalled" => matches!(state, "stalledUP" | "stalledDL"),
        "stalled_uploading" => state == "stalledUP",
        "stalled_downloading" => state == "stalledDL",
        "checking" => matches!(state, "checkingUP" | "checkingDL" | "checkingResumeData"),
        "moving" => state == "moving",
        "errored" => state == "error",
        _ => true,
    }
}

/// The list.
pub(super) fn info(api: &Api, form: &Form) -> Outcome {
    let wanted = Wanted::new(api, form);
    let around = Around::new(api);
    let column = form.text("sort");
    let with_trackers = form.flag("includeTrackers") == Some(true);
    let (limit, offset) = (form.number("limit").unwrap_or(0_i64), form.number("offset").unwrap_or(0_i64));
    let is_whole = column.is_empty() && limit <= 0 && offset == 0;
    let mut out = vec![b'['];
    let mut rows: Vec<(Option<super::field::Field<'static>>, Vec<u8>)> = Vec::new();
    let mut bad_column = false;
    let expected = if wanted.is_all() { count(api) } else { 0 };
    api.engine.for_each(|seen| {
        if bad_column || !wanted.admits(seen) {
            return;
        }
        let mut fields = fields(seen, &around);
        fields.push(("hash", seen.short_hash().into()));
        if is_whole {
            let is_first = out.len() == 1;
            if !is_first {
                out.push(b',');
            }
            write_row(&fields, seen, with_trackers, &mut out);
            if is_first {
                // The others are about as long.
                out.reserve(out.len().saturating_mul(expected));
            }
            return;
        }
        let key = fields.iter().find(|(name, _)| *name == column).map(|(_, value)| owned(value));
        bad_column |= !column.is_empty() && key.is_none();
        let mut row = Vec::new();
        write_row(&fields, seen, with_trackers, &mut row);
        rows.push((key, row));
    });
    if bad_column {
        return Err(Fault::bad("'sort' parameter is invalid"));
    }
    if !column.is_empty() {
        rows.sort_by(|(one, _), (other, _)| match (one, other) {
            (Some(one), Some(other)) => one.order(other),
            _ => std::cmp::Ordering::Equal,
        });
        if form.flag("reverse") == Some(true) {
            rows.reverse();
        }
    }
    for (_, row) in page(&rows, offset, limit) {
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(row);
    }
    out.push(b']');
    Ok(Answer::Json(out))
}

/// The part of a list that is asked for: an offset below 0 counts from the end, one beyond it is none.
fn page<T>(rows: &[T], offset: i64, limit: i64) -> &[T] {
    let len = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let from = if offset < 0 { len.saturating_add(offset) } else { offset };
    let from = if (0..len).contains(&from) { from } else { 0 };
    let to = if limit > 0 { from.saturating_add(limit).min(len) } else { len };
    &rows[from as usize..to as usize]
}

fn owned(field: &super::field::Field<'_>) -> super::field::Field<'static> {
    use super::field::Field;
    match field {
        Field::Text(text) => text.clone().into_owned().into(),
        Field::Whole(number) => Field::Whole(*number),
        Field::Real(number) => Field::Real(*number),
        Field::Flag(flag) => Field::Flag(*flag),
        Field::Null => Field::Null,
    }
}

fn write_row(fields: &[Named<'_>], seen: Seen<'_>, with_trackers: bool, out: &mut Vec<u8>) {
    write_object(fields, |_| true, out);
    if with_trackers {
        out.pop();
        out.extend_from_slice(b",\"trackers\":");
        write_list(trackers(seen.entry()), out);
        out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn pages_are_as_qbittorrent_has_them() {
        let rows = [0, 1, 2, 3];
        assert_eq!(page(&rows, 0, 0), rows);
        assert_eq!(page(&rows, 1, 2), [1, 2]);
        assert_eq!(page(&rows, -1, 0), [3]);
        assert_eq!(page(&rows, -9, 1), [0]);
        assert_eq!(page(&rows, 4, 1), [0]);
        assert_eq!(page(&rows, 3, 9), [3]);
        assert_eq!(page(&rows, i64::MAX, i64::MAX), rows);
        assert!(page::<u8>(&[], -1, 5).is_empty());
    }
}
