//! `app/*`: the daemon itself.

use std::rc::Rc;

use serde_json::json;

use super::form::Form;
use super::{API_VERSION, Answer, Outcome, VERSION, preferences, unknown};
use crate::api::Api;

/// The names of what qBittorrent is built of: there is none of it here.
const NOT_HERE: &str = "none";

pub(super) async fn answer(api: &Rc<Api>, form: &Form, action: &str) -> Outcome {
    match action {
        "version" => Ok(Answer::Text(VERSION.into())),
        "webapiVersion" => Ok(Answer::Text(API_VERSION.into())),
        "buildInfo" => {
            let build = json!({
                "anabranch": env!("CARGO_PKG_VERSION"),
                "qt": NOT_HERE,
                "libtorrent": NOT_HERE,
                "boost": NOT_HERE,
                "openssl": NOT_HERE,
                "zlib": NOT_HERE,
                "bitness": usize::BITS,
                "platform": std::env::consts::OS,
            });
            Ok(build.into())
        }
        "defaultSavePath" => Ok(Answer::Text(api.engine.settings().dir.to_string_lossy().into_owned())),
        // None are sent to where torrent files are fetched from.
        "cookies" => Ok(json!([]).into()),
        "preferences" => Ok(preferences::show(api).into()),
        "setPreferences" => preferences::change(api, form.need("json")?).await,
        "shutdown" => {
            api.about.end.notify_one();
            Ok(Answer::Done)
        }
        _ => Err(unknown()),
    }
}
