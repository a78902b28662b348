//! `auth/*`: a name and a password, or one of the daemon's tokens as the password, for a cookie.

use std::time::Instant;

use hyper::StatusCode;
use hyper::header::SET_COOKIE;

use super::form::Form;
use super::{Answer, Outcome, unknown};
use crate::api::{Api, Call, cookies, reply};

/// The cookie that qBittorrent's clients look for.
pub(crate) const COOKIE_NAME: &str = "SID";

pub(super) async fn answer(api: &Api, call: &Call, form: &Form, action: &str) -> Outcome {
    match action {
        "login" => login(api, call, form).await,
        "logout" => {
            cookies(&call.headers).for_each(|cookie| api.keys.forget(cookie));
            let field = format!("{COOKIE_NAME}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0");
            Ok(Answer::Reply(Box::new(reply::with(
                reply::typed(StatusCode::OK, "text/plain; charset=UTF-8", ""),
                SET_COOKIE,
                &field,
            ))))
        }
        _ => Err(unknown()),
    }
}

async fn login(api: &Api, call: &Call, form: &Form) -> Outcome {
    if call.access.is_some() {
        return Ok(Answer::Text("Ok.".into()));
    }
    let access = match api.access_of(form.text("username"), form.text("password")).await {
        Ok(access) => access,
        // What qBittorrent answers, in these words, which clients look for.
        Err(problem) if problem.status == StatusCode::UNAUTHORIZED => return Ok(Answer::Text("Fails.".into())),
        Err(problem) => return Err(problem.into()),
    };
    let cookie = api.keys.cookie(access, Instant::now());
    let cookie = cookie.map_err(|error| super::Fault::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let field = format!("{COOKIE_NAME}={cookie}; {}", api.cookie_rules());
    Ok(Answer::Reply(Box::new(reply::with(
        reply::typed(StatusCode::OK, "text/plain; charset=UTF-8", "Ok."),
        SET_COOKIE,
        &field,
    ))))
}
