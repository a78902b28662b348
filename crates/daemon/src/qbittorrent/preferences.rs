//! `app/preferences`: our settings in qBittorrent's words. Those that there are not here are not shown, and setting them does nothing, as
//! in qBittorrent itself.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::add::minutes;
use super::{Answer, Fault, Outcome};
use crate::api::{Api, object};
use crate::library::{DOWNLOADS_MAX, Enough, Own, Schedule, Settings};

/// Seconds of a minute.
const MINUTE: u64 = 60;
/// Numbers of what becomes of a torrent that was shared enough.
/// The schedule that qBittorrent begins with.
const USUAL_SCHEDULE: Schedule = Schedule { from: 8 * 60, to: 20 * 60, days: [true; 7] };
/// Numbers of the days on which a schedule begins: every day, on weekdays, at weekends, from Monday on.
const DAYS: [[bool; 7]; 10] = {
    let mut days = [[false; 7]; 10];
    let mut day = 0;
    while day < 7 {
        days[0][day] = true;
        days[if day < 5 { 1 } else { 2 }][day] = true;
        days[day + 3][day] = true;
        day += 1;
    }
    days
};
const ACTIONS: [(i64, &str); 3] = [(0, "pause"), (1, "remove"), (3, "delete")];

/// All that there is.
pub(super) fn show(api: &Api) -> Value {
    let settings = api.engine.settings();
    let about = &api.about;
    let limit = |limit: Option<u64>| limit.unwrap_or(0);
    let count = |count: Option<u32>| count.map_or(-1, i64::from);
    let time = |seconds: Option<u64>| seconds.map_or(json!(-1), |seconds| seconds.div_ceil(MINUTE).into());
    let action = match settings.enough {
        Enough::Pause => 0,
        Enough::Remove => 1,
        Enough::Delete => 3,
    };
    let schedule = settings.slow_schedule.clone().unwrap_or(USUAL_SCHEDULE);
    let port = |address: &String| address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    json!({
        "add_stopped_enabled": settings.add_paused,
        "alt_dl_limit": limit(settings.slow_limit_down),
        "alt_up_limit": limit(settings.slow_limit_up),
        "auto_tmm_enabled": false,
        "dht": about.discovery.dht,
        "dl_limit": limit(settings.limit_down),
        "listen_port": about.listening.iter().find_map(port).unwrap_or(0),
        "lsd": about.discovery.local,
        "max_active_downloads": count(settings.downloads_max),
        "max_active_torrents": count(settings.active_max),
        "max_active_uploads": count(settings.seeds_max),
        "max_inactive_seeding_time": time(settings.idle_seconds_max),
        "max_inactive_seeding_time_enabled": settings.idle_seconds_max.is_some(),
        "max_ratio": settings.ratio_max.unwrap_or(-1.0),
        "max_ratio_act": action,
        "max_ratio_enabled": settings.ratio_max.is_some(),
        "max_seeding_time": time(settings.seed_seconds_max),
        "max_seeding_time_enabled": settings.seed_seconds_max.is_some(),
        "pex": about.discovery.pex,
        "queueing_enabled": super::row::is_queueing(&settings),
        "save_path": settings.dir.to_string_lossy(),
        "scan_dirs": scan_dirs(&settings),
        "schedule_from_hour": schedule.from / 60,
        "schedule_from_min": schedule.from % 60,
        "schedule_to_hour": schedule.to / 60,
        "schedule_to_min": schedule.to % 60,
        "scheduler_days": days(&schedule),
        "scheduler_enabled": settings.slow_schedule.is_some(),
        "temp_path": settings.incomplete_dir.as_deref().unwrap_or(Path::new("")).to_string_lossy(),
        "temp_path_enabled": settings.incomplete_dir.is_some(),
        "torrent_content_layout": "Original",
        "up_limit": limit(settings.limit_up),
        "use_subcategories": false,
        "web_ui_username": api.passwords.user().unwrap_or_default(),
    })
}

/// The number of the days of a schedule; that of every day where they are others than qBittorrent can have.
fn days(schedule: &Schedule) -> usize {
    DAYS.iter().position(|days| *days == schedule.days).unwrap_or(0)
}

/// Watched folders, and what becomes of each: 1 for the usual folder, or the path of another.
fn scan_dirs(settings: &Settings) -> Map<String, Value> {
    let one = |(folder, dir): (&PathBuf, &Option<PathBuf>)| {
        let to = dir.as_deref().map_or(Value::from(1), |dir| dir.to_string_lossy().into());
        (folder.to_string_lossy().into_owned(), to)
    };
    settings.watched.iter().map(one).collect()
}

/// Sets what a JSON object names.
pub(super) async fn change(api: &Api, text: &str) -> Outcome {
    let wanted = object(text.as_bytes())?;
    let changes = changes(api, &wanted)?;
    if !changes.is_empty() {
        api.engine.set(&changes).await?;
    }
    let text = |name: &str| wanted.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(password) = text("web_ui_password") {
        let user = text("web_ui_username").map(str::to_owned).or_else(|| api.passwords.user());
        let kept = api.passwords.set(user.as_deref().unwrap_or("admin"), password).await;
        kept.map_err(|error| Fault::bad(error.to_string()))?;
    } else if text("web_ui_username").is_some_and(|user| api.passwords.user().as_deref() != Some(user)) {
        return Err(Fault::bad("give `web_ui_password` too: a new name needs a new password"));
    }
    Ok(Answer::Done)
}

/// The schedule of the slow limits, where it is to be another.
fn schedule(settings: &Settings, wanted: &Map<String, Value>) -> Option<Value> {
    let number = |name: &str| wanted.get(name).and_then(Value::as_u64);
    let is_on = wanted.get("scheduler_enabled").and_then(Value::as_bool);
    if is_on == Some(false) {
        return Some(Value::Null);
    }
    let old = settings.slow_schedule.clone().or((is_on == Some(true)).then_some(USUAL_SCHEDULE))?;
    let time = |which: &str, old: u16| {
        let hour = number(&format!("schedule_{which}_hour")).unwrap_or(u64::from(old / 60)).min(23);
        let minute = number(&format!("schedule_{which}_min")).unwrap_or(u64::from(old % 60)).min(59);
        (hour * 60 + minute) as u16
    };
    let days = number("scheduler_days").and_then(|at| DAYS.get(usize::try_from(at).ok()?)).copied();
    let new = Schedule { from: time("from", old.from), to: time("to", old.to), days: days.unwrap_or(old.days) };
    Some(new.to_json())
}

/// What is to be set, in our words.
fn changes(api: &Api, wanted: &Map<String, Value>) -> Result<Map<String, Value>, Fault> {
    let settings = api.engine.settings();
    let mut changes = Map::new();
    let bad = |name: &str| Fault::bad(format!("`{name}` has a value that it cannot have"));
    // Those that are turned on and off by another field, and what they are where they are turned on without a value.
    let switched = |name: &str| wanted.get(&format!("{name}_enabled")).and_then(Value::as_bool);
    if let Some(schedule) = schedule(&settings, wanted) {
        changes.insert("slow_schedule".to_owned(), schedule);
    }
    for (name, value) in wanted {
        let number = || value.as_i64().or_else(|| value.as_f64().map(|number| number as i64)).ok_or_else(|| bad(name));
        let limit = || number().map(|limit| u64::try_from(limit).ok().filter(|limit| *limit > 0));
        let count = || number().map(|count| u32::try_from(count).ok().filter(|count| *count > 0));
        let (field, value) = match name.as_str() {
            "add_stopped_enabled" => ("add_paused", value.as_bool().ok_or_else(|| bad(name))?.into()),
            "alt_dl_limit" => ("slow_limit_down", json!(limit()?)),
            "alt_up_limit" => ("slow_limit_up", json!(limit()?)),
            "dl_limit" => ("limit_down", json!(limit()?)),
            "up_limit" => ("limit_up", json!(limit()?)),
            "max_active_downloads" => ("downloads_max", json!(count()?)),
            "max_active_uploads" => ("seeds_max", json!(count()?)),
            "max_active_torrents" => ("active_max", json!(count()?)),
            "max_ratio" => match switched(name) {
                Some(false) => continue,
                _ => ("ratio_max", json!(value.as_f64().filter(|ratio| *ratio > 0.0))),
            },
            "max_seeding_time" | "max_inactive_seeding_time" => {
                let ours = if name == "max_seeding_time" { "seed_seconds_max" } else { "idle_seconds_max" };
                match (switched(name), minutes(number()?)) {
                    (Some(false), _) => continue,
                    (_, Own::At(seconds)) => (ours, seconds.into()),
                    _ => (ours, Value::Null),
                }
            }
            "max_ratio_enabled" if *value == json!(false) => ("ratio_max", Value::Null),
            "max_seeding_time_enabled" if *value == json!(false) => ("seed_seconds_max", Value::Null),
            "max_inactive_seeding_time_enabled" if *value == json!(false) => ("idle_seconds_max", Value::Null),
            "max_ratio_act" => {
                let action = number()?;
                let known = ACTIONS.iter().find(|(number, _)| *number == action).map(|(_, name)| *name);
                ("enough", known.ok_or_else(|| bad(name))?.into())
            }
            "queueing_enabled" => {
                match (value.as_bool().ok_or_else(|| bad(name))?, super::row::is_queueing(&settings)) {
                    (true, false) if !wanted.contains_key("max_active_downloads") => {
                        ("downloads_max", DOWNLOADS_MAX.into())
                    }
                    (false, true) => {
                        for field in ["seeds_max", "active_max"] {
                            changes.insert(field.to_owned(), Value::Null);
                        }
                        ("downloads_max", Value::Null)
                    }
                    _ => continue,
                }
            }
            "scan_dirs" => {
                let one = |(folder, to): (&String, &Value)| match to {
                    // 0 is for the watched folder itself.
                    Value::Number(number) if number.as_i64() == Some(0) => {
                        Some((folder.clone(), folder.as_str().into()))
                    }
                    Value::Number(_) => Some((folder.clone(), Value::Null)),
                    Value::String(dir) => Some((folder.clone(), dir.as_str().into())),
                    _ => None,
                };
                let folders =
                    value.as_object().and_then(|folders| folders.iter().map(one).collect::<Option<Map<_, _>>>());
                ("watched", folders.ok_or_else(|| bad(name))?.into())
            }
            "temp_path" => match switched(name) {
                Some(false) => continue,
                None if settings.incomplete_dir.is_none() => continue,
                _ => ("incomplete_dir", value.as_str().ok_or_else(|| bad(name))?.into()),
            },
            "temp_path_enabled" if *value == json!(false) => ("incomplete_dir", Value::Null),
            "save_path" => ("dir", value.as_str().ok_or_else(|| bad(name))?.into()),
            _ => continue,
        };
        changes.insert(field.to_owned(), value);
    }
    Ok(changes)
}
