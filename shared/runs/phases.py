"""The phases of a run: on a dataset, then, if it has a `switch`, in the environment; and what that earns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared.data.online import Episode
from shared.envs.evaluation import Evaluation
from shared.envs.scores import Scale
from shared.runs.encoders import NO_ENCODER
from shared.runs.evaluators import AnyEvaluation
from shared.runs.validation import Both

# In a call of TD3+BC: at most a second on two cores, which a call's own few milliseconds don't lengthen noticeably.
# XLA may compile a scan of another length to other last bits, so that a change here can change what a run computes.
_UPDATES, _ROWS = 100, 256
# About how many times as long an update on images takes, and how many times as fast a GPU or TPU is
_IMAGES, _ACCELERATOR = 10, 5


def updates_a_call(config: Any, cost: float, accelerated: bool) -> int:
    """The most updates in a call; two calls may be under way when a run is asked to end.

    Args:
        config: Of the run; may have `batch_size` and `encoder`.
        cost: About how many times as long an update takes as TD3+BC's with a batch of the same size.
        accelerated: Whether the run computes on something faster than a CPU.
    """
    batches = max(1.0, getattr(config, "batch_size", _ROWS) / _ROWS)
    images = _IMAGES if getattr(config, "encoder", NO_ENCODER) != NO_ENCODER else 1
    return max(1, int(_UPDATES * (_ACCELERATOR if accelerated else 1) / (batches * images * cost)))


class Phases:
    """When a run evaluates, and what its updates are counted by.

    Attributes:
        switch: After how many updates it goes on in the environment; None for a run of one phase.
        updates_per_call: Steps in the environment before as many updates; likewise.
    """

    def __init__(self, config: Any) -> None:
        """Takes the run's settings: `eval_freq`, `log_freq`, `max_timesteps`; for two phases `switch` too.

        Those of two phases have `offline_iterations` and `updates_per_call` besides.
        """
        self._every, self._last = config.eval_freq, config.max_timesteps
        self._log_every: int | None = config.log_freq
        self.updates_per_call: int | None = getattr(config, "updates_per_call", None)
        self.switch: int | None = getattr(config, "switch", None)
        # What comes before, a VAE's updates say, is of neither phase.
        self._before = 0 if self.switch is None else self.switch - config.offline_iterations

    def is_due(self, step: int) -> bool:
        """Whether an evaluation follows this many updates: every `eval_freq`, the last offline one, and the last."""
        return step > 0 and (step % self._every == 0 or step in (self.switch, self._last))

    def logged(self, step: int, number: int) -> list[int]:
        """The steps among the next `number` after `step` at which metrics are logged without an evaluation.

        Once an offline run continues in the environment, it logs its episodes, and metrics only at evaluations.
        """
        if self._log_every is None:
            return []
        first = (step // self._log_every + 1) * self._log_every
        last = step + number if self.switch is None else min(step + number, self.switch)
        return [at for at in range(first, last + 1, self._log_every) if not self.is_due(at)]

    def intervals(self, start: int) -> Iterator[tuple[int, int]]:
        """From each evaluation to the next: the updates before and those at its end, from `start` on to the last."""
        while start < self._last:
            end = min(self._last, (start // self._every + 1) * self._every)
            if self.switch is not None and start < self.switch:
                end = min(end, self.switch)
            yield start, end
            start = end

    def calls(self, start: int, period: int, most: int) -> Iterator[tuple[int, int]]:
        """The same intervals in calls: as long as possible, of one length in an interval, as far as that can be.

        Args:
            start: Updates before the first; within an interval if a run was stopped there.
            period: Every call but an interval's last has a multiple of so many updates.
            most: Updates in a call, at most; with a longer period one period.
        """
        for begin, end in self.intervals(start - self._into_interval(start)):
            # A step in the environment is a call of its own.
            online = self.switch is not None and begin >= self.switch
            length = end - begin if online else _call_length(end - begin, period, most)
            for at in range(begin, end, length):
                after = min(at + length, end)
                # Whoever was stopped under other lengths goes on in the middle of a call.
                if after > start:
                    yield max(at, start), after

    def _into_interval(self, step: int) -> int:
        """The updates between the beginning of an interval and a step within it."""
        into = step % self._every
        return min(into, step - self.switch) if self.switch is not None and step >= self.switch else into

    def steps_since_evaluation(self, step: int) -> range:
        """The steps in the environment, counted from its first, up to update `step` and after the evaluation before."""
        switch = self.switch or 0
        before = max(switch, (step - 1) // self._every * self._every)
        return range(before - switch + 1, step - switch + 1)

    def counted(self, step: int) -> dict[str, int]:
        """How CORL counts the update of this number, from 0 in each phase; nothing for one that is of neither."""
        if self.switch is None or step <= self._before:
            return {}
        if step <= self.switch:
            return {"offline_iter": step - 1 - self._before}
        return {"online_iter": step - 1 - self.switch}


def _call_length(interval: int, period: int, most: int) -> int:
    """The longest that divides an interval, if that is not much shorter than it may be."""
    longest = max(most // period, 1) * period
    fitting = (length for length in range(longest, longest // 4, -period) if interval % length == 0)
    return next(fitting, longest)


class PhaseResults:
    """How a run of two phases fares: scores around the switch, and on tasks with a goal success and regret.

    Regret is the share of episodes without success. The regret of training counts the episodes that were lived through
    in the environment. The regret of evaluation counts those of all evaluations since the switch. CORL logs the former
    under both names.
    """

    def __init__(self, phases: Phases, scale: Scale, has_goals: bool) -> None:
        """Of a run that begins, scored on a scale, on a task that may have a goal."""
        self._phases, self._scale, self._has_goals = phases, scale, has_goals
        self._rates: list[tuple[int, float, int]] = []
        self._training_regret: float | None = None

    def of_episode(self, episode: Episode) -> dict[str, Any]:
        """The row of a training episode."""
        row: dict[str, Any] = {"train/episode_return": episode.earned}
        if self._scale.bounds is not None and self._scale.of == "returns":
            row[f"train/{self._scale.metric}"] = float(self._scale(episode.earned))
        row["train/episode_length"] = episode.length
        if self._has_goals:
            self._training_regret = episode.regret
            row |= {"train/is_success": int(episode.success), "train/regret": episode.regret}
        return row

    def of_evaluation(self, step: int, evaluation: AnyEvaluation) -> dict[str, float]:
        """The success rates in an evaluation's row; empty if the task has no goal."""
        if not self._has_goals:
            return {}
        assert isinstance(evaluation, Evaluation | Both), "only an environment has goals"
        successes = evaluation.successes
        self._rates.append((step, float(successes.mean()), len(successes)))
        regret = self._evaluation_regret()
        return {"success_rate": self._rates[-1][1]} | ({} if regret is None else {"eval/regret": regret})

    def go_on_from(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what a resumed run had written."""
        for row in rows:
            if "success_rate" in row:
                self._rates.append((row["step"], row["success_rate"], len(row["returns"])))
            self._training_regret = row.get("train/regret", self._training_regret)

    def _evaluation_regret(self) -> float | None:
        """None before the first evaluation of the online phase."""
        if self._phases.switch is None:
            return None
        online = [(1.0 - rate, count) for step, rate, count in self._rates if step > self._phases.switch]
        episodes = sum(count for _, count in online)
        return sum(missed * count for missed, count in online) / episodes if online else None

    def result(self, steps: Sequence[int], means: Sequence[float]) -> dict[str, Any]:
        """For `result.json`: scores before and after the online phase, success and both regrets; else nothing.

        Args:
            steps: Of the evaluations.
            means: Their scores.
        """
        switch = self._phases.switch
        if switch is None:
            return {}
        before = [mean for step, mean in zip(steps, means, strict=True) if step <= switch]
        after = [mean for step, mean in zip(steps, means, strict=True) if step > switch]
        found: dict[str, Any] = {
            "updates_per_call": self._phases.updates_per_call,
            "before_online": before[-1] if before else None,
            "after_online": after[-1] if after else None,
        }
        if self._has_goals:
            rates = {"before": [r for s, r, _ in self._rates if s <= switch]}
            rates["after"] = [r for s, r, _ in self._rates if s > switch]
            found |= {f"success_rate_{when}_online": (of[-1] if of else None) for when, of in rates.items()}
            found |= {"training_regret": self._training_regret, "evaluation_regret": self._evaluation_regret()}
        return found
