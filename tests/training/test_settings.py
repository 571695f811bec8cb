"""Plain values to typed dataclasses and back: what is wrong is named, with its place and its nearest neighbour."""

from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vitshap.training.recipes import Recipe
from vitshap.training.recipes.settings import (
    SettingsError,
    describe,
    differing_keys,
    field_docs,
    from_plain,
    read_yaml,
    set_keys,
    to_plain,
    to_yaml,
)


@dataclass(frozen=True)
class Inner:
    """A group."""

    epochs: int = 100
    """How often."""
    rate: float = 1e-4
    share: tuple[float, float] = (0.8, 1.2)
    """Least and
    greatest."""

    def __post_init__(self) -> None:
        if self.share[0] > self.share[1]:
            raise ValueError(f"share is least <= greatest, got {self.share}")


@dataclass(frozen=True)
class Outer:
    """Everything."""

    name: str = ""
    flag: bool = False
    kind: Literal["values", "paper"] = "values"
    """Which."""
    inner: Inner = field(default_factory=lambda: Inner(epochs=25, rate=1e-5))
    maybe: Inner | None = None
    weights: Literal["balanced"] | tuple[float, ...] | None = None
    limit: int | None = None


def test_what_is_not_given_keeps_the_default_of_its_place() -> None:
    made = from_plain(Outer(), {"inner": {"epochs": 3}, "maybe": {"epochs": 4}})
    assert made.inner == Inner(epochs=3, rate=1e-5)
    assert made.maybe == Inner(epochs=4, rate=1e-4)
    assert from_plain(made, {"maybe": None}).maybe is None


def test_values_are_converted_only_where_nothing_is_lost() -> None:
    made = from_plain(Outer(), {"inner": {"rate": 1, "share": [0, 1]}, "weights": [1, 2.5], "limit": 7})
    assert (made.inner.rate, made.inner.share, made.weights, made.limit) == (1.0, (0.0, 1.0), (1.0, 2.5), 7)
    assert isinstance(made.inner.rate, float)
    assert from_plain(made, {"weights": "balanced"}).weights == "balanced"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"inner": {"epochs": 3.0}}, r"^inner\.epochs must be a whole number; got 3\.0 \(float\)$"),
        ({"inner": {"epochs": "3"}}, r"^inner\.epochs must be a whole number; got '3' \(text\)$"),
        ({"inner": {"epochs": True}}, r"^inner\.epochs must be a whole number; got True \(bool\)$"),
        ({"inner": {"epochs": None}}, r"^inner\.epochs must be a whole number; got null$"),
        ({"inner": {"rate": "fast"}}, r"^inner\.rate must be a number; got 'fast'"),
        ({"inner": {"rate": float("nan")}}, r"^inner\.rate must be a number; got nan"),
        ({"inner": {"share": [0.8]}}, r"^inner\.share must be a list of 2 numbers; got \[0\.8\]"),
        ({"inner": {"share": [1, 0.5]}}, r"^inner\.share is least <= greatest, got \(1\.0, 0\.5\)$"),
        ({"inner": 3}, r"^inner must be a group of keys; got 3"),
        ({"flag": 1}, r"^flag must be true or false; got 1"),
        ({"flag": "yes"}, r"^flag must be true or false; got 'yes'"),
        ({"name": 5}, r"^name must be text; got 5"),
        ({"kind": "papr"}, r"^kind must be values or paper; got 'papr'"),
        ({"weights": "even"}, r"^weights must be balanced or a list of numbers or null; got 'even'"),
        ({"inner": {"epoch": 3}}, r"^unknown key inner\.epoch; did you mean .epochs.\?$"),
        ({"zzz": 3}, r"^unknown key zzz; known: name, flag, kind, inner, maybe, weights, limit$"),
        ([1], r"^the recipe must be a group of keys, got \[1\]$"),
    ],
)
def test_what_is_wrong_is_named(given: object, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        from_plain(Outer(), given)


def test_assignments_are_yaml() -> None:
    made = set_keys(
        Outer(), ["inner.rate=1e-5", "kind=paper", "maybe.share=[.5, 1]", "weights=null", "name=a=b", "flag=true"]
    )
    assert made == Outer("a=b", True, "paper", Inner(25, 1e-5), Inner(share=(0.5, 1.0)))
    assert set_keys(made, ["maybe=null"]).maybe is None


@pytest.mark.parametrize("given", ["inner.epochs", "=3", "inner.epochs=[1", "inner..epochs=3", "inner.epochs.more=3"])
def test_wrong_assignments_are_errors_of_the_user(given: str) -> None:
    with pytest.raises(SettingsError) as error:
        set_keys(Outer(), [given])
    assert "\n" not in str(error.value)


def test_yaml_as_people_write_it() -> None:
    read = read_yaml("a: 1e-5\nb: 3\nc: 1.5\nd: -2E3\ne: 1e5x\nf: .5\ng: '1e-5'", "here")
    assert read == {"a": 1e-5, "b": 3, "c": 1.5, "d": -2000.0, "e": "1e5x", "f": 0.5, "g": "1e-5"}
    with pytest.raises(SettingsError, match=r"here, line 2 is not YAML"):
        read_yaml("a: 1\nb: [1", "here")
    with pytest.raises(SettingsError, match="'a' is given twice"):
        read_yaml("a: 1\nb: 2\na: 3", "here")


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.text(), st.booleans())
@example(0.0, 0, "\x85", False)  # a line break to YAML
@example(0.0, 0, "0E0", False)  # a number to the loader
def test_to_plain_and_yaml_are_undone(rate: float, epochs: int, name: str, flag: bool) -> None:
    made = Outer(name, flag, "paper", Inner(epochs, rate), None, (rate, 1.0), epochs)
    assert from_plain(Outer(), read_yaml(to_yaml(to_plain(made)), "here")) == made


def test_differences_are_named_by_key() -> None:
    one, other = to_plain(Outer()), to_plain(set_keys(Outer(), ["inner.epochs=3", "maybe.epochs=4"]))
    assert differing_keys(one, one) == []
    found = differing_keys(one, other)
    assert found[0] == "inner.epochs: 25 / 3"
    assert found[1].startswith("maybe: None / {")


def test_the_help_is_the_text_under_the_field() -> None:
    assert field_docs(Inner) == {"epochs": "How often.", "share": "Least and greatest."}
    keys = {key.path: key for key in describe(Outer())}
    assert keys["inner.epochs"] == ("inner.epochs", "a whole number", "25", "How often.")
    assert keys["inner.share"].value == "[0.8, 1.2]"
    assert keys["maybe"].value == "null"
    assert keys["maybe.epochs"].value == ""
    assert keys["inner"].help == "A group."
    assert keys["kind"].takes == "values or paper"


def test_settings_nested_without_end_or_repeated_without_end_are_one_line() -> None:
    for text in ("[" * 200_000, "a: " + "{a: " * 200_000):
        with pytest.raises(SettingsError, match="the recipe is nested too deeply"):
            read_yaml(text, "the recipe")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    plain = read_yaml("\n".join(lines), "the recipe")  # 9 to the power of 12 texts, if they were written out
    with pytest.raises(SettingsError) as error:
        from_plain(Recipe(), {"half": plain["a11"]})
    assert len(str(error.value)) < 1000
