"""How this machine reaches its packages: Debian mirror, pip index, certificates. Read from its own settings, used while
images are built (mounted read-only), and never part of an image or of the checkout."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from hack.steps import StepError

CERTIFICATE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PIP_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")


class MirrorError(StepError):
    """This machine's apt sources name no Debian archive."""


@dataclasses.dataclass(frozen=True)
class Source:
    """One apt source: an address and the suites taken from it."""

    uri: str
    suites: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Mirror:
    """Where Debian comes from."""

    main: str
    security: str | None = None

    def sources(self, suite: str) -> str:
        """The text of a `.sources` file for `suite` (deb822)."""
        stanzas = [_stanza(self.main, f"{suite} {suite}-updates")]
        if self.security:
            stanzas.append(_stanza(self.security, f"{suite}-security"))
        return "\n".join(stanzas)


def _stanza(uri: str, suites: str) -> str:
    return f"Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\nSigned-By: {KEYRING}\n"


def parse_sources(text: str, deb822: bool) -> list[Source]:
    """Reads an apt sources file: deb822 (`.sources`) or one source per line (`.list`). Ignores source packages."""
    return list(_deb822(text) if deb822 else _one_line(text))


def _deb822(text: str) -> Iterable[Source]:
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", lines):
        fields = re.findall(r"(?m)^([\w-]+):(.*(?:\n[ \t].*)*)", stanza)
        words = {key.lower(): value.split() for key, value in fields}
        if "deb" in words.get("types", ()) and words.get("enabled") != ["no"]:
            yield from (Source(uri, tuple(words.get("suites", ()))) for uri in words.get("uris", ()))


def _one_line(text: str) -> Iterable[Source]:
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", line)
        if match:
            yield Source(match[1], (match[2],))


def find_mirror(sources: Iterable[Source]) -> Mirror:
    """The Debian archive among a machine's sources: an address whose path holds `debian` as a whole word. Raises
    MirrorError."""
    main = security = None
    for source in sources:
        parts = urlsplit(source.uri).path.strip("/").split("/")
        if "debian-security" in parts or any(suite.endswith("-security") for suite in source.suites):
            security = security or source.uri
        elif "debian" in parts:
            main = main or source.uri
    if main is None:
        raise MirrorError(
            "this machine's apt sources (/etc/apt) name no Debian archive; name one: DEBIAN_MIRROR=<address of a "
            "Debian archive>, "
            "or give a published base image, which has its own: BASE_IMAGE=debian:trixie-slim"
        )
    return Mirror(main, security)


def mirror(environment: Mapping[str, str] = os.environ, etc: Path = Path("/etc/apt")) -> Mirror:
    """This machine's Debian mirror, or the one that `DEBIAN_MIRROR` names. Raises MirrorError."""
    named = environment.get("DEBIAN_MIRROR")
    if named:
        return Mirror(named)
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    return find_mirror(
        source
        for file in files
        if file.is_file() and file.suffix in {".list", ".sources"}
        for source in parse_sources(file.read_text(encoding="utf-8"), file.suffix == ".sources")
    )


def certificates(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The bundle of certificates that this machine trusts, or None."""
    named = [Path(environment[name]) for name in CERTIFICATE_VARIABLES if environment.get(name)]
    return next((path for path in [*named, SYSTEM_CERTIFICATES] if path.is_file()), None)


def parse_pip_config(listing: str) -> dict[str, str]:
    """The options for reaching an index, from `pip config list` (`global.index-url='...'`, `:env:.timeout='...'`); the
    last one wins."""
    options: dict[str, str] = {}
    for line in listing.splitlines():
        match = re.match(r"(?:global|install|download|:env:)\.([a-z-]+)='(.*)'$", line)
        if match:
            name = "timeout" if match[1] == "default-timeout" else match[1]
            if name in PIP_OPTIONS:
                options[name] = match[2].replace("\\n", " ").strip()
    return options


def pip_conf(options: Mapping[str, str], certificate: str | None) -> str:
    """The text of a `pip.conf`; `certificate` is a path as the build sees it."""
    lines = [f"{name} = {value}" for name, value in sorted(options.items())]
    if certificate:
        lines.append(f"cert = {certificate}")
    return "\n".join(["[global]", *lines, ""])


def apt_conf(dump: str, certificate: str | None) -> str:
    """apt settings for a build: this machine's proxies (from `apt-config dump`) and its certificates."""
    lines = [line for line in dump.splitlines() if re.match(r"Acquire::(http|https)::(Proxy|Timeout)\b", line)]
    if certificate:
        lines.append(f'Acquire::https::CAInfo "{certificate}";')
    return "\n".join([*lines, 'Acquire::Languages "none";', ""])


def output_of(*argv: str) -> str:
    """A program's output, which is optional: empty if the program is missing or fails."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""


def write_build_settings(folder: Path, suite: str) -> list[tuple[Path, str]]:
    """Writes what a build needs to reach its packages, and returns (folder here, folder inside the build) to mount
    read-only.

    The mount points exist in every Debian, so a build leaves no trace of them. Raises MirrorError, unless BASE_IMAGE
    names a published image, which has sources of its own.
    """
    inside = "/mnt"
    bundle = certificates()
    certificate = f"{inside}/ca.pem" if bundle else None
    for name in ("mnt", "sources.list.d", "apt.conf.d"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if bundle:
        (folder / "mnt/ca.pem").write_bytes(bundle.read_bytes())
    pip = parse_pip_config(output_of(sys.executable, "-m", "pip", "config", "list"))
    (folder / "mnt/pip.conf").write_text(pip_conf(pip, certificate), encoding="utf-8")
    try:
        sources = mirror().sources(suite)
    except MirrorError:
        if not os.environ.get("BASE_IMAGE"):
            raise
        sources = ""
    (folder / "sources.list.d/debian.sources").write_text(sources, encoding="utf-8")
    (folder / "apt.conf.d/10build").write_text(apt_conf(output_of("apt-config", "dump"), certificate), encoding="utf-8")
    return [
        (folder / "mnt", inside),
        *([(folder / "sources.list.d", "/etc/apt/sources.list.d")] if sources else []),
        (folder / "apt.conf.d", "/etc/apt/apt.conf.d"),
    ]
