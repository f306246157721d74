"""The phases of a run: offline on a dataset, then online if it has a `switch`; and the results of both."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared.data.online import Episode
from shared.envs.evaluation import Evaluation
from shared.envs.scores import Scale
from shared.runs.encoders import NO_ENCODER
from shared.runs.evaluators import AnyEvaluation
from shared.runs.validation import Both

# Most updates in a call of TD3+BC: at most a second on two cores, so that a call's overhead of milliseconds is small.
# XLA may compile a scan of another length to slightly different numbers, so a change here can change a run's results.
_UPDATES, _ROWS = 100, 256
# Roughly how much slower an update on images is, and how much faster a GPU or TPU is
_IMAGES, _ACCELERATOR = 10, 5


def updates_a_call(config: Any, cost: float, accelerated: bool) -> int:
    """The most updates in a call; up to two calls may be queued when a user stops a run.

    Args:
        config: The config of the run; may have `batch_size` and `encoder`.
        cost: Rough time of an update, relative to TD3+BC's with the same batch size.
        accelerated: Whether the run's device is faster than a CPU.
    """
    batches = max(1.0, getattr(config, "batch_size", _ROWS) / _ROWS)
    images = _IMAGES if getattr(config, "encoder", NO_ENCODER) != NO_ENCODER else 1
    return max(1, int(_UPDATES * (_ACCELERATOR if accelerated else 1) / (batches * images * cost)))


class Phases:
    """When a run evaluates and logs, and how its updates are counted.

    Attributes:
        switch: Number of updates before the online phase; None for a run of one phase.
        updates_per_call: Environment steps, and updates after them, in a call; None for a run of one phase.
    """

    def __init__(self, config: Any) -> None:
        """Reads the settings `eval_freq`, `log_freq` and `max_timesteps`.

        A run of two phases also has `switch`, `offline_iterations` and `updates_per_call`.
        """
        self._every, self._last = config.eval_freq, config.max_timesteps
        self._log_every: int | None = config.log_freq
        self.updates_per_call: int | None = getattr(config, "updates_per_call", None)
        self.switch: int | None = getattr(config, "switch", None)
        # Updates before the offline phase, such as a VAE's, belong to neither phase.
        self._before = 0 if self.switch is None else self.switch - config.offline_iterations

    def is_due(self, step: int) -> bool:
        """Whether to evaluate after this many updates: at multiples of `eval_freq`, and at the end of each phase."""
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
        """Yields the interval before each evaluation, from `start`: the updates done before it, and at its end."""
        while start < self._last:
            end = min(self._last, (start // self._every + 1) * self._every)
            if self.switch is not None and start < self.switch:
                end = min(end, self.switch)
            yield start, end
            start = end

    def calls(self, start: int, period: int, most: int) -> Iterator[tuple[int, int]]:
        """Splits the intervals into calls, as long as possible and of equal length within an interval if possible.

        Args:
            start: Updates done before the first call; inside an interval if the run was stopped there.
            period: The length of every call but an interval's last is a multiple of this number.
            most: The most updates in a call; a longer period makes calls of one period.
        """
        for begin, end in self.intervals(start - self._into_interval(start)):
            # Each step in the environment is a separate call.
            online = self.switch is not None and begin >= self.switch
            length = end - begin if online else _call_length(end - begin, period, most)
            for at in range(begin, end, length):
                after = min(at + length, end)
                # A run that was stopped with other call lengths resumes in the middle of a call.
                if after > start:
                    yield max(at, start), after

    def _into_interval(self, step: int) -> int:
        """The number of updates between the beginning of the current interval and this step."""
        into = step % self._every
        return min(into, step - self.switch) if self.switch is not None and step >= self.switch else into

    def steps_since_evaluation(self, step: int) -> range:
        """The online steps, counted from 1, after the previous evaluation and up to update `step`."""
        switch = self.switch or 0
        before = max(switch, (step - 1) // self._every * self._every)
        return range(before - switch + 1, step - switch + 1)

    def counted(self, step: int) -> dict[str, int]:
        """CORL's number of this update, counted from 0 in each phase; empty for updates outside of both."""
        if self.switch is None or step <= self._before:
            return {}
        if step <= self.switch:
            return {"offline_iter": step - 1 - self._before}
        return {"online_iter": step - 1 - self.switch}


def _call_length(interval: int, period: int, most: int) -> int:
    """The longest call length that divides an interval, unless it is much shorter than the longest allowed."""
    longest = max(most // period, 1) * period
    fitting = (length for length in range(longest, longest // 4, -period) if interval % length == 0)
    return next(fitting, longest)


class PhaseResults:
    """Results of a run of two phases: scores around the switch, and success and regret on tasks with a goal.

    Regret is the share of episodes without success. Training regret counts the episodes that training collected in the
    environment. Evaluation regret counts the episodes of all evaluations since the switch. CORL logs the training
    regret under both names.
    """

    def __init__(self, phases: Phases, scale: Scale, has_goals: bool) -> None:
        """Starts without results; `scale` converts returns to scores, and `has_goals` says if episodes can succeed."""
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
        """Restores the results in the rows of a resumed run."""
        for row in rows:
            if "success_rate" in row:
                self._rates.append((row["step"], row["success_rate"], len(row["returns"])))
            self._training_regret = row.get("train/regret", self._training_regret)

    def _evaluation_regret(self) -> float | None:
        """The regret of online evaluations; None before the first one."""
        if self._phases.switch is None:
            return None
        online = [(1.0 - rate, count) for step, rate, count in self._rates if step > self._phases.switch]
        episodes = sum(count for _, count in online)
        return sum(missed * count for missed, count in online) / episodes if online else None

    def result(self, steps: Sequence[int], means: Sequence[float]) -> dict[str, Any]:
        """Entries for `result.json`: scores before and after the online phase, success and both regrets; empty offline.

        Args:
            steps: Steps of the evaluations.
            means: Scores of the evaluations.
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
