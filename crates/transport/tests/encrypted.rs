//! A stream under a cipher: what one end sends the other receives, however sockets cut it.

use std::future::poll_fn;
use std::io::{self, IoSlice, Write};

use anabranch_transport::{EncryptedStream, Stream, StreamCipher, TcpListener, TcpStream};

/// Each byte's mask depends on its place: a byte that is lost, doubled or out of order ruins all that follow.
struct Counting(u64);

impl StreamCipher for Counting {
    fn apply(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte ^= (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
            self.0 += 1;
        }
    }
}

async fn pair() -> (Stream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr();
    let (called, caller) = tokio::join!(listener.accept(), TcpStream::connect(address.into(), None));
    let over = |stream: TcpStream, receive, send| -> Stream {
        EncryptedStream::new(stream.into(), Box::new(Counting(receive)), Box::new(Counting(send))).into()
    };
    (over(called.unwrap(), 1, 2), over(caller.unwrap(), 2, 1))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn is_retry(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

async fn flush(stream: &Stream) {
    while !stream.flush().unwrap() {
        poll_fn(|cx| stream.poll_send_ready(cx)).await.unwrap();
    }
}

/// Receives to the end, into entries of odd lengths.
async fn receive_all(stream: Stream) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        poll_fn(|cx| stream.poll_recv_ready(cx)).await.unwrap();
        let mut parts = [vec![0u8; 1], vec![0; 70_001], vec![0; 13], vec![0; 100_000]];
        let mut entries: Vec<libc::iovec> = parts
            .iter_mut()
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
            .collect();
        // SAFETY: the entries describe `parts`, which outlive the call and are ours alone.
        match unsafe { stream.try_recv(&mut entries) } {
            Ok(0) => return all,
            Ok(len) => all.extend(parts.concat().into_iter().take(len)),
            Err(error) => assert!(is_retry(&error), "{error}"),
        }
    }
}

#[tokio::test]
async fn bytes_and_files_arrive_as_they_were_sent() {
    let (called, caller) = pair().await;
    let mut file = tempfile::tempfile().unwrap();
    let (memory, in_file) = (pattern(3_000_000), pattern(2_000_000));
    file.write_all(&in_file).unwrap();
    let sending = async {
        let mut sent = 0;
        while sent < memory.len() {
            let (a, b) = memory[sent..].split_at((memory.len() - sent).min(5));
            match called.try_send(&[IoSlice::new(a), IoSlice::new(b)], true) {
                Ok(len) => sent += len,
                Err(error) if is_retry(&error) => poll_fn(|cx| called.poll_send_ready(cx)).await.unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
        let mut sent = 0;
        while sent < in_file.len() {
            match called.try_send_file(&file, sent as u64, in_file.len() - sent) {
                Ok(len) => sent += len,
                Err(error) if is_retry(&error) => poll_fn(|cx| called.poll_send_ready(cx)).await.unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(called.try_send_file(&file, in_file.len() as u64, 9).map_err(|error| error.kind()).unwrap_or(0), 0);
        flush(&called).await;
        drop(called);
    };
    let (received, ()) = tokio::join!(receive_all(caller), sending);
    assert!(received == [memory.clone(), in_file.clone()].concat(), "{} bytes", received.len());
}

#[tokio::test]
async fn what_is_taken_and_not_sent_yet_is_not_forgotten() {
    let (called, caller) = pair().await;
    let all = pattern(40_000_000);
    // Until nothing more is taken: some of it lies here, encrypted.
    let mut taken = 0;
    while let Ok(len) = called.try_send(&[IoSlice::new(&all[taken..])], false) {
        taken += len;
    }
    assert!(!called.flush().unwrap() && taken < all.len());
    let ending = async {
        flush(&called).await;
        drop(called);
    };
    let (received, ()) = tokio::join!(receive_all(caller), ending);
    assert!(received == all[..taken], "{} of {taken} bytes", received.len());
}
