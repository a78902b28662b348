//! What once went wrong.

use super::super::conns::CONFIRMED_AFTER;
use super::*;

#[test]
fn a_path_that_both_ends_dial_again_at_once_is_not_down_for_ever() {
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let path = paths[1].clone();
    let conn = sim.conn_over(path.id());
    sim.link_down(&path, &[conn]);
    sim.run(CONFIRMED_AFTER + SECOND, |_| false);
    // Both open it; of two connections one is closed again, as an attempt of ours that failed.
    sim.links.works(&path);
    sim.now += 10 * SECOND;
    sim.look();
    let ours = sim.dials.pop().unwrap();
    sim.open_scion(1, &path, None);
    let cause = EndCause::ByUs("replaced by the other connection to the same peer".to_owned());
    let end = DialEnd::Failed { cause, by_peer: false };
    sim.manager.dial_ended(&ours, end, sim.now);
    sim.run(SECOND, |_| panic!("it is open"));
    assert_eq!(sim.last_verdict(path.id()).unwrap().0, Choice::Chosen);
    assert_eq!(sim.states[&sim.conn_over(path.id())], PathState::Active);
}

#[test]
fn a_path_that_is_too_narrow_is_neither_chosen_nor_dialled() {
    let (mut sim, paths) = uploader(3, 3);
    let narrow = vec![(Arc::clone(&paths[2]), 1300)];
    sim.manager.looked_up(scion_endpoint(1), Some(Found { paths: paths[..2].to_vec(), narrow }), sim.wall);
    let third = paths[2].id();
    sim.run(10 * SECOND, move |dial| {
        assert_ne!(dial.path.id(), third);
        true
    });
    let (choice, reason) = sim.last_verdict(third).unwrap();
    assert!(choice == Choice::Left && reason.contains("1300 are needed"), "{reason}");
}

#[test]
fn a_choice_made_while_a_path_failed_is_made_again_when_it_works() {
    // It was told as "down at the moment" until something else changed, though it carried.
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let conn = sim.conn_over(paths[1].id());
    sim.link_down(&paths[1], &[conn]);
    sim.run(CONFIRMED_AFTER + SECOND, |_| false);
    assert_eq!(sim.last_verdict(paths[1].id()).unwrap().1, "down at the moment");
    // The peer opens it; that the link works is known from that alone.
    sim.links.works(&paths[1]);
    sim.open_scion(1, &paths[1], None);
    sim.look();
    assert_eq!(sim.last_verdict(paths[1].id()).unwrap().0, Choice::Chosen);
}

#[test]
fn a_path_is_named_when_a_lookup_knows_it_at_last() {
    let (mut sim, _) = uploader(2, 1);
    let third = &paths_to(1, 3)[2];
    let mut unnamed = ScionPath::clone(third);
    unnamed.interfaces[1].isd_as = IsdAs::default();
    let conn = sim.open_scion(1, &Arc::new(unnamed), None);
    sim.run(SECOND, |_| true);
    assert_ne!(sim.conns[&conn].1.id(), third.id());
    let said = sim.news.len();
    sim.find(1, &paths_to(1, 3));
    sim.look();
    let is_told = |news: &PathNews| matches!(news, PathNews::Changed { path, .. } if path.id() == third.id());
    assert!(sim.news[said..].iter().any(is_told), "what was said under another name is said again");
    sim.run(SECOND, |_| true);
    assert_eq!((sim.conns[&conn].1.id(), sim.states[&conn]), (third.id(), PathState::Active));
}

#[test]
fn of_two_connections_over_one_path_one_may_go() {
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let other = sim.open_scion(1, &paths[1], None);
    sim.look();
    let said = sim.news.len();
    sim.close(other, true);
    sim.run(SECOND, |_| panic!("the path is open"));
    assert!(
        !sim.news[said..].iter().any(|news| matches!(news, PathNews::Changed { condition: PathCondition::Gone, .. }))
    );
    assert_eq!(sim.last_verdict(paths[1].id()).unwrap().0, Choice::Chosen);
}

#[test]
fn a_path_that_comes_back_while_lookups_leave_it_out_is_known_by_its_numbers() {
    // The peer dialled back before the daemon named the path again: it was taken for another one, and its own stayed down.
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let conn = sim.conn_over(paths[1].id());
    sim.link_down(&paths[1], &[conn]);
    sim.run(CONFIRMED_AFTER + SECOND, |_| false);
    sim.find(1, &paths[..1]);
    let mut unnamed = ScionPath::clone(&paths[1]);
    unnamed.interfaces[1].isd_as = IsdAs::default();
    unnamed.interfaces[2].isd_as = IsdAs::default();
    assert_ne!(unnamed.id(), paths[1].id());
    sim.links.works(&paths[1]);
    sim.open_scion(1, &Arc::new(unnamed), None);
    sim.look();
    assert_eq!(sim.last_verdict(paths[1].id()).unwrap().0, Choice::Chosen);
    assert!(sim.open_paths(1).contains(&paths[1].id()));
}

#[test]
fn connections_are_measured_with_the_looks_that_time_asks_for_and_once_in_each() {
    let mut sim = Sim::new(ManagerConfig::default());
    for peer in 1..=4 {
        sim.downloader(peer, 1);
        sim.open_scion(peer, &paths_to(peer, 1)[0], None);
    }
    sim.look();
    assert_eq!(sim.measured.take(), 4, "each once");
    // Much happens, to each of many connections.
    for _ in 0..8 {
        sim.now += 20 * MS;
        sim.look();
    }
    assert_eq!(sim.measured.take(), 0);
    for _ in 0..5 {
        sim.now = sim.manager.next_look(sim.now).unwrap();
        sim.look();
        assert_eq!(sim.measured.take(), 4);
    }
}
