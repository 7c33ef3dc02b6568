"""HTTP Digest: what a right answer looks like, and that nothing else passes."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.model import token
from doubledecker.web import digest
from doubledecker.web.digest import Checked, Credentials, DigestVerdict, NonceState

KEY = b"k" * 32
NOW_MS = 1_700_000_000_000
USER = "orders"
SECRET = "orders--5e8b0c"
URI = "/topics/orders?all=1"

FIELDS = {
    "username": f'"{USER}"',
    "realm": '"doubledecker"',
    "nonce": '"abc"',
    "uri": f'"{URI}"',
    "algorithm": "SHA-256",
    "qop": "auth",
    "nc": "00000001",
    "cnonce": '"f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"',
    "response": '"' + "0" * 64 + '"',
}


def sha256(*parts: str) -> str:
    return hashlib.sha256(":".join(parts).encode()).hexdigest()


def a_header(**changes: str | None) -> str:
    fields = {name: value for name, value in {**FIELDS, **changes}.items() if value is not None}
    return "Digest " + ", ".join(f"{name}={value}" for name, value in fields.items())


def an_answer(*, nonce: str, secret: str = SECRET, method: str = "POST", uri: str = URI, nc: str = "00000001"):
    response = sha256(sha256(USER, "doubledecker", secret), nonce, nc, "c-nonce", "auth", sha256(method, uri))
    return Credentials(user=USER, nonce=nonce, uri=uri, cnonce="c-nonce", nc=nc, response=response)


def checked(
    credentials: Credentials,
    *,
    candidates: tuple[str, ...] = (token.ha1(USER, SECRET),),
    now_ms: int = NOW_MS,
) -> Checked:
    return digest.check(credentials, method="POST", uri=URI, candidates=candidates, key=KEY, now_ms=now_ms)


def a_nonce(*, key: bytes = KEY) -> str:
    return digest.make_nonce(key, now_ms=NOW_MS)


def test_the_example_of_rfc_7616_gets_the_response_printed_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digest, "REALM", "http-auth@example.org")
    monkeypatch.setattr(token, "REALM", "http-auth@example.org")
    header = (
        'Digest username="Mufasa", realm="http-auth@example.org", uri="/dir/index.html", algorithm=SHA-256, '
        'nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", nc=00000001, '
        'cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ", qop=auth, '
        'response="753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1", '
        'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"'
    )
    credentials = digest.parse(header)

    assert credentials is not None
    who = digest._who_answered(credentials, method="GET", candidates=[token.ha1("Mufasa", "Circle of Life")])
    assert who == token.ha1("Mufasa", "Circle of Life")


def test_a_right_answer_computed_elsewhere_is_ok_and_says_whose_it_is():
    mine = sha256(USER, "doubledecker", SECRET)

    result = checked(an_answer(nonce=a_nonce()), candidates=("0" * 64, mine, "1" * 64))

    assert result == Checked(DigestVerdict.OK, mine)


def test_a_header_made_by_a_client_passes_from_text_to_verdict():
    sent = an_answer(nonce=a_nonce(), nc="0000000A")
    header = a_header(nonce=f'"{sent.nonce}"', nc=sent.nc, cnonce='"c-nonce"', response=f'"{sent.response}"')

    credentials = digest.parse(header)

    assert credentials == sent
    assert sent.count == 10
    assert checked(sent).verdict is DigestVerdict.OK


def test_a_wrong_secret_is_wrong():
    assert checked(an_answer(nonce=a_nonce(), secret="guess")) == Checked(DigestVerdict.WRONG)


def test_an_unknown_user_is_wrong():
    assert checked(an_answer(nonce=a_nonce()), candidates=()) == Checked(DigestVerdict.WRONG)


def test_an_answer_for_another_method_is_wrong():
    assert checked(an_answer(nonce=a_nonce(), method="GET")).verdict is DigestVerdict.WRONG


def test_an_answer_for_another_target_is_wrong():
    assert checked(an_answer(nonce=a_nonce(), uri="/topics/orders")).verdict is DigestVerdict.WRONG


def test_a_nonce_of_another_key_is_forged_and_its_answer_wrong():
    nonce = a_nonce(key=b"other")

    assert digest.check_nonce(nonce, key=KEY, now_ms=NOW_MS) is NonceState.FORGED
    assert checked(an_answer(nonce=nonce)).verdict is DigestVerdict.WRONG


@pytest.mark.parametrize("at", [0, 11, 12, 27, 28, 59])
def test_a_nonce_changed_anywhere_is_forged(at: int):
    nonce = a_nonce()
    changed = nonce[:at] + ("0" if nonce[at] != "0" else "1") + nonce[at + 1 :]

    assert digest.check_nonce(changed, key=KEY, now_ms=NOW_MS) is NonceState.FORGED


def test_a_nonce_in_capitals_is_forged_lest_each_spelling_has_its_own_counts():
    assert digest.check_nonce(a_nonce().upper(), key=KEY, now_ms=NOW_MS) is NonceState.FORGED


@given(st.text())
def test_no_text_is_more_than_a_forged_nonce(text: str):
    assert digest.check_nonce(text, key=KEY, now_ms=NOW_MS) is NonceState.FORGED


def test_a_nonce_is_valid_to_the_last_millisecond_of_its_life_on_either_side():
    nonce = a_nonce()

    ages_ms = (
        -digest.NONCE_MS_MAX - 1,
        -digest.NONCE_MS_MAX,
        0,
        digest.NONCE_MS_MAX,
        digest.NONCE_MS_MAX + 1,
    )
    states = [digest.check_nonce(nonce, key=KEY, now_ms=NOW_MS + age_ms) for age_ms in ages_ms]

    valid, expired = NonceState.VALID, NonceState.EXPIRED
    assert states == [expired, valid, valid, valid, expired]


def test_two_nonces_of_one_millisecond_differ():
    assert a_nonce() != a_nonce()


def test_the_right_secret_with_an_expired_nonce_is_stale():
    late_ms = NOW_MS + digest.NONCE_MS_MAX + 1

    assert checked(an_answer(nonce=a_nonce()), now_ms=late_ms).verdict is DigestVerdict.STALE


def test_a_wrong_secret_with_an_expired_nonce_is_wrong_not_stale():
    late_ms = NOW_MS + digest.NONCE_MS_MAX + 1

    assert checked(an_answer(nonce=a_nonce(), secret="guess"), now_ms=late_ms).verdict is DigestVerdict.WRONG


@pytest.mark.parametrize(("nc", "verdict"), [("000003e7", DigestVerdict.OK), ("000003e8", DigestVerdict.STALE)])
def test_a_nonce_used_more_than_999_times_is_stale(nc: str, verdict: DigestVerdict):
    assert checked(an_answer(nonce=a_nonce(), nc=nc)).verdict is verdict


@pytest.mark.parametrize("stale", [True, False])
def test_a_challenge_offers_sha_256_and_says_whether_the_nonce_was_stale(stale: bool):
    value = digest.challenge("n0", stale=stale)

    flag = "true" if stale else "false"
    expected = f'Digest realm="doubledecker", qop="auth", algorithm=SHA-256, nonce="n0", stale={flag}'
    assert value == expected


def test_a_quoted_value_is_read_without_its_escapes():
    credentials = digest.parse(a_header(username=r'"a\"b\\c, d=e"'))

    assert credentials is not None
    assert credentials.user == r'a"b\c, d=e'


def test_names_and_scheme_are_read_in_any_case_and_spacing():
    plain = digest.parse(a_header(algorithm="SHA-256"))
    odd = digest.parse(a_header(algorithm=None, ALGORITHM=" \t sha-256 ").replace("Digest ", "dIGEST   ,\t, "))

    assert plain is not None
    assert odd == plain


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_header_without_one_of_its_fields_is_refused(name: str):
    assert digest.parse(a_header(**{name: None})) is None


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_header_with_a_field_twice_is_refused(name: str):
    assert digest.parse(f"{a_header()}, {name.upper()}={FIELDS[name]}") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algorithm", "MD5"),
        ("algorithm", "SHA-256-sess"),
        ("qop", "auth-int"),
        ("realm", '"elsewhere"'),
        ("userhash", "true"),
        ("nc", "00000000"),
        ("nc", "1"),
        ("nc", "0000000g"),
        ("nc", '"\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661"'),
        ("cnonce", '""'),
        ("username", '""'),
        ("username", '"ord\x00ers"'),
        ("response", '"' + "G" * 64 + '"'),
        ("response", '"' + "0" * 32 + '"'),
        ("uri", '"/unclosed'),
        ("uri", '"/escape at the end\\"'),
        ("uri", '"' + "/" * digest.HEADER_CHARS_MAX + '"'),
    ],
)
def test_a_field_outside_what_we_speak_is_refused(name: str, value: str):
    assert digest.parse(a_header(**{name: value})) is None


@pytest.mark.parametrize("header", ["", "Digest", "Digest ", "Basic b3JkZXJzOng=", "Digestusername=x", "Digest ="])
def test_a_header_that_is_no_digest_is_refused(header: str):
    assert digest.parse(header) is None


@given(st.text())
def test_no_garbage_after_the_scheme_raises_or_passes(text: str):
    assert digest.parse(text) is None
    assert digest.parse(f"Digest {text}") is None


@given(st.lists(st.sampled_from([*FIELDS, *FIELDS.values(), '"', "\\", "=", ",", " ", "\t", "é", "x"])))
def test_no_mixture_of_the_right_pieces_raises(pieces: list[str]):
    credentials = digest.parse("Digest " + "".join(pieces))

    assert credentials is None or credentials.count > 0


@given(st.integers(0, 400), st.characters())
def test_no_single_change_to_a_good_header_raises_in_parse_or_check(at: int, character: str):
    header = a_header()
    at %= len(header)

    credentials = digest.parse(header[:at] + character + header[at + 1 :])

    assert credentials is None or checked(credentials).verdict is DigestVerdict.WRONG


@pytest.mark.timeout(5)
@pytest.mark.parametrize("piece", [" ", "a", "a=", 'a="', "\\", "a=b ", ",", "a=b\t\t"])
def test_a_header_of_one_piece_repeated_takes_no_long_time(piece: str):
    for _ in range(200):
        digest.parse("Digest " + (piece * digest.HEADER_CHARS_MAX)[: digest.HEADER_CHARS_MAX - 7])
