import pytest

from spotlightd.control.alarms import judge, means

CALM = {
    "planner.zero_spread_share": 0.1,
    "planner.overran": 0.0,
    "train.clip_range": 1e-3,
    "log_prob_difference.a-1": 1e-8,
    "control.ocr": 0.5,
    "control.ocr_ctc": 0.3,
    "control.grain": 0.1,
}


def names(recent, first=CALM, **more):
    found = judge(recent, first, "ocr", ("ocr_ctc", "grain"), **more)
    return {alarm.name: alarm for alarm in found}


def test_a_calm_run_has_none():
    assert names([CALM] * 5, agents_present=2) == {}
    assert names([]) == {}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("zero_spread", {"planner.zero_spread_share": 0.75}),
        ("overrun", {"planner.overran": 1.0}),
        ("ratio_off", {"log_prob_difference.a-1": 2e-4}),
        ("reward_hacking", {"control.ocr": 0.7, "control.ocr_ctc": 0.1}),
        ("reward_hacking", {"control.ocr": 0.7, "control.grain": 0.2}),
    ],
)
def test_each_alarm_and_what_it_says(name, changes):
    found = names([CALM | changes] * 5)
    assert list(found) == [name] and found[name].severity == "warning"
    assert any(character.isdigit() for character in found[name].text)


def test_one_bad_iteration_among_five_is_not_cried_out():
    assert names([CALM] * 4 + [CALM | {"planner.zero_spread_share": 1.0}]) == {}


def test_a_reward_that_rises_alone_is_no_suspect():
    better = CALM | {"control.ocr": 0.9, "control.ocr_ctc": 0.5, "control.grain": 0.11}
    assert names([better] * 5) == {}
    assert names([CALM | {"control.ocr_ctc": 0.1}] * 5) == {}


def test_what_is_severe():
    severe = names([CALM | {"log_prob_difference.a-1": 1e-2}], lost=3)
    assert {alarm.severity for alarm in severe.values()} == {"error"}
    assert "a-1" in severe["ratio_off"].text and "3 acknowledged" in severe["lost"].text
    assert "no_agents" in names([CALM], agents_present=0)


def test_means_are_over_those_that_have_the_figure():
    assert means([{"a": 1.0}, {"a": 3.0, "b": 5.0}]) == {"a": 2.0, "b": 5.0}
