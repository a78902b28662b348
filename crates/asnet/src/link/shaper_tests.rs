use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);
const NS: Duration = Duration::from_nanos(1);

fn line(change: impl FnOnce(&mut LinkShape)) -> (Shaper, Instant) {
    let (mut shape, now) = (LinkShape::default(), Instant::now());
    change(&mut shape);
    (Shaper::new(shape, 1, now), now)
}

/// Everything due at `now`, packet by packet.
fn take(line: &mut Shaper, now: Instant) -> Vec<Vec<u8>> {
    let mut taken = Vec::new();
    while let Some(burst) = line.due(now) {
        assert!(burst.packets > 0 && burst.bytes.len() <= BURST_BYTES_MAX);
        taken.extend(burst.bytes.chunks(burst.segment_len).map(<[u8]>::to_vec));
        let packets = burst.packets;
        line.consume(packets);
    }
    taken
}

#[test]
fn a_packet_arrives_when_its_last_bit_has_crossed_and_not_before() {
    let (mut line, now) = line(|s| (s.rate_bps, s.delay) = (Some(1_000_000), 10 * MS));
    line.enqueue(now, &[1; 1250]).unwrap();
    let arrival = now + 20 * MS;
    assert_eq!(line.deadline(), Some(now + 10 * MS));
    assert!(line.due(arrival - NS).is_none());
    assert_eq!(line.deadline(), Some(arrival));
    assert_eq!(take(&mut line, arrival), [vec![1; 1250]]);
    assert!(line.is_idle() && line.deadline().is_none());
}

#[test]
fn rates_are_exact_however_late_one_looks() {
    for rate in [1_000_000, 7_000_000, 100_000_000, 1_000_000_000] {
        for wake in [MS / 20, MS, 7 * MS] {
            let (mut line, start) = line(|s| (s.rate_bps, s.queue_bytes) = (Some(rate), 4 << 20));
            let (mut now, mut bytes) = (start, 0);
            // Always more in the queue than leaves until the next look.
            while now < start + Duration::from_secs(1) {
                while line.waiting_bytes < (3 << 20) {
                    line.enqueue(now, &[0; 1200]).unwrap();
                }
                now += wake;
                bytes += take(&mut line, now).iter().map(Vec::len).sum::<usize>();
            }
            let expected = (now - start).as_secs_f64() * rate as f64 / 8.0;
            assert!((bytes as f64 - expected).abs() <= 1201.0 + expected * 1e-4, "{rate} {wake:?}: {bytes} {expected}");
        }
    }
}

#[test]
fn an_idle_line_saves_nothing_up() {
    let (mut line, now) = line(|s| s.rate_bps = Some(8_000_000));
    let later = now + 1000 * MS;
    (0..3).for_each(|_| line.enqueue(later, &[0; 1000]).unwrap());
    assert_eq!(take(&mut line, later + MS - NS).len(), 0);
    assert_eq!(take(&mut line, later + MS).len(), 1);
    assert_eq!(take(&mut line, later + 3 * MS).len(), 2);
}

#[test]
fn the_queue_takes_its_bytes_and_not_one_more() {
    let (mut line, now) = line(|s| (s.rate_bps, s.queue_bytes) = (Some(8_000_000), 3000));
    // One on the line, three in the queue.
    (0..4).for_each(|_| line.enqueue(now, &[0; 1000]).unwrap());
    assert_eq!(line.enqueue(now, &[0; 1]), Err(Dropped::QueueFull));
    // When the first has left, the second goes onto the line and leaves its room to another.
    assert_eq!(line.enqueue(now + MS - NS, &[0; 1000]), Err(Dropped::QueueFull));
    line.enqueue(now + MS, &[0; 1000]).unwrap();
    assert_eq!(line.enqueue(now + MS, &[0; 1]), Err(Dropped::QueueFull));
    assert_eq!(line.stats().queue_full_packets, 3);
}

#[test]
fn memory_is_bounded_where_the_rate_is_not() {
    let (mut line, now) = line(|s| (s.delay, s.mtu) = (10_000 * MS, u16::MAX));
    let packet = vec![0; 65_000];
    let fit = IN_FLIGHT_BYTES_MAX / packet.len();
    (0..fit).for_each(|_| line.enqueue(now, &packet).unwrap());
    assert_eq!(line.enqueue(now, &packet), Err(Dropped::QueueFull));
}

#[test]
fn what_exceeds_the_mtu_is_refused() {
    let (mut line, now) = line(|s| s.mtu = 1400);
    line.enqueue(now, &[0; 1400]).unwrap();
    assert_eq!(line.enqueue(now, &[0; 1401]), Err(Dropped::TooBig { len: 1401, mtu: 1400 }));
}

#[test]
fn losses_come_at_the_asked_share_and_take_line_time() {
    let (mut line, now) = line(|s| (s.rate_bps, s.loss, s.queue_bytes) = (Some(8_000_000), 0.02, 64 << 20));
    let sent = 50_000;
    (0..sent).for_each(|_| line.enqueue(now, &[0; 1000]).unwrap());
    assert!(take(&mut line, now + sent * MS - NS).len() < sent as usize);
    take(&mut line, now + sent * MS);
    let lost = line.stats().lost_packets;
    assert!((900..1100).contains(&lost), "{lost}");
    assert_eq!(line.stats().delivered_packets + lost, u64::from(sent));
    assert!(line.is_idle());
}

#[test]
fn a_new_rate_holds_for_the_rest_of_the_packet_on_the_line() {
    let (mut line, now) = line(|s| s.rate_bps = Some(8_000_000));
    (0..2).for_each(|_| line.enqueue(now, &[0; 1000]).unwrap());
    // Half of the first is sent; the other half takes 5 ms at a tenth of the rate, the second 10 ms.
    line.set_shape(now + MS / 2, LinkShape { rate_bps: Some(800_000), ..line.shape() });
    assert_eq!(take(&mut line, now + MS / 2 + 5 * MS - NS).len(), 0);
    assert_eq!(take(&mut line, now + MS / 2 + 5 * MS).len(), 1);
    assert_eq!(take(&mut line, now + MS / 2 + 15 * MS - NS).len(), 0);
    assert_eq!(take(&mut line, now + MS / 2 + 15 * MS).len(), 1);
}

#[test]
fn a_change_loses_nothing_and_reorders_nothing() {
    let (mut line, now) = line(|s| (s.rate_bps, s.delay) = (Some(8_000_000), 50 * MS));
    (0..20_u8).for_each(|i| line.enqueue(now, &[i; 1000]).unwrap());
    // Ten have left and fly; the queue, the delay and the rate shrink to nothing.
    line.set_shape(now + 10 * MS, LinkShape::default());
    (20..22_u8).for_each(|i| line.enqueue(now + 10 * MS, &[i; 1000]).unwrap());
    let early = take(&mut line, now + 51 * MS - NS);
    assert!(early.is_empty(), "the later ones wait for those that fly");
    let mut all = take(&mut line, now + 60 * MS);
    assert_eq!(all.len(), 22);
    assert!(all.drain(..).enumerate().all(|(i, packet)| packet == [i as u8; 1000]));
}

#[test]
fn bursts_hold_equal_packets_and_one_shorter_at_most() {
    let (mut line, now) = line(|s| s.delay = MS);
    for len in [1000, 1000, 400, 400, 1000] {
        line.enqueue(now, &vec![0; len]).unwrap();
    }
    let mut bursts = Vec::new();
    while let Some(Burst { segment_len, packets, bytes }) = line.due(now + MS) {
        bursts.push((segment_len, packets, bytes.len()));
        line.consume(packets);
    }
    assert_eq!(bursts, [(1000, 3, 2400), (400, 1, 400), (1000, 1, 1000)]);
}

#[test]
fn bursts_stop_where_one_message_would() {
    let (mut line, now) = line(|s| s.delay = MS);
    (0..200).for_each(|_| line.enqueue(now, &[0; 10]).unwrap());
    assert_eq!(line.due(now + MS).unwrap().packets, BURST_PACKETS_MAX);
    let (mut line, now) = self::line(|s| (s.delay, s.mtu) = (MS, 9000));
    (0..20).for_each(|_| line.enqueue(now, &[0; 9000]).unwrap());
    assert_eq!(line.due(now + MS).unwrap().packets, BURST_BYTES_MAX / 9000);
}

proptest! {
    #[test]
    fn order_holds_and_every_packet_is_accounted_for(
        seed: u64,
        steps in proptest::collection::vec((0..3_000_u64, 1..1472_usize, 0..40_u8), 1..300),
        delay_ms in 0..30_u32, loss in 0.0..0.5_f64,
    ) {
        let start = Instant::now();
        let shape = LinkShape { delay: delay_ms * MS, jitter: delay_ms * MS, loss, queue_bytes: 8000, ..LinkShape::default() };
        let mut line = Shaper::new(shape, seed, start);
        let (mut now, mut sent, mut arrived) = (start, 0_u64, Vec::new());
        for (index, (gap_us, len, kind)) in steps.iter().enumerate() {
            now += Duration::from_micros(*gap_us);
            if *kind < 4 {
                let rate_bps = (*kind > 0).then_some(u64::from(*kind) * 3_000_000);
                line.set_shape(now, LinkShape { rate_bps, ..shape });
            }
            let mut packet = vec![0; (*len).max(8)];
            packet[..8].copy_from_slice(&(index as u64).to_be_bytes());
            sent += u64::from(line.enqueue(now, &packet).is_ok());
            arrived.extend(take(&mut line, now));
        }
        while let Some(deadline) = line.deadline() {
            now = deadline.max(now);
            arrived.extend(take(&mut line, now));
        }
        prop_assert!(arrived.is_sorted_by(|a, b| a[..8] < b[..8]));
        let stats = line.stats();
        prop_assert_eq!(stats.delivered_packets, arrived.len() as u64);
        prop_assert_eq!(stats.delivered_packets + stats.lost_packets, sent);
        prop_assert!(line.is_idle() && line.in_flight_bytes == 0 && line.waiting_bytes == 0);
    }
}
