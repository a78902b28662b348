//! Numbers for Prometheus, in its text format. What stands in labels is ours, so that there are never more of them: the states and the
//! protocols.

use std::fmt::Write;

use hyper::StatusCode;

use super::reply;
use super::{Api, Call, Problem, Reply};
use crate::engine::Sums;
use crate::library::Kind;

impl Api {
    /// Numbers for Prometheus.
    pub(super) fn metrics(&self, call: &Call) -> Result<Reply, Problem> {
        call.look()?;
        let mut text = String::new();
        let mut put = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
            // A text takes all that is written.
            let _ = writeln!(text, "# HELP anabranch_{name} {help}\n# TYPE anabranch_{name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "anabranch_{name}{labels} {value}");
            }
        };
        let one = |value: u64| vec![(String::new(), value)];
        let counts = self.engine.counts_by_kind();
        let labels = |kind: Kind, state: &str| format!("{{state=\"{state}\",protocol=\"{}\"}}", kind.name());
        let contents: Vec<_> = counts.into_iter().map(|((kind, state), count)| (labels(kind, state), count)).collect();
        put("contents", "gauge", "Contents of the library, by state and protocol.", &contents);
        let sums = Kind::ALL.map(|kind| (format!("{{protocol=\"{}\"}}", kind.name()), self.engine.sums_of(kind)));
        type Of = fn(&Sums) -> u64;
        let numbers: [(&str, &str, &str, Of); 5] = [
            ("received_bytes_total", "counter", "Payload received, of all contents that are in the library", |sums| {
                sums.downloaded
            }),
            ("sent_bytes_total", "counter", "Payload sent, of all contents that are in the library", |sums| {
                sums.uploaded
            }),
            ("receive_rate_bytes", "gauge", "Payload received in a second, now", |sums| sums.down_rate),
            ("send_rate_bytes", "gauge", "Payload sent in a second, now", |sums| sums.up_rate),
            ("peers", "gauge", "Peers that are connected, of all contents", |sums| sums.peers),
        ];
        for (name, kind, help, of) in numbers {
            let samples = sums.each_ref().map(|(labels, sums)| (labels.clone(), of(sums)));
            put(name, kind, &format!("{help}, by protocol."), &samples);
        }
        put(
            "ready",
            "gauge",
            "Whether everything was put to work after the start.",
            &one(u64::from(self.engine.is_ready())),
        );
        let (values, syncs) = self.engine.written();
        put("library_values_total", "counter", "Values that were written to the library.", &one(values));
        put("library_syncs_total", "counter", "How often the disk was waited for to have them.", &one(syncs));
        put("event_watchers", "gauge", "Watchers of events.", &one(self.watchers.get() as u64));
        put("http_requests_total", "counter", "Requests that were answered.", &one(self.requests.get()));
        put("uptime_seconds", "gauge", "Seconds since the start.", &one(self.engine.started().elapsed().as_secs()));
        Ok(reply::typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
    }
}
