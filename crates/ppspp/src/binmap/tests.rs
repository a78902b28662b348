use super::*;

/// Everything a binmap answers, against a plain list of flags.
#[test]
fn agrees_with_a_naive_bitmap() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let chunks = [40u64, 700, 5000][rng.usize(..3)];
        let mut pair = || {
            let mut map = Binmap::new();
            let mut naive = vec![false; chunks as usize];
            for _ in 0..rng.usize(..80) {
                let start = rng.u64(..chunks);
                let len_max = if rng.bool() { 4 } else { chunks - start };
                let range = start..(start + rng.u64(..=len_max)).min(chunks);
                let value = rng.u32(..3) > 0;
                match (value, range.end - range.start) {
                    (true, 1) => map.insert(Bin::chunk(start).expect("a chunk")),
                    (true, _) => map.insert_range(range.clone()),
                    (false, _) => map.remove_range(range.clone()),
                }
                naive[range.start as usize..range.end as usize].fill(value);
            }
            (map, naive)
        };
        let ((a, naive_a), (b, naive_b)) = (pair(), pair());
        check(&a, &naive_a, seed);
        let with = |name, op: fn(&mut Binmap, &Binmap), naive: fn(bool, bool) -> bool| {
            let mut map = a.clone();
            op(&mut map, &b);
            let expected: Vec<bool> = naive_a.iter().zip(&naive_b).map(|(a, b)| naive(*a, *b)).collect();
            println!("{name}");
            check(&map, &expected, seed);
            // Canonical: the same set, built another way, is the same tree.
            assert_eq!(map, map.bins().collect::<Binmap>(), "seed {seed}");
        };
        with("union", Binmap::union_with, |a, b| a | b);
        with("subtract", Binmap::subtract, |a, b| a & !b);
        with("intersect", Binmap::intersect_with, |a, b| a & b);
    }
}

fn check(map: &Binmap, naive: &[bool], seed: u64) {
    println!("seed {seed}");
    let chunks = naive.len() as u64;
    assert_eq!(map.count(), naive.iter().filter(|set| **set).count() as u64);
    assert_eq!(map.cell_count(), map.tree.cells(), "what is kept count of is what is there");
    assert_eq!(map.is_empty(), !naive.contains(&true));
    assert_eq!(map.end(), naive.iter().rposition(|set| *set).map_or(0, |last| last as u64 + 1));
    for (chunk, set) in naive.iter().enumerate() {
        assert_eq!(map.contains(chunk as u64), *set, "chunk {chunk}");
    }
    assert!(!map.contains(chunks) && !map.contains(u64::MAX));
    let mut rebuilt = vec![false; naive.len()];
    map.runs().for_each(|run| rebuilt[run.start as usize..run.end as usize].fill(true));
    assert_eq!(rebuilt, naive);
    let runs: Vec<_> = map.runs().collect();
    assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "runs are as long as they can be");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..50 {
        let (start, end) = (rng.u64(..chunks), rng.u64(..=chunks));
        let slice = naive.get(start as usize..end as usize).unwrap_or(&[]);
        assert_eq!(map.count_in(start..end), slice.iter().filter(|set| **set).count() as u64);
        let before = naive.iter().take(start as usize).rposition(|set| *set).map(|chunk| chunk as u64);
        assert_eq!(map.prev_set(start), before, "before {start}");
        assert_eq!(map.prev_set(u64::MAX >> rng.u32(..40)), map.end().checked_sub(1));
        let bin = Bin::chunk(start).expect("a chunk").ancestor(rng.u32(..5));
        let within: Vec<bool> = bin.range().map(|at| naive.get(at as usize).copied().unwrap_or(false)).collect();
        assert_eq!(map.is_full(bin), !within.contains(&false));
        assert_eq!(map.is_empty_in(bin), !within.contains(&true));
        let full = |layer: &u32| {
            let around = Bin::chunk(start).expect("a chunk").ancestor(*layer).range();
            around.into_iter().all(|at| naive.get(at as usize).copied().unwrap_or(false))
        };
        let largest = (0..20).take_while(full).last().and_then(|layer| Bin::new(layer, start >> layer));
        assert_eq!(map.largest_full(start), largest, "around {start}");
        for chunk in [start, start + chunks, start << 20] {
            let least = (0..=Bin::LAYER_MAX).find(|layer| {
                let around = Bin::chunk(chunk).expect("a chunk").ancestor(*layer);
                !map.is_empty_in(around)
            });
            // The nearest before and behind are enough to know it, as who serves a peer does.
            let nearest = [map.prev_set(chunk + 1), map.next_set(chunk)].into_iter().flatten();
            let layer = nearest.map(|other| u64::BITS - (chunk ^ other).leading_zeros()).min();
            assert_eq!(layer, least, "around {chunk}");
        }
    }
}

#[test]
fn full_and_empty_parts_take_no_space() {
    let mut map = Binmap::full(CHUNKS_MAX);
    assert_eq!((map.cell_count(), map.count()), (0, CHUNKS_MAX));
    map.remove_range(0..CHUNKS_MAX);
    assert_eq!((map.cell_count(), map == Binmap::new()), (0, true));
    // What a live viewer holds: a window far out, whatever came before.
    for chunk in 0..200_000 {
        map.insert_range(chunk..chunk + 1);
        map.remove_range(0..chunk.saturating_sub(1000));
        assert!(map.cell_count() < 60);
    }
    assert_eq!((map.count(), map.runs().count()), (1001, 1));
}

#[test]
fn millions_of_chunks_in_any_order() {
    const CHUNKS: u64 = 1 << 21;
    let mut map = Binmap::new();
    // Every second chunk is the worst there is: about twice a bitmap, a cell being 48 to 80 bytes.
    (0..CHUNKS).step_by(2).for_each(|chunk| map.insert_range(chunk..chunk + 1));
    assert_eq!(map.count(), CHUNKS / 2);
    assert!(map.cell_count() as u64 <= CHUNKS / 256, "{} cells", map.cell_count());
    let evens = map.clone();
    (1..CHUNKS).step_by(2).for_each(|chunk| map.insert_range(chunk..chunk + 1));
    assert_eq!((map.cell_count(), map.largest_full(77)), (0, Some(Bin::root(CHUNKS))));
    map.subtract(&evens);
    map.intersect_with(&evens);
    assert!(map.is_empty());
}

#[test]
fn absurd_bins_cost_their_height_and_no_more() {
    let mut map = Binmap::new();
    map.insert(Bin::chunk(CHUNKS_MAX - 1).expect("the last chunk"));
    assert_eq!((map.cell_count(), map.end(), map.count()), (55, CHUNKS_MAX, 1));
    assert_eq!(map.largest_full(CHUNKS_MAX - 1), Bin::chunk(CHUNKS_MAX - 1));
    map.insert_range(u64::MAX - 5..u64::MAX);
    map.insert_range(7..7);
    assert_eq!(map.count(), 1);
    map.insert(Bin::ALL);
    assert_eq!((map.cell_count(), map.next_clear(5)), (0, CHUNKS_MAX));
}
