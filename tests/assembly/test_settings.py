"""Settings: names, aliases, types, and errors that say what to do."""

import pytest

from doubledecker.assembly.settings import ALIASES, Settings, read
from doubledecker.errors import SettingInvalid


def test_defaults_need_no_environment():
    assert read({}) == Settings()


def test_each_kind_of_value_is_parsed():
    settings = read(
        {
            "DOUBLEDECKER_PORT": "8080",
            "DOUBLEDECKER_BODY_S_MAX": "2.5",
            "DOUBLEDECKER_PRIVATE_CALLBACKS": "true",
            "DOUBLEDECKER_NAMESPACE": "x:",
            "PATH": "/bin",
        }
    )

    assert (settings.port, settings.body_s_max, settings.private_callbacks, settings.namespace) == (
        8080,
        2.5,
        True,
        "x:",
    )


@pytest.mark.parametrize(("name", "alias"), ALIASES.items())
def test_routemaster_s_names_are_aliases_and_ours_win(name: str, alias: str):
    large = {"redis_max_mem_bytes": ("70000000", "80000000")}
    texts = {"redis_url": ("redis://h:1/0", "redis://h:2/0"), "root_key": ("k", "l"), "ssl_verify": ("false", "true")}
    value, other = {**texts, **large}.get(name, ("7", "8"))

    assert getattr(read({alias: value}), name) == getattr(read({f"DOUBLEDECKER_{name.upper()}": value}), name)
    assert getattr(read({alias: value, f"DOUBLEDECKER_{name.upper()}": other}), name) != getattr(
        read({alias: value}), name
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PORT", "http", "whole number"),
        ("BODY_S_MAX", "soon", "a number"),
        ("DURABLE", "maybe", "true or false"),
        ("PARTITIONS", "0", "least is 1"),
        ("JOURNAL_FULL", "panic", "trim, refuse"),
        ("METRIC_ADAPTERS", "graphite", "print, prometheus, statsd"),
        ("LOG_LEVEL", "loud", "debug, info, warning, error"),
        ("NAMESPACE", "{x}", "braces"),
        ("REDIS_MEMORY_SHARE", "1.5", "most is 0.9"),
        ("REDIS_MAX_MEM_BYTES", "16777216", "REDIS_MIN_FREE_BYTES keeps 16777216 of it free: nothing is left"),
        ("LAKE_RETENTION_TOPICS", "orders=" + "9" * 5000, "in days"),
        ("PROT", "1", "no setting DOUBLEDECKER_PROT"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(name: str, value: str, says: str):
    with pytest.raises(SettingInvalid, match=says):
        read({f"DOUBLEDECKER_{name}": value})
