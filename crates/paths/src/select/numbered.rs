//! The resources of a ballot's candidates as small numbers, so that selectors work on arrays.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{Ballot, Resource};

/// Who passes what.
pub(super) struct Numbered {
    /// The resource of each number.
    pub names: Vec<Resource>,
    /// The candidates through all resources, one resource after the other.
    users: Vec<u32>,
    /// Where those of each resource begin, and where the last one's end.
    users_start: Vec<u32>,
    /// The numbers of all candidates' resources, one candidate after the other.
    numbers: Vec<usize>,
    /// Where those of each candidate begin and end.
    ranges: Vec<(u32, u32)>,
}

impl Numbered {
    /// Numbers the resources of those candidates that may be chosen.
    pub(super) fn new(ballot: &Ballot<'_>) -> Self {
        let mut known: HashMap<Resource, usize, BuildHasherDefault<Mix>> = HashMap::default();
        let (mut names, mut numbers, mut user_counts) = (Vec::new(), Vec::new(), Vec::new());
        let mut ranges = vec![(0, 0); ballot.candidates.len()];
        for &index in &ballot.order {
            let start = numbers.len() as u32;
            for resource in &ballot.candidates[index].resources {
                let number = *known.entry(*resource).or_insert_with(|| {
                    names.push(*resource);
                    user_counts.push(0);
                    names.len() - 1
                });
                numbers.push(number);
                user_counts[number] += 1;
            }
            ranges[index] = (start, numbers.len() as u32);
        }
        let mut numbered = Self { names, users: Vec::new(), users_start: vec![0], numbers, ranges };
        let mut end = 0;
        numbered.users_start.extend(user_counts.iter().map(|count: &u32| {
            end += count;
            end
        }));
        numbered.users = numbered.list_users(ballot);
        numbered
    }

    fn list_users(&self, ballot: &Ballot<'_>) -> Vec<u32> {
        let (mut users, mut next) = (vec![0; self.numbers.len()], self.users_start.clone());
        for &index in &ballot.order {
            for &number in self.of(index) {
                users[next[number] as usize] = index as u32;
                next[number] += 1;
            }
        }
        users
    }

    /// The candidates through a resource.
    pub(super) fn users(&self, number: usize) -> &[u32] {
        &self.users[self.users_start[number] as usize..self.users_start[number + 1] as usize]
    }

    /// The numbers of a candidate's resources, in order.
    pub(super) fn of(&self, index: usize) -> &[usize] {
        let (start, end) = self.ranges[index];
        &self.numbers[start as usize..end as usize]
    }

    /// The least that is claimed of each resource, kbit/s, if every AS on every candidate makes a claim.
    pub(super) fn claims_kbps(&self, ballot: &Ballot<'_>) -> Option<Vec<f64>> {
        let mut claims = vec![f64::INFINITY; self.names.len()];
        for &index in &ballot.order {
            let candidate = &ballot.candidates[index];
            for (place, &number) in self.of(index).iter().enumerate() {
                let claim = candidate.claims_kbps.get(place).copied().flatten()?;
                claims[number] = claims[number].min(claim as f64);
            }
        }
        Some(claims)
    }
}

/// A quick hash for a map that lives as long as one selection and holds at most what its candidates pass. Whoever makes
/// resources collide slows selections over paths through itself, by what a list of that length costs.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        // An odd constant from the golden ratio spreads neighbours; the rotation lets later words matter.
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}
