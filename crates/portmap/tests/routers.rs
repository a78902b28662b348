//! A mapper and routers of every kind, in virtual time: those that do as they are asked, and those that do not.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anabranch_portmap::{Action, Config, Event, HttpRequest, Mapper, Method, Port, Protocol, Refusal};
use proptest::prelude::*;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);
const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 1);
const TCP: Port = Port { protocol: Protocol::Tcp, number: 6881 };
const UDP: Port = Port { protocol: Protocol::Udp, number: 6881 };

/// What a router is asked, and how it answers.
#[derive(Debug)]
enum Asked<'a> {
    Datagram(u16, &'a [u8]),
    Http(&'a HttpRequest),
}

enum Answer {
    Nothing,
    Datagram(Vec<u8>),
    Http(u16, String),
    Unreachable,
}

struct World<R> {
    mapper: Mapper,
    router: R,
    now: Instant,
    events: Vec<Event>,
    actions: usize,
}

impl<R: FnMut(Asked<'_>, u32) -> Answer> World<R> {
    fn new(router: R) -> Self {
        let now = Instant::now();
        let config = Config { gateway: GATEWAY, local: LOCAL, ports: vec![TCP, UDP], seed: 7 };
        Self { mapper: Mapper::new(config, now), router, now, events: Vec::new(), actions: 0 }
    }

    /// Lets the router answer, `seconds` after its start.
    fn talk(&mut self, seconds: u32) {
        self.mapper.on_time(self.now);
        while let Some(action) = self.mapper.poll_action() {
            self.actions += 1;
            let answer = match &action {
                Action::Datagram { port, bytes } => (self.router)(Asked::Datagram(*port, bytes), seconds),
                Action::Http(request) => (self.router)(Asked::Http(request), seconds),
            };
            match (action, answer) {
                (_, Answer::Datagram(bytes)) => self.mapper.on_datagram(self.now, &bytes),
                (_, Answer::Unreachable) => self.mapper.on_unreachable(self.now),
                (Action::Http(request), Answer::Http(status, body)) => {
                    self.mapper.on_http(self.now, request.id, Some((status, body.as_bytes())));
                }
                (Action::Http(request), _) => self.mapper.on_http(self.now, request.id, None),
                (Action::Datagram { .. }, _) => {}
            }
        }
        self.events.extend(std::iter::from_fn(|| self.mapper.poll_event()));
    }

    /// Goes on for so long.
    fn run(&mut self, time: Duration) {
        let (start, end) = (self.now, self.now + time);
        let mut steps = 0;
        loop {
            self.talk((self.now - start).as_secs() as u32);
            let Some(next) = self.mapper.deadline().filter(|next| *next <= end) else { break };
            self.now = next.max(self.now + Duration::from_millis(1));
            steps += 1;
            assert!(steps < 20_000, "it goes round and round");
        }
        self.now = end;
    }

    fn close(&mut self) {
        self.mapper.close(self.now);
        self.run(Duration::from_secs(3));
        assert!(self.mapper.is_closed() && self.mapper.deadline().is_none());
    }
}

/// A router of PCP that keeps what it opens in `table`: port, and seconds.
fn pcp(table: &mut Vec<(u8, u16, u32)>, question: &[u8], seconds: u32) -> Answer {
    let (protocol, port) = (question[36], u16::from_be_bytes([question[40], question[41]]));
    let lifetime = u32::from_be_bytes(question[4..8].try_into().unwrap());
    table.retain(|(held, number, _)| (*held, *number) != (protocol, port));
    if lifetime > 0 {
        table.push((protocol, port, lifetime));
    }
    let mut answer = question.to_vec();
    answer[1] |= 0x80;
    answer[8..12].copy_from_slice(&(1000 + seconds).to_be_bytes());
    answer[12..24].fill(0);
    answer[44..60].copy_from_slice(&OUTSIDE.to_ipv6_mapped().octets());
    Answer::Datagram(answer)
}

fn mapped(port: Port, number: u16, method: Method) -> Event {
    Event::Mapped { port, external: SocketAddrV4::new(OUTSIDE, number), method }
}

#[test]
fn pcp_opens_renews_and_gives_back() {
    let (table, asked) = (std::cell::RefCell::new(Vec::new()), std::cell::Cell::new(0));
    let mut world = World::new(|question, seconds| match question {
        Asked::Datagram(5351, bytes) => {
            asked.set(asked.get() + 1);
            pcp(&mut table.borrow_mut(), bytes, seconds)
        }
        other => panic!("{other:?}"),
    });
    world.run(Duration::from_secs(10));
    assert_eq!(world.events, [mapped(TCP, 6881, Method::Pcp), mapped(UDP, 6881, Method::Pcp)]);
    assert_eq!((table.borrow().len(), asked.get()), (2, 2));
    world.run(Duration::from_secs(3 * 3600));
    assert_eq!(world.events.len(), 2, "what goes on is no news");
    assert_eq!(asked.get(), 2 + 2 * 6, "twice an hour");
    world.close();
    assert!(table.borrow().is_empty());
}

#[test]
fn a_router_that_restarts_is_asked_at_once() {
    let (table, began) = (std::cell::RefCell::new(Vec::new()), std::cell::Cell::new(0u32));
    let mut world = World::new(|question, seconds| match question {
        Asked::Datagram(_, bytes) => match pcp(&mut table.borrow_mut(), bytes, seconds) {
            Answer::Datagram(mut bytes) => {
                if began.get() > 0 {
                    bytes[8..12].copy_from_slice(&(seconds % 1000).to_be_bytes());
                }
                Answer::Datagram(bytes)
            }
            other => other,
        },
        Asked::Http(_) => Answer::Nothing,
    });
    world.run(Duration::from_secs(1000));
    began.set(1);
    table.borrow_mut().clear();
    world.run(Duration::from_secs(1000));
    assert_eq!(table.borrow().len(), 2);
}

/// A router of NAT-PMP.
fn natpmp(question: &[u8], seconds: u32) -> Answer {
    let head = |opcode: u8| [&[0, 0x80 | opcode, 0, 0][..], &(500 + seconds).to_be_bytes()].concat();
    Answer::Datagram(match question {
        [0, 0] => [&head(0)[..], &OUTSIDE.octets()].concat(),
        [0, opcode @ (1 | 2), _, _, rest @ ..] => [&head(*opcode)[..], rest].concat(),
        // RFC 6886 §3.5.
        _ => [&[0, 0x81, 0, 1][..], &seconds.to_be_bytes()].concat(),
    })
}

#[test]
fn nat_pmp_is_spoken_where_pcp_is_not() {
    let mut world = World::new(|question, seconds| match question {
        Asked::Datagram(5351, bytes) => natpmp(bytes, seconds),
        other => panic!("{other:?}"),
    });
    world.run(Duration::from_secs(1));
    assert_eq!(world.events, [mapped(TCP, 6881, Method::NatPmp), mapped(UDP, 6881, Method::NatPmp)]);
    world.run(Duration::from_secs(7200));
    assert_eq!(world.events.len(), 2);
    world.close();
}

/// A router of UPnP. `fault` says what is wrong with a mapping of these numbers and leases.
fn upnp(question: &Asked<'_>, fault: impl Fn(u16, u32) -> Option<u16>) -> Answer {
    let argument = |body: &str, name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        Some(rest.split_once('<')?.0.to_owned())
    };
    match question {
        Asked::Datagram(1900, _) => {
            let answer = "HTTP/1.1 200 OK\r\nST: x\r\nLOCATION: http://192.168.1.1:5000/desc.xml\r\n\r\n";
            Answer::Datagram(answer.into())
        }
        Asked::Datagram(..) => Answer::Unreachable,
        Asked::Http(HttpRequest { port: 5000, target, soap: None, .. }) if target == "/desc.xml" => {
            let service = "<service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType><controlURL>/ctl</controlURL></service>";
            Answer::Http(200, format!("<root>{service}</root>"))
        }
        Asked::Http(HttpRequest { target, soap: Some((action, body)), .. }) if target == "/ctl" => {
            if action.contains("GetExternalIPAddress") {
                return Answer::Http(200, format!("<NewExternalIPAddress>{OUTSIDE}</NewExternalIPAddress>"));
            }
            let number = |name| argument(body, name).and_then(|text| text.parse().ok());
            let (external, lease) = (number("NewExternalPort").unwrap(), number("NewLeaseDuration").unwrap_or(0));
            match fault(external as u16, lease) {
                Some(code) => Answer::Http(500, format!("<errorCode>{code}</errorCode>")),
                None => Answer::Http(200, "<ok/>".to_owned()),
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn upnp_is_spoken_where_nothing_else_is() {
    let mut world = World::new(|question, _| upnp(&question, |_, _| None));
    world.run(Duration::from_secs(1));
    assert_eq!(world.events, [mapped(TCP, 6881, Method::Upnp), mapped(UDP, 6881, Method::Upnp)]);
    world.run(Duration::from_secs(7200));
    assert_eq!(world.events.len(), 2);
    world.close();
}

#[test]
fn a_number_that_is_taken_gives_way_and_leases_may_be_for_ever() {
    let mut world = World::new(|question, _| {
        upnp(&question, |external, lease| match (external, lease) {
            (_, 1..) => Some(725),
            (6881, 0) => Some(718),
            _ => None,
        })
    });
    world.run(Duration::from_secs(1));
    let numbers: Vec<u16> = world
        .events
        .iter()
        .map(|event| match event {
            Event::Mapped { external, .. } => external.port(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(numbers.len() == 2 && numbers.iter().all(|number| *number >= 1024 && *number != 6881), "{numbers:?}");
    world.run(Duration::from_secs(7200));
    assert_eq!(world.events.len(), 2);
}

#[test]
fn a_router_that_offers_nothing_is_told_of_once_and_asked_rarely() {
    let mut world = World::new(|_, _| Answer::Nothing);
    world.run(Duration::from_secs(60));
    let [Event::Failed(failure)] = &world.events[..] else { panic!("{:?}", world.events) };
    let silent = |method| (method, Refusal::Silent);
    assert_eq!(failure.0, [silent(Method::Pcp), silent(Method::NatPmp), silent(Method::Upnp)]);
    world.run(Duration::from_secs(24 * 3600));
    assert!(world.events.len() == 1 && world.actions < 300, "{}", world.actions);
    world.close();
}

#[test]
fn who_refuses_says_why() {
    let refused = |opcode: u8, code: u8| {
        move |question: Asked<'_>, seconds: u32| match question {
            Asked::Datagram(5351, bytes) if bytes[0] == 2 => match pcp(&mut Vec::new(), bytes, seconds) {
                Answer::Datagram(mut bytes) => {
                    bytes[3] = code;
                    Answer::Datagram(bytes)
                }
                other => other,
            },
            Asked::Datagram(5351, bytes) => {
                let mut answer = vec![0, 0x80 | bytes[1], 0, code];
                answer.extend([0; 12]);
                if bytes[1] == opcode { Answer::Datagram(answer) } else { natpmp(bytes, seconds) }
            }
            other => upnp(&other, |_, _| Some(606)),
        }
    };
    let mut world = World::new(refused(0, 2));
    world.run(Duration::from_secs(60));
    let [Event::Failed(failure)] = &world.events[..] else { panic!("{:?}", world.events) };
    assert_eq!(
        failure.to_string(),
        "PCP: refused with code 2; NAT-PMP: refused with code 2; UPnP: refused with code 606"
    );
}

#[test]
fn a_description_elsewhere_is_not_asked_for() {
    let mut world = World::new(|question, _| match question {
        Asked::Datagram(1900, _) => {
            Answer::Datagram(b"HTTP/1.1 200 OK\r\nLOCATION: http://127.0.0.1:8080/shutdown\r\n\r\n".to_vec())
        }
        Asked::Datagram(..) => Answer::Unreachable,
        Asked::Http(request) => panic!("{request:?}"),
    });
    world.run(Duration::from_secs(60));
    let [Event::Failed(failure)] = &world.events[..] else { panic!("{:?}", world.events) };
    assert_eq!(failure.0.last(), Some(&(Method::Upnp, Refusal::Elsewhere)));
}

#[test]
fn an_address_outside_that_is_nobodys_is_none() {
    for outside in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, Ipv4Addr::new(169, 254, 1, 1)] {
        let mut world = World::new(|question, seconds| match question {
            Asked::Datagram(5351, bytes) if bytes[0] == 2 => match pcp(&mut Vec::new(), bytes, seconds) {
                Answer::Datagram(mut bytes) => {
                    bytes[44..60].copy_from_slice(&outside.to_ipv6_mapped().octets());
                    Answer::Datagram(bytes)
                }
                other => other,
            },
            _ => Answer::Nothing,
        });
        world.run(Duration::from_secs(60));
        assert!(matches!(&world.events[..], [Event::Failed(_)]), "{:?}", world.events);
    }
}

proptest! {
    /// Whatever a router says, the mapper goes on, asks no more than its timers have it ask, and ends.
    #[test]
    fn any_router_is_borne(script in proptest::collection::vec((0u8..6, any::<Vec<u8>>(), any::<u16>()), 1..60)) {
        let mut steps = script.iter().cycle();
        let mut world = World::new(move |question: Asked<'_>, seconds: u32| {
            let (kind, bytes, number) = steps.next().unwrap();
            let text = String::from_utf8_lossy(bytes).into_owned();
            match (kind, &question) {
                (0, _) => Answer::Nothing,
                (1, Asked::Http(_)) => Answer::Http(*number, text),
                (1, _) => Answer::Datagram(bytes.clone()),
                (2, _) => Answer::Unreachable,
                (3, Asked::Datagram(5351, question)) if question[0] == 2 => pcp(&mut Vec::new(), question, seconds),
                (_, Asked::Datagram(5351, question)) if question[0] == 0 => natpmp(question, u32::from(*number)),
                (4, Asked::Datagram(5351, question)) => match pcp(&mut Vec::new(), question, seconds) {
                    Answer::Datagram(mut answer) => {
                        for (at, byte) in bytes.iter().enumerate() {
                            answer[(usize::from(*number) + at) % 60] ^= byte;
                        }
                        Answer::Datagram(answer)
                    }
                    other => other,
                },
                (_, Asked::Datagram(5351, _)) => Answer::Nothing,
                _ => upnp(&question, |external, _| (external % 3 == number % 3).then_some(700 + number % 30)),
            }
        });
        world.run(Duration::from_secs(4 * 3600));
        prop_assert!(world.actions < 8000 && world.events.len() < 4000, "{} {}", world.actions, world.events.len());
        world.close();
    }
}
