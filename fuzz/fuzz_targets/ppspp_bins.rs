//! Any sequence of changes to two binmaps, beside plain bitmaps; and any numbers as bins.
//!
//! Input: steps of four bytes: what to do, where, how far.
#![no_main]

use anabranch_ppspp::bin::Bin;
use anabranch_ppspp::binmap::Binmap;
use libfuzzer_sys::fuzz_target;

const CHUNKS: usize = 4096;

fuzz_target!(|data: &[u8]| {
    if let Some((number, _)) = data.split_first_chunk() {
        bin(u64::from_be_bytes(*number));
    }
    let mut maps = [Binmap::new(), Binmap::new()];
    let mut plain = [vec![false; CHUNKS], vec![false; CHUNKS]];
    for step in data.as_chunks::<4>().0.iter().take(200) {
        let which = usize::from(step[0] & 1);
        let start = usize::from(u16::from_be_bytes([step[1], step[2]])) % CHUNKS;
        let end = (start + (1 << (step[3] % 13)) + usize::from(step[3] / 13)).min(CHUNKS);
        let range = start as u64..end as u64;
        let [first, second] = maps.each_mut();
        let (map, other) = if which == 0 { (first, second) } else { (second, first) };
        let others = plain[1 - which].clone();
        let flags = &mut plain[which];
        let mut each = |op: fn(bool, bool) -> bool| flags.iter_mut().zip(&others).for_each(|(a, b)| *a = op(*a, *b));
        match step[0] >> 1 & 7 {
            0..=2 => {
                map.insert_range(range);
                flags[start..end].fill(true);
            }
            3 | 4 => {
                map.remove_range(range);
                flags[start..end].fill(false);
            }
            5 => (map.union_with(other), each(|a, b| a | b)).0,
            6 => (map.subtract(other), each(|a, b| a & !b)).0,
            _ => (map.intersect_with(other), each(|a, b| a & b)).0,
        }
    }
    for (map, flags) in maps.iter().zip(&plain) {
        let mut runs = vec![false; CHUNKS];
        map.runs().for_each(|run| runs[run.start as usize..run.end as usize].fill(true));
        assert_eq!(&runs, flags);
        assert_eq!(*map, map.bins().collect::<Binmap>(), "one form for each set");
    }
});

fn bin(number: u64) {
    let Some(bin) = Bin::from_u64(number) else { return };
    assert_eq!(Bin::new(bin.layer(), bin.offset()), Some(bin));
    assert_eq!(Bin::cover(bin.range()).collect::<Vec<_>>(), [bin]);
    if let Some((left, right)) = bin.children() {
        assert_eq!((left.parent(), left.sibling(), right.end()), (Some(bin), Some(right), bin.end()));
    }
    let mut map = Binmap::new();
    map.insert(bin);
    assert_eq!((map.count(), map.largest_full(bin.start())), (bin.chunk_count(), Some(bin)));
    assert!(map.cell_count() < 64);
    map.remove(bin);
    assert!(map.is_empty());
}
