//! A bulk transfer from memory to memory, for benches: neither disk nor files, only what the protocol costs.
//!
//! ```text
//! bulk_memory receive 10.0.0.2:6900           listens until one transfer is done
//! bulk_memory send 10.0.0.2:6900 2147483648   calls there, and says how long it took
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anabranch_hercules::wire::manifest::{Entry, EntryKind};
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_hercules::{ChunkSet, tree};
use anabranch_swarm::bulk::{
    self, Admission, Destination, DestinationError, Destinations, Dial, Event, Offered, Options, Peers, Refusal,
    Source, SourceError,
};
use anabranch_transport::Identity;

/// The bench's ends know each other.
const SECRET: [u8; 12] = *b"memory bench";
/// What is sent, again and again: longer than a processor's caches.
const LOOP_BYTES: u64 = 64 << 20;

struct Memory {
    bytes: Vec<u8>,
    len: u64,
}

impl Source for Memory {
    fn content_len(&self) -> u64 {
        self.len
    }

    fn entries(&self) -> u32 {
        1
    }

    fn manifest(&self) -> Arc<[u8]> {
        let kind = EntryKind::File { len: self.len, extents: vec![0..self.len] };
        let mut bytes = Vec::new();
        let entry = Entry { name: b"memory".to_vec(), mode: 0o644, modified: (0, 0), kind };
        // Its name, mode and length are in order.
        let _ = entry.write(&mut bytes);
        bytes.into()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let mut at = (offset % LOOP_BYTES) as usize;
        let mut rest = into;
        while !rest.is_empty() {
            let count = rest.len().min(self.bytes.len() - at);
            rest[..count].copy_from_slice(&self.bytes[at..at + count]);
            (at, rest) = (0, &mut rest[count..]);
        }
        Ok(())
    }
}

/// Takes everything, and forgets it: what does not fit into memory cannot be read back.
struct Nowhere;

impl Destinations for Nowhere {
    fn open(&self, offered: Offered) -> Result<Arc<dyn Destination>, Refusal> {
        Ok(Arc::new(Forgets { spans: tree::span_count(offered.offer.content_len) }))
    }
}

struct Forgets {
    spans: u64,
}

impl Destination for Forgets {
    fn kept(&self) -> ChunkSet {
        ChunkSet::new(self.spans)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), DestinationError> {
        Ok(())
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DestinationError> {
        let source = std::io::Error::other("more was lost than fits into memory: give it more");
        Err(DestinationError::Io { name: "memory".to_owned(), source })
    }

    fn span_kept(&self, _: u64, _: &[u8; 32]) -> Result<(), DestinationError> {
        Ok(())
    }

    fn finish(&self, _: &Receipt) -> Result<(), DestinationError> {
        Ok(())
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let mut options = Options::new(Identity::ephemeral()?);
    let start = Instant::now();
    let (_handle, mut events) = match arguments {
        [what, address] if what == "receive" => {
            options.listen = Some(vec![address.parse()?]);
            // There is nowhere to spill to.
            options.memory_bytes = 512 << 20;
            let admission = Admission { secret: Some(SECRET), times: 1, ..Admission::default() };
            bulk::receive(options, Peers::Listen(admission), Arc::new(Nowhere))?
        }
        [what, address, len] if what == "send" => {
            let bytes = (0..LOOP_BYTES).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
            let to = Dial { addresses: vec![address.parse()?], key: None, secret: Some(SECRET) };
            bulk::send(options, Peers::Dial(vec![to]), Arc::new(Memory { bytes, len: len.parse()? }))?
        }
        _ => return Err("usage: bulk_memory receive ADDRESS | send ADDRESS BYTES".into()),
    };
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Progress(_) => {}
            Event::Finished { receipt, repeated_bytes, .. } => {
                let seconds = start.elapsed().as_secs_f64();
                let rate = receipt.content_len as f64 * 8e-9 / seconds;
                println!(
                    "{} bytes in {seconds:.3} s: {rate:.2} Gbit/s; {repeated_bytes} more than once",
                    receipt.content_len
                );
            }
            Event::Failed { error, .. } => return Err(error.into()),
            other => eprintln!("{other:?}"),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
