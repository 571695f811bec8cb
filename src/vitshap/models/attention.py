"""Masked attention in a network's own attention layers, without changing the network.

Every library ends in one of two calls: ``F.scaled_dot_product_attention`` (timm, transformers) or
``F.multi_head_attention_forward`` (torchvision, through ``nn.MultiheadAttention``). A torch-function mode intercepts
these two, so the user's modules run unchanged and nothing has to be restored afterwards. The implementations of
``Attend`` below differ in which keys a query may see and how that is computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NoReturn, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

HAS_TRITON = find_spec("triton") is not None
WIDTHS = (16, 32, 64, 128)
"""Head widths that the Triton kernel supports."""
STEP = 8
"""PyTorch's variable-length attention takes head widths that are multiples of this."""


class Attend(Protocol):
    """Attention of queries ``[n, H, Lq, c]`` over keys and values ``[n, H, Lk, c]``, with an optional additive bias."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, dropout: float
    ) -> Tensor:
        """Return ``[n, H, Lq, c]``."""


class AttentionOverride(TorchFunctionMode):
    """While active, every attention layer computes a given function, or the ``attend`` of a subclass."""

    def __init__(self, given: Attend | None = None) -> None:
        super().__init__()
        self._given = given

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, dropout: float
    ) -> Tensor:
        """Compute attention, as ``Attend``."""
        assert self._given is not None
        return self._given(q, k, v, bias, scale, dropout)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._scaled_dot_product(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        return func(*args, **kwargs)

    def _scaled_dot_product(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if is_causal or enable_gqa or (attn_mask is not None and attn_mask.dtype == torch.bool):
            _cannot_mask("attention that is causal, grouped or has a mask of its own")
        return self.attend(query, key, value, attn_mask, scale, dropout_p)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The projections of ``nn.MultiheadAttention``; subclasses may change their backward pass."""
        return F.linear(x, weight, bias)

    def _multi_head(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Compute self-attention of ``nn.MultiheadAttention``: its own projections around ``attend``."""
        call = _MULTI_HEAD.bind(*args, **kwargs).arguments
        x: Tensor = call["query"]  # [L, n, D]
        if x is not call["key"] or x is not call["value"] or call["bias_k"] is not None or call["add_zero_attn"]:
            _cannot_mask("attention that is not plain self-attention")
        length, n, width = x.shape
        heads: int = call["num_heads"]
        projected = self.linear(x, call["in_proj_weight"], call["in_proj_bias"])
        q, k, v = (
            part.view(length, n, heads, width // heads).permute(1, 2, 0, 3) for part in projected.chunk(3, dim=-1)
        )
        dropout = call["dropout_p"] if call.get("training", True) else 0.0
        out = self.attend(q, k, v, call.get("attn_mask"), None, dropout)
        out = out.permute(2, 0, 1, 3).reshape(length, n, width)
        return self.linear(out, call["out_proj_weight"], call["out_proj_bias"]), None


def _cannot_mask(what: str) -> NoReturn:
    raise NotImplementedError(f'patches cannot be withheld from {what}; removal="pixels" works with any network')


_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


class KeysOnly:
    """Attention restricted to the keys that are ``valid``, by the fused kernel with a mask.

    A row without any valid key gets zeros.
    """

    def __init__(self, valid: Tensor | None, positions: Tensor | None = None, *, may_be_empty: bool = False) -> None:
        """``valid``: bool ``[n, Lk]`` or None for all; ``positions``: int64 ``[n, L]``, indices of tokens in the image."""
        self.valid = valid
        self.positions = positions
        self.empty = ~valid.any(1)[:, None, None, None] if valid is not None and may_be_empty else None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, dropout: float
    ) -> Tensor:
        mask = self._mask(bias)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
        return out if self.empty is None else out.masked_fill(self.empty, 0)

    def _mask(self, bias: Tensor | None) -> Tensor | None:
        if bias is not None and self.positions is not None:
            bias = _bias_at(bias, self.positions)
        if self.valid is None:
            return bias
        visible = self.valid[:, None, None, :]
        if self.empty is not None:
            visible = visible | self.empty  # a softmax over no key is NaN, also in its gradient
        return visible if bias is None else bias.masked_fill(~visible, float("-inf"))


class KeysOnlyExplicit(KeysOnly):
    """The same as explicit formulas: scores, minus infinity at withheld keys, softmax. The reference for the others."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, dropout: float
    ) -> Tensor:
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
        mask = self._mask(bias)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        out = F.dropout(scores.softmax(-1), dropout) @ v
        return out if self.empty is None else out.masked_fill(self.empty, 0)


class ZeroAfterSoftmax:
    """Attention weights of withheld keys are set to zero after the softmax, so that weights no longer sum to one."""

    def __init__(self, valid: Tensor) -> None:
        self.valid = valid  # [n, L]

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, dropout: float
    ) -> Tensor:
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if bias is not None:
            scores = scores + bias
        weights = scores.softmax(-1) * self.valid[:, None, None, :]
        return F.dropout(weights, dropout) @ v


class VariableLength:
    """Attention within sequences of unequal length that are concatenated in one row. CUDA, half precision."""

    def __init__(self, boundaries: Tensor, longest: int) -> None:
        self.boundaries = boundaries  # int32 [n + 1], cumulative lengths
        self.longest = longest
        self._spans: tuple[Tensor, Tensor] | None = None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, dropout: float
    ) -> Tensor:
        assert bias is None  # models with Adapter.has_bias are not packed
        if dropout > 0:
            raise NotImplementedError(
                "variable-length attention has no dropout: set the model's attention dropout to 0, "
                'or train with model.evaluation = "full"'
            )
        width = q.shape[-1]
        scale = width**-0.5 if scale is None else scale
        # [1, H, T, c] -> [T, H, c]; no copy: the kernels take strides
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))
        # Where torch.compile works there is a compiler, which the Triton kernel needs too.
        use_triton = torch.compiler.is_compiling() and HAS_TRITON and width in WIDTHS and not torch.is_grad_enabled()
        out = (self._by_tokens if use_triton else self._by_sequences)(q, k, v, scale)
        return out.transpose(0, 1).unsqueeze(0)

    def _by_tokens(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        from vitshap.models.triton_attention import attend_packed

        if self._spans is None:  # the same in every layer
            token = torch.arange(len(q), device=q.device, dtype=self.boundaries.dtype)
            sequence = torch.searchsorted(self.boundaries, token, right=True)
            self._spans = self.boundaries[sequence - 1], self.boundaries[sequence]
        return cast(Tensor, attend_packed(q, k, v, *self._spans, scale))

    def _by_sequences(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        ends, longest, width = self.boundaries, self.longest, q.shape[-1]
        if width % STEP:
            q, k, v = (F.pad(x, (0, -width % STEP)) for x in (q, k, v))
        if scale != q.shape[-1] ** -0.5:
            q = q * (scale * q.shape[-1] ** 0.5)  # older releases have no argument for the scale
        return cast(Tensor, varlen_attn(q, k, v, ends, ends, longest, longest))[..., :width]


def has_variable_length(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether variable-length attention is available."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    try:
        from torch.nn.attention import varlen  # noqa: F401
    except ImportError:  # torch before 2.10
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _bias_at(bias: Tensor, positions: Tensor) -> Tensor:
    """Select from a bias between all tokens ``[1, H, N, N]`` that of the tokens of each row ``[n, H, L, L]``."""
    pairs = positions[:, :, None] * bias.shape[-1] + positions[:, None, :]
    # Not bias[:, rows, columns]: on a CPU its gradient is summed in an order that varies from run to run.
    return F.embedding(pairs, bias[0].flatten(1).T).permute(0, 3, 1, 2)
