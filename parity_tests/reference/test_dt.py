"""Decision Transformer: PyTorch's own attention and dropout, CORL's padding mask and sampling, and six updates.

The twin takes its masks as arguments, multiplies in another order and omits computations without effect. Therefore it
is
equal up to rounding. Its weights, windows and masks are bitwise equal.
"""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from corl_torch import dt
from parity_tests.reference.common import ACTION_DIM, CPU, ROWS, STATE_DIM, UPDATES, assert_same_log
from shared.data.sequences import Trajectories, split_trajectories, trajectory_lengths
from shared.data.transitions import Batch
from shared.frameworks.torch_data import to_device
from shared.frameworks.torch_side import seed_everything

BATCH_SIZE = 64
# The largest action, by which CORL multiplies its head
BOUND = 2.0


class ReferenceBlock(nn.Module):
    """CORL's block: PyTorch's modules, a causal mask and a padding mask."""

    def __init__(self, c: dt.TrainConfig) -> None:
        super().__init__()
        e, self.k = c.embedding_dim, c.seq_len
        self.norm1, self.norm2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.drop = nn.Dropout(c.residual_dropout)
        self.attention = nn.MultiheadAttention(e, c.num_heads, c.attention_dropout, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(e, 4 * e), nn.GELU(), nn.Linear(4 * e, e), nn.Dropout(c.residual_dropout))
        self.register_buffer("causal_mask", ~torch.tril(torch.ones(3 * self.k, 3 * self.k)).to(bool))

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """Maps all tokens to all tokens."""
        causal = self.causal_mask[: x.shape[1], : x.shape[1]]
        y = self.norm1(x)
        y, _ = self.attention(y, y, y, attn_mask=causal, key_padding_mask=padding, need_weights=False)
        x = x + self.drop(y)
        return x + self.mlp(self.norm2(x))


class ReferenceModel(nn.Module):
    """The network, which carries every token to the end."""

    def __init__(self, c: dt.TrainConfig) -> None:
        super().__init__()
        e = c.embedding_dim
        self.emb_drop = nn.Dropout(c.embedding_dropout)
        self.emb_norm, self.out_norm = nn.LayerNorm(e), nn.LayerNorm(e)
        self.timestep_emb = nn.Embedding(c.episode_len + c.seq_len, e)
        self.state_emb, self.action_emb = nn.Linear(STATE_DIM, e), nn.Linear(ACTION_DIM, e)
        self.return_emb = nn.Linear(1, e)
        self.blocks = nn.ModuleList([ReferenceBlock(c) for _ in range(c.num_layers)])
        self.action_head = nn.Sequential(nn.Linear(e, ACTION_DIM), nn.Tanh())
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.data.normal_(0.0, 0.02)
                if isinstance(module, nn.Linear):
                    module.bias.data.zero_()

    def forward(self, s: Tensor, a: Tensor, g: Tensor, t: Tensor, padding: Tensor | None = None) -> Tensor:
        """The actions; `padding` is True after the end of a trajectory."""
        size, k = t.shape
        time = self.timestep_emb(t)
        parts = [self.return_emb(g.unsqueeze(-1)) + time, self.state_emb(s) + time, self.action_emb(a) + time]
        x = torch.stack(parts, dim=1).permute(0, 2, 1, 3).reshape(size, 3 * k, -1)
        if padding is not None:
            padding = torch.stack([padding] * 3, dim=1).permute(0, 2, 1).reshape(size, 3 * k)
        x = self.emb_drop(self.emb_norm(x))
        for block in self.blocks:
            x = block(x, padding)
        return self.action_head(self.out_norm(x)[:, 1::3]) * BOUND


@pytest.fixture(scope="module")
def trajectories(dataset: Batch) -> Trajectories:
    """The rows as trajectories of about ten steps."""
    raw = {name: getattr(dataset, name).numpy() for name in ("observations", "actions", "rewards", "terminals")}
    return split_trajectories(raw | {"timeouts": np.arange(ROWS) == ROWS - 1})


def corls_batch(data: Trajectories, c: dt.TrainConfig) -> tuple[Tensor, ...]:
    """Windows that are cut, padded and collated one by one, each with its own draws, and a float64 mask."""
    ends = np.flatnonzero(data.remaining == 1) + 1
    pieces = [slice(end - length, end) for end, length in zip(ends, trajectory_lengths(data), strict=True)]
    p = trajectory_lengths(data) / trajectory_lengths(data).sum()
    samples = []
    for _ in range(c.batch_size):
        piece = pieces[np.random.choice(len(pieces), p=p)]
        start = random.randint(0, piece.stop - piece.start - 1)
        rows = slice(piece.start + start, min(piece.start + start + c.seq_len, piece.stop))
        pad = c.seq_len - (rows.stop - rows.start)
        s, a = (np.pad(column[rows], ((0, pad), (0, 0))) for column in (data.observations, data.actions))
        g = np.pad(data.returns[rows], (0, pad))
        mask = np.hstack([np.ones(c.seq_len - pad), np.zeros(pad)])
        samples.append((s, a, g, np.arange(start, start + c.seq_len), mask))
    columns = (torch.from_numpy(np.stack(column)) for column in zip(*samples, strict=True))
    return tuple(x.to(torch.get_default_dtype()) if x.dtype == torch.float32 else x for x in columns)


def both(**settings: Any) -> tuple[dt.TrainConfig, dt.DT, ReferenceModel]:
    """A config, the twin, and CORL's network with the same weights."""
    c = dt.TrainConfig(device="cpu", batch_size=BATCH_SIZE, **{"seq_len": 8, "embedding_dim": 32} | settings)
    torch.manual_seed(7)
    trainer = dt.create_trainer(c, STATE_DIM, ACTION_DIM, BOUND)
    torch.manual_seed(7)
    reference = ReferenceModel(c)
    return c, trainer, reference


@pytest.mark.parametrize("heads", [1, 4])
def test_weights_start_where_the_seed_says(heads: int) -> None:
    """Parameters, masks and names are CORL's, drawn in its order, so that its checkpoints load strictly."""
    _, trainer, reference = both(num_heads=heads)
    ours, theirs = trainer.model.state_dict(), reference.state_dict()
    assert set(ours) == set(theirs)
    assert "blocks.2.causal_mask" in ours
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    trainer.model.load_state_dict(theirs)


def test_default_size() -> None:
    """There are 730,118 parameters with 17 observations and 6 actions."""
    trainer = dt.create_trainer(dt.TrainConfig(device="cpu"), 17, 6, 1.0)
    assert sum(parameter.numel() for parameter in trainer.model.parameters()) == 730_118


def test_windows(trajectories: Trajectories) -> None:
    """The same generator states give the same windows, draw by draw, over several batches."""
    c, lengths = dt.TrainConfig(batch_size=BATCH_SIZE, seq_len=8), trajectory_lengths(trajectories)
    data = to_device(trajectories, CPU)
    seed_everything(3)
    ours = [dt.take_windows(data, dt.draw_noise(c, lengths, CPU)[0], c.seq_len) for _ in range(5)]
    seed_everything(3)
    for windows in ours:
        theirs = corls_batch(trajectories, c)
        assert not theirs[-1].all()
        assert all(torch.equal(mine, other) for mine, other in zip(windows, theirs[:4], strict=False))
        assert torch.equal(windows.mask.double(), theirs[-1])


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("heads", [1, 4])
def test_forward_and_gradient(trajectories: Trajectories, rate: float, heads: int) -> None:
    """With masks drawn ahead, the network equals PyTorch's with dropout inside, from the same generator state.

    CORL's padding mask does not matter for steps that are not padding: they cannot see what comes after them anyway.
    """
    rates = dict.fromkeys(("attention_dropout", "residual_dropout", "embedding_dropout"), rate)
    c, trainer, reference = both(num_heads=heads, **rates)
    seed_everything(4)
    s, a, g, t, mask = corls_batch(trajectories, c)
    torch.manual_seed(5)
    dropout = dt.draw_dropout(c, CPU)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    theirs = reference(s, a, g, t, ~mask.to(bool))
    assert torch.equal(torch.get_rng_state(), after)
    ours = trainer.model(s, a, g, t, dropout)
    valid = mask.bool()
    assert (ours - theirs)[valid].abs().max() <= 3e-7
    for predicted in (ours, theirs):
        (functional.mse_loss(predicted, a, reduction="none") * mask.unsqueeze(-1)).mean().backward()
    expected = {name: parameter.grad for name, parameter in reference.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, parameter in trainer.model.named_parameters():
        assert (parameter.grad - expected[name]).abs().max() <= 1e-6 * largest, name


def test_acting_drops_nothing(trajectories: Trajectories) -> None:
    """The actions for whole and shorter windows equal the output of CORL's network in evaluation mode."""
    c, trainer, reference = both()
    seed_everything(4)
    s, a, g, t, _ = corls_batch(trajectories, c)
    for steps in (c.seq_len, 5):
        windows = [column[:, :steps] for column in (s, a, g, t)]
        found = trainer.act(*(column.numpy() for column in windows))
        assert np.abs(found - reference.eval()(*windows).detach().numpy()).max() <= 3e-7


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("settings", [{}, {"num_heads": 4, "clip_grad": None, "warmup_steps": 4, "weight_decay": 0.1}])
def test_dt(trajectories: Trajectories, settings: dict[str, Any], precision: str) -> None:
    """Six updates agree in double precision: windows, loss under its mask, clipping, AdamW and the warm-up.

    Adam's first steps have the same size, however small a gradient is. If a gradient is 0 in theory, as for the keys'
    biases, single precision would therefore show nothing but rounding.
    """
    c, trainer, reference = both(**settings)
    start = {name: parameter.detach().clone() for name, parameter in reference.named_parameters()}
    data, lengths = to_device(trajectories, CPU), trajectory_lengths(trajectories)
    optimizer = torch.optim.AdamW(reference.parameters(), c.learning_rate, c.betas, weight_decay=c.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min((k + 1) / c.warmup_steps, 1))
    seed_everything(5)
    logs = []
    for _ in range(UPDATES):
        indices, noise = dt.draw_noise(c, lengths, CPU)
        logs.append(trainer.update(dt.take_windows(data, indices, c.seq_len), noise))
    seed_everything(5)
    expected = []
    for _ in logs:
        s, a, g, t, mask = corls_batch(trajectories, c)
        predicted = reference(s, a, g, t, ~mask.to(bool))
        loss = (functional.mse_loss(predicted, a, reduction="none") * mask.unsqueeze(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        if c.clip_grad is not None:
            torch.nn.utils.clip_grad_norm_(reference.parameters(), c.clip_grad)
        optimizer.step()
        schedule.step()
        expected.append({"train_loss": loss, "learning_rate": schedule.get_last_lr()[0]})
    assert_same_log(logs, expected, tolerance=1e-12)
    assert trainer.total_it == UPDATES
    ours, theirs = dict(trainer.model.named_parameters()), dict(reference.named_parameters())
    largest = max((theirs[name] - start[name]).abs().max().item() for name in theirs)
    for name in theirs:
        assert (ours[name] - theirs[name]).abs().max() <= 1e-8 * largest, name
