"""A build finds the machine's own mirror and index, whatever shape its settings have."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.images import machine
from hack.images.machine import (
    Mirror,
    MirrorError,
    Source,
    apt_conf,
    find_mirror,
    mirror,
    parse_pip_config,
    pip_conf,
    write_build_settings,
)

DEB822 = """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
"""


@pytest.mark.parametrize(
    ("uris", "expected"),
    [
        (["http://a/debian"], Mirror("http://a/debian")),
        (["http://a/debian-security", "http://a/debian/"], Mirror("http://a/debian/", "http://a/debian-security")),
        (["https://packages.example/apt", "http://a/x/debian/2026"], Mirror("http://a/x/debian/2026")),
    ],
)
def test_debian_is_found_among_other_archives(uris: list[str], expected: Mirror) -> None:
    assert find_mirror(Source(uri, ("bookworm",)) for uri in uris) == expected


def test_a_machine_without_debian_sources_says_what_to_do() -> None:
    with pytest.raises(MirrorError, match="DEBIAN_MIRROR="):
        find_mirror([Source("http://archive.example/ubuntu", ("noble",))])


def test_a_named_mirror_takes_precedence(tmp_path: Path) -> None:
    assert mirror({"DEBIAN_MIRROR": "http://named/debian"}, tmp_path) == Mirror("http://named/debian")


def test_all_sources_of_the_machine_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb https://packages.example/apt x main\n")
    (tmp_path / "sources.list.d/debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d/debian.sources.bak").write_text("URIs: http://bak.example/debian\n")
    assert mirror({}, tmp_path).main == "http://mirror.example/debian"


def test_base_image_sources_have_suite_updates_and_security() -> None:
    text = Mirror("http://a/debian", "http://a/debian-security").sources("trixie")
    assert "Suites: trixie trixie-updates\n" in text
    assert "URIs: http://a/debian-security\nSuites: trixie-security\n" in text


def test_pip_options_are_copied_without_local_paths() -> None:
    listing = "global.index-url='https://index.example/simple'\n:env:.default-timeout='180'\n:env:.find-links='/opt/wheels'\nglobal.cert='/x.crt'\n"
    options = parse_pip_config(listing)
    assert options == {"index-url": "https://index.example/simple", "timeout": "180"}
    assert (
        pip_conf(options, "/mnt/ca.pem")
        == "[global]\nindex-url = https://index.example/simple\ntimeout = 180\ncert = /mnt/ca.pem\n"
    )


def test_apt_uses_proxy_and_certificates() -> None:
    text = apt_conf('Acquire::http::Proxy "http://proxy:3128";\nAPT::Architecture "amd64";\n', "/mnt/ca.pem")
    assert 'Acquire::http::Proxy "http://proxy:3128";' in text
    assert 'Acquire::https::CAInfo "/mnt/ca.pem";' in text
    assert "Architecture" not in text


def test_a_published_base_keeps_its_own_sources_where_the_machine_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an Ubuntu that builds a release."""

    def no_mirror() -> Mirror:
        raise MirrorError

    monkeypatch.setattr(machine, "mirror", no_mirror)
    monkeypatch.delenv("BASE_IMAGE", raising=False)
    with pytest.raises(MirrorError):
        write_build_settings(tmp_path, "trixie")
    monkeypatch.setenv("BASE_IMAGE", "debian:trixie-slim")
    assert [inside for _, inside in write_build_settings(tmp_path, "trixie")] == ["/mnt", "/etc/apt/apt.conf.d"]
