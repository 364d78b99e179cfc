"""What a container needs, judged without an engine: the linter, the Compose specification, and the files they name."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compose_spec import PyCompose

from flexkvd.config import load_config
from flexkvd.notify import CLOSE_S_MAX

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "service/docker"
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = [DOCKER / "compose.yaml", DOCKER / "compose.gpu.yaml"]


def lint(path: Path) -> str:
    command = shutil.which("hadolint") or str(Path(sys.executable).with_name("hadolint"))
    done = subprocess.run([command, "--no-color", str(path)], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr


def test_the_linter_has_nothing_to_say() -> None:
    """hadolint finds nothing in the Dockerfile that is not explained there."""
    assert lint(DOCKERFILE) == ""


def test_the_linter_would_speak_up(tmp_path: Path) -> None:
    """The check above can fail: an image that runs as root is named."""
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(DOCKERFILE.read_text().replace("USER 10001:10001", "USER root"))
    assert "DL3002" in lint(wrong)


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_a_compose_file_follows_the_specification(path: Path) -> None:
    """Every key of the file is one of the Compose specification, with a value of its kind."""
    compose = PyCompose.from_yaml(path.read_text())
    compose.validate()
    assert "flexkvd" in compose.service_names()


def test_the_specification_refuses_what_it_does_not_know() -> None:
    """The check above can fail: a misspelt key is refused."""
    with pytest.raises(ValueError, match="stop_grace_periods"):
        PyCompose.from_yaml(COMPOSE[0].read_text().replace("stop_grace_period:", "stop_grace_periods:"))


def test_what_compose_mounts_is_there() -> None:
    """Every file or folder of the repository that a container gets exists, and so does the folder of the build."""
    text = COMPOSE[0].read_text()
    mounted = re.findall(r"- (\.\.?/[^:]+):/", text)
    assert "./compose.toml" in mounted
    assert [each for each in mounted if not (DOCKER / each).exists()] == []
    assert (DOCKER / re.findall(r"context: (\S+)", text)[0] / "Dockerfile").exists()


def test_the_image_copies_only_what_reaches_it() -> None:
    """What the Dockerfile copies from the repository exists, and .dockerignore lets it through."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text(), re.MULTILINE)
    copied = [source for line in lines for source in line.split()[:-1]]
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(Path(source).is_relative_to(each) for each in allowed), source


def test_the_configurations_of_containers_are_accepted() -> None:
    """Both parse; their places are those of the image, and the drain fits into the time Compose leaves."""
    for name in ("flexkvd.toml", "compose.toml"):
        config = load_config(DOCKER / name)
        assert config.daemon.socket.startswith("/run/flexkvd/")
        assert config.daemon.state_directory == "/var/lib/flexkvd"
        (grace_s,) = re.findall(r"stop_grace_period: (\d+)s", COMPOSE[0].read_text())
        assert config.daemon.drain_s + CLOSE_S_MAX < int(grace_s)


def test_secrets_are_made_once_and_never_committed(tmp_path: Path) -> None:
    """`secrets` writes what compose.yaml names, with tokens in the form of a token file, and not over older ones."""
    script = tmp_path / "secrets"
    shutil.copy(DOCKER / "secrets", script)
    assert subprocess.run([script], capture_output=True, timeout=10, check=False).returncode == 0
    tokens = dict(line.split() for line in (tmp_path / ".secrets/api_tokens").read_text().splitlines())
    assert tokens["read"] == (tmp_path / ".secrets/read_token").read_text()
    assert tokens["admin"] != tokens["read"]
    assert set(re.findall(r"^(\w+)=[0-9a-f]{48}$", (tmp_path / ".env").read_text(), re.MULTILINE)) == set(
        re.findall(r"\$\{(\w+):", COMPOSE[0].read_text())
    )
    assert subprocess.run([script], capture_output=True, timeout=10, check=False).returncode == 1
    ignored = (ROOT / ".gitignore").read_text()
    assert "service/docker/.env\n" in ignored
    assert "service/docker/.secrets/\n" in ignored
