"""Settings: names, aliases, types, and errors that say what to do."""

import pickle
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from doubledecker.assembly import spark_conf
from doubledecker.assembly.settings import ALIASES, RETIRED, Settings, log_retired, read
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


def test_a_setting_that_has_no_effect_any_more_is_taken_and_named_in_the_log():
    set_ = {f"DOUBLEDECKER_{name.upper()}": "1" for name in RETIRED}
    with capture_logs() as lines:
        log_retired({**set_, "DOUBLEDECKER_PORT": "0"})

    assert read(set_) == Settings()
    assert [(line["event"], line["log_level"]) for line in lines] == [("setting.retired", "warning")] * len(RETIRED)
    assert {line["name"] for line in lines} == set_.keys()


@pytest.mark.parametrize(("name", "alias"), ALIASES.items())
def test_routemaster_s_names_are_aliases_and_ours_win(name: str, alias: str):
    large = {"redis_max_mem_bytes": ("70000000", "80000000")}
    texts = {"redis_url": ("redis://h:1/0", "redis://h:2/0"), "root_key": ("k", "l"), "ssl_verify": ("false", "true")}
    texts["log_level"] = ("debug", "error")
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
        (
            "BODIES_BYTES_MAX",
            "16777215",
            "8388608 bytes, which DOUBLEDECKER_BODY_BYTES_MAX allows",
        ),
        ("BODY_BYTES_MAX", "134217729", "BODIES_BYTES_MAX is 268435456, .* make the first at least 268435458"),
        ("LAKE_RETENTION_TOPICS", "orders=" + "9" * 5000, "in days"),
        ("SPARK_CONF", "driver.memory=4g; spark.ui.enabled=true", "write spark.<name>=<value>"),
        ("SPARK_CONF", "executor.memory", "'executor.memory' is no setting of Spark"),
        ("SPARK_CONF", "spark.master=yarn", "DOUBLEDECKER_SPARK_MASTER"),
        ("SPARK_CONF", "spark.sql.session.timeZone=Europe/Vienna", "the pipeline needs 'UTC'"),
        ("CLIENT_SUBSCRIPTIONS_MAX", "10001", "most is 10000"),
        ("WEB_PROCESSES", "-1", "WEB_PROCESSES is -1; the least is 0"),
        ("WORKER_PROCESSES", "257", "WORKER_PROCESSES is 257; the most is 256"),
        ("WEB_PROCESSES", "all", "whole number"),
        ("PROT", "1", "no setting DOUBLEDECKER_PROT; did you mean DOUBLEDECKER_PORT?"),
        ("FROBNICATE", "1", "no setting DOUBLEDECKER_FROBNICATE; docs/operations.md lists them"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(name: str, value: str, says: str):
    with pytest.raises(SettingInvalid, match=says):
        read({f"DOUBLEDECKER_{name}": value})


def test_neither_the_root_key_nor_spark_s_settings_are_pickled():
    settings = Settings(root_key="the-root-key", spark_conf="spark.hadoop.fs.s3a.secret.key=the-secret", port=7)
    packed = pickle.dumps(settings)

    assert b"the-root-key" not in packed
    assert b"the-secret" not in packed
    assert pickle.loads(packed) == Settings(port=7)


def test_spark_s_settings_are_lines_or_separated_by_semicolons():
    given = "# ours\nspark.driver.memory 4g\n\nspark.jars = /a.jar,/b.jar\nspark.empty=\nspark.url=jdbc:x;create=true"
    settings = read({"DOUBLEDECKER_SPARK_CONF": "spark.ui.enabled=true; spark.ui.port=1;spark.ui.port=2"})

    assert Settings(spark_conf=given).spark_options == {
        "spark.driver.memory": "4g",
        "spark.jars": "/a.jar,/b.jar",
        "spark.empty": "",
        "spark.url": "jdbc:x;create=true",
    }
    assert settings.spark_options == {"spark.ui.enabled": "true", "spark.ui.port": "2"}


def test_a_spark_conf_file_is_read_and_the_setting_wins_over_it(tmp_path: Path):
    assert spark_conf.read(tmp_path, "spark.a=1") == "spark.a=1"
    (tmp_path / "spark.conf").write_text("spark.a 2\nspark.b 3\n")

    assert spark_conf.parse(spark_conf.read(tmp_path, "spark.a=1")) == {"spark.a": "1", "spark.b": "3"}


def test_a_spark_conf_file_that_cannot_be_used_is_named(tmp_path: Path):
    file = tmp_path / "spark.conf"
    for content in (b"driver.memory=4g", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(SettingInvalid, match=str(file)):
            spark_conf.read(tmp_path, "")


def test_bounds_of_a_web_process_are_divided_and_the_largest_body_fits_into_a_share():
    settings = Settings(connections_max=10, address_connections_max=5, streams_max=0, bodies_bytes_max=100_000_000)

    assert settings.divided(1) == settings
    third = settings.divided(3)
    assert (third.connections_max, third.address_connections_max, third.streams_max) == (4, 2, 0)
    assert third.bodies_bytes_max == 33_333_334
    assert settings.divided(64).bodies_bytes_max == 2 * settings.body_bytes_max


def test_no_puma_workers_are_one_process():
    assert read({"PUMA_WORKERS": "0"}).web_processes == 1
    assert read({"DOUBLEDECKER_WEB_PROCESSES": "0"}).web_processes == 0


def routemaster_env() -> dict[str, str]:
    """The variables of the `.env` that Routemaster comes with."""
    lines = (Path(__file__).parent / "routemaster.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_original_s_own_variables_are_taken():
    settings = read(routemaster_env())

    assert (settings.hp_heal_rate, settings.hp_damage_rate) == (1, 2)
    assert (settings.redis_url, settings.root_key) == ("redis://localhost", "CHANGE-ME")
    assert (settings.client_tokens, settings.log_level) == (("demo", "shop--6f1d6311"), "DEBUG")
    assert (settings.worker_threads, settings.max_event_data_bytes, settings.ssl_verify) == (5, 64, True)


def test_the_redis_url_may_be_the_name_of_another_variable_as_the_original_has_it():
    given = {"ROUTEMASTER_REDIS_URL": "REDISCLOUD_URL", "REDISCLOUD_URL": "redis://cloud:1/0"}

    assert read(given).redis_url == "redis://cloud:1/0"
    with pytest.raises(SettingInvalid, match=r"^ROUTEMASTER_REDIS_URL is 'REDISCLOUD_URL', which would be the name"):
        read({"ROUTEMASTER_REDIS_URL": "REDISCLOUD_URL"})


@pytest.mark.parametrize(("level", "ours"), [("WARN", "warning"), ("FATAL", "error"), ("INFO", "info")])
def test_ruby_s_names_of_log_levels_are_taken(level: str, ours: str):
    assert read({"ROUTEMASTER_LOG_LEVEL": level}).log_level.lower() == ours


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("ROUTEMASTER_HP_DAMAGE_RATE", "0", "is 0; the least is 1"),
        ("ROUTEMASTER_HP_DAMAGE_RATE", "two", "is 'two'; it must be a whole number"),
        ("DOUBLEDECKER_HP_DAMAGE_RATE", "-2", "is -2; the least is 1"),
        ("ROUTEMASTER_WORKER_THREADS", "0", "is 0; the least is 1"),
        ("ROUTEMASTER_SSL_VERIFY", "perhaps", "is 'perhaps'; it must be true or false"),
        ("ROUTEMASTER_LOG_LEVEL", "loud", "is 'loud'; it must be one of"),
        ("ROUTEMASTER_REDIS_URL", "http://h", "is 'http://h'; it must be like redis://"),
        ("ROUTEMASTER_REDIS_URL", "redis://me:secret@h:port", "is 'h:port'; it must be like redis://"),
        ("ROUTEMASTER_CLIENTS", "demo,Bad Token", "has a token, number 2, that does not match"),
        ("ROUTEMASTER_CLIENTS", "--secret", "has a token, number 1, that does not match"),
    ],
)
def test_an_error_names_the_variable_that_was_set(variable: str, value: str, says: str):
    with pytest.raises(SettingInvalid) as raised:
        read({variable: value})

    assert str(raised.value).startswith(f"{variable} {says}")
    assert "secret" not in str(raised.value)


def test_an_error_names_every_variable_that_was_set():
    with pytest.raises(SettingInvalid) as raised:
        read({"ROUTEMASTER_REDIS_MAX_MEM": "9", "ROUTEMASTER_REDIS_MIN_FREE": "10"})

    assert str(raised.value).startswith("ROUTEMASTER_REDIS_MAX_MEM is 9, and ROUTEMASTER_REDIS_MIN_FREE keeps 10 of it")


def test_an_error_of_a_variable_of_ours_does_not_name_the_weaker_one():
    with pytest.raises(SettingInvalid, match=r"^DOUBLEDECKER_WORKER_THREADS is 0"):
        read({"DOUBLEDECKER_WORKER_THREADS": "0", "ROUTEMASTER_WORKER_THREADS": "7"})
