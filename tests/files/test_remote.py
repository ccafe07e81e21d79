"""Folders of servers as local ones: what is asked, what is kept, and what a failure says."""

import os
import resource
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import object_store
import pytest
from object_store import BUCKET, SECRET, cutting, failing, slow
from paths import ROOT

from tfunet.cli import main
from tfunet.files import remote, remote_room, server, transports
from tfunet.files.regular import read_bytes
from tfunet.files.server import RemoteError, Version
from tfunet.files.urls import check_urls, parsed, without_secrets

PASSWORD = "hunter2hunter2"


@pytest.fixture(scope="module")
def running():
    with object_store.serving() as store:
        yield store


@pytest.fixture
def store(running, tmp_path, monkeypatch):
    """An empty cache, a store without faults, and no waiting between tries."""
    for name, value in running.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(server, "PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.setattr(remote_room, "_known", {"bytes": -1, "since": 0})
    transports._transport.cache_clear()
    remote._listed.clear()
    running.faults.clear()
    running.files.clear()
    running.asked()
    return running


def url(name):
    return f"s3://{BUCKET}/{name}"


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


@pytest.mark.parametrize(
    ("text", "request_text", "key"),
    [
        ("s3://scans/a/b/", "s3://scans/a/b", "a/b"),
        ("gs://scans", "gs://scans/", ""),
        ("https://host:81/a%20b/c.png", "https://host:81/a%20b/c.png", "a b/c.png"),
        ("az://box@account.host/a", "az://box@account.host/a", "a"),
        ("s3://scans/a b+c/d?.png", "s3://scans/a b+c/d?.png", "a b+c/d?.png"),
    ],
)
def test_url_is_read_as_its_server_means_it(text, request_text, key):
    assert parsed(text).request == request_text
    assert parsed(text).key == key


@pytest.mark.parametrize(
    "text",
    [
        f"https://me:{PASSWORD}@host/a",
        f"s3://{PASSWORD}@bucket/a",
        f"hdfs://me:{PASSWORD}@host/a",
        f"https://host/a.png?X-Amz-Signature={PASSWORD}",
        f"https://box.host/a.png?sv=2022&sig={PASSWORD}",
        f"https://host/a?access_token={PASSWORD}",
        f"https://host/a?p={PASSWORD}",  # No word for it is known, so no query is read.
    ],
)
def test_secret_in_a_url_is_refused_and_not_repeated(text):
    with pytest.raises(ValueError, match="would land in records") as caught:
        parsed(text)
    assert PASSWORD not in str(caught.value)


def test_secret_in_any_option_of_the_data_is_refused():
    with pytest.raises(ValueError, match="name or a password"):
        check_urls({"table": {"file": ["a.csv", f"https://me:{PASSWORD}@host/a"]}})
    check_urls({"database": "postgres://host/a?page=2", "pattern": "{case}?.png"})


@pytest.mark.parametrize("text", ["s3://", "s3:///a", "s3://b/a/../c", "s3://b/a//c", "ftp://b/a"])
def test_url_that_names_no_place_is_refused(text):
    with pytest.raises(ValueError, match=r"no place on a server|server that is not read"):
        parsed(text)


def test_words_of_a_library_lose_their_secrets(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    said = f"failed: http://me:{PASSWORD}@host/a?sig={PASSWORD} with {SECRET}"
    assert without_secrets(said) == "failed: http://host/a with ..."


def test_listing_is_one_request_for_a_thousand_files_and_reads_none(store):
    for number in range(1001):
        store.put(f"many/{number:04d}.png", b"x" * number)
    folder = remote.shadow(url("many"))
    assert store.asked() == {"LIST": 2}
    assert len(names_in(folder)) == 1001
    assert (folder / "0417.png").stat().st_size == 417
    remote.shadow(url("many/"))
    assert store.asked() == {}  # The same command does not list it again.


def test_file_is_fetched_once_when_it_is_first_opened(store):
    store.put("once/a.png", b"content")
    path = remote.shadow(url("once")) / "a.png"
    before = path.stat()
    assert path.read_bytes() == bytes(7)  # Whoever opens it without asking sees no content.
    assert read_bytes(path) == read_bytes(path) == b"content"
    assert store.asked() == {"LIST": 1, "GET": 1}
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert stat.S_IMODE(after.st_mode) & 0o400


def test_threads_and_processes_that_open_a_file_at_once_ask_once(store):
    store.put("shared/a.png", b"content" * 1000)
    store.faults.append(slow(0.2))
    path = remote.shadow(url("shared")) / "a.png"
    code = "import pathlib, sys; from tfunet.files.remote import fetched; "
    command = [sys.executable, "-c", f"{code}fetched(pathlib.Path(sys.argv[1]))", str(path)]
    others = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(read_bytes, [path] * 8))
    assert [process.wait() for process in others] == [0, 0]
    assert set(contents) == {b"content" * 1000}
    assert store.asked()["GET"] == 1


def test_small_files_are_fetched_at_the_same_time(store):
    for number in range(32):
        store.put(f"ahead/{number}.png", b"%d" % number)
    together = threading.Barrier(8, timeout=10)

    def meeting(method, path, answer):
        if "png" in path:
            together.wait()  # Raises, and the request fails, unless eight are asked for at once.
        return answer

    folder = remote.shadow(url("ahead"))
    store.faults.append(meeting)
    paths = sorted(folder.iterdir())
    assert list(remote.fetched_ahead(paths, lambda path: [path])) == paths
    store.faults.clear()
    assert [path.read_bytes().decode() for path in paths] == [path.stem for path in paths]
    assert store.asked() == {"LIST": 1, "GET": 32}


@pytest.mark.parametrize("fault", [failing(2), cutting(2), slow(0.3)], ids=["503", "cut", "slow"])
def test_server_with_hiccups_is_waited_for(store, fault):
    store.put("hiccups/a.png", b"content" * 100)
    store.faults.append(fault)
    assert read_bytes(remote.shadow(url("hiccups")) / "a.png") == b"content" * 100


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (failing(99), r"answered 503 .*, 4 times"),
        (failing(99, "400 Bad Request"), r"answered 400 \([^)]*\)\."),
        (cutting(99), r"did not answer \(.*\), 4 times"),
        (failing(99, "403 Forbidden"), "no permission to read it"),
        (failing(99, "404 Not Found"), "was listed and is not there any more"),
    ],
    ids=["503", "400", "cut", "403", "404"],
)
def test_last_failure_names_file_server_and_answer_on_one_line(store, fault, said):
    store.put("fails/a.png", b"content" * 100)
    path = remote.shadow(url("fails")) / "a.png"
    store.faults.append(fault)
    with pytest.raises(RemoteError, match=said) as caught:
        read_bytes(path)
    message = str(caught.value)
    assert message.startswith(url("fails/a.png"))
    assert "\n" not in message
    assert SECRET not in message
    assert "answered" not in message or store.address in message
    store.faults.clear()
    assert read_bytes(path) == b"content" * 100  # Nothing half is left.


def test_file_that_changed_since_it_was_listed_is_named_with_both_versions(store):
    store.put("changing/a.png", b"before")
    path = remote.shadow(url("changing")) / "a.png"
    store.put("changing/a.png", b"after it")
    with pytest.raises(RemoteError, match=r"it had 6 bytes of .* UTC, and has 8 bytes of .* now"):
        read_bytes(path)
    remote.shadow(url("changing"))
    assert read_bytes(path) == b"after it"


def test_change_of_the_content_alone_is_seen(store):
    store.put("alike/a.png", b"before")
    path = remote.shadow(url("alike")) / "a.png"
    store.put("alike/a.png", b"beside")
    with pytest.raises(RemoteError, match="changed since it was listed"):
        read_bytes(path)


def test_listing_again_keeps_what_is_fetched_and_brings_what_is_new(store):
    for name in ("stays", "goes", "changes"):
        store.put(f"again/in/{name}.png", name.encode())
    folder = remote.shadow(url("again"))
    remote.fetch_folder(folder)
    store.remove("again/in/goes.png")
    store.put("again/in/changes.png", b"changed")
    store.put("again/new/comes.png", b"comes")
    store.asked()
    remote._listed.clear()
    remote.shadow(url("again"))
    assert names_in(folder) == ["in/changes.png", "in/stays.png", "new/comes.png"]
    remote.fetch_folder(folder)
    assert store.asked() == {"LIST": 1, "GET": 2}
    assert (folder / "in/changes.png").read_bytes() == b"changed"


def test_folder_that_becomes_a_file_and_back(store):
    store.put("turns/a/b.png", b"b")
    place = remote.shadow(url("turns/a"))
    assert names_in(place) == ["b.png"]
    store.remove("turns/a/b.png")
    store.put("turns/a", b"a")
    remote._listed.clear()
    assert read_bytes(remote.shadow(url("turns/a"))) == b"a"
    store.remove("turns/a")
    store.put("turns/a/b.png", b"b")
    remote._listed.clear()
    assert names_in(remote.shadow(url("turns/a"))) == ["b.png"]


def test_objects_whose_names_are_no_paths_are_left_out_aloud(store, capsys):
    store.put("odd/good.png", b"good")
    store.put("odd/../../../../escaped.png", b"escaped")
    store.put("odd//double.png", b"double")
    store.put("odd/folder/", b"")
    folder = remote.shadow(url("odd"))
    assert names_in(folder) == ["good.png"]
    assert not list(remote.folder().parent.rglob("escaped.png"))
    assert "2 objects of" in capsys.readouterr().err


def test_bucket_that_is_not_there_and_folder_without_files(store):
    with pytest.raises(ValueError, match=r"s3://no-such-bucket/a is not there \(.*bucket"):
        remote.shadow("s3://no-such-bucket/a")
    with pytest.raises(ValueError, match="There is nothing at s3://scans/nowhere"):
        remote.shadow(url("nowhere"))


def test_no_permission_to_list_says_to_log_in(store):
    store.faults.append(failing(99, "403 Forbidden", where="scans"))
    with pytest.raises(ValueError, match=r"s3://scans/a: no permission to read it .*Log in"):
        remote.shadow(url("a"))


def test_public_bucket_needs_nobody_who_logged_in(store, monkeypatch):
    store.put("public/a.png", b"content", "public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert read_bytes(remote.shadow(url("public")) / "a.png") == b"content"


def test_what_is_fetched_stays_within_the_limit(store, monkeypatch):
    monkeypatch.setenv("TFUNET_CACHE_LIMIT", "1MiB")
    monkeypatch.setattr(remote_room, "GRACE_SECONDS", 0)
    for number in range(20):
        store.put(f"large/{number:02d}.png", bytes([number]) * 150_000)
    folder = remote.shadow(url("large"))
    for path in sorted(folder.iterdir()):
        assert read_bytes(path)[:1] == bytes([int(path.stem)])
        held = [size for _, size, _ in remote_room.fetched_files(remote.folder())]
        assert sum(held) <= 2**20
    assert held
    first = folder / "00.png"
    assert remote.is_on_server(first)  # It is among the oldest.
    assert read_bytes(first) == bytes(150_000)


def test_what_is_fetched_is_listed_and_cleared(store, capsys):
    store.put("held/a.png", b"content")
    path = remote.shadow(url("held")) / "a.png"
    assert remote_room.held(remote.folder()) == ""
    remote.fetched(path)
    assert main(["data", "cache", "--list"]) == main(["data", "cache", "--clear"]) == 0
    out = capsys.readouterr().out
    assert "1 files fetched into" in out
    assert "Removed 1 files that were fetched into" in out
    assert remote.is_on_server(path)
    assert read_bytes(path) == b"content"


def test_file_stays_what_it_is_for_who_has_it_open(store):
    store.put("open/a.png", b"content")
    path = remote.shadow(url("open")) / "a.png"
    remote.fetched(path)
    with path.open("rb") as file:
        remote_room.evict(remote.folder(), path)
        assert file.read() == b"content"
    assert remote.is_on_server(path)


def test_disk_that_is_full_is_named(store):
    store.put("full/a.png", b"content" * 10_000)
    path = remote.shadow(url("full")) / "a.png"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        with pytest.raises(RemoteError, match=r"cannot be kept in .*: File too large\. Free space"):
            read_bytes(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_bytes(path) == b"content" * 10_000


def test_file_of_a_web_server_is_asked_for_twice(store):
    store.files["scan one.tif"] = b"content"
    path = remote.shadow(f"{store.address}/web/scan%20one.tif")
    assert path.name == "scan one.tif"
    assert read_bytes(path) == b"content"
    assert store.asked() == {"HEAD": 1, "GET": 1}
    assert remote.named(path) == f"{store.address}/web/scan one.tif"


@pytest.mark.parametrize("fault", [failing(2), cutting(2)], ids=["503", "cut"])
def test_web_server_with_hiccups_is_waited_for(store, fault):
    store.files["a.png"] = b"content" * 100
    store.faults.append(fault)
    assert read_bytes(remote.shadow(f"{store.address}/web/a.png")) == b"content" * 100


def test_web_server_that_changes_a_file_is_noticed(store):
    store.files["a.png"] = b"before"
    path = remote.shadow(f"{store.address}/web/a.png")
    store.files["a.png"] = b"after it"
    with pytest.raises(RemoteError, match=r"it had 6 bytes, and has 8 bytes now"):
        read_bytes(path)


def test_index_page_of_a_web_server_is_a_listing(store):
    store.files |= {"index/images/a b.png": b"1", "index/masks/a b.png": b"22"}
    folder = remote.shadow(f"{store.address}/web/index/")
    assert names_in(folder) == ["images/a b.png", "masks/a b.png"]
    assert read_bytes(folder / "masks/a b.png") == b"22"


def test_web_server_without_an_index_says_what_to_do(store):
    with pytest.raises(ValueError, match=r"web/none is not there"):
        remote.shadow(f"{store.address}/web/none/")
    store.files["page.html"] = b"<html>"
    assert read_bytes(remote.shadow(f"{store.address}/web/page.html")) == b"<html>"


def test_stamp_tells_contents_apart_and_survives_whole_seconds(tmp_path):
    one, other = Version(3, 1700000000, "a"), Version(3, 1700000000, "b")
    path = tmp_path / "a"
    remote_room.make_placeholder(path, 3, one.stamp)
    assert one.is_stamped(path.stat())
    assert not other.is_stamped(path.stat())
    os.utime(path, ns=(0, 1700000000 * 10**9))  # A file system without parts of seconds.
    assert one.is_stamped(path.stat())
    assert not Version(4, 1700000000, "a").is_stamped(path.stat())


def test_url_without_the_extra_names_it(store, tmp_path):
    for name in ("fsspec", "tensorflow_io"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not installed')")
    code = "from tfunet.cli import main; import sys; sys.exit(main(['init', 's3://scans/a']))"
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    told = subprocess.run(
        [sys.executable, "-c", code], env=variables, cwd=tmp_path, capture_output=True, text=True
    )
    assert told.returncode == 2
    assert told.stderr.count("\n") == 1
    assert "s3:// needs s3fs: pip install 'tfunet[remote]'" in told.stderr
