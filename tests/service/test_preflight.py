"""What `--check-config` and a start look at before anything is opened."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flexkv_py.errors import ErrorCode
from flexkvd import preflight
from flexkvd.config import Config, parse_config
from flexkvd.main import main
from tests.tiers.small_disk import mounted

Tables = dict[str, dict[str, object]]


def tables(folder: Path, **changes: dict[str, object]) -> Tables:
    """Tables of a daemon that could start in `folder`."""
    base: Tables = {
        "daemon": {"socket": str(folder / "worker.sock")},
        "api": {"socket": str(folder / "admin.sock")},
        "dram": {"bytes": "4MiB", "segment_bytes": "4MiB"},
    }
    return base | {name: base.get(name, {}) | change for name, change in changes.items()}


def config(folder: Path, **changes: dict[str, object]) -> Config:
    return parse_config(tables(folder, **changes))


def listing(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def ssd(directory: Path) -> dict[str, object]:
    return {"directory": str(directory), "bytes": "16MiB"}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        (lambda folder: {"daemon": {"socket": "/" + 107 * "x"}}, ErrorCode.BAD_SOCKET_PATH, "108 bytes: use 1 to 107"),
        (lambda folder: {"daemon": {"socket": f"{folder}/no/w"}}, ErrorCode.BAD_SOCKET_PATH, "is no directory"),
        (lambda folder: {"api": {"socket": f"{folder}/no/a"}}, ErrorCode.BAD_SOCKET_PATH, "[api] socket"),
        (lambda folder: {"api": {"socket": f"{folder}/x/../worker.sock"}}, ErrorCode.BAD_CONFIG, "a path of its own"),
        (lambda folder: {"daemon": {"token_file": f"{folder}/no"}}, ErrorCode.BAD_CONFIG, "[daemon] token_file"),
        (lambda folder: {"api": {"token_file": str(folder)}}, ErrorCode.BAD_CONFIG, "[api] token_file"),
        (lambda folder: {"dram": {"bytes": "8TiB"}}, ErrorCode.BAD_CONFIG, "of memory in all"),
        (lambda folder: {"ssd": ssd(folder / "file")}, ErrorCode.DIRECTORY_NOT_WRITABLE, "Not a directory"),
        (lambda folder: {"ssd": ssd(folder / "file" / "x")}, ErrorCode.DIRECTORY_NOT_WRITABLE, "Not a directory"),
        (lambda folder: {"ssd": ssd(folder)}, ErrorCode.DIRECTORY_FOREIGN, "'file' but no flexkv.json"),
        (lambda folder: {"s3": {"bucket": "b", "endpoint_url": "host:80"}}, ErrorCode.BAD_CONFIG, "http://host:port"),
        (lambda folder: {"s3": {"bucket": "b", "endpoint_url": "http://h:x"}}, ErrorCode.BAD_CONFIG, "endpoint_url"),
        (lambda folder: {"s3": {"bucket": "b", "prefix": "a//b"}}, ErrorCode.BAD_CONFIG, "'//' for one '/'"),
        (lambda folder: {"s3": {"bucket": "b", "ca_bundle": f"{folder}/no"}}, ErrorCode.BAD_CONFIG, "ca_bundle"),
    ],
)
def test_what_cannot_work_is_named_and_nothing_is_changed(
    tmp_path: Path, changes: Callable[[Path], Tables], code: ErrorCode, words: str
) -> None:
    """Each fault is found alone, with its code and a sentence, by looking only."""
    (tmp_path / "file").write_text("somebody's")
    before = listing(tmp_path)
    [problem] = preflight.problems(config(tmp_path, **changes(tmp_path)))
    assert problem.code is code
    assert words in problem.message
    assert listing(tmp_path) == before


def test_a_configuration_that_can_work_has_no_problem(tmp_path: Path) -> None:
    """A directory still to be made, an endpoint, a token: fine, and nothing is made."""
    (tmp_path / "token").write_text("sesame\n")
    good = config(
        tmp_path,
        ssd=ssd(tmp_path / "new" / "ssd"),
        s3={"bucket": "b", "endpoint_url": "https://[::1]:8333"},
        api={"token_file": str(tmp_path / "token")},
    )
    assert preflight.problems(good) == []
    assert list(preflight.warnings(good)) == []
    assert listing(tmp_path) == [str(tmp_path / "token")]


def test_a_read_only_disk_is_a_problem(tmp_path: Path) -> None:
    """Even for root, and for a directory that is not there yet."""
    with mounted("tmpfs", "ro,size=1m", tmp_path) as disk:
        [problem] = preflight.problems(config(tmp_path, ssd=ssd(disk / "ssd")))
    assert problem.code is ErrorCode.DIRECTORY_NOT_WRITABLE
    assert "Read-only" in problem.message


def test_a_disk_smaller_than_configured_is_a_warning(tmp_path: Path) -> None:
    """More than free, and more than the whole disk: both are said with the figures, neither stops the start."""
    with mounted("tmpfs", "size=20m", tmp_path) as disk:
        (disk / "ballast").write_bytes(bytes(8 << 20))
        told = []
        for size in ("8MiB", "16MiB", "40MiB"):
            wanted = config(tmp_path, ssd={"directory": str(disk / "ssd"), "bytes": size})
            assert preflight.problems(wanted) == []
            told.append(list(preflight.warnings(wanted)))
        [nothing] = preflight.problems(config(tmp_path, ssd={"directory": str(disk / "ssd"), "bytes": "30000TiB"}))
    [[], [less], [never]] = told
    assert f"has {(12 << 20) - (20 << 20) // 50} for it now, beyond the reserve" in less
    assert f"more than its whole file system holds ({20 << 20})" in never
    assert nothing.code is ErrorCode.DISK_FULL  # a start would end there: not even one segment could be made


def test_check_config_lists_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run tells all of them, each on a line with its code, and ends with status 2."""
    file = tmp_path / "flexkvd.toml"
    file.write_text('[daemon]\nsocket = "/no/where"\ntoken_file = "/no/token"\n[api]\nsocket = "/no/admin"\n')
    assert main(["--check-config", "--config", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split()[1] for line in said.err.splitlines()] == [
        "[bad_socket_path]",
        "[bad_socket_path]",
        "[bad_config]",
    ]
