//! Attempts at one thing, begun one after the other and left running beside each other: happy eyeballs (RFC 8305 §5). Who comes first is
//! kept, and the others are given up.
//!
//! | who is called | the attempts |
//! | --- | --- |
//! | a peer over SCION | paths, those that have least in common first: `bittorrent/paths_beside.rs` |
//! | a peer over IP | TCP, then uTP: [`utp`](super::utp) |
//! | a tracker | the addresses of its name |
//! | the other end of a bulk transfer | its addresses, by each uplink or path that fits: `hercules/session.rs` |
//!
//! Interfaces of this machine are not attempts at one thing: with the quickest one always first, the others would never be used.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// How long an attempt is left alone: RFC 8305 §5, "Connection Attempt Delay".
pub(crate) const BEGUN_APART: Duration = Duration::from_millis(250);

/// Why the next attempt is due.
pub(crate) enum Due<'a, E> {
    /// Nobody has answered for [`BEGUN_APART`], or nobody was called yet.
    Silence,
    /// The last one failed.
    Failed(&'a E),
}

/// Makes attempts as long as `next` has some, and answers what the first one that succeeds comes to; where none does, why the last one
/// failed, or `None` where there was none. `next` is asked again later where it has none while others are under way.
pub(crate) async fn race<T, E, F>(mut next: impl FnMut(Due<'_, E>) -> Option<F>) -> Option<Result<T, E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut under_way: Vec<Pin<Box<F>>> = Vec::new();
    let mut last = None;
    let mut due = Due::Silence;
    loop {
        under_way.extend(next(due).map(Box::pin));
        if under_way.is_empty() {
            return last.map(Err);
        }
        match tokio::time::timeout(BEGUN_APART, first_of(&mut under_way)).await {
            Ok(Ok(reached)) => return Some(Ok(reached)),
            Ok(Err(error)) => due = Due::Failed(last.insert(error)),
            Err(_) => due = Due::Silence,
        }
    }
}

/// The first attempt that ends.
async fn first_of<F: Future>(under_way: &mut Vec<Pin<Box<F>>>) -> F::Output {
    std::future::poll_fn(|cx| {
        for at in 0..under_way.len() {
            if let Poll::Ready(ended) = under_way[at].as_mut().poll(cx) {
                drop(under_way.remove(at));
                return Poll::Ready(ended);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Races attempts that take so long, or for ever, and come to that. Answers when each began, when all was over, and with what.
    async fn raced(attempts: &[(Option<u32>, Result<u32, u32>)]) -> (Vec<u32>, u32, Option<Result<u32, u32>>) {
        let (start, begun) = (tokio::time::Instant::now(), RefCell::new(Vec::new()));
        let at = || start.elapsed().as_millis() as u32;
        let mut left = attempts.iter();
        let result = race(|_| {
            let (takes, comes_to) = *left.next()?;
            begun.borrow_mut().push(at());
            Some(async move {
                match takes {
                    Some(takes) => tokio::time::sleep(MS * takes).await,
                    None => pending().await,
                }
                comes_to
            })
        })
        .await;
        let end = at();
        (begun.into_inner(), end, result)
    }

    #[tokio::test(start_paused = true)]
    async fn who_answers_in_time_is_left_alone() {
        assert_eq!(raced(&[(Some(249), Ok(1)), (Some(0), Ok(2))]).await, (vec![0], 249, Some(Ok(1))));
        assert_eq!(raced(&[(Some(252), Ok(1)), (Some(9), Ok(2))]).await, (vec![0, 250], 252, Some(Ok(1))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_begins_beside_one_that_is_silent_and_the_first_to_answer_stays() {
        let silent = (None, Ok(0));
        assert_eq!(raced(&[silent, (Some(30), Ok(2))]).await, (vec![0, 250], 280, Some(Ok(2))));
        assert_eq!(raced(&[silent, silent, (Some(30), Ok(3))]).await, (vec![0, 250, 500], 530, Some(Ok(3))));
        assert_eq!(raced(&[(Some(700), Ok(1)), silent]).await, (vec![0, 250], 700, Some(Ok(1))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_begins_at_once_where_one_fails() {
        assert_eq!(raced(&[(Some(7), Err(1)), (Some(30), Ok(2))]).await, (vec![0, 7], 37, Some(Ok(2))));
        assert_eq!(raced(&[(Some(7), Err(1)), (Some(5), Err(2))]).await, (vec![0, 7], 12, Some(Err(2))));
        // One that was given time goes on beside those that fail.
        let slow = (Some(400), Ok(1));
        assert_eq!(raced(&[slow, (Some(10), Err(2)), (Some(10), Err(3))]).await, (vec![0, 250, 260], 400, Some(Ok(1))));
        assert_eq!(raced(&[]).await, (vec![], 0, None));
    }
}
