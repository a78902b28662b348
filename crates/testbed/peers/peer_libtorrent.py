"""A libtorrent peer for tests and benches: one process, one torrent, one JSON object a line on stdout.

Modes: create, create-each, info, seed, leech, verify, idle, nodes. With --defaults, all settings are libtorrent's own. Else they are those under which libtorrent is fastest on loopback; nothing
leaves the machine (no UPnP, NAT-PMP, uTP; encryption off; DHT and LSD only where asked for, the DHT with the nodes that are named).
"""

import argparse
import json
import os
import sys
import time

import libtorrent as lt

ALERTS = lt.alert.category_t
VERSIONS = {"1": [lt.create_torrent.v1_only], "2": [lt.create_torrent.v2_only], "hybrid": []}


def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


def address(text):
    host, port = text.rsplit(":", 1)
    return host.strip("[]"), int(port)


def settings(args):
    """The preset for seeding at speed, then what loopback and long fat wires want on top."""
    alerts = (ALERTS.error_notification | ALERTS.status_notification | ALERTS.connect_notification
              | ALERTS.storage_notification | ALERTS.tracker_notification)
    if args.defaults:
        return {"listen_interfaces": args.listen, "alert_mask": alerts}
    chosen = lt.high_performance_seed()
    chosen.update({
        "listen_interfaces": args.listen,
        "enable_outgoing_utp": False,
        "enable_incoming_utp": False,
        "enable_dht": False,
        "enable_lsd": False,
        "enable_upnp": False,
        "enable_natpmp": False,
        "out_enc_policy": 2,
        "in_enc_policy": 2,
        "allow_multiple_connections_per_ip": True,
        "connections_limit": 2000,
        "unchoke_slots_limit": -1,
        "connection_speed": 1000,
        "smooth_connects": False,
        "aio_threads": 4,
        "hashing_threads": 2,
        "send_buffer_watermark": 32 * 1024 * 1024,
        "send_buffer_low_watermark": 1024 * 1024,
        "send_buffer_watermark_factor": 200,
        "max_queued_disk_bytes": 64 * 1024 * 1024,
        "max_out_request_queue": 4000,
        "max_allowed_in_request_queue": 8000,
        "request_queue_time": 3,
        "whole_pieces_threshold": 20,
        "rate_limit_ip_overhead": False,
        "announce_to_all_trackers": True,
        "announce_to_all_tiers": True,
        "ssrf_mitigation": False,
        "no_atime_storage": True,
        "alert_queue_size": 100000,
        "user_agent": "libtorrent-testbed",
        "alert_mask": alerts,
    })
    if args.dht:
        # Several nodes of one network, and of one address: what is forbidden abroad.
        chosen.update({
            "enable_dht": True,
            "dht_bootstrap_nodes": ",".join(args.dht_node),
            "dht_restrict_routing_ips": False,
            "dht_restrict_search_ips": False,
            "dht_ignore_dark_internet": False,
            "dht_enforce_node_id": False,
            "dht_prefer_verified_node_ids": False,
            "dht_block_ratelimit": 1000,
        })
    if args.lsd:
        chosen["enable_lsd"] = True
    for name, value in (pair.split("=") for pair in args.set):
        chosen[name] = int(value)
    if args.limit_up:
        chosen["upload_rate_limit"] = args.limit_up
    return chosen


def hashes(info):
    both = info.info_hashes()
    return {
        "v1": str(both.v1) if both.has_v1() else None,
        "v2": str(both.v2) if both.has_v2() else None,
    }


def create(args):
    """Times the hashing alone: listing files and writing the result are noise beside it."""
    path = args.path.rstrip("/")
    torrent = lt.create_torrent(lt.list_files(path), args.piece_length, *VERSIONS[args.version])
    for tracker in args.tracker:
        torrent.add_tracker(tracker)
    torrent.set_creator("libtorrent-testbed")
    started, cpu = time.perf_counter(), time.process_time()
    lt.set_piece_hashes(torrent, os.path.dirname(path) or ".")
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    encoded = lt.bencode(torrent.generate())
    with open(args.out, "wb") as out:
        out.write(encoded)
    info = lt.torrent_info(lt.bdecode(encoded))
    magnet = lt.make_magnet_uri(info)
    say("created", seconds=seconds, cpu_seconds=cpu, pieces=info.num_pieces(), magnet=magnet, **hashes(info))


def create_each(args):
    """Makes one v1 torrent of every file in a folder, in one process."""
    for name in sorted(os.listdir(args.path)):
        torrent = lt.create_torrent(lt.list_files(os.path.join(args.path, name)), args.piece_length, *VERSIONS["1"])
        lt.set_piece_hashes(torrent, args.path)
        with open(os.path.join(args.out, name + ".torrent"), "wb") as out:
            out.write(lt.bencode(torrent.generate()))
    say("created")


def show(args):
    info = lt.torrent_info(args.source)
    say("info", name=info.name(), total=info.total_size(), piece_length=info.piece_length(), pieces=info.num_pieces(),
        magnet=lt.make_magnet_uri(info), **hashes(info))


def open_torrent(args, seed):
    if args.source.startswith("magnet:"):
        params = lt.parse_magnet_uri(args.source)
    else:
        params = lt.add_torrent_params()
        params.ti = lt.torrent_info(args.source)
    params.save_path = args.data
    flags = lt.torrent_flags
    params.flags &= ~(flags.paused | flags.auto_managed)
    if not args.dht:
        params.flags |= flags.disable_dht
    if not args.lsd:
        params.flags |= flags.disable_lsd
    if args.no_pex:
        params.flags |= flags.disable_pex
    if seed and args.assume_complete:
        params.flags |= flags.seed_mode
    if not args.defaults:
        params.max_connections = 2000
        params.max_uploads = -1
    return params


def session(args):
    session_params = lt.session_params()
    session_params.settings = settings(args)
    opened = lt.session(session_params)
    return opened


def fail(message):
    say("error", message=message)
    sys.exit(1)


def drain(opened, seen):
    """Handles what the session reports: errors end the process, first contact with each peer is printed."""
    for alert in opened.pop_alerts():
        name = type(alert).__name__
        if name in ("listen_failed_alert", "torrent_error_alert", "file_error_alert", "metadata_failed_alert"):
            fail(alert.message())
        if name == "hash_failed_alert":
            say("hash_failed", message=alert.message())
        if name == "dht_reply_alert" and alert.num_peers > 0:
            say("discovered", source="dht", peers=alert.num_peers)
        if name in ("peer_connect_alert", "incoming_connection_alert"):
            say("connected", message=alert.message())
        if name == "peer_disconnected_alert":
            say("disconnected", message=alert.message())
        seen.add(name)


def run(args, seed):
    opened = session(args)
    seen = set()
    deadline = time.monotonic() + args.timeout
    while opened.listen_port() == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    say("listening", address=f"{address(args.listen)[0]}:{opened.listen_port()}",
        startup_cpu_seconds=time.process_time())
    started = time.perf_counter()
    handle = opened.add_torrent(open_torrent(args, seed))
    for peer in args.peer:
        handle.connect_peer(address(peer))
    announced = False
    shown = started
    while time.monotonic() < deadline:
        opened.wait_for_alert(20)
        drain(opened, seen)
        now = time.perf_counter()
        status = handle.status()
        if status.is_seeding and not announced:
            announced = True
            say("ready" if seed else "finished", seconds=now - started, downloaded=status.total_payload_download,
                uploaded=status.total_payload_upload, failed=status.total_failed_bytes)
            if not seed and not args.stay:
                return
        if seed and announced:
            time.sleep(0.2)
        if now - shown > 1:
            shown = now
            if args.peer and status.num_peers == 0 and not announced:
                for peer in args.peer:
                    handle.connect_peer(address(peer))
            peers = [f"{p.ip[0]}:{p.ip[1]} {p.client!r}" for p in handle.get_peer_info()[:8]]
            say("progress", bytes_done=status.total_wanted_done, bytes_total=status.total_wanted,
                down_rate=status.download_payload_rate, up_rate=status.upload_payload_rate,
                uploaded=status.total_payload_upload, peers=status.num_peers, clients=peers, state=str(status.state),
                error=status.errc.message() if status.errc.value() else None)
    fail(f"not done after {args.timeout} s")


def idle(args):
    """Shares every torrent of a folder, unchecked, and stays: what many idle torrents cost."""
    opened = session(args)
    say("listening", address=f"{address(args.listen)[0]}:{opened.listen_port()}",
        startup_cpu_seconds=time.process_time())
    handles = []
    for name in sorted(os.listdir(args.source)):
        params = lt.add_torrent_params()
        params.ti = lt.torrent_info(os.path.join(args.source, name))
        params.save_path = args.data
        params.flags &= ~(lt.torrent_flags.paused | lt.torrent_flags.auto_managed)
        params.flags |= lt.torrent_flags.seed_mode
        handles.append(opened.add_torrent(params))
    deadline = time.monotonic() + args.timeout
    while not all(handle.status().is_seeding for handle in handles) and time.monotonic() < deadline:
        opened.wait_for_alert(50)
        opened.pop_alerts()
    say("ready", torrents=len(handles))
    while time.monotonic() < deadline:
        opened.wait_for_alert(500)
        opened.pop_alerts()


def nodes(args):
    """One session at each address, of which nothing is used but its node of the DHT, with libtorrent's own settings of that."""
    off = ("enable_lsd", "enable_upnp", "enable_natpmp", "enable_incoming_utp", "enable_outgoing_utp")
    opened = []
    for where in args.source.split(","):
        params = lt.session_params()
        params.settings = {
            "listen_interfaces": where,
            "alert_mask": ALERTS.error_notification | ALERTS.status_notification | ALERTS.stats_notification,
            "dht_bootstrap_nodes": ",".join(node for node in args.dht_node if node != where),
            "enable_dht": True,
            "aio_threads": 1,
            "hashing_threads": 1,
            **{name: False for name in off},
        }
        opened.append(lt.session(params))
    say("listening", nodes=len(opened))
    joined = set()
    while True:
        time.sleep(2)
        for number, one in enumerate(opened):
            if number not in joined:
                one.post_session_stats()
            for alert in one.pop_alerts():
                name = type(alert).__name__
                if name == "listen_failed_alert":
                    fail(alert.message())
                if name == "session_stats_alert" and alert.values["dht.dht_nodes"] >= 8:
                    joined.add(number)
        say("joined", nodes=len(joined))


def verify(args):
    """Times a full check of data on disk: adding a torrent without resume data checks every piece."""
    opened = session(args)
    started, cpu = time.perf_counter(), time.process_time()
    handle = opened.add_torrent(open_torrent(args, False))
    checking = (lt.torrent_status.checking_files, lt.torrent_status.checking_resume_data)
    deadline = time.monotonic() + args.timeout
    while time.monotonic() < deadline:
        opened.wait_for_alert(2)
        opened.pop_alerts()
        status = handle.status()
        if status.state not in checking and (status.is_seeding or status.progress < 1):
            if status.state == lt.torrent_status.allocating or (status.num_pieces == 0 and not status.has_metadata):
                continue
            say("verified", seconds=time.perf_counter() - started, cpu_seconds=time.process_time() - cpu,
                pieces_good=status.num_pieces, complete=status.is_seeding)
            return
    fail(f"not checked after {args.timeout} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True)
    one = modes.add_parser("create")
    one.add_argument("path")
    one.add_argument("--out", required=True)
    one.add_argument("--version", choices=VERSIONS, default="1")
    one.add_argument("--piece-length", type=int, default=0)
    one.add_argument("--tracker", action="append", default=[])
    one = modes.add_parser("create-each")
    one.add_argument("path")
    one.add_argument("--out", required=True)
    one.add_argument("--piece-length", type=int, default=0)
    one = modes.add_parser("info")
    one.add_argument("source")
    for name in ("seed", "leech", "verify", "idle"):
        one = modes.add_parser(name)
        one.add_argument("source")
        one.add_argument("--data", required=True)
        one.add_argument("--listen", default="127.0.0.1:0")
        one.add_argument("--peer", action="append", default=[])
        one.add_argument("--timeout", type=float, default=600)
        one.add_argument("--limit-up", type=int, default=0)
        one.add_argument("--set", action="append", default=[], help="NAME=NUMBER, any libtorrent setting")
        one.add_argument("--defaults", action="store_true")
        one.add_argument("--dht", action="store_true")
        one.add_argument("--dht-node", action="append", default=[], help="HOST:PORT")
        one.add_argument("--lsd", action="store_true")
        one.add_argument("--assume-complete", action="store_true")
        one.add_argument("--stay", action="store_true")
        one.add_argument("--no-pex", action="store_true")
    one = modes.add_parser("nodes")
    one.add_argument("source", help="HOST:PORT,...")
    one.add_argument("--dht-node", action="append", default=[], help="HOST:PORT")
    args = parser.parse_args()
    if args.mode == "create":
        create(args)
    elif args.mode == "create-each":
        create_each(args)
    elif args.mode == "info":
        show(args)
    elif args.mode == "verify":
        verify(args)
    elif args.mode == "idle":
        idle(args)
    elif args.mode == "nodes":
        nodes(args)
    else:
        run(args, args.mode == "seed")


if __name__ == "__main__":
    main()
