//! Shares or fetches one torrent: `transfer share|get TORRENT|MAGNET DIR ADDRESS`.

use anabranch_content::metainfo::Metainfo;
use anabranch_swarm::{AddOptions, EventKind, Session, SessionConfig, Source};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, mode, torrent, dir, address] = arguments.as_slice() else { return Err("see the head of this file".into()) };
    let share = mode == "share";
    let source = if torrent.starts_with("magnet:") {
        Source::Magnet(Box::new(torrent.parse()?))
    } else {
        Source::Metainfo(Box::new(Metainfo::parse(&std::fs::read(torrent)?)?))
    };
    tokio::task::LocalSet::new()
        .run_until(async move {
            let config = SessionConfig {
                listen: if share { vec![address.parse()?] } else { Vec::new() },
                ..SessionConfig::default()
            };
            let (session, mut events) = Session::start(config)?;
            let peers = if share { Vec::new() } else { vec![address.parse()?] };
            let options =
                AddOptions { dir: dir.into(), peers, read_only: share, trusted: share, ..AddOptions::default() };
            let id = session.add(source, options)?;
            let began = std::time::Instant::now();
            while let Some(event) = events.recv().await {
                match event.kind {
                    EventKind::Piece { .. } => {}
                    EventKind::Finished if !share => break,
                    other => eprintln!("{:?} {other:?}", began.elapsed()),
                }
            }
            eprintln!("{:?} {:?}", began.elapsed(), session.progress(id));
            session.shutdown().await;
            Ok(())
        })
        .await
}
