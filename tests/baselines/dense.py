"""Attribution methods written out from their published equations, for tests only.

Nothing here is fast, batched or general: one image, one class, float64, and the plain vision transformer of timm. It is
there to be compared with, so it shares no code and no technique with the methods it checks. Those send g = R / x backward
with changed gradients; this file keeps relevance R itself and lists who contributed how much to whom:

    z[i, j]  what input i contributed to output j, e.g. x[i] * w[i, j] in a linear layer
    R[i]     sum over j of z[i, j] / (sum of all contributions to j) * R[j]

Where a sum of contributions is exactly zero, its relevance is dropped (``divided``).

Literature: attention rollout, Abnar & Zuidema 2020; LRP, Chefer, Gur & Wolf, CVPR 2021; generic attention, Chefer, Gur &
Wolf, ICCV 2021; AttnLRP, Achtibat et al., ICML 2024; LibraGrad, Mehri et al., CVPR 2025; GradCAM, Selvaraju et al. 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

# ---------------------------------------------------------------------------------------------------------- the net


class DenseViT:
    """timm's ``VisionTransformer`` for one image, step by step, keeping all that is computed on the way.

    Pre-norm blocks, exact GELU, biases everywhere. ``pool`` is timm's ``global_pool``: "token" or "avg" (the mean over the
    patches, without the class token). The norm stands before or after pooling, as the names in ``state`` say.
    """

    def __init__(self, state: dict[str, Tensor], heads: int, pool: str = "token", eps: float = 1e-6) -> None:
        self.state = {name: value.detach().double() for name, value in state.items()}
        self.heads, self.pool, self.eps = heads, pool, eps
        self.depth = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
        self.prefix = 1 if "cls_token" in state else 0
        layers = ["norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"]
        known = ["patch_embed.proj", "norm", "fc_norm", "head"]
        known += [f"blocks.{number}.{layer}" for number in range(self.depth) for layer in layers]
        unknown = set(state) - {f"{layer}.{part}" for layer in known for part in ("weight", "bias")}
        unknown -= {"cls_token", "pos_embed"}
        if unknown or pool not in ("token", "avg") or (pool == "token" and not self.prefix):
            raise ValueError(f"not a net that this reference knows: pool {pool}, also has {sorted(unknown)}")

    def weight(self, layer: str) -> Tensor:
        return self.state[f"{layer}.weight"]

    def bias(self, layer: str) -> Tensor:
        return self.state[f"{layer}.bias"]

    def linear(self, layer: str, x: Tensor) -> Tensor:
        return x @ self.weight(layer).T + self.bias(layer)

    def deviation(self, x: Tensor) -> Tensor:
        return (x.var(-1, unbiased=False, keepdim=True) + self.eps).sqrt()

    def norm(self, layer: str, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / self.deviation(x) * self.weight(layer) + self.bias(layer)

    def pooled(self, x: Tensor) -> Tensor:
        """One row per net from one row per token: [T, D] to [D], or [T, T] to [T]."""
        return x[0] if self.pool == "token" else x[self.prefix :].mean(0)

    def split(self, x: Tensor) -> Tensor:
        """[T, heads * d] to [heads, T, d]."""
        return x.reshape(len(x), self.heads, -1).transpose(0, 1)

    def joined(self, x: Tensor) -> Tensor:
        """[heads, T, d] to [T, heads * d]."""
        return x.transpose(0, 1).reshape(x.shape[1], -1)

    def __call__(self, image: Tensor) -> SimpleNamespace:
        """The forward pass of one ``image`` [channels, height, width]."""
        weight = self.weight("patch_embed.proj")
        side = weight.shape[-1]
        pieces = image.double().unfold(1, side, side).unfold(2, side, side)  # [channels, rows, columns, side, side]
        pieces = pieces.permute(1, 2, 0, 3, 4).reshape(-1, weight[0].numel())
        patches = (pieces @ weight.flatten(1).T + self.bias("patch_embed.proj")).requires_grad_()

        run = SimpleNamespace(net=self, patches=patches, blocks=[])
        x = torch.cat([self.state["cls_token"][0], patches]) if self.prefix else patches
        run.embedded = x
        x = x + self.state["pos_embed"][0]
        for number in range(self.depth):
            block = self.block(f"blocks.{number}", x)
            run.blocks.append(block)
            x = block.out
        run.out = x
        run.normed = self.norm("norm", x) if "norm.weight" in self.state else x
        run.pooled = self.pooled(run.normed)
        run.features = self.norm("fc_norm", run.pooled) if "fc_norm.weight" in self.state else run.pooled
        run.logits = self.linear("head", run.features)
        return run

    def block(self, name: str, x: Tensor) -> SimpleNamespace:
        kept = SimpleNamespace(name=name, x=x)
        kept.normed1 = self.norm(f"{name}.norm1", x)
        kept.qkv = self.linear(f"{name}.attn.qkv", kept.normed1)
        kept.q, kept.k, kept.v = (self.split(part) for part in kept.qkv.chunk(3, -1))
        kept.scale = kept.q.shape[-1] ** -0.5
        kept.scores = kept.q @ kept.k.transpose(1, 2) * kept.scale
        kept.attention = kept.scores.softmax(-1)  # [heads, T, T], the paper's A
        kept.mixed = kept.attention @ kept.v
        kept.attended = self.linear(f"{name}.attn.proj", self.joined(kept.mixed))
        kept.middle = x + kept.attended
        kept.normed2 = self.norm(f"{name}.norm2", kept.middle)
        kept.hidden = self.linear(f"{name}.mlp.fc1", kept.normed2)
        kept.active = kept.hidden * (1 + torch.erf(kept.hidden / 2**0.5)) / 2  # GELU
        kept.written = self.linear(f"{name}.mlp.fc2", kept.active)
        kept.out = kept.middle + kept.written
        return kept


def gradient(run: SimpleNamespace, target: int, of: Tensor) -> Tensor:
    """Of the class's logit, with respect to something that the forward pass kept."""
    return torch.autograd.grad(run.logits[target], of, retain_graph=True)[0]


# ------------------------------------------------------------------------------------------ attention and gradients


def attention_last(run: SimpleNamespace) -> Tensor:
    """The row that the head reads, of the last attention, summed over heads."""
    return run.net.pooled(run.blocks[-1].attention.detach().sum(0))[run.net.prefix :]


def attention_rollout(run: SimpleNamespace) -> Tensor:
    """Heads averaged, identity added, rows divided by their sums; last layer leftmost in the product."""
    product = torch.eye(len(run.out), dtype=torch.float64)
    for block in run.blocks:
        step = block.attention.detach().mean(0) + torch.eye(len(run.out), dtype=torch.float64)
        product = step / step.sum(1, keepdim=True) @ product
    return run.net.pooled(product)[run.net.prefix :]


def generic_attention(run: SimpleNamespace, target: int) -> Tensor:
    """R starts as the identity; per block R <- R + mean over heads of (gradient * attention)+ times R."""
    product = torch.eye(len(run.out), dtype=torch.float64)
    for block in run.blocks:
        attention = block.attention
        step = (gradient(run, target, attention) * attention.detach()).clamp(min=0).mean(0)
        product = product + step @ product
    return run.net.pooled(product)[run.net.prefix :]


def gradcam_attention(run: SimpleNamespace, target: int) -> Tensor:
    """Heads of the last attention are the channels, and the row that the head reads is the picture."""
    attention = run.blocks[-1].attention
    slopes = gradient(run, target, attention)
    total = torch.zeros(len(run.patches), dtype=torch.float64)
    for head in range(run.net.heads):
        weight = run.net.pooled(slopes[head])[run.net.prefix :].mean()
        total += weight * run.net.pooled(attention[head].detach())[run.net.prefix :]
    return (total / run.net.heads).clamp(min=0)


def gradcam_ln(run: SimpleNamespace, target: int) -> Tensor:
    """Channels of the normed tokens that feed the last attention."""
    normed = run.blocks[-1].normed1
    weights = gradient(run, target, normed)[run.net.prefix :].mean(0)
    return (normed.detach()[run.net.prefix :] * weights).sum(1).clamp(min=0)


# -------------------------------------------------------------------------------------------------- relevance: rules


def divided(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is exactly zero."""
    return torch.where(b == 0, torch.zeros_like(b), a / torch.where(b == 0, torch.ones_like(b), b))


def identity_rule(x: Tensor, relevance: Tensor) -> Tensor:
    """Relevance passes an operation on single numbers unchanged, except to an input that is exactly zero."""
    return torch.where(x == 0, torch.zeros_like(x), relevance)


def z_plus_rule(x: Tensor, weight: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Linear layer, one token: shares among the positive contributions, whatever their factors' signs; no bias.

    Second answer: what is lost where nothing contributes positively, which in narrow layers does happen.
    """
    z = (x[:, None] * weight.T).clamp(min=0)
    return (z * divided(relevance, z.sum(0))).sum(1), relevance[z.sum(0) == 0].sum()


def gamma_rule(x: Tensor, weight: Tensor, bias: Tensor, relevance: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Linear layer, one token: contributions of the output's own sign count 1 + gamma times, so does such a bias.

    Gamma 0 is the proportional rule R_i = x_i * sum_j w_ij R_j / y_j. Second answer: what the bias keeps.
    """
    z = torch.cat([x[:, None] * weight.T, bias[None]])  # the bias is one more contribution
    y = z.sum(0)
    own = torch.where(y > 0, z.clamp(min=0), z.clamp(max=0))
    z = z + gamma * own
    shares = z * divided(torch.where(y == 0, torch.zeros_like(y), relevance), z.sum(0))
    return shares[:-1].sum(1), shares[-1].sum()


def norm_rule(x: Tensor, std: Tensor, weight: Tensor, bias: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Layer norm, one token, with its deviation held constant: then it is a linear layer, diagonal less mean."""
    centre = torch.eye(len(x), dtype=torch.float64) - 1 / len(x)
    return gamma_rule(x, weight[:, None] * centre / std, bias, relevance, gamma=0.0)


def residual_rule(a: Tensor, b: Tensor, relevance: Tensor, normalised: bool) -> tuple[Tensor, Tensor]:
    """a + b in proportion; ``normalised`` (Chefer) scales each to |A| / (|A| + |B|) of the whole, A and B being its sum."""
    relevance = identity_rule(a + b, relevance)
    to_a, to_b = a * divided(relevance, a + b), b * divided(relevance, a + b)
    if normalised:
        sum_a, sum_b = to_a.sum(), to_b.sum()
        size = sum_a.abs() + sum_b.abs()
        to_a = to_a * divided(divided(sum_a.abs(), size) * relevance.sum(), sum_a)
        to_b = to_b * divided(divided(sum_b.abs(), size) * relevance.sum(), sum_b)
    return to_a, to_b


def product_rule(z: Tensor, relevance: Tensor, summed: int, left: int, right: int) -> tuple[Tensor, Tensor]:
    """Matrix product, half to each factor. ``z`` are its terms [row, column, channel], which add up over axis ``summed``.

    ``left`` and ``right`` are the axes that the first and the second factor do not have.
    """
    shares = z * divided(relevance, z.sum(summed)).unsqueeze(summed)
    return shares.sum(left) / 2, shares.sum(right) / 2


# ----------------------------------------------------------------------------------------- relevance: the whole net


@dataclass
class Relevance:
    """What one pass of relevance from a logit to the patch embedding left where."""

    patches: Tensor | None = None  # [N, D], at the output of the patch convolution
    leaving: Tensor | None = None  # [T, D], at the output of the last block
    entering: list[Tensor] = field(default_factory=list)  # per block [T, D], at its input
    attention: list[Tensor] = field(default_factory=list)  # per block [heads, T, T], at its attention weights
    kept: float = 0.0  # what biases, positions and the class token kept
    dropped: float = 0.0  # what the z+ rule lost at outputs that have no positive contribution at all


class Backward:
    """One pass; ``rules`` is "lrp" (Chefer) or "attnlrp", ``attention`` "softmax" or "cp" (all of A v to v)."""

    def __init__(self, run: SimpleNamespace, rules: str, gamma: float = 0.0, attention: str = "softmax") -> None:
        if rules not in ("lrp", "attnlrp") or attention not in ("softmax", "cp"):
            raise ValueError(f"unknown rules {rules} or attention {attention}")
        self.run, self.net, self.chefer, self.gamma, self.cp = run, run.net, rules == "lrp", gamma, attention == "cp"
        self.found = Relevance()

    @torch.no_grad()
    def __call__(self, target: int) -> Relevance:
        run, net, found = self.run, self.net, self.found
        relevance = torch.zeros_like(run.logits)
        relevance[target] = 1.0 if self.chefer else run.logits[target]
        relevance = self.linear("head", run.features[None], relevance[None])[0]
        if "fc_norm.weight" in net.state:
            relevance = self.norm("fc_norm", run.pooled[None], relevance[None])[0]
        relevance = self.pool(relevance)
        if "norm.weight" in net.state:
            relevance = self.norm("norm", run.out, relevance)
        found.leaving = relevance
        for block in reversed(run.blocks):
            relevance = self.block(block, relevance)
            found.entering.insert(0, relevance)
        to_tokens, to_positions = residual_rule(run.embedded, net.state["pos_embed"][0], relevance, normalised=False)
        found.kept += float(to_positions.sum() + to_tokens[: net.prefix].sum())
        found.patches = to_tokens[net.prefix :]
        return found

    def linear(self, layer: str, x: Tensor, relevance: Tensor) -> Tensor:
        weight, bias = self.net.weight(layer), self.net.bias(layer)
        if self.chefer:
            tokens = [z_plus_rule(x[t], weight, relevance[t]) for t in range(len(x))]
            self.found.dropped += float(sum(dropped for _, dropped in tokens))
            return torch.stack([passed for passed, _ in tokens])
        return self.gathered([gamma_rule(x[t], weight, bias, relevance[t], self.gamma) for t in range(len(x))])

    def norm(self, layer: str, x: Tensor, relevance: Tensor) -> Tensor:
        if self.chefer:
            return identity_rule(x, relevance)
        weight, bias, std = self.net.weight(layer), self.net.bias(layer), self.net.deviation(x)
        return self.gathered([norm_rule(x[t], std[t], weight, bias, relevance[t]) for t in range(len(x))])

    def gathered(self, tokens: list[tuple[Tensor, Tensor]]) -> Tensor:
        self.found.kept += float(sum(kept for _, kept in tokens))
        return torch.stack([passed for passed, _ in tokens])

    def pool(self, relevance: Tensor) -> Tensor:
        """From the pooled row [D] to the tokens [T, D]. Chefer's rules share a mean among the values of its own sign."""
        x, y = self.run.normed, self.run.pooled
        z = torch.zeros_like(x)
        if self.net.pool == "token":
            z[0] = x[0]
        else:
            z[self.net.prefix :] = x[self.net.prefix :]
            if self.chefer:
                z = torch.where(y > 0, z.clamp(min=0), z.clamp(max=0))
        return z * divided(identity_rule(y, relevance), z.sum(0))

    def block(self, kept: SimpleNamespace, relevance: Tensor) -> Tensor:
        name = kept.name
        stream, branch = residual_rule(kept.middle, kept.written, relevance, normalised=self.chefer)
        branch = self.linear(f"{name}.mlp.fc2", kept.active, branch)
        branch = identity_rule(kept.hidden, branch)  # GELU
        branch = self.linear(f"{name}.mlp.fc1", kept.normed2, branch)
        relevance = stream + self.norm(f"{name}.norm2", kept.middle, branch)

        stream, branch = residual_rule(kept.x, kept.attended, relevance, normalised=self.chefer)
        branch = self.linear(f"{name}.attn.proj", self.net.joined(kept.mixed), branch)
        branch = self.attend(kept, self.net.split(branch))
        branch = self.linear(f"{name}.attn.qkv", kept.normed1, branch)
        return stream + self.norm(f"{name}.norm1", kept.x, branch)

    def attend(self, kept: SimpleNamespace, relevance: Tensor) -> Tensor:
        """From the output of the heads [heads, T, d] to q, k and v beside each other [T, 3 * heads * d]."""
        to_q, to_k, to_v = (torch.zeros_like(part) for part in (kept.q, kept.k, kept.v))
        to_attention = torch.zeros_like(kept.attention)
        for h in range(self.net.heads):
            z = kept.attention[h][:, :, None] * kept.v[h][None]
            to_attention[h], to_v[h] = product_rule(z, relevance[h], summed=1, left=2, right=0)
            if self.cp:
                to_attention[h], to_v[h] = 0.0, 2 * to_v[h]
            to_scores = to_attention[h]
            if not self.chefer:  # softmax to first order: R_i = x_i (R_i - s_i * sum of R)
                to_scores = kept.scores[h] * (to_scores - kept.attention[h] * to_scores.sum(1, keepdim=True))
            z = kept.q[h][:, None, :] * kept.k[h][None] * kept.scale
            to_q[h], to_k[h] = product_rule(z, to_scores, summed=2, left=1, right=0)
        self.found.attention.insert(0, to_attention)
        return torch.cat([self.net.joined(part) for part in (to_q, to_k, to_v)], -1)


def lrp(run: SimpleNamespace, target: int) -> Tensor:
    """Chefer, Gur & Wolf: the row that the head reads, times the product of (I + M), last layer first.

    M is the mean over heads of (gradient * relevance)+ of the attention weights. The row is each token's share in the
    relevance that leaves the last block, which is the class row if the head reads the class token.
    """
    found = Backward(run, "lrp")(target)
    row = divided(found.leaving.sum(1), found.leaving.sum())
    for block, relevance in zip(reversed(run.blocks), reversed(found.attention), strict=True):
        step = (gradient(run, target, block.attention) * relevance).clamp(min=0).mean(0)
        row = row + row @ step
    return row[run.net.prefix :]


def attnlrp(run: SimpleNamespace, target: int, gamma: float = 0.0, attention: str = "softmax") -> Tensor:
    """Achtibat et al.; ``attention="cp"`` sends no relevance through the softmax. Signed, summed over channels."""
    return Backward(run, "attnlrp", gamma, attention)(target).patches.sum(1)


def libragrad(run: SimpleNamespace, target: int) -> Tensor:
    """Mehri et al., as gradient x input: attention weights, GELU's factor and the norms' deviations are constants."""
    return Backward(run, "attnlrp", 0.0, "cp")(target).patches.sum(1)


MAPS: dict[str, Callable[..., Any]] = {
    "attention-last": lambda run, target: attention_last(run),
    "attention-rollout": lambda run, target: attention_rollout(run),
    "generic-attention": generic_attention,
    "gradcam-attention": gradcam_attention,
    "gradcam-ln": gradcam_ln,
    "lrp": lrp,
    "attnlrp": attnlrp,
    "libragrad": libragrad,
}
"""By method name: ``MAPS[name](run, target)`` is a map [N] over the patches, row by row; attnlrp takes options too."""
