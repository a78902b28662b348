"""A peer of a lab run on libtorrent: shares or fetches one torrent, and tells of it as `anabranch --json` does."""

import json
import sys
import time

import libtorrent as lt


def say(event, **fields):
    print(json.dumps({"event": event, "time": time.time(), **fields}), flush=True)


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def one_class():
    """Puts every peer into the global class alone. Hosts here have addresses of 10/8, which libtorrent takes for its own network
    otherwise: peers there know no limit of rates and are never choked."""
    alone = lt.ip_filter()
    alone.add_rule("0.0.0.0", "255.255.255.255", 1 << lt.session.global_peer_class_id)
    alone.add_rule("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1 << lt.session.global_peer_class_id)
    return alone


def main():
    order = json.loads(sys.argv[1])
    settings = {
        "listen_interfaces": order["listen"], "enable_dht": False, "enable_lsd": False, "enable_upnp": False,
        "enable_natpmp": False, "enable_outgoing_utp": False, "enable_incoming_utp": False,
        "allow_multiple_connections_per_ip": True, "ssrf_mitigation": False, "announce_to_all_trackers": True,
        "out_enc_policy": 2, "in_enc_policy": 2,
    }
    settings.update(order["settings"])
    session = lt.session(settings)
    session.set_peer_class_filter(one_class())
    params = lt.add_torrent_params()
    params.ti = lt.torrent_info(order["torrent"])
    params.save_path = order["data"]
    params.flags &= ~(lt.torrent_flags.paused | lt.torrent_flags.auto_managed)
    if order["seed"]:
        params.flags |= lt.torrent_flags.seed_mode
    if order["tracker"]:
        params.trackers = [order["tracker"]]
    handle = session.add_torrent(params)
    for peer in order["peers"]:
        handle.connect_peer(address(peer))
    told, served, finished, called = 0, 0, False, time.time()
    say("started")
    while True:
        session.wait_for_alert(50)
        session.pop_alerts()
        status, now = handle.status(), time.time()
        if status.errc.value() != 0:
            say("error", message=status.errc.message())
            sys.exit(1)
        if not finished and now - told >= 1 and not order["seed"]:
            told = now
            say("progress", bytes_done=status.total_wanted_done, bytes_total=status.total_wanted)
        if status.is_seeding and not finished:
            finished = True
            if not order["seed"]:
                say("finished", bytes_total=status.total_wanted)
        if now - served >= 1:
            served = now
            peers = handle.get_peer_info()
            wanting = [peer for peer in peers if peer.flags & lt.peer_info.remote_interested]
            unchoked = [peer for peer in wanting if not peer.flags & lt.peer_info.choked]
            say("serving", interested=len(wanting), unchoked=len(unchoked), bytes_sent=status.total_payload_upload)
        # Who was not there yet is called again.
        if status.num_peers == 0 and now - called >= 1:
            called = now
            for peer in order["peers"]:
                handle.connect_peer(address(peer))
        time.sleep(0.02)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
