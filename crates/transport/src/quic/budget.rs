//! What the peers of all connections of a process may make it hold.
//!
//! A byte that a peer may send is promised memory, whether it comes or not (RFC 9000 §4.1); a byte that was written is held
//! until the peer acknowledges it, and everything behind it in its stream with it. So every connection has a [`Share`] of one
//! [`QuicBudget`] for each direction. Its first bytes are its own, whatever others do (the floor, which the budget does not
//! count: the fixed cost of a connection). What is beyond, all shares take from the budget, and none may take more than twice
//! what it leaves: a lone connection may have two thirds, two have two fifths each, and a newcomer always finds something
//! (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

/// What a share may take, as a multiple of what it leaves.
const TIMES_WHAT_IS_LEFT: u64 = 2;
/// A budget is short for so long after somebody got less than it asked for.
const SHORT_FOR: Duration = Duration::from_secs(20);
/// Where nothing else is said, in bytes: two thirds of it are the largest window.
pub(super) const BUDGET_DEFAULT: u64 = 48 * 1024 * 1024;

/// Memory for all QUIC connections of a process. Clones are the same budget.
#[derive(Clone, Debug)]
pub struct QuicBudget(Arc<Mutex<Ledger>>);

#[derive(Debug)]
struct Ledger {
    limit_bytes: u64,
    used_bytes: u64,
    refused: Option<Instant>,
}

impl Ledger {
    /// What one share may take beside `others`.
    fn left_beside(&self, others: u64) -> u64 {
        self.limit_bytes.saturating_sub(others) / (TIMES_WHAT_IS_LEFT + 1) * TIMES_WHAT_IS_LEFT
    }
}

impl Default for QuicBudget {
    fn default() -> Self {
        Self::new(BUDGET_DEFAULT)
    }
}

impl QuicBudget {
    /// At most `limit_bytes`, beside the fixed cost of each connection.
    pub fn new(limit_bytes: u64) -> Self {
        Self(Arc::new(Mutex::new(Ledger { limit_bytes, used_bytes: 0, refused: None })))
    }

    /// Bytes that are held, or promised to peers.
    pub fn used_bytes(&self) -> u64 {
        self.ledger().used_bytes
    }

    /// Whether somebody got less than it asked for, lately.
    pub(super) fn is_short(&self, now: Instant) -> bool {
        self.ledger().refused.is_some_and(|at| now.saturating_duration_since(at) < SHORT_FOR)
    }

    /// A share that holds nothing yet, of which the first `floor` bytes are its own.
    pub(super) fn share(&self, floor: u64) -> Share {
        Share { budget: self.clone(), floor, held: 0 }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Sums are changed in one step each: a panic elsewhere leaves them right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's part, in one direction.
#[derive(Debug)]
pub(super) struct Share {
    budget: QuicBudget,
    floor: u64,
    held: u64,
}

impl Share {
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// The most that it may hold at present.
    pub(super) fn room(&self) -> u64 {
        let ledger = self.budget.ledger();
        let others = ledger.used_bytes.saturating_sub(self.held.saturating_sub(self.floor));
        self.floor + ledger.left_beside(others)
    }

    /// Holds `bytes` from now on, as much as that is.
    pub(super) fn set(&mut self, bytes: u64) {
        self.settle(|_, _| (bytes, true));
    }

    /// Holds what `decide` answers, who is told what it holds and the most that it may, and says too whether that is all that
    /// was wanted. (What is held already may be more than it may, since others came.) Nobody else decides meanwhile.
    pub(super) fn settle(&mut self, decide: impl FnOnce(u64, u64) -> (u64, bool)) {
        let before = self.held.saturating_sub(self.floor);
        let mut ledger = self.budget.ledger();
        let others = ledger.used_bytes.saturating_sub(before);
        let (held, has_all) = decide(self.held, self.floor + ledger.left_beside(others));
        self.held = held;
        ledger.used_bytes = others + held.saturating_sub(self.floor);
        if !has_all {
            ledger.refused = Some(Instant::now());
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// What one connection has written and not seen acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Account(Arc<Mutex<Written>>);

#[derive(Debug)]
struct Written {
    share: Share,
    waiting: Option<Waker>,
}

impl Account {
    pub(super) fn new(share: Share) -> Self {
        Self(Arc::new(Mutex::new(Written { share, waiting: None })))
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for `most` bytes, or for `least` where memory is short; without either, `cx` is woken once there may be. `aside` of
    /// what is held does not stand in the way of the least: it will be waited for.
    pub(super) fn reserve(&self, most: u64, least: u64, aside: u64, cx: &mut Context<'_>) -> Option<Charge> {
        let mut written = self.written();
        let mut bytes = 0;
        written.share.settle(|held, room| {
            bytes = match held {
                held if held + most <= room => most,
                held if held.saturating_sub(aside) + least <= room => least,
                _ => 0,
            };
            (held + bytes, bytes == most)
        });
        if bytes == 0 {
            // Who only tries does not take the place of who waits.
            if !cx.waker().will_wake(Waker::noop()) {
                written.waiting = Some(cx.waker().clone());
            }
            return None;
        }
        Some(Charge { account: self.clone(), bytes })
    }

    /// A charge of nothing yet.
    pub(super) fn charge(&self) -> Charge {
        Charge { account: self.clone(), bytes: 0 }
    }

    /// Whether there is no room for `bytes` more.
    pub(super) fn is_tight(&self, bytes: u64) -> bool {
        let written = self.written();
        written.share.held() + bytes > written.share.room()
    }

    fn change(&self, more: u64, less: u64) {
        let mut written = self.written();
        let held = (written.share.held() + more).saturating_sub(less);
        written.share.set(held);
        let waiting = written.waiting.take_if(|_| less > more);
        drop(written);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

/// Bytes on an account, for as long as this lives.
#[derive(Debug)]
pub(super) struct Charge {
    account: Account,
    bytes: u64,
}

impl Charge {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Stands for so many bytes from now on.
    pub(super) fn set(&mut self, bytes: u64) {
        self.account.change(bytes, self.bytes);
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.change(0, self.bytes);
    }
}

/// A charge that ends with the last of several owners.
#[derive(Clone, Debug)]
pub(super) struct Charged(Arc<Mutex<Charge>>);

impl From<Charge> for Charged {
    fn from(charge: Charge) -> Self {
        Self(Arc::new(Mutex::new(charge)))
    }
}

impl Charged {
    /// Stands for so many bytes more.
    pub(super) fn add(&self, bytes: u64) {
        if bytes > 0 {
            let mut charge = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let sum = charge.bytes() + bytes;
            charge.set(sum);
        }
    }

    /// `bytes`, which keep the charge alive as long as any slice of them is somewhere.
    pub(super) fn keep_with(&self, bytes: Bytes) -> Bytes {
        struct ChargedBytes(Bytes, #[expect(dead_code, reason = "is there to be dropped")] Charged);
        impl AsRef<[u8]> for ChargedBytes {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        Bytes::from_owner(ChargedBytes(bytes, self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    const LIMIT: u64 = 900;
    const FLOOR: u64 = 10;

    fn shares(count: usize) -> (QuicBudget, Vec<Share>) {
        let budget = QuicBudget::new(LIMIT);
        let shares = (0..count).map(|_| budget.share(FLOOR)).collect();
        (budget, shares)
    }

    #[test]
    fn a_lone_share_may_have_two_thirds_and_newcomers_find_something() {
        let (budget, mut shares) = shares(1000);
        assert_eq!(shares[0].room(), FLOOR + 600);
        for share in &mut shares {
            let room = share.room();
            assert!(room >= FLOOR);
            share.set(room);
        }
        assert!(budget.used_bytes() <= LIMIT, "{budget:?}");
        // Who has more than is left for all gives it back as it can; then all have alike.
        for _ in 0..2000 {
            for share in &mut shares[..8] {
                let room = share.room();
                share.set(room);
            }
        }
        let held: Vec<u64> = shares[..8].iter().map(Share::held).collect();
        assert!(held.iter().max().unwrap() - held.iter().min().unwrap() <= LIMIT / 8, "{held:?}");
        drop(shares);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn the_floor_is_never_counted_nor_refused() {
        let (budget, mut shares) = shares(2);
        shares[0].set(FLOOR + LIMIT);
        assert_eq!((budget.used_bytes(), shares[1].room()), (LIMIT, FLOOR));
        shares[1].set(FLOOR);
        assert_eq!(budget.used_bytes(), LIMIT);
        shares[0].set(FLOOR - 1);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_finds_no_room_is_woken_when_its_own_bytes_arrived() {
        let budget = QuicBudget::new(0);
        let account = Account::new(budget.share(100));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let cx = &mut Context::from_waker(&waker);
        let mut first = account.reserve(200, 60, 0, cx).unwrap();
        assert_eq!(first.bytes(), 60, "memory is short");
        assert!(budget.is_short(Instant::now()));
        assert!(account.reserve(200, 60, 0, cx).is_none());
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        first.set(40);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        let second = account.reserve(200, 60, 0, cx).unwrap();
        assert!(account.reserve(200, 60, 0, cx).is_none());
        drop((first, second));
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        assert_eq!(account.reserve(100, 60, 0, cx).unwrap().bytes(), 100);
    }
}
