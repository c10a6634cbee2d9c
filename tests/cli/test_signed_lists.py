"""Signed lists of `segments verify`: what they say is held against the files, the signature against another reader."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from deltalake import DeltaTable

from spark_segments import LogDir, __version__
from spark_segments.maintenance import retain, roll


def made_key(path: Path) -> Path:
    """A private key in `path`, and its public key beside it."""
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return made_key(tmp_path / "key.pem")


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    made = LogDir.create(str(tmp_path / "log"))
    made.create_topic("orders", partitions=2)
    made.topic("orders").append([{"value": str(number), "partition": number % 2} for number in range(11)])
    made.topic("orders").append([{"value": "later", "partition": 0}])
    made.topic("orders").delete_records({1: 2})
    made.create_topic("spread", partitions=12)
    made.topic("spread").append([{"value": "x", "partition": number} for number in range(12)])
    return made


@pytest.fixture
def signed(log: LogDir, key: Path, segments, tmp_path: Path) -> Path:
    segments("verify", log.uri, "--deep", "--sign", key, "--checksums", tmp_path / "signed.list")
    return tmp_path / "signed.list"


def test_a_signed_list_has_every_file_and_what_each_partition_holds(log, signed):
    *body, last = signed.read_bytes().splitlines(keepends=True)
    signature = {name: base64.b64decode(text) for name, text in json.loads(last).items()}
    Ed25519PublicKey.from_public_bytes(signature["public_key"]).verify(signature["ed25519"], b"".join(body))
    first, *lines = map(json.loads, body)
    assert (first["tool"], first["log_directory"]) == (f"spark-segments {__version__}", log.uri)
    there = [path for path in Path(log.uri).rglob("*") if path.suffix in (".log", ".index", ".timeindex")]
    assert {line["path"]: line["sha256"] for line in lines if "path" in line} == {
        str(path.relative_to(log.uri)): hashlib.sha256(path.read_bytes()).hexdigest() for path in there
    }
    orders = next(line for line in lines if line.get("topic") == "orders")
    facts = ("log_start_offset", "log_end_offset", "records", "holes")
    assert {number: [said[fact] for fact in facts] for number, said in orders["partitions"].items()} == {
        "0": [0, 7, 7, []],
        "1": [2, 5, 5, []],
    }


def test_a_log_that_went_on_is_still_what_was_signed(log, signed, key, segments):
    log.topic("orders").append([{"value": "since"}])
    segments("roll", log.uri)
    ran = segments("verify", log.uri, "--check", signed, "--public-key", key.with_suffix(".pub"))
    said = next(line for line in ran.lines if line.startswith("signed: "))
    assert f"spark-segments {__version__}" in said and "SHA256:" in said


def erased(root: Path, key: Path, segments) -> tuple[LogDir, Path]:
    """A topic whose only signed files were rewritten by an erasure, and a record that came since."""
    log = LogDir.create(str(root / "erased"))
    log.create_topic("people", config={"compression.type": "uncompressed"})
    log.topic("people").append([{"key": "ada", "value": "London"}])
    signed = root / "people.list"
    segments("verify", log.uri, "--deep", "--sign", key, "--checksums", signed)
    segments("erase", log.uri, "people", "--key", "ada", "--yes")
    log.topic("people").append([{"key": "bob", "value": "Turin"}])
    return log, signed


def test_nothing_compared_is_no_success(key, segments, run, tmp_path):
    log, signed = erased(tmp_path, key, segments)
    ran = run("verify", log.uri, "--check", signed)
    assert ran.code == 3 and "nothing was compared" in ran.text
    assert "list: 3 files, 0 compared, 3 gone: erase 3" in ran.text


def test_files_are_counted_that_were_compared_and_that_left_the_log_and_by_what(key, segments, run, tmp_path):
    log = LogDir.create(str(tmp_path / "two"))
    log.create_topic("people", partitions=2, config={"compression.type": "uncompressed"})
    for partition, name in enumerate(["ada", "bob"]):
        log.topic("people").append([{"key": name, "value": "London", "partition": partition}])
    signed = tmp_path / "people.list"
    segments("verify", log.uri, "--deep", "--sign", key, "--checksums", signed)
    ran = run("verify", log.uri, "--check", signed)
    assert ran.code == 0 and "list: 6 files, 6 compared, 0 gone" in ran.text
    segments("erase", log.uri, "people", "--key", "ada", "--yes")
    ran = run("verify", log.uri, "--check", signed, "--output", "json")
    assert ran.code == 0
    assert json.loads(ran.text)["details"]["listed"] == {"files": 6, "compared": 3, "gone": {"erase": 3}}


def without_commits(log: LogDir, topic: str) -> None:
    """As vacuum leaves a manifest once nobody asks for old versions: its commits are gone, a checkpoint is there."""
    table = Path(log.uri, "_manifest", topic)
    DeltaTable(table).create_checkpoint()
    for commit in sorted(table.glob("_delta_log/*.json"))[:-1]:
        commit.unlink()


def test_files_that_are_gone_for_an_unknown_reason_are_a_finding(key, segments, run, tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("people", partitions=2, config={"compression.type": "uncompressed"})
    for partition, name in enumerate(["ada", "bob"]):
        log.topic("people").append([{"key": name, "value": "London", "partition": partition}])
    signed = tmp_path / "people.list"
    segments("verify", log.uri, "--deep", "--sign", key, "--checksums", signed)
    segments("erase", log.uri, "people", "--key", "ada", "--yes")
    log.topic("people").append([{"value": "Turin", "partition": 1}])
    without_commits(log, "people")
    ran = run("verify", log.uri, "--check", signed)
    assert ran.code == 3 and "gone for an unknown reason" in ran.text and "people-0/" in ran.text
    assert "list: 6 files, 3 compared, 3 gone: unknown 3" in ran.text


@pytest.mark.parametrize("of_earlier_version", [False, True])
def test_chunks_above_the_log_start_are_gone_for_an_unknown_reason(key, segments, run, tmp_path, of_earlier_version):
    """The names of chunks say no offset: each has 0. Lists of versions up to 0.3.0 have names alone."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("people", config={"compression.type": "uncompressed"})
    for name in ("ada", "bob"):
        log.topic("people").append([{"key": name, "value": "London"}])
    signed = tmp_path / "people.list"
    segments("verify", log.uri, "--deep", "--sign", key, "--checksums", signed)
    lines = [json.loads(line) for line in signed.read_text().splitlines()[1:-1]]
    assert {line["next_offset"] for line in lines if line.get("path", "").endswith(".log")} == {1, 2}
    if of_earlier_version:
        lines = [{name: value for name, value in line.items() if name != "next_offset"} for line in lines]
    listed = tmp_path / "plain.list"
    listed.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    segments("erase", log.uri, "people", "--key", "ada", "--key", "bob", "--yes")
    log.topic("people").append([{"value": "Turin"}])
    without_commits(log, "people")
    ran = run("verify", log.uri, "--against", listed)
    assert ran.code == 3 and "0 compared, 6 gone: unknown 6" in ran.text


def test_files_below_the_log_start_are_gone_for_a_known_reason(key, segments, run, tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("people", partitions=2, config={"retention.ms": "-1"})
    for partition in (0, 1):
        log.topic("people").append([{"value": "London", "partition": partition}])
    signed = tmp_path / "people.list"
    segments("verify", log.uri, "--deep", "--sign", key, "--checksums", signed)
    log.topic("people").delete_records({0: -1})
    log.topic("people").append([{"value": "Turin", "partition": 0}])
    roll(log, now_ms=2_000_000_000_000)
    retain(log, now_ms=2_000_000_000_000)
    log.topic("people").append([{"value": "Oslo", "partition": 0}])
    without_commits(log, "people")
    ran = run("verify", log.uri, "--check", signed)
    assert "people-0/" not in ran.text
    assert "below the log start 3" in ran.text


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_a_file_that_is_another_one_now_is_found(log, signed, run, suffix):
    path = max(Path(log.uri).glob(f"orders-0/*{suffix}"), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes() or b"0123456789ab")
    data[-1] ^= 1
    path.write_bytes(data)
    ran = run("verify", log.uri, "--check", signed)
    assert ran.code == 3 and "not that of the list of checksums" in ran.text and path.name in ran.text


def forged(text: str) -> str:
    """Another list, which another key has signed."""
    other = Ed25519PrivateKey.generate()
    body = text.replace('"records": 7', '"records": 8').rpartition("{")[0]
    facts = {"ed25519": other.sign(body.encode()), "public_key": other.public_key().public_bytes_raw()}
    return body + json.dumps({name: base64.b64encode(data).decode() for name, data in facts.items()})


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text.replace('"records": 7', '"records": 8'), "was changed after it was signed"),
        (lambda text: text.replace("\n", "\r\n"), "was changed after it was signed"),
        (lambda text: text.partition("\n")[0] + "\n" + text.split("\n", 2)[2], "was changed after it was signed"),
        (lambda text: text.rpartition("{")[0], "is no signed list"),
        (lambda text: text.replace(', 1"', ', 2"'), "is no signed list"),
        (lambda text: "", "is no signed list"),
        (forged, "is signed with another key"),
    ],
)
def test_a_list_that_nobody_trusts_is_refused(log, signed, key, run, change, message):
    signed.write_bytes(change(signed.read_text()).encode())
    ran = run("verify", log.uri, "--check", signed, "--public-key", key.with_suffix(".pub"))
    assert ran.code == 1 and message in ran.error


def test_a_log_with_a_fault_is_not_signed(log, key, run, tmp_path):
    next(Path(log.uri).glob("orders-0/*.log")).write_bytes(b"")
    ran = run("verify", log.uri, "--deep", "--sign", key, "--checksums", tmp_path / "signed.list")
    assert ran.code == 3 and "Not signed" in ran.error and not (tmp_path / "signed.list").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--sign", "key.pub", "--checksums", "list", "--deep"], "has no private key of Ed25519"),
        (["--sign", "key.pem", "--checksums", "list"], "expected deep"),
        (["--sign", "key.pem", "--deep"], "do not go together"),
        (["--check", "key.pem", "--against", "key.pem"], "do not go together"),
    ],
)
def test_options_of_a_signature_that_make_no_sense_change_nothing(
    log, key, run, tmp_path, options, message, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ran = run("verify", log.uri, *options)
    assert ran.code != 0 and message in ran.error and not (tmp_path / "list").exists()
