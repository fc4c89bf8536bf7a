"""Join tokens."""

import pytest
import zmq
import zmq.utils.z85
from hypothesis import given
from hypothesis import strategies as st

from spotlightd.errors import InputError
from spotlightd.wire.token import (
    Token,
    make_token,
    parse_token,
    proof_under,
    secret_key,
    z85_decode,
    z85_encode,
)

KEY = zmq.curve_keypair()[0].decode()


@pytest.mark.parametrize("endpoint", ["10.0.0.7:4000", "node.example.org:1", "[fe80::1]:65535"])
def test_a_token_comes_back(endpoint):
    token = Token(endpoint, KEY, "ab12", "s3cret_-x")
    text = make_token(token)
    assert parse_token(f" {text}\n") == token
    assert not set(text) & set(" $!&*?<>(){}|;'\"`\\")


@given(st.binary(min_size=32, max_size=32))
def test_z85_agrees_with_zeromqs_own(raw):
    assert z85_encode(raw).encode() == zmq.utils.z85.encode(raw)
    assert z85_decode(z85_encode(raw)) == raw


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[5:],
        lambda t: t.replace("spl1", "spl2"),
        lambda t: t.replace(":4000", ""),
        lambda t: t.replace(":4000", ":0"),
        lambda t: t[:-30],
        lambda t: "",
        lambda t: t.replace(".ab12.", "."),
    ],
)
def test_a_malformed_token_is_refused_without_being_repeated(change):
    text = change(make_token(Token("h:4000", KEY, "ab12", "very-secret-secret-value-000")))
    with pytest.raises(InputError) as caught:
        parse_token(text)
    assert "secret-value" not in str(caught.value)


def test_a_proof_is_for_one_key_and_one_secret():
    proof = proof_under(secret_key("a"), KEY)
    assert proof == proof_under(secret_key("a"), KEY)
    assert proof not in (proof_under(secret_key("b"), KEY), proof_under(secret_key("a"), KEY[::-1]))


def test_the_secret_is_not_shown():
    assert "hidden-value" not in repr(Token("h:1", KEY, "id", "hidden-value"))
