//! One torrent, looked at more closely.

use serde_json::{Value, json};

use super::field::{Field, write_list};
use super::form::Form;
use super::row::{Around, fields, limit};
use super::{Answer, Fault, Outcome, one, unknown};
use crate::api::Api;

/// `status` of a tracker: not asked yet, answers, does not.
const TRACKER_WAITS: u8 = 1;
const TRACKER_WORKS: u8 = 2;
const TRACKER_FAILS: u8 = 4;

/// Answers what is looked at.
pub(super) async fn answer(api: &Api, form: &Form, action: &str) -> Outcome {
    let id = one(api, form)?;
    match action {
        "properties" => properties(api, id).await,
        "trackers" => trackers(api, id).await,
        "webseeds" => {
            let urls = api.engine.web_seeds(id).await?;
            Ok(Value::from(urls.into_iter().map(|url| json!({ "url": url })).collect::<Vec<_>>()).into())
        }
        "files" => files(api, form, id).await,
        "pieceStates" => {
            let Ok(info) = api.engine.info(id).await else { return Ok(json!([]).into()) };
            let have = api.engine.have(id).await?;
            let is_whole = api.engine.seen(id, |seen| seen.entry().is_complete()).unwrap_or(false) && have.is_none();
            let is_there = |piece| have.as_ref().map_or(is_whole, |have| have.get(piece));
            let states: Vec<u8> = (0..info.geometry.piece_count()).map(|piece| u8::from(is_there(piece)) * 2).collect();
            Ok(json!(states).into())
        }
        "pieceHashes" => {
            let Ok(info) = api.engine.info(id).await else { return Ok(json!([]).into()) };
            let hashes: Vec<String> =
                info.piece_hashes.iter().map(|hash| anabranch_content::hex::encode(hash)).collect();
            let mut out = Vec::new();
            write_list(hashes.iter().map(String::as_str), &mut out);
            Ok(Answer::Json(out))
        }
        "export" => {
            let bytes = api.engine.torrent_file(id).await;
            let bytes = bytes.ok_or_else(|| {
                Fault::conflict("there is no torrent of it: it is not known yet what it is, or it is none")
            })?;
            let name = api.engine.seen(id, |seen| seen.short_hash()).ok_or_else(Fault::missing)?;
            Ok(Answer::Torrent(bytes, format!("{name}.torrent")))
        }
        _ => Err(unknown()),
    }
}

async fn properties(api: &Api, id: u64) -> Outcome {
    let around = Around::new(api);
    let made = api.engine.seen(id, |seen| {
        let entry = seen.entry();
        let fields = fields(seen, &around);
        let field = |name: &str| -> Value {
            match fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value) {
                Some(Field::Text(text)) => (&**text).into(),
                Some(Field::Whole(number)) => (*number).into(),
                Some(Field::Real(number)) => json!(number),
                Some(Field::Flag(flag)) => (*flag).into(),
                Some(Field::Null) | None => Value::Null,
            }
        };
        let (totals, traffic) = (seen.totals(), seen.traffic());
        let average = |bytes: u64, seconds: u64| bytes.checked_div(seconds).map_or(json!(-1), Value::from);
        let about = entry.about.as_deref().cloned().unwrap_or_default();
        let mut shown = json!({
            "addition_date": entry.added,
            "completion_date": field("completion_on"),
            "created_by": about.created_by,
            "creation_date": about.created.map_or(json!(-1), Value::from),
            "dl_limit": own_limit(entry.limit_down),
            "dl_speed": traffic.down_rate,
            "dl_speed_avg": average(totals.downloaded, totals.active_seconds.saturating_sub(totals.seed_seconds)),
            "hash": seen.short_hash(),
            "is_private": about.private,
            "last_seen": field("seen_complete"),
            "nb_connections": traffic.peers,
            "nb_connections_limit": -1,
            "peers": field("num_leechs"),
            "peers_total": field("num_incomplete"),
            "piece_size": about.piece_len,
            "pieces_have": seen.pieces_have().unwrap_or(if entry.is_complete() { about.pieces } else { 0 }),
            "pieces_num": about.pieces,
            "seeds": field("num_seeds"),
            "seeds_total": field("num_complete"),
            "share_ratio": field("ratio"),
            "time_elapsed": totals.active_seconds,
            "total_downloaded": totals.downloaded,
            "total_downloaded_session": traffic.downloaded,
            "total_uploaded": totals.uploaded,
            "total_uploaded_session": traffic.uploaded,
            "total_wasted": traffic.wasted,
            "up_limit": own_limit(entry.limit_up),
            "up_speed": traffic.up_rate,
            "up_speed_avg": average(totals.uploaded, totals.active_seconds),
        });
        // These are called as in the list.
        for name in [
            "comment",
            "download_path",
            "eta",
            "has_metadata",
            "infohash_v1",
            "infohash_v2",
            "name",
            "popularity",
            "private",
            "progress",
            "reannounce",
            "save_path",
            "seeding_time",
            "total_size",
        ] {
            shown[name] = field(name);
        }
        shown
    });
    Ok(made.ok_or_else(Fault::missing)?.into())
}

/// A rate: -1 where there is no limit, here and nowhere else.
fn own_limit(rate: Option<u64>) -> i64 {
    rate.map_or(-1, |rate| limit(Some(rate)))
}

async fn trackers(api: &Api, id: u64) -> Outcome {
    let own = api.engine.own_addresses(id).await?;
    let note = if own.private { "This torrent is private" } else { "" };
    // What finds peers beside trackers has rows of its own, which clients know by these names.
    let mut rows: Vec<Value> = ["** [DHT] **", "** [PeX] **", "** [LSD] **"]
        .into_iter()
        .map(|name| row(name, -1, if own.private { 0 } else { TRACKER_WORKS }, note))
        .collect();
    let tier = |url: &str| own.trackers.iter().position(|tier| tier.iter().any(|own| own == url));
    let mut told: Vec<(usize, Value)> = Vec::new();
    for tracker in api.engine.trackers(id).await? {
        let url = tracker["url"].as_str().unwrap_or_default();
        let status = match tracker["state"].as_str() {
            Some("working") => TRACKER_WORKS,
            Some("failed") => TRACKER_FAILS,
            _ => TRACKER_WAITS,
        };
        let tier = tier(url).unwrap_or(own.trackers.len());
        let mut shown = row(url, tier as i64, status, tracker["reason"].as_str().unwrap_or_default());
        shown["num_peers"] = tracker["peers"].as_u64().map_or(json!(-1), Value::from);
        told.push((tier, shown));
    }
    told.sort_by_key(|(tier, _)| *tier);
    rows.extend(told.into_iter().map(|(_, shown)| shown));
    Ok(Value::from(rows).into())
}

fn row(url: &str, tier: i64, status: u8, message: &str) -> Value {
    let unknown = if tier < 0 { 0 } else { -1 };
    json!({
        "url": url,
        "tier": tier,
        "status": status,
        "msg": message,
        "num_peers": unknown,
        "num_seeds": unknown,
        "num_leeches": unknown,
        "num_downloaded": unknown,
    })
}

async fn files(api: &Api, form: &Form, id: u64) -> Outcome {
    let Ok(info) = api.engine.info(id).await else { return Ok(json!([]).into()) };
    let files = api.engine.files(id).await?;
    // Clients count the files that hold something; those between them that only fill up are for nobody.
    let wanted: Vec<usize> = match form.get("indexes") {
        None => (0..files.len()).collect(),
        Some(indexes) => {
            let one = |text: &str| text.trim().parse().ok().filter(|index| *index < files.len());
            let bad = |text: &str| Fault::conflict(format!("\"{text}\" is not a valid file index."));
            indexes.split('|').map(|text| one(text).ok_or_else(|| bad(text))).collect::<Result<_, _>>()?
        }
    };
    let is_seed = api.engine.seen(id, |seen| seen.entry().is_complete()).unwrap_or(false);
    let shown = |index: usize| {
        let file = &files[index];
        let number = |name: &str| file[name].as_u64().unwrap_or(0);
        let own = number("index") as usize;
        let pieces = info.pieces_of_file(own);
        // One without bytes lies before the piece that it would be in.
        let at = info.files.get(own).map_or(0, |file| file.offset).min(about_end(&info));
        let first = if pieces.is_empty() { info.geometry.piece_at(at) } else { pieces.start };
        let last = if pieces.is_empty() { i64::from(first) - 1 } else { i64::from(pieces.end) - 1 };
        let mut shown = json!({
            "index": index,
            "name": file["path"],
            "size": file["length"],
            "progress": if number("length") == 0 { 1.0 } else { number("done") as f64 / number("length") as f64 },
            "priority": theirs(number("priority")),
            "availability": -1,
            "piece_range": [i64::from(first), last],
        });
        if index == 0 {
            shown["is_seed"] = is_seed.into();
        }
        shown
    };
    Ok(Value::from(wanted.into_iter().map(shown).collect::<Vec<_>>()).into())
}

/// The last byte of piece space.
fn about_end(info: &anabranch_content::info::Info) -> u64 {
    let Some(last) = info.geometry.piece_count().checked_sub(1) else { return 0 };
    (info.geometry.piece_offset(last) + u64::from(info.geometry.piece_len(last))).saturating_sub(1)
}

/// How much a file is wanted, of 0 to 7, in qBittorrent's steps: not, as usual, high, most.
fn theirs(level: u64) -> u8 {
    match level {
        0 => 0,
        1..=4 => 1,
        5..=6 => 6,
        _ => 7,
    }
}
