"""Asks a server of qBittorrent's WebAPI all that its clients ask, through the package `qbittorrent-api`, and prints what came of it.

    qbittorrent_calls.py --url URL --user NAME --password WORD --torrent FILE --magnet LINK --data DIR --elsewhere DIR

DIR holds the content of the torrent, which is added there and is found whole. One JSON object is printed: for each call the shape of
its answer, values replaced by the names of their types, and under `values` what has to be the same everywhere.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence

import qbittorrentapi


def shape(value):
    """The shape of a value: of a list that of all its items together; of a dictionary with keys from outside, likewise."""
    if isinstance(value, Mapping):
        return {str(key): shape(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        merged = {}
        for item in value:
            part = shape(item)
            if not isinstance(part, dict):
                return [part]
            merged.update(part)
        return [merged]
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    return "text"


def by_key(value):
    """The same for a dictionary whose keys are names from outside."""
    return shape([item for _, item in sorted(value.items())])


def wait(what, is_so):
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    sys.exit(f"it did not come to this: {what}")


def main():
    flags = argparse.ArgumentParser()
    for name in ("url", "user", "password", "torrent", "magnet", "data", "elsewhere"):
        flags.add_argument(f"--{name}", required=True)
    flags = flags.parse_args()
    client = qbittorrentapi.Client(
        host=flags.url, username=flags.user, password=flags.password, REQUESTS_ARGS={"timeout": 60}
    )
    wait("the server answers", lambda: answers(client))
    calls, values = {}, {}

    def call(name, function, shaped=shape):
        try:
            calls[name] = shaped(function())
        except NotImplementedError:
            calls[name] = "later"
        except qbittorrentapi.APIError as error:
            calls[name] = f"refused: {type(error).__name__}"

    # app
    values["logged_in"] = client.is_logged_in
    call("app/version", client.app_version)
    call("app/webapiVersion", client.app_web_api_version)
    call("app/buildInfo", client.app_build_info)
    call("app/preferences", client.app_preferences)
    call("app/defaultSavePath", client.app_default_save_path)
    call("app/setPreferences", lambda: client.app_set_preferences(
        {"dl_limit": 5_120_000, "max_active_downloads": 4, "queueing_enabled": True, "unknown": 1}))
    preferences = client.app_preferences()
    values["preferences"] = [preferences[name] for name in ("dl_limit", "max_active_downloads", "queueing_enabled")]

    # torrents
    values["added"] = client.torrents_add(
        torrent_files=flags.torrent, save_path=flags.data, category="films", tags=["one", "two"], is_stopped=True,
        is_paused=True, upload_limit=1000, download_limit=2000, ratio_limit=1.5, seeding_time_limit=60,
        use_auto_torrent_management=False, is_skip_checking=False)
    wait("it is listed", lambda: len(client.torrents_info()) == 1)
    values["again"] = client.torrents_add(torrent_files=flags.torrent, save_path=flags.data, is_stopped=True, is_paused=True)
    try:
        client.torrents_add(torrent_files=b"this is no torrent")
    except qbittorrentapi.UnsupportedMediaType415Error:
        values["no_torrent"] = "415"
    hash = client.torrents_info()[0].hash
    values["hash"] = hash
    client.torrents_start(torrent_hashes=hash) if hasattr(client, "torrents_start") else client.torrents_resume(hash)
    wait("it is whole", lambda: client.torrents_info()[0].progress == 1 and client.torrents_info()[0].state in (
        "stalledUP", "uploading", "queuedUP"))
    first = client.torrents_info()[0]
    names = ("name", "category", "tags", "size", "total_size", "amount_left", "progress", "up_limit", "dl_limit",
             "ratio_limit", "seeding_time_limit", "seq_dl", "force_start", "save_path", "content_path", "infohash_v1",
             "infohash_v2", "completed", "downloaded", "max_ratio", "auto_tmm", "super_seeding", "trackers_count")
    values["torrent"] = {name: first[name] for name in names}
    values["tags_sorted"] = sorted(first["tags"].split(", "))
    del values["torrent"]["tags"]
    call("torrents/info", client.torrents_info)
    for filter in ("all", "downloading", "seeding", "completed", "active", "inactive", "stalled", "errored"):
        values[f"filter {filter}"] = len(client.torrents_info(status_filter=filter))
    values["of category"] = [len(client.torrents_info(category=name)) for name in ("films", "", "none")]
    values["of tag"] = [len(client.torrents_info(tag=name)) for name in ("one", "", "none")]
    values["of hashes"] = [len(client.torrents_info(torrent_hashes=name)) for name in (hash, "0" * 40)]
    values["page"] = [len(client.torrents_info(limit=1, offset=offset)) for offset in (0, 1, -1)]
    call("torrents/info?sort=nothing", lambda: client.torrents_info(sort="nothing"))
    call("torrents/count", client.torrents_count)
    call("torrents/properties", lambda: client.torrents_properties(torrent_hash=hash))
    properties = client.torrents_properties(torrent_hash=hash)
    values["properties"] = {name: properties[name] for name in (
        "piece_size", "pieces_num", "pieces_have", "total_size", "save_path", "comment", "dl_limit", "up_limit",
        "nb_connections", "created_by")}
    call("torrents/properties of none", lambda: client.torrents_properties(torrent_hash="0" * 40))
    call("torrents/trackers", lambda: client.torrents_trackers(torrent_hash=hash))
    values["trackers"] = [(entry.url, entry.tier) for entry in client.torrents_trackers(torrent_hash=hash)]
    call("torrents/webseeds", lambda: client.torrents_webseeds(torrent_hash=hash))
    call("torrents/files", lambda: client.torrents_files(torrent_hash=hash))
    files = client.torrents_files(torrent_hash=hash)
    values["files"] = [[file[name] for name in ("index", "name", "size", "progress", "priority", "piece_range")] for file in files]
    call("torrents/pieceStates", lambda: client.torrents_piece_states(torrent_hash=hash))
    values["piece_states"] = list(client.torrents_piece_states(torrent_hash=hash))
    values["piece_hashes"] = list(client.torrents_piece_hashes(torrent_hash=hash))
    call("torrents/export", lambda: len(client.torrents_export(torrent_hash=hash)))

    # sync
    whole = client.sync_maindata(rid=0)
    calls["sync/maindata"] = {**shape({key: item for key, item in whole.items() if key not in ("torrents", "categories", "trackers")}),
                              "torrents": by_key(whole["torrents"]), "categories": by_key(whole["categories"])}
    values["sync"] = {"full": whole.get("full_update"), "torrents": list(whole["torrents"]), "categories": sorted(whole["categories"]),
                      "tags": sorted(whole["tags"])}
    client.torrents_add_tags(tags=["three"], torrent_hashes=hash)
    client.torrents_create_category(name="music", save_path="")
    wait("the change is told", lambda: "music" in client.torrents_categories())
    time.sleep(0.3)
    change = client.sync_maindata(rid=whole["rid"])
    values["change"] = {"full": change.get("full_update"), "tags": change.get("tags"), "categories": sorted(change.get("categories", {})),
                        "torrent": sorted(change["torrents"][hash]["tags"].split(", "))}
    client.torrents_delete_tags(tags=["three"])
    client.torrents_remove_categories(categories=["music"])
    time.sleep(0.3)
    change = client.sync_maindata(rid=change["rid"])
    values["removed"] = {"tags": change.get("tags_removed"), "categories": change.get("categories_removed")}
    peers = client.sync_torrent_peers(torrent_hash=hash, rid=0)
    call("sync/torrentPeers", lambda: {key: item for key, item in peers.items() if key != "peers"})
    call("sync/torrentPeers of none", lambda: client.sync_torrent_peers(torrent_hash="0" * 40))

    # transfer
    call("transfer/info", client.transfer_info)
    client.transfer_set_speed_limits_mode(True)
    mode = [client.transfer_speed_limits_mode()]
    client.transfer_set_speed_limits_mode(False)
    values["mode"] = mode + [client.transfer_speed_limits_mode()]
    client.transfer_set_upload_limit(limit=71_680)
    client.transfer_set_download_limit(limit=0)
    values["limits"] = [client.transfer_upload_limit(), client.transfer_download_limit()]

    # changes
    client.torrents_set_upload_limit(limit=5000, torrent_hashes=hash)
    client.torrents_set_download_limit(limit=6000, torrent_hashes=hash)
    values["torrent limits"] = [client.torrents_upload_limit(torrent_hashes=hash)[hash], client.torrents_download_limit(torrent_hashes=hash)[hash]]
    client.torrents_set_share_limits(ratio_limit=-1, seeding_time_limit=-2, inactive_seeding_time_limit=-2, torrent_hashes=hash)
    client.torrents_rename(torrent_hash=hash, new_torrent_name="another name")
    client.torrents_set_category(category="films", torrent_hashes=hash)
    call("torrents/setCategory to none", lambda: client.torrents_set_category(category="nothing", torrent_hashes=hash))
    call("torrents/createCategory twice", lambda: client.torrents_create_category(name="films"))
    client.torrents_edit_category(name="films", save_path=flags.data)
    values["categories"] = {name: category["savePath"] for name, category in client.torrents_categories().items()}
    client.torrents_create_tags(tags=["spare"])
    client.torrents_remove_tags(tags=["two"], torrent_hashes=hash)
    values["tags"] = sorted(client.torrents_tags())
    client.torrents_toggle_sequential_download(torrent_hashes=hash)
    client.torrents_set_force_start(enable=True, torrent_hashes=hash)
    wait("it is forced", lambda: client.torrents_info()[0].state == "forcedUP")
    client.torrents_set_force_start(enable=False, torrent_hashes=hash)
    client.torrents_file_priority(torrent_hash=hash, file_ids=[0], priority=6)
    call("torrents/filePrio of a bad level", lambda: client.torrents_file_priority(torrent_hash=hash, file_ids=[0], priority=3))
    call("torrents/filePrio of no file", lambda: client.torrents_file_priority(torrent_hash=hash, file_ids=[99], priority=1))
    client.torrents_add_trackers(torrent_hash=hash, urls=["http://127.0.0.1:1/announce"])
    client.torrents_edit_tracker(torrent_hash=hash, original_url="http://127.0.0.1:1/announce", new_url="http://127.0.0.1:2/announce")
    call("torrents/editTracker of none", lambda: client.torrents_edit_tracker(
        torrent_hash=hash, original_url="http://127.0.0.1:9/announce", new_url="http://127.0.0.1:8/announce"))
    urls = lambda: [entry.url for entry in client.torrents_trackers(torrent_hash=hash) if not entry.url.startswith("**")]
    with_tracker = urls()
    client.torrents_remove_trackers(torrent_hash=hash, urls=["http://127.0.0.1:2/announce"])
    values["edited trackers"] = [with_tracker, urls()]
    wait("it is open again", lambda: client.torrents_info()[0].state in ("stalledUP", "uploading"))
    changed = client.torrents_info()[0]
    values["changed"] = {name: changed[name] for name in ("name", "ratio_limit", "seeding_time_limit", "seq_dl", "tags", "category")}
    values["priorities"] = [file.priority for file in client.torrents_files(torrent_hash=hash)]
    for name in ("torrents_top_priority", "torrents_bottom_priority", "torrents_increase_priority", "torrents_decrease_priority"):
        call(name, lambda: getattr(client, name)(torrent_hashes=hash))
    call("torrents/addPeers", lambda: by_key(client.torrents_add_peers(peers=["127.0.0.1:9"], torrent_hashes=hash)))
    call("torrents/addPeers of none", lambda: client.torrents_add_peers(peers=["nobody"], torrent_hashes=hash))
    client.torrents_recheck(torrent_hashes=hash)
    wait("it is whole again", lambda: client.torrents_info()[0].progress == 1 and client.torrents_info()[0].state in ("stalledUP", "uploading"))
    client.torrents_reannounce(torrent_hashes=hash)
    client.torrents_set_location(location=flags.elsewhere, torrent_hashes=hash)
    wait("it is elsewhere", lambda: client.torrents_info()[0].save_path.rstrip("/") == flags.elsewhere and client.torrents_info()[0].state != "moving")

    # Links.
    values["link"] = client.torrents_add(urls=[flags.magnet], is_stopped=True, is_paused=True, category="new")
    wait("the link is listed", lambda: len(client.torrents_info()) == 2)
    linked = next(entry for entry in client.torrents_info() if entry.name == "linked")
    values["linked"] = {name: linked[name] for name in (
        "hash", "size", "total_size", "progress", "dl_limit", "up_limit", "max_ratio", "max_seeding_time", "ratio_limit",
        "seeding_time_limit", "category", "completed", "amount_left", "tags", "num_seeds", "magnet_uri")}
    values["made category"] = "new" in client.torrents_categories()
    client.torrents_stop(torrent_hashes="all") if hasattr(client, "torrents_stop") else client.torrents_pause("all")
    stopped = ("stoppedUP", "stoppedDL", "pausedUP", "pausedDL")
    wait("all are stopped", lambda: all(entry.state in stopped for entry in client.torrents_info()))
    values["sorted"] = [entry.name for entry in client.torrents_info(sort="name", reverse=True)]
    rid = client.sync_maindata(rid=0)["rid"]
    client.torrents_delete(delete_files=True, torrent_hashes="all")
    wait("all are gone", lambda: not client.torrents_info())
    time.sleep(0.3)
    values["gone"] = hash in client.sync_maindata(rid=rid).get("torrents_removed", [])
    client.auth_log_out()
    client.app_shutdown()
    print(json.dumps({"calls": calls, "values": values}))


def answers(client):
    try:
        client.auth_log_in()
        return True
    except qbittorrentapi.APIConnectionError:
        return False


main()
