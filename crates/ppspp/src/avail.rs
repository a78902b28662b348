//! The availability array: for each number of peers, the chunks that so many have announced (the libswift paper, §2.2.2).
//!
//! The maps complement each other: every chunk is in exactly one of them. Where more peers announce a chunk than there are
//! maps, the last one holds it, and some accuracy is lost.

use crate::bin::CHUNKS_MAX;
use crate::binmap::Binmap;

/// How many peers have each chunk.
#[derive(Clone, Debug)]
pub struct Availability {
    levels: Vec<Binmap>,
}

impl Availability {
    /// For up to `peers_max` peers, none of which announced anything yet; of a content of `chunks` chunks, or without end.
    pub fn new(peers_max: usize, chunks: Option<u64>) -> Self {
        let mut levels = vec![Binmap::new(); peers_max + 1];
        levels[0] = Binmap::full(chunks.unwrap_or(CHUNKS_MAX));
        Self { levels }
    }

    /// One more peer has these chunks. They have to be new of that peer.
    pub fn add(&mut self, chunks: &Binmap) {
        self.shift(chunks, true);
    }

    /// One peer fewer has these chunks: it left, or discarded them.
    pub fn remove(&mut self, chunks: &Binmap) {
        self.shift(chunks, false);
    }

    /// The chunks that so many peers have; `None` past the last map.
    pub fn level(&self, peers: usize) -> Option<&Binmap> {
        self.levels.get(peers)
    }

    /// From the rarest to the most common.
    pub fn levels(&self) -> impl Iterator<Item = &Binmap> {
        self.levels.iter()
    }

    fn shift(&mut self, chunks: &Binmap, up: bool) {
        let last = self.levels.len() - 1;
        // Each chunk is in one map: what was moved is not looked for any more.
        let mut rest = chunks.clone();
        for from in 0..=last {
            if rest.is_empty() {
                break;
            }
            let mut moved = rest.clone();
            moved.intersect_with(&self.levels[from]);
            let to = if up { (from + 1).min(last) } else { from.saturating_sub(1) };
            if !moved.is_empty() {
                rest.subtract(&moved);
                self.levels[from].subtract(&moved);
                self.levels[to].union_with(&moved);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bin::Bin;

    fn map(numbers: &[u64]) -> Binmap {
        numbers.iter().filter_map(|number| Bin::from_u64(*number)).collect()
    }

    /// The catalogue's 003-bins, second part: figures 3 and 4 of the paper.
    #[test]
    fn the_papers_figures() {
        let mut avail = Availability::new(4, Some(4));
        avail.add(&map(&[1, 4]));
        avail.add(&map(&[1]));
        let levels = |avail: &Availability| avail.levels().cloned().collect::<Vec<_>>();
        assert_eq!(levels(&avail), [map(&[6]), map(&[4]), map(&[1]), map(&[]), map(&[])]);
        avail.add(&map(&[5]));
        assert_eq!(levels(&avail), [map(&[]), map(&[6]), map(&[1, 4]), map(&[]), map(&[])]);
        avail.remove(&map(&[5]));
        assert_eq!(levels(&avail), [map(&[6]), map(&[4]), map(&[1]), map(&[]), map(&[])]);
    }

    #[test]
    fn counts_as_a_plain_array_does_and_stays_complementary() {
        for seed in 0..20 {
            println!("seed {seed}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let (chunks, peers_max) = (rng.u64(1..1500), rng.usize(1..6));
            let mut avail = Availability::new(peers_max, Some(chunks));
            let mut counts = vec![0usize; chunks as usize];
            let mut peers: Vec<Binmap> = Vec::new();
            for _ in 0..40 {
                // No more peers than maps: past that, the last map is an estimate.
                if peers.len() == peers_max || (rng.bool() && !peers.is_empty()) {
                    let gone = peers.swap_remove(rng.usize(..peers.len()));
                    avail.remove(&gone);
                    gone.runs().flatten().for_each(|chunk| counts[chunk as usize] -= 1);
                } else {
                    let mut new = Binmap::new();
                    (0..rng.u32(1..6)).for_each(|_| {
                        let start = rng.u64(..chunks);
                        new.insert_range(start..rng.u64(start..chunks) + 1);
                    });
                    avail.add(&new);
                    new.runs().flatten().for_each(|chunk| counts[chunk as usize] += 1);
                    peers.push(new);
                }
            }
            for (chunk, count) in counts.iter().enumerate() {
                let within: Vec<usize> =
                    (0..=peers_max).filter(|peers| avail.level(*peers).expect("made").contains(chunk as u64)).collect();
                assert_eq!(within, [*count]);
            }
        }
        let mut two = Availability::new(2, None);
        (0..5).for_each(|_| two.add(&map(&[0])));
        assert!(two.level(2).expect("the last").contains(0) && two.level(3).is_none());
    }
}
