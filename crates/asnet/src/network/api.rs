//! The control API: the network as JSON, and links changed by it.
//!
//! `GET /network` shows everything. `POST /link` with `{"a": "1-ff00:0:110", "b": "1-ff00:0:120#7", "up": false}` changes
//! a link, as does `{"a": ..., "set": {"rate": "10 Mbit/s", "loss": "1 %"}, "direction": "there"}`; both answer with the
//! link as it is then. Errors are `{"error": "..."}`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Direction, State};
use crate::control::services::{MISDIRECTED, is_meant_for_an_address};
use crate::link::LinkShape;
use crate::router::{DropReason, InterfaceStats};
use crate::topology::{As, LinkType, set_property, show_properties};

/// Connections at once: a few commands and a web page.
const CONNECTIONS_MAX: usize = 64;
/// Bytes of a request: it names one link.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Time for a request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the system had no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What changes must declare themselves as: no web page can, without asking first.
const JSON: &str = "application/json";

pub(super) async fn serve(state: Arc<State>, listener: TcpListener) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async { (listener.accept().await, slots.clone().acquire_owned().await) };
        tokio::select! {
            Some(_) = connections.join_next() => {}
            (accepted, slot) = accepted => match accepted {
                Ok((stream, _)) => {
                    let state = state.clone();
                    connections.spawn(async move {
                        let _slot = slot;
                        let answer = service_fn(move |request| respond(state.clone(), request));
                        let mut builder = hyper::server::conn::http1::Builder::new();
                        builder.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
                        // What goes wrong on a connection is its client's affair.
                        _ = builder.serve_connection(TokioIo::new(stream), answer).await;
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

async fn respond(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, value) = match (request.method(), request.uri().path()) {
        _ if !is_meant_for_an_address(&request) => (StatusCode::MISDIRECTED_REQUEST, json!({ "error": MISDIRECTED })),
        (&Method::GET, "/network") => (StatusCode::OK, network(&state)),
        (&Method::POST, "/link") => match change(&state, request).await {
            Ok(value) => (StatusCode::OK, value),
            Err(message) => (StatusCode::BAD_REQUEST, json!({ "error": message })),
        },
        _ => (StatusCode::NOT_FOUND, json!({ "error": "use GET /network or POST /link" })),
    };
    let mut response = Response::new(Full::from(format!("{value:#}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    Ok(response)
}

async fn change(state: &State, request: Request<Incoming>) -> Result<Value, String> {
    if request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes) != Some(JSON.as_bytes()) {
        return Err(format!("send content-type: {JSON}"));
    }
    let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
    let body = tokio::time::timeout(REQUEST_TIMEOUT, body).await.map_err(|_| "the request did not arrive in time")?;
    let body = body.map_err(|_| format!("send at most {REQUEST_BYTES_MAX} bytes"))?;
    let order: Value = serde_json::from_slice(&body.to_bytes()).map_err(|error| format!("no JSON: {error}"))?;
    obey(state, &order)
}

/// Does what an order says: all of it, or nothing if a part of it makes no sense.
fn obey(state: &State, order: &Value) -> Result<Value, String> {
    let order = order.as_object().ok_or("send an object with `a`, and `up` or `set`")?;
    if let Some(key) = order.keys().find(|key| !["a", "b", "up", "set", "direction"].contains(&key.as_str())) {
        return Err(format!("`{key}` means nothing: use a, b, up, set and direction"));
    }
    let text = |key| match order.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(format!("`{key}` is {other}: write a text")),
    };
    let a = text("a")?.ok_or("`a` is missing: name an AS or an interface")?;
    let link = state.find_link(a, text("b")?).map_err(|error| error.to_string())?;
    let direction = match text("direction")? {
        None | Some("both") => Direction::Both,
        Some("there") => Direction::There,
        Some("back") => Direction::Back,
        Some(other) => return Err(format!("`{other}` is no direction: use both, there or back")),
    };
    let up = match order.get("up") {
        None => None,
        Some(Value::Bool(up)) => Some(*up),
        Some(other) => return Err(format!("`up` is {other}: write true or false")),
    };
    let mut shapes = state.link(link).map_err(|error| error.to_string())?.shapes;
    let none = Map::new();
    let set = order.get("set").map_or(Some(&none), Value::as_object).ok_or("`set` is no object")?;
    for (at, shape) in shapes.iter_mut().enumerate().filter(|(at, _)| direction.includes(*at)) {
        _ = at;
        for (key, value) in set {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            set_property(shape, key, &value).map_err(|error| error.to_string())?;
        }
        shape.checked().map_err(|error| error.to_string())?;
    }
    if !set.is_empty() {
        for (each, shape) in [Direction::There, Direction::Back].into_iter().zip(shapes) {
            state.set_link_shape(link, each, shape).map_err(|error| error.to_string())?;
        }
    }
    if let Some(up) = up {
        state.set_link_up(link, up).map_err(|error| error.to_string())?;
    }
    Ok(show_link(state, link))
}

fn network(state: &State) -> Value {
    let ases: Vec<Value> = state.topology.ases().iter().map(|each| show_as(state, each)).collect();
    let links: Vec<Value> = (0..state.topology.links().len()).map(|link| show_link(state, link)).collect();
    json!({ "name": state.topology.name, "ases": ases, "links": links })
}

fn show_as(state: &State, each: &As) -> Value {
    let hosts = each.hosts.iter().map(|host| json!({ "name": host.name, "address": host.address.to_string() }));
    let routers = each.routers.iter().map(|router| router.internal.to_string());
    json!({
        "isd_as": each.isd_as.to_string(),
        "core": each.core,
        "here": each.routers.is_empty() || state.routers.contains_key(&each.isd_as),
        "mtu": each.mtu,
        "daemon": each.daemon.to_string(),
        "control": each.control.to_string(),
        "routers": routers.collect::<Vec<_>>(),
        "hosts": hosts.collect::<Vec<_>>(),
        // Of packets between its router and its hosts.
        "counters": state.routers.get(&each.isd_as).map_or(Value::Null, |router| show_stats(&router.internal_stats())),
    })
}

fn show_link(state: &State, index: usize) -> Value {
    let link = &state.topology.links()[index];
    // The index is one of the topology's.
    let Ok(now) = state.link(index) else { return Value::Null };
    let kind = match link.kind {
        LinkType::Core => "core",
        LinkType::ParentChild => "parent-child",
        LinkType::Peering => "peering",
    };
    json!({
        "index": index,
        "kind": kind,
        "a": link.ends[0].to_string(),
        "b": link.ends[1].to_string(),
        "up": now.is_up,
        "there": show_shape(&now.shapes[0]),
        "back": show_shape(&now.shapes[1]),
        "counters": link.ends.map(|end| state.stats(end).map_or(Value::Null, |stats| show_stats(&stats))),
    })
}

fn show_shape(shape: &LinkShape) -> Value {
    json!({
        "rate_bps": shape.rate_bps,
        "delay_us": shape.delay.as_micros() as u64,
        "jitter_us": shape.jitter.as_micros() as u64,
        "loss": shape.loss,
        "queue_bytes": shape.queue_bytes,
        "mtu": shape.mtu,
        "text": show_properties(shape),
    })
}

fn show_stats(stats: &InterfaceStats) -> Value {
    let dropped: Map<String, Value> = DropReason::ALL
        .iter()
        .filter(|reason| stats.dropped_for(**reason) > 0)
        .map(|reason| (reason.name().to_owned(), stats.dropped_for(*reason).into()))
        .collect();
    json!({
        "received_packets": stats.received_packets,
        "received_bytes": stats.received_bytes,
        "sent_packets": stats.sent_packets,
        "sent_bytes": stats.sent_bytes,
        "scmp_packets": stats.scmp_packets,
        "lost_packets": stats.lost_packets,
        "dropped": dropped,
    })
}
