//! Any router: whatever it answers, the mapper asks a bounded number of questions, of the router alone, and ends.
//!
//! Input: answers, each behind a byte of what it is and two of its length.
#![no_main]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anabranch_portmap::{Action, Config, Event, Mapper, Port, Protocol};
use libfuzzer_sys::fuzz_target;

const TCP: Port = Port { protocol: Protocol::Tcp, number: 6881 };
const UDP: Port = Port { protocol: Protocol::Udp, number: 6881 };

fuzz_target!(|data: &[u8]| {
    let mut now = Instant::now();
    let config = Config {
        gateway: Ipv4Addr::new(192, 168, 1, 1),
        local: Ipv4Addr::new(192, 168, 1, 2),
        ports: vec![TCP, UDP],
        seed: 7,
    };
    let mut mapper = Mapper::new(config, now);
    let (mut rest, mut asked, mut steps) = (data, None, 0);
    mapper.on_time(now);
    while let Some(([what, high, low], behind)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (bytes, behind) = behind.split_at(len);
        rest = behind;
        steps += 1;
        match what & 7 {
            0 | 1 => mapper.on_datagram(now, bytes),
            2 => mapper.on_datagram(now, &answered(bytes, asked.as_ref())),
            3 => mapper.on_unreachable(now),
            4 => {
                if let Some(Action::Http(request)) = &asked {
                    let status = if what & 8 == 0 { 200 } else { 500 };
                    mapper.on_http(now, request.id, Some((status, bytes)));
                }
            }
            5 => {
                if let Some(Action::Http(request)) = &asked {
                    mapper.on_http(now, request.id, None);
                }
            }
            _ => now += Duration::from_secs(1 << (what >> 3 & 15)),
        }
        mapper.on_time(now);
        let mut actions = 0;
        while let Some(action) = mapper.poll_action() {
            if let Action::Http(request) = &action {
                assert!(request.target.starts_with('/') && request.target.bytes().all(|byte| byte.is_ascii_graphic()));
            }
            asked = Some(action);
            actions += 1;
        }
        assert!(actions <= 8, "one answer, and a burst of questions");
        while let Some(event) = mapper.poll_event() {
            if let Event::Mapped { external, .. } = event {
                assert!(external.port() != 0 && !external.ip().is_unspecified() && !external.ip().is_loopback());
            }
        }
    }
    mapper.close(now);
    for _ in 0..64 {
        while mapper.poll_action().is_some() {}
        now += Duration::from_millis(250);
        mapper.on_time(now);
    }
    assert!(mapper.is_closed() && steps <= data.len());
});

/// The answer of a router of PCP to what was asked last, with `bytes` in the place of some of its own.
fn answered(bytes: &[u8], asked: Option<&Action>) -> Vec<u8> {
    let Some(Action::Datagram { bytes: question, .. }) = asked else { return bytes.to_vec() };
    let mut answer = question.clone();
    if let Some(opcode) = answer.get_mut(1) {
        *opcode |= 0x80;
    }
    answer.resize(answer.len().max(16), 0);
    let end = answer.len();
    for (at, byte) in bytes.iter().enumerate().take(end) {
        answer[end - 1 - at] ^= byte;
    }
    answer
}
