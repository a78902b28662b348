//! `transfer/*`: all torrents together.

use std::rc::Rc;

use serde_json::{Map, Value};

use super::field::Named;
use super::form::Form;
use super::{Answer, Fault, Outcome, unknown};
use crate::api::Api;

pub(super) async fn answer(api: &Rc<Api>, form: &Form, action: &str) -> Outcome {
    let limits = || api.engine.with_settings(|settings| settings.limits());
    let shown = |limit: Option<u64>| Ok(Answer::Text(limit.unwrap_or(0).to_string()));
    let slow = || api.engine.with_settings(|settings| settings.slow);
    match action {
        "info" => {
            let mut out = Vec::new();
            super::field::write_object(&info(api), |_| true, &mut out);
            Ok(Answer::Json(out))
        }
        "downloadLimit" => shown(limits().0),
        "uploadLimit" => shown(limits().1),
        "speedLimitsMode" => Ok(Answer::Text(u8::from(slow()).to_string())),
        "setDownloadLimit" | "setUploadLimit" => {
            let limit = form.need_number::<i64>("limit")?;
            let field = match (slow(), action) {
                (false, "setDownloadLimit") => "limit_down",
                (false, _) => "limit_up",
                (true, "setDownloadLimit") => "slow_limit_down",
                (true, _) => "slow_limit_up",
            };
            set(api, field, if limit > 0 { limit.into() } else { Value::Null }).await
        }
        "toggleSpeedLimitsMode" => set(api, "slow", (!slow()).into()).await,
        "setSpeedLimitsMode" => {
            let mode = form.need("mode")?.parse::<i64>();
            set(api, "slow", (mode.map_err(|_| Fault::bad("'mode': invalid argument"))? != 0).into()).await
        }
        "banPeers" => {
            Err(Fault::conflict("whom to have nothing to do with is said at the start: see --block and --ip-filter"))
        }
        _ => Err(unknown()),
    }
}

async fn set(api: &Api, field: &str, value: Value) -> Outcome {
    api.engine.set(&Map::from_iter([(field.to_owned(), value)])).await?;
    Ok(Answer::Done)
}

/// Rates, amounts and limits.
pub(super) fn info(api: &Api) -> Vec<Named<'static>> {
    let sums = api.engine.sums();
    let (down_limit, up_limit) = api.engine.with_settings(|settings| settings.limits());
    let is_reached = !api.about.listening.is_empty();
    vec![
        ("connection_status", if is_reached { "connected" } else { "disconnected" }.into()),
        ("dht_nodes", 0_u64.into()),
        ("dl_info_data", sums.run_downloaded.into()),
        ("dl_info_speed", sums.down_rate.into()),
        ("dl_rate_limit", down_limit.unwrap_or(0).into()),
        ("last_external_address_v4", "".into()),
        ("last_external_address_v6", "".into()),
        ("up_info_data", sums.run_uploaded.into()),
        ("up_info_speed", sums.up_rate.into()),
        ("up_rate_limit", up_limit.unwrap_or(0).into()),
    ]
}
