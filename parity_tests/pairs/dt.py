"""Decision Transformer on the ladder."""

from typing import Any

import numpy as np

from parity_tests.families import Family
from parity_tests.pair import Loss, Mistake, Pair
from shared.data import sequences

SMALL = {"embedding_dim": 16, "num_heads": 2, "seq_len": 6}


def load(raw: dict[str, np.ndarray]) -> sequences.Trajectories:
    """Trajectories with normalised states and scaled returns."""
    dataset, _, _ = sequences.normalise_states(sequences.split_trajectories(raw), raw["observations"])
    return dataset._replace(returns=dataset.returns * np.float32(0.001))


def outputs(twin: Any, batch: sequences.Windows) -> dict[str, Any]:
    """The actions without dropout, also where the windows are filled up."""
    return {"actions": twin.model(*batch[:4], PAIR.torch.no_dropout(twin.hp))}


PAIR = Pair(
    name="dt",
    title="Decision Transformer",
    family=Family.IMITATION,
    use="It imitates what led to a wished return, and needs whole episodes.",
    paper="Chen et al. 2021",
    url="https://arxiv.org/abs/2106.01345",
    benchmark_updates=16,
    outputs=outputs,
    losses={"action_loss": Loss(of=("model",))},
    variants={
        "default": SMALL | {"num_layers": 2, "clip_grad": 0.02, "warmup_steps": 32, "learning_rate": 1e-3},
        "no dropout": SMALL
        | {"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}
        | {"num_layers": 1, "num_heads": 1, "clip_grad": None, "warmup_steps": 40}
        | {"betas": (0.8, 0.95), "weight_decay": 0.1},
        # No gradient is as long as that.
        "far clip": SMALL | {"num_layers": 1, "clip_grad": 1000.0, "warmup_steps": 32},
    },
    draw_inputs=lambda dataset, action_dim: (len(dataset.actions),),
    torch_draw_inputs=lambda dataset, action_dim: (sequences.trajectory_lengths(dataset),),
    take=lambda twin, dataset, indices, config: twin.take_windows(dataset, indices, config.seq_len),
    load=load,
    # The windows and the timesteps' embeddings
    gathers=2,
    drawn_inside=lambda twin, noise, hp: twin.Noise(twin.draw_dropout(noise.dropout, hp)),
    draws_inside=True,
    # The keys' biases have a gradient of rounding alone, and Adam makes steps of it. The packed bias differs by 1.0e-5
    # in one update. It differs by more in the eleven of an interval, which is rounded in another order than single
    # updates.
    float32={"update": 1e-4, "shipped path": 1e-4},
)

MISTAKES = [
    Mistake("tokens in another order", "(self.return_emb(returns[..., None]), self.state_emb(observations), ",
            "(self.state_emb(observations), self.return_emb(returns[..., None]), ", "forward"),
    Mistake("prediction from the action token", "slice(1, None, 3)", "slice(2, None, 3)", "forward"),
    Mistake("a token sees the next one", "bool), 1)[queries]", "bool), 2)[queries]", "forward"),
    Mistake("last block's mask not that of the states", "1)[queries]", "1)[-tokens[:, queries].shape[1] :]", "forward"),
    Mistake("tanh GELU", "return 0.5 * inputs * (1.0 + erf(inputs * 2**-0.5))", "return nn.gelu(inputs)", "forward"),
    Mistake("LayerNorm's epsilon", "epsilon=1e-5", "epsilon=1e-6", "forward"),
    Mistake("attention to what is not normalised", "normed = self.norm1(tokens)",
            "normed = tokens + 0 * self.norm1(tokens)", "forward"),
    Mistake("norm after the block", "return tokens + dropped(self.mlp(self.norm2(tokens)), dropout.mlp)",
            "return self.norm2(tokens + dropped(self.mlp(tokens), dropout.mlp))", "forward"),
    Mistake("no last norm", "self.action_head(self.out_norm(tokens))",
            "self.action_head(tokens + 0 * self.out_norm(tokens))", "forward"),
    Mistake("scores scaled by the width", "q * head_dim**-0.5", "q * self.width**-0.5", "forward"),
    Mistake("heads and their entries swapped", "(*inputs.shape[:2], self.num_heads, head_dim))",
            "(*inputs.shape[:2], head_dim, self.num_heads).swapaxes(2, 3))", "forward"),
    Mistake("projections in another order", "q, k, v = heads", "q, v, k = heads", "forward"),
    Mistake("time of states alone", "times[:, :, None]", "times[:, :, None] * jnp.arange(3)[:, None].clip(0, 1)",
            "forward"),
    Mistake("steps counted from the window's start", "timesteps=rows.timesteps[:, :1].astype(steps.dtype) + steps",
            "timesteps=0 * rows.timesteps[:, :1].astype(steps.dtype) + steps", "forward"),
    Mistake("a window runs into the next trajectory", "steps < rows.remaining[:, :1]",
            "steps <= rows.remaining[:, :1]", "loss"),
    Mistake("filling learnt", " * batch.mask[..., None]).mean()", ").mean()", "loss"),
    Mistake("mean over the steps of trajectories alone", "* batch.mask[..., None]).mean(), {}",
            "* batch.mask[..., None]).mean() / batch.mask.mean(), {}", "loss"),
    Mistake("no dropout after the embedding", "dropped(self.emb_norm(tokens), dropout.embedding)",
            "self.emb_norm(tokens)", "loss"),
    Mistake("no dropout of the attention weights",
            "dropped(softmax(where(forbidden, -jnp.inf, scores), axis=-1), mask)",
            "softmax(where(forbidden, -jnp.inf, scores), axis=-1)", "loss"),
    Mistake("dropout before the softmax", "dropped(softmax(where(forbidden, -jnp.inf, scores), axis=-1), mask)",
            "softmax(where(forbidden, -jnp.inf, dropped(scores, mask)), axis=-1)", "loss"),
    Mistake("blind to the return", "model(batch.observations, batch.actions, batch.returns,",
            "model(batch.observations, batch.actions, batch.returns * 0,", "loss"),
    Mistake("norm without epsilon", "(optax.tree.norm(gradient) + 1e-6)", "optax.tree.norm(gradient)", "update"),
    Mistake("each leaf clipped alone", "lambda leaf: leaf * factor",
            "lambda leaf: leaf * jnp.minimum(largest / (optax.tree.norm(leaf) + 1e-6), 1.0)", "update"),
    Mistake("gradient not clipped", "if hp.clip_grad is not None:", "if hp.clip_grad is None:", "update"),
    Mistake("biases and norms not decayed", "weight_decay=hp.weight_decay)", "weight_decay=hp.weight_decay, "
            "mask=lambda part: jax.tree.map(lambda leaf: leaf.ndim > 1, part))", "update", "no dropout"),
    Mistake("warm-up from 0", "(updates + 1.0) / hp.warmup_steps", "updates / hp.warmup_steps", "update",
            "no dropout"),
    Mistake("cosine decay for the warm-up", "hp.learning_rate * jnp.minimum((updates + 1.0) / hp.warmup_steps, 1.0)",
            "hp.learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(updates / hp.warmup_steps, 1.0)))", "update",
            "no dropout"),
    Mistake("warm-up without an end", "hp.learning_rate * jnp.minimum((updates + 1.0) / hp.warmup_steps, 1.0)",
            "hp.learning_rate * ((updates + 1.0) / hp.warmup_steps)", "trajectory", "no dropout"),
    Mistake("learning rate of the update just made", "moments[0].count)}", "moments[0].count - 1)}", "log",
            "no dropout"),
    Mistake("same windows at every update", "jax.random.fold_in(key, step)", "jax.random.fold_in(key, 0 * step)",
            "draws"),
    Mistake("same dropout at every update", "Noise(dropout=dropout_key)", "Noise(dropout=key)", "draws"),
    Mistake("dropout forgotten in the loop", "lambda step: draw_noise(key, step, hp, len(dataset))",
            "lambda step: draw_noise(key, step, hp, len(dataset))[:1] + (Noise(no_dropout(hp)),)", "shipped path"),
]  # fmt: skip
