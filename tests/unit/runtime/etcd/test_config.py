"""The connection keys of --rdzv-conf, and errors about them."""

from __future__ import annotations

from pathlib import Path

import pytest
from elasticjob_runtime.etcd import CONF_KEYS, EtcdCredentials, TlsConfig, connect
from elasticjob_runtime.etcd.config import DEFAULT_TIMEOUT, parse_conf


def test_the_default_is_plain_http_without_credentials() -> None:
    found = parse_conf({})
    assert (found.protocol, found.tls, found.credentials, found.timeout) == ("", TlsConfig(), None, DEFAULT_TIMEOUT)


def test_every_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    conf = {"protocol": "HTTPS", "cacert": "ca", "cert": "c", "key": "k", "user": "u", "read_timeout": "2.5"}
    conf["password_file"] = str(file)
    settings = parse_conf(conf)
    assert settings.protocol == "https"
    assert settings.tls == TlsConfig("ca", "c", "k")
    assert settings.credentials is not None
    assert settings.credentials.read_password() == "secret"
    assert settings.timeout == 2.5
    assert set(conf) <= CONF_KEYS


def test_the_keys_of_torchs_etcd_v2_backend_work() -> None:
    conf = {"protocol": "https", "ca_cert": "ca", "ssl_cert": "c", "ssl_cert_key": "k", "read_timeout": "60"}
    assert parse_conf(conf).tls == TlsConfig("ca", "c", "k")
    assert set(conf) <= CONF_KEYS


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"protocol": "grpc"}, "protocol is 'grpc'; it must be http or https"),
        ({"cacert": "a", "ca_cert": "b"}, "cacert and ca_cert are the same setting"),
        ({"password": "x"}, "password is given without user"),
        ({"user": "u"}, "user is 'u': give either password or password_file"),
        ({"user": "u", "password": "x", "password_file": "y"}, "give either password or password_file"),
        ({"user": "u", "password_file": "/nowhere"}, "password_file /nowhere: cannot be read"),
        ({"read_timeout": "soon"}, "read_timeout is 'soon'"),
        ({"read_timeout": "0"}, "read_timeout is '0'"),
        ({"read_timeout": "nan"}, "read_timeout is 'nan'"),
        ({"cacert": "/nowhere"}, "add protocol=https"),
        ({"protocol": "https", "cacert": "/nowhere"}, "cacert /nowhere: .* as a CA certificate: No such file"),
        ({"protocol": "https", "cert": "/nowhere"}, "cert /nowhere: .* as a client certificate: No such file"),
        ({"protocol": "https", "key": "/nowhere"}, "key is given without cert"),
        ({"protocol": "https", "cacert": __file__}, "cannot be used as a CA certificate"),
    ],
)
def test_an_invalid_setting_gives_a_one_line_error(conf: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        connect("etcd:2379", conf)
    assert "\n" not in str(caught.value)


def test_the_representation_of_a_conf_contains_no_password() -> None:
    assert "hunter2" not in repr(parse_conf({"user": "u", "password": "hunter2"}))
    assert EtcdCredentials("u", "a") != EtcdCredentials("u", "b")


def folder_with(path: Path, **files: str) -> str:
    for name, text in files.items():
        (path / name.replace("_", ".")).write_text(text)
    return str(path)


def test_a_folder_of_credentials_has_the_files_of_a_mounted_secret(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, ca_crt="", tls_crt="", tls_key="", username="jane\n", password="secret\n")
    settings = parse_conf({"credentials": folder})
    assert settings.tls == TlsConfig(f"{folder}/ca.crt", f"{folder}/tls.crt", f"{folder}/tls.key")
    assert settings.credentials == EtcdCredentials("jane", password_file=f"{folder}/password")
    assert settings.credentials.read_password() == "secret"


@pytest.mark.parametrize(
    ("files", "tls", "user"),
    [
        (("ca_crt",), True, False),
        (("tls_crt", "tls_key"), True, False),
        (("username", "password"), False, True),
        (("ca_crt", "username", "password"), True, True),
    ],
)
def test_any_of_these_files_may_be_missing(files: tuple[str, ...], tls: bool, user: bool, tmp_path: Path) -> None:
    settings = parse_conf({"credentials": folder_with(tmp_path, **dict.fromkeys(files, "x"))})
    assert (settings.tls != TlsConfig(), settings.credentials is not None) == (tls, user)


def test_keys_given_next_to_a_folder_of_credentials_take_precedence(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, ca_crt="", tls_crt="", tls_key="", username="jane", password="secret")
    settings = parse_conf({"credentials": folder, "user": "joe", "password": "other", "ca_cert": "/mine"})
    assert settings.credentials == EtcdCredentials("joe", "other")
    assert settings.tls == TlsConfig("/mine", f"{folder}/tls.crt", f"{folder}/tls.key")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "has none of the files ca.crt, tls.crt, tls.key, username, password"),
        (("tls_crt",), "has tls.crt without tls.key"),
        (("password",), "has password without username"),
    ],
)
def test_an_incomplete_folder_of_credentials_is_named(files: tuple[str, ...], words: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, **dict.fromkeys(files, "x"))
    with pytest.raises(ValueError, match=f"credentials {folder}: {words}"):
        parse_conf({"credentials": folder})
